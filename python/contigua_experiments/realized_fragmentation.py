"""Free memory that another job could have used (adaptive subrelease, ISMM 2021, figure 5)."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from contigua import _engine
from contigua.heap import HeapSettings, Replay, replay
from contigua_experiments.base import Context, Outcome, Sheet

if TYPE_CHECKING:
    from contigua.page import Page

MB = 1 << 20


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Replay several demands, of which the first is shown."""
    lives = []
    for number in range(inputs["seeds"]):
        lives.append(life(inputs, inputs["seed"] + number))
        if context.progress is not None:
            context.progress(len(lives) / inputs["seeds"])
    return figures(lives, inputs)


def life(inputs: dict[str, Any], seed: int) -> Replay:
    """Replay one demand of spikes."""
    seconds = float(inputs["seconds"])
    demand = _engine.heap_spikes(
        inputs["base_mb"] * MB,
        inputs["spike_mb"] * MB,
        inputs["every"],
        inputs["longest"],
        seconds,
        seed,
    )
    settings = HeapSettings(
        release_rate=inputs["rate_mb"] * MB,
        interval=0,
        schedule=inputs["window"],
        sizes=tuple(kilobytes << 10 for kilobytes in inputs["sizes_kb"]),
        removal="random",
        seed=seed,
    )
    return replay(demand, seconds, settings, warmup=inputs["window"])


def least_free(samples: dict[str, list[float]], window: int) -> list[float]:
    """Return the least that was mapped and not used at any whole second of the last window."""
    free = [mapped - used for mapped, used in zip(samples["mapped"], samples["used"], strict=True)]
    return [min(free[max(0, at - window + 1) : at + 1]) for at in range(len(free))]


def figures(lives: list[Replay], inputs: dict[str, Any]) -> Outcome:
    """Compare the two measures."""
    window = inputs["window"]
    above, off = [], 0.0
    for one in lives:
        average = one.samples["average_fragmentation"][window:]
        realized = one.samples["realized_fragmentation"][window:]
        above += [low > high for low, high in zip(realized, average, strict=True)]
        # Between whole seconds less may have been free: realized may be lower, and never higher.
        arithmetic = least_free(one.samples, window)[window:]
        off = max(off, *(low - high for low, high in zip(realized, arithmetic, strict=True)))
    means = {
        name: fmean(one.summary[name] for one in lives)
        for name in ("used", "mapped", "average_fragmentation", "realized_fragmentation")
    }
    values: dict[str, float | None] = {
        "lower": 100 * means["realized_fragmentation"] / max(means["average_fragmentation"], 1.0),
        "positive": 100 * means["average_fragmentation"] / max(means["used"], 1.0),
        "above": 100 * sum(above) / max(len(above), 1),
        "off": max(off, 0.0) / MB,
    }
    rows = [
        [str(number), *(f"{one.summary[name] / MB:.1f}" for name in means)]
        for number, one in enumerate(lives, 1)
    ]
    heads = ["demand", *(f"{name.replace('_', ' ')} MB" for name in means)]
    notes = [
        f"{len(lives)} demands of {inputs['seconds']} s: spikes of up to {inputs['spike_mb']} MB "
        f"for up to {inputs['longest']:g} s, one every {inputs['every']:g} s on average, over "
        f"{inputs['base_mb']} MB; {inputs['rate_mb']} MB/s are given back, and the window is "
        f"{window} s. Every time is virtual."
    ]

    def illustrate(page: Page) -> None:
        from contigua.pictures import lines_picture

        shown = {
            name: [value / MB for value in column] for name, column in lives[0].samples.items()
        }
        seconds = lives[0].samples["seconds"]

        def curves(*names: str) -> dict[str, tuple[list[float], list[float]]]:
            return {name.replace("_", " "): (seconds, shown[name]) for name in names}

        page.heading("Figure 5")
        page.picture(
            lines_picture([("MB", curves("used", "mapped"))], "Memory", "seconds"),
            "Used and mapped memory over time.",
        )
        page.picture(
            lines_picture(
                [("MB", curves("average_fragmentation", "realized_fragmentation"))],
                "Both measures",
                "seconds",
            ),
            "Average and realized fragmentation over time: realized fragmentation is "
            f"{values['lower']:.0f} % of average.",
        )

    return Outcome(values, illustrate, notes=notes, sheets=[Sheet("Means", heads, rows)])
