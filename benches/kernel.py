"""Run the experiment contiguitas-kernel and write its tables into docs/kernel.md.

    benches/kernel.py [FOLDER] [--full]

With a folder, the figures of a run that is there already are written (`contigua experiment run
contiguitas-kernel -o FOLDER`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "kernel.md"
MARKS = ("<!-- contiguitas-kernel:begin -->", "<!-- contiguitas-kernel:end -->")


def run(folder: str, scale: str) -> None:
    """Run the experiment."""
    contigua = Path(sys.executable).with_name("contigua")
    command = [contigua, "experiment", "run", "contiguitas-kernel", scale, "-o", folder]
    if subprocess.run(command).returncode:
        sys.exit("the experiment failed")


def lines(figures: dict[str, Any]) -> list[str]:
    """Return the tables and the notes as Markdown."""
    told = []
    for table in figures["tables"]:
        sides = [":--", ":--", *["--:"] * (len(table["heads"]) - 2)]
        told += [f"**{table['title']}**", ""]
        told += ["| " + " | ".join(row) + " |" for row in [table["heads"], sides, *table["rows"]]]
        told.append("")
    inputs = figures["inputs"]
    return [
        *told,
        f"Guests of {inputs['memory_mib']} MiB, {inputs['rounds']} waves of about 310 MiB. "
        + " ".join(figures["notes"]),
    ]


def main() -> None:
    """Write the tables."""
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
