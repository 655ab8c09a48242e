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
    # Where borders end up is on the experiment's page only.
    for table in (one for one in figures["tables"] if "held" not in one["heads"]):
        table = latencies(table) if "probes" in table["heads"] else table
        heads = [table["title"], *table["heads"][1:]]
        written += [*rows(table | {"heads": heads}, names=2), ""]
    inputs = figures["inputs"]
    return [
        *written,
        f"Guests of {inputs['memory_mib']} MiB, {inputs['rounds']} waves of about 310 MiB.",
        *figures["notes"],
    ]


def latencies(table: dict[str, Any]) -> dict[str, Any]:
    """Put the latencies of unmovable and of movable pages into one row for each run."""
    scenario, kernel, _, probes, *spread = table["heads"]
    by_run: dict[tuple[str, str], list[str]] = {}
    for where, which, page, count, *values in table["rows"]:
        by_run.setdefault((where, which), [count]).append(f"{page}: {' / '.join(values)}")
    heads = [scenario, kernel, probes, *[" / ".join(spread)] * 2]
    return table | {"heads": heads, "rows": [[*run, *cells] for run, cells in by_run.items()]}


if __name__ == "__main__":
    write("contiguitas-kernel", "kernel.md", __doc__, lines)
