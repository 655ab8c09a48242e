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
    for table in figures["tables"]:
        written += ["", f"**{table['title']}**", "", *rows(table)]
    return [*written, "", *figures["notes"]]


if __name__ == "__main__":
    write("sampling-error", "validation.md", __doc__, lines)
