"""Text of others on a terminal: names of programs, files, hosts and designs.

Such text may hold sequences that a terminal obeys, halves of characters that cannot be written, and
brackets that Rich takes for its markup. Cells of :class:`Table` are plain text.
"""

from __future__ import annotations

from typing import Any

import rich.table
from rich.text import Text

from contigua.printing import printable


def cell(value: Any) -> Any:  # noqa: ANN401 - whatever Rich can show
    """Make text a cell that Rich shows as it is."""
    return Text(printable(value, "\n")) if isinstance(value, str) else value


class Table(rich.table.Table):
    """Rich's table, whose strings are plain text: no markup, no control characters."""

    def __init__(self, *headers: Any, title: str | None = None, **options: Any) -> None:  # noqa: ANN401
        # It adds a column for each of them.
        super().__init__(*headers, title=cell(title), **options)

    def add_column(self, header: Any = "", *rest: Any, **options: Any) -> None:  # noqa: ANN401
        """Add a column with a plain head."""
        super().add_column(cell(header), *rest, **options)

    def add_row(self, *cells: Any, **options: Any) -> None:  # noqa: ANN401
        """Add a row of plain cells."""
        super().add_row(*map(cell, cells), **options)
