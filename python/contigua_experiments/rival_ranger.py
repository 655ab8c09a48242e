"""Mappings that a thread coalesces into one run each (Translation Ranger, ISCA 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua_experiments import page_policies, rivals
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.running import Values, cycles

if TYPE_CHECKING:
    from contigua.page import Page

GIB = 1 << 30
PAGE = 4096


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Compare the runs of a mapping on fresh and aged servers, the thread's work, and walks."""
    options = RunOptions(
        machine=inputs["machine"], memory=inputs["memory"], detail="additive", seed=inputs["seed"]
    )
    designs = page_policies.variants(inputs)
    parts = {
        name: page_policies.run(inputs[name], designs, options, context)
        for name in ("fresh", "partial", "full")
    }
    fresh, partial, full = parts.values()

    def larger(by: dict[str, Values], ours: str = "ranger") -> float:
        return regions(by["linux"]) / max(1.0, regions(by[ours]))

    def left(ours: str, base: str) -> float | None:
        return rivals.share(rivals.walk_cycles(full[ours]), rivals.walk_cycles(full[base]))

    values: dict[str, float | None] = {
        "fresh_larger": larger(fresh),
        "partial_larger": larger(partial),
        "full_larger": larger(full),
        "splitting_larger": larger(partial, "splitting"),
        "partial_regions": regions(partial["ranger"]),
        "full_linux_2m": in_2m(full["linux"]),
        "full_2m": in_2m(full["ranger"]),
        "confined_regions": regions(full["confined"]),
        "confined_left": rivals.share(regions(full["confined"]), regions(full["ranger"])),
        "immovable": rivals.share(ranger(full["ranger"])["left_unmovable_pages"], gone(full)),
        "exchanged": rivals.share(ranger(full["ranger"])["exchanged_pages"], brought(full)),
        "seconds": seconds(full["ranger"]) / (brought(full) * PAGE / GIB) if brought(full) else 0,
        "rest": 100 * last_seconds(full["ranger"]) / inputs["period"],
        "walks_left": left("ranger-range", "range"),
        "confined_walks_left": left("confined-range", "range"),
    }
    rows = [
        [
            part,
            name,
            f"{regions(one):,.0f}",
            f"{in_2m(one):.1f}",
            f"{ranger(one)['runs']['longest_bytes'] / GIB:.3f}",
            *(f"{ranger(one)[key]:,}" for key in COUNTS),
            f"{seconds(one):.3f}",
            f"{rivals.walk_cycles(one):,.0f}",
            f"{cycles(one):,.0f}",
        ]
        for part, by in parts.items()
        for name, one in by.items()
    ]
    heads = ["part", "design", "regions for 99 %", "% in 2 MB runs", "longest, GiB"]
    heads += ["passes", "moved", "exchanged", "promoted", "immovable in the way", "unlike"]
    heads += ["seconds", "walk cycles", "cycles"]

    def illustrate(page: Page) -> None:
        from contigua.pictures import bars_picture

        names = ["linux", "ranger"]
        bars = {name: [in_2m(by[name]) for by in parts.values()] for name in names}
        page.heading("Memory in runs of at least 2 MB")
        page.picture(
            bars_picture(list(parts), bars, "Share of memory", "%"),
            "Share of the program's memory in runs of at least 2 MB, by server and design.",
        )

    return Outcome(values, illustrate, sheets=[Sheet("Runs", heads, rows)])


#: Columns of the thread's counts.
COUNTS = (
    "passes",
    "moved_pages",
    "exchanged_pages",
    "huge_pages_made",
    "left_unmovable_pages",
    "left_unlike_pages",
)


def ranger(values: Values) -> Values:
    """Return the thread's report."""
    found: Values = values["ranger"]
    return found


def regions(values: Values) -> float:
    """Return the fewest runs that hold 99 % of the memory."""
    return float(ranger(values)["runs"]["covering_99_percent"])


def in_2m(values: Values) -> float:
    """Return the share of memory in runs of at least 2 MB, in percent."""
    runs = ranger(values)["runs"]
    return 100 * float(runs["bytes_in_2m"]) / float(runs["bytes"])


def brought(by: dict[str, Values]) -> float:
    """Return the pages that the thread brought to their places."""
    done = ranger(by["ranger"])
    return float(done["moved_pages"] + done["exchanged_pages"])


def gone(by: dict[str, Values]) -> float:
    """Return the pages that the last pass left elsewhere."""
    done = ranger(by["ranger"])
    return float(sum(value for key, value in done.items() if key.startswith("left_")))


def seconds(values: Values) -> float:
    """Return the time of all passes."""
    return in_seconds(values, "work_cycles")


def last_seconds(values: Values) -> float:
    """Return the time of the last pass."""
    return in_seconds(values, "last_work_cycles")


def in_seconds(values: Values, key: str) -> float:
    """Return cycles of the thread as time."""
    clock = values["config"]["machine"]["clock"]
    return float(ranger(values)[key]) / hertz(str(clock))


def hertz(text: str) -> float:
    """Return a clock's rate."""
    units = {"GHz": 1e9, "MHz": 1e6}
    unit = next(one for one in units if text.endswith(one))
    return float(text.removesuffix(unit)) * units[unit]
