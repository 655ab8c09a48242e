"""Virtual machines on fragmented memory (Perforated Page, ISCA 2020, section 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contigua_experiments import perforated
from contigua_experiments.base import Context, Outcome
from contigua_experiments.running import Cell, cycles, run_cells, scenarios

if TYPE_CHECKING:
    from contigua.page import Page

#: By machine: ideal (and, with holes, the conventional split), 4 KB pages, ours, and
#: the rival.
KINDS = {
    "native": ("linux-thp", "linux-4k", "perforated", "gtsm"),
    "virtual": ("nested-thp", "nested-4k", "nested-perforated", "nested-gtsm"),
}


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run the random reads natively and in a virtual machine."""
    holes = scenarios(inputs["shares"], inputs["fractions"], inputs["patterns"], "remapped")
    program, options = perforated.random_reads(inputs)
    cells = []
    for ideal, small, ours, rival in KINDS.values():
        cells += [Cell(ideal), Cell(small)]
        cells += [Cell(design, one) for design in (ours, rival, ideal) for one in holes]
    found = run_cells(program, cells, options, context.progress)
    series: dict[str, perforated.Series] = {}
    small_shares: dict[str, float] = {}
    for kind, (ideal, small, *designs) in KINDS.items():
        for design in (*designs, ideal):
            series[design] = perforated.relative(found, design, Cell(ideal))
        small_shares[kind] = 100 * cycles(found[Cell(ideal)]) / cycles(found[Cell(small)])
    return figures(series, small_shares)


def gain(series: dict[str, perforated.Series], kind: str) -> float:
    """Return by how much ours is faster than the conventional split, over all scenarios."""
    ideal, _, ours, _ = KINDS[kind]
    ratios = [series[ours][holes] / series[ideal][holes] for holes in series[ours]]
    return sum(ratios) / len(ratios)


def figures(series: dict[str, perforated.Series], small: dict[str, float]) -> Outcome:
    """Compute the paper's figures."""
    ours = series[KINDS["virtual"][2]]
    split = series[KINDS["virtual"][0]]
    native, virtual = gain(series, "native"), gain(series, "virtual")
    values: dict[str, float | None] = {
        "worst_moderate": min(perforated.up_to(ours, 0.1), default=None),
        "above_split": perforated.beats(ours, split),
        "gain_ratio": virtual / native,
    }
    notes = [
        f"Perforated pages over the conventional split: {native:.2f} times natively, "
        f"{virtual:.2f} times in a virtual machine.",
        f"4 KB pages reach {small['native']:.1f} % of ideal natively and {small['virtual']:.1f} % "
        "in a virtual machine. Guest and host are fragmented alike and independently.",
    ]
    sheets = [perforated.sheet("Performance relative to 2 MB pages without holes, %", series)]

    def illustrate(page: Page) -> None:
        alt = "Performance of each design against holes, natively and in a virtual machine."
        perforated.picture(page, "Performance against holes", alt, series)

    return Outcome(values, illustrate, notes=notes, sheets=sheets)
