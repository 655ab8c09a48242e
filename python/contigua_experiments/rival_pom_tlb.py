"""A very large TLB in memory, in virtual machines (Ryoo and others, POM-TLB, ISCA 2017)."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Any

from contigua_experiments import rivals
from contigua_experiments.base import Context, Outcome

if TYPE_CHECKING:
    from contigua.page import Page
    from contigua_experiments.running import Values


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every program in both virtual machines."""
    found = rivals.compare(inputs, context)
    values: dict[str, float | None] = {
        "walks_left": max(rivals.left(found, rivals.walks, "pom-tlb", "base"), default=None),
        "references": mean(references(by["pom-tlb"]) for by in found.values()),
        "gain": rivals.gain(found, "pom-tlb", "base"),
    }
    columns = {
        "walks": rivals.walks,
        "reads for a miss": references,
        "walk cycles": rivals.walk_cycles,
        "cycles": lambda values: float(values["time"]["cycles"]),
    }

    def illustrate(page: Page) -> None:
        rivals.picture(page, found, "Page walks", "walks", rivals.walks)

    return Outcome(values, illustrate, sheets=[rivals.sheet(found, columns)])


def references(values: Values) -> float:
    """Return reads of memory for a miss of the L2 TLB."""
    reads = rivals.counter(values, "pom_tlb_reads") + int(values["translation"]["references"])
    misses = rivals.counter(values, "pom_tlb_hits") + rivals.walks(values)
    return reads / max(misses, 1)
