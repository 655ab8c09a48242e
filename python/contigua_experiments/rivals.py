"""Common parts of experiments on rivals: each design runs parts of programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua.presets import Preset
from contigua_experiments.base import Context, Sheet
from contigua_experiments.running import Cell, Values, cycles, run_cells, sized

if TYPE_CHECKING:
    from contigua.page import Page

#: The reports of each program, by the inputs' name of a design.
Found = dict[str, dict[str, Values]]


def compare(
    inputs: Mapping[str, Any], context: Context, own_designs: Mapping[str, Preset] | None = None
) -> Found:
    """Run each program's part with each of ``cells``, perhaps on an aged server.

    A design is the name of a preset or of ``own_designs``, or that, a space and an age. A part has
    the program's ``arguments``, its ``function``, and how many instructions from there warm
    (``warmup``) and are counted (``instructions``).
    """
    options = RunOptions(
        machine=inputs["machine"], memory=inputs["memory"], detail="full", seed=inputs["seed"]
    )
    cells = {}
    for name, design in inputs["cells"].items():
        preset, _, age = design.partition(" ")
        cells[name] = Cell(preset, age=age or None, preset=(own_designs or {}).get(preset))
    found: Found = {}
    for index, (program, part) in enumerate(inputs["parts"].items()):
        # Where the function begins, so that what warms lies in it, too.
        own, first = sized(program, {**part, "instructions": 1}, options)
        (begun,) = run_cells(own, [Cell("linux-4k")], first, kept=context.kept).values()
        counted = replace(
            options,
            skip=int(begun["regions"]["begins"][0]),
            warmup=part["warmup"],
            instructions=part["instructions"],
        )
        reports = run_cells(own, list(cells.values()), counted, kept=context.kept)
        found[program] = {name: reports[cell] for name, cell in cells.items()}
        if context.progress is not None:
            context.progress((index + 1) / len(inputs["parts"]))
    return found


def walks(values: Values) -> int:
    """Page walks, whatever they found."""
    counted = values["translation"]
    return sum(int(counted[f"walks_{kind}"]) for kind in ("4k", "2m", "1g", "faulting"))


def walk_cycles(values: Values) -> float:
    """Cycles that accesses wait for translations beyond the L2 TLB."""
    return float(values["translation"]["walk_cycles"])


def share(part: float, whole: float) -> float | None:
    """Return a part in percent; ``None`` of nothing."""
    return 100 * part / whole if whole else None


def left(found: Found, of: Callable[[Values], float], ours: str, base: str) -> list[float]:
    """Return, by program, how much of a base's value is left with another design, in percent."""
    kept = [share(of(by[ours]), of(by[base])) for by in found.values()]
    return [one for one in kept if one is not None]


def gain(found: Found, ours: str, base: str) -> float | None:
    """Return by how much a design is faster than a base, mean of the programs, in percent."""
    faster = [100 * (cycles(by[base]) / cycles(by[ours]) - 1) for by in found.values()]
    return mean(faster) if faster else None


def counter(values: Values, name: str) -> int:
    """Return a scheme's own counter; 0 of another scheme."""
    return int(values.get("translation_scheme", {}).get(name, 0))


def sheet(found: Found, columns: Mapping[str, Callable[[Values], float]]) -> Sheet:
    """Make a table with a row for each program and design."""
    rows = [
        [program, design, *(f"{of(values):,.1f}" for of in columns.values())]
        for program, by in found.items()
        for design, values in by.items()
    ]
    return Sheet("Programs and designs", ["program", "design", *columns], rows)


def picture(page: Page, found: Found, title: str, unit: str, of: Callable[[Values], float]) -> None:
    """Add bars: a value of each program with each design."""
    from contigua.pictures import bars_picture

    designs = list(next(iter(found.values())))
    bars = {name: [of(by[name]) for by in found.values()] for name in designs}
    page.heading(title)
    page.picture(bars_picture(list(found), bars, title, unit), f"{title}, by program and design.")
