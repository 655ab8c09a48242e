"""An open hashed page table (Yaniv and Tsafrir, Hash, Don't Cache, SIGMETRICS 2016)."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Any

from contigua_experiments import rivals
from contigua_experiments.base import Context, Outcome
from contigua_experiments.rival_ecpt import TABLE_COLUMNS, has_not_begun, latency, let_grow, reads

if TYPE_CHECKING:
    from contigua.page import Page


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every program with each table; let tables begin on fresh and full servers."""
    found = rivals.compare(inputs, context)
    values: dict[str, float | None] = {
        "reads": mean(reads(by["hdc"]) for by in found.values()),
        "reads_most": max(reads(by["hdc"]) for by in found.values()),
        "gain": rivals.gain(found, "hdc", "tree"),
    }
    columns = {
        "walks": rivals.walks,
        "reads of a walk": reads,
        "cycles of a walk": latency,
        "cycles": lambda values: float(values["time"]["cycles"]),
    }
    sheets = [rivals.sheet(found, columns)]
    begun, unbegun = let_grow(inputs["begin"], inputs)
    sheets.append(rivals.sheet({"begin": begun}, TABLE_COLUMNS))
    if {"small", "large"} <= begun.keys():
        values["small"] = float("small full" in begun)
        values["stopped"] = float(has_not_begun(unbegun.get("large full", "")))

    def illustrate(page: Page) -> None:
        rivals.picture(page, found, "Latency of walks", "cycles", latency)

    return Outcome(values, illustrate, sheets=sheets)
