"""Compares simulated programs with published measurements of a real server, and writes the table
in docs/validation.md.

Mitosis (Achermann et al., ASPLOS 2020, Figure 6) ran eight programs of tens of gigabytes on one
socket of a Haswell-EX server, with 4 KB and with 2 MB pages. What fits here is an eighth: each
program's memory, and every capacity of the machine that it competes for (TLBs for data, page-walk
caches below the root, L1D, L2 and the last level) are divided by eight. Latencies stay.

Programs named as arguments are run alone, and nothing is written.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from documents import replace

from contigua.presets import Preset
from contigua_experiments.scaled import scaled

ROOT = Path(__file__).parents[1]
MACHINE = ROOT / "python/contigua/data/machines/haswell-ex.toml"
#: Measured cycles: all, and those in which a walker works, with 4 KB and with 2 MB pages. "paper":
#: the artifact's reference results of Figure 6 (LP-LD, TLP-LD). "again": the log of the artifact's
#: evaluation, the same authors on the same machine four months later (LPLD and TLPLD). Numbers of
#: loads in the logs say that the paper's HashJoin (five times as many) and BTree (41.7 billion,
#: again 10.7) were not optimized. GUPS includes the initialization of its table. XSBench ran
#: 16 threads.
Measured = tuple[tuple[int, int], tuple[int, int]]
MEASURED: dict[str, Measured] = {
    "GUPS, paper": ((454_078_473_314, 374_935_567_249), (176_546_347_339, 83_117_175_410)),
    "GUPS, again": ((570_266_393_702, 519_025_640_035), (161_169_522_661, 103_872_459_937)),
    "HashJoin, paper": ((831_676_234_912, 496_798_730_989), (537_700_229_799, 81_638_210_838)),
    "HashJoin, again": ((731_817_653_463, 502_250_259_649), (419_354_958_587, 80_903_227_487)),
    "BTree, paper": ((629_763_887_928, 270_588_539_789), (537_677_051_812, 184_822_502_975)),
    "BTree, again": ((619_845_952_118, 263_474_321_047), (570_789_500_321, 220_505_493_906)),
    "XSBench, paper": (
        (12_754_865_509_533, 4_413_714_290_279),
        (10_162_354_357_077, 528_672_726_645),
    ),
    "Canneal, paper": (
        (1_535_643_224_899, 719_284_656_214),
        (1_307_386_323_993, 300_929_268_890),
    ),
}
#: Updates of the measured GUPS: the lines that missed in the last level (later log, 2 MB pages:
#: 2,139,856,788), to a power of two.
UPDATES = 1 << 31
#: Cycles of GUPS' measured initialization, with 4 KB and with 2 MB pages: all cycles of the paper's
#: run, less those of its updates (172.1 and 60.0 seconds at 2.49 GHz, the clock of the later one).
INITIALIZATION = (25_500_000_000, 27_100_000_000)
#: Loads of the walker by the level that served them: the later log, 2 MB pages.
WALKER_LOADS = {
    "l1": 2_087_982_729,
    "l2": 656_686_816,
    "llc": 1_255_253_537,
    "memory": 26_980_620,
}
#: Rows that HashJoin looks up: the log of the paper's run has 2,000,000,000 matches, four of a row.
ROWS = 500_000_000
#: Loads and their walks, measured with 4 KB and with 2 MB pages: later logs for BTree and HashJoin,
#: logs of the paper's runs for the others.
LOADS: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "HashJoin, again": ((12_112_197_341, 4_965_532_678), (12_087_461_805, 2_869_345_768)),
    "BTree, again": ((10_650_374_334, 1_795_855_450), (10_525_937_729, 1_721_772_366)),
    "XSBench, paper": ((531_553_872_863, 53_327_664_901), (536_505_350_141, 18_961_071_625)),
    "Canneal, paper": ((41_306_649_413, 5_654_386_173), (41_237_905_455, 2_682_707_750)),
}


@dataclass(frozen=True)
class Program:
    """A program of ours that stands for a measured one."""

    #: An eighth of the measured memory.
    arguments: tuple[str, ...]
    #: The part that is simulated; the rest is fast-forwarded.
    part: tuple[str, ...]
    #: Simulated memory.
    memory: str
    #: Measurements that it is compared with, and how it is compiled for each.
    levels: dict[str, str]
    #: Other changes to the machine's file, and their names in the table.
    changes: tuple[tuple[str, str], ...] = ()
    note: str = ""


def of(function: str, instructions: str) -> tuple[str, ...]:
    """The first instructions of a function."""
    return ("--region", f"function:{function}", "--instructions", instructions)


#: Rows of ours; measured were more than memory holds at a time.
OUR_ROWS = 1_000_000
PROGRAMS = [
    Program(
        ("gups", "--size", "8GiB", "--updates", "10000000", "--no-verify"),
        of("update", "20M"),
        "12G",
        {"GUPS, paper": "-O2", "GUPS, again": "-O2"},
    ),
    Program(
        ("hashjoin", "--heads", "33554432", "--rows", str(OUR_ROWS)),
        of("probe", "1G"),
        "6G",
        {"HashJoin, paper": "-O0", "HashJoin, again": "-O2"},
    ),
    # The most that Agner Fog's tables have, for large quotients: here of 36 bits.
    Program(
        ("hashjoin", "--heads", "33554432", "--rows", str(OUR_ROWS)),
        of("probe", "1G"),
        "6G",
        {"HashJoin, again": "-O2"},
        (
            ("divide_64 = 36                  # Agner", "divide_64 = 96                  # Agner"),
            ("integer_64 = 24", "integer_64 = 74"),
        ),
        ", slow divisions",
    ),
    Program(
        ("btree", "--keys", "45900000", "--lookups", "10000000"),
        of("look_up", "30M"),
        "16G",
        {"BTree, paper": "-O2", "BTree, again": "-O2"},
    ),
    # A thread on each core. 5.92 billion instructions set up.
    Program(
        (
            "neutrons",
            "--points",
            "22500",
            "--lookups",
            "10000000",
            "--threads",
            "14",
            "--no-verify",
        ),
        ("--cores", "14", "--skip", "5950M", "--warmup", "100M", "--instructions", "200M"),
        "16G",
        {"XSBench, paper": "-O2"},
    ),
    Program(
        ("anneal", "--elements", "12500000", "--moves", "10000000", "--no-verify"),
        of("anneal", "30M"),
        "8G",
        {"Canneal, paper": "-O2"},
    ),
]


def eighth(changes: tuple[tuple[str, str], ...] = ()) -> str:
    """The machine with an eighth of its capacities for data, and with changes to its file."""
    text = MACHINE.read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return scaled(Preset(MACHINE.stem, text, str(MACHINE)), 8).text


def run(folder: Path, program: Program, level: str) -> list[dict[str, Any]]:
    """Times of a program with 4 KB and with 2 MB pages."""
    machine, binary = folder / "haswell-ex-eighth.toml", folder / program.arguments[0]
    machine.write_text(eighth(program.changes))
    source = ROOT / "workloads" / f"{program.arguments[0]}.c"
    # The region is a function, also where it is called once.
    compiler = ["gcc", "-std=c11", "-pthread", level, "-ffp-contract=off"]
    compiler += ["-fno-inline-functions-called-once", "-o", str(binary), str(source), "-lm"]
    subprocess.run(compiler, check=True)
    command = [sys.executable, "-m", "contigua.cli", "run", "--json", str(folder / "reports")]
    command += ["--machine", str(machine), "--memory", program.memory]
    command += ["--designs", "linux-4k,linux-thp", *program.part]
    command += ["--", str(binary), *program.arguments[1:]]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    reports: list[dict[str, Any]] = json.loads((folder / "reports").read_text())
    return reports


def measured(name: str) -> Measured:
    """Cycles of what is simulated: GUPS' updates, the whole of other programs."""
    if not name.startswith("GUPS"):
        return MEASURED[name]
    small, large = (
        (cycles - before, walks)
        for (cycles, walks), before in zip(MEASURED[name], INITIALIZATION, strict=True)
    )
    return small, large


