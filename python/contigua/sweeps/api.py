"""A sweep as an object: what Python and notebooks work with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contigua.extras import needs
from contigua.results import Results
from contigua.statistics import mean_margin
from contigua.sweeps.running import Listener, Options, run_sweep
from contigua.sweeps.sql import query
from contigua.sweeps.store import Store

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

#: Default folder of sweeps.
DEFAULT_FOLDER = Path("contigua-results")
#: The axis whose values are samples of the same thing.
SAMPLES = "seed"


@dataclass(frozen=True)
class Sweep:
    """A sweep that has run, or is running elsewhere.

    Attributes
    ----------
    folder
        Where it is kept.
    """

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))
        self._store.plan()

    @property
    def _store(self) -> Store:
        return Store(self.folder)

    @property
    def results(self) -> Results:
        """The reports of all points that are done, and what each is on every axis."""
        return self._store.results()

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The axes of each point that failed, and ``error``, why."""
        return [dict(failure) for failure in self.results.failures]

    @property
    def axes(self) -> list[str]:
        """Names of the axes."""
        points = self._store.plan()["points"]
        return list(points[0]["axes"]) if points else []

    def __len__(self) -> int:
        """Count all points, finished or not."""
        return len(self._store.plan()["points"])

    def to_arrow(self) -> pa.Table:
        """Return one row for each finished point, as the Parquet dataset has them."""
        return self._store.current()

    def to_pandas(self) -> pd.DataFrame:
        """Return the same as a data frame, without the column ``report``."""
        frame: pd.DataFrame = self.to_arrow().drop_columns(["report"]).to_pandas()
        return frame

    def query(self, sql: str) -> pd.DataFrame:
        """Answer a question in SQL; the table is ``results``.

        Raises
        ------
        QueryError
            When the query is not well formed; the message offers the nearest column.
        """
        frame: pd.DataFrame = query(self.folder, sql).to_pandas()
        return frame

    def summary(self, *columns: str) -> pd.DataFrame:
        """Return means over seeds, with half of their 95 % confidence intervals.

        Parameters
        ----------
        columns
            Columns of :meth:`to_pandas` that are numbers; by default some that say most.

        Returns
        -------
        pandas.DataFrame
            One row for each combination of the other axes, with ``points``, how many seeds there
            are, ``failed``, how many points have no result (where any has none), and for each
            column ``NAME`` and ``NAME_margin``. The interval is Student's; it is missing where
            there is one seed.
        """
        return summarize(self.to_pandas(), [axis for axis in self.axes if axis != SAMPLES], columns)

    def _repr_html_(self) -> str:
        frame = self.to_pandas()
        done = int((frame["status"] == "done").sum())
        failed = len(frame) - done
        said = f"<p>Sweep in <code>{escape(str(self.folder))}</code>: "
        said += f"{done} of {len(self)} points are done"
        said += f", {failed} failed.</p>" if failed else ".</p>"
        return said + (str(self.summary().to_html(max_rows=20, border=0)) if done else "")


#: Default columns of a summary: those of them that are there and not the same everywhere.
TELLING = (
    "cycles",
    "translation_overhead",
    "l1d_tlb_mpki",
    "l2_tlb_mpki",
    "walk_references",
    "page_faults",
    "huge_page_coverage",
    "resident_mib",
)


def summarize(frame: pd.DataFrame, axes: list[str], columns: tuple[str, ...]) -> pd.DataFrame:
    """Group results by axes; see :meth:`Sweep.summary`."""
    with needs("sweeps"):
        import pandas as pd

    done = frame[frame["status"] == "done"]
    any_failed = len(done) < len(frame)
    chosen = columns or [name for name in TELLING if name in done and done[name].notna().any()]
    rows = []
    for values, all_of_it in frame.groupby(axes, sort=False, dropna=False):
        group = all_of_it[all_of_it["status"] == "done"]
        row: dict[str, Any] = {**dict(zip(axes, values, strict=True)), "points": len(group)}
        if any_failed:
            row["failed"] = len(all_of_it) - len(group)
        for name in chosen:
            numbers = [float(number) for number in group[name].dropna()]
            row[name] = sum(numbers) / len(numbers) if numbers else None
            row[f"{name}_margin"] = mean_margin(numbers)
        rows.append(row)
    return pd.DataFrame(rows)


def sweep(
    spec: str | Path | Mapping[str, Any],
    folder: str | Path | None = None,
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    retry_failed: bool = False,
    shared_folder: bool = True,
    listener: Listener | None = None,
) -> Sweep:
    """Run every combination of designs, machines, programs, ages, seeds and parameters.

    What is finished stays finished: the same call again runs what is left, and a changed
    specification runs what is new. In a script, call it below ``if __name__ == "__main__":``, as
    everything that starts processes.

    Parameters
    ----------
    spec
        Path of a TOML file, or what it would hold (docs/how-to/sweeps.md). Designs, machines and
        ages may be objects.
    folder
        Where everything is kept; by default ``contigua-results/NAME``, after the file.
    scheduler
        Address of a Dask scheduler, such as ``"tls://host:8786"``; by default workers are started
        here.
    workers
        How many are started here; by default one for each processor. With 0 everything runs in this
        process, one point after the other.
    retry_failed
        Whether points that failed are run again.
    shared_folder
        Whether workers may use ``folder`` if they see it; what they do not see is sent to them.
    listener
        Who is told how it goes on.

    Returns
    -------
    Sweep
        The sweep; points that failed are in ``failures``.

    Raises
    ------
    SweepError
        When the specification is not well formed, somebody else runs a sweep in this folder, or
        the scheduler does not answer.
    PresetError, EngineError, ConfigError, AllocatorError
        When a point cannot be simulated; nothing has run then.
    """
    where = Path(folder) if folder is not None else default_folder(spec)
    run_sweep(spec, where, Options(scheduler, workers, retry_failed, shared_folder), listener)
    return Sweep(where)


def default_folder(spec: str | Path | Mapping[str, Any]) -> Path:
    """Say where a sweep is kept unless somebody says where.

    Examples
    --------
    >>> default_folder("sweeps/holes.toml")
    PosixPath('contigua-results/holes')
    """
    return DEFAULT_FOLDER / ("sweep" if isinstance(spec, Mapping) else Path(spec).stem)
