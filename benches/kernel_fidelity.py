"""Run the experiment kernel-fidelity and write its tables into docs/validation.md.

    benches/kernel_fidelity.py [FOLDER] [--full]

With a folder, the figures of a run that is there already are written (`contigua experiment run
kernel-fidelity -o FOLDER`).
"""

from __future__ import annotations

from typing import Any

from documents import rows, write


def lines(figures: dict[str, Any]) -> list[str]:
    """Return the figures and the tables as Markdown."""
    written = ["| figure | ours | tolerance |", "|:--|--:|--:|"]
    for figure in figures["figures"]:
        unit = f" {figure['unit']}" if figure["unit"] else ""
        written.append(
            f"| {figure['label']} | {figure['ours']:.2f}{unit} | {figure['tolerance']:g}{unit} |"
        )
    for table in figures["tables"]:
        written += ["", f"**{table['title']}**", "", *rows(table)]
    return [*written, "", *figures["notes"]]


if __name__ == "__main__":
    write("kernel-fidelity", "validation.md", __doc__, lines)
