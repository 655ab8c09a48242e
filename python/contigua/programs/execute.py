"""Execution of a program, with its client if it is a server, for every configuration at once."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from contigua import _engine
from contigua.allocators import Preload
from contigua.errors import ContiguaError
from contigua.files import ENDING
from contigua.loads import Commands
from contigua.programs.clients import drive
from contigua.programs.program import Client, Program, ProgramError, find_program
from contigua.progress import Progress
from contigua.run_spec import ExecutionSpec, RecordedSpec, RunSpec, document


class Execution(NamedTuple):
    """Result of executing a program: reports, and requests answered if its client counts."""

    reports: list[str]
    requests: int | None


def execute(
    program: Program,
    folder: Path,
    specs: Sequence[RunSpec],
    *,
    record: Path | None = None,
    record_plan: RecordedSpec | None = None,
    preload: Preload | None = None,
    seconds: float | None = None,
    addresses: ExecutionSpec | None = None,
    load: _engine.Load | None = None,
    progress: Progress | None = None,
) -> Execution:
    """Execute a program that is installed, with its client if it is a server.

    Parameters
    ----------
    program, folder
        The program, and an empty folder for what it writes.
    specs
        The configurations that watch it.
    record
        Where to record it, too.
    record_plan
        What the recording holds; ``None``: everything.
    preload
        The allocator that it is given.
    seconds
        Stop it after this time.
    addresses
        Choice of its addresses; ``None``: the default.
    load
        Where only a loaded server is measured: tells the engine when that is.
    progress
        As :func:`contigua.run` has it.

    Raises
    ------
    ProgramError
        When it, what prepares it, or its client fails.
    """
    if program.prepare is not None:
        try:
            program.prepare(folder)
        except (OSError, subprocess.SubprocessError) as error:
            raise ProgramError(f"{program.name}: what prepares it failed: {error}") from error
    before = preload or Preload()
    command = [part.replace("{folder}", str(folder)) for part in program.command]
    if shutil.which(command[0]) is None:
        command[0] = find_program(command[0]) or command[0]
    command = ["/bin/sh", "-c", 'exec "$@" > /dev/null 2> "$0"', f"{folder}/errors", *command]
    with Driver(program.client, folder, load) as client:
        reports, status = run_whole(
            specs,
            {
                "command": command,
                "record": record,
                "record_plan": record_plan or {},
                "seconds": seconds,
                **before.spec(),
                **(addresses or {}),
            },
            client.watched(progress or interruptible),
            load,
        )
        client.finish()
    if status != 0:
        errors = (folder / "errors").read_text(errors="replace").strip().splitlines()
        said = f": {errors[-1]}" if errors else ""
        raise ProgramError(f"{program.name} ended with status {status}{said}")
    return Execution(reports, client.answered)


def run_whole(
    specs: Sequence[RunSpec],
    execution: ExecutionSpec,
    progress: Progress | None = None,
    load: _engine.Load | None = None,
) -> tuple[list[str], int]:
    """Run configurations as the engine does, but never return what was cut short.

    The engine takes an interrupt as the wish to see what ran so far, which a table of experiments
    or a sweep must not take for a result.

    Raises
    ------
    KeyboardInterrupt
        When there was one.
    EngineError
        Also when the recording could not be written.
    """
    told = document({"runs": list(specs), "execution": execution})
    progress = progress or interruptible
    if threading.current_thread() is not threading.main_thread():
        return _whole(*_engine.run(told, progress, load))
    handlers = {number: signal.getsignal(number) for number in ENDING}
    handled = {number: handler for number, handler in handlers.items() if callable(handler)}
    seen = threading.Event()

    def interrupted(number: int, frame: FrameType | None) -> None:
        seen.set()
        handled[signal.Signals(number)](number, frame)

    for number in handled:
        signal.signal(number, interrupted)
    try:
        result = _engine.run(told, progress, load)
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
    if seen.is_set():
        raise KeyboardInterrupt
    return _whole(*result)


def _whole(reports: list[str], status: int, failures: list[str]) -> tuple[list[str], int]:
    if failures:
        raise _engine.EngineError(failures[0])
    return reports, status


def interruptible(_: list[tuple[int, int]]) -> None:
    """Let an interrupt through: the engine asks a few times a second."""


class Driver:
    """The client of a server, in a thread of its own; without one, nothing.

    Attributes
    ----------
    load
        Tells the engine when the client begins and ends, where only that is measured.
    """

    def __init__(
        self, client: Client | None, folder: Path, load: _engine.Load | None = None
    ) -> None:
        self.client = client
        self.folder = folder
        self.load = load
        self.stopped = threading.Event()
        self.error: Exception | None = None
        self.answered: int | None = None
        self.thread: threading.Thread | None = None

    def __enter__(self) -> Driver:
        if self.client is not None:
            self.thread = threading.Thread(target=self._drive)
            self.thread.start()
        return self

    def _drive(self) -> None:
        try:
            assert self.client is not None
            if isinstance(self.client, Commands):
                self.answered = drive(self.client, self.folder, self.stopped, self._loaded)
            else:
                self.answered = self.client(self.folder, self.stopped, self._loaded)
        except (OSError, subprocess.SubprocessError, ContiguaError) as error:
            self.error = error

    @contextmanager
    def _loaded(self) -> Iterator[None]:
        if self.load is None:
            yield
            return
        self.load.begin()
        self._wait_until_told(self.load)
        yield
        self.load.end()
        self._wait_until_told(self.load)

    def _wait_until_told(self, load: _engine.Load) -> None:
        while load.is_pending() and not self.stopped.is_set():
            time.sleep(0.01)

    def watched(self, called: Progress) -> Progress:
        """Give up the run when the client has failed: its server would wait for ever."""

        def call(state: list[tuple[int, int]]) -> None:
            self.check()
            called(state)

        return call

    def finish(self, *, is_cut_short: bool = False) -> None:
        """Wait for the client, and raise what went wrong there.

        The client of a run that is over earlier fails, because its server is gone.
        """
        if is_cut_short:
            self.stopped.set()
        if self.thread is not None:
            self.thread.join()
        if not is_cut_short:
            self.check()

    def check(self) -> None:
        """Raise what went wrong in the client."""
        if self.error is not None:
            raise ProgramError(f"the client failed: {self.error}")

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        if self.thread is not None:
            self.thread.join()
