"""Figures as people write them."""

from __future__ import annotations

from collections.abc import Sequence

#: Names of powers of a thousand, the largest first.
SCALES = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1e3, "thousand"))


def count(value: float) -> str:
    """Say a count in four figures at most.

    Examples
    --------
    >>> count(160602174), count(2856), count(12)
    ('160.6 million', '2,856', '12')
    """
    if abs(value) < 10_000:
        return f"{value:,.0f}"
    for scale, name in SCALES:
        if abs(value) >= scale:
            return f"{value / scale:.1f} {name}"
    raise AssertionError(value)


def percent(share: float, half: float | None = None) -> str:
    """Say a share (0 to 1), with as many decimals as it needs, or with half of its interval.

    Examples
    --------
    >>> percent(0.432), percent(0.0351), percent(0.0), percent(0.00002), percent(1.0)
    ('43 %', '3.5 %', '0 %', 'under 0.1 %', '100 %')
    >>> percent(0.9979), percent(0.99999), percent(0.432, 0.0012)
    ('99.8 %', 'over 99.9 %', '43.2 ± 0.1 %')
    """
    if half:
        return f"{100 * share:.1f} ± {100 * half:.1f} %"
    value = 100 * share
    if 99.95 <= value < 100:
        return "over 99.9 %"
    if value == 0 or 9.95 <= abs(value) < 99.5 or abs(value) >= 100:
        return f"{value:.0f} %"
    if abs(value) < 0.05:
        return "under 0.1 %"
    return f"{value:.1f} %"


def mebibytes(value: float) -> str:
    """Say a size given in MiB.

    Examples
    --------
    >>> mebibytes(20), mebibytes(0.5625), mebibytes(2048)
    ('20.0 MiB', '0.6 MiB', '2.0 GiB')
    """
    return f"{value / 1024:,.1f} GiB" if value >= 1024 else f"{value:,.1f} MiB"


def names(items: Sequence[str]) -> str:
    """Join names as in a sentence.

    Examples
    --------
    >>> names(["a"]), names(["a", "b"]), names(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
