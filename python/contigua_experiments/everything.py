"""All experiments, one after the other, each in a process of its own.

A folder keeps what every experiment found. One that has finished is not run again unless something
that its figures depend on has changed. One that fails, or that this computer cannot run, is
recorded with its reason and keeps none of the others from running.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from contigua.files import FileError, write_whole
from contigua.schemas import EXPERIMENT_RUN
from contigua_experiments.base import Definition, Outcome, Result, Scale, Sheet
from contigua_experiments.breaks import Break
from contigua_experiments.fingerprint import fingerprint
from contigua_experiments.one import IMPOSSIBLE

#: End of a run: ``impossible`` where this computer lacks something, ``failed`` for all else that
#: gave no figures.
Status = Literal["finished", "impossible", "failed"]
RECORD = "run.json"


@dataclass(frozen=True)
class Record:
    """End of an experiment's last run.

    Attributes
    ----------
    status
        How it ended.
    reason
        Why it has no figures; empty if it has.
    fingerprint
        A hash of what its figures depend on.
    seconds, processor_seconds
        How long it took, and how long all its processes computed.
    """

    status: Status
    reason: str
    fingerprint: str
    seconds: float
    processor_seconds: float


@dataclass(frozen=True)
class Entry:
    """An experiment among all.

    Attributes
    ----------
    definition
        Its file.
    record
        How its run ended; nothing if there was none.
    result
        Its figures, if it has any.
    is_old
        Whether this is from an earlier run.
    """

    definition: Definition
    record: Record | None
    result: Result | None
    is_old: bool


def run_everything(
    definitions: Sequence[Definition],
    scale: Scale,
    folder: Path,
    *,
    jobs: int | None = None,
    again: bool = False,
    told: Callable[[Definition, Entry | None], None] | None = None,
) -> Iterator[Entry]:
    """Run experiments that have not finished yet, and yield how each ended.

    Parameters
    ----------
    definitions
        The experiments.
    scale
        Quick or full.
    folder
        Where each has a folder of its own.
    jobs
        Servers that an experiment simulates at a time.
    again
        Whether to run what has finished, too.
    told
        Called before an experiment runs with nothing, and after it with how it ended.

    Raises
    ------
    FileError
        When a folder cannot be made or written to.
    """
    for one in definitions:
        before = kept(one, scale, folder)
        if before.result is not None and not again:
            entry = before
        else:
            if told is not None:
                told(one, None)
            entry = _run(one, scale, folder / one.name, jobs)
        if told is not None:
            told(one, entry)
        yield entry


def run_broken(
    definition: Definition, number: int, scale: Scale, folder: Path, jobs: int | None = None
) -> Entry:
    """Run an experiment with the break of that number, from 1, unless it has finished.

    Raises
    ------
    FileError
        When a folder cannot be made or written to.
    """
    before = kept(definition, scale, folder, broken=number)
    if before.result is not None:
        return before
    return _run(definition, scale, _own(definition, folder, number), jobs, number)


def _own(definition: Definition, folder: Path, broken: int) -> Path:
    own = folder / definition.name
    return own / f"broken-{broken}" if broken else own


def _planted(definition: Definition, broken: int) -> Break | None:
    return definition.breaks[broken - 1] if broken else None


def kept(
    definition: Definition, scale: Scale, folder: Path, *, whatever: bool = False, broken: int = 0
) -> Entry:
    """Return what an earlier run found, if what it depends on has not changed, or ``whatever``.

    That is the run with the break of that number, if it has one.
    """
    own = _own(definition, folder, broken)
    try:
        record = _record(own / RECORD)
    except (OSError, ValueError, TypeError):
        record = None
    wanted = "" if whatever else fingerprint(definition, scale, _planted(definition, broken))
    if record is None or (not whatever and record.fingerprint != wanted):
        return Entry(definition, None, None, True)
    result = _result(definition, scale, own) if record.status == "finished" else None
    return Entry(definition, record, result, True)


def _record(file: Path) -> Record:
    known = json.loads(file.read_text())
    known.pop("schema", None)  # The version before had none.
    return Record(**known)


def _result(definition: Definition, scale: Scale, own: Path) -> Result | None:
    """Read figures back; what they mean is judged by what the experiment's file says today."""
    try:
        written = json.loads((own / "figures.json").read_text())
        figures = {one["key"]: one for one in written["figures"]}
        values = {key: one["ours"] for key, one in figures.items()}
        margins = {key: one["margin"] for key, one in figures.items() if one["margin"] is not None}
        sheets = [
            Sheet(one["title"], one["heads"], one["rows"], one.get("kept", ()))
            for one in written.get("tables", ())
        ]
        outcome = Outcome(values, lambda _: None, margins, written["notes"], sheets)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Result(definition, scale, written["inputs"], outcome)


def _run(
    definition: Definition, scale: Scale, own: Path, jobs: int | None, broken: int = 0
) -> Entry:
    try:
        own.mkdir(parents=True, exist_ok=True)
        # An experiment that is interrupted has not finished, whatever it had found before.
        (own / RECORD).unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"{own}: {error.strerror}") from error
    hashed = fingerprint(definition, scale, _planted(definition, broken))
    what = [definition.name, scale, str(own), str(os.getpid()), str(jobs or 0), str(broken)]
    command = [sys.executable, "-m", "contigua_experiments.one", *what]
    start = time.monotonic()
    # Its last line says why it ended; progress goes to the terminal.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        try:
            said = process.stdout.read().strip().splitlines()
            _, code, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.terminate()
            process.wait()
            raise
    process.returncode = os.waitstatus_to_exitcode(code)
    status, reason = _ending(process.returncode, said[-1] if said else "")
    record = Record(
        status,
        reason,
        hashed,
        round(time.monotonic() - start, 1),
        round(usage.ru_utime + usage.ru_stime, 1),
    )
    write_whole(
        own / RECORD, json.dumps({"schema": EXPERIMENT_RUN, **asdict(record)}, indent=2) + "\n"
    )
    result = _result(definition, scale, own) if status == "finished" else None
    return Entry(definition, record, result, False)


def _ending(code: int, last: str) -> tuple[Status, str]:
    if code == 0:
        return "finished", ""
    if code == IMPOSSIBLE:
        return "impossible", last
    if code < 0:
        return "failed", f"ended by {signal.Signals(-code).name}"
    return "failed", last or f"ended with status {code}"


def crashed(entries: Sequence[Entry]) -> list[Entry]:
    """Return the experiments that failed though this computer could run them."""
    return [one for one in entries if one.record is not None and one.record.status == "failed"]
