"""Memory that larger mappings take (Perforated Page, ISCA 2020; Direct Segments, ISCA 2013)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua.programs.clients import call, free_port, succeeds, wait_for
from contigua.programs.databases import redis_command
from contigua.programs.program import Loaded, Program, workload
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.running import Cell, Values, resident, run_cells

if TYPE_CHECKING:
    from contigua.page import Page


def sparse_redis(keys: int, value_bytes: int, kept: int) -> Program:
    """Return redis-server with large values, of which one in ``kept`` stays, and new small ones."""
    port = free_port()

    def drive(_: Path, stopped: threading.Event, loaded: Loaded) -> None:
        cli = ("redis-cli", "-p", str(port))
        wait_for(lambda: succeeds(*cli, "ping"), stopped)
        value = "x" * value_bytes
        commands = [f"set key:{key} {value}" for key in range(keys)]
        commands += [f"del key:{key}" for key in range(keys) if key % kept != 0]
        commands += ["memory purge"]
        # What is left is still read, and the rest of the load is small.
        commands += [f"get key:{key}" for key in range(0, keys, kept)] * 3
        commands += [f"set small:{key} {key}" for key in range(keys)]
        try:
            with loaded():
                call(*cli, text="\n".join(commands) + "\n")
        finally:
            succeeds(*cli, "shutdown", "nosave")

    needs = {"redis-server": "redis-server", "redis-cli": "redis-tools"}
    return Program("redis", redis_command(port), needs, drive)


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run the two programs."""
    options = RunOptions(
        machine=inputs["machine"], memory=inputs["memory"], detail="additive", seed=inputs["seed"]
    )
    program = sparse_redis(inputs["keys"], inputs["value_bytes"], inputs["kept"])
    cells = [Cell(design) for design in inputs["redis_designs"]]
    served = run_cells(program, cells, options)
    if context.progress is not None:
        context.progress(0.8)
    size = inputs["sparse_size"]
    sparse = Program("sparse", workload("sparse", "--size", size, "--stride", "100"))
    cells = [Cell(design) for design in inputs["sparse_designs"]]
    touched = run_cells(sparse, cells, options)
    return figures(
        {cell.design: values for cell, values in served.items()},
        {cell.design: values for cell, values in touched.items()},
        inputs,
    )


def figures(
    served: dict[str, Values], touched: dict[str, Values], inputs: dict[str, Any]
) -> Outcome:
    """Compare memory at equal load."""
    small, huge, lazy = inputs["redis_designs"]
    paged, segmented = inputs["sparse_designs"]
    base = resident(served[small])
    # Start-up takes the same everywhere: a page in a hundred of the mapping is what differs.
    mapping = resident(touched[segmented])
    values: dict[str, float | None] = {
        "huge_over_small": 100 * (resident(served[huge]) / base - 1),
        "lazy_over_small": 100 * (resident(served[lazy]) / base - 1),
        "mpki_small": _mpki(served[small]),
        "mpki_huge": _mpki(served[huge]),
        "segment_over_pages": mapping / max(_touched(touched[paged]), 1),
    }
    rows = [
        ["redis", design, f"{resident(one) / (1 << 20):.1f}", f"{_mpki(one):.3f}"]
        for design, one in served.items()
    ]
    rows += [
        ["sparse", design, f"{resident(one) / (1 << 20):.1f}", f"{_mpki(one):.3f}"]
        for design, one in touched.items()
    ]
    sheets = [
        Sheet("Memory at its peak, and TLB misses", ["program", "design", "MiB", "MPKI"], rows)
    ]
    notes = [
        f"redis holds {inputs['keys']} values of {inputs['value_bytes']} bytes, then one in "
        f"{inputs['kept']} of them and as many small ones. The paper's redis had 4 million values "
        "of 16 KB, and 78 GB grew to 93 GB.",
    ]

    def illustrate(page: Page) -> None:
        from contigua.pictures import bars_picture

        bars = {design: [resident(one) / (1 << 20)] for design, one in served.items()}
        page.heading("redis")
        page.picture(
            bars_picture(["redis"], bars, "Memory at its peak", "MiB"),
            "Memory of redis with 4 KB pages, huge pages and perforated pages.",
        )

    return Outcome(values, illustrate, notes=notes, sheets=sheets)


def _touched(values: Values) -> int:
    return resident(values)


def _mpki(values: Values) -> float:
    walks = values["translation"]
    found = walks["walks_4k"] + walks["walks_2m"] + walks["walks_1g"]
    return 1000 * float(found) / max(float(values["executed"]["instructions"]), 1.0)
