"""Release rate and Δ (Adaptive Subrelease, section 5.5 and figure 11)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from contigua import _engine
from contigua.heap import HeapSettings, replay
from contigua_experiments.base import Context, Outcome, Sheet

if TYPE_CHECKING:
    from contigua.page import Page

MB = 1 << 20
#: Measures of each point: names, and how each follows from the summary.
MEASURES: dict[str, Callable[[dict[str, float]], float]] = {
    "coverage, %": lambda one: 100 * one["coverage"],
    "average fragmentation, MB": lambda one: one["average_fragmentation"] / MB,
    "realized fragmentation, MB": lambda one: one["realized_fragmentation"] / MB,
    "skipped, MB": lambda one: one["skipped"] / MB,
    "correct of skipped, %": lambda one: 100 * one["skipped_correct"],
}
COVERAGE, AVERAGE, REALIZED, SKIPPED, CORRECT = MEASURES

#: A measure at a rate and a Δ.
Points = dict[tuple[int, int], dict[str, float]]


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Replay the same spikes with every rate and Δ."""
    seconds = float(inputs["seconds"])
    demand = _engine.heap_spikes(
        inputs["base_mb"] * MB,
        inputs["spike_mb"] * MB,
        inputs["every"],
        inputs["longest"],
        seconds,
        inputs["seed"],
    )
    points: Points = {}
    for rate in inputs["rates_mb"]:
        for interval in inputs["intervals"]:
            settings = HeapSettings(
                release_rate=rate * MB,
                interval=interval,
                schedule=inputs["window"],
                sizes=tuple(kilobytes << 10 for kilobytes in inputs["sizes_kb"]),
                removal="random",
                seed=inputs["seed"],
            )
            summary = replay(demand, seconds, settings).summary
            points[rate, interval] = {name: of(summary) for name, of in MEASURES.items()}
            if context.progress is not None:
                total = len(inputs["rates_mb"]) * len(inputs["intervals"])
                context.progress(len(points) / total)
    return figures(points, inputs)


def figures(points: Points, inputs: dict[str, Any]) -> Outcome:
    """Check what the paper says in words: its figure's numbers are not in its text."""
    rates, intervals = inputs["rates_mb"], inputs["intervals"]
    some = [rate for rate in rates if rate > 0]
    adaptive = [interval for interval in intervals if interval > 0]

    def along_rates(name: str, among: Sequence[int]) -> list[list[float]]:
        return [[points[rate, interval][name] for rate in some] for interval in among]

    def along_intervals(name: str) -> list[list[float]]:
        return [[points[rate, interval][name] for interval in adaptive] for rate in some]

    middle = (inputs["middle_rate_mb"], inputs["middle_interval"])
    values: dict[str, float | None] = {
        "whole": min(points[0, interval][COVERAGE] for interval in intervals),
        "most": 100 * _share_highest(points, rates, intervals),
        "falls": 100 * against(along_rates(COVERAGE, [0]), rising=False),
        "less": 100 * against(along_rates(AVERAGE, intervals), rising=False),
        "more_skipped": 100 * against(along_rates(SKIPPED, adaptive), rising=True),
        "longer_skips": 100 * against(along_intervals(SKIPPED), rising=True),
        "longer_right": 100 * against(along_intervals(CORRECT), rising=True),
        "gain": points[middle][COVERAGE] - points[middle[0], 0][COVERAGE],
    }
    heads = ["MB/s"] + [f"Δ = {interval} s" for interval in intervals]
    sheets = [
        Sheet(
            name[0].upper() + name[1:],
            heads,
            [
                [str(rate)] + [f"{points[rate, interval][name]:.1f}" for interval in intervals]
                for rate in rates
            ],
        )
        for name in MEASURES
    ]
    notes = [
        f"{inputs['seconds']} s of spikes of up to {inputs['spike_mb']} MB for up to "
        f"{inputs['longest']} s, one every {inputs['every']} s on average, over "
        f"{inputs['base_mb']} MB, removed at random. The paper does not publish its own. Every "
        "time is virtual. As in the paper, whole free huge pages go back at the rate whatever Δ "
        "is, and none is made whole again.",
        "'Against' is the share of neighboring points that go the other way.",
    ]

    def illustrate(page: Page) -> None:
        from contigua.pictures import lines_picture

        charts = [
            (
                name,
                {
                    f"{rate} MB/s": (intervals, [points[rate, at][name] for at in intervals])
                    for rate in rates
                },
            )
            for name in (COVERAGE, AVERAGE, SKIPPED, CORRECT)
        ]
        page.heading("By Δ, for each rate")
        page.picture(
            lines_picture(charts, "Release rate and Δ", "Δ, seconds"),
            "Coverage, fragmentation, skipped releases and their accuracy as Δ grows.",
        )

    return Outcome(values, illustrate, notes=notes, sheets=sheets)


def against(rows: Sequence[Sequence[float]], *, rising: bool) -> float:
    """Return the share of neighbors that do not rise, or fall, as they must; equal ones may."""
    pairs = [pair for row in rows for pair in pairwise(row)]
    wrong = sum(second < first if rising else second > first for first, second in pairs)
    return wrong / max(len(pairs), 1)


def _share_highest(points: Points, rates: Sequence[int], intervals: Sequence[int]) -> float:
    """Return at what share of Δ no rate fragments more than a rate of 0, by both measures."""
    highest = [
        all(points[0, interval][name] >= points[rate, interval][name] for rate in rates)
        for interval in intervals
        for name in (AVERAGE, REALIZED)
    ]
    return sum(highest) / len(highest)
