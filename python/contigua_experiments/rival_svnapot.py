"""Pages of any power of two (Guvenilir and Patt, Tailored Page Sizes, ISCA 2020; Svnapot)."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean
from typing import TYPE_CHECKING, Any

from contigua_experiments import rivals
from contigua_experiments.base import Context, Outcome

if TYPE_CHECKING:
    from contigua.page import Page
    from contigua_experiments.running import Values


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every program with pages of 4 KB, of 64 KB too, and of any power of two."""
    found = rivals.compare(inputs, context)

    def less(of: Callable[[Values], float]) -> float:
        return 100 - mean(rivals.left(found, of, "any", "base"))

    values: dict[str, float | None] = {
        "references": less(references),
        "first": less(first_level),
        "sizes": mean(rivals.left(found, rivals.walks, "any", "64k")),
        "kept": mean(rivals.left(found, references, "any-full", "base-full")),
    }
    columns = {
        "misses of the first level": first_level,
        "walks": rivals.walks,
        "reads": references,
        "hits of runs": lambda values: rivals.counter(values, "group_hits"),
        "cycles": lambda values: float(values["time"]["cycles"]),
    }

    def illustrate(page: Page) -> None:
        rivals.picture(page, found, "Page walks", "walks", rivals.walks)

    return Outcome(values, illustrate, sheets=[rivals.sheet(found, columns)])


def references(values: Values) -> float:
    """Return page-table entries that were read."""
    return float(values["translation"]["references"])


def first_level(values: Values) -> float:
    """Return misses of the first-level TLB for data."""
    data = values["tlb"]["data"]
    return float(sum(data[f"misses_{size}"] for size in ("4k", "2m", "1g")))
