"""Compares the translation overhead that runs show with what a perfect TLB saves, and writes the
table in docs/validation.md.

Each program runs under Linux with 4 KB pages and with transparent huge pages, and under the same
kernels with a perfect TLB (the designs `perfect-4k` and `perfect-thp`). Its beginning is passed
over.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pages import replace
from sampling import programs

DESIGNS = ["linux-4k", "perfect-4k", "linux-thp", "perfect-thp"]
INSTRUCTIONS = 50_000_000
#: Instructions to pass over, where the usual number is not enough.
SKIP = {"gups, 1 GB": 680_000_000}
USUAL_SKIP = 100_000_000


def more(folder: Path) -> dict[str, list[str]]:
    """Commands to measure, by name."""
    found = {name: command for name, command in programs(folder).items() if "apart" not in name}
    own = Path(__file__).parents[1] / "workloads" / "bin"
    found["random, 1 GB"] = [str(own / "random"), "--size", "1GiB", "--reads", "20000000"]
    found["gups, 1 GB"] = [
        str(own / "gups"),
        "--size",
        "1GiB",
        "--updates",
        "20000000",
        "--no-verify",
    ]
    return found


def run(name: str, program: list[str]) -> dict[str, dict[str, Any]]:
    """Times under each design."""
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, "-m", "contigua.cli", "run", "--json", file.name]
        command += ["--designs", ",".join(DESIGNS), "--memory", "4G"]
        command += ["--skip", str(SKIP.get(name, USUAL_SKIP)), "--instructions", str(INSTRUCTIONS)]
        subprocess.run(
            [*command, "--", *program],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        reports = json.loads(Path(file.name).read_text())
    return {report["config"]["design_name"]: report["time"] for report in reports}


def main() -> None:
    """Measure, print, and write the table."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, program in more(Path(folder)).items():
            times = run(name, program)
            cells, costs = [], {}
            for design in ("linux-4k", "linux-thp"):
                time = times[design]
                costs[design] = time["translation_overhead"] * time["cycles"]
                saved = 1 - times[design.replace("linux", "perfect")]["cycles"] / time["cycles"]
                cells += [f"{100 * time['translation_overhead']:.1f} %", f"{100 * saved:.1f} %"]
            small, huge = times["linux-4k"], times["linux-thp"]
            user = [t["cycles"] - t["breakdown"]["kernel"] for t in (small, huge)]
            saved = (user[0] - user[1]) / small["cycles"]
            told = (costs["linux-4k"] - costs["linux-thp"]) / small["cycles"]
            cells += [f"{100 * saved:.1f} %", f"{100 * told:.1f} %"]
            stalls = small["breakdown"]["walk"] / small["cycles"]
            active = small["walk_active"] / small["cycles"]
            cells += [f"{100 * active:.1f} %", f"{100 * stalls:.1f} %"]
            rows.append(f"| {name} | {' | '.join(cells)} |")
            print(rows[-1], flush=True)
            replace("validation.md", "overhead", table(rows))


def table(rows: list[str]) -> list[str]:
    """Lines of the table."""
    cells = [[float(cell.removesuffix(" %")) for cell in row.split(" | ")[1:5]] for row in rows]
    apart = max(max(abs(a - b), abs(c - d)) for a, b, c, d in cells)
    return [
        f"Overheads and what a perfect TLB saves are at most {apart:.1f} points of cycles apart. "
        f"{INSTRUCTIONS / 1e6:.0f} million instructions of each program, after its first "
        f"{USUAL_SKIP / 1e6:.0f} million (with 1 GB, after its data are initialised).",
        "",
        "| program | overhead, 4 KB pages | perfect TLB saves | overhead, huge pages | "
        "perfect TLB saves | huge pages save, without the kernel | overheads' difference | "
        "walk-active, 4 KB | stalled on walks, 4 KB |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        *rows,
    ]


if __name__ == "__main__":
    main()
