"""Time for which a moving page is unavailable (Contiguitas, ISCA 2023, Figure 1 and section 5).

Threads, one on each core, add to random words of one table, so that every core's TLB holds every
page that may be moved. For each page that moved, a report has the longest delay of an access
between begin and end of its migration, observed in the same way for software and hardware, and for
each of hardware's designs: lines that private caches may keep or not, page tables that are switched
after the copy or before. What causes the delays is changed, too: the cost of interrupting a core,
and of a hop of the network, over which the last level recalls lines.
"""

from __future__ import annotations

import math
import re
import tomllib
from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua.presets import Preset, machines
from contigua.programs.program import Program, workload
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.migration_apps import WAYS
from contigua_experiments.running import Cell, Values, cycles, hertz, run_cells
from contigua_experiments.statistics import Line, line

if TYPE_CHECKING:
    from contigua.page import Page

#: Runs of one number of cores: the design, and the cause that was changed, if any.
Runs = dict[tuple[str, str], Values]

#: Reported quantiles of a distribution.
QUANTILES = ("min", "median", "p95", "max")
#: Key of the run without migrations.
NONE = ("", "")


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run the threads on every number of cores, with both mechanisms."""
    software, hardware, *_ = designs = inputs["designs"]
    changed = {
        (software, "interrupts"): changed_machine(
            inputs["machine"], "interrupt_target_cycles", inputs["changed"]["interrupt_factor"]
        ),
        (hardware, "recalls"): changed_machine(
            inputs["machine"], "hop_cycles", inputs["changed"]["hop_factor"]
        ),
    }
    found: dict[int, Runs] = {}
    counts = inputs["cores"]
    for index, cores in enumerate(counts):
        options = RunOptions(
            machine=inputs["machine"],
            memory=inputs["memory"],
            detail=inputs["detail"],
            seed=inputs["seed"],
            cores=cores,
            warmup=inputs["warmup"] * cores,
            migrations=machine_hertz(inputs["machine"]) / interval(cores, inputs),
        )
        cells = {(design, ""): Cell(design) for design in designs}
        cells[NONE] = Cell(hardware, migrations=0)
        if cores in inputs["changed"]["cores"]:
            cells |= {key: Cell(key[0], machine=machine) for key, machine in changed.items()}
        reports = run_cells(
            threads(cores, inputs), list(cells.values()), options, kept=context.kept
        )
        found[cores] = {key: reports[cell] for key, cell in cells.items()}
        if context.progress is not None:
            # Work grows with the number of threads.
            context.progress(sum(counts[: index + 1]) / sum(counts))
    return figures(found, inputs)


def interval(cores: int, inputs: dict[str, Any]) -> int:
    """Return the cycles from one migration to the next, in which software's ends."""
    return int(inputs["interval"]["cycles"] + cores * inputs["interval"]["cycles_of_core"])


