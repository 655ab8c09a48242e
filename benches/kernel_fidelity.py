"""Run the experiment kernel-fidelity and write a summary of its tables into docs/validation.md.

    benches/kernel_fidelity.py [FOLDER] [--full]

With a folder, the figures of a run that is there already are written (`contigua experiment run
kernel-fidelity -o FOLDER`, which prints the tables of each look).
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from documents import rows, write

#: Heads of the table, which has a row for each record.
HEADS = [
    "record",
    "off by orders, mean",
    "unmovable a pageblock, off by pages, mean",
    "polluted 2 MB blocks: kernel / Linux / Contiguitas",
    "pages compacted: kernel / Linux",
    "per-CPU pages at the end: kernel / Linux",
]


def lines(figures: dict[str, Any]) -> list[str]:
    """Return the figures, and a row for each record, as Markdown."""
    written = ["| value | ours | tolerance |", "|:--|--:|--:|"]
    for figure in figures["figures"]:
        unit = f" {figure['unit']}" if figure["unit"] else ""
        written.append(
            f"| {figure['label']} | {figure['ours']:.2f}{unit} | {figure['tolerance']:g}{unit} |"
        )
    tables = figures["tables"]
    records = [row(*tables[at : at + 3]) for at in range(0, len(tables), 3)]
    return [*written, "", *rows({"heads": HEADS, "rows": records})]


def row(distances: dict[str, Any], polluted: dict[str, Any], counted: dict[str, Any]) -> list[str]:
    """Sum up a record's three tables: means over all looks but the first, and the last look."""

    def column(head: str) -> list[str]:
        at = distances["heads"].index(head)
        return [look[at] for look in distances["rows"][1:]]

    (moved,) = (row for row in counted["rows"] if row[0] == "pages moved by compaction")
    kernel, simulated = (column(f"per-CPU, {which}")[-1] for which in ("kernel", "simulated"))
    return [
        distances["title"].partition(":")[0],
        f"{fmean(map(float, column('orders'))):.2f}",
        f"{fmean(map(float, column('unmovable a pageblock'))):.1f}",
        polluted["rows"][-1][1],
        f"{moved[1]} / {moved[2]}",
        f"{kernel} / {simulated}",
    ]


if __name__ == "__main__":
    write("kernel-fidelity", "validation.md", __doc__, lines)
