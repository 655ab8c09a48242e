"""``contigua machines measure``: a machine file for the computer it runs on."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

import click
from rich.console import Console

from contigua.files import Outputs, check_writable, write_whole
from contigua.measuring.computer import Computer, MeasureError
from contigua.measuring.machine import Machine, machine_of, probes
from contigua.measuring.probes import measure
from contigua.measuring.written import as_json, facts, source, toml
from contigua.presets import machines
from contigua.progress import FractionLine
from contigua.terminal import Table

#: Seconds and rounds of a measurement, and of a quick one.
WHOLE = (45.0, 5)
QUICK = (12.0, 3)


@click.command("measure")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The machine file to write.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write measurements.")
@click.option(
    "--base",
    metavar="MACHINE",
    help="Where values come from that are not measured.  [default: by the processor's model]",
)
@click.option("--quick", is_flag=True, help="Fewer rounds: a quarter of a minute.")
@click.option("--force", is_flag=True, help="Write the file however much values vary.")
def measure_command(
    output: Path | None, json_file: Path | None, base: str | None, quick: bool, force: bool
) -> None:
    """Measure this computer and write a machine file, for `--machine FILE`.

    Takes less than a minute: chains of loads over caches and pages, page faults, system calls. The
    file has the median, spread and rounds beside each value. On a loaded computer values vary; when
    those that matter do, nothing is written.
    """
    for file in (output, json_file):
        if file is not None:
            check_writable(file)
    computer = Computer.this()
    named = machines.get(base or computer.nearest).name if base is None else base
    machines.resolve(named)
    seconds, rounds = QUICK if quick else WHOLE
    with FractionLine("measuring this computer") as progress:
        found = machine_of(computer, measure(probes(computer), seconds, rounds, progress), named)
    _show(found)
    if (doubts := found.doubts()) and not force:
        raise MeasureError(
            f"no conclusion: {'; '.join(doubts)}. End other programs and measure again, or add "
            "--force"
        )
    outputs = Outputs()
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    for file, text in ((output, toml(found, day)), (json_file, as_json(found))):
        if file is not None:
            with outputs.each():
                write_whole(file, text)
    sys.exit(outputs.status())


def _show(machine: Machine) -> None:
    """Print what was measured."""
    console = Console(stderr=True) if not sys.stdout.isatty() else Console()
    table = Table("value", machine.computer.name, machine.base, "measured")
    base = machines.resolve(machine.base)
    for key in machine.measured:
        own = machine.values.get(key)
        table.add_row(
            key,
            "" if own is None else str(own),
            "" if own is None else _of(base, key),
            source(machine, key).removeprefix("measured: "),
        )
    console.print(table)
    for line in facts(machine):
        if ": measured" not in line:
            console.print(line, markup=False, highlight=False)


def _of(values: object, key: str) -> str:
    """Return the value at a dotted key."""
    for part in key.split("."):
        if isinstance(values, list):
            values = values[int(part)]
        elif isinstance(values, dict):
            values = values.get(part, "")
    return str(values)
