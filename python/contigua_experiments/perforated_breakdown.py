"""Contents and events of the L2 TLB (Perforated Page, ISCA 2020, section 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contigua.presets import machines
from contigua.sizes import size_bytes
from contigua_experiments import perforated
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.running import Cell, Values, run_cells, scenarios

if TYPE_CHECKING:
    from contigua.page import Page

DESIGN = "perforated"
#: Design whose memory and hardware it is compared with.
PLAIN = "linux-thp"
CONTENT = ("4k", "2m", "perforated", "bitmap")


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run the random reads in every scenario under perforated pages."""
    holes = scenarios([1], inputs["fractions"], inputs["patterns"], "remapped")
    program, options = perforated.random_reads(inputs)
    cells = [Cell(PLAIN), *(Cell(DESIGN, one) for one in holes)]
    found = run_cells(program, cells, options, context.progress)
    plain = found.pop(cells[0])
    return figures({cell.holes: values for cell, values in found.items()}, plain, inputs)


def per_thousand_reads(values: Values, counter: str, reads: int) -> float:
    """Return a counter of the scheme per thousand reads."""
    return 1000 * float(values["translation_scheme"][counter]) / reads


def content(values: Values) -> dict[str, float]:
    """Return what the L2 TLB holds in the end, in percent of its entries in use."""
    scheme = values["translation_scheme"]
    entries = {kind: int(scheme[f"l2_content_{kind}"]) for kind in CONTENT}
    whole = max(sum(entries.values()), 1)
    return {kind: 100 * count / whole for kind, count in entries.items()}


def bitmap_share(values: Values) -> float:
    """Return what hole bitmaps take of all memory, in percent."""
    memory = size_bytes(values["config"]["machine"]["memory"])
    return 100 * float(values["memory"]["hole_bitmaps_bytes"]) / memory


def shadow_share(values: Values, plain: Values) -> float:
    """Return what page tables take beyond those of huge pages, in percent of perforated pages."""
    tables = [float(each["memory"]["page_tables_bytes"]) for each in (plain, values)]
    return 100 * (tables[1] - tables[0]) / max(float(values["memory"]["perforated_bytes"]), 1)


def overheads(found: dict[str, Values], plain: Values) -> Sheet:
    """Return what perforated pages take in memory and in the processor."""
    one = next(iter(found.values()))
    bits = {
        name: (int(plain["hardware"][name]), int(one["hardware"][name]))
        for name in ("first_level_tlb_bits", "translation_bits")
    }
    rows = [
        [name.replace("_", " "), f"{before:,}", f"{after:,}", f"{100 * (after / before - 1):.2f} %"]
        for name, (before, after) in bits.items()
    ]
    rows.append(["hole bitmaps, of memory", "0", "", f"{bitmap_share(one):.4f} %"])
    for holes, values in found.items():
        _, fraction, pattern, _ = holes.split(":")
        tables = [each["memory"]["page_tables_bytes"] / 1024 for each in (plain, values)]
        told = f"page tables, KiB: {100 * float(fraction):.1f} % {pattern} holes"
        share = f"{shadow_share(values, plain):.3f} % of the pages"
        rows.append([told, *(f"{kib:.0f}" for kib in tables), share])
    return Sheet("Overheads", ["", PLAIN, DESIGN, "more by"], rows)


def configuration(name: str) -> Sheet:
    """Return the paper's table of the simulated machine beside ours; its sizes are lost."""
    machine = machines.resolve(name)
    tlb, cache = machine["tlb"], machine["cache"]
    first = ", ".join(
        f"{size}: {one['entries']} entries, {one['ways']} ways" for size, one in tlb["l1d"].items()
    )
    second = "; ".join(
        f"{one['entries']} entries, {one['ways']} ways, {one['latency_cycles']} cycles, for "
        + " and ".join(one["holds"])
        for one in tlb["l2"]
    )
    walks = ", ".join(
        f"{level}: {one['entries']} entries" for level, one in machine["walk_cache"].items() if one
    )
    levels = ", ".join(
        f"{level} {cache[level]['size']}, {cache[level]['latency_cycles']} cycles"
        for level in ("l1d", "l2", "llc")
    )
    rows = [
        ["processor", "x86, 2 GHz, one core", f"{machine['description']}, {machine['clock']}"],
        ["caches", "three levels", levels],
        ["memory", "DDR", f"{cache['memory_latency']}, {cache['dram']['channels']} channels"],
        ["L1 TLB", "arrays for 4 KB and for 2 MB", first],
        ["L2 TLB", "4 KB, 2 MB, perforated and bitmap entries together", second],
        ["structure caches", "one for each level, as Intel's", walks],
    ]
    return Sheet("The simulated machine", ["component", "paper", f"ours ({name})"], rows)


def figures(found: dict[str, Values], plain: Values, inputs: dict[str, Any]) -> Outcome:
    """Compute what the paper says of bitmaps and filters."""
    reads = round(perforated.COUNTED * inputs["reads"])
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
        "bitmap_memory": max(map(bitmap_share, found.values())),
        "shadow_memory": max(shadow_share(one, plain) for one in found.values()),
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
    sheets = [
        configuration(inputs["machine"]),
        Sheet("What the L2 TLB holds, and does in a thousand reads", heads, rows),
        overheads(found, plain),
    ]

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
