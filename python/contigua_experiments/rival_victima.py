"""Translations in lines of the L2 cache (Kanellopoulos and others, Victima, MICRO 2023)."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Any

from contigua.sizes import size_bytes
from contigua_experiments import rivals
from contigua_experiments.base import Context, Outcome

if TYPE_CHECKING:
    from contigua.page import Page
    from contigua_experiments.running import Values


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every program natively and in virtual machines, with Victima, POM-TLB and neither."""
    found = rivals.compare(inputs, context)
    values: dict[str, float | None] = {
        "walks": 100 - mean(rivals.left(found, rivals.walks, "victima", "base")),
        "lines": mean(covered(by["victima"]) for by in found.values()),
        "misses": mean(rivals.left(found, misses, "victima", "base")),
        "gain": rivals.gain(found, "victima", "base"),
        "over_pom": rivals.gain(found, "victima", "pom-tlb"),
        "limit": rivals.gain(found, "perfect", "base"),
        "nested_gain": rivals.gain(found, "nested-victima", "nested-base"),
        "nested_over_pom": rivals.gain(found, "nested-victima", "nested-pom-tlb"),
    }
    columns = {
        "walks": rivals.walks,
        "hits of blocks": lambda values: rivals.counter(values, "victima_hits"),
        "lines with blocks": lines,
        "blocks after walks": lambda values: rivals.counter(values, "victima_blocks_after_walks"),
        "after evictions": lambda values: rivals.counter(values, "victima_blocks_after_evictions"),
        "refused": lambda values: rivals.counter(values, "victima_refused"),
        "data misses of the L2 cache": misses,
        "walk cycles": rivals.walk_cycles,
        "cycles": lambda values: float(values["time"]["cycles"]),
    }

    def illustrate(page: Page) -> None:
        rivals.picture(page, found, "Page walks", "walks", rivals.walks)

    return Outcome(values, illustrate, sheets=[rivals.sheet(found, columns)])


def lines(values: Values) -> float:
    """Return lines of the L2 cache with translations, mean over its look-ups."""
    lookups = rivals.counter(values, "victima_lookups")
    return rivals.counter(values, "victima_lines") / max(lookups, 1)


def covered(values: Values) -> float:
    """Return lines of the L2 cache with translations, in percent of all."""
    size = size_bytes(values["config"]["machine"]["cache"]["l2"]["size"])
    return 100 * lines(values) * 64 / size


def misses(values: Values) -> float:
    """Return loads and stores that the L2 cache could not serve."""
    data = values["cache"]["data"]
    return float(data["llc"] + data["memory"])
