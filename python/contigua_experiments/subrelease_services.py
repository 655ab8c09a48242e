"""Three services with and without the adaptive policy (ISMM 2021, section 5.2).

Each service is a demand for memory over time, a release rate and an order in which its allocations
go. It lives twice, without Δ and with it: as a heap alone, and smaller on a simulated server, where
page walks and faults cost cycles.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from contigua.heap import Demand, HeapSettings, Replay, Server, ServerReplay, on_server, replay
from contigua.options import RunOptions
from contigua.presets import laid_over
from contigua.statistics import mean_margin
from contigua_experiments.base import Context, Outcome, Sheet

if TYPE_CHECKING:
    from contigua.page import Page

MB = 1 << 20
HOUR = 3600
WEB, STORAGE, ANALYTICS = "web", "storage", "analytics"
SERVICES = (WEB, STORAGE, ANALYTICS)
#: A demand's shares of the base, and its times in seconds.
Shape = dict[str, Any]
T = TypeVar("T", Replay, ServerReplay)


def web(base: int, seconds: float, shape: Shape, chance: random.Random) -> Demand:
    """Serve queries: much lives long and grows slowly, the rest belongs to queries.

    Their number swings with the day, drifts within seconds, and is higher in bursts.
    """
    phase, drift, burst_until = chance.uniform(0, 2 * math.pi), 0.0, 0.0
    next_burst = chance.expovariate(1 / shape["burst_every"])
    points = []
    for second in range(int(seconds) + 1):
        noise = chance.gauss(0, shape["drift"]) * math.sqrt(2 / shape["drift_seconds"])
        drift += noise - drift / shape["drift_seconds"]
        if second >= next_burst:
            burst_until = second + chance.expovariate(1 / shape["burst_lasts"])
            next_burst = burst_until + chance.expovariate(1 / shape["burst_every"])
        load = 1 + shape["day"] * math.sin(phase + 2 * math.pi * second / (24 * HOUR)) + drift
        if second < burst_until:
            load *= shape["burst"]
        grown = 1 - shape["leak"] * (1 - second / (15 * HOUR))
        queries = (1 - shape["lasting"]) * max(load, 0)
        points.append((float(second), int(base * (shape["lasting"] * grown + queries))))
    return points


def storage(base: int, seconds: float, shape: Shape, chance: random.Random) -> Demand:
    """Store blocks: much stays, a cache of writes fills and is flushed, buffers come in bursts."""
    flush = chance.uniform(*shape["flush_every"])
    began, next_burst = 0.0, chance.expovariate(1 / shape["burst_every"])
    bursts: list[tuple[float, float]] = []
    points = []
    for second in range(int(seconds) + 1):
        if second > began + flush + shape["flush_lasts"]:
            began, flush = float(second), chance.uniform(*shape["flush_every"])
        filled = min(1.0, (second - began) / flush)
        if second > began + flush:
            filled = max(0.0, 1 - (second - began - flush) / shape["flush_lasts"])
        while second >= next_burst:
            until = next_burst + chance.expovariate(1 / shape["burst_lasts"])
            bursts.append((until, chance.expovariate(1 / shape["burst"])))
            next_burst += chance.expovariate(1 / shape["burst_every"])
        bursts = [one for one in bursts if one[0] > second]
        buffers = min(shape["most_buffers"], sum(size for _, size in bursts))
        share = shape["lasting"] + shape["cache"] * filled + buffers
        points.append((float(second), int(base * share)))
    return points


def analytics(base: int, seconds: float, shape: Shape, chance: random.Random) -> Demand:
    """Compute in several tasks, whose tables grow with each stage and vanish after it."""
    steps = int(seconds) + 1
    used = [float(shape["lasting"])] * steps
    for _ in range(shape["tasks"]):
        second = chance.uniform(0, shape["grows"][1])
        while second < steps:
            grows, held = chance.uniform(*shape["grows"]), chance.uniform(*shape["held"])
            peak = chance.uniform(*shape["peak"])
            for at in range(math.ceil(second), min(steps, math.ceil(second + grows + held))):
                used[at] += peak * min(1.0, (at - second) / grows)
            second += grows + held + chance.uniform(*shape["gap"])
    return [(float(second), int(base * share)) for second, share in enumerate(used)]


DEMANDS: dict[str, Callable[[int, float, Shape, random.Random], Demand]] = {
    WEB: web,
    STORAGE: storage,
    ANALYTICS: analytics,
}


@dataclass(frozen=True)
class Place:
    """A service, one of its demands, and the policy of its heap.

    Attributes
    ----------
    service
        Its name.
    number
        Draws its demand.
    adaptive
        True with Δ.
    variant
        What is changed of it, by number; 0 for nothing.
    """

    service: str
    number: int
    adaptive: bool
    variant: int = 0

    def inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the service's table."""
        found: dict[str, Any] = inputs[self.service]
        if self.variant:
            found = laid_over(found, inputs["variants"][self.variant - 1]["put"])
        return found

    def demand(self, service: dict[str, Any], megabytes: int, seconds: float) -> Demand:
        """Return what it uses over time; the same on every call and for both policies."""
        chance = random.Random(f"{self.number} {self.service}")
        return DEMANDS[self.service](megabytes * MB, seconds, service["demand"], chance)

    def settings(self, service: dict[str, Any], megabytes: int) -> HeapSettings:
        """Return its heap's settings at a size: it gives back the same share of it in a second."""
        return HeapSettings(
            release_rate=service["rate_mb"] * MB * megabytes // service["heap_mb"],
            interval=service["interval"] if self.adaptive else 0,
            sizes=tuple(kilobytes << 10 for kilobytes in service["sizes_kb"]),
            removal=service["removal"],
            seed=self.number,
        )


