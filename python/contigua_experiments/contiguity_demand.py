"""Needs of each design in physical memory, and the gain that aged memory leaves it.

Programs run a part of theirs on fresh memory under Linux, and on aged memory under each placement.
A gain is that in speed over Linux with 4 KB pages on memory of the same age. What is left of it is
the gain on aged memory over that on fresh memory, from the geometric means of the programs; with
intervals over servers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

import tomli_w

from contigua import _engine
from contigua.files import write_whole
from contigua.options import RunOptions
from contigua.presets import designs, laid_over
from contigua.programs.program import Program
from contigua.statistics import mean_margin
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.combinations import PLACEMENTS
from contigua_experiments.running import Cell, cycles, run_cells, sized

if TYPE_CHECKING:
    from contigua.page import Page

#: Configurations that read one execution.
TOGETHER = 24
#: Of a design with less of a gain on fresh memory, in percent, what is left is not told.
LEAST_GAIN = 1.0
FRESH = "fresh"
LINUX = "linux"
BASE = "linux-4k"


class Place(NamedTuple):
    """A design on a server: its placement, its age, and the seed of its history."""

    design: str
    placement: str
    age: str
    seed: int


#: Cycles of each program's part; places that could not run are absent.
Found = dict[str, dict[Place, float]]


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every program's part in every place."""
    options = RunOptions(
        machine=inputs["machine"], memory=inputs["memory"], detail="full", seed=inputs["seeds"][0]
    )
    places = places_of(inputs)
    folder = context.folder / "designs"
    folder.mkdir(parents=True, exist_ok=True)
    cells = {
        one: Cell(
            _written(one, inputs, folder),
            age=None if one.age == FRESH else one.age,
            seed=one.seed,
        )
        for one in places
    }
    found: Found = {}
    failed: dict[Place, str] = {}
    for index, (name, part) in enumerate(inputs["parts"].items()):
        # Where the function begins, so that what warms lies in it, too.
        program, first = sized(name, {**part, "instructions": 1}, options)
        (begun,) = run_cells(program, [Cell(BASE)], first, kept=context.kept).values()
        counted = replace(
            options,
            skip=int(begun["regions"]["begins"][0]),
            warmup=part["warmup"],
            instructions=part["instructions"],
        )
        found[name] = {}
        for start in range(0, len(places), TOGETHER):
            batch = {one: cells[one] for one in places[start : start + TOGETHER]}
            found[name] |= run_together(program, batch, counted, context, failed)
            if context.progress is not None:
                done = (start + len(batch)) / len(places)
                context.progress((index + done) / len(inputs["parts"]))
    return figures(found, inputs, failed)


def places_of(inputs: Mapping[str, Any]) -> list[Place]:
    """Return where designs run: on fresh memory under Linux, on aged under each placement."""
    found = []
    for seed in inputs["seeds"]:
        for design in (BASE, *inputs["compared"]):
            found.append(Place(design, LINUX, FRESH, seed))
            for age in inputs["ages"]:
                # 4 KB pages lie as they do wherever the placement puts them.
                placements = [LINUX] if design == BASE else inputs["placements"]
                found += [Place(design, placement, age, seed) for placement in placements]
    return found


def _written(place: Place, inputs: Mapping[str, Any], folder: Path) -> str:
    """Write a place's design with its placement, and return its path."""
    design = tomllib.loads(designs.get(place.design).text)
    placement = tomllib.loads(PLACEMENTS[place.placement])
    for own in (placement, inputs["scaled"].get(place.placement, {})):
        design = laid_over(design, own)
    path = folder / f"{place.design}.{place.placement}.toml"
    write_whole(path, tomli_w.dumps(design))
    designs.resolve(str(path))
    return str(path)