def threads(count: int, inputs: dict[str, Any]) -> Program:
    """Return threads that work for as long as the migrations are to take."""
    migrations = inputs["migrations"] * max(1, inputs["many_cores"] // count)
    additions = migrations * interval(count, inputs) / inputs["addition_cycles"]
    options = {
        "size": inputs["table"],
        "threads": count,
        "rounds": math.ceil(additions / inputs["additions"]),
        "additions": inputs["additions"],
        "divisions": inputs["divisions"],
    }
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return Program("rounds", workload("rounds", *arguments))


def machine_hertz(name: str) -> float:
    """Return the clock of a machine."""
    return hertz({"config": {"machine": tomllib.loads(machines.get(name).text)}})


def changed_machine(name: str, key: str, factor: int) -> Preset:
    """Return a machine of which one number is so many times as large."""
    preset = machines.get(name)

    def multiplied(match: re.Match[str]) -> str:
        return f"{match[1]}{int(match[2]) * factor}"

    text, count = re.subn(rf"(?m)^({key} = )(\d+)", multiplied, preset.text)
    if count != 1:
        raise ValueError(f"{preset.origin} has {key} {count} times, not once")
    return Preset(f"{name}, {key} x {factor}", text, preset.origin)


def downtime(values: Values) -> dict[str, float] | None:
    """Return quantiles of the cycles for which a moved page could not be used, and their mean."""
    counted = values["migration"]["unavailable"]
    if not counted["count"]:
        return None
    return {
        **{name: float(counted[f"{name}_cycles"]) for name in QUANTILES},
        "mean": counted["total_cycles"] / counted["count"],
    }


def requests(values: Values) -> int:
    """Return how often cores asked the last level."""
    kinds = [values["cache"][kind] for kind in ("fetches", "data", "walks")]
    return sum(int(one["llc"] + one["memory"]) for one in kinds)


def rate(values: Values) -> float:
    """Return work in a cycle that a core is busy; all runs of one number of cores do the same."""
    return 1 / float(values["time"]["busy_cycles"])


def figures(found: dict[int, Runs], inputs: dict[str, Any]) -> Outcome:
    """Fit lines to the mechanisms' times, see whether they follow their causes, and compare."""
    software, *ways = inputs["designs"]
    hardware = ways[0]
    times = {
        (key, cores): one
        for cores, runs in found.items()
        for key, values in runs.items()
        if key != NONE and (one := downtime(values)) is not None
    }

    def fitted(key: tuple[str, str], what: str, among: list[int] | None = None) -> Line | None:
        points = {
            cores: one[what]
            for (other, cores), one in times.items()
            if other == key and (among is None or cores in among)
        }
        return line([float(cores) for cores in points], list(points.values()))

    # Pages that all cores use are unavailable longest.
    plain = fitted((software, ""), "max")
    few = inputs["changed"]["cores"]
    before, after = (fitted((software, cause), "max", few) for cause in ("", "interrupts"))
    invalidation = _invalidation(found)

    def recalled(cause: str) -> list[float]:
        return [
            one["mean"]
            for (key, cores), one in times.items()
            if key == (hardware, cause) and cores in few
        ]

    slow, fast = recalled("recalls"), recalled("")
    values: dict[str, float | None] = {
        "software_r2": None if plain is None else plain.r2,
        "software_slope": None if plain is None else plain.slope,
        "software_doubled": (
            None if before is None or after is None else after.slope / before.slope
        ),
        "hardware_recalls": sum(slow) / sum(fast) if slow and fast else None,
        "hardware_interrupts": float(
            sum(
                values["migration"]["interprocessor_interrupts"]
                for runs in found.values()
                for (design, _), values in runs.items()
                if design in ways
            )
        ),
        "software_behind": _share_behind(found, (software, ""), (hardware, "")),
        "noncacheable_behind": _share_behind(found, (ways[1], ""), (hardware, "")),
        "noncacheable_requests": min(
            requests(runs[ways[1], ""]) / max(1, requests(runs[hardware, ""]))
            for runs in found.values()
        ),
    }
    for name, design in zip(WAYS, ways, strict=True):
        medians = [one["median"] for (key, _), one in times.items() if key == (design, "")]
        constant = fitted((design, ""), "median")
        values[f"{name}_invalidations"] = max(medians) / invalidation if medians else None
        values[f"{name}_slope"] = None
        if plain is not None and medians:
            values[f"{name}_slope"] = 100 * (constant.slope if constant else 0.0) / plain.slope
    changed = inputs["changed"]
    moved = [
        values["migration"]["completed"]
        for runs in found.values()
        for key, values in runs.items()
        if key != NONE
    ]
    notes = [
        f"The TLBs are those of the cores: each runs one thread, and all threads use every page of "
        f"one table of {inputs['table']}. At least {min(moved):,} pages moved in each run. "
        "Among them are pages that one core uses, such as its thread's stack: software's shortest "
        "times are theirs.",
        "Times are the longest delays of accesses that the program made. They contain numbers of "
        "the configuration: a local invalidation, the steps of software's shootdown and its copy "
        "(`kernel` in the machine, `migration.software` in the design). Copies in the last level, "
        "recalls and the queues of memory are simulated.",
        f"Slower interrupts: `interrupt_target_cycles` times {changed['interrupt_factor']}. Slower "
        f"recalls: `hop_cycles` times {changed['hop_factor']}.",
    ]
    if plain is not None:
        notes.append(
            f"Software, the longest: {plain.intercept:,.0f} cycles and {plain.slope:,.0f} for each "
            f"TLB (R² {plain.r2:.4f})."
        )
    none = [
        f"{design} on {cores}"
        for cores, runs in found.items()
        for design, cause in runs
        if design and not cause and ((design, cause), cores) not in times
    ]
    if none:
        notes.append(f"No page was moved by {', '.join(none)} cores.")

    def illustrate(page: Page) -> None:
        from contigua.pictures import lines_picture

        charts = []
        for design in inputs["designs"]:
            curves = {
                name: (
                    [float(cores) for key, cores in times if key == (design, "")],
                    [one[name] for (key, _), one in times.items() if key == (design, "")],
                )
                for name in QUANTILES
            }
            charts.append((f"{design}, cycles", curves))
        page.heading("Time without the page")
        page.picture(
            lines_picture(charts, TITLE, "TLBs"),
            "Quantiles of the unavailable time against the number of TLBs.",
        )
        shares = []
        for design in inputs["designs"]:
            # As many as have colors.
            many = {
                f"{cores} TLBs": distribution(runs[design, ""]) for cores, runs in found.items()
            }
            shares.append((f"{design}, % of pages", dict(list(many.items())[-6:])))
        page.picture(
            lines_picture(shares, "Distribution of the times", "cycles at most", steps=True),
            "Share of the pages that were unavailable for no longer.",
        )

    return Outcome(
        values, illustrate, notes=notes, sheets=[_times(found, times), _costs(found, inputs)]
    )


TITLE = "Cycles for which a page that is moved cannot be used"


def distribution(values: Values) -> tuple[list[float], list[float]]:
    """Return a run's times as a curve: cycles, and percent of pages with no longer one."""
    counted = values["migration"]["unavailable"]
    pages, shares = 0, [0.0]
    for _, count in counted["histogram"]:
        pages += count
        shares.append(100 * pages / counted["count"])
    bounds = [float(bound - 1) for bound, _ in counted["histogram"]]
    return [min(float(counted["min_cycles"]), *bounds), *bounds], shares


def _share_behind(
    found: dict[int, Runs], one: tuple[str, str], other: tuple[str, str]
) -> float | None:
    """Return the percentage of numbers of cores with which one is slower than the other."""
    behind = [rate(runs[one]) < rate(runs[other]) for runs in found.values()]
    return 100 * sum(behind) / len(behind) if behind else None


def _times(
    found: dict[int, Runs], times: dict[tuple[tuple[str, str], int], dict[str, float]]
) -> Sheet:
    rows = []
    for cores, runs in found.items():
        for key, report in runs.items():
            if key == NONE:
                continue
            design, cause = key
            migration = report["migration"]
            one = times.get((key, cores))
            rows.append(
                [
                    str(cores),
                    f"{design}, slower {cause}" if cause else design,
                    f"{migration['completed']:,}",
                    *(
                        "-" if one is None else f"{one[name]:,.0f}"
                        for name in (*QUANTILES[:2], "mean", *QUANTILES[2:])
                    ),
                    f"{migration['interprocessor_interrupts']:,}",
                ]
            )
    heads = ["TLBs", "design", "migrations", "least, cycles", "median", "mean", "95 %", "most"]
    return Sheet(TITLE, [*heads, "interrupts"], rows)


def _costs(found: dict[int, Runs], inputs: dict[str, Any]) -> Sheet:
    """Show what moving pages costs the program and the memory system, beside no migrations."""
    rows = []
    for cores, runs in found.items():
        none = runs[NONE]
        for design in inputs["designs"]:
            report = runs[design, ""]
            migration, coherence = report["migration"], report["cache"]["coherence"]
            traffic, pages = migration["traffic"], max(1, migration["completed"])
            dram, before = report["cache"]["dram"], none["cache"]["dram"]
            lines = sum(dram[key] - before[key] for key in ("reads", "writes"))
            each = (
                requests(report) - requests(none),
                coherence["alias_recalls"],
                traffic["forwarded"],
                coherence["uncached"],
                lines,
                traffic["lookups"],
                traffic["lookup_picojoules"] / 1000,
            )
            rows.append(
                [
                    str(cores),
                    design,
                    f"{migration['completed'] * hertz(report) / cycles(report):,.0f}",
                    f"{100 * rate(report) / rate(none):.2f}",
                    *(f"{one / pages:,.1f}" for one in each),
                ]
            )
    heads = ["TLBs", "design", "pages a second", "throughput, % of none", "requests of cores"]
    heads += ["recalls", "forwarded", "not kept", "lines of memory", "look-ups", "look-ups, nJ"]
    return Sheet("Cost of moving, for each page", heads, rows)


def _invalidation(found: dict[int, Runs]) -> float:
    """Return the cycles of one local invalidation, as the machine has it."""
    report = next(iter(next(iter(found.values())).values()))
    return float(report["config"]["machine"]["kernel"]["invalidation_cycles"])
