"""Data TLB misses against footprint (Direct Segments, ISCA 2013, Figure 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua.programs.program import Program, workload
from contigua.regions import Regions
from contigua.sizes import size_bytes
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.running import Cell, Values, data_walk_share, run_cells

if TYPE_CHECKING:
    from contigua.page import Page


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run gups at every size."""
    # Neither filling the table nor giving it back is what is studied.
    options = RunOptions(
        machine=inputs["machine"],
        memory=inputs["memory"],
        regions=Regions.function(f"update@{_gups(inputs['sizes'][0], 1).command[0]}"),
        seed=inputs["seed"],
    )
    cells = [Cell(design) for design in inputs["designs"]]
    found: dict[str, dict[str, Values]] = {}
    sizes = inputs["sizes"]
    for index, size in enumerate(sizes):
        reports = run_cells(_gups(size, inputs["updates"]), cells, options, kept=context.kept)
        found[size] = {cell.design: values for cell, values in reports.items()}
        if context.progress is not None:
            context.progress((index + 1) / len(sizes))
    return figures(found, inputs)


def _gups(size: str, updates: int) -> Program:
    arguments = ("--size", size, "--updates", str(updates), "--no-verify")
    return Program("gups", workload("gups", *arguments))


def inflection(sizes: list[int], shares: list[float], threshold: float) -> int | None:
    """Return the first size at which a share is above a threshold, if there is one."""
    return next((size for size, one in zip(sizes, shares, strict=True) if one > threshold), None)


def figures(found: dict[str, dict[str, Values]], inputs: dict[str, Any]) -> Outcome:
    """Find where each size of page begins to miss."""
    small, huge, giant, segment = inputs["designs"]
    sizes = [size_bytes(size) for size in found]
    shares = {
        design: [data_walk_share(by[design]) for by in found.values()]
        for design in inputs["designs"]
    }
    threshold = inputs["threshold"]
    at = {design: inflection(sizes, one, threshold) for design, one in shares.items()}
    reach = {design: size_bytes(size) for design, size in inputs["reach"].items()}
    values: dict[str, float | None] = {
        "segment_most": max(shares[segment]),
        "small_most": max(shares[small]),
        "giant_largest": shares[giant][-1],
        "small_at": _ratio(at[small], reach[small]),
        "huge_at": _ratio(at[huge], reach[huge]),
        "ordered": 100.0 * (shares[small][-1] >= shares[huge][-1] >= shares[giant][-1]),
    }
    rows = [
        [size, *(f"{shares[design][index]:.2f}" for design in inputs["designs"])]
        for index, size in enumerate(found)
    ]
    notes = [
        f"{design}: above {threshold:g} % of cycles from {size >> 20} MiB on; its TLB entries "
        f"reach {reach[design] / (1 << 20):g} MiB."
        if (size := at[design]) is not None
        else f"{design}: never above {threshold:g} % of cycles at these sizes."
        for design in inputs["designs"][:-1]
    ]
    notes.append("The paper's footprints go to 64 GB; walks are longer there.")

    def illustrate(page: Page) -> None:
        from contigua.pictures import lines_picture

        places = [size / (1 << 20) for size in sizes]
        curves = {design: (places, one) for design, one in shares.items()}
        page.heading("Figure 5")
        page.picture(
            lines_picture([("% of cycles in data walks", curves)], "gups", "table, MiB"),
            "Share of walk-active cycles for data against the size of the table.",
        )

    sheet = Sheet("Share of walk-active cycles for data, %", ["table", *inputs["designs"]], rows)
    return Outcome(values, illustrate, notes=notes, sheets=[sheet])


def _ratio(size: int | None, reach: int) -> float | None:
    return None if size is None else size / reach
