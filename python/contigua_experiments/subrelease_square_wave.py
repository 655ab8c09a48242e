"""Average and realized fragmentation of a square wave (Adaptive Subrelease, figures 4 and 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contigua.heap import HeapSettings, Replay, replay, square_wave
from contigua_experiments.base import Context, Outcome, Sheet

if TYPE_CHECKING:
    from contigua.page import Page

MB = 1 << 20


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Replay waves of all periods."""
    waves: dict[float, Replay] = {}
    for period in inputs["periods"]:
        waves[period] = wave(period, inputs)
        if context.progress is not None:
            context.progress(len(waves) / len(inputs["periods"]))
    shown = wave(inputs["shown_period"], inputs)
    window = inputs["window"]
    fastest, slowest = min(waves), max(waves)
    # Where half a period is no longer than the window, every window has a peak in it. Else what is
    # free is realized from when the window holds nothing else, to the end of the half.
    expected = {
        period: (inputs["high_mb"] - inputs["low_mb"]) / 2 * max(0.0, 1 - 2 * window / period)
        for period in waves
    }
    found = {period: _mean(one, "realized_fragmentation") for period, one in waves.items()}
    values: dict[str, float | None] = {
        "average": _mean(waves[fastest], "average_fragmentation"),
        "mapped": _mean(waves[fastest], "mapped"),
        "realized": found[fastest],
        "converged": 100 * found[slowest] / _mean(waves[slowest], "average_fragmentation"),
        "off": max(abs(found[period] - expected[period]) for period in waves),
    }
    heads = ["period s", "average MB", "realized MB", "realized by arithmetic MB"]
    rows = [
        [
            f"{period:g}",
            f"{_mean(one, 'average_fragmentation'):.1f}",
            f"{found[period]:.1f}",
            f"{expected[period]:.1f}",
        ]
        for period, one in waves.items()
    ]
    notes = [
        f"Use alternates between {inputs['low_mb']} and {inputs['high_mb']} MB, nothing is given "
        f"back, and the window is {window} s. Every time is virtual.",
    ]

    def illustrate(page: Page) -> None:
        from contigua.pictures import lines_picture

        columns = shown.samples
        kinds = ("used", "mapped", "average_fragmentation", "realized_fragmentation")
        curves = {
            kind.replace("_", " "): (columns["seconds"], [value / MB for value in columns[kind]])
            for kind in kinds
        }
        averages = [_mean(one, "average_fragmentation") for one in waves.values()]
        by_period = {
            "average": (list(waves), averages),
            "realized": (list(waves), list(found.values())),
        }
        page.heading("Over time")
        page.picture(
            lines_picture([("MB", curves)], f"A period of {inputs['shown_period']} s", "seconds"),
            "Used and mapped memory, average and realized fragmentation of a square wave.",
        )
        page.heading("By period")
        page.picture(
            lines_picture([("MB", by_period)], "Means of the two measures", "period, seconds"),
            "Average and realized fragmentation as the wave's period grows.",
        )

    return Outcome(values, illustrate, notes=notes, sheets=[Sheet("Means", heads, rows)])


def wave(period: float, inputs: dict[str, Any]) -> Replay:
    """Replay whole periods, of which those that begin with a full window count."""
    window = float(inputs["window"])
    skipped = period * -(-window // period)
    seconds = skipped + period * max(2, -(-window // period))
    settings = HeapSettings(
        release_rate=0, interval=60.0, schedule=window, sizes=(inputs["allocation_kb"] << 10,)
    )
    demand = square_wave(inputs["low_mb"] * MB, inputs["high_mb"] * MB, period, seconds)
    # The second at which the next period would begin is not part of the last.
    return replay(demand, seconds - 1, settings, warmup=skipped)


def _mean(one: Replay, name: str) -> float:
    return one.summary[name] / MB
