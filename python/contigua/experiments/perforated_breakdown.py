"""What the L2 TLB holds and does (Perforated Page, ISCA 2020, section 6)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from contigua.experiments import perforated
from contigua.experiments.base import Context, Outcome, Sheet
from contigua.experiments.running import Cell, Values, instructions_of, run_cells, scenarios
from contigua.runner import RunOptions

if TYPE_CHECKING:
    from contigua.page import Page

DESIGN = "perforated"
CONTENT = ("4k", "2m", "perforated", "bitmap")


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run the random reads in every scenario under perforated pages."""
    holes = scenarios([1], inputs["fractions"], inputs["patterns"], "remapped")
    options = RunOptions(
        machine=inputs["machine"], memory=inputs["memory"], detail="additive", seed=inputs["seed"]
    )
    filling = perforated.random_program(inputs["size"], 0)
    options = replace(options, warmup=instructions_of(filling, options))
    program = perforated.random_program(inputs["size"], inputs["reads"])
    cells = [Cell(DESIGN, one) for one in holes]
    found = run_cells(program, cells, options, context.progress)
    return figures({cell.holes: values for cell, values in found.items()}, inputs)


def per_thousand_reads(values: Values, counter: str, reads: int) -> float:
    """Return a counter of the scheme per thousand reads."""
    return 1000 * float(values["translation_scheme"][counter]) / reads


def content(values: Values) -> dict[str, float]:
    """Return what the L2 TLB holds in the end, in percent of its entries in use."""
    scheme = values["translation_scheme"]
    entries = {kind: int(scheme[f"l2_content_{kind}"]) for kind in CONTENT}
    whole = max(sum(entries.values()), 1)
    return {kind: 100 * count / whole for kind, count in entries.items()}


def figures(found: dict[str, Values], inputs: dict[str, Any]) -> Outcome:
    """Compute what the paper says of bitmaps and filters."""
    reads = inputs["reads"]
    fills = {holes: per_thousand_reads(one, "bitmap_fills", reads) for holes, one in found.items()}
    walks = {holes: per_thousand_reads(one, "hole_walks", reads) for holes, one in found.items()}

    def pairs() -> list[tuple[str, str]]:
        return [
            (holes, holes.replace("clustered", "dispersed"))
            for holes in found
            if "clustered" in holes and holes.replace("clustered", "dispersed") in found
        ]

    values: dict[str, float | None] = {
        "clustered_not_above": (
            100 * sum(fills[a] <= fills[b] for a, b in pairs()) / len(pairs()) if pairs() else None
        ),
        "most_bitmap_share": max(content(one)["bitmap"] for one in found.values()),
    }
    rows = []
    for holes, one in found.items():
        _, fraction, pattern, _ = holes.split(":")
        held = [f"{value:.1f}" for value in content(one).values()]
        events = [
            f"{per_thousand_reads(one, name, reads):.1f}"
            for name in ("l2_hits_perforated", "l2_hits_bitmap", "bitmap_fills", "hole_walks")
        ]
        rows.append([f"{100 * float(fraction):.1f} %", pattern, *held, *events])
    heads = ["holes", "pattern", *(f"{kind}, % of entries" for kind in CONTENT)]
    heads += ["perforated hits /1000", "bitmap hits", "bitmap fills", "hole walks"]
    sheets = [Sheet("What the L2 TLB holds, and does in a thousand reads", heads, rows)]

    def illustrate(page: Page) -> None:
        from contigua.pictures import lines_picture

        charts = [
            ("bitmap fills a thousand reads", _curves(fills)),
            ("hole walks a thousand reads", _curves(walks)),
            ("bitmaps, % of L2 TLB", _curves({h: content(o)["bitmap"] for h, o in found.items()})),
        ]
        page.heading("Bitmaps and holes")
        page.picture(
            lines_picture(charts, "Bitmaps and holes", "holes in a page, %"),
            "Bitmap fills and hole walks against the share of holes, clustered and dispersed.",
        )

    return Outcome(values, illustrate, sheets=sheets)


def _curves(values: dict[str, float]) -> dict[str, tuple[list[float], list[float]]]:
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for holes, value in values.items():
        _, fraction, pattern, _ = holes.split(":")
        x, y = curves.setdefault(pattern, ([], []))
        x.append(100 * float(fraction))
        y.append(value)
    return curves
