"""Effect of confinement on contiguity (Contiguitas, ISCA 2023, and the article in IEEE Micro).

Every design ages with the same histories. A second part watches the border of the unmovable region
over a day of changing demand, and under steady demand.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from contigua import _engine
from contigua.ageing import (
    BLOCK_SIZES,
    FRAME,
    AgedServer,
    AgeOptions,
    MemoryMap,
    Sample,
    age_all,
    flat_sample,
    region_bytes,
    share,
    total_frames,
)
from contigua.fleet import write_parquet
from contigua_experiments.base import Context, Outcome, Sheet

if TYPE_CHECKING:
    from contigua.page import Page

POTENTIAL = {"2m": "2 MB", "32m": "32 MB", "1g": "1 GB"}
DAY, STEADY = "day", "steady"


@dataclass(frozen=True)
class Kept:
    """Kept parts of an aged server: memory maps of large servers are large."""

    samples: list[Sample]
    map: MemoryMap | None

    @property
    def final(self) -> Sample:
        """The last sample."""
        return self.samples[-1]

    def to_json(self) -> dict[str, Any]:
        """Return what JSON can hold of it: the cells of its map as text."""
        drawn = None if self.map is None else asdict(self.map)
        if drawn is not None:
            drawn["cells"] = drawn["cells"].decode("latin-1")
        return {"samples": self.samples, "map": drawn}

    @staticmethod
    def read(values: dict[str, Any]) -> Kept:
        """Read it back."""
        drawn = values["map"]
        if drawn is None:
            return Kept(values["samples"], None)
        more = {"cells": drawn["cells"].encode("latin-1"), "names": tuple(drawn["names"])}
        return Kept(values["samples"], MemoryMap(**{**drawn, **more}))


#: A server's place in the study: design, profile, seed; or design, ``"day"``.
Place = tuple[str, ...]


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Age every design with every history, and watch the border."""
    specs: dict[Place, _engine.AgeSpec] = {}
    drawn = inputs["map_profile"]
    first_seed = str(inputs["seeds"][0])
    for design, profile, seed in itertools.product(
        inputs["designs"], inputs["profiles"], inputs["seeds"]
    ):
        options = AgeOptions(
            profile=profile, memory=inputs["memory"], hours=inputs["hours"], seed=seed
        )
        specs[design, profile, str(seed)] = options.spec(design)
    for name, hours in ((DAY, inputs["day_hours"]), (STEADY, inputs["steady_hours"])):
        options = AgeOptions(
            profile=inputs["region_profile"],
            memory=inputs["region_memory"],
            hours=hours,
            seed=inputs["seeds"][0],
            sample_seconds=inputs["region_sample_seconds"],
            kernel=inputs["region_kernel"],
            daily=name == DAY,
        )
        specs[inputs["region_design"], name] = options.spec(inputs["region_design"])
    places = list(specs)

    def keep(index: int, server: AgedServer) -> dict[str, Any]:
        shown = places[index][1:] == (drawn, first_seed)
        return Kept(server.samples, server.memory_map() if shown else None).to_json()

    servers = [specs[place] for place in places]
    found = age_all(servers, keep, context.jobs, context.progress, context.kept)
    kept = {place: Kept.read(one) for place, one in zip(places, found, strict=True)}
    _write_data(kept, context.folder)
    return figures(kept, inputs)


def _write_data(kept: dict[Place, Kept], folder: Path) -> None:
    """Write ``servers.parquet``, the final samples, and ``region.parquet``, those over time."""
    servers: list[dict[str, Any]] = []
    region: list[dict[str, Any]] = []
    for (design, *rest), one in kept.items():
        if len(rest) == 1:
            place = {"design": design, "demand": rest[0]}
            region += [place | flat_sample(sample) for sample in one.samples]
        else:
            place = {"design": design, "profile": rest[0], "seed": rest[1]}
            servers.append(place | flat_sample(one.final))
    notes = {"contigua.version": _engine.VERSION}
    write_parquet(servers, folder / "servers.parquet", notes)
    write_parquet(region, folder / "region.parquet", notes)


