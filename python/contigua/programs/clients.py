"""Helpers of the clients that drive servers."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable

from contigua.programs.program import ProgramError

#: Where servers listen.
HOST = "127.0.0.1"

#: Seconds that a server may take to answer for the first time.
START_TIMEOUT = 120.0


def free_port() -> int:
    """Return a TCP port that nobody listens to."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        port: int = one.getsockname()[1]
        return port


def wait_for(answers: Callable[[], bool], stopped: threading.Event) -> None:
    """Wait until a server answers.

    Raises
    ------
    ProgramError
        When it does not within two minutes, or the run was given up.
    """
    end = time.monotonic() + START_TIMEOUT
    while not answers():
        if stopped.is_set():
            raise ProgramError("the server ended before it answered")
        if time.monotonic() > end:
            raise ProgramError(f"the server did not answer within {START_TIMEOUT:.0f} s")
        time.sleep(0.2)


def succeeds(*command: str) -> bool:
    """Whether a command ends with status 0; its output goes nowhere."""
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=60
    )
    return done.returncode == 0


def call(*command: str, text: str | None = None) -> None:
    """Run a command whose output goes nowhere.

    Raises
    ------
    CalledProcessError
        When it fails.
    """
    subprocess.run(
        command,
        input=text,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=1800,
    )
