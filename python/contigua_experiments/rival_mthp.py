"""Folios of 16 KB to 1 MB (multi-size THP, Linux 6.8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua.programs.program import Program, workload
from contigua_experiments import rivals
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.memory_bloat import sparse_redis
from contigua_experiments.running import Cell, Values, resident, run_cells

if TYPE_CHECKING:
    from contigua.page import Page

#: Names of the orders that reports count, from 2 on.
SIZES = ("16 KB", "32 KB", "64 KB", "128 KB", "256 KB", "512 KB", "1 MB")


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Count faults and folios of a program that touches all its memory; walks; memory of redis."""
    found = rivals.compare(inputs, context)
    options = RunOptions(
        machine=inputs["machine"], memory=inputs["memory"], detail="additive", seed=inputs["seed"]
    )
    touch = Program("sparse", workload("sparse", "--size", inputs["size"], "--stride", "1"))
    cells = [
        Cell(design, age=age) for age in inputs["ages"] for design in inputs["touched_designs"]
    ]
    touched = run_cells(touch, cells, options, kept=context.kept)
    program = sparse_redis(inputs["keys"], inputs["value_bytes"], inputs["kept"])
    served = run_cells(program, [Cell(design) for design in inputs["redis_designs"]], options)
    memory = {cell.design: resident(values) for cell, values in served.items()}

    def left(ours: str) -> float:
        (walks,) = rivals.left(found, rivals.walks, ours, "small")
        return walks

    small, groups, folios = inputs["touched_designs"]
    first, last = inputs["ages"][0], inputs["ages"][-1]
    rates = {age: success(touched[Cell(folios, age=age)]) for age in inputs["ages"]}
    only = success(touched[Cell(groups, age=last)])[SIZES.index("64 KB")]
    base, _, _, huge = (memory[design] for design in inputs["redis_designs"])
    values: dict[str, float | None] = {
        "faults_64k": faults(touched[Cell(small, age=first)])
        / faults(touched[Cell(groups, age=first)]),
        "failed_64k": None if only is None else 100 - only,
        "contiguous_left": left("contiguous"),
        "coalescing_left": left("coalescing"),
        "plain_left": left("plain"),
        "bloat_64k": rivals.share(memory[groups] - base, huge - base),
        "bloat_all": rivals.share(memory[folios] - base, huge - base),
    }
    columns = {"walks": rivals.walks, "walk cycles": rivals.walk_cycles}

    def illustrate(page: Page) -> None:
        from contigua.pictures import bars_picture

        shown = {age: [rate or 0.0 for rate in by] for age, by in rates.items()}
        page.heading("Success by order")
        page.picture(
            bars_picture(list(SIZES), shown, "Folios that were free", "% of those wanted"),
            "Folios for which a block was free, by size and age of the server.",
        )

    rows = [
        [age, size, "-" if rate is None else f"{rate:.1f}"]
        for age, by in rates.items()
        for size, rate in zip(SIZES, by, strict=True)
    ]
    sheets = [
        rivals.sheet(found, columns),
        Sheet("Folios that were free, % of those wanted", ["server", "size", "free"], rows),
        Sheet(
            "Memory of redis",
            ["design", "MB"],
            [[design, f"{size / 2**20:,.1f}"] for design, size in memory.items()],
        ),
    ]
    return Outcome(values, illustrate, sheets=sheets)


def faults(values: Values) -> int:
    """Return a program's faults on untouched private memory."""
    return int(values["kernel"]["faults_anonymous_4k"])


def success(values: Values) -> list[float | None]:
    """Return how many folios of each order there was a block for, in percent of those wanted."""
    kernel = values["kernel"]
    none = [0] * len(SIZES)
    counts = zip(kernel.get("folios", none), kernel.get("folio_fallbacks", none), strict=True)
    return [rivals.share(mapped, mapped + failed) for mapped, failed in counts]
