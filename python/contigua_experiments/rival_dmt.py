"""Last page-table entries that registers tell (Zhang and others, DMT, ASPLOS 2024)."""

from __future__ import annotations

import tomllib
from statistics import geometric_mean, mean
from typing import TYPE_CHECKING, Any

import tomli_w

from contigua.options import RunOptions
from contigua.presets import Preset, designs
from contigua.programs.program import Program, workload
from contigua_experiments import rivals
from contigua_experiments.base import Context, Outcome
from contigua_experiments.running import Cell, run_cells
from contigua_experiments.scaled import scaled

if TYPE_CHECKING:
    from collections.abc import Callable

    from contigua.page import Page
    from contigua_experiments.running import Values


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run programs with and without registers; let a large mapping have areas on full servers."""
    machine = small(inputs["machine"], inputs["divisor"])
    worth = {name: worth_less(name, inputs["least"]) for name in inputs["cells"].values()}
    found = rivals.compare({**inputs, "machine": machine}, context, worth)
    areas = let_map(inputs["areas"], inputs)

    def gain(ours: str, base: str, of: Callable[[Values], float] | None = None) -> float | None:
        measured = of or latency
        pairs = [(measured(by[base]), measured(by[ours])) for by in found.values()]
        ratios = [before / after for before, after in pairs if before and after]
        return 100 * (geometric_mean(ratios) - 1) if ratios else None

    def steps(design: str) -> float:
        return mean(steps_of(by[design]) for by in found.values())

    linux, confined = areas["linux full"], areas["confined full"]
    values: dict[str, float | None] = {
        "walk": gain("nested-pv", "nested"),
        "walk_huge": gain("nested-pv-huge", "nested-huge"),
        "program": gain("nested-pv", "nested", cycles),
        "program_huge": gain("nested-pv-huge", "nested-huge", cycles),
        "native": gain("native-dmt", "native"),
        "nested": gain("nested-dmt", "nested"),
        "paravirtual": gain("nested-pv", "nested-dmt"),
        "steps_native": steps("native-dmt"),
        "steps_nested": steps("nested-dmt"),
        "steps_paravirtual": steps("nested-pv"),
        "told": mean(told(by["nested-pv"]) for by in found.values()),
        "failed": kernel(linux, "table_growths_failed"),
        "failed_less": kernel(linux, "table_growths_failed")
        - kernel(confined, "table_growths_failed"),
        "told_less": told(confined) - told(linux),
    }
    columns = {
        "walks": rivals.walks,
        "cycles of a walk": latency,
        "entries read one after another": steps_of,
        "told by registers, %": told,
        "cycles": cycles,
    }

    def illustrate(page: Page) -> None:
        rivals.picture(page, found, "Latency of walks", "cycles", latency)

    sheets = [rivals.sheet(found, columns), rivals.sheet({"sparse": areas}, AREA_COLUMNS)]
    return Outcome(values, illustrate, sheets=sheets)


def small(machine: str, divisor: int) -> Preset:
    """Return a machine with a part of its capacities, those for a host's tables among them."""
    whole = scaled(machine, divisor)
    values = tomllib.loads(whole.text)
    cache = values["walk_cache"]
    # As large as the guest's; the TLB of a host's pages has 16 entries (Bhargava and others, 2008).
    values["nested"] = {
        "tlb": {"entries": max(1, 16 // divisor), "ways": max(1, 16 // divisor)},
        "walk_cache": {level: cache[level] for level in cache if level != "start_cycles"},
    }
    return Preset(whole.name, tomli_w.dumps(values), whole.origin)


def worth_less(name: str, least: str) -> Preset:
    """Return a design, with another size of mappings that are worth an area where it has some."""
    design = designs.get(name)
    values = tomllib.loads(design.text)
    for part in (values, values.get("host", {})):
        if "dmt" in part.get("translation", {}):
            part["translation"]["dmt"]["least"] = least
    return Preset(name, tomli_w.dumps(values), design.origin)


def let_map(part: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Values]:
    """Run a program with a large mapping, a page of each table, on servers."""
    program = Program("sparse", workload("sparse", *part["arguments"]))
    options = RunOptions(
        machine=inputs["machine"],
        memory=part["memory"],
        detail="translation",
        seed=inputs["seed"],
    )
    design = designs.get(part["design"])
    confined = Preset(
        f"{design.name}, confined", f"{design.text}\n[placement.contiguitas]\n", design.origin
    )
    cells = {
        f"{name} {age}": Cell(preset.name, age=None if age == "fresh" else age, preset=preset)
        for name, preset in (("linux", design), ("confined", confined))
        for age in part["ages"]
    }
    reports = run_cells(program, list(cells.values()), options)
    return {name: reports[cell] for name, cell in cells.items()}


def latency(values: Values) -> float:
    """Return cycles of a walk."""
    return rivals.walk_cycles(values) / max(rivals.walks(values), 1)


def cycles(values: Values) -> float:
    """Return cycles of a run."""
    return float(values["time"]["cycles"])


def steps_of(values: Values) -> float:
    """Return entries that a translation by registers reads one after another."""
    fetches = max(rivals.counter(values, "dmt_fetches"), 1)
    return rivals.counter(values, "dmt_steps") / fetches


def told(values: Values) -> float:
    """Return the part of misses of the L2 TLB for which registers tell the entries, in percent."""
    fetches, walks = (rivals.counter(values, f"dmt_{kind}") for kind in ("fetches", "walks"))
    return 100 * fetches / max(fetches + walks, 1)


def kernel(values: Values, name: str) -> float:
    """Return a counter of the kernel; 0 where it is left out."""
    return float(values["kernel"].get(name, 0))


AREA_COLUMNS = {
    "areas": lambda values: kernel(values, "table_growths"),
    "without memory": lambda values: kernel(values, "table_growths_failed"),
    "largest, KB": lambda values: kernel(values, "table_largest_block") / 1024,
    "told by registers, %": told,
    "longest stall, cycles": lambda values: kernel(values, "longest_stall_cycles"),
}
