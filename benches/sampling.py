"""Run the experiment sampling-error and write its tables into docs/validation.md.

    benches/sampling.py [FOLDER] [--full]

With a folder, the figures of a run that is there already are written (`contigua experiment run
sampling-error --full -o FOLDER`).
"""

from __future__ import annotations

from typing import Any

from documents import rows, write


def lines(figures: dict[str, Any]) -> list[str]:
    """Return the figures and the tables as Markdown."""
    written = [f"Level `--{figures['scale']}`.", "", "| figure | goal | found |", "|:--|--:|--:|"]
    for figure in figures["figures"]:
        sign = {"at_least": "≥", "at_most": "≤"}[figure["relation"]]
        unit = figure["unit"]
        written.append(
            f"| {figure['label']} | {sign} {figure['paper']:g} {unit} "
            f"| {figure['ours']:.2f} {unit} |"
        )
    first, *others = figures["tables"]
    written += ["", f"**{first['title']}**", "", *rows(first)]
    for table in others:
        written += ["", f"**{table['title']}**: {summary(table)}"]
    return [*written, "", *figures["notes"]]


def summary(table: dict[str, Any]) -> str:
    """Return the worst program and the sums of a table."""
    heads = table["heads"]
    errors = [heads.index(head) for head in heads if head.endswith("largest error")]
    inside = [at for at, head in enumerate(heads) if head == "inside"]
    found = []
    for what, error, within in zip(("cycles", "speed-ups"), errors, inside, strict=True):
        worst = max(table["rows"], key=lambda row: float(row[error].rstrip(" %")))
        cases = [[int(part) for part in row[within].split(" of ")] for row in table["rows"]]
        held, of = map(sum, zip(*cases, strict=True))
        found.append(
            f"{what} are off by {worst[error]} at most ({worst[0]}), inside their interval in "
            f"{held} of {of} cases"
        )
    return "; ".join(found) + "."


if __name__ == "__main__":
    write("sampling-error", "validation.md", __doc__, lines)
