"""Sampled runs: how they are asked for, and how designs are compared unit by unit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import ceil, log2, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from contigua import _engine
from contigua.errors import ContiguaError

if TYPE_CHECKING:
    from contigua.run_spec import SamplingSpec

#: Parts of a unit's time that are the program's; the kernel's is counted, not sampled.
PROGRAM = ("issue", "branch", "dependence", "fetch", "data", "tlb", "walk")

#: The variation of units of 10,000 instructions (standard deviation over mean, of cycles) that a
#: goal is planned for. Of the programs of ``experiment run sampling-error`` most vary less.
VARIATION = 0.5
#: Errors that can be wanted: reports have every unit, and a smaller error takes millions of them.
GOALS = (0.005, 0.5)
#: Fewer units say too little of their own variation.
FEWEST = 200
#: One of so many units is simulated a second time, after longer warming (`CHECKED` of the engine).
CHECKED = 16
#: Instructions a second, as programs with many TLB and cache misses have them on the slowest
#: computers of docs/performance.md: fast-forward, and simulated on one processor.
FORWARD_SPEED, SIMULATED_SPEED = 150e6, 25e6
#: Numbers of units that a time can ask for. They are multiples of two strata of checked units.
LEAST_UNITS, MOST_UNITS = 64, 8192


class TimeError(ContiguaError):
    """A time within which a program cannot be sampled."""


@dataclass(frozen=True)
class Sampling:
    """Units of detail, one in each stretch of the program; all in instructions but ``most``.

    Attributes
    ----------
    distance
        So many, at first, have one unit among them, at random.
    warm
        Those before each unit that warm caches and TLBs; as many as there are since the last one.
    longer
        One of :data:`CHECKED` units is simulated a second time, by another server that warms it by
        so many times as many. What that changes is added to all estimates, and intervals hold it.
        0: no unit is.
    detail
        Those of a unit, which count.
    most
        The most units: when there are so many, the distance doubles and one of two is dropped, so
        that the time that units take does not grow with the program. 0: as many as there are.
    confidence
        The probability with which intervals hold the value.
    goal
        Half the interval of cycles that is wanted at most, as a share of them; reports say whether
        it was reached, and what would reach it. See :meth:`toward`.
    """

    distance: int = 500_000
    warm: int = 4_000_000
    detail: int = 10_000
    most: int = 2000
    confidence: float = 0.95
    goal: float | None = None
    longer: int = 0

    @staticmethod
    def toward(goal: float, confidence: float = 0.95, detail: int = 10_000) -> Sampling:
        """Plan units for an error.

        Nobody knows before the program's end how long it is, or how much its units vary, and
        recordings must be cut as programs are. So units are as close as makes sense at first, and
        as many are kept as reach the goal where they vary by :data:`VARIATION`: between half of
        ``most`` and ``most`` of them, whatever the program's length.

        Examples
        --------
        >>> Sampling.toward(0.02).most, Sampling.toward(0.01).most
        (4802, 19208)
        """
        quantile = NormalDist().inv_cdf(0.5 + confidence / 2)
        units = ceil((quantile * VARIATION / goal) ** 2)
        return Sampling(
            distance=2 * detail,
            detail=detail,
            most=2 * max(units, FEWEST),
            confidence=confidence,
            goal=goal,
        )

    @staticmethod
    def within(seconds: float, runs: int, processors: int) -> Sampling:
        """Plan as many units as take so long: half of the time is the program's own.

        Nobody knows the program's length before its end. So the number of units is that of a
        program which fast-forwards for half of the time; a shorter one takes less. Of a longer one,
        each doubling adds half of the units, and the program's own time.

        Parameters
        ----------
        seconds
            The time, from the program's start.
        runs
            Designs and other configurations that run beside one another.
        processors
            Processors of this computer.

        Raises
        ------
        TimeError
            When so few units say nothing.

        Examples
        --------
        >>> Sampling.within(120, 2, 2).most, Sampling.within(600, 2, 2).most
        (320, 1696)
        """
        plan = BRIEF
        each = plan.warm * (1 + plan.longer / CHECKED) + plan.detail

        def fits(most: int, seconds: float) -> bool:
            length = seconds / 2 * FORWARD_SPEED
            doublings = max(log2(length / (most * plan.distance)), 0)
            taken = min(most * (1 + doublings / 2) * each, 2 * length) * runs
            return taken <= seconds / 2 * SIMULATED_SPEED * processors

        if not fits(LEAST_UNITS, seconds):
            least = next(more for more in count(ceil(seconds)) if fits(LEAST_UNITS, more))
            raise TimeError(
                f"{seconds:g} s are too few to sample {runs} runs on {processors} processors; give "
                f"{least} s or more"
            )
        step = 2 * CHECKED
        choices = range(LEAST_UNITS, MOST_UNITS + 1, step)
        fitting = [most for most in choices if fits(most, seconds)]
        return replace(plan, most=max(fitting))

    def spec(self, seed: int) -> SamplingSpec:
        """Return what the engine takes; the seed says where units are."""
        spec: SamplingSpec = {
            "distance": self.distance,
            "warm": self.warm,
            "detail": self.detail,
            "seed": seed,
            "most": self.most,
        }
        if self.longer > 1:
            spec["long_warm"] = self.warm * self.longer
        return spec


#: Sampling of recordings: fewer units, because those that are dropped stay in the file. With less
#: warming instead, estimates would be wrong by more than their intervals are wide.
RECORDED = Sampling(most=250)
#: Units for a time: warming with gaps from the start, which is checked.
BRIEF = Sampling(distance=250_000, warm=500_000, most=512, longer=16)


def recorded(trace: str | Path) -> Sampling | None:
    """Say how a recording was sampled; ``None`` if it was not.

    Raises
    ------
    EngineError
        When it cannot be read.
    """
    sampling = json.loads(_engine.trace_plan(trace))["sampling"]
    if sampling is None:
        return None
    keys = ("distance", "warm", "detail", "most")
    longer = sampling.get("long_warm", 0) // max(sampling["warm"], 1)
    return Sampling(**{key: sampling[key] for key in keys}, longer=longer)


@dataclass(frozen=True)
class Ratio:
    """Cycles of a design over those of another one, on the same units.

    Attributes
    ----------
    value
        Below 1 if the design is faster.
    half_width
        Half of its confidence interval.
    units
        Units that both have.
    """

    value: float
    half_width: float
    units: int


def strata(units: list[float], size: int | None) -> list[list[float]]:
    """Group units by the strata that they belong to; the last one has what is left, too."""
    count = max(len(units) // size, 1) if size else 1
    ends = [*((size or 0) * stratum for stratum in range(1, count)), len(units)]
    return [units[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def matched(report: Mapping[str, Any], base: Mapping[str, Any]) -> Ratio | None:
    """Compare the cycles of two sampled reports of one program.

    Designs meet the same instructions in a unit, so what differs between units cancels out, and the
    interval of the ratio is much smaller than those of both cycles (Ekman and Stenström, "Enhancing
    multiprocessor architecture simulation speed using matched-pair comparison", ISPASS 2005).

    Returns
    -------
    Ratio or None
        ``None`` where the reports are not of the same units, or of too few.
    """
    one, other = report.get("sample"), base.get("sample")
    if not one or not other or one["sampling"] != other["sampling"] or not one["quantile"]:
        return None
    lengths = one["by_unit"]["instructions"]
    if lengths != other["by_unit"]["instructions"] or not report["time"] or not base["time"]:
        return None
    cycles, base_cycles = report["time"]["cycles"], base["time"]["cycles"]
    value = cycles / max(base_cycles, 1)
    differences = [
        sum(one["by_unit"][part][unit] - value * other["by_unit"][part][unit] for part in PROGRAM)
        for unit in range(len(lengths))
    ]
    parts = strata(differences, one.get("stratum"))
    squares = sum((x - sum(part) / len(part)) ** 2 for part in parts for x in part)
    error = one["quantile"] * sqrt(squares / (len(differences) - len(parts)) / len(differences))
    change, change_error = _warmed(one, other, value)
    units_in_region = report["executed"]["instructions"] / max(sum(lengths) / len(lengths), 1)
    half = sqrt(error**2 + change**2 + change_error**2) * units_in_region / max(base_cycles, 1)
    return Ratio(value, half, len(lengths))


def _warmed(one: Mapping[str, Any], other: Mapping[str, Any], value: float) -> tuple[float, float]:
    """Return by how much longer warming changes a unit's difference, and half its interval."""
    changes = [_changes(sample) for sample in (one, other)]
    found = [
        changes[0][unit] - value * changes[1][unit] for unit in changes[0] if unit in changes[1]
    ]
    if len(found) < 2:
        return 0.0, 0.0
    mean = sum(found) / len(found)
    squares = sum((change - mean) ** 2 for change in found)
    error = sqrt(squares / (len(found) - 1) / len(found))
    return mean, one["warming"]["quantile"] * error


def _changes(sample: Mapping[str, Any]) -> dict[int, float]:
    """Return by how many cycles longer warming changes each unit that has it."""
    warming = sample.get("warming")
    if not warming:
        return {}

    def cycles(by_unit: Mapping[str, Sequence[int]], unit: int) -> int:
        return sum(by_unit[part][unit] for part in PROGRAM)

    return {
        unit: cycles(warming["by_unit"], place) - cycles(sample["by_unit"], unit)
        for place, unit in enumerate(warming["units"])
    }
