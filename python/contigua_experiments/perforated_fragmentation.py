"""Large pages that an old server can give (Perforated Page, ISCA 2020, section 3).

The paper compiles a kernel on a server of 2 GB and then asks for large pages: few blocks are whole,
many lack some frames. Here servers have one of several ages; each program's memory is what they
give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contigua_experiments import page_policies, perforated
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.running import Cell, Values, cycles, run_cells

if TYPE_CHECKING:
    from contigua.page import Page


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run the random reads on servers of every age."""
    program, options = perforated.random_reads(inputs)
    presets = page_policies.variants({"designs": inputs["compacting"]})
    designs = [inputs["small"], *inputs["designs"], *presets]
    cells = [
        Cell(design, age=age, preset=presets.get(design))
        for age in inputs["ages"]
        for design in designs
    ]
    found = run_cells(program, cells, options, context.progress, record=True)
    return figures({(cell.age or "", cell.design): one for cell, one in found.items()}, inputs)


def coverage(values: Values) -> float:
    """Return the share of the program's memory in 2 MB pages, with or without holes, in percent."""
    return 100 * float(values["memory"]["huge_page_coverage"])


def figures(found: dict[tuple[str, str], Values], inputs: dict[str, Any]) -> Outcome:
    """Compare what conventional and perforated large pages get, and what that brings."""
    small, (split, ours, *_) = inputs["small"], inputs["designs"]
    waiting, around = inputs["compacting"]
    ages = inputs["ages"]
    shares = {key: coverage(values) for key, values in found.items()}
    speeds = {
        (age, design): cycles(found[age, small]) / cycles(values)
        for (age, design), values in found.items()
    }
    values: dict[str, float | None] = {
        "conventional": min(shares[age, split] for age in ages),
        "perforated": min(shares[age, ours] for age in ages),
        "speed": min(speeds[age, ours] / speeds[age, split] for age in ages),
        "compacting": min(shares[age, around] for age in ages),
        "compacting_speed": min(speeds[age, around] / speeds[age, waiting] for age in ages),
    }
    rows = []
    for (age, design), one in found.items():
        with_holes = one["memory"]["perforated_bytes"] / (1 << 20)
        row = [age, design, f"{shares[age, design]:.1f}", f"{with_holes:.0f}"]
        rows.append([*row, f"{speeds[age, design]:.3f}"])
    heads = ["age", "design", "in 2 MB pages, %", "with holes, MiB", "speed over 4 KB pages"]
    sheet = Sheet("Large pages on old servers, and what they bring", heads, rows)
    notes = [
        "The paper's server compiled a kernel and had 2 GB; its figures are lost in the text that "
        "we have. Holes here are where frames are in use; a block with more than 15 % of such "
        "frames is left to 4 KB pages. Where faults compact, holes are where frames cannot move.",
    ]

    shown = [*inputs["designs"], *inputs["compacting"]]

    def illustrate(page: Page) -> None:
        from contigua.pictures import bars_picture

        page.heading("Memory in 2 MB pages")
        bars = {design: [shares[age, design] for age in ages] for design in shown}
        page.picture(
            bars_picture(list(ages), bars, "Memory in 2 MB pages, with or without holes", "%"),
            "Share of the program's memory in 2 MB pages, for each age and design.",
        )
        page.heading("Speed")
        bars = {design: [100 * speeds[age, design] for age in ages] for design in shown}
        page.picture(
            bars_picture(list(ages), bars, "Speed of random reads", "% of 4 KB pages"),
            "Speed of random reads relative to 4 KB pages, for each age and design.",
        )

    return Outcome(values, illustrate, notes=notes, sheets=[sheet])
