"""The machine file that benches/validate.py has measured, and programs simulated on it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MACHINE = ROOT / "contigua-results" / "validate" / "own.toml"


def gigahertz() -> float:
    """Return its clock."""
    if not MACHINE.exists():
        sys.exit(f"{MACHINE} is not there: run benches/validate.py")
    clock = next(line for line in MACHINE.read_text().splitlines() if line.startswith("clock"))
    return float(clock.split('"')[1].removesuffix("MHz")) / 1000


def simulated_cycles(command: Sequence[str], rounds: tuple[int, int], design: str) -> float:
    """Return what a program takes more for more rounds, which are its last argument."""
    cycles = []
    with tempfile.TemporaryDirectory() as name:
        report = Path(name) / "report.json"
        for one in rounds:
            run = [sys.executable, "-m", "contigua.cli", "run", "--machine", str(MACHINE)]
            run += ["--designs", design, "--memory", "4G", "--age", "partial"]
            run += ["--json", str(report), "--", *command, str(one)]
            done = subprocess.run(run, capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            cycles.append(json.loads(report.read_text())[0]["time"]["busy_cycles"])
            report.unlink()
    return float(cycles[1] - cycles[0])
