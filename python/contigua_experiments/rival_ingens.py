"""Huge pages of ranges that are used (Ingens, OSDI 2016)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua_experiments import page_policies, rivals
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.page_policies import settled

if TYPE_CHECKING:
    from contigua.page import Page

MIB = 1 << 20


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Compare memory after deletions, the longest fault, and walks where all memory is used."""
    options = RunOptions(
        machine=inputs["machine"], memory=inputs["memory"], detail="additive", seed=inputs["seed"]
    )
    designs = page_policies.variants(inputs)
    holes = page_policies.run(inputs["holes"], designs, options, context)
    whole = page_policies.run(inputs["whole"], designs, options, context)
    base = settled(holes["small"])

    def bloat(name: str) -> float:
        return 100 * (settled(holes[name]) / base - 1)

    def stall(name: str) -> float:
        return float(whole[name]["kernel"]["longest_stall_cycles"])

    def walks(name: str) -> float:
        return rivals.walk_cycles(whole[name])

    values: dict[str, float | None] = {
        "bloat_linux": bloat("linux"),
        "bloat_conservative": bloat("conservative"),
        "bloat_adaptive": bloat("adaptive"),
        "stall": rivals.share(stall("conservative"), stall("linux")),
        "walks_left": rivals.share(walks("conservative"), walks("small")),
    }
    rows = [
        [
            program,
            name,
            f"{settled(one) / MIB:,.1f}",
            str(one["kernel"]["huge_page_collapses"]),
            str(one["kernel"]["faults_anonymous_4k"]),
            str(one["kernel"]["faults_anonymous_2m"]),
            f"{rivals.walk_cycles(one):,.0f}",
            f"{one['kernel']['longest_stall_cycles']:,}",
        ]
        for program, by in (("with holes", holes), ("all used", whole))
        for name, one in by.items()
    ]
    head = ["program", "design", "MiB", "collapses", "faults 4K", "2M", "walk cycles", "longest"]

    def illustrate(page: Page) -> None:
        from contigua.pictures import bars_picture

        bars = {name: [settled(one) / MIB] for name, one in holes.items()}
        page.heading("Memory after deletions")
        page.picture(
            bars_picture(["bloat"], bars, "Memory after deletions", "MiB"),
            "Memory in the second half of the run, by design.",
        )

    return Outcome(values, illustrate, sheets=[Sheet("Runs", head, rows)])
