"""Running a sweep: record what is not recorded, run what is not finished, say what came of it."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from contigua import _engine
from contigua.errors import ContiguaError
from contigua.files import write_whole
from contigua.reading import file_digest
from contigua.sweeps.cluster import outcomes_of, warning
from contigua.sweeps.spec import Plan, Planned, make_plan
from contigua.sweeps.store import Record, Store
from contigua.sweeps.tasks import TOKEN, Outcome, Task
from contigua.sweeps.workloads import (
    Recording,
    is_whole,
    record,
    recorded_plan,
    recording_of,
    trace_file,
)
from contigua.table import cut_short

#: Seconds after which nobody is writing a point any more.
ABANDONED_SECONDS = 3600.0
#: Seconds between two times that the table for others is written, at least.
VIEW_SECONDS = 60.0


class Listener(Protocol):
    """Listener to a sweep's progress."""

    def said(self, text: str) -> None:
        """Take one line about something out of the ordinary."""

    def recording(self, workload: str) -> None:
        """Learn that a program is executed and recorded."""

    def start(self, total: int, there: int) -> None:
        """Learn how many points there are, and how many of these are finished already."""

    def advance(self, record: Record, points: int) -> None:
        """Learn of a run that ended, and how many points of the sweep it is."""


class Quiet:
    """A listener that does not listen."""

    def said(self, text: str) -> None:
        """Do nothing."""

    def recording(self, workload: str) -> None:
        """Do nothing."""

    def start(self, total: int, there: int) -> None:
        """Do nothing."""

    def advance(self, record: Record, points: int) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Options:
    """Options of a sweep.

    Attributes
    ----------
    scheduler
        Address of a Dask scheduler, such as ``tls://host:8786``; by default workers are started
        here.
    workers
        How many are started here; by default one for each processor. With 0 everything runs in this
        process, one point after the other.
    retry_failed
        Whether points that failed are run again.
    shared_folder
        Whether workers may read and write the sweep's folder if they see it. Otherwise, and where
        they do not see it, traces are sent to them and reports come back through the scheduler.
    """

    scheduler: str | None = None
    workers: int | None = None
    retry_failed: bool = False
    shared_folder: bool = True


@dataclass
class Progress:
    """Progress of a sweep before this run, and now.

    Attributes
    ----------
    total
        Points of the sweep.
    there
        Points that were finished before.
    failed_before
        Points that had failed before, and were not run again.
    ran
        Points that this run finished, or that failed in it.
    failed
        Messages of all points that failed, with how many there are of each.
    incomplete
        How incomplete runs ended, with how many points there are of each.
    """

    total: int = 0
    there: int = 0
    failed_before: int = 0
    ran: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    incomplete: Counter[str] = field(default_factory=Counter)

    def sentence(self) -> str:
        """Say it in words."""
        failures, cut = sum(self.failed.values()), sum(self.incomplete.values())
        before = f", {self.failed_before} had failed before" if self.failed_before else ""
        said = f"{self.total} points: {self.there} were finished before{before}, {self.ran} ran"
        if failures:
            said += f"; {failures} of all failed"
        return said + (f"; {cut} of all are incomplete" if cut else "")


@dataclass(frozen=True)
class Placed:
    """A point, and what is there of it.

    Attributes
    ----------
    planned
        The point.
    name
        Its name; before its program is recorded, it has another one.
    record
        What became of it, if it is finished.
    recorded
        Whether its program is.
    """

    planned: Planned
    name: str
    record: Record | None
    recorded: bool

    @property
    def status(self) -> str:
        """``"done"``, ``"failed"``, ``"to do"`` or ``"to record"``."""
        if self.record is not None:
            return self.record.status
        return "to do" if self.recorded else "to record"


def look(plan: Plan, folder: Path) -> list[Placed]:
    """Say what is there of each point, without running or writing anything."""
    return _Folder(Store(folder)).place(plan)


