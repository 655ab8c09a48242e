"""Pages of all three sizes from free memory (Trident, MICRO 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua_experiments import page_policies, rivals
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.running import Values, cycles

if TYPE_CHECKING:
    from contigua.page import Page

GIB = 1 << 30


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Compare walks and times of random reads, pages of 1 GB, moves and the longest fault."""
    options = RunOptions(
        machine=inputs["machine"], memory=inputs["memory"], detail="additive", seed=inputs["seed"]
    )
    designs = page_policies.variants(inputs)
    parts = {
        name: page_policies.run(inputs[name], designs, options, context)
        for name in ("fresh", "large", "late", "full", "partial", "touch")
    }
    fresh, large, late, full, partial, touch = parts.values()

    def left(by: dict[str, Values], name: str) -> float | None:
        return rivals.share(rivals.walk_cycles(by[name]), rivals.walk_cycles(by["linux"]))

    def stall(name: str) -> float:
        return float(touch[name]["kernel"]["longest_stall_cycles"])

    values: dict[str, float | None] = {
        "walks_left": left(fresh, "trident"),
        "gain": gain(fresh),
        "large_gain": gain(large),
        "promoted": giants(late["trident"]),
        "promoted_left": left(late, "trident"),
        "full_giants": giants(full["trident"]),
        "full_failed": float(full["trident"]["kernel"].get("giant_page_fallbacks", 0)),
        "confined_giants": giants(full["confined"]),
        "moves_left": rivals.share(moves(partial["confined"]), moves(partial["sequential"])),
        "unbiased_moves_left": rivals.share(
            moves(partial["unbiased"]), moves(partial["unbiased-sequential"])
        ),
        "stall": rivals.share(stall("zeroed"), stall("sleepy")),
    }
    rows = [
        [
            part,
            name,
            f"{rivals.walk_cycles(one):,.0f}",
            f"{cycles(one):,.0f}",
            f"{one['memory']['resident_1g_bytes'] / GIB:.0f}",
            str(one["kernel"].get("giant_page_fallbacks", 0)),
            str(one["frames"]["frames_moved_from_isolated"]),
            f"{one['kernel']['longest_stall_cycles']:,}",
        ]
        for part, by in parts.items()
        for name, one in by.items()
    ]
    head = ["part", "design", "walk cycles", "cycles", "GiB", "failed", "moved", "longest"]

    def illustrate(page: Page) -> None:
        from contigua.pictures import bars_picture

        bars = {name: [rivals.walk_cycles(one) / 1e6] for name, one in fresh.items()}
        page.heading("Walks of random reads")
        page.picture(
            bars_picture(["bloat"], bars, "Walk cycles", "M"),
            "Cycles of walks on a fresh server, by design.",
        )

    return Outcome(values, illustrate, sheets=[Sheet("Runs", head, rows)])


def gain(by: dict[str, Values]) -> float:
    """Return Trident's performance over Linux's in percent, without the kernel's work."""
    return 100 * (program(by["linux"]) / program(by["trident"]) - 1)


def program(values: Values) -> float:
    """Return the cycles that are not the kernel's."""
    return cycles(values) - float(values["time"]["breakdown"]["kernel"])


def moves(values: Values) -> float:
    """Return the frames moved out of ranges for a page of 1 GB."""
    made = values["kernel"].get("giant_page_promotions", 0)
    return float(values["frames"]["frames_moved_from_isolated"]) / made if made else 0.0


def giants(values: Values) -> float:
    """Return the memory in pages of 1 GB at the peak, in GiB."""
    return float(values["memory"]["resident_1g_bytes"]) / GIB
