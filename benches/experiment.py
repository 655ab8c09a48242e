"""Run an experiment and write its tables into the page of documentation that has them.

    benches/experiment.py NAME [FOLDER] [--full]

With a folder, the values of a run that is there already are written (`contigua experiment run NAME
-o FOLDER`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from documents import replace, rows

#: Heads of the table, which has a row for each record.
RECORD_HEADS = [
    "record",
    "off by orders, mean",
    "unmovable a pageblock, off by pages, mean",
    "polluted 2 MB blocks: kernel / Linux / Contiguitas",
    "pages compacted: kernel / Linux",
    "per-CPU pages at the end: kernel / Linux",
]


def kernel(figures: dict[str, Any]) -> list[str]:
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


def kernel_fidelity(figures: dict[str, Any]) -> list[str]:
    """Return the figures, and a row for each record, as Markdown."""
    written = ["| value | ours | tolerance |", "|:--|--:|--:|"]
    for figure in figures["figures"]:
        unit = f" {figure['unit']}" if figure["unit"] else ""
        ours, most = (f"{figure[key]:.2f}{unit}" for key in ("ours", "at_most"))
        written.append(f"| {figure['label']} | {ours} | {most} |")
    tables = figures["tables"]
    records = [row(*tables[at : at + 3]) for at in range(0, len(tables), 3)]
    return [*written, "", *rows({"heads": RECORD_HEADS, "rows": records})]


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


def guard(figures: dict[str, Any]) -> list[str]:
    """Return the table and the notes as Markdown."""
    (table,) = figures["tables"]
    demand = figures["inputs"]
    return [
        *rows(table),
        "",
        f"{demand['pinned_mib']} MiB of programs' memory are pinned in pages of 4 KB. "
        f"{demand['resident_mib']} MiB of kernel memory stay, among {demand['churn_mib']} MiB that "
        f"go; then {demand['burst_mib']} MiB come at {demand['rate_mib']} MiB a second, and go.",
        # What single guests printed is on the experiment's page only.
        *(note for note in figures["notes"] if not note.startswith("Linux ")),
    ]


def sampling(figures: dict[str, Any]) -> list[str]:
    """Return the figures and the tables as Markdown."""
    written = [f"Level `--{figures['scale']}`.", "", "| figure | goal | found |", "|:--|--:|--:|"]
    for figure in figures["figures"]:
        unit, least, most = (figure[key] for key in ("unit", "at_least", "at_most"))
        goal = f"≤ {most:g}" if least is None else f"≥ {least:g}"
        written.append(f"| {figure['label']} | {goal} {unit} | {figure['ours']:.2f} {unit} |")
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


def subrelease(figures: dict[str, Any]) -> list[str]:
    """Return the experiment's first table, with its notes; its page has the others."""
    host = f"Linux {platform.release()}, {os.cpu_count()} cores."
    said = " ".join([*figures["notes"], host])
    return [said, "", *rows(by_allocator(figures["tables"][0]))]


def by_allocator(means: dict[str, Any]) -> dict[str, Any]:
    """Put both orders of removal into the cells of one row for each allocator."""
    found: dict[str, list[list[str]]] = {}
    for allocator, _, *values in means["rows"]:
        found.setdefault(allocator, []).append(values)
    orders = " / ".join(dict.fromkeys(row[1] for row in means["rows"]))
    return {
        "heads": [f"means over the run, {orders}", *means["heads"][2:]],
        "rows": [
            [allocator, *(" / ".join(cells) for cells in zip(*values, strict=True))]
            for allocator, values in found.items()
        ],
    }


#: The page of each experiment, which has marks with its name, and what makes lines for it.
EXPERIMENTS: dict[str, tuple[str, Callable[[dict[str, Any]], Iterable[str]]]] = {
    "contiguitas-kernel": ("kernel.md", kernel),
    "guard-vm": ("guard.md", guard),
    "kernel-fidelity": ("validation.md", kernel_fidelity),
    "sampling-error": ("validation.md", sampling),
    "subrelease-redis": ("design/page-heap.md", subrelease),
}


def main() -> None:
    """Run the experiment, or take a run that is there already, and write what it found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=EXPERIMENTS)
    parser.add_argument("folder", nargs="?", help="a run that is there already")
    parser.add_argument("--full", action="store_const", const="--full", default="--quick")
    arguments = parser.parse_args()
    document, lines = EXPERIMENTS[arguments.name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or temporary
        if arguments.folder is None:
            contigua = Path(sys.executable).with_name("contigua")
            command = [contigua, "experiment", "run", arguments.name, arguments.full, "-o", folder]
            if subprocess.run(command).returncode:
                sys.exit("the experiment failed")
        figures = json.loads((Path(folder) / "figures.json").read_text())
    replace(arguments.name, document, lines(figures))


if __name__ == "__main__":
    main()
