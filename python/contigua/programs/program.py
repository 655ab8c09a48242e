"""A program to study: its command line, what it needs, and what drives it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from contigua.errors import ContiguaError, ImpossibleError
from contigua.loads import Commands

#: Folder of the workloads that a checkout builds; an installed package has none.
WORKLOADS = Path(__file__).parents[3] / "workloads" / "bin"


class ProgramError(ContiguaError):
    """A program that an experiment needs failed."""


class MissingProgramError(ProgramError, ImpossibleError):
    """A program that an experiment needs, or a part of the system, is not there."""


#: A context in which a server is loaded: where only that is measured, it begins and ends it.
Loaded = Callable[[], AbstractContextManager[object]]

#: Fills a server, loads it within ``loaded()``, and ends it. ``stopped`` is set when the run has
#: failed. Returns how many requests were answered, if it counts them.
Client = Callable[[Path, threading.Event, Loaded], int | None] | Commands


@dataclass(frozen=True)
class Program:
    """A program that an experiment runs.

    Attributes
    ----------
    name
        What tables call it.
    command
        The command line; ``{folder}`` stands for a folder of its own.
    needs
        Programs that must be there, with the Debian packages that have them.
    client
        What drives it, if it is a server.
    prepare
        What is run natively before it, in its folder.
    """

    name: str
    command: tuple[str, ...]
    needs: dict[str, str] = field(default_factory=dict)
    client: Client | None = None
    prepare: Callable[[Path], None] | None = None

    def missing(self) -> str | None:
        """Say what is not installed, if anything."""
        for program, package in self.needs.items():
            if find_program(program) is None:
                return f"{self.name}: {program} is not installed (Debian package {package})"
        if self.command[0].startswith(str(WORKLOADS)) and not Path(self.command[0]).exists():
            return f"{self.name}: {self.command[0]} is not built (make -C workloads)"
        return None


def find_program(name: str) -> str | None:
    """Return a program's path; servers' are often not on the path of those who are not root."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def workload(name: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line of one of the project's own workloads."""
    return (str(WORKLOADS / name), *arguments)