def figures(kept: dict[Place, Kept], inputs: dict[str, Any]) -> Outcome:
    """Compute the paper's figures from the aged servers."""

    def finals(design: str, profile: str | None = None) -> list[Sample]:
        profiles = inputs["profiles"] if profile is None else [profile]
        return [kept[design, one, str(s)].final for one in profiles for s in inputs["seeds"]]

    linux, contiguitas = inputs["designs"][0], inputs["designs"][-1]
    ours = finals(contiguitas)
    unmovable = {
        design: mean(share(sample, "2m", "unmovable") for sample in finals(design))
        for design in inputs["designs"]
    }
    day = kept[inputs["region_design"], DAY].samples
    steady = [
        sample
        for sample in kept[inputs["region_design"], STEADY].samples
        if sample["seconds"] >= 3600 * inputs["settle_hours"]
    ]
    values: dict[str, float | None] = {
        "unmovable_linux": unmovable[linux],
        "unmovable_contiguitas": unmovable[contiguitas],
        "unmovable_ratio": (
            unmovable[linux] / unmovable[contiguitas] if unmovable[contiguitas] else None
        ),
        "outside_region": max(blocks_outside(sample) for sample in ours),
        "potential_linux_2m": mean(share(sample, "2m", "potential") for sample in finals(linux)),
        "potential_linux_32m": mean(share(sample, "32m", "potential") for sample in finals(linux)),
        "potential_linux_1g": (
            max(share(sample, "1g", "potential") for sample in finals(linux))
            if ours[0]["contiguity"]["blocks_1g"]["total"]
            else None
        ),
        "potential_contiguitas_2m": least(of_movable_region(sample, "2m") for sample in ours),
        "potential_contiguitas_32m": least(of_movable_region(sample, "32m") for sample in ours),
        "potential_contiguitas_1g": least(of_movable_region(sample, "1g") for sample in ours),
        "day_failures": float(day[-1]["events"]["server"]["failures_unmovable"]),
        "day_failures_atomic": float(day[-1]["events"]["server"]["failures_atomic"]),
        "day_expansions": float(day[-1]["events"]["expansions"]),
        "day_shrinks": float(day[-1]["events"]["shrinks"]),
        "resizes_in_allocation": float(day[-1]["events"]["resizes_in_allocations"]),
        "steady_reversals": per_hour(steady, reversals([_region(s) for s in steady])),
        "steady_blocks_per_minute": per_hour(
            steady, steady[-1]["events"]["blocks_resized"] - steady[0]["events"]["blocks_resized"]
        )
        / 60,
    }
    sizes = [_region(sample) for sample in day]
    notes = [
        "Unmovable 2 MB blocks, average over services: "
        + ", ".join(f"{name} {value:.1f} %" for name, value in unmovable.items())
        + ". The paper has no figure for Illuminator.",
        f"Over the day the region measured {min(sizes) >> 20} to {max(sizes) >> 20} MiB of "
        f"{inputs['region_memory']}, in {day[-1]['events']['expansions']} expansions and "
        f"{day[-1]['events']['shrinks']} shrinks; "
        f"{day[-1]['events']['server']['failures_movable']} movable allocations failed.",
        "The paper's unmovable figures are of its fleet; ours are of the four services, weighted "
        "alike.",
    ]

    def illustrate(page: Page) -> None:
        _illustrate(page, kept, inputs, unmovable)

    return Outcome(values, illustrate, notes=notes, sheets=[sheet(kept, inputs)])


def _region(sample: Sample) -> int:
    return region_bytes(sample) or 0


def blocks_outside(sample: Sample) -> float:
    """Return how many unmovable 2 MB blocks there are beyond what the region holds."""
    inside = _region(sample) // BLOCK_SIZES["2m"]
    return float(max(0, sample["contiguity"]["blocks_2m"]["unmovable"] - inside))


def of_movable_region(sample: Sample, size: str) -> float | None:
    """Return potential blocks as a share of the aligned blocks in the movable region, in percent.

    ``None`` where it is too small for one.

    The region for unmovable memory lies at the low addresses, so that the movable one holds all
    aligned blocks from the first that begins at or behind the border.
    """
    each = BLOCK_SIZES[size]
    whole = FRAME * total_frames(sample) // each - -(-_region(sample) // each)
    potential = int(sample["contiguity"][f"blocks_{size}"]["potential"])
    return 100.0 * potential / whole if whole > 0 else None


def least(values: Iterable[float | None]) -> float | None:
    """Return the least of those values that there are."""
    return min((value for value in values if value is not None), default=None)


def reversals(sizes: Sequence[int]) -> int:
    """Count how often a size that moved one way next moved the other way."""
    moves = [b - a for a, b in itertools.pairwise(sizes) if a != b]
    return sum((a > 0) != (b > 0) for a, b in itertools.pairwise(moves))