@dataclass(frozen=True)
class Pair(Generic[T]):
    """Results of one demand without Δ and with it."""

    without: T
    adaptive: T

    def of(self, name: str) -> tuple[float, float]:
        """Return a figure of both summaries."""
        return self.without.summary[name], self.adaptive.summary[name]

    def share(self, name: str) -> float:
        """Return a figure with Δ, of that without it."""
        without, adaptive = self.of(name)
        return adaptive / max(without, 1e-9)


@dataclass(frozen=True)
class Lives:
    """Results: of heaps alone and on servers, and what became of services that are changed."""

    alone: dict[str, list[Pair[Replay]]]
    served: dict[str, list[Pair[ServerReplay]]]
    variants: list[tuple[Pair[Replay], Pair[ServerReplay]]]


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Let every service live, some at a time."""
    alone = [one for name in SERVICES for one in _places(name, inputs["demands"])]
    served = [one for name in SERVICES for one in _places(name, inputs["servers"])]
    variants = [
        one
        for at, each in enumerate(inputs["variants"], 1)
        for one in _places(each["service"], 1, at)
    ]
    with ThreadPoolExecutor(context.jobs or os.cpu_count() or 1) as pool:
        # Servers take longest.
        ours = {one: pool.submit(serve, one, inputs) for one in (*served, *variants)}
        heaps = {one: pool.submit(live, one, inputs) for one in (*alone, *variants)}
        every: list[Future[Any]] = [*ours.values(), *heaps.values()]
        try:
            for done, _ in enumerate(as_completed(every), 1):
                if context.progress is not None:
                    context.progress(done / len(every))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    lives = Lives(
        {name: _pairs([one for one in alone if one.service == name], heaps) for name in SERVICES},
        {name: _pairs([one for one in served if one.service == name], ours) for name in SERVICES},
        list(zip(_pairs(variants, heaps), _pairs(variants, ours), strict=True)),
    )
    return figures(lives, inputs)


def _places(service: str, numbers: int, variant: int = 0) -> list[Place]:
    """Return each demand without Δ, and then with it."""
    return [
        Place(service, number, adaptive, variant)
        for number in range(1, numbers + 1)
        for adaptive in (False, True)
    ]


def _pairs(places: Sequence[Place], begun: Mapping[Place, Future[T]]) -> list[Pair[T]]:
    found = [begun[one].result() for one in places]
    return [Pair(*both) for both in zip(found[::2], found[1::2], strict=True)]


def live(place: Place, inputs: dict[str, Any]) -> Replay:
    """Let a heap live alone."""
    service = place.inputs(inputs)
    size, seconds = service["heap_mb"], float(inputs["seconds"][place.service])
    demand, settings = place.demand(service, size, seconds), place.settings(service, size)
    return replay(demand, seconds, settings, warmup=inputs["warmup"])


def serve(place: Place, inputs: dict[str, Any]) -> ServerReplay:
    """Let a heap live on a server."""
    service = place.inputs(inputs)
    size, seconds = inputs["server_mb"], float(inputs["server_seconds"])
    options = RunOptions(
        machine=inputs["machine"],
        memory=inputs["server_memory"],
        detail="additive",
        seed=place.number,
    )
    return on_server(
        place.demand(service, size, seconds),
        seconds,
        place.settings(service, size),
        Server(inputs["design"], "fresh", options),
        warmup=inputs["warmup"],
        reads=inputs["reads"],
    )


def last_hour(one: Replay) -> float:
    """Return the mean coverage of the last hour, in percent."""
    return 100 * fmean(one.samples["coverage"][-HOUR:])


def fall(one: Replay) -> float:
    """Return by how many points coverage changes from the first third to the last, after an hour.

    Parameters
    ----------
    one
        The life of a heap; the first hour is left out where it is longer than two.
    """
    values = one.samples["coverage"]
    values = values[HOUR:] if len(values) > 2 * HOUR else values
    third = max(1, len(values) // 3)
    return 100 * (fmean(values[-third:]) - fmean(values[:third]))


def faults(one: ServerReplay) -> float:
    """Return the number of minor faults."""
    return one.summary["faults_4k"] + one.summary["faults_2m"]


def fault_share(pair: Pair[ServerReplay]) -> float:
    """Return minor faults with Δ, of those without it, in percent."""
    return 100 * faults(pair.adaptive) / max(faults(pair.without), 1.0)


def cycles(pair: Pair[ServerReplay], inputs: dict[str, Any]) -> float:
    """Return cycles with Δ, of those without it, in percent.

    The shares of walks and faults are those of the paper's control group; they change as ours do.
    """
    walks = inputs["walk_percent"] * (1 - pair.share("walk_cycles_per_read"))
    kernel = inputs["fault_percent"] * (1 - pair.share("kernel_cycles"))
    return float(100 - walks - kernel)


def by_table(pair: Pair[Replay], inputs: dict[str, Any]) -> float:
    """Return throughput with Δ, in percent, if coverage is worth as much as in the fleet."""
    without, adaptive = pair.of("coverage")
    points = 100 * (adaptive - without)
    return float(100 + points * inputs["fleet_gain"] / inputs["fleet_points"])


def times_less(pair: Pair[Replay]) -> float:
    """Return how many times fewer huge pages Δ breaks."""
    without, adaptive = pair.of("broken_total")
    return without / max(adaptive, 1.0)


def figures(lives: Lives, inputs: dict[str, Any]) -> Outcome:
    """Compare each service without Δ and with it: means over its demands."""
    of, on = lives.alone, lives.served
    series: dict[str, list[float]] = {
        "web_adaptive": [last_hour(one.adaptive) for one in of[WEB]],
        "web_static": [last_hour(one.without) for one in of[WEB]],
        "web_falls": [fall(one.without) for one in of[WEB]],
        "web_right": [100 * one.adaptive.summary["skipped_correct"] for one in of[WEB]],
        "web_throughput": [100 * 100 / cycles(one, inputs) for one in on[WEB]],
        "web_by_table": [by_table(one, inputs) for one in of[WEB]],
        "storage_faults": [fault_share(one) for one in on[STORAGE]],
        "storage_broken": [100 * one.share("broken_total") for one in of[STORAGE]],
        "analytics_cycles": [cycles(one, inputs) for one in on[ANALYTICS]],
        "analytics_by_table": [100 * 100 / by_table(one, inputs) for one in of[ANALYTICS]],
        "analytics_coverage": [one.share("coverage") for one in of[ANALYTICS]],
        "analytics_broken": [times_less(one) for one in of[ANALYTICS]],
    }
    margins = {key: mean_margin(values) for key, values in series.items()}
    gain = inputs["fleet_gain"] / inputs["fleet_points"]
    notes = [
        f"{SENTENCES[name]} of {inputs[name]['heap_mb']} MB for {inputs['seconds'][name]} s of "
        f"virtual time, {inputs[name]['rate_mb']} MB/s, Δ = {inputs[name]['interval']} s, "
        f"allocations of {inputs[name]['sizes_kb']} KB of which "
        f"{_order(inputs[name]['removal'])} first."
        for name in SERVICES
    ]
    notes += [
        f"Each figure is the mean of {inputs['demands']} demands, and of {inputs['servers']} on "
        f"servers of {inputs['server_memory']} with heaps of {inputs['server_mb']} MB for "
        f"{inputs['server_seconds']} s, which give back the same share of their size in a second. "
        "Cycles follow from the shares of page walks and minor faults in the paper's control "
        "group, as in subrelease-fleet.",
        f"In the paper's Table 1, a point of coverage is worth {gain:.3f} % of throughput (the "
        "mean of both kinds of workloads). By that the 11 points of its web server are worth "
        f"{11 * gain:.2f} %, and it prints 0.9.",
    ]
    return Outcome(
        {key: fmean(values) for key, values in series.items()},
        partial(_illustrate, of=of, inputs=inputs),
        {key: margin for key, margin in margins.items() if margin is not None},
        notes,
        [_alone(of), _on_servers(on), _variants(lives, inputs)],
    )


SENTENCES = {
    WEB: "A web server",
    STORAGE: "A storage server",
    ANALYTICS: "A framework for data analytics",
}


def _order(removal: str) -> str:
    return "any goes" if removal == "random" else f"the {removal} goes"


def _alone(of: dict[str, list[Pair[Replay]]]) -> Sheet:
    heads = ["service", "demand", "coverage %", "with Δ %", "broken", "with Δ", "correct %"]
    rows = [
        [
            name,
            str(number),
            *(f"{100 * one:.1f}" for one in pair.of("coverage")),
            *(f"{one:.0f}" for one in pair.of("broken_total")),
            f"{100 * pair.adaptive.summary['skipped_correct']:.0f}",
        ]
        for name, pairs in of.items()
        for number, pair in enumerate(pairs, 1)
    ]
    return Sheet("Heaps alone: means over the run", heads, rows)


def _on_servers(on: dict[str, list[Pair[ServerReplay]]]) -> Sheet:
    heads = ["service", "demand", "coverage %", "with Δ %", "walk cycles a read", "with Δ"]
    heads += ["minor faults", "with Δ", "kernel Mcycles", "with Δ", "made huge by the kernel"]
    heads += ["with Δ"]
    rows = [
        [
            name,
            str(number),
            *(f"{100 * one:.1f}" for one in pair.of("coverage")),
            *(f"{one:.2f}" for one in pair.of("walk_cycles_per_read")),
            *(f"{faults(one):.0f}" for one in (pair.without, pair.adaptive)),
            *(f"{one / 1e6:.0f}" for one in pair.of("kernel_cycles")),
            *(f"{one:.0f}" for one in pair.of("collapsed_in_background")),
        ]
        for name, pairs in on.items()
        for number, pair in enumerate(pairs, 1)
    ]
    return Sheet("On servers", heads, rows)


def _variants(lives: Lives, inputs: dict[str, Any]) -> Sheet:
    """Return what became of the first demand of each service, and of the same changed."""
    heads = ["changed", "coverage %", "with Δ %", "times", "broken, of those without Δ, %"]
    heads += ["times fewer", "correct %", "faults, of those without Δ, %"]
    heads += ["cycles, by walks and faults, %", "by Table 1, %"]
    kept = ["coverage %", "with Δ %", "times fewer", "correct %"]
    plain = [
        (f"{name}, as it is", lives.alone[name][0], lives.served[name][0]) for name in SERVICES
    ]
    changed = [
        (f"{each['service']}, {each['what']}", *pair)
        for each, pair in zip(inputs["variants"], lives.variants, strict=True)
    ]
    rows = [
        [
            what,
            *(f"{100 * one:.1f}" for one in alone.of("coverage")),
            f"{alone.share('coverage'):.2f}",
            f"{100 * alone.share('broken_total'):.0f}",
            f"{times_less(alone):.1f}",
            f"{100 * alone.adaptive.summary['skipped_correct']:.0f}",
            f"{fault_share(served):.0f}",
            f"{cycles(served, inputs):.1f}",
            f"{100 * 100 / by_table(alone, inputs):.1f}",
        ]
        for what, alone, served in sorted(
            (*plain, *changed), key=lambda row: SERVICES.index(row[0].partition(",")[0])
        )
    ]
    return Sheet("Suspected causes, changed: the first demand", heads, rows, kept)


def _illustrate(page: Page, of: dict[str, list[Pair[Replay]]], inputs: dict[str, Any]) -> None:
    from contigua.pictures import lines_picture

    for name, pairs in of.items():
        policies = {
            "without Δ": pairs[0].without.samples,
            f"Δ = {inputs[name]['interval']} s": pairs[0].adaptive.samples,
        }
        curves: dict[str, dict[str, tuple[list[float], list[float]]]] = {
            "coverage, %": {key: _curve(one, "coverage", 100) for key, one in policies.items()},
            "MB": {
                "used": _curve(pairs[0].without.samples, "used", 1 / MB),
                **{key: _curve(one, "mapped", 1 / MB) for key, one in policies.items()},
            },
        }
        page.heading(SENTENCES[name])
        page.picture(
            lines_picture(
                list(curves.items()), f"{SENTENCES[name]}: huge pages and memory", "hours"
            ),
            "Share of used memory in unbroken huge pages, and used and mapped memory over time, "
            "of the first demand.",
        )


def _curve(
    samples: dict[str, list[float]], column: str, scale: float
) -> tuple[list[float], list[float]]:
    """Return hours and values; a thousand of them are all that a picture shows."""
    every = max(1, len(samples["seconds"]) // 1000)
    hours = [one / HOUR for one in samples["seconds"][::every]]
    return hours, [scale * one for one in samples[column][::every]]
