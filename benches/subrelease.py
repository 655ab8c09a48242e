"""Write what `contigua experiment run subrelease-redis` found into docs/design/page-heap.md.

Run it as `.venv/bin/python benches/subrelease.py [FOLDER]` after the experiment; FOLDER is where
its page is, by default contigua-results/subrelease-redis. What was scaled down is written with it.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import documents

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/design/page-heap.md"
BEGIN, END = "<!-- subrelease:begin -->\n", "<!-- subrelease:end -->\n"


def table(found: dict[str, object]) -> str:
    """Return the experiment's first table as Markdown, with its notes; its page has the others."""
    notes, tables = found["notes"], found["tables"]
    assert isinstance(notes, list) and isinstance(tables, list)
    said = " ".join([*notes, f"Linux {platform.release()}, {os.cpu_count()} cores."])
    return "\n".join([said, "", *documents.rows(by_allocator(tables[0]))]) + "\n"


def by_allocator(means: dict[str, Any]) -> dict[str, Any]:
    """Put both orders of removal into the cells of one row for each allocator."""
    rows: dict[str, list[list[str]]] = {}
    for allocator, _, *values in means["rows"]:
        rows.setdefault(allocator, []).append(values)
    orders = " / ".join(dict.fromkeys(row[1] for row in means["rows"]))
    return {
        "heads": [f"means over the run, {orders}", *means["heads"][2:]],
        "rows": [
            [allocator, *(" / ".join(cells) for cells in zip(*values, strict=True))]
            for allocator, values in rows.items()
        ],
    }


def main() -> None:
    """Replace the generated part of the page."""
    default = ROOT / "contigua-results/subrelease-redis"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    found = json.loads((folder / "figures.json").read_text())
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + table(found) + END + after)


if __name__ == "__main__":
    main()
