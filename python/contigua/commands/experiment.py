"""``contigua experiment``: published figures, computed again."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from contigua.experiments import EXPERIMENTS, Context, Result, Sheet, find, run_experiment
from contigua.progress import FractionLine

COLOURS = {"reproduced": "green", "same shape": "yellow", "differs": "red", "no data": "red"}


class Experiments(click.Group):
    """A group in which an experiment's own name is short for ``run NAME``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Put ``run`` before a name that is no command."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["run", *args]
        return super().resolve_command(ctx, args)


@click.group("experiment", cls=Experiments)
def experiment_commands() -> None:
    """Compute published figures again; `experiment NAME` is short for `experiment run NAME`."""


@experiment_commands.command("list")
def list_command() -> None:
    """List the experiments, what they need and how long they take."""
    table = Table("experiment", "", "source", "needs", "--quick", "--full")
    for name in EXPERIMENTS:
        one = find(name)
        quick, full = one.durations["quick"], one.durations["full"]
        table.add_row(name, one.title, one.source, one.needs, quick, full)
    console = Console()
    if not console.is_terminal:
        console.width = 1000
    console.print(table)


@experiment_commands.command("run")
@click.argument("name")
@click.option(
    "--quick/--full", default=True, show_default=True, help="Small servers, or the paper's."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Servers at a time.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the page and the data.  [default: contigua-results/NAME]",
)
def run_command(name: str, quick: bool, jobs: int | None, output: Path | None) -> None:
    """Run experiment NAME, print its figures beside the paper's, and write a page."""
    definition = find(name)
    folder = output or Path("contigua-results") / name
    with FractionLine(name) as line:
        result = run_experiment(
            definition, "quick" if quick else "full", Context(folder, jobs, line)
        )
    _show(result)
    click.echo(f"Page: {folder / 'index.html'}")


def _show(result: Result) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = 150
    heads = result.HEADS
    table = Table(heads[0], title=f"{result.definition.title} ({result.scale})")
    table.title_justify = "left"
    for head in heads[1:5]:
        table.add_column(head, justify="right")
    for head in heads[5:]:
        table.add_column(head)
    for row in result.rows():
        table.add_row(*row[:-1], f"[{COLOURS[row[-1]]}]{row[-1]}[/]")
    console.print(table)
    for sheet in result.outcome.sheets:
        console.print(_table(sheet))
    console.print(result.summary(), highlight=False, soft_wrap=True)
    console.print(f"Fitted: {result.definition.fitting}", highlight=False, soft_wrap=True)
    for note in result.outcome.notes:
        console.print(note, highlight=False, soft_wrap=True)


def _table(sheet: Sheet) -> Table:
    table = Table(title=sheet.title, title_justify="left")
    for index, head in enumerate(sheet.heads):
        table.add_column(head, justify="right" if index else "left")
    for row in sheet.rows:
        table.add_row(*row)
    return table
