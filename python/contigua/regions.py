"""Regions of a program that its user names: windows, SimPoints, markers and functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from contigua.errors import ContiguaError
from contigua.reading import ReadError, read_text
from contigua.sizes import SizeError, count_of

if TYPE_CHECKING:
    from contigua.run_spec import PointSpec, RegionSpec, WindowSpec

#: Bytes of a file of SimPoint's; a line takes 30 at most.
MOST_SIMPOINTS = 1 << 20
#: Instructions of an interval, as ``contigua simpoints`` makes them.
INTERVAL = 10_000_000
#: Instructions that warm caches and TLBs before a window: nothing checks whether they suffice.
WARM = 4_000_000
#: Largest distance of the sum of weights from 1: SimPoint writes six digits of each.
ROUNDING = 0.01
#: Counts as the engine has them, of 64 bits.
LARGEST = 2**64 - 1


class RegionError(ContiguaError):
    """Regions that are none."""


@dataclass(frozen=True)
class Regions:
    """Parts of a program that are simulated in detail.

    Made by :meth:`windows`, :meth:`simpoints`, :meth:`markers` or :meth:`function`.

    Attributes
    ----------
    kind
        ``"windows"``, ``"simpoints"``, ``"markers"``, ``"client"`` or ``"function"``.
    spans
        Of windows and SimPoints, begins and ends in instructions of the program.
    weights
        Of SimPoints, the share of the program that each stands for.
    warm
        Of windows and SimPoints, the instructions before each that warm caches and TLBs.
    name
        Of a function, its name.
    keep_warm
        Of markers, clients and functions, whether caches and TLBs are kept warm outside.
    """

    kind: str
    spans: tuple[tuple[int, int], ...] = ()
    weights: tuple[float, ...] = ()
    warm: int = WARM
    name: str | None = None
    keep_warm: bool = False

    @classmethod
    def windows(cls, spans: Iterable[tuple[int, int]], warm: int = WARM) -> Regions:
        """Count windows of the program, from an instruction to another one, and nothing else.

        Examples
        --------
        >>> Regions.windows([(1000, 5000)]).spans
        ((1000, 5000),)
        """
        return cls("windows", tuple(spans), warm=warm)

    @classmethod
    def simpoints(
        cls,
        points: Path | str,
        weights: Path | str,
        interval: int = INTERVAL,
        warm: int = WARM,
    ) -> Regions:
        """Estimate the whole program from intervals that SimPoint chose.

        Parameters
        ----------
        points
            A file of lines ``INTERVAL CLUSTER``; intervals are counted from 0.
        weights
            A file of lines ``WEIGHT CLUSTER``.
        interval
            Instructions of an interval.
        warm
            Instructions before each that warm caches and TLBs.

        Raises
        ------
        ReadError
            When a file cannot be read, or is not as SimPoint 3.2 writes it.
        RegionError
            When the files do not fit each other, or the interval.
        """
        found = read_simpoints(Path(points), Path(weights))
        if not 0 < interval <= LARGEST // (max(number for number, _ in found) + 1):
            raise RegionError(f"an interval of {interval} instructions is out of range")
        spans = ((number * interval, (number + 1) * interval) for number, _ in found)
        return cls("simpoints", tuple(spans), tuple(weight for _, weight in found), warm)

    @classmethod
    def markers(cls, *, keep_warm: bool = False) -> Regions:
        """Count what lies between the program's markers (``contigua.h``, or Sniper's)."""
        return cls("markers", keep_warm=keep_warm)

    @classmethod
    def function(cls, name: str, *, keep_warm: bool = False) -> Regions:
        """Count the calls of a function: ``NAME`` of the program, or ``NAME@FILE`` of another."""
        return cls("function", name=name, keep_warm=keep_warm)

    @classmethod
    def client(cls, *, keep_warm: bool = False) -> Regions:
        """Count what a server does while its client loads it (``RunOptions.client``)."""
        return cls("client", keep_warm=keep_warm)

    def spec(self) -> RegionSpec:
        """Return what the engine takes."""
        windows: list[WindowSpec] = [{"begin": begin, "end": end} for begin, end in self.spans]
        if self.kind == "windows":
            return {"kind": "windows", "warm": self.warm, "windows": windows}
        if self.kind == "simpoints":
            points: list[PointSpec] = [
                {**window, "weight": weight}
                for window, weight in zip(windows, self.weights, strict=True)
            ]
            return {"kind": "sim_points", "warm": self.warm, "points": points}
        if self.kind == "function":
            return {"kind": "function", "name": self.name or "", "keep_warm": self.keep_warm}
        if self.kind == "client":
            return {"kind": "client", "keep_warm": self.keep_warm}
        return {"kind": "markers", "keep_warm": self.keep_warm}


def window_of(text: str) -> tuple[int, int]:
    """Read a window such as ``1G:1.1G``.

    Raises
    ------
    RegionError
        When it is none.

    Examples
    --------
    >>> window_of("20k:1.5M")
    (20000, 1500000)
    """
    begin, colon, end = text.partition(":")
    try:
        if not colon:
            raise SizeError("no colon")
        span = (count_of(begin), count_of(end))
    except SizeError as error:
        raise RegionError(f"{text!r} is no window; write BEGIN:END, e.g., 1G:1.1G") from error
    if not 0 <= span[0] < span[1] <= LARGEST:
        raise RegionError(f"the window {text!r} ends before it begins, or is out of range")
    return span


def region_of(text: str, *, keep_warm: bool = False) -> Regions:
    """Read what ``--region`` takes: ``markers`` or ``function:NAME``.

    Raises
    ------
    RegionError
        When it is neither.
    """
    if text == "markers":
        return Regions.markers(keep_warm=keep_warm)
    kind, _, name = text.partition(":")
    if kind != "function" or not name:
        raise RegionError(f"{text!r} is no region; write markers, or function:NAME")
    return Regions.function(name, keep_warm=keep_warm)


def read_simpoints(points: Path, weights: Path) -> list[tuple[int, float]]:
    """Read what SimPoint 3.2 writes with ``-saveSimpoints`` and ``-saveSimpointWeights``.

    Returns
    -------
    list
        The number of each interval, from 0, and its share of the program, 0 to 1.

    Raises
    ------
    ReadError
        When a file cannot be read, or is not of this form.
    RegionError
        When the files do not fit each other.
    """
    intervals = _pairs(points, r"[0-9]{1,18}", "INTERVAL CLUSTER")
    shares = {
        cluster: float(weight)
        for cluster, weight in _pairs(
            weights, r"[0-9]{0,9}\.?[0-9]{0,30}(?:[eE]-?[0-9]{1,3})?", "WEIGHT CLUSTER"
        ).items()
    }
    if missing := set(intervals) - set(shares):
        raise RegionError(f"{weights}: cluster {min(missing)} of {points} has no weight")
    if missing := set(shares) - set(intervals):
        raise RegionError(f"{points}: cluster {min(missing)} of {weights} has no interval")
    found = [(int(number), shares[cluster]) for cluster, number in intervals.items()]
    numbers = [number for number, _ in found]
    if twice := {number for number in numbers if numbers.count(number) > 1}:
        raise RegionError(f"{points}: interval {min(twice)} is there twice")
    if wrong := [share for share in shares.values() if not 0 <= share <= 1]:
        raise RegionError(f"{weights}: the weight {wrong[0]:g} is no share, 0 to 1")
    total = sum(shares.values())
    if abs(total - 1) > ROUNDING:
        raise RegionError(f"{weights}: weights add up to {total:.4g}, not to 1")
    return sorted(found)


def _pairs(path: Path, first: str, form: str) -> Mapping[int, str]:
    """Read lines of a value and a cluster; values by cluster."""
    found: dict[int, str] = {}
    for number, line in enumerate(read_text(path, MOST_SIMPOINTS).splitlines(), 1):
        if not line.strip():
            continue
        match = re.fullmatch(rf"\s*({first})\s+([0-9]{{1,9}})\s*", line)
        if match is None or not re.search("[0-9]", match[1]):
            raise ReadError(path, f"line {number} is not {form}, as SimPoint writes it")
        if (cluster := int(match[2])) in found:
            raise ReadError(path, f"line {number}: cluster {cluster} is there twice")
        found[cluster] = match[1]
    if not found:
        raise ReadError(path, f"empty; lines of {form} are needed")
    return found


def regions_of(
    windows: Sequence[str],
    points: Path | None,
    weights: Path | None,
    interval: int | None,
    region: str | None,
    warm: int | None,
    *,
    keep_warm: bool,
    is_loaded: bool = False,
) -> Regions | None:
    """Make regions of what the command line says; ``None`` where it names none.

    Raises
    ------
    RegionError
        When options do not go together, or one is wrong.
    ReadError
        When a file is wrong.
    """
    kinds = {
        "--window": bool(windows),
        "--simpoints": points is not None,
        "--region": bool(region),
        "--client": is_loaded,
    }
    given = [kind for kind, is_given in kinds.items() if is_given]
    if len(given) > 1:
        raise RegionError(f"give {given[0]} or {given[1]}, not both")
    needs = {
        "--weights": (weights is not None, "--simpoints"),
        "--interval": (interval is not None, "--simpoints"),
        "--keep-warm": (keep_warm, "--region"),
    }
    for option, (is_given, other) in needs.items():
        if is_given and not kinds[other] and not (option == "--keep-warm" and is_loaded):
            raise RegionError(f"{option} goes with {other}: add it")
    if region:
        return region_of(region, keep_warm=keep_warm)
    if is_loaded:
        return Regions.client(keep_warm=keep_warm)
    warm = WARM if warm is None else warm
    if windows:
        return Regions.windows(map(window_of, windows), warm)
    if points is None:
        return None
    if weights is None:
        raise RegionError("--simpoints needs the weights, too: add --weights FILE")
    return Regions.simpoints(points, weights, INTERVAL if interval is None else interval, warm)
