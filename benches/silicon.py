"""Compares simulated runs of GUPS with published measurements of a real server, and writes the
table in docs/validation.md.

Mitosis (Achermann et al., ASPLOS 2020, Figure 6) ran it with tens of gigabytes on one socket of
a Haswell-EX server, with 4 KB and with 2 MB pages. What fits here is an eighth: the program's
memory, and every capacity of the machine that it competes for (TLBs for data, page-walk caches for
page directories, L1D, L2 and the last level) are divided by eight. Latencies stay.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pages import replace

ROOT = Path(__file__).parents[1]
MACHINE = ROOT / "python/contigua/data/machines/haswell-ex.toml"
#: Measured cycles of GUPS: all, and those in which a walker works, by page size (reference results
#: of the artifact for Figure 6: one socket, LP-LD and TLP-LD).
MEASURED = {"4k": (454_078_473_314, 374_935_567_249), "thp": (176_546_347_339, 83_117_175_410)}
#: Instructions that are simulated, after those that initialise the table.
INSTRUCTIONS = 20_000_000
#: Rows: how GUPS is compiled, and the instructions that initialise its table.
BUILDS = {"GUPS, 15 instructions an update": ("-O2", 5_372_000_000)}
BUILDS |= {"GUPS, 44 instructions an update": ("-O0", 15_040_000_000)}
#: What is divided: lines of the machine's file.
EIGHTHS = {
    "4k = { entries = 64, ways = 4 }": "4k = { entries = 8, ways = 4 }",
    "2m = { entries = 32, ways = 4 }": "2m = { entries = 4, ways = 4 }",
    "entries = 1024\nways = 8": "entries = 128\nways = 8",
    "pde = { entries = 32, ways = 4 }": "pde = { entries = 4, ways = 4 }",
    'l1d = { size = "32KiB"': 'l1d = { size = "4KiB"',
    'l2 = { size = "256KiB"': 'l2 = { size = "32KiB"',
    'llc = { size = "35MiB"': 'llc = { size = "4480KiB"',
    "directory_entries = 40960": "directory_entries = 5120",
}


def scaled(text: str) -> str:
    """The machine with an eighth of its capacities."""
    for whole, eighth in EIGHTHS.items():
        assert text.count(whole) == 1, whole
        text = text.replace(whole, eighth)
    return text


def run(folder: Path, level: str, skip: int) -> dict[str, Any]:
    """Times of GUPS with both sizes of page."""
    machine, program = folder / "haswell-ex-eighth.toml", folder / "gups"
    machine.write_text(scaled(MACHINE.read_text()))
    source = ROOT / "workloads" / "gups.c"
    compiler = ["gcc", "-std=c11", "-pthread", level, "-o", str(program), str(source), "-lm"]
    subprocess.run(compiler, check=True)
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, "-m", "contigua.cli", "run", "--json", file.name]
        command += ["--machine", str(machine), "--memory", "12G", "--designs", "linux-4k,linux-thp"]
        command += ["--skip", str(skip), "--instructions", str(INSTRUCTIONS), "--", str(program)]
        command += ["--size", "8GiB", "--updates", "4000000", "--no-verify"]
        quiet = subprocess.DEVNULL
        subprocess.run(command, check=True, stdout=quiet, stderr=quiet)
        reports = json.loads(Path(file.name).read_text())
    return {report["config"]["design_name"].partition("-")[2]: report["time"] for report in reports}


def main() -> None:
    """Simulate, print, and write the table."""
    rows = []
    for name, (level, skip) in BUILDS.items():
        with tempfile.TemporaryDirectory() as folder:
            ours = run(Path(folder), level, skip)
        ratio = MEASURED["4k"][0] / MEASURED["thp"][0]
        cells = [f"{ratio:.2f}", f"{ours['4k']['cycles'] / ours['thp']['cycles']:.2f}"]
        for size in ("4k", "thp"):
            cells.append(f"{100 * MEASURED[size][1] / MEASURED[size][0]:.0f} %")
            cells.append(f"{100 * ours[size]['walk_active'] / ours[size]['cycles']:.0f} %")
        rows.append(f"| {name} | {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    replace("validation.md", "silicon", table(rows))


def table(rows: list[str]) -> list[str]:
    """Lines of the table."""
    return [
        "| program | 4 KB : 2 MB, measured | simulated | walk-active, 4 KB, measured | simulated | "
        "walk-active, 2 MB, measured | simulated |",
        "|---|--:|--:|--:|--:|--:|--:|",
        *rows,
    ]


if __name__ == "__main__":
    main()
