"""A fleet of heaps with and without the adaptive policy (ISMM 2021, figures 7 and 10, Table 1).

Every workload is a demand for memory over time, drawn at random, with a release rate and an order
in which its allocations go. Each lives twice, without Δ and with it. Some also live on a simulated
server, where page walks and faults cost cycles.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from contigua import _engine
from contigua.heap import Demand, HeapSettings, Replay, Server, ServerReplay, on_server, replay
from contigua.options import RunOptions
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.statistics import distribution, percent, percent_margin

if TYPE_CHECKING:
    from contigua.page import Page

MB = 1 << 20
T = TypeVar("T")


@dataclass(frozen=True)
class Workload:
    """A program of the fleet.

    Attributes
    ----------
    kind
        How its demand moves.
    number
        Its place in the fleet; draws everything else.
    base
        Bytes that it uses at most, about.
    rate
        Bytes that its heap gives back in a second.
    removal
        Which allocations go first.
    sizes
        Bytes of its allocations, in turn.
    """

    kind: str
    number: int
    base: int
    rate: int
    removal: str
    sizes: tuple[int, ...]

    def settings(self, interval: float, window: float) -> HeapSettings:
        """Return its heap's settings with some Δ."""
        return HeapSettings(
            release_rate=self.rate,
            interval=interval,
            schedule=window,
            sizes=self.sizes,
            removal=self.removal,
            seed=self.number,
        )

    def demand(self, seconds: float) -> Demand:
        """Return what it uses over time; the same on every call."""
        chance = random.Random(f"{self.number} {self.kind}")
        return DEMANDS[self.kind](self.base, seconds, chance)


def steady(base: int, _seconds: float, _chance: random.Random) -> Demand:
    """Use the same all the time."""
    return [(0.0, base)]


def wave(base: int, seconds: float, chance: random.Random) -> Demand:
    """Rise and fall with a period between seconds and minutes, no two times equally high."""
    period = math.exp(chance.uniform(math.log(5), math.log(400)))
    depth = chance.uniform(0.05, 0.4)
    step = max(1.0, period / 12)

    def used(time: float) -> int:
        low = 0.5 + 0.5 * math.cos(2 * math.pi * time / period)
        return int(base * (1 - depth * low * chance.uniform(0.8, 1)))

    return [(index * step, used(index * step)) for index in range(int(seconds / step) + 1)]


def spikes(base: int, seconds: float, chance: random.Random) -> Demand:
    """Need more for a while now and then."""
    every, longest = chance.uniform(5, 40), chance.uniform(10, 90)
    seed = chance.randrange(1 << 31)
    return list(
        _engine.heap_spikes(int(base * 0.7), int(base * 0.3), every, longest, seconds, seed)
    )


def batch(base: int, seconds: float, chance: random.Random) -> Demand:
    """Work on one task after the other, each of which needs something else for minutes."""
    points, time = [], 0.0
    while time < seconds:
        points.append((time, int(base * chance.uniform(0.3, 1))))
        time += chance.expovariate(1 / 200)
    return points


DEMANDS: dict[str, Callable[[int, float, random.Random], Demand]] = {
    "steady": steady,
    "wave": wave,
    "spikes": spikes,
    "batch": batch,
}


def fleet(inputs: dict[str, Any]) -> list[Workload]:
    """Draw the workloads; more of them begin with the same."""
    drawn = []
    for number in range(inputs["workloads"]):
        chance = random.Random(f"{inputs['seed']} {number}")
        least, most = math.log(inputs["least_mb"]), math.log(inputs["most_mb"])
        drawn.append(
            Workload(
                kind=_pick(chance, inputs["kinds"]),
                number=number,
                base=int(math.exp(chance.uniform(least, most)) * MB),
                rate=int(_pick(chance, inputs["rates"])) * MB,
                removal=_pick(chance, inputs["removals"]),
                sizes=tuple(chance.choice(inputs["sizes_kb"]) << 10 for _ in range(8)),
            )
        )
    return drawn


def _pick(chance: random.Random, shares: Mapping[str, float]) -> str:
    return chance.choices(list(shares), list(shares.values()))[0]


def shrunk(one: Workload, base: int) -> Workload:
    """Return a workload at another size: its heap gives back the same share of it in a second."""
    rate = one.rate * base // one.base
    return Workload(one.kind, one.number, base, rate, one.removal, one.sizes)


@dataclass(frozen=True)
class Life:
    """Results of a workload without Δ and with it."""

    workload: Workload
    without: Replay
    adaptive: Replay


