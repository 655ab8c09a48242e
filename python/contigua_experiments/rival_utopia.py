"""Memory that is set-associative in part (Kanellopoulos and others, Utopia, MICRO 2023)."""

from __future__ import annotations

import tomllib
from statistics import mean
from typing import TYPE_CHECKING, Any

import tomli_w

from contigua.options import RunOptions
from contigua.presets import Preset, laid_over, machines
from contigua.programs.program import Program, workload
from contigua_experiments import page_policies, rivals
from contigua_experiments.base import Context, Outcome
from contigua_experiments.running import Cell, run_cells

if TYPE_CHECKING:
    from contigua.page import Page
    from contigua_experiments.running import Values


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every program, and see how large segments are that used servers have room for."""
    inputs = {**inputs, "machine": one_slice(inputs)}
    designs = page_policies.variants(inputs)
    found = rivals.compare(inputs, context, designs)
    cells = {name: inputs["cells"][name] for name in ("base", "utopia", "perfect")}
    unseen = {**inputs, "cells": cells, "parts": inputs["others"]}
    others = rivals.compare(unseen, context, designs)
    servers = room(inputs, designs, context)
    ours = [by["utopia"] for by in found.values()]
    values: dict[str, float | None] = {
        "gain": rivals.gain(found, "utopia", "base"),
        "limit": rivals.gain(found, "perfect", "base"),
        "walk": mean(
            rivals.share(cycles_of_miss(by["utopia"]), cycles_of_miss(by["base"])) or 0
            for by in found.values()
        ),
        "others": rivals.gain(others, "utopia", "base"),
        "direct": mean(
            rivals.share(cycles_of_miss(by["direct"]), cycles_of_miss(by["utopia"])) or 100
            for by in found.values()
        ),
        "served": min(served(values) for values in ours),
        "small_served": min(served(by["small"]) for by in found.values()),
        "small_moved": mean(
            100 - (rivals.share(served(by["small-still"]), served(by["small"])) or 0)
            for by in found.values()
        ),
        "huge": rivals.gain(found, "utopia-thp", "thp"),
        **{key: obtained(reports) for key, reports in servers.items()},
    }
    columns = {
        "page walks": rivals.walks,
        "hits of RestSeg walks": lambda values: rivals.counter(values, "restseg_hits"),
        "cycles of a miss": cycles_of_miss,
        "misses served, %": served,
        "lines of filters read": lambda values: rivals.counter(values, "restseg_filter_reads"),
        "lines of tags read": lambda values: rivals.counter(values, "restseg_tag_reads"),
        "pages moved in": lambda values: float(values["kernel"].get("pages_moved_in", 0)),
        "pages moved out": lambda values: float(values["kernel"].get("pages_moved_out", 0)),
        "cycles": lambda values: float(values["time"]["cycles"]),
    }
    memory = {
        "MiB of segments": lambda values: segments(values).get("bytes", 0) / 2**20,
        "MiB missing": lambda values: segments(values).get("missing_bytes", 0) / 2**20,
    }

    def illustrate(page: Page) -> None:
        rivals.picture(page, found, "Page walks", "walks", rivals.walks)

    sheets = [
        rivals.sheet({**found, **others}, columns),
        rivals.sheet({"sparse": servers}, memory),
    ]
    return Outcome(values, illustrate, sheets=sheets)


def room(inputs: dict[str, Any], designs: dict[str, Preset], context: Context) -> dict[str, Values]:
    """Start a small program on servers, and return their reports by the figure."""
    servers = inputs["servers"]
    program = Program("sparse", workload("sparse", "--size", "4MiB"))
    options = RunOptions(
        machine=inputs["machine"],
        memory=servers["memory"],
        detail="translation",
        seed=inputs["seed"],
    )
    cells = {
        key: Cell(name, age=servers["age"], preset=designs.get(name))
        for key, name in servers["designs"].items()
    }
    reports = run_cells(program, list(cells.values()), options, kept=context.kept)
    return {key: reports[cell] for key, cell in cells.items()}


def segments(values: Values) -> dict[str, int]:
    """Return what a report says of restrictive segments; nothing of a design without any."""
    return dict(values.get("rest_segs") or {})


def obtained(values: Values) -> float | None:
    """Return the memory that segments have, of what they were to have, in percent."""
    found = segments(values)
    got = found.get("bytes", 0)
    return rivals.share(got, got + found.get("missing_bytes", 0)) or 0.0


def served(values: Values) -> float:
    """Return misses of the L2 TLB that a restrictive segment served, in percent."""
    hits = rivals.counter(values, "restseg_hits")
    return 100 * hits / max(hits + rivals.walks(values), 1)


def cycles_of_miss(values: Values) -> float:
    """Return cycles that a miss of the L2 TLB waits for walks of segments and of page tables."""
    misses = rivals.counter(values, "restseg_hits") + rivals.walks(values)
    return rivals.walk_cycles(values) / max(misses, 1)


def one_slice(inputs: dict[str, Any]) -> Preset:
    """Return the machine with what is laid over it."""
    machine = machines.get(inputs["machine"])
    text = tomli_w.dumps(laid_over(tomllib.loads(machine.text), inputs["over_machine"]))
    return Preset(f"{machine.name}-slice", text, machine.origin)
