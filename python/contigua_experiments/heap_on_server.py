"""Subrelease that minds huge pages, where huge pages are scarce.

A program whose demand rises and falls lives on a simulated server, with a page heap that gives
memory back at once, at a rate (static), at a rate and minding Δ (adaptive), or never. Its memory is
that of a server that is new, or that other tenants have left, under two placements.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any, NamedTuple

from contigua.heap import HeapSettings, Server, ServerReplay, on_server, square_wave
from contigua.options import RunOptions
from contigua_experiments.base import Context, Outcome, Sheet

if TYPE_CHECKING:
    from contigua.page import Page

MB = 1 << 20
#: Bytes a second that are more than any heap has.
AT_ONCE = 1 << 40
NEVER, IMMEDIATE, STATIC, ADAPTIVE = "never", "at once", "static", "adaptive"
POLICIES = (NEVER, IMMEDIATE, STATIC, ADAPTIVE)
LINUX, CONTIGUITAS = "Linux", "Contiguitas"
#: Points of coverage that are worth the memory.
LEAST_GAIN = 5.0


class Place(NamedTuple):
    """Server of a program, and the configuration of its heap."""

    age: str
    placement: str
    policy: str


Lives = dict[Place, ServerReplay]


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Let a program live at every place, some at a time."""
    lives: Lives = {}
    places = list(everywhere(inputs))
    with ThreadPoolExecutor(context.jobs or os.cpu_count() or 1) as pool:
        begun = {pool.submit(life, place, inputs): place for place in places}
        try:
            for done in as_completed(begun):
                lives[begun[done]] = done.result()
                if context.progress is not None:
                    context.progress(len(lives) / len(places))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return figures({place: lives[place] for place in places}, inputs)


def everywhere(inputs: dict[str, Any]) -> Iterator[Place]:
    """Yield every age, placement and policy."""
    for age in inputs["ages"]:
        for placement in inputs["placements"]:
            for policy in POLICIES:
                yield Place(age, placement, policy)


def life(place: Place, inputs: dict[str, Any]) -> ServerReplay:
    """Let a program live at one place."""
    rate, interval = {
        NEVER: (0, 0),
        IMMEDIATE: (AT_ONCE, 0),
        STATIC: (inputs["rate_mb"] * MB, 0),
        ADAPTIVE: (inputs["rate_mb"] * MB, inputs["interval"]),
    }[place.policy]
    settings = HeapSettings(
        release_rate=rate,
        interval=interval,
        cache_interval=interval,
        collapses=inputs["collapses"],
        sizes=tuple(kilobytes << 10 for kilobytes in inputs["sizes_kb"]),
        removal="random",
        seed=inputs["seed"],
    )
    options = RunOptions(
        machine=inputs["machine"], memory=inputs["memory"], detail="additive", seed=inputs["seed"]
    )
    seconds = float(inputs["seconds"])
    demand = square_wave(inputs["low_mb"] * MB, inputs["high_mb"] * MB, inputs["period"], seconds)
    server = Server(inputs["placements"][place.placement], place.age, options)
    return on_server(
        demand, seconds, settings, server, warmup=inputs["warmup"], reads=inputs["reads"]
    )


def figures(lives: Lives, inputs: dict[str, Any]) -> Outcome:
    """Compare policies at each place, and places."""

    def of(name: str, *place: str) -> float:
        return lives[Place(*place)].summary[name]

    def percent(*place: str) -> float:
        return 100 * of("coverage", *place)

    def gain(age: str, placement: str) -> float:
        return percent(age, placement, ADAPTIVE) - percent(age, placement, STATIC)

    def walks(*place: str) -> float:
        return 1000 * of("walks_per_read", *place)

    fresh, partial, scattered, full = inputs["ages"]
    new = (fresh, LINUX, ADAPTIVE)
    values: dict[str, float | None] = {
        "gain_fresh": gain(fresh, LINUX),
        "gain_partial": gain(partial, LINUX),
        "gain_scattered": gain(scattered, LINUX),
        "gain_confined": gain(scattered, CONTIGUITAS),
        "gain_full": gain(full, LINUX),
        "gain_full_confined": gain(full, CONTIGUITAS),
        "realized": 100
        * of("realized_fragmentation", *new)
        / max(of("average_fragmentation", *new), 1.0),
        "walks": walks(fresh, LINUX, STATIC) - walks(*new),
        "belief": 100 * of("believed_coverage", *new) - percent(*new),
        "confined": percent(full, CONTIGUITAS, STATIC) - percent(full, LINUX, STATIC),
    }

    def illustrate(page: Page) -> None:
        _illustrate(page, lives, inputs)

    return Outcome(values, illustrate, notes=_learnt(lives, inputs), sheets=_sheets(lives))


