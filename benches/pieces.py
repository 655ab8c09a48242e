"""Cost of fragmented free memory for a program with 4 KB pages: on this computer and simulated.

The program chases pointers through pages of 24 MB. It runs as memory is; while another program
holds three quarters of memory, which takes up the pieces; while that one holds a random half of
these pages only; and after its end. Writes the table in docs/validation.md. Two minutes, as root;
the machine file is that of benches/validate.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from documents import replace

from contigua.measuring.computer import Computer
from contigua.measuring.probing import host_page
from contigua.options import RunOptions
from contigua.presets import machines
from contigua.validation.compare import designs, simulated
from contigua.validation.native import Native, blocks, compared, cpu_seconds
from contigua.validation.programs import WHOLE

MACHINE = Path(__file__).parents[1] / "contigua-results" / "validate" / "own.toml"
(PROGRAM,) = (one for one in WHOLE if one.name == "probe, pages of 24 MB")
ROUNDS = 20
#: Takes so many bytes, gives back this share of the pages, at random, and keeps the rest.
HOLDER = """
import mmap, random, sys
PAGE = mmap.PAGESIZE
memory = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
pages = list(range(len(memory) // PAGE))
for page in pages:
    memory[page * PAGE] = 1
random.Random(1).shuffle(pages)
for page in pages[: int(len(pages) * float(sys.argv[2]))]:
    memory.madvise(mmap.MADV_DONTNEED, page * PAGE, PAGE)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(size: int, back: float) -> Iterator[None]:
    """Take memory, give a share of it back in pieces, and hold the rest while this lasts."""
    command = [sys.executable, "-c", HOLDER, str(size), str(back)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        if holder.stdout.readline() != b"held\n":
            sys.exit("not enough memory")
        yield
        holder.stdin.close()


def native() -> tuple[Native, list[int]]:
    """Times of the program, and the blocks of 2 MB that hold its pages, fewest and most."""
    small, huge, places = [], [], []
    for _ in range(ROUNDS):
        places.append(blocks() or sys.exit("only root may see where pages lie"))
        small.append(cpu_seconds(PROGRAM.command, huge=False))
        huge.append(cpu_seconds(PROGRAM.command, huge=True))
    return compared(small, huge), [min(places), max(places)]


def measured(what: str) -> str:
    """Return a line of the table: this computer in a state."""
    times, (fewest, most) = native()
    places = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    seconds = " | ".join(f"{one.value:.3f} s" for one in (times.small, times.huge))
    return f"| {what} | {places} | {seconds} | {times.speedup.value:.2f} |"


def predicted(age: str, folder: Path) -> str:
    """Return a line of the table: a simulated server."""
    computer = Computer.this()
    pair = designs(host_page() if computer.virtual else None, computer.thp)
    options = RunOptions(machine=machines.get(str(MACHINE)), memory="16G", age=age)
    _, times, _ = simulated(PROGRAM, folder, pair, options)
    seconds = " | ".join(f"{times[size]:.3f} s" for size in ("small", "huge"))
    return f"| simulated, `--age {age}` | | {seconds} | {times['speedup']:.2f} |"


def main() -> None:
    """Measure, simulate, print and write."""
    if not MACHINE.exists():
        sys.exit(f"{MACHINE} is not there: run benches/validate.py first")
    rows = [measured("as it was")]
    size = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 4
    with held(size, 0):
        rows.append(measured("another program holds three quarters"))
    with held(size, 0.5):
        rows.append(measured("another one holds a random half of these pages"))
    rows.append(measured("after its end"))
    with tempfile.TemporaryDirectory() as folder:
        rows += [predicted(age, Path(folder)) for age in ("fresh", "partial")]
    print(*rows, sep="\n")
    replace(
        "pieces",
        "validation.md",
        [
            "| free memory | 2 MB blocks that hold 24 MB | 4 KB pages | 2 MB pages | speed-up |",
            "|---|--:|--:|--:|--:|",
            *rows,
        ],
    )


if __name__ == "__main__":
    main()
