"""Simulation speed of each translation design, relative to 4 KB pages on conventional hardware.

`schemes.py [TURNS]` records two workloads once, replays them under every design in turns, and
writes the table between the markers in docs/performance.md. Speeds are by processor time, as other
programs may run beside, without that of starting, each next to a run of the base.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from statistics import median

from contigua.presets import designs

ROOT = Path(__file__).parents[1]
CONTIGUA = ROOT / ".venv/bin/contigua"
BASE = "linux-4k"
#: Placements and migrations run beside one of these translations.
BESIDE = {"placement", "migration"}
PROGRAMS = {
    "gups": ("gups", "--size", "32MiB", "--updates", "400000", "--no-verify"),
    "bfs": ("bfs", "--scale", "13", "--roots", "2"),
}
#: Formats of traces by the ends of their names.
FORMATS = {".trace": "contigua", ".lackey": "lackey"}
#: A program of one instruction, which takes as long as starting does.
START = "I  00400000,3\n L 00800000,8\n"
#: A design below this is named.
GOAL = 0.5
BEGIN, END = "<!-- schemes:begin -->", "<!-- schemes:end -->"


def translations() -> list[str]:
    """Return the designs that differ from the base in translation."""
    every = (one for one in designs if not BESIDE & tomllib.loads(one.text).keys())
    return [one.name for one in every if one.name != BASE]


def seconds(*arguments: str) -> float:
    """Run the command and return the processor time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [CONTIGUA, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def replay(trace: Path, design: str) -> float:
    """Return the processor time of a replay."""
    told = ("--detail", "additive", "--memory", "4GiB", "--trace-format", FORMATS[trace.suffix])
    return seconds("run", "--designs", design, *told, "--trace", str(trace))


def measure(trace: Path, start: Path, turns: int) -> dict[str, float]:
    """Return the speed of every design relative to the base, the median of the turns."""
    found: dict[str, list[float]] = {}
    for _ in range(turns):
        starting = replay(start, BASE)
        for design in translations():
            base = replay(trace, BASE) - starting
            ratio = base / (replay(trace, design) - starting)
            found.setdefault(design, []).append(ratio)
    return {design: median(ratios) for design, ratios in found.items()}


def main(turns: int) -> None:
    """Measure and write the table."""
    speeds: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "start.lackey"
        start.write_text(START)
        for name, (program, *arguments) in PROGRAMS.items():
            trace = Path(folder) / f"{name}.trace"
            command = [str(ROOT / "workloads/bin" / program), *arguments]
            seconds("record", "-o", str(trace), "--", *command)
            speeds[name] = measure(trace, start, turns)
    heads = [f"design, turns: {turns}", *PROGRAMS]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "--:|" * len(PROGRAMS)]
    lines += [
        f"| `{design}` | " + " | ".join(f"{one[design]:.2f}" for one in speeds.values()) + " |"
        for design in translations()
    ]
    page = ROOT / "docs/performance.md"
    head, rest = page.read_text().split(BEGIN)
    page.write_text(head + BEGIN + "\n" + "\n".join(lines) + "\n" + END + rest.split(END)[1])
    print("\n".join(lines))
    slow = [name for name in translations() if min(one[name] for one in speeds.values()) < GOAL]
    print(f"Below {GOAL}: {', '.join(slow) or 'none'}", file=sys.stderr)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
