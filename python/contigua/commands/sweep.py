"""``contigua sweep`` and ``contigua query``: many runs, and questions about them."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from contigua.extras import needs
from contigua.files import INTERRUPTED, check_writable, write_whole, writing
from contigua.printing import printable
from contigua.sweeps import Options, Record, Sweep, look, make_plan, query, run_sweep
from contigua.sweeps.api import default_folder
from contigua.terminal import Table, show

if TYPE_CHECKING:
    import pyarrow as pa

FILE = click.Path(path_type=Path)

#: Rows of a table on a terminal, and different messages of failures, that are shown.
ROWS = 40
MESSAGES = 5
#: Characters of a text that a table shows.
WIDEST = 60


class Bar:
    """Shows on standard error how a sweep goes on; without a terminal only what is unusual."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task: TaskID = self.progress.add_task("checking", total=None)
        self.failed = 0

    def said(self, text: str) -> None:
        """Print a line."""
        said = printable(f"contigua: {text}", "\n")
        self.console.print(said, markup=False, highlight=False, soft_wrap=True)

    def recording(self, workload: str) -> None:
        """Say which program is recorded."""
        self.progress.update(self.task, description=f"recording {workload}")

    def start(self, total: int, there: int) -> None:
        """Begin to count; what was there has cost no time."""
        self.progress.reset(self.task, total=total - there, description="points")

    def advance(self, record: Record, points: int) -> None:
        """Count."""
        self.failed += points if record.report is None else 0
        what = f"points ({self.failed} failed)" if self.failed else "points"
        self.progress.update(self.task, advance=points, description=what)


@click.command("sweep")
@click.argument("spec", type=FILE)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for everything.  [default: contigua-results/NAME]",
)
@click.option("--scheduler", metavar="ADDRESS", help="Use this Dask scheduler's workers.")
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    help="Processes to start here; 0: work in this one.  [default: one for each processor]",
)
@click.option("--retry-failed", is_flag=True, help="Run points that failed again, too.")
@click.option(
    "--shared-folder/--no-shared-folder",
    default=True,
    show_default=True,
    help="Let workers use the folder if they see it; what they do not see is sent to them.",
)
@click.option("--dry-run", is_flag=True, help="Check everything, list the points, run nothing.")
def sweep_command(
    spec: Path,
    output: Path | None,
    scheduler: str | None,
    workers: int | None,
    retry_failed: bool,
    shared_folder: bool,
    dry_run: bool,
) -> None:
    """Run every combination of the designs, machines, programs, ages, seeds and parameters in SPEC.

    Finished points are kept: the same command again runs what is left. docs/how-to/sweeps.md has
    the format of SPEC.
    """
    folder = output or default_folder(spec)
    if scheduler is not None and workers is not None:
        raise click.UsageError("--workers starts workers here; those of --scheduler are there")
    if dry_run:
        _show_points(spec, folder)
        return
    bar = Bar()
    options = Options(scheduler, workers, retry_failed, shared_folder)
    try:
        with bar.progress:
            done = run_sweep(spec, folder, options, bar)
    except KeyboardInterrupt:
        click.echo(
            f"\ncontigua: interrupted; finished points are in {folder}, "
            "and the same command carries on",
            err=True,
        )
        sys.exit(INTERRUPTED)
    _show_summary(folder)
    click.echo(done.sentence() + ".")
    click.echo(f"Results: {folder}/results (Parquet); contigua query {folder} 'describe results'")
    for how, times in done.incomplete.most_common(MESSAGES):
        click.echo(f"contigua: {times} incomplete: {how}", err=True)
    if done.failed:
        for message, times in done.failed.most_common(MESSAGES):
            said = f"contigua: {times} failed: {message}"
            click.echo(printable(said, "\n"), err=True)
        rest = len(done.failed) - MESSAGES
        more = f", {rest} other messages" if rest > 0 else ""
        click.echo(f"contigua: --retry-failed runs them again{more}", err=True)
    if done.failed or done.incomplete:
        sys.exit(1)


