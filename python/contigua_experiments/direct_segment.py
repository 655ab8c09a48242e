"""Tables 1 to 5 and Figure 1 of Direct Segments (ISCA 2013), beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import TYPE_CHECKING, Any

from contigua.presets import machines
from contigua_experiments.base import Sheet
from contigua_experiments.running import Values, cycles, resident

if TYPE_CHECKING:
    from contigua.page import Page

MEBIBYTE = 1 << 20

#: Entries and ways of each TLB (Table 1; "fully associative" is as many ways as entries).
TLBS = {
    ("l1d", "4k"): (64, 4),
    ("l1d", "2m"): (32, 4),
    ("l1d", "1g"): (4, 4),
    ("l1i", "4k"): (128, 4),
    ("l1i", "2m"): (8, 8),
    ("l2", "4k"): (512, 4),
}

#: Values of Table 2 for each workload, by the program that stands for it here.
WORKLOADS = {
    "bfs": ("graph500", "generation, compression and breadth-first search of large graphs"),
    "kv": ("memcached", "in-memory key-value cache; here its data structure without the network"),
    "memcached": ("memcached", "in-memory key-value cache of large websites"),
    "mariadb": ("MySQL", "InnoDB running TPC-C; here fewer warehouses, all in memory"),
    "bt": ("NPB:BT", "block-tridiagonal lines of a cube, of the NAS parallel benchmarks"),
    "cg": ("NPB:CG", "conjugate gradient of the NAS parallel benchmarks"),
    "gups": ("GUPS", "random access benchmark"),
}

#: Shares in percent: read-write memory (Table 3), and cycles in walks for instructions (Table 4).
PAPER = {
    "graph500": (99.96, 0.0),
    "memcached": (99.38, 0.1),
    "MySQL": (99.94, 2.5),
    "NPB:BT": (99.97, 0.0),
    "NPB:CG": (99.97, 0.0),
    "GUPS": (99.98, 0.0),
}


def machine_table(name: str) -> tuple[Sheet, float]:
    """Return Table 1 beside a machine, and how many percent of its TLBs' sizes agree."""
    machine = machines.resolve(name)
    rows = [["processor", "Xeon E5-2430 (Sandy Bridge), 2.2 GHz", str(machine["description"])]]
    rows += [["clock", "2.2 GHz", str(machine["clock"])]]
    same = 0
    for (which, size), theirs in TLBS.items():
        ours = _tlb(machine["tlb"], which, size)
        same += ours == theirs
        rows.append([f"{which} TLB, {size}", _entries(theirs), _entries(ours)])
    rows += [["memory", "96 GB of DDR3-1066", f"{machine['memory']} simulated, or as asked for"]]
    rows += [["kernel", "Linux 2.6.32", "the simulated kernel"]]
    title = f"Table 1: the machine, and {name}"
    return Sheet(title, ["", "paper", "ours"], rows), 100 * same / len(TLBS)


def _tlb(tlb: dict[str, Any], which: str, size: str) -> tuple[int, int] | None:
    if which == "l2":
        arrays = [one for one in tlb["l2"] if size in one["holds"]]
        return (arrays[0]["entries"], arrays[0]["ways"]) if arrays else None
    array = tlb[which].get(size)
    return None if array is None else (array["entries"], array["ways"])


def _entries(tlb: tuple[int, int] | None) -> str:
    return "none" if tlb is None else f"{tlb[0]} entries, {tlb[1]} ways"


def workload_table(found: Mapping[str, Values]) -> Sheet:
    """Return Table 2: what the paper runs, and what stands for it."""
    rows = []
    for name, values in found.items():
        paper, told = WORKLOADS.get(name, ("", "not in the paper"))
        memory = f"{resident(values) / MEBIBYTE:.0f}"
        instructions = f"{values['executed']['instructions'] / 1e6:,.0f}"
        rows.append([name, paper, told, memory, instructions])
    heads = ["program", "stands for", "what it is", "memory, MiB", "million instructions"]
    return Sheet("Table 2: the workloads", heads, rows)


def writable_share(values: Values) -> float | None:
    """Return the share of memory that is private, anonymous and writable, in percent (Table 3).

    The mean over the run, as in the paper; stacks are inside, which the paper leaves out.
    """
    residency = values["residency"]
    shares = [
        100 * inside / whole
        for inside, whole in zip(
            residency["eligible_bytes"], residency["resident_bytes"], strict=False
        )
        if whole
    ]
    return mean(shares) if shares else None


def code_walk_share(values: Values) -> float:
    """Return the share of cycles in walks for instructions, in percent (Table 4)."""
    walked = float(values["translation"]["instruction_walk_cycles"])
    return 100 * walked / max(cycles(values), 1.0)


def protection_table(found: Mapping[str, Values]) -> Sheet:
    """Return Table 3, and Table 4's column for instructions, beside ours."""
    rows = []
    for name, values in found.items():
        writable, code = PAPER.get(WORKLOADS.get(name, ("", ""))[0], ("", ""))
        share = writable_share(values)
        ours = "-" if share is None else f"{share:.2f}"
        rows.append([name, str(writable), ours, str(code), f"{code_walk_share(values):.2f}"])
    heads = ["program", "read-write, paper", "ours", "instruction walks, paper", "ours"]
    return Sheet("Table 3: read-write memory; Table 4: cycles in walks for code, %", heads, rows)


#: Memory counts as allocated from this share of its peak on.
MOST = 0.9


def settled_share(values: Values) -> float | None:
    """Return in how many percent of the run most memory is there (Figure 1)."""
    residency = values["residency"]
    at, memory = residency["instructions"], residency["resident_bytes"]
    if len(at) < 2:
        return None
    peak = max(memory)
    first = next(place for place, size in zip(at, memory, strict=True) if size >= MOST * peak)
    return 100 * (1 - float(first) / max(float(values["executed"]["instructions"]), 1.0))


def allocation_picture(page: Page, found: Mapping[str, Values]) -> None:
    """Add Figure 1: memory over the run, in percent of its peak."""
    from contigua.pictures import lines_picture

    curves = {}
    for name, values in found.items():
        residency = values["residency"]
        whole = max(values["executed"]["instructions"], 1)
        peak = max(residency["resident_bytes"], default=0)
        if peak:
            curves[name] = (
                [100 * at / whole for at in residency["instructions"]],
                [100 * size / peak for size in residency["resident_bytes"]],
            )
    half = (len(curves) + 1) // 2
    names = list(curves)
    # Six lines are told apart, not more.
    charts = [
        ("resident, % of the peak", {name: curves[name] for name in part})
        for part in (names[:half], names[half:])
        if part
    ]
    page.heading("Figure 1: memory over time")
    for index, chart in enumerate(charts):
        page.picture(
            lines_picture([chart], f"Memory over time, {index + 1}", "instructions, %", steps=True),
            "Resident memory of each program over its run: " + ", ".join(chart[1]) + ".",
        )
