"""Kernels with Contiguitas in virtual machines, beside the same kernels without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contigua.programs.program import MissingProgramError, ProgramError
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.virtual_machines import harness, ticks

if TYPE_CHECKING:
    from contigua.page import Page

#: Steps of a scenario that tell of progress, about.
STEPS = 12
SIZES = ("2 MB", "4 MB", "32 MB", "1 GB")


@dataclass(frozen=True)
class Variant:
    """A kernel and how it is booted.

    Attributes
    ----------
    series
        Its version's first two numbers.
    name
        What it is called in tables.
    is_changed
        Whether it has Contiguitas, and uses it.
    is_built
        Whether it is built here, or Debian's own.
    setting
        A command at the beginning.
    """

    series: str
    name: str
    is_changed: bool = False
    is_built: bool = True
    setting: str = "true"


@dataclass(frozen=True)
class Run:
    """State of memory under one kernel in one scenario."""

    variant: Variant
    scenario: str
    outcome: Any


def variants(inputs: dict[str, Any]) -> list[Variant]:
    """Return the kernels that an experiment's inputs name."""
    found = []
    for series in inputs["built"]:
        found.append(Variant(series, f"{series} stock"))
        found.append(Variant(series, f"{series} Contiguitas", is_changed=True))
    for series in inputs["compacting"]:
        found.append(Variant(series, f"{series} Debian", is_built=False))
        found.append(
            Variant(
                series,
                f"{series} defrag_mode",
                is_built=False,
                setting="echo 1 >/proc/sys/vm/defrag_mode",
            )
        )
    return found


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every scenario on every kernel."""
    machines, building, confinement = harness("building", "confinement")
    missing = building.missing_for_build()
    if missing is not None:
        raise MissingProgramError(missing)
    cases = [(kernel, kind) for kernel in variants(inputs) for kind in inputs["scenarios"]]
    runs: list[Run] = []
    failures: list[str] = []
    for number, (variant, kind) in enumerate(cases):
        try:
            if variant.is_built:
                kernel = building.built_kernel(variant.series, is_changed=variant.is_changed)
            else:
                kernel = machines.kernel(variant.series)
            outcome = confinement.scatter(
                kernel,
                kind,
                options="contiguitas=on" if variant.is_changed else "",
                setting=variant.setting,
                memory_mib=inputs["memory_mib"],
                rounds=inputs["rounds"],
                progress=ticks(context, number, len(cases), STEPS),
            )
        except machines.VmError as error:
            # With a kernel that is built here that is a failure, with another a result.
            if variant.is_built:
                raise ProgramError(f"{variant.name}, {kind}: {error}") from error
            why = str(error).splitlines()[0]
            failures.append(f"{variant.name}, {kind}, did not get to the end: {why}.")
            continue
        runs.append(Run(variant, kind, outcome))
    return Outcome(
        values=figures(runs),
        illustrate=lambda page: _illustrate(page, runs),
        notes=[*NOTES, *failures],
        sheets=[table(runs), latencies(runs), *borders(runs)],
    )


#: Notes for readers.
NOTES = (
    "Pages of 2 MB and of 1 GB were asked for by nr_hugepages, after programs had given all their "
    "memory back, all memory but 150 MB in 2 MB pages first.",
    "Guests count instructions instead of time, four nanoseconds for each: latencies are the same "
    "on any host, and have no cache misses in them.",
)


def figures(runs: list[Run]) -> dict[str, float | None]:
    """Return the experiment's figures over all scenarios; defrag_mode is in the tables only."""
    stock = [run for run in runs if run.variant.is_built and not run.variant.is_changed]
    changed = [run for run in runs if run.variant.is_changed]

    def mean(some: list[Run]) -> float:
        return float(sum(run.outcome.polluted["2 MB"] for run in some) / len(some))

    before = {(run.variant.series, run.scenario): run.outcome.huge_pages for run in stock}
    gains = [
        run.outcome.huge_pages / max(before[run.variant.series, run.scenario], 1) - 1
        for run in changed
    ]
    return {
        "polluted_without": mean(stock),
        "polluted_with": mean(changed),
        "huge_gain": 100.0 * min(gains),
        "gigantic_without": max(run.outcome.gigantic_pages for run in stock),
        "gigantic_with": min(run.outcome.gigantic_pages for run in changed),
        "killed": max(run.outcome.killed for run in changed),
    }


def table(runs: list[Run]) -> Sheet:
    """Return what memory was good for, a line for each run."""
    heads = [
        "scenario",
        "kernel",
        "unmovable",
        *(f"polluted {size}" for size in SIZES),
        *(f"potential {size}" for size in SIZES[:3]),
        "2 MB pages",
        "1 GB pages",
        "killed",
    ]
    rows = [
        [
            run.scenario,
            run.variant.name,
            f"{run.outcome.unmovable_mib:.0f} MiB",
            *(f"{run.outcome.polluted[size]:.1f} %" for size in SIZES),
            *(f"{run.outcome.potential_contiguity[size]:.1f} %" for size in SIZES[:3]),
            str(run.outcome.huge_pages),
            str(run.outcome.gigantic_pages),
            str(run.outcome.killed),
        ]
        for run in sorted(runs, key=lambda run: run.scenario)
    ]
    return Sheet("Memory after each scenario", heads, rows)


def latencies(runs: list[Run]) -> Sheet:
    """Return how long allocations took during the scenarios."""
    rows = []
    for run in sorted(runs, key=lambda run: run.scenario):
        for kind in ("unmovable", "movable"):
            took = run.outcome.latency[kind]
            rows.append(
                [
                    run.scenario,
                    run.variant.name,
                    kind,
                    str(took.count),
                    *(f"{time / 1000:.1f}" for time in (took.median, took.p99, took.p999)),
                    f"{took.longest / 1000:.0f}",
                ]
            )
    heads = ["scenario", "kernel", "page", "probes", "median, us", "99 %", "99.9 %", "longest"]
    return Sheet("Latency of allocating one page", heads, rows)


def borders(runs: list[Run]) -> list[Sheet]:
    """Return what changed kernels said of their borders at the end of the waves."""
    rows = []
    for run in runs:
        for zone in run.outcome.contiguitas:
            rows.append(
                [
                    run.scenario,
                    run.variant.name,
                    zone["zone"],
                    f"{zone['unmovable_mib']} MiB",
                    f"{zone['movable_mib']} MiB",
                    zone["gained_by_unmovable"],
                    zone["gained_by_movable"],
                    zone["held"],
                    zone["spilled"],
                ]
            )
    heads = ["scenario", "kernel", "zone", "unmovable", "movable", "up", "down", "held", "spilled"]
    return [Sheet("Borders at the end, in blocks of 2 MB", heads, rows)] if rows else []


def _illustrate(page: Page, runs: list[Run]) -> None:
    from contigua.pictures import bars_picture

    scenarios = sorted({run.scenario for run in runs})
    bars: dict[str, list[float]] = {}
    for run in sorted(runs, key=lambda run: run.scenario):
        bars.setdefault(run.variant.name, []).append(run.outcome.polluted["2 MB"])
    whole = {name: shares for name, shares in bars.items() if len(shares) == len(scenarios)}
    page.picture(
        bars_picture(scenarios, whole, "Blocks of 2 MB with unmovable memory", "%"),
        "For each scenario, blocks with unmovable memory under each kernel",
    )
