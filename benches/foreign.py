"""Run programs that nobody here wrote under allocators in turn; write a table into docs/malloc.md.

Each round runs each program under each allocator, beginning with another one, so that what else
the machine does meets all of them alike. A ratio is that of two runs of one round; its interval
comes from drawing rounds again, that of a mean from drawing rounds and programs (bootstrap).

``--why`` runs those that the table has as more than 5 % behind, under ours, ours without canaries
(level 0) and the best of the others only, and writes where they differ: in the program's own time,
the kernel's, page faults, or the share of samples that perf finds in the allocator.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import documents
import malloc
import mimalloc_bench
import peers
from foreign_inputs import PROGRAMS, write_inputs

THREADS = (2, 16)
OURS = malloc.OURS
#: Our library at hardening level 0.
LEVEL_0 = "level 0"
# Without a library to preload, Debian's redis-server would use jemalloc, which it is linked with.
GLIBC = malloc.DEBIAN / "libc.so.6"
#: Columns of the table.
WHAT = ("seconds", "megabytes")
DRAWS = 1000
STARTS = 200
#: Libraries by name.
Allocators = dict[str, Path | None]
#: By row of the table and allocator, of each round.
Samples = dict[str, dict[str, list[malloc.Sample]]]


def runs(programs: dict[str, str], names: list[str] | None) -> dict[str, str]:
    """Return shell commands by row of the table; programs with threads have several rows."""
    found = {}
    for name, command in programs.items():
        if names and not any(wanted in name for wanted in names):
            continue
        if "$THREADS" not in command:
            found[name] = command
            continue
        for threads in THREADS:
            found[f"{name}, {threads} threads"] = command.replace("$THREADS", str(threads))
    return found


def settings(name: str) -> dict[str, str]:
    """Return the environment of programs under an allocator."""
    common = {"PYTHONMALLOC": "malloc", "LC_ALL": "C"}
    return common | ({"CONTIGUA_MALLOC_HARDEN": "0"} if name == LEVEL_0 else {})


def measure(
    folder: Path, rows: dict[str, str], allocators: dict[str, Allocators], rounds: int
) -> Samples:
    """Run all rounds."""
    launcher = folder / "launcher"
    support = malloc.SOURCES / "support" / "run.c"
    subprocess.run(["cc", "-O2", "-w", "-o", launcher, support], check=True)
    directory = ["git", "-C", str(malloc.ROOT), "rev-parse", "--path-format=absolute"]
    repository = subprocess.check_output([*directory, "--git-common-dir"], text=True).strip()
    write_inputs(folder, peers.MIMALLOC, Path(repository))
    samples: Samples = {row: {name: [] for name in allocators[row]} for row in rows}
    os.chdir(folder)
    for number in range(rounds):
        for row, command in rows.items():
            names = list(allocators[row])
            shift = number % len(names)
            names = names[shift:] + names[:shift]
            for name in names if number % 2 else reversed(names):
                library = allocators[row][name] or GLIBC
                shell = ["sh", "-ec", f"exec 2>/dev/null; {command}"]
                sample = malloc.run(launcher, shell, library, settings(name))
                work = mimalloc_bench.millions(row, folder)
                per_work = {what: getattr(sample, what) / work for what in ("user", "system")}
                samples[row][name].append(dataclasses.replace(sample, **per_work))
            latest = samples[row].items()
            said = ", ".join(f"{name} {of[-1].seconds:.2f}" for name, of in latest)
            print(f"round {number + 1}: {row}: {said}", file=sys.stderr, flush=True)
    return samples


def ratio(
    by_name: dict[str, list[malloc.Sample]], name: str, what: str, rounds: list[int]
) -> float:
    """Return the median over rounds of a peer's value, ours being 1."""
    return statistics.median(
        getattr(by_name[name][number], what) / getattr(by_name[OURS][number], what)
        for number in rounds
    )


def program_of(row: str) -> str:
    """Return the program of a row, which may be one of several."""
    return row.partition(",")[0]


