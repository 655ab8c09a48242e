"""Simulation speed of each translation scheme, relative to 4 KB pages on conventional hardware.

Records two workloads once, replays them under every scheme in turns, and writes the table between
the markers in docs/performance.md. Ratios of times on a busy machine: the least of the turns.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONTIGUA = ROOT / ".venv/bin/contigua"
BASE = "linux-4k"
DESIGNS = [BASE, "linux-thp", "hugetlb-2m", "perforated", "perforated-lazy", "direct-segment"]
DESIGNS += ["gtsm", "colt", "amd-coalescing", "arm-contiguous", "range-tlb"]
DESIGNS += ["nested-4k", "nested-thp", "nested-perforated", "nested-direct-segment"]
PROGRAMS = {
    "gups": ("gups", "--size", "64MiB", "--updates", "2000000", "--no-verify"),
    "bfs": ("bfs", "--scale", "15", "--roots", "2"),
}
TURNS = 3
BEGIN, END = "<!-- schemes:begin -->", "<!-- schemes:end -->"


def seconds(*arguments: str) -> float:
    """Run the command and return how long it took."""
    start = time.perf_counter()
    subprocess.run(
        [CONTIGUA, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
    )
    return time.perf_counter() - start


def measure(trace: Path) -> dict[str, float]:
    """Return the speed of every design relative to the base, in turns."""
    best: dict[str, float] = {}
    for _ in range(TURNS):
        for design in DESIGNS:
            taken = seconds(
                "run", "--detail", "additive", "--designs", design, "--trace", str(trace)
            )
            best[design] = min(taken, best.get(design, taken))
    return {design: best[BASE] / taken for design, taken in best.items()}


def main() -> None:
    """Measure and write the table."""
    speeds: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (program, *arguments) in PROGRAMS.items():
            trace = Path(folder) / f"{name}.trace"
            command = [str(ROOT / "workloads/bin" / program), *arguments]
            seconds("record", "-o", str(trace), "--", *command)
            speeds[name] = measure(trace)
    lines = ["| program | " + " | ".join(DESIGNS) + " |", "|---|" + "---|" * len(DESIGNS)]
    lines += [
        f"| {name} | " + " | ".join(f"{one[design]:.2f}" for design in DESIGNS) + " |"
        for name, one in speeds.items()
    ]
    page = ROOT / "docs/performance.md"
    text = page.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    page.write_text(head + BEGIN + "\n" + "\n".join(lines) + "\n" + END + tail)
    print("\n".join(lines), file=sys.stdout)


if __name__ == "__main__":
    main()
