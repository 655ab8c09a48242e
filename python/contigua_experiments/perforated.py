"""Common parts of the experiments on Perforated Pages (the Perforated Page paper)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua.programs.program import Program, workload
from contigua_experiments.base import Sheet
from contigua_experiments.running import Cell, Values, cycles, instructions_of

if TYPE_CHECKING:
    from contigua.page import Page

#: Sub-pages of a 2 MB page.
SUB_PAGES = 512

#: Share of random reads that warm TLBs and caches first, and of those that are counted then. The
#: rest is left out: the count of what precedes the reads has the end of the process in it.
WARMING, COUNTED = 0.25, 0.74

#: For each scenario of holes, performance relative to 2 MB pages without holes, in percent.
Series = dict[str, float]


def random_program(size: str, reads: int, holes: str = "none") -> Program:
    """Return random reads of a buffer; unallocated holes of a scenario are not touched."""
    arguments = ["--size", size, "--reads", str(reads)]
    if holes != "none":
        _, fraction, pattern, kind = holes.split(":")
        if kind == "unallocated":
            arguments += ["--skip", fraction]
            arguments += ["--clustered"] if pattern == "clustered" else []
    return Program("random", workload("random", *arguments))


def random_reads(inputs: Mapping[str, Any], holes: str = "none") -> tuple[Program, RunOptions]:
    """Return random reads of an experiment's size, and options that count most of them.

    Filling the buffer is skipped, and the end of the process is not reached.
    """
    options = RunOptions(
        machine=inputs["machine"], memory=inputs["memory"], detail="full", seed=inputs["seed"]
    )
    program = random_program(inputs["size"], inputs["reads"], holes)
    filled = instructions_of(random_program(inputs["size"], 0, holes), options)
    reads = instructions_of(program, options) - filled
    warmup, counted = int(WARMING * reads), int(COUNTED * reads)
    return program, replace(options, skip=filled, warmup=warmup, instructions=counted)


def relative(found: Mapping[Cell, Values], design: str, ideal: Cell) -> Series:
    """Return a design's performance relative to an ideal, by scenario."""
    best = cycles(found[ideal])
    return {
        cell.holes: 100 * best / cycles(values)
        for cell, values in found.items()
        if cell.design == design and cell.holes != "none"
    }


def fraction_of(holes: str) -> float:
    """Return the share of a fragmented page that is holes."""
    return float(holes.split(":")[1])


def share_of(holes: str) -> float:
    """Return the share of pages that are fragmented."""
    return float(holes.split(":")[0])


def up_to(series: Series, fraction: float) -> list[float]:
    """Return the values of scenarios with at most that many holes."""
    return [value for holes, value in series.items() if fraction_of(holes) <= fraction + 1e-9]


def beats(ours: Series, theirs: Series) -> float:
    """Return in how many percent of the scenarios one series is above another one."""
    won = [ours[holes] > theirs[holes] for holes in ours]
    return 100 * mean(won) if won else 100.0


def rises(series: Series) -> float:
    """Return the largest rise where more holes should mean less performance, in points."""
    rise = 0.0
    for holes, value in series.items():
        share, fraction, pattern, kind = holes.split(":")
        for other, later in series.items():
            other_share, other_fraction, *rest = other.split(":")
            same = other_share == share and rest == [pattern, kind]
            if same and float(other_fraction) > float(fraction):
                rise = max(rise, later - value)
    return rise


def sheet(title: str, series: Mapping[str, Series]) -> Sheet:
    """Make a table with one row for each scenario and one column for each design."""
    scenarios = list(next(iter(series.values())))
    rows = []
    for holes in scenarios:
        share, fraction, pattern, kind = holes.split(":")
        told = [f"{100 * float(share):.0f} %", f"{100 * float(fraction):.1f} %", pattern, kind]
        rows.append([*told, *(f"{one[holes]:.1f}" for one in series.values())])
    heads = ["pages with holes", "holes", "pattern", "kind", *series]
    return Sheet(title, heads, rows)


def picture(page: Page, title: str, alt: str, series: Mapping[str, Series]) -> None:
    """Add charts of performance against holes, one for each share and pattern."""
    from contigua.pictures import lines_picture

    first = next(iter(series.values()))
    charts = []
    for key in _keys(first):
        curves = {
            design: _curve((holes, value) for holes, value in one.items() if _key(holes) == key)
            for design, one in series.items()
        }
        share, pattern, kind = key
        charts.append((f"% of ideal, {100 * float(share):.0f} % {pattern}, {kind}", curves))
    page.heading(title)
    page.picture(lines_picture(charts, title, "holes in a page, %"), alt)


def _key(holes: str) -> tuple[str, str, str]:
    share, _, pattern, kind = holes.split(":")
    return share, pattern, kind


def _keys(series: Series) -> list[tuple[str, str, str]]:
    return list(dict.fromkeys(map(_key, series)))


def _curve(points: Iterable[tuple[str, float]]) -> tuple[list[float], list[float]]:
    placed = sorted((100 * fraction_of(holes), value) for holes, value in points)
    return [x for x, _ in placed], [y for _, y in placed]
