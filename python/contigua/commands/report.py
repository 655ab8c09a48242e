"""``contigua report``: one page, or plots and tables as files, of what ran."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from contigua.files import Outputs, check_writable, is_standard_output
from contigua.printing import printable
from contigua.reporting.writing import FORMATS, Input, ReportError, Written, told, write_report
from contigua.sweeps.store import read_results


class Formats(click.ParamType[tuple[str, ...]]):
    """Names of formats, separated by commas."""

    name = "formats"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, ...]:
        """Return the names, each once, in the order of :data:`FORMATS`."""
        names = {name.strip().lower() for name in str(value).split(",") if name.strip()}
        unknown = sorted(names - set(FORMATS))
        if unknown or not names:
            self.fail(f"{', '.join(unknown) or 'nothing'}; give some of {', '.join(FORMATS)}")
        return tuple(name for name in FORMATS if name in names)


@click.command("report")
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The page; with other formats than html a folder.  [default: report.html, or report]",
)
@click.option(
    "--format",
    "formats",
    type=Formats(),
    default="html",
    show_default=True,
    metavar="NAMES",
    help="html, png, svg, csv, separated by commas: the page, its plots, its numbers.",
)
@click.option("--title", help="The page's title; by default the programs and designs.")
def report_command(
    results: tuple[Path, ...],
    output: Path | None,
    formats: tuple[str, ...],
    title: str | None,
) -> None:
    """Show what RESULTS found, files of `run --json` and folders of sweeps, on one page.

    The page is one file that needs no network. What matters most is printed, too.
    """
    alone = formats == ("html",)
    output = output or Path("report.html" if alone else "report")
    if alone:
        check_writable(output)
    inputs = [_input(path) for path in results]
    outputs = Outputs()
    taken = alone and is_standard_output(output)
    with outputs.each():
        for line in told(inputs):
            click.echo(printable(line), err=taken)
    with outputs.each():
        written = _drawn(inputs, output, formats, title)
        if alone or len(written.files) == 1:
            click.echo(f"Report: {written.files[0]}", err=taken)
        else:
            click.echo(f"Report: {len(written.files)} files in {output}")
    sys.exit(outputs.status())


def _input(path: Path) -> Input:
    """Read a file of ``contigua run --json``, or the folder of a sweep."""
    results = read_results(path)
    if not len(results):
        why = "run a design first"
        if results.failures:
            first = results.failures[0]["error"]
            why = f"all {len(results.failures)} points failed, the first one: {first}"
        raise ReportError(f"{path}: has no finished run to report on; {why}")
    # A folder such as `.` has a name only when it is resolved.
    return Input(path.resolve().name, results.reports, results.axes, results.failures)


def _drawn(
    inputs: list[Input], output: Path, formats: tuple[str, ...], title: str | None
) -> Written:
    if sys.stderr.isatty():
        click.echo("drawing", err=True, nl=False)
    try:
        return write_report(inputs, output, formats, title)
    finally:
        if sys.stderr.isatty():
            click.echo("\r\x1b[K", err=True, nl=False)
