"""Gain of programs from contiguity (Contiguitas, ISCA 2023, section 5.1; article).

A program arrives on a server that others have left: *partial*, one of a fleet taken at random, or
*full*, one whose free memory files have taken. The server aged under Linux' placement or under
that of Contiguitas. What is counted begins when the program has filled its memory: a server while
its client asks it, a workload in the function that reads. Every program is executed once, and all
servers see the same events.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua.statistics import mean_margin
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.running import (
    Cell,
    Values,
    cycles,
    data_walk_share,
    main_parts,
    resident,
    run_cells,
)

if TYPE_CHECKING:
    from contigua.page import Page

AGES = ("partial", "full")


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every program on every server."""
    options = RunOptions(machine=inputs["machine"], detail=inputs["detail"])
    found: dict[str, dict[Cell, Values]] = {}
    runs, notes = main_parts(inputs, options)
    for index, (program, own) in enumerate(runs):
        found[program.name] = run_cells(program, cells(inputs), own, kept=context.kept)
        if context.progress is not None:
            context.progress((index + 1) / len(runs))
    return figures(found, inputs, notes)


def cells(inputs: dict[str, Any]) -> list[Cell]:
    """Return both placements on both servers, and both large pages on a full one, by seed."""
    compared = (pairs(inputs, seed).values() for seed in inputs["seeds"])
    # A server may be compared with two others.
    return list(dict.fromkeys(cell for each in compared for pair in each for cell in pair))


def pairs(inputs: dict[str, Any], seed: int) -> dict[str, tuple[Cell, Cell]]:
    """Return which servers are compared: the second one's gain over the first."""
    linux, huge, giant = inputs["linux"], inputs["contiguitas"], inputs["giant"]

    def server(design: str, age: str, memory: str) -> Cell:
        return Cell(design, age=age, memory=inputs[memory], seed=seed)

    return {
        **{
            age: (server(linux, age, f"{age}_memory"), server(huge, age, f"{age}_memory"))
            for age in AGES
        },
        GIANT: (server(huge, "full", "giant_memory"), server(giant, "full", "giant_memory")),
    }


GIANT = "1 GB over 2 MB"
EXTREMES = {
    "partial_least": ("partial", min),
    "partial_most": ("partial", max),
    "full_least": ("full", min),
    "full_most": ("full", max),
    "giant_most": (GIANT, max),
}


def gain(old: Values, new: Values) -> float:
    """Return how much more is done in a cycle, in percent: both run the same events."""
    return 100 * (cycles(old) / cycles(new) - 1)


def figures(
    found: dict[str, dict[Cell, Values]], inputs: dict[str, Any], notes: list[str]
) -> Outcome:
    """Set the gains of all programs beside the paper's range."""
    by_seed = [pairs(inputs, seed) for seed in inputs["seeds"]]
    gains = {
        kind: {
            name: [gain(by[one[kind][0]], by[one[kind][1]]) for one in by_seed]
            for name, by in found.items()
        }
        for kind in by_seed[0]
    }
    values: dict[str, float | None] = {}
    margins: dict[str, float] = {}
    for key, (kind, choose) in EXTREMES.items():
        values[key] = None
        if gains[kind]:
            extreme = choose(gains[kind].values(), key=fmean)
            values[key] = fmean(extreme)
            margins[key] = mean_margin(extreme) or 0.0
    rows = [
        [
            name,
            f"{resident(by[by_seed[0]['partial'][0]]) / 2**30:.1f} GiB",
            *(_with_margin(one[name]) for one in gains.values()),
            *_coverage(by, by_seed[0]),
        ]
        for name, by in found.items()
    ]
    heads = ["program", "memory", *(f"{kind}, %" for kind in gains)]
    heads += [f"2 MB coverage, {age}, {who}" for age in AGES for who in ("Linux", "Contiguitas")]
    walks = [
        [
            name,
            *(f"{data_walk_share(by[cell]):.1f}" for pair in by_seed[0].values() for cell in pair),
        ]
        for name, by in found.items()
    ]
    title = "Gain in throughput from Contiguitas' placement"
    notes = [
        *notes,
        "Throughput is work in a simulated cycle: all servers see the same events. What is counted "
        "begins when memory is filled, and begins with empty caches and TLBs. ± is half the 95 % "
        f"interval (Student's t) over {len(inputs['seeds'])} servers of each kind.",
        "Pages of 1 GB are set aside before the server ages; with Contiguitas they could be "
        "made later, since nothing in the movable region is in their way.",
    ]

    def illustrate(page: Page) -> None:
        from contigua.pictures import bars_picture

        bars = {kind: [fmean(each) for each in one.values()] for kind, one in gains.items()}
        page.heading("Gain of each program")
        page.picture(
            bars_picture(list(found), bars, title, "%"),
            "Gain of each program on partial and full memory, and with 1 GB pages.",
        )

    sheets = [
        Sheet(title, heads, rows),
        Sheet(
            f"Cycles in which a walk for data is active, %, seed {inputs['seeds'][0]}",
            [
                "program",
                *(f"{kind}: {cell.design}" for kind, pair in by_seed[0].items() for cell in pair),
            ],
            walks,
        ),
    ]
    return Outcome(values, illustrate, margins, notes=notes, sheets=sheets)


def _with_margin(gains: list[float]) -> str:
    margin = mean_margin(gains)
    return f"{fmean(gains):+.2f}" + ("" if margin is None else f" ± {margin:.2f}")


def _coverage(by: dict[Cell, Values], compared: dict[str, tuple[Cell, Cell]]) -> list[str]:
    """Write the share of memory in huge pages on each server."""
    reports = (by[cell] for age in AGES for cell in compared[age])
    return [f"{100 * one['memory']['huge_page_coverage']:.0f} %" for one in reports]
