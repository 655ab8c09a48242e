"""Differences between runs: designs, which are compared, within cases, in which they compete.

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
from statistics import fmean
from typing import Any

from contigua.presets import flatten
from contigua.reports import Report
from contigua.statistics import mean_margin

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
    seeds
        The reports of several seeds, whose mean ``report`` is; empty for one seed.
    """

    report: Report
    case: str
    where: dict[str, str]
    program: str
    seeds: tuple[Report, ...] = ()

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
        """Halves of intervals: over seeds (95 %), else :meth:`contigua.Report.intervals`."""
        return seed_intervals(self.seeds) if self.seeds else self.report.intervals()

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
    failures
        Points of sweeps that failed: their axes, and ``error``, why.
    """

    all: tuple[Run, ...]
    axes: tuple[str, ...]
    failures: tuple[Mapping[str, Any], ...] = ()

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
        """Return whether every run has times."""
        return all(run.cycles is not None for run in self.all)


def arrange(reports: Sequence[Report], points: Sequence[Mapping[str, Any]] = ()) -> Runs:
    """Find out what differs between reports, and put them in order of their cases.

    Reports that differ in nothing but the seed become one run, their mean.

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
    seeded = [key for key in varying if key.rpartition(".")[2] == "seed"]
    varying = [key for key in varying if key not in seeded]
    # What a name stands for differs whenever the name does; it is an axis of its own only where
    # the same name stands for different things, as in a sweep over a design's parameter.
    axes = [key for key in varying if not _follows(key, configurations)]
    names = _short(axes)
    places = [{names[key]: one.get(key, "none") for key in axes} for one in configurations]
    seeds: list[tuple[Report, ...]] = [()] * len(kept)
    if seeded:
        kept, places, programs, seeds = _means(kept, places, programs)
    designs = [report.design for report in kept]
    if _number_repetitions(designs, places):
        names[REPETITION] = REPETITION
    placed = []
    for report, where, program, own in zip(kept, places, programs, seeds, strict=True):
        case = ", ".join(_said(name, value) for name, value in where.items())
        placed.append(Run(report, case, where, program, own))
    order = {case: index for index, case in enumerate(dict.fromkeys(run.case for run in placed))}
    placed.sort(key=lambda run: order[run.case])
    return Runs(tuple(placed), tuple(names.values()))


def _means(
    reports: Sequence[Report], places: Sequence[dict[str, str]], programs: Sequence[str]
) -> tuple[list[Report], list[dict[str, str]], list[str], list[tuple[Report, ...]]]:
    """Put the reports of several seeds together, and return their means with what they are of."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, (report, where) in enumerate(zip(reports, places, strict=True)):
        groups.setdefault((report.design, *where.values()), []).append(index)
    first = [members[0] for members in groups.values()]
    together = [tuple(reports[index] for index in members) for members in groups.values()]
    return (
        [mean_report(members) for members in together],
        [places[index] for index in first],
        [programs[index] for index in first],
        [members if len(members) > 1 else () for members in together],
    )


def mean_report(reports: Sequence[Report]) -> Report:
    """Return a report with the mean of each value; what differs and is no number is the first's.

    Examples
    --------
    >>> two = [Report('{"schema": 2, "a": {"n": 1}}'), Report('{"schema": 2, "a": {"n": 4}}')]
    >>> mean_report(two).values["a"]
    {'n': 2}
    """
    if len(reports) == 1:
        return reports[0]
    values = [report.values for report in reports]
    config = values[0].get("config")
    mean = _mean(values)
    return Report(json.dumps(mean if config is None else {**mean, "config": config}))


def _mean(values: Sequence[Any]) -> Any:  # noqa: ANN401 - JSON
    first = values[0]
    if isinstance(first, dict) and all(isinstance(value, dict) for value in values):
        return {
            key: _mean([value[key] for value in values])
            for key in first
            if all(key in value for value in values)
        }
    if (
        isinstance(first, list)
        and len({len(v) if isinstance(v, list) else -1 for v in values}) == 1
    ):
        return [_mean(each) for each in zip(*values, strict=True)]
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return round(fmean(values))
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    return fmean(values) if numbers else first


def seed_intervals(reports: Sequence[Report]) -> dict[str, float]:
    """Return half of the 95 % interval of each value's mean over seeds (Student's t)."""
    summaries = [report.summary() for report in reports]
    found = {}
    for key in summaries[0]:
        values = [summary[key] for summary in summaries]
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            margin = mean_margin([float(value) for value in values])
            if margin is not None:
                found[key] = margin
    return found


@dataclass(frozen=True)
class Replicas:
    """Reports that differ in nothing but the seed, as one column of a table.

    Attributes
    ----------
    reports
        The reports.
    """

    reports: tuple[Report, ...]

    @cached_property
    def mean(self) -> Report:
        """The report with the mean of each value."""
        return mean_report(self.reports)

    @property
    def values(self) -> dict[str, Any]:
        """The whole report of means."""
        return self.mean.values

    @property
    def replicas(self) -> int:
        """Seeds that it is the mean of."""
        return len(self.reports)

    def summary(self) -> dict[str, Any]:
        """Return the means that are compared most."""
        return self.mean.summary()

    def intervals(self) -> dict[str, float]:
        """Return halves of the means' 95 % intervals, of values that differ."""
        return {key: half for key, half in seed_intervals(self.reports).items() if half > 0}


def by_seed(reports: Sequence[Report]) -> list[Report | Replicas]:
    """Put the reports of several seeds together; those of one stay what they are."""
    groups: dict[str, list[Report]] = {}
    for report in reports:
        values = report.values
        known = {**values["config"], "seed": None, "sampling": None, "events": values["program"]}
        groups.setdefault(json.dumps(known, sort_keys=True), []).append(report)
    found: list[Report | Replicas] = []
    for group in groups.values():
        seeds = {report.values["config"]["seed"] for report in group}
        found += [Replicas(tuple(group))] if len(seeds) == len(group) > 1 else group
    return found


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
