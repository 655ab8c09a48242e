"""Pages that are read in order, beside pages in any order: do prefetchers go on in the next page?

Measured on this computer and simulated on the machine file that benches/validate.py has measured;
writes the section in docs/validation.md. A minute.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from documents import replace

ROOT = Path(__file__).resolve().parent.parent
MACHINE = ROOT / "contigua-results" / "validate" / "own.toml"
MEGABYTES = 64
ROUNDS = 15
#: What the longer of two simulated runs has more is what counts.
SIMULATED = (1, 3)
SCHEMES = {"small": "base", "huge": "thp"}


def simulated(program: Path, folder: Path, size: str, order: str) -> float:
    """Return the cycles of a page."""
    design = folder / f"{size}.toml"
    thp = 'enabled = "madvise"\n' if size == "huge" else ""
    scheme = f"[translation.{SCHEMES[size]}]\n{thp}[host.translation.base]\n"
    design.write_text(f'description = "{size} pages"\n{scheme}')
    cycles = []
    for rounds in SIMULATED:
        report = folder / "report.json"
        command = [sys.executable, "-m", "contigua.cli", "run", "--machine", str(MACHINE)]
        command += ["--designs", str(design), "--memory", "4G", "--age", "partial"]
        command += ["--json", str(report), "--", str(program), str(MEGABYTES), size, order]
        done = subprocess.run([*command, str(rounds)], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        values: dict[str, Any] = json.loads(report.read_text())[0]
        cycles.append(values["time"]["busy_cycles"])
    pages = (SIMULATED[1] - SIMULATED[0]) * MEGABYTES * 256
    return float(cycles[1] - cycles[0]) / pages


def main() -> None:
    """Measure, print and write."""
    if not MACHINE.exists():
        sys.exit(f"{MACHINE} is not there: run benches/validate.py")
    clock = next(line for line in MACHINE.read_text().splitlines() if line.startswith("clock"))
    gigahertz = float(clock.split('"')[1].removesuffix("MHz")) / 1000
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "next_page"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-O2", "-Wall", "-o", program, source], check=True)
        for size, words in (("small", "4 KB"), ("huge", "2 MB")):
            cells = []
            for order in ("order", "any"):
                command = [str(program), str(MEGABYTES), size, order, str(ROUNDS)]
                ns = float(subprocess.check_output(command, text=True).split()[0])
                cells += [f"{ns:.0f}", f"{simulated(program, folder, size, order) / gigahertz:.0f}"]
            rows.append(f"| {words} | {' | '.join(cells)} |")
            print(rows[-1], flush=True)
    head = [
        "| pages | ns a page in order, measured | simulated | in any order, measured | simulated |",
        "|---|--:|--:|--:|--:|",
    ]
    replace("next-page", "validation.md", [*head, *rows])


if __name__ == "__main__":
    main()
