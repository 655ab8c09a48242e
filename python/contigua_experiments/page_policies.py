"""Common parts of experiments on page policies, whose threads run as often as short runs need."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any

import tomli_w

from contigua.options import RunOptions
from contigua.presets import Preset, designs, laid_over
from contigua.programs.program import Program, workload
from contigua_experiments.base import Context
from contigua_experiments.running import Cell, Values, run_cells


def variants(inputs: Mapping[str, Any]) -> dict[str, Preset]:
    """Return the designs of ``designs``: by name, a preset's ``base``, and what is laid over it."""
    found = {}
    for name, own in inputs["designs"].items():
        base = designs.get(own["base"])
        over = {key: value for key, value in own.items() if key != "base"}
        text = tomli_w.dumps(laid_over(tomllib.loads(base.text), over))
        found[name] = Preset(name, text, base.origin)
    return found


def run(
    part: Mapping[str, Any],
    designs: Mapping[str, Preset],
    options: RunOptions,
    context: Context,
    failures: dict[str, str] | None = None,
) -> dict[str, Values]:
    """Run a workload with the designs that a part names; its memory may be its own.

    Those that a server cannot run go to ``failures``, with the reason.
    """
    program = Program(part["program"], workload(part["program"], *part["arguments"]))
    options = replace(options, memory=part.get("memory", options.memory))
    cells = {
        name: Cell(name, age=part.get("age"), preset=designs[name]) for name in part["designs"]
    }
    failed: dict[Cell, str] | None = None if failures is None else {}
    reports = run_cells(program, list(cells.values()), options, failures=failed, kept=context.kept)
    if failures is not None and failed is not None:
        failures |= {name: failed[cell] for name, cell in cells.items() if cell in failed}
    return {name: reports[cell] for name, cell in cells.items() if cell in reports}


def settled(values: Values) -> float:
    """Resident bytes in the second half of a run's instructions, their median."""
    history = values["residency"]
    half = history["instructions"][-1] / 2
    pairs = zip(history["instructions"], history["resident_bytes"], strict=True)
    return float(median(memory for at, memory in pairs if at >= half))
