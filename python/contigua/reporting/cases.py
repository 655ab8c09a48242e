"""What differs between runs: designs, which are compared, within cases, in which they compete.

A *case* is everything but the design: the program, the history of memory, the machine, the seed.
Plots and sentences compare designs within one case, and cases only where a single thing varies.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from contigua.presets import flatten
from contigua.results import Report

#: Designs that others are compared with, where they are among the runs; otherwise the first is.
BASELINES = ("linux-4k", "nested-4k")

#: Keys of a configuration that name what other keys say in full.
NAMES = {"design_name": "design", "machine_name": "machine"}


@dataclass(frozen=True)
class Run:
    """One report, and where it stands among the others.

    Attributes
    ----------
    report
        The report.
    case
        Name of its case; empty where there is one case only.
    where
        What its case is, by the names of :attr:`Runs.axes`.
    program
        What ran, in a few words.
    """

    report: Report
    case: str
    where: dict[str, str]
    program: str

    @cached_property
    def values(self) -> dict[str, Any]:
        """The whole report."""
        return self.report.values

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The figures of :meth:`contigua.Report.summary`."""
        return self.report.summary()

    @cached_property
    def intervals(self) -> dict[str, float]:
        """Halves of the intervals of :meth:`contigua.Report.intervals`."""
        return self.report.intervals()

    @property
    def design(self) -> str:
        """Name of the design."""
        return str(self.values["config"]["design_name"])

    @property
    def cycles(self) -> int | None:
        """Cycles; ``None`` where only translation was simulated."""
        time = self.values["time"]
        return None if time is None else int(time["cycles"])

    @property
    def label(self) -> str:
        """Design and case in words."""
        return f"{self.design}, {self.case}" if self.case else self.design


@dataclass(frozen=True)
class Runs:
    """Runs that stand on one page.

    Attributes
    ----------
    all
        Every run, in order of cases.
    axes
        Names of what differs between cases, such as ``"age"``.
    """

    all: tuple[Run, ...]
    axes: tuple[str, ...]

    @cached_property
    def designs(self) -> tuple[str, ...]:
        """Names of all designs, in the order in which they were given."""
        return tuple(dict.fromkeys(run.design for run in self.all))

    @cached_property
    def cases(self) -> dict[str, tuple[Run, ...]]:
        """The runs of each case."""
        found: dict[str, list[Run]] = {}
        for run in self.all:
            found.setdefault(run.case, []).append(run)
        return {case: tuple(runs) for case, runs in found.items()}

    def baseline(self, case: str) -> Run:
        """Return the run that the others of a case are compared with."""
        runs = self.cases[case]
        by_design = {run.design: run for run in reversed(runs)}
        return next((by_design[name] for name in BASELINES if name in by_design), runs[0])

    def speedup(self, run: Run) -> float | None:
        """Return how many times as fast as the case's baseline a run is."""
        before = self.baseline(run.case).cycles
        return before / max(run.cycles, 1) if before and run.cycles is not None else None

    @property
    def timed(self) -> bool:
        """Whether every run has times."""
        return all(run.cycles is not None for run in self.all)


def arrange(reports: Sequence[Report], points: Sequence[Mapping[str, Any]] = ()) -> Runs:
    """Find out what differs between reports, and put them in order of their cases.

    Parameters
    ----------
    reports
        The reports. One that is there twice counts once.
    points
        For each report, what a sweep says of it; its ``workload`` names the program.
    """
    workloads = [point.get("workload") for point in points] or [None] * len(reports)
    once = {(one.json, name): one for one, name in zip(reports, workloads, strict=True)}
    programs = [name or program_name(json.loads(text)) for text, name in once]
    kept = list(once.values())
    configurations = [
        _axes_of(report.values, program) for report, program in zip(kept, programs, strict=True)
    ]
    keys = list(dict.fromkeys(key for one in configurations for key in one))
    varying = [key for key in keys if len({one.get(key) for one in configurations}) > 1]
    # What a name stands for differs whenever the name does; it is an axis of its own only where
    # the same name stands for different things, as in a sweep over a design's parameter.
    axes = [key for key in varying if not _follows(key, configurations)]
    names = _short(axes)
    places = [{names[key]: one.get(key, "none") for key in axes} for one in configurations]
    designs = [report.design for report in kept]
    if _number_repetitions(designs, places):
        names[REPETITION] = REPETITION
    placed = []
    for report, where, program in zip(kept, places, programs, strict=True):
        case = ", ".join(_said(name, value) for name, value in where.items())
        placed.append(Run(report, case, where, program))
    order = {case: index for index, case in enumerate(dict.fromkeys(run.case for run in placed))}
    placed.sort(key=lambda run: order[run.case])
    return Runs(tuple(placed), tuple(names.values()))


#: The axis of runs that differ in nothing that they were told, such as two visits to a server.
REPETITION = "run"


def _number_repetitions(designs: Sequence[str], places: Sequence[dict[str, str]]) -> bool:
    """Give runs that nothing else tells apart an axis that does; say whether there are any."""
    keys = [(design, *where.values()) for design, where in zip(designs, places, strict=True)]
    if len(set(keys)) == len(keys):
        return False
    seen: Counter[tuple[str, ...]] = Counter()
    for key, where in zip(keys, places, strict=True):
        seen[key] += 1
        where[REPETITION] = str(seen[key])
    return True


def _axes_of(values: dict[str, Any], program: str) -> dict[str, str]:
    """Return everything that may tell cases apart, flat, as text."""
    config = dict(values["config"])
    # Memory is the machine's, and is asked for by itself.
    flat = {"program": program}
    flat |= {key: _text(value) for key, value in flatten(config).items()}
    flat["memory"] = flat.pop("machine.memory", "")
    for key in ("design.description", "machine.description", "timeline"):
        flat.pop(key, None)
    return flat


def _follows(key: str, configurations: Sequence[dict[str, str]]) -> bool:
    """Say whether a key's value follows from the name of the design or of the machine."""
    if key == "design_name":
        return True
    for name, table in NAMES.items():
        if key.startswith(f"{table}."):
            pairs = {(one.get(name), one.get(key)) for one in configurations}
            return len(pairs) == len({of for of, _ in pairs})
    return False


def _short(keys: Sequence[str]) -> dict[str, str]:
    """Shorten dotted keys to as little as tells them apart."""
    names: dict[str, str] = {}
    for key in keys:
        if key in NAMES:
            names[key] = NAMES[key]
            continue
        parts = key.split(".")
        for count in range(1, len(parts) + 1):
            name = ".".join(parts[-count:])
            if all(other == key or not f".{other}".endswith(f".{name}") for other in keys):
                break
        names[key] = name
    return names


#: Axes whose values say by themselves what they are.
PLAIN = ("program", "machine", "age", "allocator")


def _said(name: str, value: str) -> str:
    return value if name in PLAIN else f"{name} {value}"


def _text(value: Any) -> str:  # noqa: ANN401 - JSON
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def program_name(values: dict[str, Any]) -> str:
    """Return a program's name and arguments, without the folders that it lies in."""
    command = values["program"]["command"]
    if not command:
        return "trace"
    text = shlex.join([Path(command[0]).name, *command[1:]])
    return text if len(text) <= 60 else f"{text[:57]}..."
