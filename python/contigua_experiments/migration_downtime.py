"""Time for which a moving page is unavailable (Contiguitas, ISCA 2023, Figure 1 and section 5).

Threads, one on each core, update random words of one table, so that every core's TLB holds every
page that may be moved. For each page that moved, a report has the longest delay of an access
between begin and end of its migration, observed in the same way for software and hardware. What
causes the delays is changed, too: the cost of interrupting a core, and of a hop of the network,
over which the last level recalls lines.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua.presets import Preset, machines
from contigua.programs.program import Program, workload
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.running import Cell, Values, run_cells
from contigua_experiments.statistics import Line, line

if TYPE_CHECKING:
    from contigua.page import Page

#: Runs of one number of cores: the design, and the cause that was changed, if any.
Runs = dict[tuple[str, str], Values]

#: Reported quantiles of a distribution.
QUANTILES = ("min", "median", "p95", "max")


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run the threads on every number of cores, with both mechanisms."""
    options = RunOptions(
        machine=inputs["machine"],
        memory=inputs["memory"],
        detail=inputs["detail"],
        seed=inputs["seed"],
        warmup=inputs["warmup"],
        migrations=inputs["migrations"],
    )
    software, hardware = inputs["designs"]
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
        cells = {(design, ""): Cell(design, cores=cores) for design in inputs["designs"]}
        if cores in inputs["changed"]["cores"]:
            cells |= {
                key: Cell(key[0], cores=cores, machine=machine) for key, machine in changed.items()
            }
        updates = inputs["updates"] * (inputs["alone"] if cores == 1 else 1)
        reports = run_cells(threads(cores, inputs["table"], updates), list(cells.values()), options)
        found[cores] = {key: reports[cell] for key, cell in cells.items()}
        if context.progress is not None:
            # Work grows with the number of threads.
            context.progress(sum(counts[: index + 1]) / sum(counts))
    return figures(found, inputs)


def threads(count: int, table: str, updates: int) -> Program:
    """Return as many threads as asked for, each of which makes so many updates of one table."""
    arguments = ("--size", table, "--updates", str(count * updates), "--threads", str(count))
    return Program("gups", workload("gups", *arguments, "--no-verify"))


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


def figures(found: dict[int, Runs], inputs: dict[str, Any]) -> Outcome:
    """Fit a line to both mechanisms' times, and see whether they follow their causes."""
    software, hardware = inputs["designs"]
    times = {
        (key, cores): one
        for cores, runs in found.items()
        for key, values in runs.items()
        if (one := downtime(values)) is not None
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
    hard = fitted((hardware, ""), "median")
    few = inputs["changed"]["cores"]
    before, after = (fitted((software, cause), "max", few) for cause in ("", "interrupts"))
    invalidation = _invalidation(found)
    medians = [one["median"] for (key, _), one in times.items() if key == (hardware, "")]

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
        "hardware_slope": (
            None
            if plain is None
            else 0.0
            if hard is None and medians
            else 100 * hard.slope / plain.slope
            if hard is not None
            else None
        ),
        "hardware_invalidations": max(medians) / invalidation if medians else None,
        "hardware_recalls": sum(slow) / sum(fast) if slow and fast else None,
        "hardware_interrupts": float(
            sum(
                values["migration"]["interprocessor_interrupts"]
                for runs in found.values()
                for (design, _), values in runs.items()
                if design == hardware
            )
        ),
    }
    rows = []
    for cores, runs in found.items():
        for (design, cause), report in runs.items():
            migration = report["migration"]
            one = times.get(((design, cause), cores))
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
    title = "Cycles for which a page that is moved cannot be used"
    changed = inputs["changed"]
    notes = [
        f"The TLBs are those of the cores: each runs one thread, and all threads use every page of "
        f"one table of {inputs['table']}. {inputs['migrations']:,} pages are to be moved in a "
        "simulated second.",
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
        if not cause and ((design, cause), cores) not in times
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
            lines_picture(charts, title, "TLBs"),
            "Quantiles of the unavailable time against the number of TLBs.",
        )

    sheet = Sheet(title, [*heads, "interrupts"], rows)
    return Outcome(values, illustrate, notes=notes, sheets=[sheet])


def _invalidation(found: dict[int, Runs]) -> float:
    """Return the cycles of one local invalidation, as the machine has it."""
    report = next(iter(next(iter(found.values())).values()))
    return float(report["config"]["machine"]["kernel"]["invalidation_cycles"])