def row(name: str, program: str, reports: list[dict[str, Any]]) -> str:
    """A line of the table."""
    small, large = measured(name)
    times = [report["time"] for report in reports]
    ratio, ours = small[0] / large[0], times[0]["busy_cycles"] / times[1]["busy_cycles"]
    cells = [program, f"{ratio:.2f}", f"{ours:.2f}", f"{100 * (ours / ratio - 1):+.0f} %"]
    for (cycles, walks), time in zip((small, large), times, strict=True):
        shares = 100 * walks / cycles, 100 * time["walk_active"] / time["busy_cycles"]
        cells += [f"{share:.0f} %" for share in shares]
    return f"| {name} | {' | '.join(cells)} |"


def parts(time: dict[str, Any], units: int) -> list[str]:
    """Cycles in which a unit of work walks and does not."""
    walks, cycles = time["walk_active"], time["cycles"]
    return [f"{cycles / units:.0f}" for cycles in (walks, cycles - walks)]


def unit(name: str, rows: list[tuple[str, list[str]]]) -> list[str]:
    """A table of what a unit of work costs."""
    return [
        f"| cycles of {name} | walking, 4 KB | not walking | walking, 2 MB | not walking |",
        "|---|--:|--:|--:|--:|",
        *(f"| {row} | {' | '.join(cells)} |" for row, cells in rows),
    ]


