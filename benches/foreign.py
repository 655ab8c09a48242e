"""Run programs that nobody here wrote under allocators in turn; write a table into docs/malloc.md.

Each round runs each program under each allocator, beginning with another one, so that what else
the machine does meets all of them alike. A ratio is that of two runs of one round; its interval
comes from drawing rounds again (bootstrap).
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import documents
import malloc
import peers
from foreign_inputs import PROGRAMS, write_inputs

THREADS = (2, 16)
OURS = malloc.OURS
# Without a library to preload, Debian's redis-server would use jemalloc, which it is linked with.
GLIBC = malloc.DEBIAN / "libc.so.6"
DRAWS = 1000
STARTS = 200
Samples = dict[str, dict[str, list[tuple[float, float]]]]


def runs(names: list[str] | None) -> dict[str, str]:
    """Return shell commands by row of the table; programs with threads have several rows."""
    found = {}
    for name, command in PROGRAMS.items():
        if names and not any(wanted in name for wanted in names):
            continue
        if "$THREADS" not in command:
            found[name] = command
            continue
        for threads in THREADS:
            found[f"{name}, {threads} threads"] = command.replace("$THREADS", str(threads))
    return found


def measure(
    folder: Path, rows: dict[str, str], allocators: dict[str, Path | None], rounds: int
) -> Samples:
    """CPU seconds and peak MB of each round, by row and allocator."""
    launcher = folder / "launcher"
    support = malloc.SOURCES / "support" / "run.c"
    subprocess.run(["cc", "-O2", "-w", "-o", launcher, support], check=True)
    directory = ["git", "-C", str(malloc.ROOT), "rev-parse", "--path-format=absolute"]
    repository = subprocess.check_output([*directory, "--git-common-dir"], text=True).strip()
    write_inputs(folder, peers.MIMALLOC, Path(repository))
    samples: Samples = {row: {name: [] for name in allocators} for row in rows}
    os.chdir(folder)
    for number in range(rounds):
        for row, command in rows.items():
            names = list(allocators)
            shift = number % len(names)
            names = names[shift:] + names[:shift]
            for name in names if number % 2 else reversed(names):
                library = allocators[name] or GLIBC
                shell = ["sh", "-ec", f"exec 2>/dev/null; {command}"]
                environment = {"PYTHONMALLOC": "malloc", "LC_ALL": "C"}
                sample = malloc.run(launcher, shell, library, environment)
                samples[row][name].append((sample.seconds, sample.megabytes))
            said = ", ".join(f"{name} {samples[row][name][-1][0]:.2f}" for name in allocators)
            print(f"round {number + 1}: {row}: {said}", file=sys.stderr, flush=True)
    return samples


def ratio(
    by_name: dict[str, list[tuple[float, float]]], name: str, what: int, rounds: list[int]
) -> float:
    """Return the median over rounds of a peer's value, ours being 1."""
    return statistics.median(
        by_name[name][number][what] / by_name[OURS][number][what] for number in rounds
    )


def mean(samples: Samples, name: str, what: int) -> tuple[float, float, float]:
    """Return the geometric mean of the ratios over programs, and where 95 % of the draws lie."""
    count = len(next(iter(samples.values()))[OURS])

    def once(rounds: list[int]) -> float:
        return malloc.geometric(
            [ratio(by_name, name, what, rounds) for by_name in samples.values()]
        )

    draw = random.Random(1)
    drawn = sorted(once(draw.choices(range(count), k=count)) for _ in range(DRAWS))
    return once(list(range(count))), drawn[DRAWS // 40], drawn[-DRAWS // 40 - 1]


def behind(samples: Samples, others: list[str]) -> list[str]:
    """Rows in which ours takes over 5 % more CPU time than the best of the others."""
    rounds = list(range(len(next(iter(samples.values()))[OURS])))
    found = []
    for row, by_name in samples.items():
        best = min(others, key=lambda name: ratio(by_name, name, 0, rounds))
        share = 1 / ratio(by_name, best, 0, rounds) - 1
        if share > 0.05:
            found.append(f"{row} ({share * 100:.0f} % behind {best})")
    return found


def lines(samples: Samples) -> list[str]:
    """Lines of the document."""
    names = list(next(iter(samples.values())))
    others = [name for name in names if name != OURS]
    rounds = list(range(len(next(iter(samples.values()))[OURS])))
    rows = []
    for row, by_name in samples.items():
        seconds, megabytes = (
            statistics.median(sample[what] for sample in by_name[OURS]) for what in (0, 1)
        )
        cells = [
            " / ".join(f"{ratio(by_name, name, what, rounds):.2f}" for what in (0, 1))
            for name in others
        ]
        rows.append([row, f"{seconds:.2f} / {megabytes:,.0f}", *cells])
    for said, kept in (
        ("geometric mean", samples),
        *(
            (f"of those with {threads} threads", chosen)
            for threads in THREADS
            if (chosen := {row: of for row, of in samples.items() if f" {threads} threads" in row})
        ),
    ):
        cells = []
        for name in others:
            (time, low, high), (memory, _, _) = (mean(kept, name, what) for what in (0, 1))
            cells.append(f"{time:.3f} ({low:.3f} to {high:.3f}) / {memory:.2f}")
        rows.append([f"**{said}**", "1 / 1", *cells])
    slow = behind(samples, others)
    programs = len({row.partition(",")[0] for row in samples})
    about = (
        f"{programs} programs, {len(samples)} rows; {len(rounds)} rounds on {os.cpu_count()} CPUs, "
        f"Linux {platform.release()}, transparent huge pages `{malloc.huge_pages()}`. Ours: "
        "medians of CPU seconds of all threads, processes and the kernel / peak resident MB of the "
        "largest process. Others: medians of ratios of the same round, ours = 1 (above 1: ours "
        f"takes less), in brackets: 95 % of {DRAWS:,} draws of rounds."
    )
    verdict = "More than 5 % behind the best: " + (", ".join(slow) if slow else "none") + "."
    return [
        *textwrap.wrap(about, 118),
        "",
        *documents.rows({"heads": ["program", OURS, *others], "rows": rows}),
        "",
        *textwrap.wrap(verdict, 118),
    ]


def starts(folder: Path, allocators: dict[str, Path | None], rounds: int) -> str:
    """Return what the start of a program costs."""
    loop = f"i=0; while [ $i -lt {STARTS} ]; do /bin/true; i=$((i+1)); done"
    found: dict[str, list[float]] = {name: [] for name in allocators}
    for _ in range(rounds):
        for name, library in allocators.items():
            sample = malloc.run(folder / "launcher", ["sh", "-c", loop], library, {})
            found[name].append(sample.seconds / STARTS * 1000)
    said = ", ".join(f"{name} {statistics.median(times):.2f}" for name, times in found.items())
    return f"Start and end of `/bin/true`, ms of CPU time: {said}."


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", help="programs whose names contain one of these")
    parser.add_argument("--library", type=Path, default=malloc.ALLOCATORS[OURS])
    parser.add_argument("--print", action="store_true", help="write nothing, print the table")
    options = parser.parse_args()
    allocators = {**malloc.ALLOCATORS, OURS: options.library.resolve(), **peers.built()}
    with tempfile.TemporaryDirectory() as folder:
        samples = measure(Path(folder), runs(options.only), allocators, options.rounds)
        start = starts(Path(folder), allocators, options.rounds)
    text = [*lines(samples), *textwrap.wrap(start, 118)]
    if options.print:
        print("\n".join(text))
    else:
        documents.replace("foreign", "malloc.md", text)


if __name__ == "__main__":
    main()
