"""Measure what stays resident after most of 2 GB was freed; write the table into docs/malloc.md.

`benches/malloc/support/resident.c` runs under all allocators at once, one pattern after the other:
most of the time it waits.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import documents
import malloc
import peers

PATTERNS = {
    "large": "1 MB objects, all freed",
    "small": "100 to 1,000 bytes, all freed",
    "mixed": "half of the bytes each, all freed",
    "groups": "small, every eighth group of 64 stays",
    "random": "small, one in ten stays",
    "sizes": "16 bytes to 1 MB, one in ten stays",
    "pages": "small, one in each 8 KB stays",
}
ACTIVITIES = {"busy": "20,000 requests a second", "idle": "no call"}
SECONDS = [1, 5, 30]
SHOWN = ["contigua", "glibc", "jemalloc", "mimalloc 3"]


def start(program: Path, library: Path | None, arguments: list[str]) -> subprocess.Popen[str]:
    """Start the program under an allocator."""
    preload = {} if library is None else {"LD_PRELOAD": str(library)}
    return subprocess.Popen(
        [program, *arguments], env={**os.environ, **preload}, stdout=subprocess.PIPE, text=True
    )


def measure(
    program: Path, allocators: dict[str, Path | None], arguments: list[str]
) -> dict[str, list[int]]:
    """Return MB before and after the frees and after each of the seconds, by allocator."""
    running = {name: start(program, library, arguments) for name, library in allocators.items()}
    found = {}
    for name, process in running.items():
        output, _ = process.communicate()
        if process.returncode:
            sys.exit(f"{program} {arguments} under {name} failed")
        found[name] = [int(value) for value in output.split()]
    return found


def table(found: dict[tuple[str, str], dict[str, list[int]]], seconds: list[int]) -> list[str]:
    """Lines of a Markdown table: MB at the moments by pattern and allocator.

    The first of the values is before the frees, the others follow them.
    """
    names = list(next(iter(found.values())))
    full = {name: [values[name][0] for values in found.values()] for name in names}
    said = ", ".join(f"{name} {min(of):,} to {max(of):,}" for name, of in full.items())
    moments = ", ".join(f"{second} s" for second in seconds)
    rows: dict[str, list[list[str]]] = {}
    for (_, pattern), by_name in found.items():
        later = [[f"{value:,}" for value in by_name[name][1:]] for name in names]
        cells = [one[0] if len(set(one)) == 1 else " / ".join(one) for one in later]
        rows.setdefault(pattern, []).append(cells)
    activities = "; ".join(dict.fromkeys(activity for activity, _ in found))
    table = {
        "heads": [f"after 0 s, {moments}: {activities}", *names],
        "rows": [
            [pattern, *("; ".join(cells) for cells in zip(*by_activity, strict=True))]
            for pattern, by_activity in rows.items()
        ],
    }
    return [
        *textwrap.wrap(f"Full: {said} MB. One value: the same at all times.", 118),
        "",
        *documents.rows(table),
    ]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2048)
    parser.add_argument("--seconds", type=int, nargs="+", default=SECONDS)
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=list(PATTERNS))
    parser.add_argument("--activities", nargs="+", choices=ACTIVITIES, default=list(ACTIVITIES))
    parser.add_argument("--allocators", nargs="+", default=SHOWN, help="each needs 2.3 GB")
    parser.add_argument("--library", type=Path, help="our library")
    parser.add_argument("--print", action="store_true", help="write nothing, print the table")
    options = parser.parse_args()
    allocators = {**malloc.ALLOCATORS, **peers.built()}
    allocators["contigua"] = options.library or allocators["contigua"]
    allocators = {
        name: library
        for name, library in allocators.items()
        if (name == "glibc" or (library is not None and library.exists()))
        and name in options.allocators
    }
    lines = [
        f"Resident MB after {options.megabytes} MB were allocated (full) and freed, "
        f"on {os.cpu_count()} CPUs; transparent huge pages `{malloc.huge_pages()}`.",
    ]
    all_found = {}
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "resident"
        source = malloc.SOURCES / "support" / "resident.c"
        command = ["cc", "-O2", "-w", "-fno-builtin-malloc", "-o", program, source]
        subprocess.run(command, check=True)
        for activity in options.activities:
            for pattern in options.patterns:
                seconds = [str(second) for second in options.seconds]
                arguments = [pattern, activity, str(options.megabytes), *seconds]
                found = measure(program, allocators, arguments)
                all_found[ACTIVITIES[activity], PATTERNS[pattern]] = found
                for name, values in found.items():
                    print(activity, pattern, name, *values, file=sys.stderr, flush=True)
    lines += table(all_found, options.seconds)
    documents.publish("resident", "malloc.md", lines, only_print=options.print)


if __name__ == "__main__":
    main()
