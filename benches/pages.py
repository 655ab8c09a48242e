"""The parts of documentation pages that benches write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def replace(page: str, name: str, lines: Sequence[str]) -> None:
    """Put lines between the marks `<!-- NAME:begin -->` and `<!-- NAME:end -->` of a page."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    path = DOCS / page
    before, _, rest = path.read_text().partition(begin)
    path.write_text(before + "\n".join([begin, *lines, end]) + rest.partition(end)[2])
