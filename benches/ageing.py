"""Measure how fast servers age, and write the table into docs/performance.md.

One hour of a busy 64 GB server under each placement, alone on its core, and the memory that takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DESIGNS = ["linux-thp", "illuminator-thp", "contiguitas-thp"]
MARKS = ("<!-- ageing:begin -->", "<!-- ageing:end -->")


def measure(design: str) -> tuple[float, int, float]:
    """Return seconds, allocations and peak memory in MB of one server's hour."""
    import resource

    from contigua.ageing import AgeOptions, age

    options = AgeOptions(profile="mixed", memory="64GiB", hours=1.0, sample_seconds=3600.0)
    start = time.monotonic()
    server = age(design, options)
    seconds = time.monotonic() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return seconds, server.final["events"]["allocations"], peak


def main() -> None:
    """Measure each design in a process of its own and write the table."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    lines = [
        "| placement | seconds for an hour | allocations | millions a second | peak memory |",
        "|---|---|---|---|---|",
    ]
    for design in DESIGNS:
        command = [sys.executable, __file__, design]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        seconds, allocations, peak = json.loads(done.stdout)
        speed = allocations / seconds / 1e6
        lines.append(
            f"| {design} | {seconds:.1f} | {allocations:,} | {speed:.1f} | {peak:,.0f} MB |"
        )
        print(lines[-1], flush=True)
    path = ROOT / "docs" / "performance.md"
    before, _, rest = path.read_text().partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    table = "\n".join(lines)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{after}")
    temporary.replace(path)


if __name__ == "__main__":
    main()
