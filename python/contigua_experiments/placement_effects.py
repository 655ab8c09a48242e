"""Main effects of three of Linux's placements, each beside the default one on the same histories.

``vm.defrag_mode`` on servers that build; ``ZONE_MOVABLE`` with borders at several places;
superpageblocks on full servers.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import tomli_w

from contigua.ageing import AgedServer, AgeOptions, age_all
from contigua.files import write_whole
from contigua.presets import Preset, designs, laid_over, profiles
from contigua.statistics import mean_margin
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.statistics import percent

if TYPE_CHECKING:
    from contigua.page import Page

BASE = "linux-thp"
LINUX = "linux"
#: Measures of a server, with their heads in the tables.
COLUMNS = {
    "huge": "huge pages",
    "fallbacks": "fallbacks",
    "failures": "failed unmovable requests",
    "free": "free memory, %",
    "unmovable": "unmovable frames, %",
    "potential": "2 MB blocks without, %",
    "tainted": "32 MB blocks with, %",
}

#: Measures of an aged server, by the names of :data:`COLUMNS`.
Measures = dict[str, float]


@dataclass(frozen=True)
class Place:
    """A server: its study, its variant of the study's placement, and the seed of its history."""

    study: str
    variant: str
    seed: int


#: All servers.
Found = dict[Place, Measures]


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Age Linux and all variants of each study with the same histories."""
    places, specs = [], []
    for study, told in inputs["studies"].items():
        size = inputs["sizes"][study]
        profile = told["profile"]
        if not told.get("pins", True):
            profile = _without_pins(profile, context.folder)
        for variant, seed in itertools.product((LINUX, *told["variants"]), size["seeds"]):
            chosen = told["variants"].get(variant, {})
            own = (
                {}
                if variant == LINUX
                else {"placement": {told["placement"]: chosen.get("keys", {})}}
            )
            options = AgeOptions(
                profile=profile,
                memory=size["memory"],
                hours=size["hours"],
                seed=seed,
                load=told.get("load", 1.0),
                files=told.get("files", 1.0),
                kernel=chosen.get("kernel", 1.0),
            )
            places.append(Place(study, variant, seed))
            specs.append(options.spec(_design(variant, own)))

    def keep(_: int, server: AgedServer) -> Measures:
        return measure(server)

    kept = age_all(specs, keep, context.jobs, context.progress, context.kept)
    return figures(dict(zip(places, kept, strict=True)), inputs)


def _without_pins(name: str, folder: Path) -> str:
    """Write a profile whose devices pin no pages, and return its path."""
    told = tomllib.loads(profiles.get(name).text)
    del told["pins"]
    path = folder / f"{name}-without-pins.toml"
    write_whole(path, tomli_w.dumps(told))
    return str(path)


def _design(variant: str, own: dict[str, Any]) -> Preset:
    base = designs.get(BASE)
    return Preset(variant, tomli_w.dumps(laid_over(tomllib.loads(base.text), own)), base.origin)


def measure(server: AgedServer) -> Measures:
    """Take the measures of an aged server."""
    contiguity, events = server.final["contiguity"], server.final["events"]
    small, large = contiguity["blocks_2m"], contiguity["blocks_32m"]
    kinds = ("free", "movable", "unmovable", "reserved")
    frames = sum(contiguity[f"{kind}_frames"] for kind in kinds)
    failed = ("failures_unmovable", "failures_atomic")
    return {
        "huge": events["server"]["huge_pages"],
        "fallbacks": events["server"]["huge_page_fallbacks"],
        "failures": sum(events["server"][kind] for kind in failed),
        "free": 100 * contiguity["free_frames"] / frames,
        "unmovable": 100 * contiguity["unmovable_frames"] / frames,
        "potential": 100 * small["potential"] / small["total"],
        "tainted": 100 * large["unmovable"] / large["total"],
    }


def figures(found: Found, inputs: dict[str, Any]) -> Outcome:
    """Set each placement beside Linux, history by history."""
    values: dict[str, float | None] = {}
    margins: dict[str, float] = {}

    def add(key: str, study: str, value: Callable[[dict[str, Measures]], float]) -> None:
        by_seed = [value(_variants(found, study, seed)) for seed in inputs["sizes"][study]["seeds"]]
        values[key] = mean(by_seed)
        if (margin := mean_margin(by_seed)) is not None:
            margins[key] = margin

    def share(part: float, whole: float) -> float:
        return 100 * part / max(whole, 1e-9)

    ours = "defrag-mode"
    add("fallback_share", "builds", lambda by: fallback_share(by[LINUX]))
    add(
        "fallbacks_saved",
        "builds",
        lambda by: 100 - share(by[ours]["fallbacks"], by[LINUX]["fallbacks"]),
    )
    add("huge_more", "builds", lambda by: share(by[ours]["huge"], by[LINUX]["huge"]) - 100)

    least, *_, most = borders = inputs["borders"]
    zone = 100 - inputs["studies"]["zone"]["variants"][least]["keys"]["kernelcore_percent"]
    add("zone_kept", "zone", lambda by: share(by[least]["potential"], zone))
    add("zone_failures", "zone", lambda by: by[least]["failures"])
    add("zone_free", "zone", lambda by: by[least]["free"])
    add("zone_safe", "zone", lambda by: by[most]["failures"])

    failures = [_mean(found, "zone", border, "failures") for border in borders]
    values["zone_order"] = percent([a > b for a, b in itertools.pairwise(failures)])

    add("tainted", "full", lambda by: by["superpageblocks"]["tainted"])
    add("tainted_less", "full", lambda by: by["half the kernel's memory"]["tainted"])

    def of(variant: str) -> Callable[[dict[str, Measures]], float]:
        return lambda by: share(by["superpageblocks"]["tainted"], by[variant]["tainted"])

    add("tainted_of_linux", "full", of(LINUX))
    add("tainted_of_unreserved", "full", of("no reserve"))
    add(
        "tainted_needed",
        "full",
        lambda by: by["superpageblocks"]["tainted"] / by["superpageblocks"]["unmovable"],
    )

    def illustrate(page: Page) -> None:
        _illustrate(page, found, inputs)

    histories = len(inputs["sizes"]["builds"]["seeds"])
    notes = [
        f"± is half the 95 % interval (Student's t) over histories, of builds {histories}. On full "
        "servers no pages are pinned, as pinned movable pages do not taint a superpageblock.",
    ]
    return Outcome(values, illustrate, margins, notes, sheets(found, inputs))


def fallback_share(one: Measures) -> float:
    """Return faults that got no huge page, of those that wanted one, in percent."""
    return 100 * one["fallbacks"] / max(one["fallbacks"] + one["huge"], 1)


def _variants(found: Found, study: str, seed: int) -> dict[str, Measures]:
    return {at.variant: one for at, one in found.items() if (at.study, at.seed) == (study, seed)}


def _mean(found: Found, study: str, variant: str, key: str) -> float:
    chosen = [one for at, one in found.items() if (at.study, at.variant) == (study, variant)]
    return mean(one[key] for one in chosen)


def sheets(found: Found, inputs: dict[str, Any]) -> list[Sheet]:
    """Make a table for each study: a row for each variant, means over histories."""
    return [
        Sheet(
            f"{study.capitalize()}: {told['profile']}, {inputs['sizes'][study]['memory']}",
            ["placement", *COLUMNS.values()],
            [
                [variant, *(f"{_mean(found, study, variant, key):,.1f}" for key in COLUMNS)]
                for variant in (LINUX, *told["variants"])
            ],
        )
        for study, told in inputs["studies"].items()
    ]


def _illustrate(page: Page, found: Found, inputs: dict[str, Any]) -> None:
    from contigua.pictures import bars_picture

    pictures = (
        ("Faults without a huge page", "fallbacks", "builds"),
        ("Failed unmovable requests, by the kernel's part of memory", "failures", "zone"),
        ("Superpageblocks with unmovable memory, %", "tainted", "full"),
    )
    for title, key, study in pictures:
        page.heading(title)
        names = (LINUX, *inputs["studies"][study]["variants"])
        bars = {name: [_mean(found, study, name, key)] for name in names}
        page.picture(bars_picture([study], bars, title, COLUMNS[key]), f"{title}, by placement.")