def run_together(
    program: Program,
    cells: Mapping[Place, Cell],
    options: RunOptions,
    context: Context,
    failed: dict[Place, str],
) -> dict[Place, float]:
    """Run a program once in some cells; in parts, to find those that have no memory for it."""
    try:
        reports = run_cells(program, list(cells.values()), options, kept=context.kept)
    except _engine.EngineError as error:
        if len(cells) == 1:
            failed[next(iter(cells))] = str(error)
            return {}
        places = list(cells)
        halves = places[: len(places) // 2], places[len(places) // 2 :]
        parts = [
            run_together(program, {one: cells[one] for one in half}, options, context, failed)
            for half in halves
        ]
        return parts[0] | parts[1]
    return {place: cycles(reports[cell]) for place, cell in cells.items()}


def gain(found: Found, place: Place) -> float | None:
    """Return the gain over 4 KB pages in percent, by the geometric mean of the programs."""
    base = Place(BASE, LINUX, place.age, place.seed)
    speeds = [by[base] / by[place] for by in found.values() if base in by and place in by]
    if len(speeds) < len(found):
        return None
    return 100 * (exp(mean(log(speed) for speed in speeds)) - 1)


def left(found: Found, place: Place) -> float | None:
    """Return what is left of a design's gain on fresh memory, in percent."""
    fresh = gain(found, place._replace(placement=LINUX, age=FRESH))
    aged = gain(found, place)
    return None if fresh is None or aged is None or fresh < LEAST_GAIN else 100 * aged / fresh


def figures(found: Found, inputs: dict[str, Any], failed: Mapping[Place, str]) -> Outcome:
    """Set what is left of gains beside what designs need."""
    seeds, oldest = inputs["seeds"], inputs["ages"][-1]
    values: dict[str, float | None] = {}
    margins: dict[str, float] = {}

    def of(group: Sequence[str], placement: str) -> dict[int, float]:
        """Return what is left on the oldest server of each seed, mean of a group's designs."""
        by_seed = {}
        for seed in seeds:
            parts = [left(found, Place(name, placement, oldest, seed)) for name in group]
            told = [part for part in parts if part is not None]
            if told:
                by_seed[seed] = mean(told)
        return by_seed

    def add(key: str, by_seed: Sequence[float]) -> None:
        values[key] = mean(by_seed) if by_seed else None
        if (margin := mean_margin(by_seed)) is not None:
            margins[key] = margin

    large = [name for name, one in inputs["compared"].items() if one["large"]]
    small = [name for name in inputs["compared"] if name not in large]
    base = of(large, LINUX)
    add("linux_small", list(of(small, LINUX).values()))
    add("linux_large", list(base.values()))
    for placement in inputs["placements"][1:]:
        more = of(large, placement)
        add(f"{placement}_more", [more[seed] - base[seed] for seed in more if seed in base])
    add("contiguitas_large", list(of(large, inputs["placements"][-1]).values()))
    notes = [
        "Gain: speed over that of Linux with 4 KB pages on memory of the same age, the geometric "
        "mean of the programs, in percent; ± is half the 95 % interval (Student's t) over "
        f"{len(seeds)} servers. Of a program, a part is simulated: the function that does its "
        "work, after the program has filled its memory.",
        "4 KB pages lie where Linux places them, whatever the placement they are the base of.",
    ]
    reasons: dict[str, list[str]] = {}
    for place, why in failed.items():
        reasons.setdefault(why.partition(";")[0], []).append(
            f"{place.design} ({place.placement}, {place.age}, {place.seed})"
        )
    notes += [f"Did not run: {', '.join(names)}: {why}." for why, names in reasons.items()]

    def illustrate(page: Page) -> None:
        from contigua.pictures import bars_picture

        bars = {FRESH: [_mean(found, name, LINUX, FRESH, seeds) for name in large]}
        bars |= {
            placement: [_mean(found, name, placement, oldest, seeds) for name in large]
            for placement in inputs["placements"]
        }
        title = f"Gain of designs with large blocks on fresh memory, and on a {oldest} server"
        page.heading(title)
        page.picture(
            bars_picture(large, bars, title, "% over 4 KB pages"),
            f"{title}, by design and placement.",
        )

    return Outcome(values, illustrate, margins, notes, [sheet(found, inputs)])


def _mean(found: Found, design: str, placement: str, age: str, seeds: Sequence[int]) -> float:
    gains = [gain(found, Place(design, placement, age, seed)) for seed in seeds]
    told = [one for one in gains if one is not None]
    return mean(told) if told else 0.0


def sheet(found: Found, inputs: Mapping[str, Any]) -> Sheet:
    """Make the table: a row for each design."""
    columns = [(LINUX, FRESH), *((p, a) for a in inputs["ages"] for p in inputs["placements"])]
    rows = []
    for name, one in inputs["compared"].items():
        row = [name, one["needs"]]
        for placement, age in columns:
            gains = [
                told
                for seed in inputs["seeds"]
                if (told := gain(found, Place(name, placement, age, seed))) is not None
            ]
            margin = mean_margin(gains)
            half = "" if margin is None else f" ± {margin:.1f}"
            row.append(f"{mean(gains):.1f}{half}" if gains else "does not run")
        rows.append(row)
    heads = ["design", "needs of memory", FRESH]
    heads += [f"{age}, {placement}" for placement, age in columns[1:]]
    return Sheet("Gain over 4 KB pages, %", heads, rows, heads[2:])
