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
from pathlib import Path

import documents
import malloc

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


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2048)
    parser.add_argument("--seconds", type=int, nargs="+", default=SECONDS)
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=list(PATTERNS))
    parser.add_argument("--activities", nargs="+", choices=ACTIVITIES, default=list(ACTIVITIES))
    parser.add_argument("--allocators", nargs="+", help="some of them only")
    parser.add_argument("--library", type=Path, help="our library")
    parser.add_argument("--mimalloc3", type=Path, help="a libmimalloc.so of version 3")
    parser.add_argument("--print", action="store_true", help="write nothing, print the table")
    options = parser.parse_args()
    allocators = {**malloc.ALLOCATORS, "mimalloc 3": options.mimalloc3}
    allocators["contigua"] = options.library or allocators["contigua"]
    allocators = {
        name: library
        for name, library in allocators.items()
        if (name == "glibc" or (library is not None and library.exists()))
        and (options.allocators is None or name in options.allocators)
    }
    moments = ["full", "freed", *(f"{second} s" for second in options.seconds)]
    lines = [
        f"Resident MB after {options.megabytes} MB were allocated (full) and freed, "
        f"on {os.cpu_count()} CPUs; transparent huge pages `{malloc.huge_pages()}`.",
        "",
    ]
    heads = ["then", "pattern", "allocator", *moments]
    rows = []
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
                for name, values in found.items():
                    first = name == next(iter(found))
                    cells = [ACTIVITIES[activity], PATTERNS[pattern]] if first else ["", ""]
                    rows.append([*cells, name, *(f"{value:,}" for value in values)])
                    print(activity, pattern, name, *values, file=sys.stderr, flush=True)
    lines += documents.rows({"heads": heads, "rows": rows}, names=3)
    if options.print:
        print("\n".join(lines))
    else:
        documents.replace("resident", "malloc.md", lines)


if __name__ == "__main__":
    main()
