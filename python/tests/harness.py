"""Runs commands under conditions that programs are seldom tried under, and looks at what remains.

A condition is a wrapper around the command line. Whatever it does, four things hold: the command
ends, with a status that it chose; nobody sees a traceback or a panic; no process, shared memory or
temporary file remains; each output is whole or absent.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from contigua import AgedServer, Trace

#: In the environment of everything that a command starts.
TOKEN = "CONTIGUA_TEST_TOKEN"
#: Seconds after which a command hangs, and after which what it started must have gone.
HANGS, LINGERS = 120.0, 10.0
#: Statuses by which a process says that it crashed: a panic of Rust's main thread, and signals.
CRASHES = {101, *(-number for number in (4, 6, 7, 8, 11)), *(128 + n for n in (4, 6, 7, 8, 11))}


@dataclass(frozen=True)
class Condition:
    """Something that a command runs under.

    Attributes
    ----------
    script
        A line of shell; ``"$@"`` stands for the command, ``$FOLDER`` for the folder of its outputs,
        ``$COPY`` for where they are to be copied if they go with the condition.
    wrapper
        A command line before the shell's, such as ``unshare``'s.
    statuses
        What the command may end with.
    """

    script: str
    wrapper: tuple[str, ...] = ()
    statuses: frozenset[int] = frozenset({0, 1})


@dataclass
class Ended:
    """What came of a run; ``faults`` is empty when all is as it should be."""

    status: int
    said: str
    seconds: float
    outputs: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)


NAMESPACE = ("unshare", "--map-root-user", "--mount")
KEEPING = 'status=$?; cp -a "$FOLDER"/. "$COPY"; exit $status'
CONDITIONS = {
    "nothing unusual": Condition('exec "$@"', statuses=frozenset({0})),
    "full disk": Condition(
        f'mount -t tmpfs -o size=16k tmpfs "$FOLDER"; (cd "$FOLDER"; exec "$@"); {KEEPING}',
        NAMESPACE,
        frozenset({1}),
    ),
    "a disk that is full from the beginning": Condition(
        'mount -t tmpfs -o nr_inodes=1 tmpfs "$FOLDER"; cd "$FOLDER"; exec "$@"',
        NAMESPACE,
        frozenset({1}),
    ),
    "read-only folder": Condition(
        'mount --bind "$FOLDER" "$FOLDER"; mount -o remount,ro,bind "$FOLDER"; '
        'cd "$FOLDER"; exec "$@"',
        NAMESPACE,
        frozenset({1}),
    ),
    "absent /dev/shm": Condition(
        'mount -t tmpfs -o ro,nr_inodes=1 tmpfs /dev/shm 2> /dev/null; umount /dev/shm; exec "$@"',
        NAMESPACE,
    ),
    "full standard output": Condition('exec "$@" > /dev/full'),
    "full standard error": Condition('exec "$@" 2> /dev/full', statuses=frozenset({0})),
    "closed standard input": Condition('exec "$@" <&-', statuses=frozenset({0})),
    "closed standard output": Condition('exec "$@" >&-'),
    "closed standard error": Condition('exec "$@" 2>&-', statuses=frozenset({0})),
    "all streams closed": Condition('exec "$@" <&- >&- 2>&-'),
    "small files": Condition('exec prlimit --fsize=20000 "$@"'),
    "few descriptors": Condition('exec prlimit --nofile=24:24 "$@"'),
    "little address space": Condition('exec prlimit --as=900000000 "$@"'),
    "small stack": Condition('exec prlimit --stack=262144 "$@"'),
    "no locked memory": Condition('exec prlimit --memlock=0 "$@"', statuses=frozenset({0})),
    # /proc is another namespace's: a program may be refused there, in words.
    "a PID namespace": Condition('exec "$@"', ("unshare", "--map-root-user", "--pid", "--fork")),
    "a PID namespace with its own /proc": Condition(
        'exec "$@"',
        ("unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"),
        frozenset({0}),
    ),
    # Nobody's user there, without capabilities even where root runs the tests.
    "a user namespace without root": Condition('exec "$@"', ("unshare", "--user"), frozenset({0})),
}
#: What to send, and what a command may then end with: its own end, that of an interrupt, death.
SIGNALS = {
    number: frozenset({0, 1, 130, -number, 128 + number})
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
}


def run(
    command: Sequence[str],
    folder: Path,
    condition: Condition,
    *,
    send: int | None = None,
    after: float = 0.0,
) -> Ended:
    """Run a command that writes into ``folder``, with a signal after so many seconds, and look.

    Parameters
    ----------
    command
        The command line.
    folder
        An empty folder; outputs, temporary files and copies get folders in it.
    condition
        What it runs under.
    send, after
        A signal that the command gets, and when; the moment never decides what is right.
    """
    places = {name: folder / name.lower() for name in ("FOLDER", "COPY", "TMPDIR")}
    for place in places.values():
        place.mkdir()
    token = str(uuid.uuid4())
    environment = os.environ | {name: str(place) for name, place in places.items()}
    shared = _shared()
    start = time.monotonic()
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [*condition.wrapper, "sh", "-c", condition.script, "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            cwd=places["FOLDER"],
            env=environment | {TOKEN: token},
        )
        faults = []
        try:
            if send is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(after)
                process.send_signal(send)
            process.wait(HANGS)
        except subprocess.TimeoutExpired:
            faults.append("hangs")
    seconds = time.monotonic() - start
    lingering = _lingering(token, 0.0 if faults else LINGERS)
    faults += [f"left a process: {line}" for line in lingering.values()]
    for pid in lingering:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    text = (folder / "said").read_text(errors="replace")
    ended = Ended(process.returncode, text, seconds, faults=faults)
    faults += [f"left shared memory: {name}" for name in _shared() - shared]
    allowed = SIGNALS[signal.Signals(send)] if send is not None else condition.statuses
    if ended.status not in allowed or (ended.status in CRASHES and send is None):
        faults.append(f"ended with {ended.status}")
    # An interrupt before the command has begun is Python's own.
    if "panicked" in text or ("Traceback" in text and "KeyboardInterrupt" not in text):
        faults.append("a traceback or a panic")
    written = places["COPY"] if any(places["COPY"].iterdir()) else places["FOLDER"]
    for file in sorted(written.iterdir()):
        if file.name.startswith("."):
            faults.append(f"left a temporary file: {file.name}")
        elif not is_whole(file):
            faults.append(f"not whole: {file.name}")
        else:
            ended.outputs.add(file.name)
    faults += [f"left a temporary file: {file.name}" for file in places["TMPDIR"].iterdir()]
    return ended


def is_whole(file: Path) -> bool:
    """Whether a result is what its ending says, to its end."""
    try:
        if file.suffix == ".json":
            return bool(json.loads(file.read_text()))
        if file.suffix == ".trace":
            return Trace(str(file)).info.instructions > 0
        if file.suffix == ".snapshot":
            return AgedServer.load(file).memory_map().width > 0
        if file.suffix == ".png":
            return file.read_bytes().endswith(b"IEND\xaeB`\x82")
        return file.read_text().rstrip().endswith("</html>")
    except Exception as error:
        print(f"{file}: {error}")
        return False


def _shared() -> set[str]:
    try:
        return {file.name for file in Path("/dev/shm").iterdir() if "contigua" in file.name}
    except OSError:
        return set()


def _lingering(token: str, seconds: float) -> Mapping[int, str]:
    """Return what still runs with a token in its environment, after waiting for it to end."""
    end = time.monotonic() + seconds
    while True:
        found = dict(_with_token(f"{TOKEN}={token}".encode()))
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.05)


def _with_token(token: bytes) -> Iterator[tuple[int, str]]:
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        # It may have gone meanwhile, or be somebody else's.
        with contextlib.suppress(OSError):
            if token in (place / "environ").read_bytes().split(b"\0"):
                words = (place / "cmdline").read_bytes().replace(b"\0", b" ")
                yield int(place.name), words.decode(errors="replace")[:100]


def contigua(*arguments: object) -> list[str]:
    """Return the command line of ``contigua``."""
    return [sys.executable, "-m", "contigua.cli", *map(str, arguments)]


def can_unshare() -> bool:
    """Whether this user may make namespaces."""
    command = [*NAMESPACE, "--pid", "--fork", "true"]
    return subprocess.run(command, capture_output=True).returncode == 0