@dataclass(frozen=True)
class ServerLife:
    """Results of a workload on a simulated server, without Δ and with it."""

    workload: Workload
    without: ServerReplay
    adaptive: ServerReplay


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Let every workload live, and some of them on servers."""
    workloads = fleet(inputs)
    sampled = workloads[: inputs["sampled"]]
    total = len(workloads) + len(sampled)
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if context.progress is not None:
            context.progress(done / total)

    jobs = context.jobs or os.cpu_count() or 1
    lives = _all(lambda one: live(one, inputs), workloads, jobs, step)
    served = _all(lambda one: serve(one, inputs), sampled, jobs, step)
    return figures(lives, served, inputs)


def _all(
    act: Callable[[Workload], T], among: Sequence[Workload], jobs: int, step: Callable[[], None]
) -> list[T]:
    """Do something for every workload, some at a time, and return it in their order."""
    with ThreadPoolExecutor(jobs) as pool:
        begun = [pool.submit(act, one) for one in among]
        try:
            for _ in as_completed(begun):
                step()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [one.result() for one in begun]


def live(one: Workload, inputs: dict[str, Any]) -> Life:
    """Let a workload's heap live alone, twice."""
    seconds, window = float(inputs["seconds"]), inputs["window"]
    demand = one.demand(seconds)
    without, adaptive = (
        replay(demand, seconds, one.settings(interval, window), warmup=inputs["warmup"])
        for interval in (0, inputs["interval"])
    )
    return Life(one, without, adaptive)


def serve(one: Workload, inputs: dict[str, Any]) -> ServerLife:
    """Let a workload's heap live on a server, twice."""
    one = shrunk(one, inputs["server_mb"] * MB)
    seconds = float(inputs["server_seconds"])
    options = RunOptions(
        machine=inputs["machine"],
        memory=inputs["server_memory"],
        detail="additive",
        seed=inputs["seed"],
    )
    without, adaptive = (
        on_server(
            one.demand(seconds),
            seconds,
            one.settings(interval, inputs["window"]),
            Server("linux-thp-madvise", "fresh", options),
            warmup=inputs["server_warmup"],
            reads=inputs["reads"],
        )
        for interval in (0, inputs["interval"])
    )
    return ServerLife(one, without, adaptive)


def sampled_at(one: Workload, inputs: dict[str, Any]) -> int:
    """Draw the second at which the fleet's monitoring looks at a workload."""
    chance = random.Random(f"sample {one.number}")
    return chance.randrange(int(inputs["warmup"]), int(inputs["seconds"]))


def right(one: Replay) -> float:
    """Return the share of withheld memory that was needed again; all of it if none was withheld."""
    return 100 * one.summary["skipped_correct"] if one.summary["skipped"] else 100.0


def coverage(lives: Iterable[Replay]) -> float:
    """Return the share of the fleet's used memory on whole huge pages, in percent."""
    pairs = [(one.summary["coverage"], one.summary["used"]) for one in lives]
    return 100 * sum(share * used for share, used in pairs) / sum(used for _, used in pairs)


def _total(lives: Iterable[Replay | ServerReplay], *names: str) -> float:
    return sum(one.summary[name] for one in lives for name in names)


