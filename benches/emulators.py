"""Compare programs on several QEMUs: their counts, which must be equal, and the front end's speed.

``emulators.py QEMU...`` writes the table in docs/how-to/study-a-program.md. Counts are those of a
function, from its call to its return: from QEMU 10 on programs have a vDSO, for which the C library
executes more instructions when it starts. Names are bound at the start (LD_BIND_NOW): QEMU 7.2
tells more accesses of the instruction by which the loader saves vector registers. The exit status
is 1 when counts differ.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from documents import replace, rows
from whole_runs import ALL, SQL

from contigua.emulator import VARIABLE

ROOT = Path(__file__).parents[1]
WORKLOADS = ROOT / "workloads" / "bin"
SQLITE = "sqlite3_step@/usr/lib/x86_64-linux-gnu/libsqlite3.so.0"


class Program(NamedTuple):
    """A program, and the function in it whose counts are compared."""

    name: str
    function: str
    command: list[str]


PROGRAMS = [
    Program("kv", "run_client", [str(WORKLOADS / "kv"), "--keys", "5000", "--operations", "50000"]),
    Program("stream", "validate", [str(WORKLOADS / "stream"), "--size", "256K"]),
    Program("cg", "multiply", [str(WORKLOADS / "cg"), "--rows", "500", "--outer", "8"]),
    Program("sqlite3", SQLITE, ["sqlite3", ":memory:", SQL.replace("ROWS", "20000")]),
]
#: The timed command: many instructions, few accesses of memory.
TIMED = [str(WORKLOADS / "bfs"), "--scale", "15"]
PACES = {"fast-forward": ["--skip", ALL], "all accesses": []}


def contigua(
    emulator: Path, options: list[str], command: list[str]
) -> tuple[dict[str, int], float]:
    """Run a program; return what it executed, and seconds."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        line = [sys.executable, "-m", "contigua.cli", "run", "--detail", "translation"]
        line += ["--designs", "linux-4k", "--json", report.name, *options, "--", *command]
        start = time.perf_counter()
        done = subprocess.run(
            line,
            env=os.environ | {VARIABLE: str(emulator), "LD_BIND_NOW": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - start
        if done.returncode:
            sys.exit(f"{emulator}: {done.stderr}")
        return json.loads(Path(report.name).read_text())[0]["executed"], seconds


def version(emulator: Path) -> str:
    """Return the version of a QEMU."""
    said = subprocess.run([emulator, "--version"], capture_output=True, text=True, check=True)
    return said.stdout.split()[2]


def main() -> int:
    """Compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("emulators", nargs="+", type=Path, metavar="QEMU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--print", action="store_true", help="write nothing, print the table")
    options = parser.parse_args()
    emulators = {version(path): path for path in options.emulators}
    table: dict[str, list[str]] = {name: [name] for name in emulators}
    differ = False
    for program in PROGRAMS:
        region = ["--region", f"function:{program.function}"]
        counts = []
        for name, path in emulators.items():
            executed, _ = contigua(path, region, program.command)
            counts.append([executed[kind] for kind in ("instructions", "loads", "stores")])
            table[name].append(" / ".join(f"{count:,}" for count in counts[-1]))
        differ |= any(found != counts[0] for found in counts)
    seconds: dict[tuple[str, str], list[float]] = {}
    lengths: dict[str, int] = {}
    for round_number in range(options.rounds):
        order = list(emulators.items())
        for name, path in order if round_number % 2 else reversed(order):
            for pace, chosen in PACES.items():
                executed, took = contigua(path, chosen, TIMED)
                lengths[name] = executed["instructions"]
                seconds.setdefault((name, pace), []).append(took)
    for name, row in table.items():
        for pace in PACES:
            row.append(f"{lengths[name] / statistics.median(seconds[name, pace]) / 1e6:.0f}")
    heads = ["QEMU", *(one.name for one in PROGRAMS), *(f"{pace}, MIPS" for pace in PACES)]
    lines = [
        f"Instructions / loads / stores; speed: bfs, medians of {options.rounds} runs in turn.",
        "",
        *rows({"heads": heads, "rows": list(table.values())}),
    ]
    print("\n".join(lines))
    if not options.print:
        replace("emulators", "how-to/study-a-program.md", lines)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