def _learnt(lives: Lives, inputs: dict[str, Any]) -> list[str]:
    """Say what the figures mean, from the figures."""

    def one(age: str, placement: str, policy: str) -> str:
        summary = lives[Place(age, placement, policy)].summary
        return (
            f"{100 * summary['coverage']:.0f} % of memory in huge pages, "
            f"{1000 * summary['walks_per_read']:.0f} of 1,000 reads walk, "
            f"{summary['resident'] / MB:.0f} MB resident"
        )

    notes = [
        f"Use alternates between {inputs['low_mb']} and {inputs['high_mb']} MB every "
        f"{inputs['period'] / 2:g} s, in allocations of {inputs['sizes_kb']} KB that go at random; "
        f"reads are uniform. Rate {inputs['rate_mb']} MB/s, Δ = {inputs['interval']} s, "
        f"at most {inputs['collapses']} collapses a second. Every time is virtual."
    ]
    for age in inputs["ages"]:
        for placement in inputs["placements"]:
            place = lives[Place(age, placement, ADAPTIVE)]
            free = f"{place.free_2m_blocks_before} of {place.blocks_2m} 2 MB blocks free at first"
            notes.append(
                f"{age}, {placement} ({free}): adaptive: {one(age, placement, ADAPTIVE)}; "
                f"static: {one(age, placement, STATIC)}."
            )
    for age in inputs["ages"]:
        for placement in inputs["placements"]:
            kept = lives[Place(age, placement, ADAPTIVE)].summary
            broken = lives[Place(age, placement, STATIC)].summary
            gain = 100 * (kept["coverage"] - broken["coverage"])
            beyond = 100 * (kept["believed_coverage"] - kept["coverage"])
            if gain < LEAST_GAIN:
                more = (kept["resident"] - broken["resident"]) / MB
                notes.append(
                    f"{age}, {placement}: Δ keeps {more:.0f} MB more resident and gains {gain:.0f} "
                    f"points of coverage. The heap believes in {beyond:.0f} points more than it "
                    "has: it got small pages when it first asked for memory, keeps them because "
                    "they are in use, and takes what it never broke for huge, so that it asks for "
                    "no collapse."
                )
    return notes


COLUMNS: dict[str, Callable[[dict[str, float]], str]] = {
    "walks": lambda s: f"{1000 * s['walks_per_read']:.1f}",
    "cycles": lambda s: f"{s['walk_cycles_per_read']:.1f}",
    "coverage %": lambda s: f"{100 * s['coverage']:.1f}",
    "believed %": lambda s: f"{100 * s['believed_coverage']:.1f}",
    "used MB": lambda s: f"{s['used'] / MB:.0f}",
    "resident MB": lambda s: f"{s['resident'] / MB:.0f}",
    "free MB": lambda s: f"{s['average_fragmentation'] / MB:.0f}",
    "realized MB": lambda s: f"{s['realized_fragmentation'] / MB:.0f}",
}
EVENTS: dict[str, Callable[[dict[str, float]], str]] = {
    "small faults": lambda s: f"{s['faults_4k']:,}",
    "huge faults": lambda s: f"{s['faults_2m']:,}",
    "denied": lambda s: f"{s['fallbacks']:,}",
    "broken": lambda s: f"{s['broken']:,}",
    "collapsed": lambda s: f"{s['collapsed']:,}",
    "failed": lambda s: f"{s['collapses_failed']:,}",
    "by kernel": lambda s: f"{s['collapsed_in_background']:,}",
    "moved": lambda s: f"{s['pages_moved']:,}",
    "Mcycles": lambda s: f"{s['kernel_cycles'] / 1e6:,.0f}",
}


def _sheets(lives: Lives) -> list[Sheet]:
    return [
        Sheet(
            title,
            ["memory", "placement", "gives back", *columns],
            [
                [*place, *(show(one.summary) for show in columns.values())]
                for place, one in lives.items()
            ],
        )
        for title, columns in (
            ("Page walks of 1,000 reads, cycles of walks for each read, and memory", COLUMNS),
            ("Faults, huge pages, 4 KB pages that the kernel moved, and its cycles", EVENTS),
        )
    ]


def _illustrate(page: Page, lives: Lives, inputs: dict[str, Any]) -> None:
    from contigua.pictures import bars_picture, lines_picture

    places = list(dict.fromkeys(place[:2] for place in lives))
    groups = [f"{age}\n{placement}" for age, placement in places]
    bars = {
        policy: [
            1000 * lives[Place(age, placement, policy)].summary["walks_per_read"]
            for age, placement in places
        ]
        for policy in POLICIES
    }
    page.heading("TLB misses")
    page.picture(
        bars_picture(groups, bars, "Reads that walk the page table", "of 1,000"),
        "Page walks for each policy, by age and placement of memory.",
    )
    page.heading("Huge pages over time, Linux")
    charts = [
        (
            f"{age}: % of resident memory in huge pages",
            {
                policy: (
                    lives[Place(age, LINUX, policy)].samples["seconds"],
                    _shares(lives[Place(age, LINUX, policy)].samples),
                )
                for policy in POLICIES
            },
        )
        for age in inputs["ages"]
    ]
    page.picture(
        lines_picture(charts, "Coverage", "seconds"),
        "Share of resident memory in huge pages over time, for each policy and age.",
    )


def _shares(samples: dict[str, list[float]]) -> list[float]:
    pairs = zip(samples["huge"], samples["resident"], strict=True)
    return [100 * huge / max(resident, 1.0) for huge, resident in pairs]
