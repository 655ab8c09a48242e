"""The account of all experiments: ``docs/reproduction.md``, which a run of all of them writes."""

from __future__ import annotations

from collections.abc import Sequence

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
    by_name = {entry.definition.name: entry for entry in entries}
    counts: dict[Verdict, int] = dict.fromkeys(VERDICTS, 0)
    for entry in entries:
        for verdict, count in (entry.result.verdicts() if entry.result else {}).items():
            counts[verdict] += count
    lines = [
        "# What is reproduced",
        "",
        f"Written by `contigua experiment run all --{scale} --write docs/reproduction.md` "
        f"(`make experiments` does it), version {_engine.VERSION}, scale {scale}; changes by hand "
        "are lost. A *fitted* figure was used to choose inputs and is no result; all others are "
        "*predicted*. A figure is reproduced within its tolerance, has the same shape within wider "
        "limits that its experiment's file states, and differs beyond them.",
        "",
        f"Of {sum(counts.values())} predicted figures: "
        + ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        + ".",
        "",
        "## The papers' figures and tables",
        "",
        *_table(
            ["", "", "what it shows", "experiment", "predicted figures"],
            [
                [
                    item.paper,
                    item.number,
                    item.shows,
                    ", ".join(f"[{name}](#{name})" for name in item.experiments) or "none",
                    "; ".join(told(by_name[name]) for name in item.experiments if name in by_name)
                    or item.why,
                ]
                for item in catalogue.items
            ],
        ),
        "",
        "## Beyond the papers",
        "",
        *_table(
            ["experiment", "question", "predicted figures"],
            [
                [f"[{name}](#{name})", question, told(by_name[name]) if name in by_name else ""]
                for name, question in catalogue.beyond.items()
            ],
        ),
        "",
        "## The experiments",
    ]
    for entry in entries:
        lines += ["", *_section(entry)]
    return "\n".join(lines) + "\n"


def _section(entry: Entry) -> list[str]:
    one = entry.definition
    lines = [
        f"### {one.name}",
        "",
        f"{one.title}. Source: {one.source}. Needs {one.needs}.",
        "",
    ]
    if entry.result is None:
        return [*lines, f"No figures: {told(entry)}."]
    sources = [figure.source for figure in one.figures]
    rows = [[*row, source] for row, source in zip(entry.result.rows(), sources, strict=True)]
    lines += _table([*Result.HEADS, "source"], rows)
    known = dict(entry.result.reasons())
    for row in entry.result.rows():
        if row[-1] != "reproduced" and row[-2] == "predicted":
            lines += ["", f"*{row[0]}*, {row[-1]}: {known.get(row[0], UNEXPLAINED)}."]
    return [*lines, "", f"Fitted: {one.fitting.strip()}"]


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
