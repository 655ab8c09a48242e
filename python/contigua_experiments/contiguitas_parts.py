"""Contiguitas as one system, and without one of its parts at a time.

Every design ages with the same histories, on some of them every design that lacks a part, too; then
1 GB pages are allocated on the aged server. Intervals are over seeds; differences are taken seed by
seed.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import mean
from typing import TYPE_CHECKING, Any

import tomli_w

from contigua import _engine
from contigua.ageing import FRAME, AgedServer, AgeOptions, Sample, age_all, region_bytes
from contigua.fleet import write_parquet
from contigua.presets import Preset, designs, laid_over
from contigua.statistics import mean_margin
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.statistics import quantile

if TYPE_CHECKING:
    from contigua.page import Page

#: Classes of unmovable frames, those that hardware can move among them.
UNMOVABLE = ("network_buffer", "slab", "file_system", "page_table", "kernel_other")
MIB = 1 << 20

#: Measures of a server, with their heads in the table and their decimals.
COLUMNS = {
    "unmovable": ("unmovable, MiB", 0),
    "region": ("region, MiB", 0),
    "ratio_mean": ("region over unmovable, mean", 2),
    "ratio_p95": ("..., p95", 2),
    "shrinks": ("shrinks", 0),
    "blocked_by_kernel": ("blocked by the kernel, %", 1),
    "blocked_by_devices": ("blocked by devices, %", 1),
    "moved": ("frames moved by hardware", 0),
    "potential_2m": ("potential 2 MB", 0),
    "potential_32m": ("potential 32 MB", 1),
    "potential_1g": ("potential 1 GB", 1),
    "kills": ("kills", 1),
    "pressure_movable": ("movable pressure, most, %", 3),
    "pressure_unmovable": ("unmovable pressure, most, %", 3),
    "gigantic": ("1 GB pages at run time", 1),
    "first": ("seconds to the first", 2),
    "each": ("seconds each", 2),
}
#: Measures of an aged server, by the names of :data:`COLUMNS`; those of regions and of 1 GB pages
#: are absent where a server has none.
Measures = dict[str, float]


@dataclass(frozen=True)
class Place:
    """A server's place in the study: what it is, and the seed of its history.

    ``memory`` says on how many NUMA nodes it is, too, where there are several.
    """

    memory: str
    profile: str
    design: str
    seed: int


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Age every design with every history, and on some servers those that lack a part."""
    whole = [designs.get(name) for name in inputs["designs"]]
    lacking = [without(whole[-1], part, keys) for part, keys in inputs["without"].items()]
    places, specs = [], []
    for group in inputs["servers"]:
        parts = itertools.product(group.get("without_parts", []), lacking)
        nodes = group.get("nodes", 1)
        memory = group["memory"] if nodes == 1 else f"{group['memory']} on {nodes} nodes"
        pairs = [*itertools.product(group["profiles"], whole), *parts]
        for (profile, design), seed in itertools.product(pairs, group["seeds"]):
            options = AgeOptions(
                profile=profile,
                memory=group["memory"],
                hours=inputs["hours"],
                seed=seed,
                sample_seconds=inputs["sample_seconds"],
                nodes=nodes,
                gigantic_pages=inputs["gigantic_pages"],
            )
            places.append(Place(memory, profile, design.name, seed))
            specs.append(options.spec(design))

    def keep(_: int, server: AgedServer) -> Measures:
        return measure(server, 3600 * inputs["settled_hours"])

    found = age_all(specs, keep, context.jobs, context.progress, context.kept)
    kept = dict(zip(places, found, strict=True))
    rows = [
        {"memory": p.memory, "profile": p.profile, "design": p.design, "seed": p.seed, **s}
        for p, s in kept.items()
    ]
    notes = {"contigua.version": _engine.VERSION}
    write_parquet(rows, context.folder / "servers.parquet", notes)
    return figures(kept, inputs)


