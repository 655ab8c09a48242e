"""Benefit and cost of a release rate (adaptive subrelease, ISMM 2021, figure 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contigua import _engine
from contigua.heap import HeapSettings, Replay, replay
from contigua_experiments.base import Context, Outcome, Sheet

if TYPE_CHECKING:
    from contigua.page import Page

MB = 1 << 20


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Replay one demand at both rates, without the adaptive policy."""
    seconds = float(inputs["seconds"])
    demand = _engine.heap_spikes(
        inputs["base_mb"] * MB,
        inputs["spike_mb"] * MB,
        inputs["every"],
        inputs["longest"],
        seconds,
        inputs["seed"],
    )
    lives = {}
    for name in ("low", "high"):
        settings = HeapSettings(
            release_rate=inputs[f"{name}_rate_kb"] << 10,
            interval=0,
            sizes=tuple(kilobytes << 10 for kilobytes in inputs["sizes_kb"]),
            removal="random",
            seed=inputs["seed"],
        )
        lives[name] = replay(demand, seconds, settings)
        if context.progress is not None:
            context.progress(len(lives) / 2)
    return figures(lives, inputs)


def layers(samples: dict[str, list[float]]) -> dict[str, list[float]]:
    """Split mapped memory, in MB: used on whole huge pages, used on broken ones, and free."""
    rows = zip(samples["used"], samples["mapped"], samples["coverage"], strict=True)
    found: dict[str, list[float]] = {"used, whole": [], "used, broken": [], "free": []}
    for used, mapped, coverage in rows:
        found["used, whole"].append(used * coverage / MB)
        found["used, broken"].append(used * (1 - coverage) / MB)
        found["free"].append((mapped - used) / MB)
    return found


def figures(lives: dict[str, Replay], inputs: dict[str, Any]) -> Outcome:
    """Compare both rates."""
    low, high = lives["low"].summary, lives["high"].summary

    def free(summary: dict[str, float]) -> float:
        return summary["mapped"] - summary["used"]

    values: dict[str, float | None] = {
        "coverage_low": 100 * low["coverage"],
        "coverage_lost": 100 * (low["coverage"] - high["coverage"]),
        "less_wasted": 100 * free(high) / max(free(low), 1.0),
        "broken_more": 100 * low["broken_total"] / max(high["broken_total"], 1.0),
    }
    rows = [
        [
            f"{inputs[f'{name}_rate_kb'] / 1024:g}",
            f"{100 * one.summary['coverage']:.1f}",
            f"{one.summary['used'] / MB:.1f}",
            f"{free(one.summary) / MB:.1f}",
            f"{one.summary['broken_total']:.0f}",
        ]
        for name, one in lives.items()
    ]
    heads = ["MB/s", "coverage %", "used MB", "free and mapped MB", "huge pages broken"]
    notes = [
        f"{inputs['seconds']} s of spikes of up to {inputs['spike_mb']} MB over "
        f"{inputs['base_mb']} MB, removed at random; Δ = 0. Every time is virtual. The paper "
        "shows one of its allocator's microbenchmarks; its figure has no numbers in its text, so "
        "the limits are ours."
    ]

    def illustrate(page: Page) -> None:
        from contigua.pictures import lines_picture

        charts = [
            (
                f"{inputs[f'{name}_rate_kb'] / 1024:g} MB/s: MB",
                {
                    label: (one.samples["seconds"], column)
                    for label, column in layers(one.samples).items()
                },
            )
            for name, one in lives.items()
        ]
        page.heading("Figure 3")
        page.picture(
            lines_picture(charts, "Mapped memory at a low and at a high release rate", "seconds"),
            "Used memory on whole and on broken huge pages, and free memory, over time: the low "
            f"rate keeps {values['coverage_low']:.0f} % on whole huge pages, the high rate "
            f"{values['coverage_lost']:.0f} points less with less free memory.",
        )

    return Outcome(values, illustrate, notes=notes, sheets=[Sheet("Means", heads, rows)])
