"""Native probes: each a process of ``workloads/bin/probe``, repeated in rounds.

Other programs and other virtual machines run on the same processor. So all probes run once in each
round, in an order that changes, and a value is the median over rounds.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles

from contigua.measuring.computer import MeasureError
from contigua.programs.program import WORKLOADS

PROBE = WORKLOADS / "probe"
#: Seconds that one probe may take; the longest takes one.
LONGEST = 60.0


@dataclass(frozen=True)
class Probe:
    """A measure of ``workloads/bin/probe`` and its options."""

    arguments: tuple[str, ...]

    @staticmethod
    def of(line: str) -> Probe:
        """Make one of a command line."""
        return Probe(tuple(line.split()))

    def once(self) -> tuple[float, int]:
        """Run it; nanoseconds for each operation, and KiB of huge pages.

        Raises
        ------
        MeasureError
            When it is not built, or fails.
        """
        if not PROBE.exists():
            raise MeasureError(f"{PROBE} is not built: make -C workloads, in a checkout")
        try:
            done = subprocess.run(
                [PROBE, *self.arguments], capture_output=True, text=True, timeout=LONGEST
            )
        except subprocess.TimeoutExpired:
            raise MeasureError(f"probe {' '.join(self.arguments)}: took over a minute") from None
        if done.returncode:
            raise MeasureError(done.stderr.strip() or f"the probe exited with {done.returncode}")
        return parsed(done.stdout)


def parsed(text: str) -> tuple[float, int]:
    r"""Return the median of a probe's ``ns`` lines, and its KiB of huge pages.

    Examples
    --------
    >>> parsed("huge_kib 2048\nns 3.5\nns 1.5\nns 2.5\n")
    (2.5, 2048)
    """
    times, huge = [], 0
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == "ns":
            times.append(float(value))
        elif key == "huge_kib":
            huge = int(value)
    if not times:
        raise MeasureError("the probe printed no times")
    return median(times), huge


@dataclass(frozen=True)
class Measured:
    """A value with its spread.

    Attributes
    ----------
    value
        The median.
    spread
        Half the distance of the quartiles, as a share of the median.
    repeats
        Rounds.
    """

    value: float
    spread: float
    repeats: int

    @staticmethod
    def of(values: list[float]) -> Measured:
        """Sum up repeated measurements."""
        middle = median(values)
        if len(values) < 2:
            return Measured(middle, 0.0, len(values))
        low, _, high = quantiles(values, n=4, method="inclusive")
        return Measured(middle, (high - low) / 2 / abs(middle) if middle else 0.0, len(values))


@dataclass
class Rounds:
    """Results of probes, by name, in the same order of rounds."""

    times: dict[str, list[float]]
    huge: dict[str, int]

    def value(self, *names: str, of: Callable[..., float] | None = None) -> Measured:
        """Return a probe's value, or what a function makes of those of several, round by round."""
        rounds = zip(*(self.times[name] for name in names), strict=True)
        return Measured.of([of(*values) if of else values[0] for values in rounds])


def measure(
    probes: Mapping[str, Probe],
    seconds: float,
    rounds: int,
    progress: Callable[[float], None] | None = None,
) -> Rounds:
    """Run probes round by round.

    Parameters
    ----------
    probes
        By name.
    seconds
        No round begins that would end later.
    rounds
        At least so many, whatever they take.
    progress
        Called with the part that is done.
    """
    found = Rounds({name: [] for name in probes}, dict.fromkeys(probes, 0))
    order = list(probes)
    began = time.monotonic()
    done = 0
    while True:
        random.Random(done).shuffle(order)
        for index, name in enumerate(order):
            value, huge = probes[name].once()
            found.times[name].append(value)
            found.huge[name] = max(found.huge[name], huge)
            if progress is not None:
                part = done + (index + 1) / len(order)
                taken = time.monotonic() - began
                progress(part / max(rounds, part * seconds / max(taken, 1e-9)))
        done += 1
        taken = time.monotonic() - began
        if done >= rounds and taken * (done + 1) / done > seconds:
            return found
