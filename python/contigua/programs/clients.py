"""Helpers of the clients that drive servers."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from contigua.loads import Commands, Line
from contigua.programs.program import Loaded, ProgramError

#: Address of servers.
HOST = "127.0.0.1"

#: Seconds that a server may take to answer for the first time.
START_TIMEOUT = 120.0


def free_port() -> int:
    """Return a TCP port that nobody listens to."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        port: int = one.getsockname()[1]
        return port


def wait_for(
    answers: Callable[[], bool], stopped: threading.Event, seconds: float = START_TIMEOUT
) -> None:
    """Wait until a server answers.

    Raises
    ------
    ProgramError
        When it does not within so many seconds, or the run was given up.
    """
    end = time.monotonic() + seconds
    while not answers():
        if stopped.is_set():
            raise ProgramError("the server ended before it answered")
        if time.monotonic() > end:
            raise ProgramError(f"the server did not answer within {seconds:.0f} s")
        time.sleep(0.2)


def succeeds(*command: str) -> bool:
    """Return whether a command ends with status 0; its output is dropped."""
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=60
    )
    return done.returncode == 0


def answer(*command: str) -> str:
    """Return what a command prints; nothing where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout if done.returncode == 0 else ""


def call(*command: str, text: str | None = None) -> None:
    """Run a command whose output goes nowhere.

    Raises
    ------
    ProgramError
        When it fails, with the last line of its errors.
    """
    done = subprocess.run(
        command,
        input=text,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
        timeout=1800,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise ProgramError(f"{Path(command[0]).name}: {said[-1]}")


def drive(
    commands: Commands,
    folder: Path,
    stopped: threading.Event,
    loaded: Loaded = nullcontext,
) -> int | None:
    """Drive a server; the client's commands run within ``loaded()``.

    Raises
    ------
    ProgramError
        When the server does not answer, or a command of the client fails.
    """
    try:
        ready = filled(commands.ready, folder)
        wait_for(lambda: all(succeeds(*line) for line in ready), stopped)
        with loaded():
            call_all(commands.client, folder)
    finally:
        # Some end without an answer.
        for line in filled(commands.stop, folder):
            succeeds(*line)
    return commands.requests


def filled(lines: Sequence[Line], folder: Path) -> list[Line]:
    """Put the folder of a run into commands."""
    return [tuple(part.replace("{folder}", str(folder)) for part in line) for line in lines]


def call_all(lines: Sequence[Line], folder: Path) -> None:
    """Run commands one after the other.

    Raises
    ------
    ProgramError
        When one fails.
    """
    for line in filled(lines, folder):
        call(*line)
