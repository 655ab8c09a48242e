"""``contigua experiment``: published figures, computed again."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from contigua.entry import interrupt
from contigua.files import Outputs, check_writable, is_standard_output, write_whole
from contigua.progress import FractionLine
from contigua.reading import read_text
from contigua.terminal import Table
from contigua_experiments import (
    EXPERIMENTS,
    Context,
    Definition,
    ExperimentError,
    Result,
    Scale,
    Sheet,
    find,
)
from contigua_experiments.base import compute, files_of
from contigua_experiments.breaking import UNNOTICED, Row, merged, read_rows, run_breaks, table
from contigua_experiments.breaking import document as breaks_document
from contigua_experiments.catalogue import read_catalogue
from contigua_experiments.everything import Entry, crashed, kept, run_everything
from contigua_experiments.fingerprint import unfinished
from contigua_experiments.reproduction import Account, document, standing, told, values

COLORS = {
    **dict.fromkeys(("within tolerance", "holds"), "green"),
    **dict.fromkeys(("same shape", "cannot tell"), "yellow"),
    **dict.fromkeys(("differs", "fails", "no data"), "red"),
    **dict.fromkeys(("by construction", "fitted"), "dim"),
}
ALL = "all"
SCALE = click.option(
    "--quick/--full", default=True, show_default=True, help="Small servers, or the paper's."
)
JOBS = click.option("--jobs", type=click.IntRange(min=1), help="Servers at a time.")


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
@click.option("--figures", is_flag=True, help="List the papers' figures and tables instead.")
def list_command(figures: bool) -> None:
    """List the experiments by paper; `experiment show NAME` says more of one."""
    definitions = [find(name) for name in EXPERIMENTS]
    catalogue = read_catalogue(definitions)
    console = _wide(Console())
    if figures:
        table = Table("paper", "figure", "what it shows", "experiment, or why there is none")
        for item in catalogue.items:
            by = Text(", ".join(item.experiments)) if item.experiments else Text(item.why, "dim")
            table.add_row(item.paper, item.number, item.shows, by)
        console.print(table)
        return
    papers = {item.key: item.paper for item in catalogue.items}
    listed: dict[str, list[Definition]] = {}
    for one in definitions:
        paper = papers[one.reproduces[0]] if one.reproduces else "Beyond the papers"
        listed.setdefault(paper, []).append(one)
    for paper, members in listed.items():
        table = Table(
            title=paper, title_justify="left", title_style="bold", box=None, show_header=False
        )
        table.add_column("", no_wrap=True, min_width=max(map(len, EXPERIMENTS)))
        table.add_column("", ratio=1)
        for one in members:
            table.add_row(one.name, one.title)
        console.print(table)
        console.print()
    console.print("contigua experiment show NAME: what it needs, and how long it takes")


@experiment_commands.command("show")
@click.argument("name")
def show_command(name: str) -> None:
    """Say what experiment NAME repeats, what it needs, and how long it takes."""
    one = find(name)
    catalogue = read_catalogue([find(each) for each in EXPERIMENTS])
    numbers = {item.key: f"{item.paper}: {item.number}" for item in catalogue.items}
    lines = {
        "repeats": "; ".join(numbers[key] for key in one.reproduces)
        or f"beyond the papers: {catalogue.beyond.get(one.name, one.source)}",
        "needs": one.needs,
        "--quick": one.durations["quick"]
        + (f"; not in `run all`: {one.apart}" if one.apart else ""),
        "--full": one.durations["full"],
        "fitted": one.fitting,
    }
    table = Table(
        title=one.title, title_justify="left", title_style="bold", box=None, show_header=False
    )
    table.add_column("", no_wrap=True)
    table.add_column("", ratio=1)
    for label, text in lines.items():
        table.add_row(label, text)
    _wide(Console()).print(table)


@experiment_commands.command("run")
@click.argument("name")
@SCALE
@JOBS
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the page and the data.  [default: contigua-results/NAME]",
)
@click.option("--only", multiple=True, metavar="NAME[,...]", help="With `all`: run only these.")
@click.option("--again", is_flag=True, help="With `all`: also run what has finished.")
@click.option(
    "--keep",
    is_flag=True,
    help="With `all --only`: summarize the others by what the folder has, whatever made it, or by "
    "what the file of --write says of them.",
)
@click.option(
    "--write",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With `all`: write outcomes to this Markdown file, and every figure to a .csv beside it.",
)
def run_command(
    name: str,
    quick: bool,
    jobs: int | None,
    output: Path | None,
    only: tuple[str, ...],
    again: bool,
    keep: bool,
    write: Path | None,
) -> None:
    """Run experiment NAME, print its figures beside the paper's, and write a page.

    One that was interrupted goes on with the servers, or the programs, that had not finished.

    NAME `all` runs every experiment, one after the other. What has finished with the same inputs,
    version and code is not run again; what fails does not keep the others from running.
    """
    scale: Scale = "quick" if quick else "full"
    if name == ALL:
        _run_all(
            scale,
            jobs,
            output or Path("contigua-results") / f"all-{scale}",
            only,
            again,
            keep,
            write,
        )
        return
    if only or again or keep or write:
        raise click.UsageError("--only, --again, --keep and --write belong to `run all`.")
    definition = find(name)
    folder = output or Path("contigua-results") / name
    with FractionLine(name) as line, unfinished(definition, scale, folder) as parts:
        result = compute(definition, scale, Context(folder, jobs, line, parts))
    outputs = Outputs()
    with outputs.each():
        _show(result)
    for file, contents in files_of(result).items():
        with outputs.each():
            write_whole(folder / file, contents())
    with outputs.each():
        click.echo(f"Page: {folder / 'index.html'}")
    sys.exit(outputs.status())


def _run_all(
    scale: Scale,
    jobs: int | None,
    folder: Path,
    only: tuple[str, ...],
    again: bool,
    keep: bool,
    write: Path | None,
) -> None:
    """Run every experiment, print a summary and write the account."""
    named = [name for group in only for name in group.split(",") if name]
    chosen = [find(name) for name in named]
    definitions = [find(name) for name in EXPERIMENTS]
    catalogue = read_catalogue(definitions)
    if write is not None:
        check_writable(write)
    if not chosen:
        chosen = [one for one in definitions if scale == "full" or not one.apart]

    def show(one: Definition, entry: Entry | None) -> None:
        if entry is None:
            click.echo(f"{one.name} ({one.durations[scale]}) ...", err=True)
        else:
            click.echo(f"{one.name}: {told(entry)}{' (kept)' if entry.is_old else ''}", err=True)

    # Ended or interrupted, the experiment that runs must not outlive us.
    signal.signal(signal.SIGTERM, interrupt)
    ran = {
        entry.definition.name: entry
        for entry in run_everything(chosen, scale, folder, jobs=jobs, again=again, told=show)
    }
    table = _written(write) if keep else ""

    def rest(one: Definition) -> Entry:
        found = kept(one, scale, folder, whatever=keep)
        return found if found.record is not None else standing(one, scale, table)

    entries = [ran.get(one.name) or rest(one) for one in definitions]
    outputs = Outputs()
    with outputs.each():
        _summary(entries, scale, Console(stderr=is_standard_output(write)))
    if write is not None:
        with outputs.each():
            write_whole(write, document(entries, catalogue, scale))
            if not is_standard_output(write):
                write_whole(write.with_suffix(".csv"), values(entries))
            click.echo(f"Account: {write}", err=is_standard_output(write))
    click.echo(f"Pages: {folder}/NAME/index.html", err=is_standard_output(write))
    if failed := crashed(list(ran.values())):
        names = ", ".join(one.definition.name for one in failed)
        raise ExperimentError(f"{len(failed)} of {len(ran)} experiments failed: {names}")
    sys.exit(outputs.status())


@experiment_commands.command("break")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@SCALE
@JOBS
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for what the runs find.  [default: contigua-results/all-quick or all-full]",
)
@click.option(
    "--write",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write to this Markdown file, and to a .csv beside it; what that one says of other "
    "experiments stays.",
)
def break_command(
    names: tuple[str, ...], quick: bool, jobs: int | None, output: Path | None, write: Path | None
) -> None:
    """Run experiments with their mechanisms taken out, and say which verdicts notice.

    Each NAME (`all`: every experiment with breaks) runs as it is, unless it has finished, and once
    for each break of its file. The exit status is 1 if a verdict stands all the same.
    """
    scale: Scale = "quick" if quick else "full"
    folder = output or Path("contigua-results") / f"all-{scale}"
    every = [one for one in map(find, EXPERIMENTS) if one.breaks]
    chosen = every if names == (ALL,) else [find(name) for name in names]
    if write is not None:
        if is_standard_output(write):
            raise click.UsageError("--write takes a file: a table is written beside it.")
        check_writable(write)
    signal.signal(signal.SIGTERM, interrupt)
    rows: list[Row] = []
    for one in chosen:
        rows += run_breaks(one, scale, folder, jobs=jobs, told=_say)
        if write is not None:
            # Each experiment's rows are kept as soon as they are there.
            written = merged(read_rows(_written(write)), rows)
            write_whole(write.with_suffix(".csv"), table(written))
            told = {row.experiment for row in written}
            missing = [one.name for one in every if one.name not in told]
            write_whole(write, breaks_document(written, scale, missing))
    shown = Table("experiment", "broken", "figure", "as it is", "with the break", "told")
    for row in rows:
        color = {"noticed": "green", "was off": "yellow"}.get(row.told, "red")
        sound, ours = f"{row.sound}, {row.sound_verdict}", f"{row.ours}, {row.verdict}"
        shown.add_row(row.experiment, row.broken, row.figure, sound, ours, Text(row.told, color))
    _wide(Console()).print(shown)
    sys.exit(1 if any(row.told == UNNOTICED for row in rows) else 0)


def _say(what: str) -> None:
    click.echo(f"{what} ...", err=True)


def _written(account: Path | None) -> str:
    """Return the table beside an account, or nothing where there is none."""
    if account is None or is_standard_output(account):
        return ""
    file = account.with_suffix(".csv")
    return read_text(file) if file.exists() else ""


def _summary(entries: list[Entry], scale: Scale, console: Console) -> None:
    table = Table("experiment", "verdicts", title=f"All experiments ({scale})")
    table.title_justify = "left"
    for head in ("seconds", "of processor"):
        table.add_column(head, justify="right")
    for entry in entries:
        record = entry.record
        times = [f"{record.seconds:.0f}", f"{record.processor_seconds:.0f}"] if record else ["", ""]
        table.add_row(entry.definition.name, told(entry), *times)
    _wide(console).print(table)
    if scale == "full":
        console.print(Account.of(entries).sentence(), highlight=False, soft_wrap=True)
    else:
        console.print("A smoke test: claims about papers take --full.", highlight=False)


def _wide(console: Console) -> Console:
    if not console.is_terminal:
        # A file or pipe is as wide as it needs to be.
        console.width = 10_000
    return console


def _show(result: Result) -> None:
    console = _wide(Console())
    heads = result.HEADS
    table = Table(heads[0], title=f"{result.definition.title} ({result.scale})")
    table.title_justify = "left"
    for head in heads[1:5]:
        table.add_column(head, justify="right")
    for head in heads[5:]:
        table.add_column(head)
    for row in result.rows():
        table.add_row(*row[:-1], Text(row[-1], COLORS[row[-1]]))
    console.print(table)
    for sheet in result.outcome.sheets:
        console.print(_table(sheet))
    console.print(result.summary(), highlight=False, soft_wrap=True)
    for label, why in result.reasons():
        console.print(f"Why {label!r} is off: {why}", highlight=False, soft_wrap=True)
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
