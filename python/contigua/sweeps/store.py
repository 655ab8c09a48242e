"""A sweep's folder: what is finished is in it, and is never computed again.

::

    sweep.json            the plan: every point, and what it is on each axis
    points/POINT.json     one for each finished point, named by what it depends on: the truth
    results/part-0.parquet  all of them as a table, for others to read; made from the points
    traces/               recorded programs, named by their contents
    executions.jsonl      who ran what and when
    lock                  held by the process that runs the sweep

A point's file appears whole or not at all, written by whoever ran the point: a worker that can see
the folder, or the client. It has a checksum, so that one which a crash or a disk damaged is found
out and computed again. The table is derived, so nothing is lost with it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contigua import _engine, columns, schemas
from contigua.errors import ContiguaError
from contigua.extras import needs
from contigua.files import FileError, open_log, write_whole, writing
from contigua.reading import MOST_RESULTS, ReadError, read_bytes, read_text
from contigua.reports import Report, summary_type
from contigua.results import Results

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "contigua-sweep"
VERSION = schemas.SWEEP

#: Columns of every table beside axes and figures, by what they hold.
OWN: dict[str, columns.Kind] = {
    "point": "text",
    "status": "text",
    "error": "text",
    "seconds": "real",
    "host": "text",
    "requests": "count",
}


class SweepError(ContiguaError):
    """A sweep that cannot be run, or a folder that holds none."""


@dataclass(frozen=True)
class Record:
    """Result of a point.

    Attributes
    ----------
    point
        Its name: a hash of everything that its report depends on.
    report
        The engine's report, or ``None`` where the point failed.
    error
        Why it failed.
    seconds
        Time that it took, in seconds of the worker's clock.
    host
        Where it ran.
    requests
        Requests that the client of a server had answered while it was recorded.
    """

    point: str
    report: str | None
    error: str | None = None
    seconds: float = 0.0
    host: str = field(default_factory=socket.gethostname)
    requests: int | None = None

    @property
    def status(self) -> str:
        """``"done"`` or ``"failed"``."""
        return "failed" if self.report is None else "done"

    def to_json(self) -> str:
        """Write the record with its checksum."""
        body = asdict(self)
        return json.dumps({"schema": VERSION, **body, "checksum": _checksum(body)}) + "\n"

    @staticmethod
    def from_json(text: str) -> Record | None:
        """Read what :meth:`to_json` wrote; ``None`` when it is damaged."""
        try:
            body = json.loads(text)
            # The version before called it so.
            checksum, version = body.pop("checksum"), body.pop("format", None) or body.pop("schema")
            if version != VERSION or checksum != _checksum(body):
                return None
            return Record(**body)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Store:
    """A sweep's folder.

    Attributes
    ----------
    folder
        Where it is.
    """

    folder: Path

    @property
    def points(self) -> Path:
        """Folder of the finished points."""
        return self.folder / "points"

    @property
    def traces(self) -> Path:
        """Folder of the recorded programs."""
        return self.folder / "traces"

    @property
    def view(self) -> Path:
        """The table that others read."""
        return self.folder / "results" / "part-0.parquet"

    def create(self) -> None:
        """Make the folder.

        Raises
        ------
        FileError
            When it cannot be made or written to.
        """
        try:
            for folder in (self.points, self.traces, self.view.parent):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"{self.folder}: {error.strerror}; give another -o") from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep others from running a sweep in this folder.

        Raises
        ------
        SweepError
            When another process does.
        """
        try:
            file = open_log(self.folder / "lock")
        except OSError as error:
            raise FileError(f"{self.folder}: {error.strerror}; give another -o") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                who = file.read(200).decode(errors="replace").strip() or "another process"
                raise SweepError(
                    f"{self.folder}: {who} is running a sweep here; wait for it, or give another -o"
                ) from error
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
            file.flush()
            yield

    # Points.

    def path(self, point: str) -> Path:
        """Name the file of a point."""
        return self.points / f"{point}.json"

    def save(self, record: Record) -> None:
        """Keep what became of a point, at once."""
        write_whole(self.path(record.point), record.to_json())

    def load(self, point: str) -> Record | None:
        """Return what became of a point; ``None`` if it is not finished, or its file is damaged."""
        try:
            text = read_bytes(self.path(point), MOST_RESULTS).decode(errors="replace")
        except ReadError:
            return None
        record = Record.from_json(text)
        return record if record is not None and record.point == point else None

    def log(self, event: str, point: str, **more: object) -> None:
        """Add a line to the list of executions; whole lines, whoever writes."""
        line = {"event": event, "point": point, "host": socket.gethostname(), "pid": os.getpid()}
        line |= {"time": time.time(), **more}
        with open_log(self.folder / "executions.jsonl") as file:
            file.write(json.dumps(line).encode() + b"\n")

    # The plan and the table.

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        """Keep the plan: ``points`` is a list of ``{"point": ..., "axes": {...}}``."""
        head = {"format": FORMAT, "schema": VERSION, "version": _engine.VERSION}
        text = json.dumps(head | dict(plan), indent=1, default=str) + "\n"
        file = self.folder / "sweep.json"
        # The same plan stays as old as it is, and with it the table.
        if not file.exists() or file.read_text(errors="replace") != text:
            write_whole(file, text)

    def plan(self) -> dict[str, Any]:
        """Read the plan.

        Raises
        ------
        SweepError
            When the folder holds no sweep, or its plan is damaged.
        """
        file = self.folder / "sweep.json"
        try:
            if not file.exists():
                raise FileNotFoundError
            plan = json.loads(read_text(file, MOST_RESULTS))
            if plan["format"] == FORMAT and isinstance(plan["points"], list):
                return dict(plan)
            what = "is no plan of a sweep"
        except FileNotFoundError:
            raise SweepError(
                f"{self.folder}: no sweep is here (there is no sweep.json); "
                "`contigua sweep SPEC.toml -o DIR` makes one"
            ) from None
        except ReadError as error:
            what = error.why
        except (ValueError, KeyError, TypeError, RecursionError):
            what = "is damaged; the sweep's own command writes it again"
        raise SweepError(f"{file}: {what}")

    def records(self) -> Iterator[tuple[dict[str, Any], Record]]:
        """Yield the axes and the record of each point of the plan that is finished, in order."""
        for entry in self.plan()["points"]:
            record = self.load(entry["point"])
            if record is not None:
                yield entry["axes"], record

    def results(self) -> Results:
        """Return the reports of all points that did not fail, and why the others did."""
        records = list(self.records())
        done = [(axes, record.report) for axes, record in records if record.report]
        failed = ({**axes, "error": one.error} for axes, one in records if one.report is None)
        return Results(
            tuple(Report(text) for _, text in done),
            axes=tuple(axes for axes, _ in done),
            failures=tuple(failed),
        )

    def table(self) -> pa.Table:
        """Make a table of all finished points: their axes, what became of them, their figures."""
        rows: list[dict[str, Any]] = []
        figures: dict[str, columns.Kind] = {}
        for axes, record in self.records():
            row = {"point": record.point, **axes, "status": record.status, "error": record.error}
            row |= {"seconds": record.seconds, "host": record.host, "requests": record.requests}
            if record.report is not None:
                summary = Report(record.report).summary()
                figures |= {key: summary_type(key) for key in summary if key not in axes}
                # Requests that the client counts, where the simulation did not.
                row |= {
                    key: row.get(key) if value is None else value
                    for key, value in summary.items()
                    if key in figures
                }
            row["report"] = record.report
            rows.append(row)
        return columns.table(rows, {**OWN, **figures, "report": "text"})

    def stale(self) -> bool:
        """Return whether the table lacks a finished point, or does not exist."""
        try:
            made = self.view.stat().st_mtime_ns
        except OSError:
            return True
        newer = [self.folder / "sweep.json", *map(self.path, self._planned())]
        return any(_modified(file) >= made for file in newer)

    def _planned(self) -> list[str]:
        return [entry["point"] for entry in self.plan()["points"]]

    def current(self) -> pa.Table:
        """Return the table, read from its file if that has everything."""
        with needs("sweeps"):
            import pyarrow as pa
            import pyarrow.parquet as pq

        if not self.stale():
            # A damaged file is made again: it has nothing that the points have not.
            with suppress(OSError, pa.ArrowException):
                return pq.read_table(self.view)
        table = self.table()
        # Somebody else's folder is only read.
        with suppress(FileError):
            self._write(table)
        return table

    def refresh(self) -> None:
        """Write the table that others read.

        Raises
        ------
        FileError
            When it cannot be written.
        """
        self._write(self.table())

    def _write(self, table: pa.Table) -> None:
        with needs("sweeps"):
            import pyarrow.parquet as pq

        try:
            self.view.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise FileError(f"{self.view.parent}: {error.strerror}") from error
        with writing(self.view) as file:
            pq.write_table(table, file, compression="zstd", row_group_size=4096)


def _modified(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def read_results(path: str | Path) -> Results:
    """Read a sweep's folder, or a file that ``contigua run --json`` wrote.

    Parameters
    ----------
    path
        The folder (the one given to ``-o``), or the file.

    Returns
    -------
    Results
        The reports of all points that are done, in the order of the sweep; ``axes`` says what each
        is. For a file of ``run``, its reports, without axes.

    Raises
    ------
    SweepError
        When there is no sweep.
    ResultsError, FileError
        When the file holds no reports, or cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        return Store(path).results()
    try:
        text = read_text(path, MOST_RESULTS)
    except ReadError as error:
        raise FileError(f"{error}; give a sweep's folder or a file of `run --json`") from error
    try:
        return Results.from_json(text)
    except ContiguaError as error:
        raise type(error)(f"{path}: {error}") from error