def mean(samples: Samples, name: str, what: str) -> tuple[float, float, float]:
    """Return the geometric mean of the ratios, and where 95 % of the draws lie.

    A draw is one of rounds and one of programs, with all their rows.
    """
    count = len(next(iter(samples.values()))[OURS])
    programs: dict[str, list[str]] = {}
    for row in samples:
        programs.setdefault(program_of(row), []).append(row)

    def once(rounds: list[int], names: list[str]) -> float:
        known = {row: ratio(samples[row], name, what, rounds) for row in samples}
        return malloc.geometric([known[row] for program in names for row in programs[program]])

    draw = random.Random(1)
    drawn = sorted(
        once(draw.choices(range(count), k=count), draw.choices([*programs], k=len(programs)))
        for _ in range(DRAWS)
    )
    return once(list(range(count)), [*programs]), drawn[DRAWS // 40], drawn[-DRAWS // 40 - 1]


def behind(samples: Samples, others: list[str]) -> list[str]:
    """Rows in which ours takes over 5 % more CPU time than the best of the others.

    Only those whose interval, from drawing rounds, does not contain 1.
    """
    found = []
    for row, by_name in samples.items():
        best, (middle, _, high) = min(
            ((name, mean({row: by_name}, name, "seconds")) for name in others),
            key=lambda of: of[1][0],
        )
        share = 1 / middle - 1
        if share > 0.05 and high < 1:
            found.append(f"{row} ({share * 100:.0f} % behind {best})")
    return found


def lines(samples: Samples, left_out: list[str]) -> list[str]:
    """Lines of the document: means, rows, what is behind, and the programs that were left out."""
    names = list(next(iter(samples.values())))
    others = [name for name in names if name != OURS]
    rounds = list(range(len(next(iter(samples.values()))[OURS])))
    rows, means = [], []
    for row, by_name in samples.items():
        seconds, megabytes = (
            statistics.median(getattr(sample, what) for sample in by_name[OURS]) for what in WHAT
        )
        cells = [
            " / ".join(f"{ratio(by_name, name, what, rounds):.2f}" for what in WHAT)
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
            (time, low, high), (memory, _, _) = (mean(kept, name, what) for what in WHAT)
            cells.append(f"{time:.3f} ({low:.3f} to {high:.3f}) / {memory:.2f}")
        means.append([f"**{said}**", "1 / 1", *cells])
    slow = behind(samples, others)
    programs = len({program_of(row) for row in samples})
    about = (
        f"{programs} programs, {len(samples)} rows; {len(rounds)} rounds on {os.cpu_count()} CPUs, "
        f"Linux {platform.release()}, transparent huge pages `{malloc.huge_pages()}`. Ours: "
        "medians of CPU seconds of all threads, processes and the kernel / peak resident MB of the "
        "largest process; of larson, xmalloc-test and glibc-thread, which run for a fixed time: "
        "for a million operations. Others: medians of ratios of the same round, ours = 1 (above "
        f"1: ours takes less), in brackets: 95 % of {DRAWS:,} draws of rounds and of programs."
    )
    verdict = "More than 5 % behind the best: " + (", ".join(slow) if slow else "none") + "."
    if left_out:
        verdict += f" Left out, of mimalloc-bench: {', '.join(left_out)}."
    return [
        *textwrap.wrap(about, 118),
        "",
        *documents.rows({"heads": ["program", OURS, *others], "rows": [*means, *rows]}),
        "",
        *textwrap.wrap(verdict, 118),
    ]


def known_behind(document: str) -> dict[str, str]:
    """Return the rows that the document says are behind, and the best of the others for each."""
    text = document.partition("<!-- foreign:begin -->")[2].partition("<!-- foreign:end -->")[0]
    verdict = " ".join(text.partition("behind the best:")[2].split())
    return dict(re.findall(r"(?:, )?([^()]+) \(\d+ % behind ([^)]+)\)", verdict))


def shares(command: str, allocators: Allocators) -> list[float]:
    """Return the percentage of a program's samples that are in each allocator."""
    found = []
    for name, library in allocators.items():
        line = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "4000", "-o", "perf.data"]
        environment = settings(name) | {"LD_PRELOAD": str(library or GLIBC)}
        preload = ["env", *(f"{variable}={value}" for variable, value in environment.items())]
        shell = ["sh", "-c", f"exec >/dev/null 2>&1; {command}"]
        subprocess.run([*line, *preload, *shell], check=True)
        report = ["perf", "report", "-i", "perf.data", "--stdio", "-s", "dso"]
        told = subprocess.run(report, check=True, capture_output=True, text=True).stdout
        share = re.search(rf"([\d.]+)% +{re.escape((library or GLIBC).name)}", told)
        found.append(float(share[1]) if share else 0.0)
    return found


def reasons(samples: Samples, found: dict[str, list[float]]) -> list[str]:
    """Lines that say where rows differ."""
    rows = []
    for row, by_name in samples.items():
        *_, best = by_name

        def pair(what: str, form: str, by_name: dict[str, list[malloc.Sample]] = by_name) -> str:
            medians = (
                statistics.median(getattr(sample, what) for sample in of) for of in by_name.values()
            )
            return " / ".join(format(median, form) for median in medians)

        cells = [pair("user", ".3f"), pair("system", ".3f"), pair("faults", ",.0f")]
        inside = " / ".join(f"{share:.0f} %" for share in found[row])
        rows.append([f"{row}, {best}", *cells, pair("megabytes", ",.0f"), inside])
    heads = [
        "program, and the best",
        "its own time, s",
        "the kernel's, s",
        "page faults",
        "peak MB",
        "samples in the allocator",
    ]
    about = (
        f"Medians of {len(samples[row][best])} rounds: ours / ours at level 0 / the best of the "
        "others."
    )
    return [about, "", *documents.rows({"heads": heads, "rows": rows})]


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
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--mimalloc-bench", type=Path, metavar="DIR", help=mimalloc_bench.HELP)
    parser.add_argument("--only", nargs="+", help="programs whose names contain one of these")
    parser.add_argument("--library", type=Path, default=malloc.ALLOCATORS[OURS])
    parser.add_argument("--print", action="store_true", help="write nothing, print the table")
    parser.add_argument("--why", action="store_true", help="see where those behind differ")
    options = parser.parse_args()
    allocators = {**malloc.ALLOCATORS, OURS: options.library.resolve(), **peers.built()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        more, left_out = mimalloc_bench.commands(options.mimalloc_bench, folder)
        programs = PROGRAMS | more
        if options.why:
            section = "foreign-why"
            best = known_behind(malloc.DOCUMENT.read_text())
            allocators[LEVEL_0] = allocators[OURS]
            chosen = {
                row: {name: allocators[name] for name in (OURS, LEVEL_0, peer)}
                for row, peer in best.items()
            }
            rows = {row: line for row, line in runs(programs, options.only).items() if row in best}
            samples = measure(folder, rows, chosen, options.rounds)
            text = reasons(samples, {row: shares(rows[row], chosen[row]) for row in rows})
        else:
            section = "foreign"
            rows = runs(programs, options.only)
            samples = measure(folder, rows, dict.fromkeys(rows, allocators), options.rounds)
            start = starts(folder, allocators, options.rounds)
            text = [*lines(samples, left_out), *textwrap.wrap(start, 118)]
    documents.publish(section, "malloc.md", text, only_print=options.print)


if __name__ == "__main__":
    main()
