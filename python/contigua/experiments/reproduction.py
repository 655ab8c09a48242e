"""The account of all experiments, which a run of all writes: ``docs/reproduction.md`` and ``.csv``.

The page has outcomes, and the figures that differ; the table of values has all figures.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from contigua import _engine
from contigua.experiments.base import VERDICTS, Result, Scale, Verdict
from contigua.experiments.catalogue import Catalogue
from contigua.experiments.everything import Entry

#: What is said of a figure that is not reproduced, where its experiment's file gives no reason.
UNEXPLAINED = "not examined yet"


def told(entry: Entry) -> str:
    """Say in a few words how an experiment ended and how its predicted figures fared."""
    if entry.result is not None:
        counts = entry.result.verdicts()
        fared = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        return fared or "fitted figures only"
    if entry.record is not None:
        return f"{entry.record.status}: {entry.record.reason}"
    return f"left out: {entry.definition.apart}" if entry.definition.apart else "not run"


def unexplained(entries: Sequence[Entry]) -> list[str]:
    """Return the predicted figures that are not reproduced and whose files do not say why."""
    return [
        f"{entry.definition.name}: {figure.key}"
        for entry in entries
        if entry.result is not None
        for figure in entry.definition.figures
        if not figure.differs
        and figure.judge(entry.result.outcome.values.get(figure.key)) != "reproduced"
    ]


def document(entries: Sequence[Entry], catalogue: Catalogue, scale: Scale) -> str:
    """Write the account in Markdown.

    Parameters
    ----------
    entries
        How each experiment ended, or that it did not run.
    catalogue
        The papers' figures and tables.
    scale
        At which the experiments ran.
    """
    counts: dict[Verdict, int] = dict.fromkeys(VERDICTS, 0)
    for entry in entries:
        for verdict, count in (entry.result.verdicts() if entry.result else {}).items():
            counts[verdict] += count
    repeats: dict[str, dict[str, list[str]]] = {}
    absent: dict[str, list[str]] = {}
    for item in catalogue.items:
        for name in item.experiments:
            repeats.setdefault(name, {}).setdefault(item.paper, []).append(item.number)
        if not item.experiments:
            absent.setdefault(item.paper, []).append(f"{item.number} ({item.shows}; {item.why})")
    lines = [
        "# Reproduction",
        "",
        f"Of {sum(counts.values())} predicted figures: "
        + ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        + ".",
        "",
        f"Written by `contigua experiment run all --{scale} --write docs/reproduction.md` "
        f"(`make experiments`), version {_engine.VERSION}, scale {scale}; manual changes are lost. "
        "A *fitted* figure was used to choose inputs and is not a result; all others are "
        "*predicted*. A figure is reproduced within its tolerance, has the same shape within the "
        "wider limits that its experiment's file states, and differs beyond them. "
        "[reproduction.csv](reproduction.csv) has every figure: the paper's value and ours, "
        "interval, tolerance, verdict, reason and source.",
        "",
        *_table(
            ["experiment", "reproduces", "what it shows", "predicted figures"],
            [
                [
                    entry.definition.name,
                    "; ".join(
                        f"{paper}: {', '.join(numbers)}"
                        for paper, numbers in repeats.get(entry.definition.name, {}).items()
                    )
                    or "no paper",
                    catalogue.beyond.get(entry.definition.name, entry.definition.title),
                    told(entry),
                ]
                for entry in entries
            ],
        ),
        "",
        "## Figures that differ",
        "",
        *_table(
            columns := ["experiment", "figure", "paper", "ours", "reason"],
            [
                [row[column] for column in columns]
                for row in _figures(entries)
                if row["role"] == "predicted" and row["verdict"] in ("differs", "no data")
            ],
        ),
        "",
        "## Fitted inputs",
        "",
        *(
            f"- *{entry.definition.name}*: {' '.join(entry.definition.fitting.split())}"
            for entry in entries
            if not entry.definition.fitting.startswith("nothing")
        ),
        "",
        "## Figures without an experiment",
        "",
        *(f"- {paper}: {', '.join(told)}." for paper, told in absent.items()),
    ]
    return "\n".join(lines) + "\n"


def values(entries: Sequence[Entry]) -> str:
    """Write every figure of the experiments that have run as CSV, a line each."""
    text = io.StringIO()
    heads = ["experiment", *Result.HEADS, "reason", "source"]
    writer = csv.DictWriter(text, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_figures(entries))
    return text.getvalue()


def _figures(entries: Sequence[Entry]) -> Iterator[dict[str, str]]:
    for entry in entries:
        if entry.result is None:
            continue
        reasons = dict(entry.result.reasons())
        for figure, row in zip(entry.definition.figures, entry.result.rows(), strict=True):
            named = dict(zip(Result.HEADS, row, strict=True))
            off = named["role"] == "predicted" and named["verdict"] != "reproduced"
            named["reason"] = reasons.get(figure.label, UNEXPLAINED) if off else ""
            yield {"experiment": entry.definition.name, **named, "source": figure.source}


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table whose cells cannot break it."""
    return [
        "| " + " | ".join(heads) + " |",
        "|" + "---|" * len(heads),
        *(
            "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) + " |"
            for row in rows
        ),
    ]
