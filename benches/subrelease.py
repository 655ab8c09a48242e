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

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/design/page-heap.md"
BEGIN, END = "<!-- subrelease:begin -->\n", "<!-- subrelease:end -->\n"


def table(found: dict[str, object]) -> str:
    """Return the experiment's first table as Markdown, with its notes; its page has the others."""
    notes, tables = found["notes"], found["tables"]
    assert isinstance(notes, list) and isinstance(tables, list)
    parts = [*notes, f"Linux {platform.release()}, {os.cpu_count()} cores."]
    for one in tables[:1]:
        rows = [one["heads"], ["---"] * len(one["heads"]), *one["rows"]]
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        parts.append(one["title"] + ":\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


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
