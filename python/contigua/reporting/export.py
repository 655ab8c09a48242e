"""The plots and tables of a report as files in a folder, drawn without a browser."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from contigua.files import FileError, write_each
from contigua.reporting import tables, vega
from contigua.reporting.cases import Runs
from contigua.reporting.plots import MEASURE, Plot, Spec, colored, legend_pixels, plots
from contigua.themes import LIGHT

#: Width of a plot's bars in a file, in pixels; a PNG has twice as many.
WIDTH = 720
SCALE = 2


def export(runs: Runs, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write what a report shows as files.

    Parameters
    ----------
    runs
        What ran.
    folder
        Where the files go; it is made.
    formats
        ``"png"`` and ``"svg"`` draw each plot, as it first appears on the page, in its light
        colors; ``"csv"`` writes the numbers behind each plot and each table.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    FileError
        When some cannot be written; the others are.
    """
    # All is drawn before anything is written.
    contents = dict(_files(runs, formats))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: {error.strerror}; give another folder to -o") from error
    write_each({folder / name: data for name, data in contents.items()})
    return [folder / name for name in contents]


def _files(runs: Runs, formats: Sequence[str]) -> Iterator[tuple[str, str | bytes]]:
    for plot in plots(runs):
        if "svg" in formats:
            yield f"{plot.name}.svg", vega.svg(_fixed(plot.spec))
        if "png" in formats:
            yield f"{plot.name}.png", vega.png(_fixed(plot.spec), SCALE)
        if "csv" in formats:
            yield f"{plot.name}.csv", _plot_csv(runs, plot)
    if "csv" in formats:
        for table in (
            tables.whole_table(runs),
            tables.differences(runs),
            tables.common(runs),
        ):
            heads = [head or "key" for head in table.heads]
            yield (
                f"{table.name}.csv",
                _csv(
                    heads,
                    [[c.text if c.value is None else c.value for c in row] for row in table.rows],
                ),
            )


def _fixed(spec: Spec) -> Spec:
    """Return a specification that needs no page: its own width and colors."""
    # Without autosize: a fitted width would change the legend's rows after they were measured.
    own = {"width": WIDTH, "autosize": "pad", "padding": 12, "background": LIGHT.paper}
    named = json.loads(json.dumps(colored(spec)))
    chosen = {param["name"]: param["value"] for param in spec["params"]}
    for layer in named["layer"]:
        color = layer["encoding"].get("color") or {}
        if color.get("legend"):
            columns = WIDTH // legend_pixels(color["scale"]["domain"])
            color["legend"]["columns"] = max(1, columns)
        across = layer["encoding"].get("x", {})
        if across.get("title") == MEASURE:
            across["title"] = chosen[MEASURE.removeprefix("@")]
    return {**named, **own}


def _plot_csv(runs: Runs, plot: Plot) -> str:
    """Return the numbers behind a plot, a line for each bar's part."""
    more = [name for name in ("size", "when") if name in plot.rows[0]]
    heads = ["design", *runs.axes, *more, "part", "value"]
    where = {run.label: run.where for run in runs.all}
    return _csv(
        heads,
        [
            [
                row["design"],
                *(where[row["label"]][axis] for axis in runs.axes),
                *(row[name] for name in more),
                row["part"],
                row["value"],
            ]
            for row in plot.rows
        ],
    )


def _csv(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(rows)
    return file.getvalue()