def per_hour(samples: Sequence[Sample], count: float) -> float:
    """Return a count over some samples as a rate."""
    span = samples[-1]["seconds"] - samples[0]["seconds"]
    return float(count / max(span / 3600, 1e-9))


def _average(
    kept: dict[Place, Kept], inputs: dict[str, Any], place: Place, size: str, what: str
) -> float:
    samples = [kept[*place, str(seed)].final for seed in inputs["seeds"]]
    return mean(share(sample, size, what) for sample in samples)


def sheet(kept: dict[Place, Kept], inputs: dict[str, Any]) -> Sheet:
    """Make the table of unmovable blocks and potential contiguity by service and design."""
    rows = []
    for profile, design in itertools.product(inputs["profiles"], inputs["designs"]):
        cells = [_average(kept, inputs, (design, profile), "2m", "unmovable")]
        cells += [
            _average(kept, inputs, (design, profile), size, "potential") for size in POTENTIAL
        ]
        rows.append([profile, design, *(f"{cell:.1f}" for cell in cells)])
    heads = ["service", "design", "unmovable 2 MB"]
    heads += [f"potential {name}" for name in POTENTIAL.values()]
    return Sheet("What perfect compaction could make into blocks, % of all memory", heads, rows)


def _illustrate(
    page: Page, kept: dict[Place, Kept], inputs: dict[str, Any], unmovable: dict[str, float]
) -> None:
    from contigua.pictures import bars_picture, lines_picture, maps_picture, over_time, time_picture

    designs, seed = inputs["designs"], str(inputs["seeds"][0])
    shown = {design: kept[design, inputs["map_profile"], seed] for design in designs}
    page.heading("The same history, placed by each design")
    maps = [(design, one.map) for design, one in shown.items() if one.map is not None]
    page.picture(
        maps_picture(maps, f"{inputs['map_profile']} after {inputs['hours']:g} h"),
        alt="Maps of physical memory, one cell per 2 MB block. "
        + " ".join(
            f"{name}: " + ", ".join(f"{count} {kind}" for kind, count in one.counts().items()) + "."
            for name, one in maps
        ),
        caption="One cell per 2 MB block, along a Hilbert curve. Mixed blocks hold unmovable pages "
        "beside movable ones.",
    )
    page.picture(
        time_picture([(name, one.samples) for name, one in shown.items()], "Contiguity over time"),
        alt="Free memory, free and polluted 2 MB blocks and potential 1 GB blocks over the hours, "
        "for each design.",
    )
    page.heading("Unmovable 2 MB blocks")

    def average(design: str, profile: str, size: str, what: str) -> float:
        return _average(kept, inputs, (design, profile), size, what)

    polluted = {
        design: [average(design, p, "2m", "unmovable") for p in inputs["profiles"]]
        for design in designs
    }
    page.picture(
        bars_picture(inputs["profiles"], polluted, "Unmovable 2 MB blocks", "% of memory"),
        alt="Unmovable 2 MB blocks by service and design; averages: "
        + ", ".join(f"{name} {value:.0f} %" for name, value in unmovable.items()),
        caption="The paper: 31 % scattered under Linux, 7 % confined under Contiguitas.",
    )
    page.heading("Potential contiguity by service")
    for profile in inputs["profiles"]:
        bars = {d: [average(d, profile, s, "potential") for s in POTENTIAL] for d in designs}
        page.picture(
            bars_picture(list(POTENTIAL.values()), bars, f"{profile}: potential", "% of memory"),
            alt=f"Potential contiguity of {profile} by size and design; the table above has "
            "the values.",
        )
    page.heading("The unmovable region")
    curves = [
        (
            f"{label}, MiB",
            {
                "region": over_time(samples, lambda s: _region(s) / (1 << 20)),
                "unmovable pages": over_time(
                    samples, lambda s: s["contiguity"]["unmovable_frames"] * FRAME / (1 << 20)
                ),
            },
        )
        for label, samples in (
            ("a day of changing demand", kept[inputs["region_design"], DAY].samples),
            ("steady demand", kept[inputs["region_design"], STEADY].samples),
        )
    ]
    page.picture(
        lines_picture(curves, "Size of the unmovable region", "hours"),
        alt="The unmovable region's size and the unmovable pages in it, over a day and under "
        "steady demand; the figures above count resizes, failures and turns.",
    )
