"""``contigua trace``: what traces hold."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import click
from rich.console import Console

from contigua import _engine
from contigua.commands.options import key
from contigua.terminal import Table, show

#: Columns that are words rather than counts, or that few want.
HIDDEN = ("version", "file_type")


@click.group("trace")
def trace_commands() -> None:
    """Say what traces hold."""


@trace_commands.command("info")
@click.argument(
    "traces",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, path_type=Path),
    metavar="TRACE...",
)
@key("trace_format")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv"]),
    default="table",
    show_default=True,
    help="What is printed.",
)
def info_command(traces: tuple[Path, ...], trace_format: str, form: str) -> None:
    """Count instructions, loads, stores and pages of traces, file by file."""
    rows: list[dict[str, str | int]] = []
    for trace in traces:
        for _, file, counts, threads in _engine.trace_info(trace, trace_format):
            known = dict(counts)
            row: dict[str, str | int] = {"file": Path(file).name}
            row |= {key: count for key, count in known.items() if key not in HIDDEN}
            row["thread"] = threads[0] if len(threads) == 1 else f"{len(threads)} threads"
            row |= {key: known[key] for key in HIDDEN if key in known}
            rows.append(row)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if form == "csv":
        writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return
    table = Table(box=None, pad_edge=False)
    for column in columns:
        title = column.replace("_", " ")
        table.add_column(title, justify="left" if column == "file" else "right")
    for row in rows:
        table.add_row(*(_shown(column, row.get(column, "")) for column in columns))
    show(Console(), table)


def _shown(column: str, value: str | int) -> str:
    if isinstance(value, str):
        return value
    if column == "file_type":
        return f"{value:#x}"
    return str(value) if column == "thread" else f"{value:,}"
