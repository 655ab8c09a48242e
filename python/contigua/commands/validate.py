"""``contigua validate``: predicted against measured on this computer."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from contigua import _engine
from contigua.configs import Design
from contigua.files import Outputs, complain, write_whole
from contigua.measuring.computer import Computer
from contigua.measuring.probing import host_page as measured_host_page
from contigua.options import RunOptions
from contigua.presets import machines
from contigua.printing import printable
from contigua.programs.program import Program
from contigua.progress import FractionLine
from contigua.terminal import Table
from contigua.validation.compare import (
    LOUD,
    MEASURED_AGE,
    SCHEMA,
    TARGETS,
    Comparison,
    compare,
    designs,
    key_of,
    summary,
)
from contigua.validation.compare import stored as read
from contigua.validation.native import ValidationError, check
from contigua.validation.programs import QUICK, WHOLE

FOLDER = Path("contigua-results/validate")


@click.command("validate", context_settings={"allow_interspersed_args": False})
@click.option(
    "--machine",
    metavar="MACHINE",
    help="A machine's name or TOML file; best one that `contigua machines measure` wrote.  "
    "[default: by the processor's model]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=FOLDER,
    show_default=True,
    metavar="FOLDER",
    help="Folder for results; what is there already is not run again.",
)
@click.option("--quick", is_flag=True, help="Five small programs.")
@click.option("--stored", is_flag=True, help="Show what the folder has; run nothing.")
@click.option(
    "--host-page",
    type=click.Choice(["4k", "2m", "none"]),
    help="With which pages a hypervisor backs this computer's memory.  [default: measured, in a "
    "virtual machine]",
)
@click.option(
    "--age",
    default=MEASURED_AGE,
    metavar="AGE",
    help="History of the simulated memory, as for `contigua run`. On a computer whose free memory "
    "is in pieces, walks read entries from more lines.  [default: fresh or partial, by where the "
    "kernel puts pages at that time, which root may see; else partial]",
)
@click.option(
    "--memory",
    default="16G",
    show_default=True,
    help="Simulated memory. What does not fit in it cannot be simulated.",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def validate_command(
    program: tuple[str, ...],
    machine: str | None,
    output: Path,
    quick: bool,
    stored: bool,
    host_page: str | None,
    age: str,
    memory: str,
) -> None:
    """Run programs natively and simulated, and compare times with 4 KB and with 2 MB pages.

    Without PROGRAM, a set of workloads and programs of Debian's runs. Natively, runs with both
    sizes of page alternate; 2 MB pages come from glibc's malloc (glibc.malloc.hugetlb=1) and the
    programs' own madvise, 4 KB pages from prctl(PR_SET_THP_DISABLE). Where the measured speed-up
    varies by more than 5 %, nothing is concluded.
    """
    computer = Computer.this()
    check(computer)
    preset = machines.get(machine or computer.nearest)
    machines.resolve(preset)
    backing = _backing(computer, host_page)
    pair = designs(backing, computer.thp)
    chosen = (Program(" ".join(program), program),) if program else QUICK if quick else WHOLE
    output.mkdir(parents=True, exist_ok=True)
    options = RunOptions(machine=preset, age=age, memory=memory)
    found, failures = (_stored if stored else _all)(chosen, output, options, pair)
    console = Console()
    _show(console, found, preset.name, backing)
    outputs = Outputs()
    with outputs.each():
        text = json.dumps(
            {
                "schema": SCHEMA,
                "version": _engine.VERSION,
                "computer": asdict(computer),
                "machine": preset.name,
                "host_page": backing,
                "age": age,
                "memory": memory,
                "targets": TARGETS,
                "summary": None if (total := summary(found)) is None else asdict(total),
                "programs": [one.as_json() | {"concludes": one.concludes} for one in found],
                "failures": failures,
            },
            indent=2,
        )
        write_whole(output / "validation.json", text + "\n")
    if found:
        # Matplotlib takes a while to import.
        from contigua.validation.plot import scatter

        with outputs.each():
            scatter(found).savefig(output / "validation.png")
    for name, why in failures.items():
        complain(f"{name}: {why}")
    sys.exit(outputs.status(1 if failures or summary(found) is None else 0))


def _backing(computer: Computer, said: str | None) -> str | None:
    """Return the pages of the host, ``None`` where there is none."""
    if said is not None:
        return None if said == "none" else said
    return measured_host_page() if computer.virtual else None


def _all(
    programs: tuple[Program, ...],
    folder: Path,
    options: RunOptions,
    pair: tuple[Design, Design],
) -> tuple[list[Comparison], dict[str, str]]:
    """Compare one program after the other; what failed does not keep the others from it."""
    found: list[Comparison] = []
    failures: dict[str, str] = {}
    began = time.monotonic()
    for index, one in enumerate(programs):
        left = ""
        if index and (taken := time.monotonic() - began) > 2:
            left = f", about {taken / index * (len(programs) - index) / 60:.0f} minutes left"
        label = f"{index + 1} of {len(programs)}, {printable(one.name)}{left}"
        file = folder / f"{key_of(one, options, pair)}.json"
        with FractionLine(label) as progress:
            try:
                found.append(compare(one, options, pair, file, progress))
            except ValidationError as error:
                failures[one.name] = str(error)
    return found, failures


def _stored(
    programs: tuple[Program, ...],
    folder: Path,
    options: RunOptions,
    pair: tuple[Design, Design],
) -> tuple[list[Comparison], dict[str, str]]:
    """Return what is there of each program, and which are not."""
    there = {one.name: read(folder / f"{key_of(one, options, pair)}.json") for one in programs}
    found = [one for one in there.values() if one is not None]
    return found, {name: "not run yet" for name, one in there.items() if one is None}


def _show_ages(console: Console, found: list[Comparison]) -> None:
    """Print which histories were simulated, and why."""
    ages = Counter(one.age for one in found)
    told = ", ".join(f"{age} for {count}" for age, count in sorted(ages.items()))
    counts = [one.native.blocks for one in found if one.native.blocks is not None]
    if counts:
        least, most = min(counts), max(counts)
        told += f"; natively 24 MB of 4 KB pages lay in {least:,} to {most:,} blocks of 2 MB"
    console.print(f"Simulated memory: {told}.", highlight=False, soft_wrap=True)


def _show(console: Console, found: list[Comparison], machine: str, backing: str | None) -> None:
    """Print a row for each program, and what they add up to."""
    if not console.is_terminal:
        console.width = 140
    if not found:
        return
    host = {None: "", "4k": ", on a host's 4 KB pages", "2m": ", on a host's 2 MB pages"}[backing]
    table = Table(
        "program",
        "speed-up, measured",
        "predicted",
        "error",
        "4 KB, s",
        "predicted",
        "error",
        "2 MB, s",
        "predicted",
        "error",
        title=f"{machine}{host}",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for one in found:
        cells = []
        for size, digits in (("speedup", 3), ("small", 3), ("huge", 3)):
            measured = getattr(one.native, size)
            spread = f" ± {100 * measured.spread:.0f} %" if size == "speedup" else ""
            unsure = "" if one.concludes or size != "speedup" else " varies"
            cells += [
                f"{measured.value:.{digits}f}{spread}{unsure}",
                f"{one.predicted[size]:.{digits}f}",
                f"{100 * one.error(size):+.0f} %",
            ]
        table.add_row(one.name, *cells)
    console.print(table)
    _show_ages(console, found)
    total = summary(found)
    if total is None:
        console.print(
            f"No conclusion: every measured speed-up varies by more than {100 * LOUD:.0f} %; end "
            "other programs."
        )
        return

    def percent(share: float) -> str:
        return f"{100 * share:.0f} %"

    console.print(
        f"Concluded for {total.programs} programs; {total.unsure} vary too much. Speed-up: error "
        f"{100 * total.speedup_median:.1f} % median (wanted {percent(TARGETS['speedup_median'])}), "
        f"{percent(total.speedup_worst)} worst ({percent(TARGETS['speedup_worst'])}). CPU time: "
        f"{percent(total.time_median)} median, {percent(total.time_worst)} worst "
        f"({percent(TARGETS['time'])}).",
        highlight=False,
        soft_wrap=True,
    )
