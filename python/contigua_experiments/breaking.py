"""Experiments with their mechanisms taken out: verdicts that stand all the same cannot fail.

A page says of each break which verdicts noticed it: ``docs/breaks.md``, and a ``.csv`` beside it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from contigua import _engine
from contigua_experiments.base import Definition, ExperimentError, Scale
from contigua_experiments.everything import Entry, run_broken, run_everything
from contigua_experiments.figures import VERDICTS


@dataclass(frozen=True)
class Row:
    """A figure with its experiment broken, and whether its verdict notices.

    Attributes
    ----------
    experiment, broken, key, figure
        Name of the experiment, what was broken, and the figure's key and label.
    sound, sound_verdict
        The figure's value and verdict without the break.
    ours, verdict
        Its value and verdict with the break.
    told
        ``"noticed"`` where the verdict got worse, ``"NOT NOTICED"`` where it did not, ``"was off"``
        where there was nothing to lose.
    """

    experiment: str
    broken: str
    key: str
    figure: str
    sound: str
    sound_verdict: str
    ours: str
    verdict: str
    told: str


HEADS = tuple(one.name for one in fields(Row))
#: Word for a verdict that a break leaves standing.
UNNOTICED = "NOT NOTICED"
#: Verdicts that a break can take away.
GOOD = ("within tolerance", "same shape", "holds")


def run_breaks(
    definition: Definition,
    scale: Scale,
    folder: Path,
    *,
    jobs: int | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> Iterator[Row]:
    """Run an experiment sound, then with each of its breaks, and yield what became of the figures.

    What has finished with equal inputs and code does not run again.

    Raises
    ------
    ExperimentError
        When a run ends without figures.
    FileError
        When a folder cannot be made or written to.
    """
    if not definition.breaks:
        raise ExperimentError(f"{definition.name} has no [[breaks]] in its file")
    told(f"{definition.name}: as it is")
    sound = _figures(next(iter(run_everything([definition], scale, folder, jobs=jobs))))
    for number, broken in enumerate(definition.breaks, 1):
        told(f"{definition.name}: {broken.what}")
        found = _figures(run_broken(definition, number, scale, folder, jobs))
        for key in broken.figures:
            before, after = sound[key], found[key]
            yield Row(definition.name, broken.what, key, *before, *after[1:], _told(before, after))


def _figures(entry: Entry) -> dict[str, tuple[str, str, str]]:
    """Return label, value and verdict of each figure by its key."""
    if entry.result is None:
        reason = entry.record.reason if entry.record is not None else ""
        raise ExperimentError(f"{entry.definition.name} has no figures: {reason}")
    values = entry.result.outcome.values
    return {
        figure.key: (figure.label, figure.show(values.get(figure.key)), verdict)
        for figure, verdict in entry.result.judged()
    }


def _told(before: Sequence[str], after: Sequence[str]) -> str:
    if before[2] not in GOOD:
        return "was off"
    # No value is no verdict on the mechanism.
    if after[2] != "no data" and VERDICTS.index(after[2]) > VERDICTS.index(before[2]):
        return "noticed"
    return UNNOTICED


def read_rows(text: str) -> list[Row]:
    """Read rows back from the ``.csv``."""
    return [Row(**one) for one in csv.DictReader(io.StringIO(text))]


def merged(before: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Return rows of a table whose experiments' rows give way to new ones, by experiment."""
    new = {row.experiment for row in rows}
    kept = [row for row in before if row.experiment not in new]
    return sorted([*kept, *rows], key=lambda row: row.experiment)


def table(rows: Sequence[Row]) -> str:
    """Write rows as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADS)
    writer.writerows(astuple(row) for row in rows)
    return out.getvalue()


def document(rows: Sequence[Row], scale: Scale, missing: Sequence[str] = ()) -> str:
    """Write rows as a page, with the experiments whose breaks did not run yet."""
    counts = {told: sum(row.told == told for row in rows) for told in ("noticed", UNNOTICED)}
    off = len(rows) - sum(counts.values())
    lines = [
        "# Verdicts with the mechanism taken out",
        "",
        f"{counts['noticed']} verdicts of {len({row.experiment for row in rows})} experiments got "
        f"worse when what they claim was broken, {counts[UNNOTICED]} did not"
        + (f", {off} had nothing to lose." if off else "."),
        "",
        f"Written by `make breaks` (`contigua experiment break NAME --write FILE`), version "
        f"{_engine.VERSION}, scale {scale}. A break replaces a preset by one without the "
        "mechanism, or changes a key of the preset or of the inputs; the experiments' files have "
        "them under `[[breaks]]`. From best to worst: *within tolerance*, *same shape*, *cannot "
        "tell*, *differs*; *holds*, *fails*.",
        *(["", f"Not run yet: {', '.join(missing)}."] if missing else []),
        "",
        "| experiment | broken | figure | as it is | broken | told |",
        "|---|---|---|---|---|---|",
        *(
            f"| {row.experiment} | {row.broken} | {row.figure} | {row.sound}, {row.sound_verdict} "
            f"| {row.ours}, {row.verdict} | {row.told} |"
            for row in rows
        ),
        "",
    ]
    return "\n".join(lines)
