"""The few statistics that experiments need, with the intervals that samples deserve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

#: Standard normal quantile of a two-sided 95 % interval.
Z95 = 1.959964

#: Student's t quantile of the same, for 1 to 30 degrees of freedom.
T95 = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)


def student95(freedom: int) -> float:
    """Return Student's t quantile of a two-sided 95 % interval.

    Parameters
    ----------
    freedom
        Degrees of freedom, at least 1. Above 30 by Cornish and Fisher's expansion, which is good
        to three digits there.

    Examples
    --------
    >>> student95(4), round(student95(60), 3)
    (2.7764, 2.0)
    """
    if freedom <= len(T95):
        return T95[freedom - 1]
    return Z95 + (Z95**3 + Z95) / (4 * freedom)


def mean_margin(values: Sequence[float]) -> float | None:
    """Return half the 95 % interval of a mean; ``None`` for a single value, which says nothing.

    Examples
    --------
    >>> round(mean_margin([1.0, 2.0, 3.0]), 3)
    2.484
    """
    n = len(values)
    if n < 2:
        return None
    if min(values) == max(values):
        # Not what rounding makes of it.
        return 0.0
    mean = sum(values) / n
    variance = sum((value - mean) ** 2 for value in values) / (n - 1)
    return student95(n - 1) * math.sqrt(variance / n)


def distribution(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the cumulative distribution as a curve: values, and percent of values up to each."""
    ordered = sorted(values)
    shares = [100 * (index + 1) / len(ordered) for index in range(len(ordered))]
    return [ordered[0], *ordered], [0.0, *shares]


def quantile(values: Sequence[float], part: float) -> float:
    """Return the value below which a part of the values lies (0 to 1), interpolated."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


def percent(flags: Sequence[bool]) -> float:
    """Return the share of true flags, in percent."""
    return 100 * sum(flags) / len(flags)


def percent_margin(flags: Sequence[bool]) -> float:
    """Return half the 95 % (Wilson) interval of a share, in percent."""
    n, p = len(flags), sum(flags) / len(flags)
    spread = math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n * n))
    return 100 * Z95 * spread / (1 + Z95**2 / n)


def median_margin(values: Sequence[float]) -> float:
    """Return half the 95 % interval of a median, from order statistics."""
    ordered, n = sorted(values), len(values)
    reach = Z95 * math.sqrt(n) / 2
    low = ordered[max(0, math.floor(n / 2 - reach))]
    high = ordered[min(n - 1, math.ceil(n / 2 + reach))]
    return (high - low) / 2


def pearson(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return Pearson's correlation; ``None`` where a side does not vary, or under 3 values."""
    n = len(x)
    if n < 3:
        return None
    mean_x, mean_y = sum(x) / n, sum(y) / n
    across = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    square_x = sum((a - mean_x) ** 2 for a in x)
    square_y = sum((b - mean_y) ** 2 for b in y)
    if square_x == 0 or square_y == 0:
        return None
    return across / math.sqrt(square_x * square_y)


def pearson_margin(r: float, n: int) -> float:
    """Return half the 95 % interval of a correlation, by Fisher's transformation."""
    if n < 4 or abs(r) >= 1:
        return 1.0
    z, half = math.atanh(r), Z95 / math.sqrt(n - 3)
    return (math.tanh(z + half) - math.tanh(z - half)) / 2


class Line(NamedTuple):
    """A line through points, by least squares, and the share of their variance it explains."""

    slope: float
    intercept: float
    r2: float


def line(x: Sequence[float], y: Sequence[float]) -> Line | None:
    """Fit a line; ``None`` where ``pearson`` is."""
    r = pearson(x, y)
    if r is None:
        return None
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    across = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    slope = across / sum((a - mean_x) ** 2 for a in x)
    return Line(slope, mean_y - slope * mean_x, r * r)
