"""Every number that the papers print as a result: ``numbers.toml``, by name."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from contigua.errors import ContiguaError


class NumbersError(ContiguaError):
    """``numbers.toml`` is not well formed, or has no number of this name."""


@dataclass(frozen=True)
class Number:
    """A number that a paper prints.

    Attributes
    ----------
    name
        Its name in experiments' files: the paper's number among the project's, where it stands,
        and what it is.
    paper
        The paper's number among the project's.
    low, high
        The ends of the printed range; equal where one value is printed.
    unit
        ``"%"``, another unit, or nothing.
    why
        Why nothing compares with it; empty where that is not known.
    """

    name: str
    paper: str
    low: float
    high: float
    unit: str = ""
    why: str = ""


@cache
def printed() -> dict[str, Number]:
    """Read all printed numbers, in the papers' order.

    Raises
    ------
    NumbersError
        When the file is not well formed, or has a name twice.
    """
    file = resources.files(__package__) / "numbers.toml"
    found: dict[str, Number] = {}
    try:
        for group in tomllib.loads(file.read_text())["groups"]:
            for what, value in group["numbers"].items():
                name = f"{group['paper']} {group['where']}: {what}"
                low, high = value if isinstance(value, list) else (value, value)
                if name in found or not low <= high:
                    raise ValueError(f"{name!r} stands twice, or its range is empty")
                found[name] = Number(
                    name,
                    group["paper"],
                    float(low),
                    float(high),
                    group.get("unit", ""),
                    group.get("why", ""),
                )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NumbersError(f"{file.name}: {error}") from error
    return found


def number(name: str) -> Number:
    """Return a printed number.

    Raises
    ------
    NumbersError
        When no number has this name.
    """
    try:
        return printed()[name]
    except KeyError:
        raise NumbersError(f"numbers.toml has no number {name!r}") from None
