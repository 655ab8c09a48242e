"""Sizes of memory, counts and times, as text."""

from __future__ import annotations

import re

from contigua.errors import ContiguaError

SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
#: Powers of ten of counts, by suffix.
POWERS = {"": 0, "K": 3, "M": 6, "G": 9}
#: Seconds of units of time, by suffix.
SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
#: Units of numbers without one, in messages.
NAMES = {"ns": "nanoseconds", "s": "seconds", "h": "hours"}


class SizeError(ContiguaError):
    """A text that is no size, no count, or no time."""


def size_bytes(text: str) -> int:
    """Read a size such as ``64G``, ``64GB`` or ``64GiB``, all of which are binary, or ``512B``.

    Raises
    ------
    SizeError
        When it is no size.
    """
    match = re.fullmatch(r"\s*(\d+)\s*([KMGT]?)i?B?\s*", str(text), re.IGNORECASE)
    if match is None:
        raise SizeError(f"{text!r} is no size; write, e.g., 64GiB")
    return int(match[1]) << SHIFTS[match[2].upper()]


def count_of(text: str) -> int:
    """Read a count such as ``5000``, ``100M``, ``1.5G`` or ``1e9``; suffixes are decimal.

    Raises
    ------
    SizeError
        When it is no whole number.

    Examples
    --------
    >>> count_of("5000"), count_of("20k"), count_of("1.5M"), count_of("2G"), count_of("1e9")
    (5000, 20000, 1500000, 2000000000, 1000000000)
    """
    pattern = r"\s*(-?[0-9]{1,30})(?:\.([0-9]{1,30}))?(?:([KMG]?)|e\+?([0-9]{1,2}))\s*"
    match = re.fullmatch(pattern, text.replace("_", ""), re.IGNORECASE)
    decimals = (match[2] or "").rstrip("0") if match else ""
    power = 0 if match is None else int(match[4] or 0) or POWERS[(match[3] or "").upper()]
    if match is None or len(decimals) > power:
        raise SizeError(f"{text!r} is no count; write, e.g., 5000, 20k, 100M, 1.5G or 1e9")
    return int(match[1] + decimals.ljust(power, "0"))


def seconds_of(text: str, unit: str = "s") -> float:
    """Read a time such as ``0.5s``, ``200ms``, ``2m`` or ``1.5h``; a number alone has the unit.

    Raises
    ------
    SizeError
        When it is no time.

    Examples
    --------
    >>> seconds_of("5"), seconds_of("200ms"), seconds_of("2m"), seconds_of("1.5", "h")
    (5.0, 0.2, 120.0, 5400.0)
    """
    match = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([a-z]*)\s*", text, re.IGNORECASE)
    if match is None or (match[2] and match[2].lower() not in SECONDS):
        raise SizeError(
            f"{text!r} is no time; write, e.g., 5 ({NAMES[unit]}), 200ms, 30s, 2m or 1h"
        )
    return float(match[1]) * SECONDS[match[2].lower() or unit]


def size_text(size: int) -> str:
    """Write a size with the largest binary unit that leaves at least 1.

    Examples
    --------
    >>> size_text(4096), size_text(3 << 29), size_text(100)
    ('4 KB', '1.5 GB', '100 B')
    """
    for suffix in ("T", "G", "M", "K"):
        if size >> SHIFTS[suffix]:
            value = size / (1 << SHIFTS[suffix])
            return (
                f"{value:.0f} {suffix}B"
                if value >= 10 or value.is_integer()
                else f"{value:.1f} {suffix}B"
            )
    return f"{size} B"


def duration(seconds: float) -> str:
    """Say a time in the unit in which it has one to three digits.

    Examples
    --------
    >>> duration(0.0123), duration(10), duration(2.5e-6), duration(0), duration(7200)
    ('12.3 ms', '10 s', '2.5 us', '0 s', '2 h')
    """
    for size, unit in ((3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0 s"
