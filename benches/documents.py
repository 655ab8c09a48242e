"""Helpers of writers of tables into documents: an experiment's run, and text between two marks."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

DOCUMENTS = Path(__file__).resolve().parent.parent / "docs"


def rows(table: dict[str, Any], names: int = 1) -> list[str]:
    """Return a table as Markdown; so many of its first columns are names, the rest numbers."""
    sides = [":--"] * names + ["--:"] * (len(table["heads"]) - names)
    return ["| " + " | ".join(row) + " |" for row in [table["heads"], sides, *table["rows"]]]


def replace(name: str, document: str, lines: Iterable[str]) -> None:
    """Put lines between the two marks of a name in a file of ``docs/``."""
    begin, end = (f"<!-- {name}:{mark} -->" for mark in ("begin", "end"))
    path = DOCUMENTS / document
    before, rest = path.read_text().split(begin)
    _, after = rest.split(end)
    text = "\n".join(lines)
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def write(
    experiment: str, document: str, about: str, lines: Callable[[dict[str, Any]], Iterable[str]]
) -> None:
    """Run an experiment, or take a run that is there already, and write what it found.

    Parameters
    ----------
    experiment
        Its name, which the document's marks have, too.
    document
        A file of ``docs/``.
    about
        What ``--help`` says.
    lines
        Makes lines of Markdown from ``figures.json``.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", help="figures of a run that is there already")
    parser.add_argument("--full", action="store_const", const="--full", default="--quick")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or temporary
        if arguments.folder is None:
            contigua = Path(sys.executable).with_name("contigua")
            command = [contigua, "experiment", "run", experiment, arguments.full, "-o", folder]
            if subprocess.run(command).returncode:
                sys.exit("the experiment failed")
        figures = json.loads((Path(folder) / "figures.json").read_text())
    replace(experiment, document, lines(figures))