def without(design: Preset, part: str, keys: dict[str, Any]) -> Preset:
    """Return a design with other values of some keys of its placement."""
    own = {"placement": {"contiguitas": keys}}
    text = tomli_w.dumps(laid_over(tomllib.loads(design.text), own))
    return Preset(f"{design.name} without {part}", text, design.origin)


def measure(server: AgedServer, settled: float) -> Measures:
    """Take the measures of a server from its samples after some seconds, and from its end."""
    samples = [sample for sample in server.samples if sample["seconds"] >= settled]
    events = server.final["events"]
    gigantic = [page["nanoseconds"] / 1e9 for page in server.report["gigantic"]["allocated"]]
    borders = [region_bytes(sample) for sample in samples]
    region = [border / MIB for border in borders if border is not None]
    in_use = [unmovable(sample) / MIB for sample in samples]
    values: Measures = {"unmovable": mean(in_use)}
    if region:
        ratios = [size / used for size, used in zip(region, in_use, strict=True)]
        values["region"] = mean(region)
        values |= {"ratio_mean": mean(ratios), "ratio_p95": quantile(ratios, 0.95)}
        shrinks = max(events["shrinks"], 1)
        values["shrinks"] = events["shrinks"]
        for cause in ("kernel", "devices"):
            blocked = events[f"shrinks_blocked_by_{cause}"]
            values[f"blocked_by_{cause}"] = 100 * blocked / shrinks
        values["moved"] = events["frames_moved_by_hardware"]
    for size in ("2m", "32m", "1g"):
        potential = [sample["contiguity"][f"blocks_{size}"]["potential"] for sample in samples]
        values[f"potential_{size}"] = mean(potential)
    values["kills"] = events["server"]["kills"]
    for kind in ("movable", "unmovable"):
        values[f"pressure_{kind}"] = max(s["pressure"][kind]["avg10"] for s in samples)
    values["gigantic"] = len(gigantic)
    if gigantic:
        values |= {"first": gigantic[0], "each": mean(gigantic)}
    return values


def unmovable(sample: Sample) -> int:
    """Return the bytes of the kernel's unmovable memory."""
    return FRAME * sum(int(sample["classes"][name]) for name in UNMOVABLE)


#: All servers, by their places.
Kept = dict[Place, Measures]


def compared(
    kept: Kept,
    design: str,
    base: str,
    value: Callable[[Measures, Measures], float | None],
) -> tuple[float | None, float | None]:
    """Compare two designs on each history.

    Returns
    -------
    tuple
        Mean and half of its 95 % interval over seeds; a seed's value is the mean over its servers.
    """
    found: dict[int, list[float]] = {}
    for at, one in kept.items():
        if at.design == design:
            compared_value = value(one, kept[replace(at, design=base)])
            if compared_value is not None:
                found.setdefault(at.seed, []).append(compared_value)
    by_seed = [mean(each) for each in found.values()]
    return (mean(by_seed), mean_margin(by_seed)) if by_seed else (None, None)


