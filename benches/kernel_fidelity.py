"""Run the experiment kernel-fidelity and write its tables into docs/validation.md.

    benches/kernel_fidelity.py [FOLDER] [--full]

With a folder, the figures of a run that is there already are written (`contigua experiment run
kernel-fidelity -o FOLDER`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "validation.md"
MARKS = ("<!-- kernel-fidelity:begin -->", "<!-- kernel-fidelity:end -->")


def run(folder: str, scale: str) -> None:
    """Run the experiment."""
    contigua = Path(sys.executable).with_name("contigua")
    command = [contigua, "experiment", "run", "kernel-fidelity", scale, "-o", folder]
    if subprocess.run(command).returncode:
        sys.exit("the experiment failed")


def lines(figures: dict[str, Any]) -> list[str]:
    """Return the figures and the tables as Markdown."""
    written = ["| figure | ours | tolerance |", "|:--|--:|--:|"]
    for figure in figures["figures"]:
        unit = f" {figure['unit']}" if figure["unit"] else ""
        written.append(
            f"| {figure['label']} | {figure['ours']:.2f}{unit} | {figure['tolerance']:g}{unit} |"
        )
    for table in figures["tables"]:
        rows = [table["heads"], [":--", *["--:"] * (len(table["heads"]) - 1)], *table["rows"]]
        written += ["", f"**{table['title']}**", ""]
        written += ["| " + " | ".join(row) + " |" for row in rows]
    return [*written, "", *figures["notes"]]


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
