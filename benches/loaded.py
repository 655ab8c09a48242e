"""Latency of memory while other cores read it, beside a published measurement.

Writes the section in docs/validation.md.

The program, loaded.c, runs twice with a different number of rounds; what the longer run has more is
what counts. How many lines the streams read is repeated until a round takes them as long as the
pointers take. A few minutes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from bisect import bisect_left
from pathlib import Path
from typing import Any

from documents import replace

ROOT = Path(__file__).resolve().parent.parent
#: GB/s of one of two sockets, half of what was measured, and ns. Two Xeon Silver 4110 with six
#: channels of DDR4-2400 each, reads only, Memory Latency Checker 3.5
#: (https://community.intel.com/t5/Software-Tuning-Performance/Intel-Memory-Latency-Checker-v3-5-test/m-p/1126268).
PUBLISHED = [
    (0.6, 81.96),
    (2.2, 85.56),
    (4.9, 87.81),
    (11.3, 90.85),
    (14.7, 92.29),
    (21.3, 94.56),
    (34.2, 98.94),
    (65.6, 123.71),
    (67.8, 130.31),
]
#: Cascade Lake's core and caches are the Silver 4110's but for these (Intel ARK; the latency is the
#: measurement's).
CHANGES = {
    r"description = .*": 'description = "as Xeon Silver 4110"',
    r"clock = \S+": 'clock = "2.1GHz"',
    r"llc = \{ size = [^,]+": 'llc = { size = "11MiB"',
    r"slices = \d+": "slices = 8",
    r"memory_latency = \S+": 'memory_latency = "82ns"',
    r"channel_megabytes_per_second = \d+": "channel_megabytes_per_second = 19200",
}
GHZ = 2.1
STEPS = 500
ROUNDS = (10, 40)
#: Most of the program's start is not simulated in detail.
SKIP = 40_000_000
#: Largest difference between a round of the streams and the pointers'.
CLOSE = 0.05


def machine() -> str:
    """Return the machine file."""
    text = (ROOT / "python/contigua/data/machines/cascade-lake.toml").read_text()
    for line, other in CHANGES.items():
        text, count = re.subn(f"^{line}", other, text, flags=re.MULTILINE)
        assert count == 1, line
    return text


def run(folder: Path, streams: int, lines: int, rounds: int) -> dict[str, Any]:
    """Return the report of a run."""
    command = [sys.executable, "-m", "contigua.cli", "run", "--machine", folder / "machine.toml"]
    command += ["--designs", "linux-thp", "--memory", "4G", "--cores", str(streams + 1)]
    command += ["--skip", str(SKIP), "--json", folder / "report.json", "--", folder / "loaded"]
    command += [str(one) for one in (streams, lines, STEPS, rounds)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())[0]
    return report


def busy(core: dict[str, Any]) -> float:
    """Return the cycles in which a core executes the program."""
    return float(core["cycles"] - core["breakdown"]["idle"] - core["breakdown"]["kernel"])


def measure(folder: Path, streams: int) -> tuple[float, float]:
    """Return gigabytes a second and the latency in ns, with so many streams."""
    lines = 8000
    for _ in range(6):
        few, many = (run(folder, streams, lines, rounds) for rounds in ROUNDS)
        work = [busy(b) - busy(a) for a, b in zip(few["cores"], many["cores"], strict=True)]
        chase, others = work[0], work[1 : streams + 1]
        stream = sum(others) / len(others) if others else chase
        reads = many["cache"]["dram"]["reads"] - few["cache"]["dram"]["reads"]
        if abs(chase / stream - 1) < CLOSE:
            break
        lines = max(1, round(lines * chase / stream))
    else:
        sys.exit(f"{streams} streams never took as long as the pointers")
    steps = STEPS * (ROUNDS[1] - ROUNDS[0])
    return reads * 64 / (max(chase, stream) / GHZ), chase / steps / GHZ


def published(bandwidth: float) -> float:
    """Return the latency measured at a bandwidth, between two measurements on the line."""
    at = min(max(bisect_left(PUBLISHED, (bandwidth, 0.0)), 1), len(PUBLISHED) - 1)
    (low, first), (high, second) = PUBLISHED[at - 1 : at + 1]
    return first + (second - first) * min(max((bandwidth - low) / (high - low), 0), 1)


def main() -> None:
    """Measure, print and write."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "machine.toml").write_text(machine())
        source = Path(__file__).with_suffix(".c")
        compile_it = ["cc", "-O2", "-Wall", "-pthread", "-o", folder / "loaded", source]
        subprocess.run(compile_it, check=True)
        for streams in (0, 1, 2, 3, 5):
            bandwidth, latency = measure(folder, streams)
            real = published(bandwidth)
            rows.append(
                f"| {streams} | {bandwidth:.1f} | {real:.0f} | {latency:.0f} "
                f"| {100 * (latency / real - 1):+.0f} % |"
            )
            print(rows[-1], flush=True)
    head = ["| streams | GB/s | ns, measured | ns, simulated | error |", "|--:|--:|--:|--:|--:|"]
    replace("loaded", "validation.md", [*head, *rows])


if __name__ == "__main__":
    main()
