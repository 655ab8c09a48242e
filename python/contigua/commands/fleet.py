"""``contigua fleet``: many servers of different ages and kinds."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

import click
from rich.console import Console

from contigua import _engine
from contigua.ageing import BLOCK_SIZES, FRAME
from contigua.calibration import calibration
from contigua.commands.parameters import HOURS
from contigua.files import Outputs, check_writable, is_standard_output
from contigua.fleet import FleetOptions, Row, kept_beside, simulate, write_parquet
from contigua.fleet_report import figures, read_fleet, write_page, write_table
from contigua.progress import FractionLine
from contigua.terminal import Table

FILE = click.Path(path_type=Path)


@click.group("fleet")
def fleet_commands() -> None:
    """Simulate fleets of servers, and report on real ones."""


@fleet_commands.command("simulate")
@click.option("--servers", type=click.IntRange(min=1), required=True, help="How many servers.")
@click.option("--design", default="linux-thp", show_default=True, help="Design of all servers.")
@click.option("--memory", help="Memory of every server; drawn by default.")
@click.option(
    "--hours", type=HOURS, help="Limit of the oldest age, such as 90m; without a unit in hours."
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=1,
    show_default=True,
    help="Seed of everything random.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Servers at a time.  [default: all processors]"
)
@click.option(
    "--calibration",
    "calibration_file",
    type=FILE,
    help="What to draw servers from; the package's data/fleet.toml by default.",
)
@click.option(
    "-o", "--output", type=FILE, required=True, help="Parquet file to write, one row per server."
)
def simulate_command(
    servers: int,
    design: str,
    memory: str | None,
    hours: float | None,
    seed: int,
    jobs: int | None,
    calibration_file: Path | None,
    output: Path,
) -> None:
    """Age servers with drawn ages, services and sizes.

    Finished servers are kept in OUTPUT.servers.jsonl: the same command carries on after an
    interruption, and a larger --servers reuses those that are done.
    """
    check_writable(output)
    options = FleetOptions(
        design=design,
        memory=memory,
        longest_hours=hours or float("inf"),
        seed=seed,
        jobs=jobs,
        calibration=calibration_file,
    )
    with FractionLine(f"ageing {servers} servers") as line:
        rows = simulate(servers, options, kept=kept_beside(output), progress=line)
    notes = {
        "contigua.version": _engine.VERSION,
        "contigua.seed": str(seed),
        "contigua.calibration": calibration(calibration_file).text,
    }
    outputs = Outputs()
    with outputs.each():
        Console(stderr=is_standard_output(output)).print(fleet_table(rows))
    with outputs.each():
        write_parquet(rows, output, notes)
    sys.exit(outputs.status())


@fleet_commands.command("report")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option(
    "-o",
    "--output",
    type=FILE,
    default=Path("fleet.html"),
    show_default=True,
    help="HTML page to write.",
)
@click.option("--parquet", type=FILE, help="Table to write, one row per snapshot.")
def report_command(paths: tuple[Path, ...], output: Path, parquet: Path | None) -> None:
    """Report on real servers, from snapshots that contigua-node took.

    PATHS are snapshots, and directories with snapshots in them. Files that are damaged, or of
    another version, are counted and passed over.
    """
    for path in (output, parquet):
        if path is not None:
            check_writable(path)
    console = Console(stderr=any(map(is_standard_output, (output, parquet))))
    outputs = Outputs()
    with console.status("reading snapshots") as status:
        fleet = read_fleet(paths, lambda count: status.update(f"{count} snapshots read"))
    for problem, count in fleet.skipped.items():
        click.echo(f"{count} files passed over: {problem.value}", err=True)
    for name in fleet.named:
        click.echo(f"  {name}", err=True)
    title = f"{len(fleet.rows)} servers"
    table = Table("", "here", "Contiguitas", title=title, title_justify="left")
    for cells in figures(fleet.rows) if fleet.rows else ():
        table.add_row(*cells)
    if fleet.rows:
        with outputs.each():
            console.print(table)
    else:
        outputs.lost("no snapshot could be read")
    with outputs.each():
        write_page(fleet, output)
    if parquet is not None:
        with outputs.each():
            write_table(fleet.rows, parquet)
    sys.exit(outputs.status())


def fleet_table(rows: list[Row]) -> Table:
    """Make the table of what is most asked of a fleet."""
    counted = [row for row in rows if not row["excluded"]]
    table = Table("", title=f"{len(rows)} servers, {rows[0]['design']}", title_justify="left")
    table.add_column("", justify="right")
    table.add_row("left out, with too little free memory", f"{len(rows) - len(counted)}")
    if not counted:
        return table
    for size, label in (("2m", "2 MB"), ("32m", "32 MB"), ("1g", "1 GB")):
        without = sum(row[f"blocks_{size}_free"] == 0 for row in counted)
        table.add_row(f"without one free {label} block", f"{100 * without / len(counted):.1f} %")
    unmovable = [
        100 * row["blocks_2m_unmovable"] * BLOCK_SIZES["2m"] / row["memory"] for row in counted
    ]
    pages = [100 * row["unmovable_frames"] * FRAME / row["memory"] for row in counted]
    table.add_row("polluted 2 MB blocks, median", f"{median(unmovable):.1f} %")
    table.add_row("unmovable 4 KB pages, median", f"{median(pages):.1f} %")
    return table
