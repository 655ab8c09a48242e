"""Time malloc and free while another thread frees gigabytes; write the table into docs/malloc.md.

`benches/malloc/support/latency.c` runs under each allocator in turn, round after round. A value is
the median over rounds, the maximum too: a preempted thread that holds a lock makes single calls
last a time slice under every allocator. "between" is what the timing thread does between its calls:
it calls nothing, so its longest times are those of the scheduler and the hypervisor.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import documents
import malloc
import peers

HEADS = ["call", "allocator", "p50, us", "p99", "p99.9", "maximum", "worst maximum"]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--library", type=Path, help="our library")
    parser.add_argument("--print", action="store_true", help="write nothing, print the table")
    options = parser.parse_args()
    allocators = {**malloc.ALLOCATORS, **peers.built()}
    allocators["contigua"] = options.library or allocators["contigua"]
    allocators = {
        name: library
        for name, library in allocators.items()
        if name == "glibc" or (library is not None and library.exists())
    }
    found: dict[str, list[list[float]]] = {name: [] for name in allocators}
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "latency"
        source = malloc.SOURCES / "support" / "latency.c"
        command = ["cc", "-O2", "-fno-builtin-malloc", "-pthread", "-o", str(program), str(source)]
        subprocess.run(command, check=True)
        for round_number in range(options.rounds):
            order = list(allocators.items())
            for name, library in order if round_number % 2 else reversed(order):
                preload = {} if library is None else {"LD_PRELOAD": str(library)}
                done = subprocess.run(
                    [program, str(options.megabytes), "2"],
                    env={**os.environ, **preload},
                    capture_output=True,
                    text=True,
                )
                if done.returncode:
                    sys.exit(f"{program} under {name} failed\n{done.stderr}")
                found[name].append([float(value) for value in done.stdout.split()])
                print(round_number, name, done.stdout.strip(), file=sys.stderr, flush=True)
    rows = []
    for call, first in (("malloc", 2), ("free", 6), ("between", 10)):
        for name, samples in found.items():
            columns = list(zip(*samples, strict=True))[first : first + 4]
            values = [statistics.median(column) for column in columns] + [max(columns[3])]
            cells = [f"{value:.2f}" for value in values[:3]]
            cells += [f"{value:,.0f}" for value in values[3:]]
            rows.append([call if name == next(iter(found)) else "", name, *cells])
    lines = [
        f"Microseconds; medians of {options.rounds} rounds on {os.cpu_count()} CPUs, transparent "
        f"huge pages `{malloc.huge_pages()}`;",
        f"another thread frees {options.megabytes:,} MB twice in each, half in objects of 1 MB.",
        "",
        *documents.rows({"heads": HEADS, "rows": rows}, names=2),
    ]
    documents.publish("latency", "malloc.md", lines, only_print=options.print)


if __name__ == "__main__":
    main()
