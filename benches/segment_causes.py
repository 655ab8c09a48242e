"""Suspected causes of what direct-segment-overhead misses, changed one at a time.

    benches/segment_causes.py [--quick] [CAUSE ...]

Prints the share of cycles in walks for data and the misses inside, as the experiment has them.
The causes are in CAUSES; without any, all run: hours at full scale. Needs gcc and the programs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from contigua.configs import Machine
from contigua.options import RunOptions
from contigua_experiments import find
from contigua_experiments.running import Cell, data_walk_share, inside_share, run_cells, sized

SOURCE = Path(__file__).with_name("mapped_at_once.c")
LIBRARY = "{library}"
#: glibc's malloc as libhugetlbfs sets it (morecore.c): nothing goes back to the kernel.
KEEPS = "glibc.malloc.trim_threshold=0x7fffffffffffffff:glibc.malloc.mmap_max=0"


@dataclass(frozen=True)
class Cause:
    """A program of the experiment, and what is changed of it."""

    program: str
    designs: tuple[str, ...]
    part: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    environment: tuple[str, ...] = ()


def bt(size: int) -> dict[str, Any]:
    """Return the arguments of bt on a cube of another size."""
    return {"arguments": ["--size", str(size), "--steps", "1", "--planes", "1"]}


#: A sixth of the memory's bandwidth: as where all six cores run.
SHARED = {"cache.dram.channel_megabytes_per_second": 8533 // 6}
CAUSES = {
    "mapped-at-once": Cause(
        "mariadb",
        ("linux-4k", "direct-segment"),
        environment=(f"LD_PRELOAD={LIBRARY}", "GLIBC_TUNABLES=glibc.malloc.arena_max=1"),
    ),
    "bt-162": Cause("bt", ("linux-4k",), part=bt(162)),
    "bt-102": Cause("bt", ("linux-4k",), part=bt(102)),
    "bt-bandwidth": Cause("bt", ("linux-4k", "hugetlb-2m"), machine=SHARED),
    "bt-keeps": Cause("bt", ("hugetlb-1g",), environment=(f"GLIBC_TUNABLES={KEEPS}",)),
    "bfs-keeps": Cause("bfs", ("hugetlb-1g",), environment=(f"GLIBC_TUNABLES={KEEPS}",)),
    "cg-keeps": Cause("cg", ("hugetlb-1g",), environment=(f"GLIBC_TUNABLES={KEEPS}",)),
    "cg-cache": Cause("cg", ("linux-4k",), machine={"cache.llc.size": "1920KiB"}),
    "cg-bandwidth": Cause("cg", ("linux-4k",), machine=SHARED),
}


def run(cause: Cause, scale: str, library: Path) -> None:
    """Run a program with a cause changed, and print its shares."""
    inputs = find("direct-segment-overhead").inputs[scale]
    options = RunOptions(
        machine=inputs["machine"],
        memory=inputs["memory"],
        detail="full",
        classify_misses=True,
        seed=inputs["seed"],
    )
    part = {**inputs["parts"][cause.program], **cause.part}
    program, own = sized(cause.program, part, options)
    if cause.environment:
        told = (one.replace(LIBRARY, str(library)) for one in cause.environment)
        program = replace(program, command=("env", *told, *program.command))
    machine = Machine(inputs["machine"]).with_(cause.machine) if cause.machine else None
    cells = [Cell(design, machine=machine) for design in cause.designs]
    for cell, values in run_cells(program, cells, own).items():
        share, inside = data_walk_share(values), 100 * inside_share(values)
        print(f"  {cell.design}: {share:.4f} % of cycles, {inside:.2f} % inside", flush=True)


def main() -> None:
    """Run the chosen causes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("causes", nargs="*", metavar="CAUSE", help=", ".join(CAUSES))
    parser.add_argument("--quick", action="store_true", help="the quick scale's sizes")
    given = parser.parse_args()
    if unknown := set(given.causes) - CAUSES.keys():
        sys.exit(f"no cause {', '.join(sorted(unknown))}; there are {', '.join(CAUSES)}")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "mapped_at_once.so"
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        for name in given.causes or CAUSES:
            print(f"{name}:", flush=True)
            run(CAUSES[name], "quick" if given.quick else "full", library)


if __name__ == "__main__":
    main()
