"""Text of others on a terminal: names of programs, files, hosts and designs.

Such text may hold sequences that a terminal obeys, halves of characters that cannot be written, and
brackets that Rich takes for its markup. Cells of :class:`Table` are plain text.
"""

from __future__ import annotations

from typing import Any

import rich.table
from rich.cells import cell_len
from rich.console import Console
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
        """Add a column with a plain head; words that are too long are broken, not cut."""
        options.setdefault("overflow", "fold")
        super().add_column(cell(header), *rest, **options)

    def add_row(self, *cells: Any, **options: Any) -> None:  # noqa: ANN401
        """Add a row of plain cells."""
        super().add_row(*map(cell, cells), **options)

    def fitting(self, width: int) -> list[Table]:
        """Return tables no wider than ``width``: each with the first column, and some others."""
        widths = [
            3 + max(_width(text) for text in (column.header, *column.cells))
            for column in self.columns
        ]
        parts: list[list[int]] = []
        for index in range(1, len(widths)):
            used = sum(widths[place] for place in (parts[-1] if parts else []))
            if not parts or 1 + widths[0] + used + widths[index] > width:
                parts.append([])
            parts[-1].append(index)
        return [self] if len(parts) < 2 else [self._part(part) for part in parts]

    def _part(self, places: list[int]) -> Table:
        title = self.title if places[0] == 1 else None
        table = Table(title_justify=self.title_justify)
        table.title = title
        chosen = [self.columns[place] for place in (0, *places)]
        for column in chosen:
            table.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap)
        cells = zip(*(column.cells for column in chosen), strict=True)
        for row, own in zip(self.rows, cells, strict=True):
            table.add_row(*own, end_section=row.end_section)
        return table


def _width(text: Any) -> int:  # noqa: ANN401 - whatever Rich can show
    return max((cell_len(line) for line in str(text).split("\n")), default=0)


def show(console: Console, table: Table) -> None:
    """Print a table: on a terminal several that fit, below each other; elsewhere in full width."""
    if console.is_terminal:
        for part in table.fitting(console.width):
            console.print(part)
        return
    console.width = max(console.width, 10_000)
    console.print(table)
