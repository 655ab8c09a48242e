"""Sampled runs: how they are asked for, and how designs are compared unit by unit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from contigua import _engine

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


@dataclass(frozen=True)
class Sampling:
    """Units of detail, one in each stretch of the program; all in instructions but ``most``.

    Attributes
    ----------
    distance
        So many, at first, have one unit among them, at random.
    warm
        Those before each unit that warm caches and TLBs; as many as there are since the last one,
        which is all of them before the distance has doubled a few times.
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

    def spec(self, seed: int) -> SamplingSpec:
        """Return what the engine takes; the seed says where units are."""
        return {
            "distance": self.distance,
            "warm": self.warm,
            "detail": self.detail,
            "seed": seed,
            "most": self.most,
        }


#: Sampling of recordings: fewer units, because those that are dropped stay in the file. With less
#: warming instead, estimates would be wrong by more than their intervals are wide.
RECORDED = Sampling(most=250)


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
    return Sampling(**{key: sampling[key] for key in keys})


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
    error = sqrt(squares / (len(differences) - len(parts)) / len(differences))
    units_in_region = report["executed"]["instructions"] / max(sum(lengths) / len(lengths), 1)
    half = one["quantile"] * error * units_in_region / max(base_cycles, 1)
    return Ratio(value, half, len(lengths))