def run_sweep(
    spec: str | Path | Mapping[str, Any],
    folder: Path,
    options: Options | None = None,
    listener: Listener | None = None,
) -> Progress:
    """Run what is not finished of a sweep.

    Parameters
    ----------
    spec
        Path of the specification, or what it would hold.
    folder
        Where everything is kept; the same folder again carries on.
    options
        How it is run.
    listener
        Who is told how it goes on.

    Raises
    ------
    SweepError
        When the specification is not well formed, another process runs a sweep in this folder, or
        the scheduler does not answer.
    PresetError, EngineError, ConfigError, AllocatorError
        When a point cannot be simulated; nothing has run then.
    FileError
        When the folder cannot be written to.
    """
    plan = make_plan(spec)
    store = Store(folder.absolute())
    store.create()
    with store.lock():
        return _Sweep(plan, store, options or Options(), listener or Quiet()).run()


class _Folder:
    """Existing files of a sweep."""

    def __init__(self, store: Store) -> None:
        self.store = store
        #: Keys of programs, and what is recorded of them so far.
        self.keys: dict[tuple[object, ...], str] = {}
        self.recordings: dict[str, Recording | None] = {}

    def program(self, point: Planned) -> str:
        """Name the execution that a point replays."""
        workload, run = point.workload, point.options
        if workload.trace is not None:
            key = str(workload.trace)
            if key not in self.recordings:
                size = workload.trace.stat().st_size
                self.recordings[key] = Recording(file_digest(workload.trace), size)
            return key
        plan = recorded_plan(run)
        known = (
            workload.name,
            run.malloc,
            run.malloc_options,
            run.malloc_clock,
            run.seconds,
            json.dumps([plan, run.addresses()]),
        )
        if known not in self.keys:
            key = workload.key(run)
            self.keys[known] = key
            self.recordings[key] = recording_of(self.store, key)
        return self.keys[known]

    def place(self, plan: Plan) -> list[Placed]:
        """Name every point, and look for it."""
        placed = []
        for point in plan.points:
            program = self.program(point)
            found = self.recordings[program]
            name = point.name(f"not recorded: {program}" if found is None else found.digest)
            placed.append(Placed(point, name, self.store.load(name), found is not None))
        return placed


def _abandoned(file: Path) -> bool:
    try:
        return time.time() - file.stat().st_mtime > ABANDONED_SECONDS
    except OSError:
        # It has its name by now.
        return False


