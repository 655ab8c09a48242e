"""Run the experiment contiguitas-kernel and write its tables into docs/kernel.md.

    benches/kernel.py [FOLDER] [--full]

With a folder, the figures of a run that is there already are written (`contigua experiment run
contiguitas-kernel -o FOLDER`).
"""

from __future__ import annotations

from typing import Any

from documents import rows, write


def lines(figures: dict[str, Any]) -> list[str]:
    """Return the tables and the notes as Markdown."""
    written = []
    for table in figures["tables"]:
        written += [f"**{table['title']}**", "", *rows(table, names=2), ""]
    inputs = figures["inputs"]
    return [
        *written,
        f"Guests of {inputs['memory_mib']} MiB, {inputs['rounds']} waves of about 310 MiB.",
        *figures["notes"],
    ]


if __name__ == "__main__":
    write("contiguitas-kernel", "kernel.md", __doc__, lines)
