"""Sizes of memory, and counts, as text."""

from __future__ import annotations

import re

from contigua.errors import ContiguaError

SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
#: Powers of ten of counts, by suffix.
POWERS = {"": 0, "K": 3, "M": 6, "G": 9}


class SizeError(ContiguaError):
    """A text that is no size, or no count."""


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
    """Read a count such as ``5000``, ``100M`` or ``1.5G``, whose suffixes are decimal.

    Raises
    ------
    SizeError
        When it is no whole number.

    Examples
    --------
    >>> count_of("5000"), count_of("20k"), count_of("1.5M"), count_of("2G")
    (5000, 20000, 1500000, 2000000000)
    """
    pattern = r"\s*(-?[0-9]{1,30})(?:\.([0-9]{1,30}))?([KMG]?)\s*"
    match = re.fullmatch(pattern, text.replace("_", ""), re.IGNORECASE)
    decimals = (match[2] or "").rstrip("0") if match else ""
    if match is None or len(decimals) > (power := POWERS[match[3].upper()]):
        raise SizeError(f"{text!r} is no count; write, e.g., 5000, 20k, 100M or 1.5G")
    return int(match[1] + decimals.ljust(power, "0"))
