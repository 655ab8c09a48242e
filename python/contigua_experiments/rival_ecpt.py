"""Hashed page tables (Skarlatos and others, ASPLOS 2020), also in chunks (ME-HPT, HPCA 2023)."""

from __future__ import annotations

import re
from statistics import mean
from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua.programs.program import Program, workload
from contigua_experiments import rivals
from contigua_experiments.base import Context, Outcome
from contigua_experiments.running import Cell, run_cells

if TYPE_CHECKING:
    from contigua.page import Page
    from contigua_experiments.running import Values


#: A server without memory for tables ends a program before so many instructions: at its first page.
FIRST = 1000


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every program with each table; let tables begin and grow on fresh and full servers."""
    found = rivals.compare(inputs, context)
    left = rivals.left(found, rivals.walk_cycles, "ecpt", "tree")
    values: dict[str, float | None] = {
        "saved": 100 - mean(left),
        "gain": rivals.gain(found, "ecpt", "tree"),
        "chunks_gain": rivals.gain(found, "me-hpt", "tree"),
        "at_once": mean(rivals.left(found, cycles_of_a_read, "ecpt", "tree")),
    }
    columns = {
        "walks": rivals.walks,
        "reads of a walk": reads,
        "cycles of a walk": latency,
        "cycles": lambda values: float(values["time"]["cycles"]),
    }
    sheets = [rivals.sheet(found, columns)]
    grown, stopped = let_grow(inputs["growth"], inputs)
    begun, unbegun = let_grow(inputs["begin"], inputs)
    tables = {"growth": grown, "begin": begun}
    sheets.append(rivals.sheet(tables, TABLE_COLUMNS))
    if {"ecpt", "me-hpt"} <= grown.keys():
        most, chunk = (kernel(grown[name], "table_largest_block") for name in ("ecpt", "me-hpt"))
        values["contiguity"] = 100 * (1 - chunk / most)
    # None of them may be missing for want of memory in general.
    if not stopped and {"ecpt", "me-hpt", "me-hpt full"} <= begun.keys():
        values["stopped"] = float(has_not_begun(unbegun.get("ecpt full", "")))
        values["chunks_failed"] = kernel(begun["me-hpt full"], "table_growths_failed")

    def illustrate(page: Page) -> None:
        rivals.picture(page, found, "Latency of walks", "cycles", latency)

    return Outcome(values, illustrate, sheets=sheets)


def has_not_begun(why: str) -> bool:
    """Say if a program's server had no memory for its first pages."""
    at = re.search(r"ran out of its \S+ of memory at instruction ([\d,]+)", why)
    return at is not None and int(at[1].replace(",", "")) < FIRST


def let_grow(
    part: dict[str, Any], inputs: dict[str, Any]
) -> tuple[dict[str, Values], dict[str, str]]:
    """Run a program with many lines on servers; the reports, and why some have none."""
    program = Program("sparse", workload("sparse", *part["arguments"]))
    options = RunOptions(
        machine=inputs["machine"],
        memory=part["memory"],
        detail="translation",
        seed=inputs["seed"],
    )
    cells = {
        f"{name}{' full' if age else ''}": Cell(design, age=age)
        for name, design in part["cells"].items()
        for age in (None, "full")
    }
    failures: dict[Cell, str] = {}
    reports = run_cells(program, list(cells.values()), options, failures=failures)
    found = {name: reports[cell] for name, cell in cells.items() if cell in reports}
    return found, {name: failures[cell] for name, cell in cells.items() if cell in failures}


def kernel(values: Values, name: str) -> float:
    """Return a counter of the kernel; 0 of another design."""
    return float(values["kernel"].get(name, 0))


def reads(values: Values) -> float:
    """Return reads of tables by a walk."""
    return int(values["translation"]["references"]) / max(rivals.walks(values), 1)


def latency(values: Values) -> float:
    """Return cycles of a walk."""
    return rivals.walk_cycles(values) / max(rivals.walks(values), 1)


def cycles_of_a_read(values: Values) -> float:
    """Return cycles that a walk takes for each of its reads."""
    return latency(values) / reads(values)


TABLE_COLUMNS = {
    "growths": lambda values: kernel(values, "table_growths"),
    "without memory": lambda values: kernel(values, "table_growths_failed"),
    "largest block, KB": lambda values: kernel(values, "table_largest_block") / 1024,
    "lines moved": lambda values: kernel(values, "table_lines_moved"),
    "longest stall, cycles": lambda values: kernel(values, "longest_stall_cycles"),
    "tables, MB": lambda values: int(values["memory"]["page_tables_bytes"]) / 2**20,
}
