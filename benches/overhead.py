"""Compares the translation overhead that runs show with what a perfect TLB saves, and writes the
table in docs/validation.md.

Each program runs under Linux with 4 KB pages and with transparent huge pages, and under the same
kernels with a perfect TLB (the designs `perfect-4k` and `perfect-thp`). Its beginning is passed
over.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from documents import replace
from whole_runs import PYTHON, SQL

from contigua.presets import machines

DESIGNS = ["linux-4k", "perfect-4k", "linux-thp", "perfect-thp"]
INSTRUCTIONS = 50_000_000
#: Instructions to pass over, where the usual number is not enough.
SKIP = {"gups, 1 GB": 680_000_000, "gups, 256 MB": 175_000_000}
#: Runs once more with memory that answers as fast under load.
UNLOADED = "gups, 1 GB"
USUAL_SKIP = 100_000_000


def programs(folder: Path) -> dict[str, list[str]]:
    """Commands to measure, by name; their inputs go into a folder."""
    (folder / "q.sql").write_text(SQL.replace("ROWS", "60000"))
    (folder / "p.py").write_text(PYTHON.replace("TURNS", "300000"))
    lines = (f"{number * 2_654_435_761 % 2**32}" for number in range(400_000))
    (folder / "lines").write_text("\n".join(lines))

    def own(name: str, *arguments: str) -> list[str]:
        return [str(Path(__file__).parents[1] / "workloads" / "bin" / name), *arguments]

    return {
        "gups, 256 MB": own("gups", "--size", "256MiB", "--updates", "2000000"),
        "bfs, 2^16 vertices": own("bfs", "--scale", "16", "--roots", "2"),
        "random, 256 MB": own("random", "--size", "256MiB", "--reads", "5000000"),
        "cg, 20,000 rows": own("cg", "--rows", "20000"),
        "kv, 100,000 keys": own("kv", "--keys", "100000", "--operations", "300000"),
        "stream, 96 MB": own("stream", "--iterations", "3"),
        "waves, 20,000 entries": own("waves"),
        "sort, 400,000 lines": ["sort", "-n", str(folder / "lines")],
        "sqlite3": ["sqlite3", ":memory:", f".read {folder / 'q.sql'}"],
        "python3": ["/usr/bin/python3", str(folder / "p.py")],
        "random, 1 GB": own("random", "--size", "1GiB", "--reads", "20000000"),
        "gups, 1 GB": own("gups", "--size", "1GiB", "--updates", "20000000", "--no-verify"),
    }


def run(name: str, program: list[str], *options: str) -> dict[str, dict[str, Any]]:
    """Times under each design."""
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, "-m", "contigua.cli", "run", "--json", file.name]
        command += ["--designs", ",".join(DESIGNS), "--memory", "4G"]
        command += ["--skip", str(SKIP.get(name, USUAL_SKIP)), "--instructions", str(INSTRUCTIONS)]
        command += options
        subprocess.run(
            [*command, "--", *program],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        reports = json.loads(Path(file.name).read_text())
    return {report["config"]["design_name"]: report["time"] for report in reports}


def without_load(folder: Path) -> Path:
    """Write the default machine without `cache.dram.loaded`, and return its file."""
    text = machines.get("skylake").text
    file = folder / "unloaded.toml"
    file.write_text(re.sub(r"^loaded = \[.*?^\]\n", "", text, flags=re.MULTILINE | re.DOTALL))
    return file


def main() -> None:
    """Measure, print, and write the table."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        measured = programs(Path(folder))
        runs: list[tuple[str, str, list[str]]] = [(name, name, []) for name in measured]
        machine = ["--machine", str(without_load(Path(folder)))]
        runs.append((f"{UNLOADED}, no `loaded`", UNLOADED, machine))
        for label, name, options in runs:
            times = run(name, measured[name], *options)
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
            rows.append(f"| {label} | {' | '.join(cells)} |")
            print(rows[-1], flush=True)
            replace("overhead", "validation.md", table(rows))


def table(rows: list[str]) -> list[str]:
    """Lines of the table."""
    cells = [[float(cell.removesuffix(" %")) for cell in row.split(" | ")[1:5]] for row in rows]
    apart = max(max(abs(a - b), abs(c - d)) for a, b, c, d in cells)
    return [
        f"Overheads and what a perfect TLB saves are at most {apart:.1f} points of cycles apart. "
        f"{INSTRUCTIONS / 1e6:.0f} million instructions of each program, after its first "
        f"{USUAL_SKIP / 1e6:.0f} million (gups: after its table is initialized).",
        "",
        "| program | overhead, 4 KB pages | perfect TLB saves | overhead, huge pages | "
        "perfect TLB saves | huge pages save, without the kernel | overheads' difference | "
        "walk-active, 4 KB | stalled on walks, 4 KB |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        *rows,
    ]


if __name__ == "__main__":
    main()