class _Sweep(_Folder):
    """One run of a sweep, in a folder that is its own."""

    def __init__(self, plan: Plan, store: Store, options: Options, listener: Listener) -> None:
        super().__init__(store)
        self.plan = plan
        self.options = options
        self.listener = listener
        self.progress = Progress(total=len(plan.points))
        #: Points that failed in this run because their programs did.
        self.not_recorded: set[str] = set()
        self.token = self._token()

    def _token(self) -> str:
        file = self.store.folder / TOKEN
        if not file.exists():
            write_whole(file, secrets.token_hex())
        return file.read_text()

    def run(self) -> Progress:
        """Run what is not finished."""
        self._clean()
        placed = self.place(self.plan)
        if self.options.retry_failed:
            for point in placed:
                if point.record is not None and point.record.report is None:
                    self.store.path(point.name).unlink(missing_ok=True)
            placed = self.place(self.plan)
        self._record_all(placed)
        placed = self.place(self.plan)
        self.store.write_plan(
            {
                "description": self.plan.description,
                "specification": self.plan.specification,
                "points": [{"point": p.name, "axes": dict(p.planned.axes)} for p in placed],
            }
        )
        waiting = {point.name: point.planned for point in placed if point.record is None}
        for point in placed:
            if point.record is not None:
                self._count(point)
        self.listener.start(
            self.progress.total, self.progress.total - sum(p.record is None for p in placed)
        )
        try:
            if waiting:
                self._work(waiting, Counter(point.name for point in placed))
        finally:
            # Whatever ended it: what is finished can be read.
            if self.store.stale():
                self.store.refresh()
        return self.progress

    def _count(self, point: Placed) -> None:
        """Count a point of which there is a record before the points are run."""
        assert point.record is not None
        self._count_end(point.record)
        if point.name in self.not_recorded:
            self.progress.ran += 1
        elif point.record.report is None:
            self.progress.failed_before += 1
        else:
            self.progress.there += 1

    def _count_end(self, record: Record, times: int = 1) -> None:
        """Count a point that failed, or whose run is incomplete."""
        if record.report is None:
            self.progress.failed[record.error or "no reason was given"] += times
        elif cut := cut_short(json.loads(record.report)):
            self.progress.incomplete[cut] += times

    def _clean(self) -> None:
        """Find what a crash or a disk has damaged, so that it is made again."""
        for file in sorted(self.store.points.glob("*.json")):
            if self.store.load(file.stem) is None:
                self.listener.said(f"{file}: damaged; its point is run again")
                file.unlink(missing_ok=True)
        for file in sorted(self.store.traces.glob("*.json")):
            if recording_of(self.store, file.stem) is None:
                self.listener.said(f"{file}: damaged; its program is recorded again")
                file.unlink(missing_ok=True)
        self._tidy()

    def _tidy(self) -> None:
        """Take away what processes that were killed had begun to write."""
        kept = {
            found.digest
            for file in self.store.traces.glob("*.json")
            if (found := recording_of(self.store, file.stem)) is not None
        }
        begun = [*self.store.traces.glob("*.new"), *self.store.traces.glob(".*")]
        begun += [file for file in self.store.traces.glob("*.trace") if file.stem not in kept]
        # Workers of a client that was killed may still be writing points, but not for long.
        begun += [file for file in self.store.points.glob(".*") if _abandoned(file)]
        for file in begun:
            file.unlink(missing_ok=True)

    def _record_all(self, placed: Sequence[Placed]) -> None:
        """Record every program that a point still needs and that is not there, or is damaged."""
        needed: dict[str, list[Placed]] = {}
        for point in placed:
            if point.record is None and point.planned.workload.trace is None:
                needed.setdefault(self.program(point.planned), []).append(point)
        for program, points in needed.items():
            workload, run = points[0].planned.workload, points[0].planned.options
            found = self.recordings[program]
            file = None if found is None else trace_file(self.store, found)
            if found is not None and file is not None:
                if is_whole(file, found):
                    continue
                what = "damaged" if file.exists() else "gone"
                self.listener.said(f"{file}: {what}; {workload.name} is recorded again")
            self.listener.recording(workload.name)
            try:
                made = record(self.store, workload, run)
            except (ContiguaError, _engine.EngineError) as error:
                # Other programs' points need not wait until this one is mended.
                for point in points:
                    if self.store.load(point.name) is None:
                        self.store.save(Record(point.name, None, str(error)))
                        self.not_recorded.add(point.name)
                continue
            if found is not None and made.digest != found.digest:
                self.listener.said(
                    f"{workload.name} did not do the same again: all its points are run again"
                )
            self.recordings[program] = made

    # Work.

    def _work(self, waiting: Mapping[str, Planned], times: Counter[str]) -> None:
        """Run points on workers, and keep what comes of each at once."""
        shown = time.monotonic()
        pause = VIEW_SECONDS
        tasks = self._tasks(waiting)
        if (said := warning(self.options.scheduler)) is not None:
            self.listener.said(said)
        with outcomes_of(tasks, self.options.scheduler, self.options.workers) as outcomes:
            for task, outcome in outcomes:
                record = self._keep(task, outcome)
                self.progress.ran += times[task.point]
                self._count_end(record, times[task.point])
                self.listener.advance(record, times[task.point])
                now = time.monotonic()
                if now > shown + pause:
                    self.store.refresh()
                    shown = time.monotonic()
                    # Never more than a twentieth of the time.
                    pause = max(VIEW_SECONDS, 20 * (shown - now))

    def _tasks(self, waiting: Mapping[str, Planned]) -> Iterator[Task]:
        for name, point in waiting.items():
            found = self.recordings[self.program(point)]
            assert found is not None
            trace = point.workload.trace or trace_file(self.store, found)
            files = {found.digest: trace, **point.files}
            yield Task(
                name,
                point.spec,
                found.digest,
                point.workload.trace_format,
                {digest: str(path) for digest, path in files.items()},
                str(self.store.folder) if self.options.shared_folder else None,
                self.token,
                found.requests,
            )

    def _keep(self, task: Task, outcome: Outcome) -> Record:
        if outcome.saved:
            found = self.store.load(task.point)
            if found is not None:
                return found
            # The worker is sure that it wrote it: the two see different folders, or disks fail.
            what = f"{self.store.path(task.point)} is not there, though {outcome.worker} wrote it"
            return Record(task.point, None, what)
        assert outcome.record is not None
        self.store.save(outcome.record)
        host, status = outcome.record.host, outcome.record.status
        self.store.log("finished", task.point, host=host, pid=None, status=status)
        return outcome.record
