"""TLB entries for pages that hashes place (Gosakan and others, Mosaic Pages, ASPLOS 2023)."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua.programs.program import Program, workload
from contigua.sizes import size_bytes
from contigua_experiments import page_policies, rivals
from contigua_experiments.base import Context, Outcome
from contigua_experiments.running import Cell, run_cells

if TYPE_CHECKING:
    from contigua.page import Page
    from contigua_experiments.running import Values


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every program with each arity, fresh and on used servers; fill memory to the conflict."""
    found = rivals.compare(inputs, context, page_policies.variants(inputs))
    reductions = {}
    for program, by in found.items():
        base = rivals.walks(by["base"])
        reductions[program] = [
            100 - (rivals.share(rivals.walks(by[arity]), base) or 0) for arity in inputs["arities"]
        ]
    steps = [step for series in reductions.values() for step in pairwise(series)]
    every = [one for series in reductions.values() for one in series]

    def full(ours: str, base: str) -> float | None:
        left = rivals.left(found, rivals.walks, ours, base)
        return mean(left) if left else None

    fills = {name: fill(part, inputs, context) for name, part in inputs["fills"].items()}
    values: dict[str, float | None] = {
        "least": min(every),
        "most": max(every),
        "rises": float(sum(after < before for before, after in steps)),
        "occupancy": occupancy(fills["fresh"]),
        "full_kept": full("64-full", "64"),
        "full_colt": full("4-full", "colt-full"),
        "full_thp": full("64-full", "thp-full"),
        "full_misplaced": rivals.share(misplaced(fills["full"]), faults(fills["full"])),
        "gain": rivals.gain(found, "64", "base"),
    }
    columns = {
        "walks": rivals.walks,
        "hits of mosaic pages": lambda values: rivals.counter(values, "mosaic_hits"),
        "entered": lambda values: rivals.counter(values, "mosaic_entered"),
        "pages of those": lambda values: rivals.counter(values, "mosaic_pages"),
        "pages missing": lambda values: rivals.counter(values, "mosaic_pages_missing"),
        "single pages entered": lambda values: rivals.counter(values, "mosaic_plain_entered"),
        "walk cycles": rivals.walk_cycles,
        "cycles": lambda values: float(values["time"]["cycles"]),
    }
    filled = {
        "faults": faults,
        "conflicts": conflicts,
        "placed anywhere": misplaced,
        "in use at the first, %": lambda values: occupancy(values) or 0.0,
    }

    def illustrate(page: Page) -> None:
        rivals.picture(page, found, "Page walks", "walks", rivals.walks)

    sheets = [rivals.sheet(found, columns), rivals.sheet({"sparse": fills}, filled)]
    return Outcome(values, illustrate, sheets=sheets)


def fill(part: dict[str, Any], inputs: dict[str, Any], context: Context) -> Values:
    """Let a program touch much of a server's memory, and return its report."""
    program = Program("sparse", workload("sparse", *part["arguments"]))
    options = RunOptions(
        machine=inputs["machine"],
        memory=part["memory"],
        detail="translation",
        seed=inputs["seed"],
    )
    cell = Cell("mosaic", age=part["age"])
    return run_cells(program, [cell], options, kept=context.kept)[cell]


def faults(values: Values) -> int:
    """Return faults that mapped a new 4 KB page."""
    return int(values["kernel"]["faults_anonymous_4k"])


def conflicts(values: Values) -> int:
    """Return pages for which all frames that their hashes name were in use."""
    return int(values["kernel"].get("placement_conflicts", 0))


def misplaced(values: Values) -> int:
    """Return those of them that were placed anywhere."""
    return int(values["kernel"].get("misplaced_pages", 0))


def occupancy(values: Values) -> float | None:
    """Return memory in use with the first of these, in percent; ``None`` without any."""
    used = values["kernel"].get("used_at_first_conflict", 0)
    frames = size_bytes(values["config"]["machine"]["memory"]) // 4096
    return rivals.share(used, frames) if used else None
