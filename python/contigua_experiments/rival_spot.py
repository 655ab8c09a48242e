"""Offsets that instructions predict (Alverti and others, SpOT, ISCA 2020)."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Any

from contigua_experiments import rivals
from contigua_experiments.base import Context, Outcome

if TYPE_CHECKING:
    from contigua.page import Page
    from contigua_experiments.running import Values


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every program natively, in a virtual machine, and on a full server."""
    found = rivals.compare(inputs, context)

    def left(ours: str, base: str) -> float | None:
        kept = rivals.left(found, rivals.walk_cycles, ours, base)
        return mean(kept) if kept else None

    values: dict[str, float | None] = {
        "nested_left": left("nested-spot", "nested"),
        "nested_overhead": mean(overhead(by["nested-spot"]) for by in found.values()),
        "native_left": left("native-spot", "native"),
        "full_left": left("native-spot-full", "native-full"),
    }
    columns = {
        "walks": rivals.walks,
        "predicted right": lambda values: rivals.counter(values, "spot_right"),
        "wrong": lambda values: rivals.counter(values, "spot_wrong"),
        "walk cycles": rivals.walk_cycles,
        "overhead, %": overhead,
    }

    def illustrate(page: Page) -> None:
        rivals.picture(page, found, "Translation overhead", "% of cycles", overhead)

    return Outcome(values, illustrate, sheets=[rivals.sheet(found, columns)])


def overhead(values: Values) -> float:
    """Return the cycles that a perfect TLB would save, in percent."""
    return 100 * float(values["time"]["translation_overhead"])
