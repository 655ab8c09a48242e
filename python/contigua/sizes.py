"""Sizes of memory as text."""

from __future__ import annotations

import re

from contigua.errors import ContiguaError

SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


class SizeError(ContiguaError):
    """A text that is no size."""


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