def figures(kept: Kept, inputs: dict[str, Any]) -> Outcome:
    """Compute the figures from the aged servers."""
    linux, software, hardware = inputs["designs"]
    values: dict[str, float | None] = {}
    margins: dict[str, float] = {}

    def add(
        key: str, design: str, base: str, value: Callable[[Measures, Measures], float | None]
    ) -> None:
        values[key], margin = compared(kept, design, base, value)
        if margin is not None:
            margins[key] = margin

    def saved(one: Measures, other: Measures) -> float:
        return 100 * (1 - one["region"] / other["region"])

    def over(one: Measures, other: Measures) -> float:
        return one["region"] / other["region"]

    def difference(key: str) -> Callable[[Measures, Measures], float]:
        return lambda one, other: one[key] - other[key]

    def blocked(one: Measures, _: Measures) -> float:
        return one["blocked_by_kernel"] + one["blocked_by_devices"]

    add("region_saved", hardware, software, saved)
    add("blocked_share_software", software, software, blocked)
    add("blocked_share_hardware", hardware, hardware, blocked)
    for size in ("2m", "32m", "1g"):
        add(f"more_{size}", hardware, software, difference(f"potential_{size}"))
    for key, part in (("type", "placement by type"), ("bias", "bias")):
        if part in inputs["without"]:
            add(f"region_without_{key}", f"{hardware} without {part}", hardware, over)
    add("gigantic_seconds", hardware, hardware, lambda one, _: one.get("first"))
    beyond = [
        server["kills"] - kept[Place(at.memory, at.profile, linux, at.seed)]["kills"]
        for at, server in kept.items()
    ]
    values["kills_beyond_linux"] = max(beyond)

    def gigantic(design: str) -> list[float]:
        return [server["gigantic"] for at, server in kept.items() if at.design == design]

    values["gigantic_linux"] = max(gigantic(linux))
    values["gigantic_hardware"] = min(gigantic(hardware))
    notes = [
        f"Means are over {inputs['hours']:g} hours but the first {inputs['settled_hours']:g}, "
        "counts of all of them. ± is half the 95 % interval (Student's t) over "
        f"{', '.join(str(len(one['seeds'])) for one in inputs['servers'])} seeds.",
        "Unmovable memory is the kernel's, by class, network buffers included; pinned pages of "
        "tenants are not in it. Potential blocks count what hardware can move as movable.",
    ]
    if "bias" in inputs["without"]:
        notes.append(
            "Without bias there is no placement by type either: the last block that was freed is "
            "taken."
        )

    def illustrate(page: Page) -> None:
        _illustrate(page, kept, inputs)

    return Outcome(values, illustrate, margins, notes, sheets(kept))


def groups(kept: Kept) -> list[tuple[str, str]]:
    """Return memories with their profiles."""
    return list(dict.fromkeys((at.memory, at.profile) for at in kept))


def of(kept: Kept, group: tuple[str, str], design: str) -> list[Measures]:
    """Return a design's servers of one memory and profile."""
    return [
        one for at, one in kept.items() if (at.memory, at.profile) == group and at.design == design
    ]


def sheets(kept: Kept) -> list[Sheet]:
    """Make a table of all designs for each memory and profile."""
    found = []
    for group in groups(kept):
        names = list(dict.fromkeys(at.design for at in kept if of(kept, group, at.design)))
        rows = []
        for key, (label, decimals) in COLUMNS.items():
            row = [label]
            for name in names:
                numbers = [one[key] for one in of(kept, group, name) if key in one]
                row.append(_with_margin(numbers, decimals))
            rows.append(row)
        memory, profile = group
        found.append(Sheet(f"{profile}, {memory}", ["", *names], rows))
    return found


def _with_margin(numbers: list[float], decimals: int) -> str:
    if not numbers:
        return "-"
    margin = mean_margin(numbers)
    half = "" if margin is None else f" ± {margin:.{decimals}f}"
    return f"{mean(numbers):.{decimals}f}{half}"


def _illustrate(page: Page, kept: Kept, inputs: dict[str, Any]) -> None:
    from contigua.pictures import bars_picture

    page.heading("The unmovable region")
    # Without its parts a design ages on some of the servers only.
    bars = {
        name: [mean(one["ratio_mean"] for one in of(kept, group, name)) for group in groups(kept)]
        for name in inputs["designs"][1:]
    }
    page.picture(
        bars_picture(
            [f"{profile}, {memory}" for memory, profile in groups(kept)],
            bars,
            "Unmovable region over unmovable memory",
            "mean over time",
        ),
        alt="Unmovable region over unmovable memory by design: "
        + ", ".join(f"{name} {mean(each):.2f}" for name, each in bars.items())
        + ".",
        caption="1 would be a region without a free page.",
    )