def figures(lives: Sequence[Life], served: Sequence[ServerLife], inputs: dict[str, Any]) -> Outcome:
    """Compare the fleet without Δ and with it."""
    without, adaptive = [one.without for one in lives], [one.adaptive for one in lives]
    shown = {
        name: [
            one.without.samples[f"{name}_fragmentation"][sampled_at(one.workload, inputs)] / MB
            for one in lives
        ]
        for name in ("average", "realized")
    }
    none = {name: [value < inputs["none_mb"] for value in values] for name, values in shown.items()}
    correct = [right(one) for one in adaptive]
    before, after = [one.without for one in served], [one.adaptive for one in served]
    walks = _total(after, "walk_cycles_per_read") / max(_total(before, "walk_cycles_per_read"), 1)
    faults = _total(after, "kernel_cycles") / max(_total(before, "kernel_cycles"), 1)
    saved = inputs["walk_percent"] * (1 - walks) + inputs["fault_percent"] * (1 - faults)
    kept = ("used", "realized_fragmentation")
    realized = [_total(group, "realized_fragmentation") for group in (without, adaptive)]
    values: dict[str, float | None] = {
        "no_average": percent(none["average"]),
        "no_realized": percent(none["realized"]),
        "coverage_control": coverage(without),
        "coverage": coverage(adaptive),
        "broken": 100 * _total(adaptive, "broken_total") / max(_total(without, "broken_total"), 1),
        "memory": 100 * _total(adaptive, *kept) / _total(without, *kept),
        "realized": 100 * realized[1] / realized[0] if realized[0] else None,
        "right": median(correct),
        "always_right": percent([share >= 100 for share in correct]),
        "walks": inputs["walk_percent"] * walks,
        "faults": inputs["fault_percent"] * faults,
        "throughput": 100 / (1 - saved / 100),
    }
    margins = {
        "no_average": percent_margin(none["average"]),
        "no_realized": percent_margin(none["realized"]),
        "always_right": percent_margin([share >= 100 for share in correct]),
    }
    notes = [
        f"{len(lives)} workloads of {inputs['least_mb']} to {inputs['most_mb']} MB live for "
        f"{inputs['seconds']} s of virtual time, Δ = {inputs['interval']} s, window "
        f"{inputs['window']} s. The fleet's coverage is weighted by used memory, as a fleet's "
        "monitoring sees it; the distributions count workloads, as figure 7 does, each at one "
        f"random second. Less than {inputs['none_mb']} MB of fragmentation counts as none.",
        f"Realized fragmentation by itself is {realized[0] / MB:.0f} MB without Δ and "
        f"{realized[1] / MB:.0f} MB with it, of {_total(without, 'used') / MB:.0f} MB that are "
        "used.",
        f"{len(served)} of the workloads also lived on a simulated server of "
        f"{inputs['server_memory']}, at {inputs['server_mb']} MB each. Throughput follows from the "
        "two shares of cycles alone.",
    ]
    sheets = [_by_kind(lives), _by_server(served)]

    def illustrate(page: Page) -> None:
        _illustrate(page, shown, correct, inputs)

    return Outcome(values, illustrate, margins, notes, sheets)


def _by_kind(lives: Sequence[Life]) -> Sheet:
    heads = ["demand", "workloads", "coverage %", "with Δ %", "broken", "with Δ", "correct %"]
    rows = []
    for kind in DEMANDS:
        group = [one for one in lives if one.workload.kind == kind]
        if group:
            without = [one.without for one in group]
            adaptive = [one.adaptive for one in group]
            rows.append(
                [
                    kind,
                    str(len(group)),
                    f"{coverage(without):.1f}",
                    f"{coverage(adaptive):.1f}",
                    f"{_total(without, 'broken_total'):.0f}",
                    f"{_total(adaptive, 'broken_total'):.0f}",
                    f"{median(right(one) for one in adaptive):.0f}",
                ]
            )
    return Sheet("By demand", heads, rows)


def _by_server(served: Sequence[ServerLife]) -> Sheet:
    heads = ["workload", "demand", "coverage %", "with Δ %", "walk cycles a read", "with Δ"]
    heads += ["kernel Mcycles", "with Δ"]
    rows = [
        [
            str(one.workload.number),
            one.workload.kind,
            *(f"{100 * each.summary['coverage']:.0f}" for each in (one.without, one.adaptive)),
            *(
                f"{each.summary['walk_cycles_per_read']:.2f}"
                for each in (one.without, one.adaptive)
            ),
            *(f"{each.summary['kernel_cycles'] / 1e6:.0f}" for each in (one.without, one.adaptive)),
        ]
        for one in served
    ]
    return Sheet("On servers", heads, rows)


def _illustrate(
    page: Page, shown: dict[str, list[float]], correct: list[float], inputs: dict[str, Any]
) -> None:
    from contigua.pictures import lines_picture

    page.heading("Figure 7")
    page.picture(
        lines_picture(
            [("workloads, %", {name: distribution(values) for name, values in shown.items()})],
            "Fragmentation across the fleet, without Δ",
            "MB",
            steps=True,
        ),
        "Cumulative distributions of average and realized fragmentation: most workloads have none "
        "that is realized.",
        f"Simulated workloads, each at one random second; window {inputs['window']} s.",
    )
    page.heading("Figure 10")
    page.picture(
        lines_picture(
            [("workloads, %", {f"Δ = {inputs['interval']} s": distribution(correct)})],
            "Correct decisions across the fleet",
            "% of withheld memory that was needed again",
            steps=True,
        ),
        f"Cumulative distribution of the share of correct decisions; the median workload has "
        f"{median(correct):.0f} %.",
    )