def _show_points(spec: Path, folder: Path) -> None:
    placed = look(make_plan(spec), folder)
    names = list(placed[0].planned.axes)
    varied = [
        name
        for name in names
        if len({json.dumps(point.planned.axes[name]) for point in placed}) > 1
    ]
    rows = [
        [*(_text(point.planned.axes[name]) for name in varied), point.status] for point in placed
    ]
    same = {name: placed[0].planned.axes[name] for name in names if name not in varied}
    console = Console()
    _print_rows(console, [*varied, "status"], rows)
    fixed = ", ".join(f"{name} {_text(value)}" for name, value in same.items())
    counts = Counter(point.status for point in placed)
    said = ", ".join(f"{count} {status}" for status, count in counts.items())
    if fixed:
        click.echo(printable(f"All have {fixed}."))
    click.echo(f"{len(placed)} points: {said}.")


def _show_summary(folder: Path) -> None:
    """Print means over seeds, one row for each combination of what varies."""
    frame = Sweep(folder).summary()
    if frame.empty:
        return
    margins = {name for name in frame if f"{name}_margin" in frame}
    counts = ("points", "failed")
    names = [name for name in frame if not str(name).endswith("_margin") and name not in counts]
    # What is the same in all rows tells none of them from another.
    telling = [name for name in names if frame[name].astype(str).nunique() > 1]
    figures = [name for name in telling if name in margins] or sorted(margins, key=names.index)
    shown = [name for name in telling if name not in margins] + figures
    if "failed" in frame:
        shown.append("failed")
    rows = []
    for row in frame.to_dict("records"):
        rows.append(
            [
                _mean(row[name], row[f"{name}_margin"]) if name in margins else _text(row[name])
                for name in shown
            ]
        )
    _print_rows(Console(), [str(name) for name in shown], rows)
    if int(frame["points"].max()) > 1:
        click.echo("Means over seeds, with 95 % confidence intervals.")


def _mean(value: float, margin: float | None) -> str:
    if value != value or value is None:
        return "-"
    text = f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return text if margin is None or margin != margin else f"{text} ± {margin:,.2g}"


def _text(value: Any) -> str:  # noqa: ANN401 - whatever an axis has
    if value is None or value != value:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _print_rows(console: Console, heads: list[str], rows: list[list[str]]) -> None:
    table = Table(*heads)
    limit = ROWS if console.is_terminal else len(rows)
    for row in rows[:limit]:
        table.add_row(*row)
    show(console, table)
    if len(rows) > limit:
        click.echo(f"... and {len(rows) - limit} more rows; a pipe or a file gets all.")


FORMATS = ("table", "csv", "json", "parquet")


@click.command("query")
@click.argument("source", type=FILE)
@click.argument("sql")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Form of the answer.  [default: after the output's ending, else table]",
)
@click.option("-o", "--output", type=FILE, help="File to write instead of standard output.")
def query_command(source: Path, sql: str, form: str | None, output: Path | None) -> None:
    """Run SQL on SOURCE, a sweep's folder or a file of `run --json`.

    The only table is `results`; `describe results` lists its columns. A column with a dot in its
    name is written in quotation marks.
    """
    if form is None:
        ending = output.suffix.removeprefix(".") if output is not None else ""
        form = ending if ending in FORMATS else "table"
    if form == "parquet" and output is None:
        raise click.UsageError("--format parquet needs -o FILE")
    if output is not None:
        check_writable(output)
    answer = query(source, sql)
    if form == "parquet" and output is not None:
        with needs("sweeps"):
            import pyarrow.parquet as pq

        with writing(output) as file:
            pq.write_table(answer, file, compression="zstd")
    elif form == "table" and output is None:
        _print_rows(Console(), answer.column_names, _rows(answer))
    elif output is not None:
        write_whole(output, _written(answer, form))
    else:
        click.echo(_written(answer, form), nl=False)


def _rows(answer: pa.Table) -> list[list[str]]:
    rows = answer.to_pylist()
    return [[_short(_text(row[name])) for name in answer.column_names] for row in rows]


def _short(text: str) -> str:
    """Keep whole reports out of tables; other forms have everything."""
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _written(answer: pa.Table, form: str) -> str:
    if form == "json":
        return json.dumps(answer.to_pylist(), indent=1, default=str) + "\n"
    if form == "csv":
        with needs("sweeps"):
            import pyarrow.csv

        buffer = io.BytesIO()
        pyarrow.csv.write_csv(answer, buffer)
        return buffer.getvalue().decode()
    file = io.StringIO()
    _print_rows(Console(file=file), answer.column_names, _rows(answer))
    return file.getvalue()
