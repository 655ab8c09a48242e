"""Run the experiment guard-vm and write its table into docs/guard.md.

    benches/guard.py [FOLDER] [--full]

With a folder, the figures of a run that is there already are written (`contigua experiment run
guard-vm -o FOLDER`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "guard.md"
MARKS = ("<!-- guard-vm:begin -->", "<!-- guard-vm:end -->")


def run(folder: str, scale: str) -> None:
    """Run the experiment."""
    contigua = Path(sys.executable).with_name("contigua")
    command = [contigua, "experiment", "run", "guard-vm", scale, "-o", folder]
    if subprocess.run(command).returncode:
        sys.exit("the experiment failed")


def lines(figures: dict[str, Any]) -> list[str]:
    """Return the table and the notes as Markdown."""
    (table,) = figures["tables"]
    rows = [table["heads"], [":--", *["--:"] * (len(table["heads"]) - 1)], *table["rows"]]
    demand = figures["inputs"]
    return [
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        f"{demand['pinned_mib']} MiB of programs' memory are pinned in pages of 4 KB. "
        f"{demand['resident_mib']} MiB of kernel memory stay, among {demand['churn_mib']} MiB that "
        f"go; then {demand['burst_mib']} MiB come at {demand['rate_mib']} MiB a second, and go.",
        *(f"{note}" for note in figures["notes"]),
    ]


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", help="figures of a run that is there already")
    parser.add_argument("--full", action="store_const", const="--full", default="--quick")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or temporary
        if arguments.folder is None:
            run(folder, arguments.full)
        figures = json.loads((Path(folder) / "figures.json").read_text())
    text = DOCUMENT.read_text()
    before, rest = text.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    table = "\n".join(lines(figures))
    DOCUMENT.write_text(f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
