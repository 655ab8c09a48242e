"""Tasks of workers: one point, and the transfer of its trace.

:func:`simulate` is pure: the same configuration and the same events give the same report, wherever
it runs. :func:`run_task` finds the files that it needs: in the sweep's folder if the worker can see
that very folder, else among those that the client sent to this worker. If they are in neither place
it says so instead of running, and the client sends them. Nothing here assumes that two machines
share files.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from contigua import _engine
from contigua.errors import ContiguaError
from contigua.extras import needs
from contigua.programs.execute import run_whole
from contigua.reading import ReadError, file_digest
from contigua.run_spec import RunSpec
from contigua.sweeps.store import Record, Store

if TYPE_CHECKING:
    from distributed import Worker

#: File in a sweep's folder by which a worker recognizes it.
TOKEN = ".token"

#: Files whose contents this process has checked: digest, with path, size and time of change.
_checked: set[tuple[str, str, int, int]] = set()


@dataclass(frozen=True)
class Task:
    """A point, as it travels.

    Attributes
    ----------
    point
        Its name.
    spec
        The configuration.
    trace, trace_format
        Digest of the events, and who wrote them.
    files
        Where the client has each file that is needed, by digest.
    folder, token
        The sweep's folder, and what is in its :data:`TOKEN`; ``None`` if it is not to be used.
    requests
        Goes into the record.
    version
        What the client is.
    """

    point: str
    spec: RunSpec
    trace: str
    trace_format: str
    files: Mapping[str, str]
    folder: str | None = None
    token: str | None = None
    requests: int | None = None
    version: str = _engine.VERSION


@dataclass(frozen=True)
class Outcome:
    """Result of a task on a worker.

    Attributes
    ----------
    record
        What became of the point, unless the worker has saved it itself or could not start.
    saved
        Whether it is in the sweep's folder.
    missing
        Digests of files that this worker does not have; the task did not start.
    worker
        Its address.
    """

    record: Record | None = None
    saved: bool = False
    missing: tuple[str, ...] = ()
    worker: str = field(default="")


def simulate(spec: RunSpec, trace: Path, trace_format: str = "contigua") -> str:
    """Replay a trace in one configuration, and return the report."""
    reports, _ = run_whole([spec], {"trace": trace, "trace_format": trace_format})
    return reports[0]


def run_task(task: Task) -> Outcome:
    """Run a point on this worker, unless it is finished or its files are not here."""
    with needs("sweeps"):
        from distributed import get_worker

    worker = get_worker()
    return run_at(task, worker.address, received_folder(worker))


def run_at(task: Task, address: str, received: Path) -> Outcome:
    """Run a point, unless it is finished or its files are not here.

    Parameters
    ----------
    task
        The point.
    address
        What this worker is called.
    received
        Folder of the files that were sent to it.
    """
    if task.version != _engine.VERSION:
        # One that joined after the client had looked.
        what = f"the worker {address} has contigua {_engine.VERSION}, the client {task.version}"
        return Outcome(Record(task.point, None, what), worker=address)
    store = _visible(task)
    if store is not None and store.load(task.point) is not None:
        return Outcome(saved=True, worker=address)
    found = {
        digest: file
        for digest, path in task.files.items()
        for file in ([Path(path)] if store is not None else []) + [received / digest]
        if _is(file, digest)
    }
    missing = tuple(digest for digest in task.files if digest not in found)
    if missing:
        return Outcome(missing=missing, worker=address)
    if store is not None:
        store.log("started", task.point)
    record = _record(task, found)
    if store is None:
        return Outcome(record, worker=address)
    store.save(record)
    store.log("finished", task.point, status=record.status)
    return Outcome(saved=True, worker=address)


def _record(task: Task, found: Mapping[str, Path]) -> Record:
    spec = task.spec.copy()
    # The path of a snapshot is another one here: it is the client's that reports have.
    moved = {task.files[digest]: str(path) for digest, path in found.items()}
    kind, _, path = spec["age"].partition(":")
    if kind == "snapshot":
        spec["age"] = f"snapshot:{moved[path]}"
    start = time.perf_counter()
    report, said = None, None
    try:
        report = simulate(spec, found[task.trace], task.trace_format)
        if kind == "snapshot":
            report = report.replace(_quoted(spec["age"]), _quoted(task.spec["age"]))
    except (_engine.EngineError, ContiguaError) as error:
        said = str(error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # A panic of the engine is none of Exception's; the next point may do without it.
        said = f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - start
    return Record(task.point, report, said, seconds, requests=task.requests)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _visible(task: Task) -> Store | None:
    """Return the sweep's folder if this worker sees that very folder, and may write there."""
    if task.folder is None:
        return None
    store = Store(Path(task.folder))
    try:
        same = (store.folder / TOKEN).read_text() == task.token
    except OSError:
        return None
    return store if same and os.access(store.points, os.W_OK) else None


def received_folder(worker: Worker) -> Path:
    """Name the folder for what clients send; it goes when the worker does."""
    return Path(worker.local_directory) / "contigua-files"


def _is(file: Path, digest: str) -> bool:
    """Return whether a file is there with the expected contents."""
    try:
        state = file.stat()
        key = (digest, str(file), state.st_size, state.st_mtime_ns)
        if key not in _checked:
            if file_digest(file) != digest:
                return False
            _checked.add(key)
    except (OSError, ReadError):
        return False
    return True


def receive(
    digest: str, offset: int, data: bytes, last: bool, dask_worker: Worker | None = None
) -> None:
    """Take a piece of a file that the client sends; pieces come in order."""
    assert dask_worker is not None
    folder = received_folder(dask_worker)
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{digest}.part"
    with part.open("r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(data)
    if last:
        part.replace(folder / digest)
