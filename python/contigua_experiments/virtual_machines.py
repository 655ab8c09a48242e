"""Common parts of experiments in virtual machines: their harness, and progress of several runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contigua.programs.program import MissingProgramError
from contigua_experiments.base import Context

#: Folder of the harness in a source checkout.
HARNESS = Path(__file__).resolve().parents[2] / "vm-tests"


def harness(*modules: str) -> list[Any]:
    """Return the harness of the virtual machines, and modules of it by their names.

    Raises
    ------
    MissingProgramError
        When it is not there, or the host lacks something; the message says what.
    """
    if not (HARNESS / "contigua_vm").is_dir():
        raise MissingProgramError(
            f"the virtual machines' harness is not at {HARNESS}; run this from a source checkout "
            "(pip install -e .)"
        )
    if str(HARNESS) not in sys.path:
        sys.path.insert(0, str(HARNESS))
    machines = importlib.import_module("contigua_vm")
    missing = machines.missing_requirement()
    if missing is not None:
        raise MissingProgramError(f"no virtual machines here: {missing}")
    return [machines, *(importlib.import_module(f"contigua_vm.{name}") for name in modules)]


def ticks(context: Context, done: int, runs: int, steps: int) -> Callable[[str], None]:
    """Return what a run calls at each of its steps, about so many, to tell of progress.

    Parameters
    ----------
    context
        Of the experiment.
    done, runs
        How many runs are over, of how many.
    steps
        Of this run; more of them tell nothing.
    """
    now = 0

    def tick(_: str) -> None:
        nonlocal now
        now += 1
        if context.progress is not None:
            context.progress((done + min(now / steps, 1.0)) / runs)

    return tick
