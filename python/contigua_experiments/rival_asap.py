"""Prefetching of page-table entries by registers (Margaritov and others, ASAP, MICRO 2019)."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Any

from contigua_experiments import rivals
from contigua_experiments.base import Context, Outcome

if TYPE_CHECKING:
    from contigua.page import Page
    from contigua_experiments.running import Values


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every program with and without prefetching, natively and in a virtual machine."""
    found = rivals.compare(inputs, context)

    def saved(ours: str, base: str) -> tuple[float, float]:
        kept = rivals.left(found, latency, ours, base)
        return 100 - mean(kept), 100 - min(kept)

    native, native_most = saved("native-asap", "native")
    nested, nested_most = saved("nested-asap", "nested")
    values: dict[str, float | None] = {
        "native": native,
        "nested": nested,
        "order": nested - native,
        "native_most": native_most,
        "nested_most": nested_most,
    }
    columns = {
        "walks": rivals.walks,
        "prefetched": lambda values: rivals.counter(values, "asap_prefetches"),
        "cycles of a walk": latency,
        "cycles": lambda values: float(values["time"]["cycles"]),
    }

    def illustrate(page: Page) -> None:
        rivals.picture(page, found, "Latency of walks", "cycles", latency)

    return Outcome(values, illustrate, sheets=[rivals.sheet(found, columns)])


def latency(values: Values) -> float:
    """Return cycles of a walk."""
    return rivals.walk_cycles(values) / max(rivals.walks(values), 1)
