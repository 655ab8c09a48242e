"""Helpers of writers of tables into documents: rows of Markdown, and text between two marks."""

from __future__ import annotations

from collections.abc import Iterable
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


def publish(name: str, document: str, lines: list[str], *, only_print: bool) -> None:
    """Put lines between the two marks of a name, or print them."""
    if only_print:
        print("\n".join(lines))
    else:
        replace(name, document, lines)
