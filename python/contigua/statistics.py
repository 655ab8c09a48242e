"""Means of few values with the intervals that they deserve."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
