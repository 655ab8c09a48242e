"""What a run found out, in the shapes that people work with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contigua.sizes import size_bytes

if TYPE_CHECKING:
    import pandas as pd

MEBIBYTE = 1 << 20


#: Counters of 4 KB pages whose contents the kernel moved elsewhere.
MOVES = (
    "frames_compacted_direct",
    "frames_compacted_background",
    "frames_moved_by_resizes",
    "frames_evacuated",
    "pin_migrations",
)


@dataclass(frozen=True)
class Report:
    """The report of one design.

    Attributes
    ----------
    json
        The report as the engine wrote it: the same bytes for the same events, configuration and
        seed.
    """

    json: str

    @property
    def values(self) -> dict[str, Any]:
        """The whole report as nested dictionaries."""
        parsed: dict[str, Any] = json.loads(self.json)
        return parsed

    @property
    def design(self) -> str:
        """Name of the design."""
        return str(self.values["config"]["design_name"])

    def summary(self) -> dict[str, Any]:
        """Return the figures that are compared most, flat.

        Returns
        -------
        dict
            Counts are events within the region of interest. ``*_mpki`` are misses per thousand
            instructions, ``walk_share`` is the share of cycles spent on page walks (0 to 1),
            ``*_mib`` are sizes in units of 2**20 bytes. Times are ``None`` when only translation
            was simulated.
        """
        r = self.values
        instructions = r["executed"]["instructions"]
        walks = r["translation"]
        data, code = r["tlb"]["data"], r["tlb"]["instruction"]
        memory, kernel, time = r["memory"], r["kernel"], r["time"]
        moved, advice, course = r["migration"], r["advice"], r["memory_course"]

        def misses(side: dict[str, int]) -> int:
            return side["misses_4k"] + side["misses_2m"] + side["misses_1g"]

        def per_thousand(count: int) -> float:
            return float(1000 * count / max(instructions, 1))

        found = walks["walks_4k"] + walks["walks_2m"] + walks["walks_1g"]
        resident = {size: size_bytes(memory[f"resident_{size}"]) for size in ("4k", "2m", "1g")}
        resident |= {kind: size_bytes(memory[kind]) for kind in ("perforated", "segment")}
        after, frames = r["contiguity_after"], r["frames"]
        return {
            "design": r["config"]["design_name"],
            "machine": r["config"]["machine_name"],
            "age": r["config"]["age"],
            "holes": r["config"]["holes"] or "none",
            "malloc": r["config"]["allocator"],
            "instructions": instructions,
            "cycles": time["cycles"] if time else None,
            "ipc": time["ipc"] if time else None,
            "walk_share": _share(time, "walk"),
            "kernel_share": _share(time, "kernel"),
            "cores": len(r["cores"]) or None,
            "migrations": moved["completed"] if moved else 0,
            "unavailable_cycles": (
                moved["unavailable"]["total_cycles"] / moved["unavailable"]["count"]
                if moved and moved["unavailable"]["count"]
                else None
            ),
            "interrupts": kernel["interprocessor_interrupts"]
            + (moved["interprocessor_interrupts"] if moved else 0),
            "l1d_tlb_mpki": per_thousand(misses(data)),
            "l1i_tlb_mpki": per_thousand(misses(code)),
            "l2_tlb_mpki": per_thousand(found),
            "walks_4k": walks["walks_4k"],
            "walks_2m": walks["walks_2m"],
            "walk_references": walks["references"],
            "segment_accesses": r["tlb"]["segment_accesses"],
            "page_faults": sum(v for k, v in kernel.items() if k.startswith("faults_")),
            "huge_page_fallbacks": kernel["huge_page_fallbacks"],
            "resident_mib": sum(resident.values()) / MEBIBYTE,
            "resident_4k_mib": resident["4k"] / MEBIBYTE,
            "resident_2m_mib": resident["2m"] / MEBIBYTE,
            "resident_1g_mib": resident["1g"] / MEBIBYTE,
            "perforated_mib": resident["perforated"] / MEBIBYTE,
            "segment_mib": resident["segment"] / MEBIBYTE,
            "huge_page_coverage": memory["huge_page_coverage"],
            "mean_resident_mib": size_bytes(course["mean_resident"]) / MEBIBYTE,
            "mean_huge_page_coverage": course["mean_huge_page_coverage"],
            "given_back_mib": size_bytes(advice["given_back"]) / MEBIBYTE,
            "huge_pages_broken": advice["huge_pages_broken"],
            "collapsed": advice["collapsed"],
            "collapses_failed": advice["collapses_failed"],
            "free_2m_blocks_before": r["contiguity_before"]["blocks_2m"]["free"],
            "free_2m_blocks_after": after["blocks_2m"]["free"],
            "unmovable_2m_blocks_after": after["blocks_2m"]["unmovable"],
            "blocks_2m": after["blocks_2m"]["total"],
            "pages_reclaimed": frames["frames_reclaimed_direct"]
            + frames["frames_reclaimed_background"],
            "pages_moved": sum(frames[key] for key in MOVES),
            "unmovable_region_mib": (
                size_bytes(r["unmovable_region"]) / MEBIBYTE if r["unmovable_region"] else None
            ),
        }


def _share(time: dict[str, Any] | None, part: str) -> float | None:
    """Return the share of a part of the cycles in which cores were not idle."""
    if time is None:
        return None
    return float(time["breakdown"][part] / max(time["busy_cycles"], 1))


@dataclass(frozen=True)
class Results(Sequence[Report]):
    """The reports of all designs that ran on one program.

    Attributes
    ----------
    reports
        One for each design, in the order in which they were asked for.
    exit_code
        The program's own exit status; 0 for a trace.
    """

    reports: tuple[Report, ...]
    exit_code: int

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - as Sequence has it
        return self.reports[index]

    def __len__(self) -> int:
        return len(self.reports)

    def __iter__(self) -> Iterator[Report]:
        return iter(self.reports)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for each design; the columns are those of :meth:`Report.summary`."""
        # Half a second to import, which most runs can do without.
        import pandas as pd

        return pd.DataFrame([report.summary() for report in self.reports])

    def to_json(self) -> str:
        """Return all reports as one JSON array, the same bytes for the same run."""
        return "[\n" + ",\n".join(report.json.rstrip("\n") for report in self.reports) + "\n]\n"
