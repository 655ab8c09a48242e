"""SQL over results, by DuckDB: one table, ``results``."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contigua.errors import ContiguaError
from contigua.extras import needs
from contigua.reading import open_file
from contigua.results import Results
from contigua.sweeps.store import Store, SweepError, read_results

if TYPE_CHECKING:
    import pyarrow as pa

#: Name of the table.
TABLE = "results"


class QueryError(ContiguaError):
    """A question that cannot be answered; the message says what is wrong with it."""


def results_table(source: str | Path | Results) -> pa.Table:
    """Return what a query is about, as an Arrow table.

    Parameters
    ----------
    source
        A sweep's folder, a file of ``contigua run --json``, a Parquet file, or results.

    Raises
    ------
    SweepError, ResultsError, FileError, QueryError
        When it holds no results.
    """
    if isinstance(source, Results):
        return source.to_arrow(reports=True)
    path = Path(source)
    if path.is_dir():
        table = Store(path).current()
        if table.num_rows == 0:
            raise SweepError(f"{path}: no point of the sweep is finished yet")
        return table
    if path.suffix == ".parquet":
        with needs("sweeps"):
            import pyarrow as pa
            import pyarrow.parquet as pq

        try:
            with open_file(path) as file:
                return pq.read_table(file)
        except (OSError, pa.ArrowException) as error:
            raise QueryError(f"{path}: no Parquet file that can be read: {_line(error)}") from error
    return read_results(path).to_arrow(reports=True)


def query(source: str | Path | Results, sql: str) -> pa.Table:
    """Answer a question about results.

    Parameters
    ----------
    source
        As :func:`results_table` has it.
    sql
        A query in DuckDB's SQL; the table is ``results``. A column whose name has a dot is
        written in quotation marks: ``"design.translation.perforated.most_holes"``.

    Returns
    -------
    pyarrow.Table
        The answer.

    Raises
    ------
    QueryError
        When the query is not well formed; the message offers the nearest column.
    """
    # A tenth of a second to import, which most uses can do without.
    with needs("sweeps"):
        import duckdb

    table = results_table(source)
    with duckdb.connect() as connection:
        connection.register(TABLE, table)
        try:
            answer = connection.sql(sql)
            if answer is None:
                raise QueryError("this asks for nothing; write a query, such as `from results`")
            return answer.to_arrow_table()
        except duckdb.Error as error:
            raise QueryError(explain(str(error), table.column_names)) from error


def explain(message: str, columns: list[str]) -> str:
    """Say what DuckDB found wrong in one line, with the nearest column.

    Examples
    --------
    >>> explain('Binder Error: Referenced column "cyles" not found in FROM clause!', ["cycles"])
    'no column is called cyles; did you mean cycles? (`describe results` lists all)'
    """
    found = re.search(r'[Rr]eferenced column "([^"]+)"', message)
    if found is not None:
        ends = [column for column in columns if column.split(".")[-1] == found[1]]
        close = ends or difflib.get_close_matches(found[1], columns, n=1)
        # A name with a dot is another thing in SQL, unless it is quoted.
        hint = f"; did you mean {_quoted(close[0])}?" if close else ""
        return f"no column is called {found[1]}{hint} (`describe {TABLE}` lists all)"
    found = re.search(r'[Rr]eferenced table "([^"]+)" not found', message) or re.search(
        r'Cannot extract field \S+ from expression "([^"]+)"', message
    )
    if found is not None:
        close = [column for column in columns if column.startswith(f"{found[1]}.")]
        if close:
            return f"a name with a dot is written in quotation marks: {_quoted(close[0])}"
    found = re.search(r"Table with name (\S+) does not exist", message)
    if found is not None:
        return f"no table is called {found[1]}; the only one is {TABLE}"
    return _line(message)


def _quoted(column: str) -> str:
    return column if re.fullmatch(r"[A-Za-z_]\w*", column) else f'"{column}"'


def _line(message: Any) -> str:  # noqa: ANN401 - an error or its text
    return " ".join(str(message).split("\n\nLINE")[0].split())
