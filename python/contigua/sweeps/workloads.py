"""The programs of a sweep: commands, servers with their clients, and traces.

A program is executed once, recorded, and replayed in every point: so all points see the same
events, a point can be computed again, and workers need nothing installed but this package. The
recording is named by its contents. Beside it stands what was recorded (:class:`Recording`), under
a name made of the command, its executable, its allocator and the emulated processor, so that it is
found again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from contigua import _engine
from contigua.files import write_whole
from contigua.loads import Commands
from contigua.options import RunOptions
from contigua.programs.catalogue import catalogue
from contigua.programs.clients import call_all
from contigua.programs.execute import execute, interruptible
from contigua.programs.program import WORKLOADS, Program, ProgramError, find_program
from contigua.progress import Progress
from contigua.reading import file_digest
from contigua.run_spec import RecordedSpec
from contigua.sweeps.store import Store, SweepError
from contigua.sweeps.tables import Keys, command_lines, nearest, texts

#: Scales of the programs that come with the package.
SCALES = ("tiny", "brief", "small", "large")
#: Digits of a hash that name something.
DIGITS = 32


#: Decides where units of a sampled recording begin, whatever the seeds of its points.
UNITS_SEED = 1


def recorded_plan(options: RunOptions) -> RecordedSpec | None:
    """Say what a recording for these options holds; ``None``: everything."""
    return None if options.sample is None else replace(options, seed=UNITS_SEED).plan()


@dataclass(frozen=True)
class Recording:
    """Recording of a program, and its properties.

    Attributes
    ----------
    digest
        SHA-256 of the trace, which is its name.
    size
        Its size in bytes.
    requests
        Requests that the client of a server had answered, if it counts them.
    """

    digest: str
    size: int
    requests: int | None = None


@dataclass(frozen=True)
class Workload:
    """A program of a sweep.

    Attributes
    ----------
    name
        What the sweep calls it.
    program
        The program, unless it is a trace.
    trace
        The trace, unless it is a program.
    trace_format
        Who wrote the trace.
    identity
        What it was made of, as in the specification.
    """

    name: str
    program: Program | None = None
    trace: Path | None = None
    trace_format: str = "contigua"
    identity: Mapping[str, Any] = field(default_factory=dict)

    def key(self, options: RunOptions) -> str:
        """Name a recording of the program by everything that is known to decide what it does."""
        assert self.program is not None
        preload = options.preload()
        executable = find_program(self.program.command[0])
        libraries = ":".join(map(file_digest, preload.libraries))
        known: dict[str, object] = {
            "version": _engine.VERSION,
            "emulator": _engine.emulator_options(),
            "workload": dict(self.identity),
            "executable": _digest(executable),
            "malloc": [preload.name, libraries or None, preload.clock],
            "seconds": options.seconds,
        }
        if (plan := recorded_plan(options)) is not None:
            known["plan"] = plan
        if addresses := options.addresses():
            known["addresses"] = addresses
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:DIGITS]


def _digest(file: str | Path | None) -> str | None:
    try:
        return None if file is None else file_digest(Path(file))
    except OSError:
        return None


def read_workload(name: str, table: Any, folder: Path) -> Workload:  # noqa: ANN401 - TOML
    """Read a workload of a specification.

    Parameters
    ----------
    name
        Its name there.
    table
        Its table.
    folder
        What relative paths start from.

    Raises
    ------
    SweepError
        When it is not well formed.
    """
    where = f"workloads.{name}"
    if not isinstance(table, dict):
        raise SweepError(f"{where}: write a table, such as {{ command = [...] }}")
    kinds = [kind for kind in ("command", "trace", "program") if kind in table]
    if len(kinds) != 1:
        raise SweepError(f"{where}: give one of command, trace and program")
    kind = kinds[0]
    keys = Keys(where, table)
    identity = json.loads(json.dumps(table, default=str))
    if kind == "trace":
        path = folder / keys.text("trace")
        known = ("contigua", "champsim", "lackey", "drmemtrace")
        trace_format = keys.one_of("format", known, "contigua")
        keys.done()
        if not path.is_file():
            raise SweepError(f"{where}: there is no trace {path}")
        return Workload(name, trace=path.resolve(), trace_format=trace_format, identity=identity)
    if kind == "program":
        called, scale = keys.text("program"), keys.one_of("scale", SCALES, "tiny")
        keys.done()
        programs = catalogue(scale)
        if called not in programs:
            raise SweepError(f"{where}: no program is called {nearest(called, programs)}")
        return Workload(name, programs[called], identity=identity)
    return Workload(name, _command(name, keys), identity=identity)


def _command(name: str, keys: Keys) -> Program:
    table, where = keys.table, keys.where
    keys.known("command", "client", "ready", "stop", "prepare", "needs", "requests")
    keys.done()
    command = texts(f"{where}.command", table["command"])
    client = tuple(command_lines(f"{where}.client", table.get("client", [])))
    prepare = command_lines(f"{where}.prepare", table.get("prepare", []))
    ready = tuple(command_lines(f"{where}.ready", table.get("ready", [])))
    stop = tuple(command_lines(f"{where}.stop", table.get("stop", [])))
    if client and not stop:
        raise SweepError(
            f"{where}: a server needs `stop`, the command that ends it after its client"
        )
    if (ready or stop) and not client:
        raise SweepError(f"{where}: `ready` and `stop` are for servers, which need `client`")
    requests = table.get("requests")
    if requests is not None and (not isinstance(requests, int) or isinstance(requests, bool)):
        raise SweepError(f"{where}.requests: write a whole number")
    needs = table.get("needs", {})
    if not isinstance(needs, dict):
        raise SweepError(f'{where}.needs: write {{ PROGRAM = "DEBIAN PACKAGE" }}')
    return Program(
        name,
        tuple(part.replace("{workloads}", str(WORKLOADS)) for part in command),
        {str(program): str(package) for program, package in needs.items()},
        Commands(client, stop, ready, requests) if client else None,
        (lambda folder: call_all(prepare, folder)) if prepare else None,
    )


# Recordings in a sweep's folder.


def recording_of(store: Store, key: str) -> Recording | None:
    """Return what was recorded under a key, if it was; the trace itself may be gone."""
    try:
        return Recording(**json.loads((store.traces / f"{key}.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def trace_file(store: Store, recording: Recording) -> Path:
    """Name the file of a recording."""
    return store.traces / f"{recording.digest}.trace"


def is_whole(file: Path, recording: Recording) -> bool:
    """Return whether a recording's file is there and unchanged."""
    try:
        return file.stat().st_size == recording.size and file_digest(file) == recording.digest
    except OSError:
        return False


def record(
    store: Store, workload: Workload, options: RunOptions, progress: Progress = interruptible
) -> Recording:
    """Execute a program and record it into the sweep's folder.

    Raises
    ------
    ProgramError, EngineError
        When it is not installed, or fails, or its client does.
    """
    program = workload.program
    assert program is not None
    missing = program.missing()
    if missing is not None:
        raise ProgramError(missing)
    if find_program(program.command[0]) is None:
        raise ProgramError(f"{workload.name}: there is no program {program.command[0]}")
    key = workload.key(options)
    fresh = store.traces / f"{key}.new"
    try:
        with tempfile.TemporaryDirectory(prefix="contigua-") as folder:
            done = execute(
                program,
                Path(folder),
                [],
                record=fresh,
                record_plan=recorded_plan(options),
                preload=options.preload(),
                seconds=options.seconds,
                addresses=options.addresses(),
                progress=progress,
            )
        made = Recording(file_digest(fresh), fresh.stat().st_size, done.requests)
        shutil.move(fresh, trace_file(store, made))
    finally:
        fresh.unlink(missing_ok=True)
    write_whole(store.traces / f"{key}.json", json.dumps(asdict(made)) + "\n")
    return made
