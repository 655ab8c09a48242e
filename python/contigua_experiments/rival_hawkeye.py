"""Huge pages by access coverage, and zeros given back (HawkEye, ASPLOS 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua_experiments import page_policies, rivals
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.running import Values

if TYPE_CHECKING:
    from contigua.page import Page


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Compare walks during promotion, growth after deletions, and the kernel's time for touches."""
    options = RunOptions(
        machine=inputs["machine"], memory=inputs["memory"], detail="additive", seed=inputs["seed"]
    )
    designs = page_policies.variants(inputs)
    hot = page_policies.run(inputs["hot"], designs, options, context)
    stopped: dict[str, str] = {}
    grown = page_policies.run(inputs["growth"], designs, options, context, stopped)
    touched = page_policies.run(inputs["touch"], designs, options, context)

    def left(name: str, of: str) -> float | None:
        return rivals.share(rivals.walk_cycles(hot[name]), rivals.walk_cycles(hot[of]))

    recovered = kernel(grown["hawkeye"], "zeros_recovered") if "hawkeye" in grown else 0
    values: dict[str, float | None] = {
        "hot_linux": left("linux-hot", "small"),
        "hot_hawkeye": left("hawkeye-hot", "small"),
        "hot_over_linux": left("hawkeye-hot", "linux-hot"),
        "linux_stops": float("linux" in stopped),
        "ingens_stops": float("ingens" in stopped),
        "kept_stops": float("kept" in stopped),
        "hawkeye_stops": float("hawkeye" in stopped),
        "recovered": recovered / inputs["growth"]["pages"] * 100,
        "touch_left": rivals.share(work(touched["zeroed"]), work(touched["linux"])),
    }
    parts = (("hot", hot), ("growth", grown), ("touch", touched))
    rows = [
        [
            part,
            name,
            f"{rivals.walk_cycles(one):,.0f}",
            f"{work(one):,.0f}",
            str(kernel(one, "huge_page_collapses")),
            str(kernel(one, "zeros_recovered")),
            str(kernel(one, "prezeroed_pages")),
        ]
        for part, by in parts
        for name, one in by.items()
    ]
    head = ["part", "design", "walk cycles", "kernel", "collapses", "recovered", "zeroed before"]
    rows += [["growth", name, "-", "-", "-", "-", reason] for name, reason in stopped.items()]

    def illustrate(page: Page) -> None:
        from contigua.pictures import bars_picture

        bars = {name: [rivals.walk_cycles(one) / 1e6] for name, one in hot.items()}
        page.heading("Walks while huge pages are made")
        page.picture(
            bars_picture(["bloat"], bars, "Walk cycles", "M"),
            "Cycles of walks of a program whose last part is hot, by design.",
        )

    return Outcome(values, illustrate, sheets=[Sheet("Runs", head, rows)])


def kernel(values: Values, name: str) -> int:
    """Return a counter of the kernel, which reports leave out where it is 0."""
    return int(values["kernel"].get(name, 0))


def work(values: Values) -> float:
    """Return the kernel's cycles."""
    return float(values["time"]["breakdown"]["kernel"])
