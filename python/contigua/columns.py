"""Columns of result tables, with types that other programs can rely on.

A column that happens to hold only ``None`` still needs its type: DuckDB and Spark read many files
as one table, and cannot when two of them disagree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from contigua.extras import needs

if TYPE_CHECKING:
    import pyarrow as pa

#: Kind of a column: ``"text"``, ``"real"`` (64-bit floating point), ``"count"`` (64-bit integers)
#: or ``"flag"``.
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
    """Return whether a column of a kind can hold a value.

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


def gathered(
    rows: Sequence[Mapping[str, Any]], known: Mapping[str, Kind]
) -> dict[str, tuple[Kind, list[Any]]]:
    """Turn rows into columns; a column is there if any row, or ``known``, has it.

    Parameters
    ----------
    rows
        The rows; what a row lacks is null.
    known
        Kinds of columns; those of others follow from their values.
    """
    names = dict.fromkeys([*(key for row in rows for key in row), *known])
    found: dict[str, tuple[Kind, list[Any]]] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        kind = known.get(name) or kind_of(values)
        if kind == "text":
            values = [as_text(value) for value in values]
        elif kind == "real":
            # Arrow refuses integers that a real number has to round.
            values = [None if value is None else float(value) for value in values]
        found[name] = kind, values
    return found


def table(rows: Sequence[Mapping[str, Any]], known: Mapping[str, Kind]) -> pa.Table:
    """Make an Arrow table of rows, with the columns of :func:`gathered`."""
    # A fifth of a second to import, which most uses can do without.
    with needs("sweeps"):
        import pyarrow as pa

    types = {"text": pa.string(), "real": pa.float64(), "count": pa.int64(), "flag": pa.bool_()}
    columns = gathered(rows, known)
    return pa.table({name: pa.array(of, types[kind]) for name, (kind, of) in columns.items()})


def csv_text(rows: Sequence[Mapping[str, Any]], known: Mapping[str, Kind]) -> str:
    """Write rows as CSV with a line of heads: text in quotes, nothing for ``None``.

    Examples
    --------
    >>> print(csv_text([{"design": "a", "ipc": 1, "ended": None}], {"ipc": "real"}), end="")
    "design","ipc","ended"
    "a",1,
    """
    columns = gathered(rows, known)
    lines = [list(columns), *zip(*(values for _, values in columns.values()), strict=True)]
    return "".join(f"{','.join(map(_cell, line))}\n" for line in lines)


def _cell(value: Any) -> str:  # noqa: ANN401 - whatever columns hold
    if value is None:
        return ""
    if isinstance(value, str):
        return '"' + value.replace('"', '""') + '"'
    return str(value).removesuffix(".0").lower()
