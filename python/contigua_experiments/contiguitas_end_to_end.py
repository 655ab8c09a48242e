"""Gain of programs from contiguity (Contiguitas, ISCA 2023, section 5.1; article).

A program arrives on a server that others have left: *partial*, one of a fleet taken at random, or
*full*, one whose free memory files have taken. The server aged under Linux' placement or under
that of Contiguitas. Every program is recorded once, and all servers replay the same events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.running import Cell, Values, chosen, cycles, run_cells

if TYPE_CHECKING:
    from contigua.page import Page

AGES = ("partial", "full")


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every program on every server."""
    programs, notes = chosen(inputs["programs"], inputs["scale"])
    options = RunOptions(
        machine=inputs["machine"],
        detail=inputs["detail"],
        seed=inputs["seed"],
    )
    found: dict[str, dict[Cell, Values]] = {}
    for index, program in enumerate(programs):
        found[program.name] = run_cells(program, cells(inputs), options, warm=inputs["warm"])
        if context.progress is not None:
            context.progress((index + 1) / len(programs))
    return figures(found, inputs, notes)


def cells(inputs: dict[str, Any]) -> list[Cell]:
    """Return both placements on both servers, and both large pages on a larger full one."""
    return [
        *(server(inputs, design, age) for age in AGES for design in ("linux", "contiguitas")),
        *giant_cells(inputs),
    ]


def server(inputs: dict[str, Any], design: str, age: str) -> Cell:
    """Return the cell of a placement on a server of an age."""
    return Cell(inputs[design], age=age, memory=inputs[f"{age}_memory"])


def giant_cells(inputs: dict[str, Any]) -> tuple[Cell, Cell]:
    """Return 2 MB pages and 1 GB pages under Contiguitas' placement, on equal servers."""
    memory = inputs["giant_memory"]
    huge, giant = inputs["contiguitas"], inputs["giant"]
    return Cell(huge, age="full", memory=memory), Cell(giant, age="full", memory=memory)


def gain(old: Values, new: Values) -> float:
    """Return how much more is done in a cycle, in percent: both run the same events."""
    return 100 * (cycles(old) / cycles(new) - 1)


def kernel_cycles(values: Values) -> float:
    """Return cycles in the kernel."""
    return float(values["time"].get("breakdown", {}).get("kernel", 0))


def steady_gain(old: Values, new: Values, kernel: float) -> float:
    """Return the gain if both spent so many cycles in the kernel, in percent."""
    before, after = (cycles(one) - kernel_cycles(one) + kernel for one in (old, new))
    return 100 * (before / after - 1)


def figures(
    found: dict[str, dict[Cell, Values]], inputs: dict[str, Any], notes: list[str]
) -> Outcome:
    """Set the gains of all programs beside the paper's range."""
    pairs = {
        **{age: (server(inputs, "linux", age), server(inputs, "contiguitas", age)) for age in AGES},
        "1 GB": giant_cells(inputs),
    }
    # What a server does in the kernel whatever its memory is like: the least of all servers.
    kernel = {name: min(map(kernel_cycles, by.values())) for name, by in found.items()}
    gains = {
        kind: {name: steady_gain(by[old], by[new], kernel[name]) for name, by in found.items()}
        for kind, (old, new) in pairs.items()
    }
    whole = {
        kind: {name: gain(by[old], by[new]) for name, by in found.items()}
        for kind, (old, new) in pairs.items()
    }
    values: dict[str, float | None] = {
        "giant_most": max(gains["1 GB"].values(), default=None),
    }
    for age in AGES:
        values[f"{age}_least"] = min(gains[age].values(), default=None)
        values[f"{age}_most"] = max(gains[age].values(), default=None)
    rows = [
        [
            name,
            *(f"{one[kind][name]:+.2f}" for one in (gains, whole) for kind in pairs),
            *_coverage(by, inputs),
        ]
        for name, by in found.items()
    ]
    heads = ["program", "partial, %", "full, %", "1 GB over 2 MB, %"]
    heads += ["with all of the kernel: partial, %", "full, %", "1 GB over 2 MB, %"]
    heads += ["2 MB coverage, partial, Linux", "Contiguitas", "full, Linux", "Contiguitas"]
    title = "Gain in throughput from Contiguitas' placement"
    notes = [
        *notes,
        "Throughput is work in a simulated cycle: all servers run the same events. The paper's "
        f"services have run for long. Here the first {100 * inputs['warm']:g} % of a program's "
        "instructions are not counted, and of the kernel's cycles as many on each server as on "
        "that with the fewest: faults, clearing and compaction belong to the start. Gains with "
        "all of the kernel's cycles stand beside them.",
        "The paper's services have tens of gigabytes on servers of 64 GB and lose up to a fifth of "
        "their cycles to page walks. Programs here have megabytes, on servers as much smaller: "
        "those that fit into the second-level TLB with 4 KB pages (6 MiB) cannot gain.",
        "Pages of 1 GB are set aside before the server ages; with Contiguitas they could be "
        "made later, since nothing in the movable region is in their way.",
    ]

    def illustrate(page: Page) -> None:
        from contigua.pictures import bars_picture

        bars = {kind: list(one.values()) for kind, one in gains.items()}
        page.heading("Gain of each program")
        page.picture(
            bars_picture(list(found), bars, title, "%"),
            "Gain of each program on partial and full memory, and with 1 GB pages.",
        )

    return Outcome(values, illustrate, notes=notes, sheets=[Sheet(title, heads, rows)])


def _coverage(by: dict[Cell, Values], inputs: dict[str, Any]) -> list[str]:
    """Write the share of memory in huge pages on each server."""
    reports = (
        by[server(inputs, design, age)] for age in AGES for design in ("linux", "contiguitas")
    )
    return [f"{100 * one['memory']['huge_page_coverage']:.0f} %" for one in reports]
