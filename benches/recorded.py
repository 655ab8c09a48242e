"""A sampled recording of 10^11 instructions, a sweep over it on two workers; docs/performance.md.

The program of `benches/large.py`. Three sweeps in one folder share its recording: none of its
points (which records), one, and twelve. Takes a quarter of an hour and 11 GB of memory. With other
arguments for the program, it prints and writes nothing.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from documents import replace
from large import DESIGNS, PROGRAM, ROOT

WORKERS = 2
#: Entries of the L2 TLB.
ENTRIES = (768, 1536, 3072)


def specification(program: list[str], designs: tuple[str, ...], entries: tuple[int, ...]) -> str:
    """Return a sweep of these points."""
    command = ", ".join(f'"{word}"' for word in [str(ROOT / "workloads" / "bin" / "kv"), *program])
    return f"""
[options]
memory = "64GiB"
sample = true

[workloads.kv]
command = [{command}]

[sweep]
designs = [{", ".join(f'"{design}"' for design in designs)}]
ages = ["full"]
machine."tlb.l2.0.entries" = [{", ".join(map(str, entries))}]
"""


def sweep(folder: Path, text: str) -> float:
    """Run the points that are new; seconds."""
    file = folder / "points.toml"
    file.write_text(text)
    command = [sys.executable, "-m", "contigua.cli", "sweep", str(file)]
    command += ["-o", str(folder / "results"), "--workers", str(WORKERS)]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Measure, print, and write the table."""
    program = sys.argv[1:] or PROGRAM
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Recording, and a point that is not among the others.
        recorded = sweep(folder, specification(program, DESIGNS[:1], (96,)))
        (file,) = folder.glob("results/**/*.trace")
        megabytes = file.stat().st_size / 1e6
        one = sweep(folder, specification(program, DESIGNS[:1], (192,)))
        points = len(DESIGNS) * len(ENTRIES)
        many = sweep(folder, specification(program, DESIGNS, ENTRIES))
    limit = 2 * one * points / WORKERS
    lines = [
        f"The recording has {megabytes:.0f} MB. Recording and a first point take "
        f"{recorded / 60:.1f} minutes, another point {one:.0f} s, {points} points on {WORKERS} "
        f"workers {many:.0f} s; twice {points} points' time divided by {WORKERS} would be "
        f"{limit:.0f} s. {os.cpu_count()} processors, Linux {platform.release()}, load average "
        f"{os.getloadavg()[2]:.0f}.",
    ]
    print(*lines, sep="\n", flush=True)
    if not sys.argv[1:]:
        replace("recorded", "performance.md", lines)


if __name__ == "__main__":
    main()
