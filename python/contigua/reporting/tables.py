"""The tables of a report: a row for each run, numbers kept beside what is written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from typing import Any

from contigua.presets import flatten
from contigua.reporting.cases import Runs
from contigua.table import shown, with_interval


@dataclass(frozen=True)
class Cell:
    """Text of a cell, and its sort key; text sorts as text."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes
    ----------
    name
        A short name, for files.
    heads
        Names of the columns.
    rows
        The cells.
    """

    name: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def main_table(runs: Runs) -> Table:
    """Return the figures that are compared most, those of the table of ``contigua run``."""
    return _table(runs, "figures", details=False)


def whole_table(runs: Runs) -> Table:
    """Return every figure, those of the table of ``contigua run --details``."""
    return _table(runs, "all-figures", details=True)


def _table(runs: Runs, name: str, *, details: bool) -> Table:
    used = list(chain.from_iterable(shown([run.summary for run in runs.all], details=details)))
    several = len(runs.all) > 1 and runs.timed
    heads = ["design", *runs.axes, *(["speed"] if several else [])]
    rows = []
    for run in runs.all:
        halves = run.intervals
        cells = [Cell(run.design), *(_from_text(run.where[axis]) for axis in runs.axes)]
        if several:
            speed = runs.speedup(run)
            cells.append(Cell("-" if speed is None else f"{speed:.3f}", speed))
        for figure in used:
            value = run.summary[figure.key]
            text = with_interval(figure, value, halves.get(figure.key))
            number = isinstance(value, int | float)
            cells.append(Cell(text, float(value) if number else None))
        rows.append(tuple(cells))
    return Table(name, (*heads, *(figure.label for figure in used)), tuple(rows))


def _from_text(text: str) -> Cell:
    try:
        return Cell(text, float(text))
    except ValueError:
        return Cell(text)


def differences(runs: Runs) -> Table:
    """Return what of the resolved configurations differs between runs: one column for each."""
    flats = _by_configuration(runs)
    keys = list(dict.fromkeys(key for flat in flats.values() for key in flat))
    differing = [
        key for key in keys if len({_said(flat.get(key, "-")) for flat in flats.values()}) > 1
    ]
    rows = [
        (Cell(key), *(Cell(_said(flat.get(key, "-"))) for flat in flats.values()))
        for key in differing
    ]
    return Table("configuration", ("", *flats), tuple(rows))


def common(runs: Runs) -> Table:
    """Return what of the resolved configurations is the same in all runs."""
    flats = list(_by_configuration(runs).values())
    rows = [
        (Cell(key), Cell(_said(value)))
        for key, value in flats[0].items()
        if all(key in flat and flat[key] == value for flat in flats)
    ]
    return Table("configuration-common", ("", "all runs"), tuple(rows))


#: Columns of differences beyond which only designs are compared: nobody reads more.
COLUMNS = 12


def _by_configuration(runs: Runs) -> dict[str, dict[str, Any]]:
    """Return each run's configuration, flat; of many runs, the first of each design."""
    chosen = {run.label: run for run in runs.all}
    if len(chosen) > COLUMNS:
        chosen = {run.design: run for run in reversed(runs.all)}
        chosen = {design: chosen[design] for design in runs.designs}
    found = {}
    for label, run in chosen.items():
        flat = flatten(run.values["config"])
        flat.pop("design_name")
        found[label] = flat
    return found


def _said(value: Any) -> str:  # noqa: ANN401 - JSON
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)
