"""Measures the simulator's own memory and writes the table in docs/performance.md.

`/bin/true` runs on servers of several sizes, so that what is measured belongs to the servers.
"""

from __future__ import annotations

import subprocess
import sys

from documents import replace

SIZES = (1, 16, 64)
DESIGNS = ("linux-4k", "linux-thp", "contiguitas-thp", "perforated")
RUN = """
import resource, sys, contigua
options = contigua.RunOptions(memory=sys.argv[1])
contigua.run(["/bin/true"], designs=sys.argv[2].split(","), options=options)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(gigabytes: int, designs: tuple[str, ...]) -> float:
    """Largest resident memory of a run, in MiB; the program's own process is another one."""
    command = [sys.executable, "-c", RUN, f"{gigabytes}GiB", ",".join(designs)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1]) / 1024


def main() -> None:
    """Measure, print, and write the table."""
    peaks = {}
    for size in SIZES:
        for designs in (DESIGNS[:1], DESIGNS):
            peaks[size, len(designs)] = peak(size, designs)
            print(size, len(designs), f"{peaks[size, len(designs)]:.0f} MiB", flush=True)
    replace("memory", "performance.md", [sentence(peaks)])


def sentence(peaks: dict[tuple[int, int], float]) -> str:
    """Return what is written: peaks in MiB by GiB of the server and number of designs."""
    each = (peaks[SIZES[-1], 1] - peaks[SIZES[0], 1]) / (SIZES[-1] - SIZES[0])
    sizes = "; ".join(
        f"{size} GiB {peaks[size, 1]:,.0f} / {peaks[size, len(DESIGNS)]:,.0f} MiB" for size in SIZES
    )
    return f"{each:.1f} MiB for each simulated GiB of a design. One design / four designs: {sizes}."


if __name__ == "__main__":
    main()
