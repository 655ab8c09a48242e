"""Measure a scan of all frames against copying the kernel's files, into docs/performance.md.

Takes root, and nothing but Python's own library. Rounds of all ways take turns, so that a busy
machine is busy for all of them; processor time counts, and the best wall time.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
MARKS = ("<!-- scan:begin -->", "<!-- scan:end -->")
NODE = ROOT / "target/release/contigua-node"
ROUNDS = 9
PIECE = 1 << 18
FILES = ("kpageflags", "kpagecount", "kpagecgroup")


def memory() -> list[tuple[int, int]]:
    """Return where memory is, as offsets in the files."""
    ranges = []
    for line in Path("/proc/iomem").read_text().splitlines():
        if not line.startswith(" ") and "System RAM" in line:
            start, last = (int(word, 16) for word in line.split()[0].split("-"))
            ranges.append((-(-start // 4096) * 8, (last + 1) // 4096 * 8))
    return ranges


def copy(names: tuple[str, ...]) -> None:
    """Copy files out of the kernel, and do nothing with them."""
    buffer = memoryview(bytearray(PIECE))
    for name in names:
        file = os.open(f"/proc/{name}", os.O_RDONLY)
        for start, end in memory():
            while start < end:
                count = os.preadv(file, [buffer[: min(PIECE, end - start)]], start)
                if count <= 0:
                    break
                start += count
        os.close(file)


def scan(*options: str) -> None:
    """Scan, in a process of its own."""
    command = [str(NODE), "scan", "--json", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def copying(*names: str) -> None:
    """Copy, in a process of its own, as the scan is one."""
    subprocess.run([sys.executable, __file__, "copy", *names], check=True)


def measured(act: Callable[[], None]) -> tuple[float, float]:
    """Return wall and processor time of what a child does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    act()
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu


def peak() -> float:
    """Return the peak memory of a scan in MB."""
    code = (
        "import resource, subprocess, sys;"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [sys.executable, "-S", "-c", code, str(NODE), "scan", "--json"]
    return int(subprocess.run(command, check=True, capture_output=True).stdout) / 1000


def main() -> None:
    """Measure and write."""
    if sys.argv[1:2] == ["copy"]:
        copy(tuple(sys.argv[2:]))
        return
    if not os.access("/proc/kpageflags", os.R_OK):
        sys.exit("scan.py: /proc/kpageflags takes root; nothing was measured")
    ways: dict[str, Callable[[], None]] = {
        "Python that does nothing": lambda: copying(),
        "copy of kpageflags": lambda: copying(FILES[0]),
        "copy of all three files": lambda: copying(*FILES),
        "scan, one thread": lambda: scan("--threads", "1"),
        "scan": lambda: scan(),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, act in ways.items():
            times[name].append(measured(act))
    nothing = median(cpu for _, cpu in times["Python that does nothing"])
    nothing_wall = min(wall for wall, _ in times["Python that does nothing"])
    whole = median(cpu for _, cpu in times["copy of all three files"]) - nothing
    total = sum(end - start for start, end in memory()) // 8 * 4096
    lines = [
        f"{total / 2**30:.0f} GB of memory, {os.cpu_count()} processors, Linux "
        f"{os.uname().release}, load average {os.getloadavg()[0]:.0f}; {ROUNDS} rounds; a scan's "
        f"peak memory is {peak():.0f} MB.",
        "",
        "| | processor time, median | of the copy of all three | wall time, best |",
        "|---|---|---|---|",
    ]
    for name in list(ways)[1:]:
        python = name.startswith("copy")
        cpu = median(cpu for _, cpu in times[name]) - (nothing if python else 0)
        wall = min(wall for wall, _ in times[name]) - (nothing_wall if python else 0)
        lines.append(f"| {name} | {cpu:.2f} s | {cpu / whole:.2f} | {wall:.2f} s |")
    print(json.dumps(times))
    path = ROOT / "docs" / "performance.md"
    before, _, rest = path.read_text().partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    table = "\n".join(lines)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{after}")
    temporary.replace(path)
    print(table)


if __name__ == "__main__":
    main()
