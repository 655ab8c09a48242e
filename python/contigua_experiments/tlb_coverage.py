"""TLB coverage of memory that grows faster than TLBs do (Contiguitas, ISCA 2023, figure 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contigua.presets import machines
from contigua_experiments.base import Context, Outcome, Sheet

if TYPE_CHECKING:
    from contigua.page import Page

GB = 1 << 30
SIZES = {"4k": 4 << 10, "2m": 2 << 20, "1g": GB}
NAMES = {"4k": "4 KB", "2m": "2 MB", "1g": "1 GB"}


@dataclass(frozen=True)
class Generation:
    """A generation of servers.

    Attributes
    ----------
    name, year, source
        Of its processor, and where its TLBs are described.
    memory
        Bytes.
    entries
        Entries of the data TLBs of both levels that may hold each size of page.
    """

    name: str
    year: int
    source: str
    memory: float
    entries: dict[str, int]

    def coverage(self, size: str) -> float:
        """Return the share of memory that the entries cover, in percent."""
        return 100 * self.entries[size] * SIZES[size] / self.memory


def compute(inputs: dict[str, Any], _: Context) -> Outcome:
    """Divide what the TLBs cover by what there is."""
    servers = generations(inputs)
    first, last = servers[0], servers[-1]
    totals = [one.entries["4k"] for one in servers]
    values: dict[str, float | None] = {
        "memory": last.memory / first.memory,
        "entries": totals[-1] / totals[0],
        "fewest": min(totals),
        "most": max(totals),
        "small_last": last.coverage("4k"),
        "huge_last": last.coverage("2m"),
        "huge_shrinks": last.coverage("2m") / first.coverage("2m"),
        "giant_last": last.coverage("1g"),
    }
    heads = ["processor", "year", "memory GB"]
    heads += [f"{name}: {what}" for name in NAMES.values() for what in ("entries", "% of memory")]
    rows = [
        [
            one.name,
            str(one.year),
            f"{one.memory / GB:.0f}",
            *(
                text
                for size in SIZES
                for text in (str(one.entries[size]), f"{one.coverage(size):.4g}")
            ),
            one.source,
        ]
        for one in servers
    ]

    def illustrate(page: Page) -> None:
        from contigua.pictures import lines_picture

        years = [float(one.year) for one in servers]
        grown = {
            "memory": (years, [one.memory / first.memory for one in servers]),
            "TLB entries": (years, [total / totals[0] for total in totals]),
        }
        covered = {
            NAMES[size]: (years, [one.coverage(size) for one in servers]) for size in ("4k", "2m")
        }
        page.heading("Figure 2")
        page.picture(
            lines_picture([("of the first generation", grown)], "Memory and TLB entries", "year"),
            f"Memory grows {values['memory']:.0f} times while TLB entries grow "
            f"{values['entries']:.1f} times.",
        )
        page.picture(
            lines_picture([("% of memory", covered)], "TLB coverage", "year"),
            f"2 MB entries cover {first.coverage('2m'):.1f} % of the first generation's memory and "
            f"{last.coverage('2m'):.1f} % of the last one's; 4 KB entries cover next to none.",
        )

    return Outcome(
        values,
        illustrate,
        notes=[
            "Entries are those of one core's data TLBs, both levels. The axis of the paper's "
            "figure reaches 80 %, which suggests that it counts those of all cores; its text "
            "speaks of a few thousand entries, as here. The first three generations have 20 "
            "entries for 1 GB pages, which would not cover the memory of the last one."
        ],
        sheets=[Sheet("Generations", [*heads, "source"], rows)],
    )


def generations(inputs: dict[str, Any]) -> list[Generation]:
    """Return the generations with their memory and TLBs."""
    listed = inputs["generations"]
    step = inputs["growth"] ** (1 / (len(listed) - 1))
    return [
        Generation(
            one["name"],
            one["year"],
            one.get("source", f"machine {one.get('machine')}"),
            inputs["first_gib"] * GB * step**index,
            of_machine(one["machine"])
            if "machine" in one
            else {size: one["first"][size] + one["second"][size] for size in SIZES},
        )
        for index, one in enumerate(listed)
    ]


def of_machine(name: str) -> dict[str, int]:
    """Return the entries of one of our machines' data TLBs for each size of page."""
    tlb = machines.resolve(name)["tlb"]
    return {
        size: tlb["l1d"].get(size, {}).get("entries", 0)
        + sum(level["entries"] for level in tlb["l2"] if size in level["holds"])
        for size in SIZES
    }
