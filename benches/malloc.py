"""Compare allocators and write the table into docs/malloc.md.

Programs of our own (`benches/malloc/*.c`) run under each allocator in turn, round after round, so
that whatever else the machine does meets all of them alike. A figure is the median over rounds.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "benches" / "malloc"
DOCUMENT = ROOT / "docs" / "malloc.md"
MARKS = ("<!-- bench-malloc:begin -->", "<!-- bench-malloc:end -->")
HOT_MARKS = ("<!-- hot-malloc:begin -->", "<!-- hot-malloc:end -->")
HOT_SIZES = (16, 64, 256, 1024)
DEBIAN = Path("/usr/lib") / f"{platform.machine()}-linux-gnu"
ALLOCATORS = {
    "contigua": ROOT / "target" / "release" / "libcontigua_malloc.so",
    "glibc": None,
    "jemalloc": DEBIAN / "libjemalloc.so.2",
    "mimalloc": DEBIAN / "libmimalloc.so.2.0",
    "tcmalloc": DEBIAN / "libtcmalloc_minimal.so.4",
}
OURS = next(iter(ALLOCATORS))


@dataclass
class Sample:
    """Costs of one run."""

    wall: float
    #: Of the program's own, of the kernel.
    user: float
    system: float
    megabytes: float
    faults: int

    @property
    def seconds(self) -> float:
        """Of CPU time."""
        return self.user + self.system


def run(
    launcher: Path, command: list[str], library: Path | None, environment: dict[str, str]
) -> Sample:
    """Run a command under an allocator and measure it."""
    line = [str(launcher), str(library or "-"), *command]
    done = subprocess.run(line, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} under {library or 'glibc'} failed\n{done.stderr}")
    wall, user, system, kilobytes, faults = done.stdout.split()
    return Sample(float(wall), float(user), float(system), float(kilobytes) / 1024, int(faults))


def commands(directory: Path) -> dict[str, list[str]]:
    """Compile our programs; add those that Debian has."""
    found = {}
    support = SOURCES / "support" / "run.c"
    subprocess.run(["cc", "-O2", "-w", "-o", directory / "launcher", support], check=True)
    for source in sorted(SOURCES.glob("*.c")):
        program = directory / source.stem
        subprocess.run(
            ["cc", "-O2", "-fno-builtin-malloc", "-pthread", "-o", program, source], check=True
        )
        found[source.stem] = [str(program)]
    found["python (/usr/bin)"] = ["/usr/bin/python3", str(SOURCES / "objects.py")]
    return found


def measure(
    launcher: Path, programs: dict[str, list[str]], rounds: int
) -> dict[str, dict[str, list[Sample]]]:
    """Samples by program and allocator."""
    samples: dict[str, dict[str, list[Sample]]] = {
        program: {name: [] for name in ALLOCATORS} for program in programs
    }
    for round_number in range(rounds):
        print(f"round {round_number + 1} of {rounds}", file=sys.stderr)
        for program, command in programs.items():
            names = list(ALLOCATORS)
            # Another one begins each time, and each second round goes backwards.
            shift = round_number % len(names)
            names = names[shift:] + names[:shift]
            for name in names if round_number % 2 else reversed(names):
                environment = {"PYTHONMALLOC": "malloc"} if "python" in program else {}
                sample = run(launcher, command, ALLOCATORS[name], environment)
                samples[program][name].append(sample)
    return samples


def huge_pages() -> str:
    """Return whom the system gives huge pages: everybody (`always`) or who asks (`madvise`)."""
    modes = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    return modes.partition("[")[2].partition("]")[0]


def geometric(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def medians_of(
    samples: dict[str, dict[str, list[Sample]]], what: str
) -> dict[str, dict[str, float]]:
    """Return medians by program and allocator."""
    return {
        program: {
            name: statistics.median(getattr(sample, what) for sample in runs)
            for name, runs in by_allocator.items()
        }
        for program, by_allocator in samples.items()
    }


def relative(medians: dict[str, dict[str, float]]) -> dict[str, str]:
    """Return geometric means over programs, ours being 1."""
    means = {name: geometric([row[name] for row in medians.values()]) for name in ALLOCATORS}
    return {name: f"{mean / means[OURS]:.3f}" for name, mean in means.items()}


def table(measures: list[tuple[dict[str, dict[str, float]], int]]) -> list[str]:
    """Lines of a Markdown table of medians of several measures, the best of each line in bold.

    A measure is its medians and their digits.
    """
    lines = [
        "| program | " + " | ".join(ALLOCATORS) + " |",
        "|---|" + "---:|" * len(ALLOCATORS),
    ]
    for program in measures[0][0]:
        cells: dict[str, list[str]] = {name: [] for name in ALLOCATORS}
        for medians, digits in measures:
            by_name = medians[program]
            best = min(by_name.values())
            for name, value in by_name.items():
                said = f"{value:.{digits}f}"
                cells[name].append(f"**{said}**" if value == best else said)
        lines.append(f"| {program} | " + " | ".join(map(" / ".join, cells.values())) + " |")
    means = [relative(medians) for medians, _ in measures]
    cells = {name: [mean[name] for mean in means] for name in ALLOCATORS}
    lines.append(
        "| geometric mean, ours = 1 | " + " | ".join(map(" / ".join, cells.values())) + " |"
    )
    return lines


def hot(directory: Path, rounds: int) -> list[str]:
    """Lines of a Markdown table of a malloc and a free of one object, hot."""
    program = directory / "hot"
    source = SOURCES / "support" / "hot.c"
    subprocess.run(["cc", "-O2", "-fno-builtin-malloc", "-o", program, source], check=True)
    best = {size: dict.fromkeys(ALLOCATORS, math.inf) for size in HOT_SIZES}
    for _ in range(rounds):
        for size, row in best.items():
            for name, library in ALLOCATORS.items():
                preload = {} if library is None else {"LD_PRELOAD": str(library)}
                done = subprocess.run(
                    [program, str(size)],
                    env={**os.environ, **preload},
                    capture_output=True,
                    check=True,
                )
                row[name] = min(row[name], float(done.stdout))
    lines = ["", "| bytes | " + " | ".join(ALLOCATORS) + " |", "|---|" + "---:|" * len(ALLOCATORS)]
    for size, row in best.items():
        lines.append(f"| {size:,} | " + " | ".join(f"{value:.1f}" for value in row.values()) + " |")
    return [*lines, ""]


def write(marks: tuple[str, str], lines: list[str]) -> None:
    """Put lines between marks in the document."""
    before, rest = DOCUMENT.read_text().split(marks[0])
    _, after = rest.split(marks[1])
    DOCUMENT.write_text(before + marks[0] + "\n".join(lines) + marks[1] + after)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="programs whose name contains this")
    parser.add_argument("--print", action="store_true", help="write nothing, print the tables")
    parser.add_argument("--hot", action="store_true", help="one object only, and no program")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        one_object = [] if options.only else hot(Path(directory), options.rounds)
        if one_object and not options.print:
            write(HOT_MARKS, one_object)
        if options.hot:
            print("\n".join(one_object))
            return
        programs = commands(Path(directory))
        if options.only:
            programs = {name: line for name, line in programs.items() if options.only in name}
        samples = measure(Path(directory) / "launcher", programs, options.rounds)
    walls = relative(medians_of(samples, "wall"))
    lines = [
        "",
        *textwrap.wrap(
            f"Medians of {options.rounds} rounds on {os.cpu_count()} CPUs, "
            f"Linux {platform.release()}, transparent huge pages `{huge_pages()}`. CPU seconds, "
            "of all threads and the kernel / peak resident memory, MB:",
            118,
        ),
        "",
        *table([(medians_of(samples, "seconds"), 3), (medians_of(samples, "megabytes"), 1)]),
        "",
        *textwrap.wrap(
            "Wall time, which other work on the machine lengthens, as a geometric mean, ours = 1: "
            + ", ".join(f"{name} {mean}" for name, mean in list(walls.items())[1:])
            + ".",
            118,
        ),
        "",
    ]
    if options.print:
        print("\n".join([*lines, *one_object]))
        return
    write(MARKS, lines)


if __name__ == "__main__":
    main()
