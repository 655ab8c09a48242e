#!/usr/bin/env python3
"""Fuzz what Python reads: `fuzz/python_readers.py fleet_snapshot|results [INPUTS] [SEED]`.

Inputs are the seeds of fuzz/seeds/TARGET, changed: values of their JSON replaced, moved, taken out,
and now and then bytes of the file. Anything but the reader's own error is a failure, as is an input
that takes longer than SECONDS or memory beyond MEBIBYTES; the input is kept in
fuzz/artifacts/TARGET.
"""

import json
import random
import resource
import signal
import sys
import tempfile
from copy import deepcopy
from pathlib import Path

import pyarrow

from contigua.fleet_report import _schema, row
from contigua.reports import ResultsError
from contigua.results import Results
from contigua.snapshots import MAGIC, Snapshot, SnapshotError, _report, read_snapshot

HERE = Path(__file__).parent
SECONDS = 10
MEBIBYTES = 500
#: Values that somebody might write in the place of others.
VALUES = [
    *(None, True, False, "", "x", "\udc80", "\x1b[2J", "[/x]", "9" * 400 + "GiB", "-1B", "NaN"),
    *(0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**300, 10**4000),
    *(0.5, -0.0, 1e308, -1e308, 5e-324, float("inf"), float("nan")),
    *([], {}, [[]], [1, 2], {"": 0}, [None] * 3),
]


def places(value, way=()):
    """Yield the ways to all values within one."""
    yield way
    if isinstance(value, dict):
        inner = list(value.items())
    else:
        inner = list(enumerate(value)) if isinstance(value, list) else []
    for key, one in inner:
        yield from places(one, (*way, key))


def changed(whole, ways, generator):
    """Return a value with up to three of its parts changed."""
    copy = json.loads(json.dumps(whole))
    for _ in range(generator.randint(1, 3)):
        way = generator.choice(ways)
        try:
            at = copy
            for part in way[:-1]:
                at = at[part]
            if not way:
                copy = deepcopy(generator.choice(VALUES))
            elif generator.random() < 0.1:
                del at[way[-1]]
            elif isinstance(at, dict) and generator.random() < 0.1:
                at[generator.choice(list(at))] = deepcopy(at[way[-1]])
            else:
                at[way[-1]] = deepcopy(generator.choice(VALUES))
        except (KeyError, IndexError, TypeError):
            # An earlier change took it away.
            continue
    return copy


def damaged(data, generator):
    """Return bytes with some of them changed, cut off or doubled."""
    data = bytearray(data)
    for _ in range(generator.randint(1, 8)):
        at = generator.randrange(len(data) + 1)
        kind = generator.randrange(4)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at:at] = data[: generator.randrange(64)]
        elif kind == 2:
            data[at : at + generator.randrange(8)] = generator.randbytes(generator.randrange(8))
        elif at < len(data):
            data[at] ^= 1 << generator.randrange(8)
    return bytes(data)


class Fleet:
    """Snapshots of servers: lines of JSON around runs of frames, packed."""

    def __init__(self, folder):
        self.file = folder / "snapshot"
        self.schema = _schema()
        seed = json.loads((HERE / "seeds/fleet_snapshot/report.json").read_text())
        self.header = {"format": "contigua-live-memory", "version": 1, "classes": ["free"]}
        self.report, self.ways = seed, list(places(seed))
        self.header_ways = list(places(self.header))

    def packed(self, header, report):
        """Return a file, whose checksum is right."""
        from test_fleet_report import frame

        text = json.dumps(header).encode() + b"\n\x81\x02\x10\0"
        return frame(text + json.dumps(report).encode() + b"\n")

    def make(self, generator):
        """Return an input."""
        header = self.header
        if generator.random() < 0.1:
            header = changed(header, self.header_ways, generator)
        report = changed(self.report, self.ways, generator)
        # Most are given as if they were unpacked: the checksum takes longer than all else.
        if generator.random() < 0.95:
            text = json.dumps(header).encode() + b"\n\x81\x02\x10\0"
            return text + json.dumps(report).encode() + b"\n"
        data = self.packed(header, report)
        return damaged(data, generator) if generator.random() < 0.5 else data

    def read(self, data):
        """Read it as a fleet's report does."""
        try:
            if data.startswith(MAGIC):
                self.file.write_bytes(data)
                made = row(read_snapshot(self.file))
            else:
                made = row(Snapshot(self.file, _report(iter([data]))))
        except SnapshotError:
            return False
        json.dumps(made, allow_nan=False, ensure_ascii=False).encode()
        pyarrow.Table.from_pylist([made], schema=self.schema)
        return True


class Files:
    """Results in the format of `contigua run --json`."""

    def __init__(self, folder):
        text = (HERE / "seeds/results/run.json").read_text()
        self.whole = json.loads(text)
        self.ways = list(places(self.whole))
        self.read_ones = 0

    def make(self, generator):
        """Return an input."""
        data = json.dumps(changed(self.whole, self.ways, generator)).encode()
        return damaged(data, generator) if generator.random() < 0.1 else data

    def read(self, data):
        """Read it as `contigua query` does."""
        try:
            found = Results.from_json(data.decode())
            self.read_ones += 1
            if self.read_ones % 10 == 0:
                found.to_arrow(reports=True)
        except (ResultsError, UnicodeDecodeError):
            return False
        return True


TARGETS = {"fleet_snapshot": Fleet, "results": Files}


def ring(*_):
    """Say that an input takes too long."""
    raise TimeoutError(f"it takes more than {SECONDS} s")


def fuzz(name, inputs, seed):
    """Give a target so many inputs."""
    before = signal.signal(signal.SIGALRM, ring)
    with tempfile.TemporaryDirectory() as folder:
        target, generator, good = TARGETS[name](Path(folder)), random.Random(seed), 0
        for number in range(inputs):
            data = target.make(generator)
            try:
                signal.alarm(SECONDS)
                good += target.read(data)
            except BaseException:
                kept = HERE / "artifacts" / name / f"{seed}-{number}"
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_bytes(data)
                print(f"{name}: input {number} failed; it is in {kept}", file=sys.stderr)
                raise
            finally:
                signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name}: {inputs} inputs, {good} read, the others refused; {memory:.0f} MiB at most")
    return memory


def main():
    """Fuzz a target."""
    name, *numbers = sys.argv[1:]
    sys.path.insert(0, str(HERE.parent / "python" / "tests"))
    inputs = int(numbers[0]) if numbers else 10_000
    memory = fuzz(name, inputs, int(numbers[1]) if len(numbers) > 1 else 1)
    if memory > MEBIBYTES:
        sys.exit(f"{name}: more than {MEBIBYTES} MiB")


if __name__ == "__main__":
    main()
