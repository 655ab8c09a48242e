"""Contiguity across a fleet (Contiguitas, ISCA 2023, figures 4 to 6).

One calibration, ``data/fleet.toml``, gives all figures. Some were used to choose it; the TOML file
beside this one says which.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from contigua import _engine
from contigua.ageing import BLOCK_SIZES, FRAME, AgedServer, MemoryMap, age
from contigua.calibration import calibration, draw
from contigua.fleet import FleetOptions, Row, kept_beside, simulate, write_parquet
from contigua_experiments.base import Context, ExperimentError, Outcome, Sheet
from contigua_experiments.statistics import (
    distribution,
    median_margin,
    pearson,
    pearson_margin,
    percent,
    percent_margin,
    quantile,
)

if TYPE_CHECKING:
    from contigua.page import Page

SIZES = {"2m": "2 MB", "4m": "4 MB", "32m": "32 MB", "1g": "1 GB"}
SOURCES = {
    "source_network": ("network", ("network_buffer",)),
    "source_slab": ("slab", ("slab",)),
    "source_files_tables": ("file systems, page tables", ("file_system", "page_table")),
}


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Age the fleet and take its distributions."""
    options = FleetOptions(
        design=inputs["design"],
        memory=inputs["memory"],
        longest_hours=inputs["longest_hours"],
        seed=inputs["seed"],
        jobs=context.jobs,
    )
    file = context.folder / "fleet.parquet"
    rows = simulate(inputs["servers"], options, kept=kept_beside(file), progress=context.progress)
    notes = {
        "contigua.version": _engine.VERSION,
        "contigua.seed": str(inputs["seed"]),
        "contigua.calibration": calibration().text,
    }
    write_parquet(rows, file, notes)
    counted = [row for row in rows if not row["excluded"]]
    if not counted:
        raise ExperimentError(
            "every server has too little free memory to count; see data/fleet.toml"
        )
    middle = sorted(counted, key=lambda row: row["blocks_2m_unmovable"])[len(counted) // 2]
    drawn = draw(
        calibration(), options.seed, middle["server"], options.memory, options.longest_hours
    )
    typical = age(options.design, drawn.options())
    return figures(counted, len(rows), inputs, typical)


def figures(
    counted: list[Row], servers: int, inputs: dict[str, Any], typical: AgedServer
) -> Outcome:
    """Compute the paper's figures from the servers that count."""
    values: dict[str, float | None] = {}
    margins: dict[str, float] = {}
    for size in ("2m", "32m", "1g"):
        large = [row for row in counted if row[f"blocks_{size}_total"]]
        without = [row[f"blocks_{size}_free"] == 0 for row in large]
        if not without:
            values[f"no_free_{size}"] = None
            continue
        values[f"no_free_{size}"] = percent(without)
        margins[f"no_free_{size}"] = percent_margin(without)
    pages = [100 * row["unmovable_frames"] * FRAME / row["memory"] for row in counted]
    blocks = [unmovable_share(row, "2m") for row in counted]
    for key, shares in (("unmovable_pages", pages), ("unmovable_blocks", blocks)):
        values[key], margins[key] = median(shares), median_margin(shares)
    values |= source_mix(counted)

    young = [row for row in counted if row["hours"] <= inputs["few_hours"]]
    for key, group in (("uptime_correlation", counted), ("uptime_correlation_young", young)):
        # Blocks as a share of memory, so that servers of different sizes can be told together.
        r = pearson(
            [row["hours"] for row in group],
            [row["blocks_2m_free"] / row["blocks_2m_total"] for row in group],
        )
        values[key] = r
        if r is not None:
            margins[key] = pearson_margin(r, len(group))
    notes = [
        f"{servers - len(counted)} of {servers} servers have too little free memory to count: "
        "less than 1 GB, in proportion where memory is smaller than 64 GB.",
        f"Ages are log-uniform up to {inputs['longest_hours']:g} hours, where the paper's servers "
        f"run for days or weeks; {len(young)} servers are at most {inputs['few_hours']:g} hours "
        "old. ± is half the 95 % interval that the number of servers gives.",
        "Aligned blocks of 1 GB are few in a small memory: their figure needs --full.",
    ]

    def illustrate(page: Page) -> None:
        _illustrate(page, counted, values, typical.memory_map())

    return Outcome(
        values, illustrate, margins, notes, [free_sheet(counted), unmovable_sheet(counted)]
    )


def unmovable_share(row: Row, size: str) -> float:
    """Return the share of memory in unmovable blocks of a size, in percent."""
    return float(100 * row[f"blocks_{size}_unmovable"] / max(row[f"blocks_{size}_total"], 1))


def free_contiguity(row: Row, size: str) -> float:
    """Return the share of free memory in free blocks of a size, in percent."""
    free = row["free_frames"] * FRAME
    return float(100 * row[f"blocks_{size}_free"] * BLOCK_SIZES[size] / max(free, 1))


QUARTERS = ("lowest", "first quarter", "median", "third quarter", "highest")


def free_sheet(rows: list[Row]) -> Sheet:
    """Make the table of the distributions of free contiguity."""
    table = []
    for size, name in SIZES.items():
        shares = [free_contiguity(row, size) for row in rows]
        none = percent([share == 0 for share in shares])
        table.append([name, f"{none:.1f} %", *_quarters(shares)])
    return Sheet(
        "Free contiguity, % of free memory", ["blocks", "servers with none", *QUARTERS], table
    )


def unmovable_sheet(rows: list[Row]) -> Sheet:
    """Make the table of the distributions of unmovable blocks."""
    table = [
        [name, *_quarters([unmovable_share(row, size) for row in rows])]
        for size, name in SIZES.items()
    ]
    return Sheet("Unmovable blocks, % of memory", ["blocks", *QUARTERS], table)


def _quarters(values: list[float]) -> list[str]:
    return [f"{quantile(values, part / 4):.1f}" for part in range(5)]


def source_mix(rows: list[Row]) -> dict[str, float | None]:
    """Return where unmovable pages come from, in percent of all servers' unmovable pages."""
    total = sum(row["unmovable_frames"] for row in rows)
    keys = (*SOURCES, "source_other")
    if total == 0:
        return dict.fromkeys(keys)
    mix: dict[str, float | None] = {}
    rest = total
    for key, (_, classes) in SOURCES.items():
        frames = sum(row[f"class_{name}"] for row in rows for name in classes)
        mix[key] = 100 * frames / total
        rest -= frames
    # Kernel memory of no other class, and tenants' pages that are pinned.
    return mix | {"source_other": 100 * rest / total}


def _illustrate(
    page: Page, rows: list[Row], values: dict[str, float | None], typical: MemoryMap
) -> None:
    from contigua.pictures import bars_picture, lines_picture, maps_picture, scatter_picture

    page.heading("Free contiguity")
    free = {
        name: distribution([free_contiguity(r, size) for r in rows]) for size, name in SIZES.items()
    }
    page.picture(
        lines_picture(
            [("servers, %", free)],
            "Free contiguity across the fleet",
            "% of free memory",
            steps=True,
        ),
        alt="Cumulative distributions of free blocks of 2 MB, 4 MB, 32 MB and 1 GB as a share of "
        f"free memory. {_shown(values['no_free_2m'])} of servers have no free 2 MB block, "
        f"{_shown(values['no_free_32m'])} none of 32 MB and {_shown(values['no_free_1g'])} none of "
        "1 GB.",
        caption="Servers whose free memory lies in free blocks of a size to at most this share. "
        "The paper's figure 4 starts at 23 % for 2 MB and 59 % for 32 MB.",
    )
    page.heading("Unmovable memory")
    polluted = {
        name: distribution([unmovable_share(r, size) for r in rows]) for size, name in SIZES.items()
    }
    page.picture(
        lines_picture(
            [("servers, %", polluted)],
            "Unmovable blocks across the fleet",
            "% of memory",
            steps=True,
        ),
        alt="Cumulative distributions of unmovable blocks of 2 MB, 4 MB, 32 MB and 1 GB as a share "
        f"of memory. At the median server {_shown(values['unmovable_blocks'])} of 2 MB blocks are "
        "unmovable.",
        caption="The paper's figure 5: 34 % of the median server's 2 MB blocks.",
    )
    page.picture(
        maps_picture([("one cell per 2 MB block", typical)], "The median server's memory"),
        alt="Map of physical memory of the server with the median number of unmovable blocks: "
        + ", ".join(f"{count} {name}" for name, count in typical.counts().items())
        + " blocks.",
    )
    names = [name for name, _ in SOURCES.values()] + ["others"]
    ours = [values[key] or 0.0 for key in (*SOURCES, "source_other")]
    page.picture(
        bars_picture(
            names,
            {"Contigua": ours, "paper": [73.0, 12.0, 11.0, 4.0]},
            "Sources of unmovable pages",
            "% of unmovable pages",
        ),
        alt="Sources of unmovable pages: "
        + ", ".join(f"{name} {value:.0f} %" for name, value in zip(names, ours, strict=True))
        + ". The paper has 73, 12, 11 and 4 %.",
    )
    page.heading("Uptime")
    page.picture(
        scatter_picture(
            [row["hours"] for row in rows],
            [100 * row["blocks_2m_free"] / row["blocks_2m_total"] for row in rows],
            "Uptime and free 2 MB blocks",
            "hours since boot",
            "free 2 MB blocks, % of memory",
        ),
        alt="Free 2 MB blocks against hours since boot, one dot per server; the correlation is "
        f"{values['uptime_correlation'] or 0:.2f}.",
    )


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} %"