def work(names: list[str], units: int) -> list[tuple[str, list[str]]]:
    """Its rows that were measured."""
    return [
        (name, [cell for pair in measured(name) for cell in parts(as_time(pair), units)])
        for name in names
    ]


def as_time(pair: tuple[int, int]) -> dict[str, int]:
    """Measured cycles as a report has them."""
    return {"cycles": pair[0], "walk_active": pair[1]}


def updates(times: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the cost of an update of GUPS, measured and simulated."""
    reports = times["-O2"]
    rows = work(["GUPS, paper", "GUPS, again"], UPDATES)
    cells = [parts(report["time"], report["executed"]["stores"]) for report in reports]
    rows.append(("simulated", [*cells[0], *cells[1]]))
    served, stores = reports[1]["cache"]["walks"], reports[1]["executed"]["stores"]
    levels = ", ".join(
        f"{level.upper() if level != 'memory' else level} {loads / UPDATES:.2f} and "
        f"{served[level] / stores:.2f}"
        for level, loads in WALKER_LOADS.items()
    )
    return [
        *unit("an update", rows),
        "",
        f"Loads of the walker for an update, 2 MB pages, again and simulated: {levels}.",
    ]


def lookups(times: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the cost of a row of HashJoin, measured and simulated."""
    rows = []
    for name, level in (("HashJoin, paper", "-O0"), ("HashJoin, again", "-O2")):
        rows += work([name], ROWS)
        cells = [parts(report["time"], OUR_ROWS) for report in times[level]]
        rows.append((f"simulated, `{level}`", [*cells[0], *cells[1]]))
    return unit("a row", rows)


def for_loads(name: str, reports: list[dict[str, Any]]) -> str:
    """Cycles and walks for 1,000 loads, measured and simulated."""
    cells = []
    for (cycles, _), (loads, walks), report in zip(
        MEASURED[name], LOADS[name], reports, strict=True
    ):
        own, translation = report["executed"]["loads"], report["translation"]
        own_walks = translation["walks_4k"] + translation["walks_2m"]
        cells += [
            cycles / loads,
            report["time"]["busy_cycles"] / own,
            walks / loads,
            own_walks / own,
        ]
    return f"| {name} | {' | '.join(f'{1000 * cell:,.0f}' for cell in cells)} |"


def main() -> None:
    """Simulate, print, and write the tables."""
    chosen = [one for one in PROGRAMS if one.arguments[0] in sys.argv[1:] or not sys.argv[1:]]
    rows, loads, details = [], [], []
    for one in chosen:
        times: dict[str, list[dict[str, Any]]] = {}
        for name, level in one.levels.items():
            if level not in times:
                with tempfile.TemporaryDirectory() as folder:
                    times[level] = run(Path(folder), one, level)
            optimized = "" if level != "-O0" else " -O0"
            label = f"`{one.arguments[0]}{optimized}`{one.note}"
            rows.append(row(name, label, times[level]))
            print(rows[-1], flush=True)
            if name in LOADS and not one.changes:
                loads.append(for_loads(name, times[level]))
                print(loads[-1], flush=True)
        detail = {"gups": updates, "hashjoin": lookups}.get(one.arguments[0])
        if detail is not None and not one.changes:
            lines = detail(times)
            print(*lines, sep="\n", flush=True)
            details += ["", *lines]
    if not sys.argv[1:]:
        replace("silicon", "validation.md", [*table(rows), *details, "", *LOADS_HEAD, *loads])


LOADS_HEAD = [
    "| 1,000 loads | cycles, 4 KB, measured | simulated | walks, measured | simulated | "
    "cycles, 2 MB, measured | simulated | walks, measured | simulated |",
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
]


def table(rows: list[str]) -> list[str]:
    """Lines of the table."""
    return [
        "| measured | simulated | 4 KB : 2 MB, measured | simulated | error | walk-active, 4 KB, "
        "measured | simulated | 2 MB, measured | simulated |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
        *rows,
    ]


if __name__ == "__main__":
    main()
