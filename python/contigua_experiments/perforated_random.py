"""Random access under fragmentation (Perforated Page, ISCA 2020, section 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contigua.kept import Kept
from contigua_experiments import perforated
from contigua_experiments.base import Context, Outcome
from contigua_experiments.running import Cell, Values, run_cells, scenarios

if TYPE_CHECKING:
    from contigua.page import Page

IDEAL = Cell("linux-thp")
SMALL = Cell("linux-4k")
DESIGNS = ("perforated", "gtsm", "linux-thp")


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run the random reads in every scenario."""
    shares, fractions, patterns = inputs["shares"], inputs["fractions"], inputs["patterns"]
    remapped = scenarios(shares, fractions, patterns, "remapped")
    groups = [("none", remapped)]
    # Each scenario of unallocated holes has a program of its own, which leaves them alone.
    groups += [
        (one, scenarios(shares, [fraction], [pattern], "unallocated"))
        for fraction in inputs["unallocated_fractions"]
        for pattern in patterns
        for one in scenarios([1], [fraction], [pattern], "unallocated")
    ]
    series: dict[str, perforated.Series] = {design: {} for design in DESIGNS}
    small: dict[str, float] = {}
    for index, (avoided, group) in enumerate(groups):
        found = run(avoided, group, inputs, context.kept)
        for design in DESIGNS:
            series[design] |= perforated.relative(found, design, IDEAL)
        small[avoided] = 100 * _cycles(found[IDEAL]) / _cycles(found[SMALL])
        if context.progress is not None:
            context.progress((index + 1) / len(groups))
    return figures(series, small["none"])


def _cycles(values: Values) -> float:
    return float(values["time"]["cycles"])


def run(avoided: str, group: list[str], inputs: dict[str, Any], kept: Kept) -> dict[Cell, Values]:
    """Run one program in the scenarios of a group, and the two without holes."""
    program, options = perforated.random_reads(inputs, avoided)
    cells = [IDEAL, SMALL, *(Cell(design, holes) for design in DESIGNS for holes in group)]
    return run_cells(program, cells, options, kept=kept)


def figures(series: dict[str, perforated.Series], small: float) -> Outcome:
    """Compute the paper's figures."""
    ours, split = series["perforated"], series["linux-thp"]
    every_page = [value for holes, value in split.items() if perforated.share_of(holes) == 1]
    values: dict[str, float | None] = {
        "worst_moderate": min(perforated.up_to(ours, 0.1), default=None),
        "above_split": perforated.beats(ours, split),
        "above_gtsm": perforated.beats(ours, series["gtsm"]),
        "rise": perforated.rises(ours),
        "split_as_small": max((abs(value - small) for value in every_page), default=None),
    }
    sheets = [perforated.sheet("Performance relative to 2 MB pages without holes, %", series)]
    notes = [
        f"4 KB pages alone reach {small:.1f} % of 2 MB pages without holes.",
        "The holes of the paper's scenarios are not known (the text of the paper that we have is "
        "damaged); ours are those of mechanisms C6.",
    ]

    def illustrate(page: Page) -> None:
        alt = "Performance of each design falls with the share of holes; perforated pages least."
        perforated.picture(page, "Performance against holes", alt, series)

    return Outcome(values, illustrate, notes=notes, sheets=sheets)
