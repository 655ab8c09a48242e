"""How long a page that is moved cannot be used (Contiguitas, ISCA 2023, Figure 1 and section 5).

Threads, one on each core, update random words of one small table, so that every core's TLB holds
every page that may be moved. Software interrupts each of these cores before it copies; the
last-level cache moves the lines while both addresses work, and what is left is one invalidation of
a core's own TLB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua.programs.program import Program, workload
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.running import Cell, Values, run_cells
from contigua_experiments.statistics import line

if TYPE_CHECKING:
    from contigua.page import Page


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
    found: dict[int, dict[str, Values]] = {}
    counts = inputs["cores"]
    for index, cores in enumerate(counts):
        cells = [Cell(design, cores=cores) for design in inputs["designs"]]
        reports = run_cells(threads(cores, inputs["table"], inputs["updates"]), cells, options)
        found[cores] = {cell.design: values for cell, values in reports.items()}
        if context.progress is not None:
            # Work grows with the number of threads.
            context.progress(sum(counts[: index + 1]) / sum(counts))
    return figures(found, inputs)


def threads(count: int, table: str, updates: int) -> Program:
    """Return as many threads as asked for, each of which makes so many updates of one table."""
    arguments = ("--size", table, "--updates", str(count * updates), "--threads", str(count))
    return Program("gups", workload("gups", *arguments, "--no-verify"))


def downtime(values: Values) -> tuple[float, float, float] | None:
    """Return the least, mean and most cycles for which a moved page could not be used."""
    counted = values["migration"]["unavailable"]
    if not counted["count"]:
        return None
    mean = counted["total_cycles"] / counted["count"]
    return float(counted["min_cycles"]), float(mean), float(counted["max_cycles"])


def figures(found: dict[int, dict[str, Values]], inputs: dict[str, Any]) -> Outcome:
    """Fit a line to software's times, and see whether hardware's differ."""
    software, hardware = inputs["designs"]
    times = {
        design: {
            cores: one for cores, by in found.items() if (one := downtime(by[design])) is not None
        }
        for design in inputs["designs"]
    }
    cores = list(times[software])
    # Pages that every core uses are away longest.
    longest = [most for _, _, most in times[software].values()]
    fitted = line([float(count) for count in cores], longest)
    moved = list(times[hardware].values())
    least = min((low for low, _, _ in moved), default=None)
    most = max((high for _, _, high in moved), default=None)
    invalidation = _invalidation(found)
    values: dict[str, float | None] = {
        "software_r2": None if fitted is None else fitted.r2,
        "software_slope": None if fitted is None else fitted.slope,
        "hardware_spread": None if not least or most is None else 100 * (most / least - 1),
        "hardware_invalidations": None if most is None else most / invalidation,
        "hardware_interrupts": float(
            sum(by[hardware]["migration"]["interprocessor_interrupts"] for by in found.values())
        ),
    }
    rows = []
    for count, by in found.items():
        for design, report in by.items():
            migration = report["migration"]
            one = times[design].get(count)
            rows.append(
                [
                    str(count),
                    design,
                    f"{migration['completed']:,}",
                    *(("-",) * 3 if one is None else (f"{cycles:,.0f}" for cycles in one)),
                    f"{migration['interprocessor_interrupts']:,}",
                ]
            )
    heads = ["TLBs", "design", "migrations", "least, cycles", "mean", "most", "interrupts"]
    title = "Cycles for which a page that is moved cannot be used"
    notes = [
        f"The TLBs are those of the cores: each runs one thread, and all threads use every page of "
        f"one table of {inputs['table']}. {inputs['migrations']:,} pages are moved in a simulated "
        "second.",
    ]
    if fitted is not None:
        notes.append(
            f"Software, pages that all cores use: {fitted.intercept:,.0f} cycles and "
            f"{fitted.slope:,.0f} for each TLB (R² {fitted.r2:.4f})."
        )
    none = [
        f"{design} on {count}" for design in times for count in found if count not in times[design]
    ]
    if none:
        notes.append(f"No page was moved by {', '.join(none)} cores.")

    def illustrate(page: Page) -> None:
        from contigua.pictures import lines_picture

        curves = {
            design: (list(map(float, one)), [most for _, _, most in one.values()])
            for design, one in times.items()
        }
        page.heading("Time without the page")
        page.picture(
            lines_picture([("cycles", curves)], title, "TLBs"),
            "Unavailable time against the number of TLBs: a line for software, constant for "
            "hardware.",
        )

    sheet = Sheet(title, heads, rows)
    return Outcome(values, illustrate, notes=notes, sheets=[sheet])


def _invalidation(found: dict[int, dict[str, Values]]) -> float:
    """Return the cycles of one local invalidation, as the machine has it."""
    report = next(iter(next(iter(found.values())).values()))
    return float(report["config"]["machine"]["kernel"]["invalidation_cycles"])
