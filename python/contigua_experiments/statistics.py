"""The few statistics that experiments need, with the intervals that samples deserve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from contigua.statistics import Z95


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
