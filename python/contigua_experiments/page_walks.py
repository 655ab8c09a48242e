"""Cycles lost to page walks (Contiguitas, ISCA 2023, figure 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.running import Cell, Values, main_parts, resident, run_cells

if TYPE_CHECKING:
    from contigua.page import Page

NAMES = {"4k": "4 KB", "2m": "2 MB", "1g": "1 GB"}
KINDS = ("data", "instruction")


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every program with every size of page."""
    options = RunOptions(machine=inputs["machine"], memory=inputs["memory"], seed=inputs["seed"])
    programs, notes = main_parts(inputs, options)
    cells = {size: Cell(design) for size, design in inputs["pages"].items()}
    found: dict[str, dict[str, Values]] = {}
    for index, (program, own) in enumerate(programs):
        reports = run_cells(program, list(cells.values()), own, kept=context.kept)
        found[program.name] = {size: reports[cell] for size, cell in cells.items()}
        if context.progress is not None:
            context.progress((index + 1) / len(programs))
    return figures(found, inputs, notes)


def walk_share(values: Values, kind: str) -> float:
    """Return the share of cycles in walks for data or for instructions, in percent.

    Cycles of the kernel are left out: a service that has run for days makes no new pages, and 1 GB
    pages take long to clear.
    """
    time = values["time"]
    program = time["cycles"] - time.get("breakdown", {}).get("kernel", 0)
    return float(100 * values["translation"][f"{kind}_walk_cycles"] / max(program, 1))


def figures(
    found: dict[str, dict[str, Values]], inputs: dict[str, Any], notes: list[str]
) -> Outcome:
    """Compare sizes of page."""
    shares = {
        name: {size: {kind: walk_share(one, kind) for kind in KINDS} for size, one in by.items()}
        for name, by in found.items()
    }

    def of(name: str, kind: str, size: str) -> float | None:
        """Return the share with a size of page, of that with 4 KB, in percent."""
        if name not in shares or shares[name]["4k"][kind] == 0:
            return None
        return 100 * shares[name][size][kind] / shares[name]["4k"][kind]

    def whole(name: str, size: str) -> float:
        return sum(shares[name][size].values())

    web = inputs["web"]
    values: dict[str, float | None] = {
        "most": max((whole(name, "4k") for name in shares), default=None),
        "instructions_2m": of(web, "instruction", "2m"),
        "data_1g": of(web, "data", "1g"),
        "web_data_2m": shares[web]["2m"]["data"] if web in shares else None,
        "web_data_1g": shares[web]["1g"]["data"] if web in shares else None,
        "data_2m_least": max(
            (kept for name in shares if (kept := of(name, "data", "2m")) is not None), default=None
        ),
        "giant_beats": max(
            (100 * whole(name, "1g") / whole(name, "4k") for name in shares if whole(name, "4k")),
            default=None,
        ),
    }
    heads = ["program", *(f"{kind}, {name} %" for kind in KINDS for name in NAMES.values())]
    rows = [
        [
            name,
            *(f"{by[size][kind]:.3f}" for kind in KINDS for size in NAMES),
            f"{resident(found[name]['4k']) / (1 << 20):.0f}",
        ]
        for name, by in shares.items()
    ]
    notes = [
        *notes,
        f"{web} stands for the paper's Web. Large pages are set aside for all private anonymous "
        "memory; code stays in 4 KB pages. The kernel's cycles are left out. The paper has 64 GB "
        "servers in production and performance counters.",
    ]

    def illustrate(page: Page) -> None:
        from contigua.pictures import bars_picture

        for kind in KINDS:
            page.heading(f"Figure 3: {kind}")
            page.picture(
                bars_picture(
                    list(shares),
                    {
                        name: [by[size][kind] for by in shares.values()]
                        for size, name in NAMES.items()
                    },
                    f"Page walks for {kind}",
                    "% of cycles",
                ),
                f"Share of walk-active cycles for {kind}, for each program and size of page.",
            )

    title = "Share of walk-active cycles"
    return Outcome(
        values, illustrate, notes=notes, sheets=[Sheet(title, [*heads, "memory MB"], rows)]
    )
