"""Columns of result tables, with types that other programs can rely on.

A column that happens to hold only ``None`` still needs its type: DuckDB and Spark read many files
as one table, and cannot when two of them disagree.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pyarrow as pa

#: What a column holds: ``"text"``, ``"real"`` (64-bit floating point), ``"count"`` (64-bit
#: integers) or ``"flag"``.
Kind = Literal["text", "real", "count", "flag"]


def kind_of(values: Sequence[Any]) -> Kind:
    """Find the narrowest kind that holds all values; ``None`` fits every kind.

    Examples
    --------
    >>> kind_of([1, None]), kind_of([1, 2.5]), kind_of([True]), kind_of([1, "8GiB"]), kind_of([])
    ('count', 'real', 'flag', 'text', 'text')
    """
    types = {type(value) for value in values if value is not None}
    if types == {bool}:
        return "flag"
    if types == {int}:
        return "count"
    if types and types <= {int, float}:
        return "real"
    return "text"


def fits(value: Any, kind: Kind) -> bool:  # noqa: ANN401 - JSON
    """Whether a column of a kind can hold a value.

    Examples
    --------
    >>> fits(1, "count"), fits(1.5, "count"), fits(None, "real"), fits([], "text")
    (True, False, True, False)
    """
    types = {"text": (str,), "real": (int, float), "count": (int,), "flag": (bool,)}[kind]
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return False
    return value is None or type(value) in types


def as_text(value: Any) -> str | None:  # noqa: ANN401 - whatever TOML has
    """Write a value for a column of text: text as it is, anything else as JSON.

    Examples
    --------
    >>> as_text("8GiB"), as_text(8), as_text([1, 2])
    ('8GiB', '8', '[1, 2]')
    """
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def table(rows: Sequence[Mapping[str, Any]], known: Mapping[str, Kind]) -> pa.Table:
    """Make an Arrow table of rows; a column is there if any row, or ``known``, has it.

    Parameters
    ----------
    rows
        The rows; what a row lacks is null.
    known
        Kinds of columns; those of others follow from their values.
    """
    # A fifth of a second to import, which most uses can do without.
    import pyarrow as pa

    types = {"text": pa.string(), "real": pa.float64(), "count": pa.int64(), "flag": pa.bool_()}
    names = list(dict.fromkeys([*(key for row in rows for key in row), *known]))
    arrays = {}
    for name in names:
        values = [row.get(name) for row in rows]
        kind = known.get(name) or kind_of(values)
        if kind == "text":
            values = [as_text(value) for value in values]
        elif kind == "real":
            # Arrow refuses integers that a real number has to round.
            values = [None if value is None else float(value) for value in values]
        arrays[name] = pa.array(values, types[kind])
    return pa.table(arrays)


def csv_text(table: pa.Table) -> str:
    """Write an Arrow table as CSV with a line of heads."""
    import pyarrow.csv

    buffer = io.BytesIO()
    pyarrow.csv.write_csv(table, buffer)
    return buffer.getvalue().decode()
