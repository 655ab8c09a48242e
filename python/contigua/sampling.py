"""Sampled runs: how they are asked for, and how designs are compared unit by unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

from contigua import _engine

#: Parts of a unit's time that are the program's; the kernel's is counted, not sampled.
PROGRAM = ("issue", "branch", "dependence", "fetch", "data", "tlb", "walk")

#: An odd number that spreads seeds over offsets (the golden ratio of 64 bits).
SPREAD = 0x9E37_79B9_7F4A_7C15


@dataclass(frozen=True)
class Sampling:
    """Units of detail at equal distances, all in instructions but ``most``.

    Attributes
    ----------
    distance
        From the beginning of a unit to that of the next one, at first.
    warm
        Of each unit, those that warm caches and TLBs; as many as fit, which is all of them before
        the distance has doubled a few times.
    detail
        Of each unit, the last ones, which count.
    most
        The most units: when there are so many, the distance doubles and every other one is dropped,
        so that the time that units take does not grow with the program. 0: as many as there are.
    confidence
        The probability with which intervals hold the value.
    """

    distance: int = 500_000
    warm: int = 4_000_000
    detail: int = 10_000
    most: int = 2000
    confidence: float = 0.95

    def spec(self, seed: int) -> tuple[int, int, int, int, int]:
        """Return what the engine takes; the seed says where in the first distance units begin."""
        offset = seed * SPREAD % 2**64 * self.distance >> 64
        return self.distance, self.warm, self.detail, offset, self.most


#: How recordings are sampled: fewer units, because those that are dropped stay in the file. With
#: less warming instead, estimates would be wrong by more than their intervals are wide.
RECORDED = Sampling(most=250)


def recorded(trace: str | Path) -> Sampling | None:
    """Say how a recording was sampled; ``None`` if it was not.

    Raises
    ------
    EngineError
        When it cannot be read.
    """
    _, sampling = _engine.trace_plan(trace)
    if sampling is None:
        return None
    distance, warm, detail, _, most = sampling
    return Sampling(distance, warm, detail, most)


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
    mean = sum(differences) / len(differences)
    squares = sum((difference - mean) ** 2 for difference in differences)
    error = sqrt(squares / (len(differences) - 1) / len(differences))
    units_in_region = report["executed"]["instructions"] / max(sum(lengths) / len(lengths), 1)
    half = one["quantile"] * error * units_in_region / max(base_cycles, 1)
    return Ratio(value, half, len(lengths))
