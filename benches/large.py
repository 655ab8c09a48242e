"""A program of 8 GB and 10^11 instructions, sampled, on four designs; docs/performance.md.

Our key-value store (`workloads/kv.c`) filled with 22 million values and asked 25 million times, on
a full server of 64 GB. Takes a quarter of an hour and 11 GB of memory. With other arguments for the
program, it prints and writes nothing.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from documents import replace

ROOT = Path(__file__).parents[1]
DESIGNS = ("linux-4k", "linux-thp", "illuminator-thp", "contiguitas-thp")
PROGRAM = ["--keys", "22000000", "--operations", "25000000"]
#: Of 10^11 instructions, 1,250 units.
DISTANCE = 80_000_000
RUN = """
import json, resource, sys, contigua
from contigua.sampling import Sampling
sampling = Sampling(distance=int(sys.argv[1]))
options = contigua.RunOptions(memory="64GiB", age="full", sample=sampling)
results = contigua.run(sys.argv[3:], designs=sys.argv[2].split(","), options=options)
own, program = (
    resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
)
print(json.dumps({
    "seconds": [usage.ru_utime + usage.ru_stime for usage in (own, program)],
    "peaks": [usage.ru_maxrss for usage in (own, program)],
    "reports": [[report.summary(), report.intervals()] for report in results],
}))
"""


def main() -> None:
    """Measure, print, and write the table."""
    program = [str(ROOT / "workloads" / "bin" / "kv"), *(sys.argv[1:] or PROGRAM)]
    command = [sys.executable, "-c", RUN, str(DISTANCE), ",".join(DESIGNS), *program]
    start = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - start
    run = json.loads(done.stdout.splitlines()[-1])
    load = os.getloadavg()[2]
    (simulator, guest), (engine, emulator) = run["peaks"], run["seconds"]
    instructions = run["reports"][0][0]["instructions"]
    lines = [
        f"{instructions / 1e9:.1f} G instructions, peak memory of the program "
        f"{guest / 1e6:.1f} GB, of the simulator {simulator / 1e6:.2f} GB. "
        f"{seconds / 60:.1f} minutes; processor time "
        f"{emulator / 60:.1f} minutes of the program, {engine / 60:.1f} of the designs. "
        f"{os.cpu_count()} processors, Linux {platform.release()}, load average {load:.0f}.",
        "",
        "| design | units | cycles | ± | translation overhead | page faults |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for design, (summary, halves) in zip(DESIGNS, run["reports"], strict=True):
        cycles, overhead = summary["cycles"], summary["translation_overhead"]
        lines.append(
            f"| {design} | {summary['sample_units']:,} | {cycles / 1e9:.2f} G "
            f"| {100 * halves['cycles'] / cycles:.2f} % "
            f"| {100 * overhead:.2f} ± {100 * halves['translation_overhead']:.2f} % "
            f"| {summary['page_faults']:,} |"
        )
    print(*lines, sep="\n", flush=True)
    if not sys.argv[1:]:
        replace("large", "performance.md", lines)


if __name__ == "__main__":
    main()
