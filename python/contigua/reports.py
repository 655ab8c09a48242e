"""The report of one run: the engine's JSON, and the values of it that are compared most."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from contigua import columns
from contigua.errors import ContiguaError
from contigua.reading import real
from contigua.schemas import current
from contigua.sizes import SizeError, seconds_of
from contigua.table import MISS_EVENTS, SPLITS, table_html

MEBIBYTE = 1 << 20


#: Counters of 4 KB pages whose contents the kernel moved elsewhere.
MOVES = (
    "frames_compacted_direct",
    "frames_compacted_background",
    "frames_moved_by_resizes",
    "frames_evacuated",
    "pin_migrations",
)


#: Columns of ``Report.summary`` that are not counts, by type; counts are integers.
TEXTS = {"design", "machine", "age", "holes", "malloc", "ended"}
FLAGS = {"complete"}
REALS = {
    "ipc",
    "seconds",
    "longest_stall",
    "scan_period",
    "memory_share",
    "translation_overhead",
    "walk_active_share",
    "walk_share",
    "kernel_share",
    "request_cycles",
    "request_walks",
    "unavailable_cycles",
    "huge_page_coverage",
    "mean_huge_page_coverage",
}
REAL_ENDS = ("_mpki", "_mib", "_half_width", "_us")
#: Latencies of requests: means and percentiles.
LATENCIES = ("mean", "p50", "p95", "p99", "p99_9")


class ResultsError(ContiguaError):
    """Text that holds no reports of this version."""


def summary_type(column: str) -> columns.Kind:
    """Say what a column of :meth:`Report.summary` holds, also where all of it is ``None``.

    Examples
    --------
    >>> summary_type("design"), summary_type("l2_tlb_mpki"), summary_type("page_faults")
    ('text', 'real', 'count')
    """
    if column in TEXTS:
        return "text"
    if column in FLAGS:
        return "flag"
    return "real" if column in REALS or column.endswith(REAL_ENDS) else "count"


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
        """The whole report as nested dictionaries; one of the version before in today's form."""
        return current(json.loads(self.json))

    @property
    def replicas(self) -> int:
        """Seeds that it is the mean of."""
        return 1

    @property
    def design(self) -> str:
        """Name of the design."""
        return str(self.values["config"]["design_name"])

    def _repr_html_(self) -> str:
        return table_html([self])

    def intervals(self) -> dict[str, float]:
        """Return half the width of the confidence interval of each estimate in :meth:`summary`.

        Empty unless the run was sampled. What is not in it is exact, or nothing is known of its
        error.
        """
        sample = self.values.get("sample") or {"estimates": {}}
        halves = {key: estimate["half_width"] for key, estimate in sample["estimates"].items()}
        return {key: real(half) for key, half in halves.items() if half is not None}

    def summary(self) -> dict[str, Any]:
        """Return the figures that are compared most, flat.

        Returns
        -------
        dict
            Counts are events within the region of interest. ``*_mpki`` are misses per thousand
            instructions. Shares of cycles are 0 to 1: ``translation_overhead`` is what a perfect
            TLB would save, ``walk_active_share`` are those in which a page walk was under way,
            ``walk_share`` those in which the oldest instruction waited for one (walks that overlap
            with other waits are not in it), ``memory_share`` those spent on waiting beyond the
            first-level caches. ``*_mib`` are sizes in units of 2**20 bytes. Times are ``None`` when
            only translation was simulated, and so is what the engine that ran did not
            measure. ``ended`` is what ended the run: ``"program"``, ``"instructions"``, ``"time"``;
            ``"exit_status"`` (other than 0), ``"signal"``, ``"failure"`` (the program was not
            observed to its end) or ``"interrupted"``, after which ``complete`` is ``False``.
            ``seconds`` is simulated time, and ``longest_stall`` the longest that one access waited
            for the kernel, in seconds; ``scan_period`` is that of khugepaged, ``None`` without.
            ``sample_units`` are the units that estimates of a sampled run are made from; see
            :meth:`intervals`. ``requests`` are those that a server answered, ``request_*`` what
            each took on average, ``latency_*_us`` microseconds from receiving to sending.
            ``regions`` are those that the user named and that were met.
        """
        r = self.values
        instructions = r["executed"]["instructions"]
        walks = r["translation"]
        data, code = r["tlb"]["data"], r["tlb"]["instruction"]
        memory, kernel, time = r["memory"], r["kernel"], r["time"]
        moved, advice, residency = r["migration"], r["advice"], r["residency"]

        def misses(side: dict[str, int]) -> int:
            return side["misses_4k"] + side["misses_2m"] + side["misses_1g"]

        def per_thousand(count: int) -> float:
            return float(1000 * count / max(instructions, 1))

        found = walks["walks_4k"] + walks["walks_2m"] + walks["walks_1g"]
        resident = {size: memory[f"resident_{size}_bytes"] for size in ("4k", "2m", "1g")}
        resident |= {kind: memory[f"{kind}_bytes"] for kind in ("perforated", "segment")}
        after, frames = r["contiguity_after"], r["frames"]
        return {
            "design": r["config"]["design_name"],
            "machine": r["config"]["machine_name"],
            "age": r["config"]["age"],
            "holes": r["config"]["holes"] or "none",
            "malloc": r["config"]["allocator"],
            "complete": r.get("complete"),
            "ended": r.get("ended"),
            "instructions": instructions,
            "sample_units": r["sample"]["units"] if r.get("sample") else None,
            "regions": r["regions"]["count"] if r.get("regions") else None,
            "cycles": time["cycles"] if time else None,
            "seconds": seconds(r, time["cycles"]) if time else None,
            **_requests(r),
            "ipc": time["ipc"] if time else None,
            "memory_share": _share(time, "data", "fetch"),
            "translation_overhead": time.get("translation_overhead") if time else None,
            "walk_active_share": _of_busy(time, time.get("walk_active")) if time else None,
            "walk_share": _share(time, "walk"),
            "kernel_share": _share(time, "kernel"),
            "cores": len(r["cores"]) or None,
            "migrations": moved["completed"] if moved else 0,
            "unavailable_cycles": (
                moved["unavailable"]["total_cycles"] / moved["unavailable"]["count"]
                if moved and moved["unavailable"]["count"]
                else None
            ),
            "not_moved": moved.get("held", 0) if moved else 0,
            "interrupts": kernel["interprocessor_interrupts"]
            + (moved["interprocessor_interrupts"] if moved else 0),
            **_walk_events(r),
            "l1d_tlb_mpki": per_thousand(misses(data)),
            "l1i_tlb_mpki": per_thousand(misses(code)),
            "l2_tlb_mpki": per_thousand(found),
            "walks_4k": walks["walks_4k"],
            "walks_2m": walks["walks_2m"],
            "walk_references": walks["references"],
            "segment_accesses": r["tlb"]["segment_accesses"],
            "page_faults": sum(v for k, v in kernel.items() if k.startswith("faults_")),
            "huge_page_fallbacks": kernel["huge_page_fallbacks"],
            "scan_period": scan_period(r),
            "longest_stall": _known(r, kernel.get("longest_stall_cycles")),
            "huge_page_splits": kernel["huge_page_splits"],
            **{key: kernel.get(key, 0) for key in SPLITS.values()},
            "direct_compactions": frames["direct_compactions"],
            "background_compactions": frames["background_compactions"]
            + frames["proactive_compactions"],
            "bitmap_fills": r["translation_scheme"].get("bitmap_fills", 0),
            "hole_walks": r["translation_scheme"].get("hole_walks", 0),
            "resident_mib": sum(resident.values()) / MEBIBYTE,
            "resident_4k_mib": resident["4k"] / MEBIBYTE,
            "resident_2m_mib": resident["2m"] / MEBIBYTE,
            "resident_1g_mib": resident["1g"] / MEBIBYTE,
            "perforated_mib": resident["perforated"] / MEBIBYTE,
            "segment_mib": resident["segment"] / MEBIBYTE,
            "shmem_mib": memory.get("shmem_bytes", 0) / MEBIBYTE,
            "shmem_huge_mib": memory.get("shmem_huge_bytes", 0) / MEBIBYTE,
            "hugetlb_shared_mib": memory.get("hugetlb_shared_bytes", 0) / MEBIBYTE,
            "huge_page_coverage": memory["huge_page_coverage"],
            "mean_resident_mib": residency["mean_resident_bytes"] / MEBIBYTE,
            "mean_huge_page_coverage": residency["mean_huge_page_coverage"],
            "given_back_mib": advice["given_back_bytes"] / MEBIBYTE,
            "huge_pages_broken": advice["huge_pages_broken"],
            "collapsed": advice["collapsed"],
            "collapses_failed": advice["collapses_failed"],
            "free_2m_blocks_before": r["contiguity_before"]["blocks_2m"]["free"],
            "free_2m_blocks_after": after["blocks_2m"]["free"],
            "unmovable_2m_blocks_before": r["contiguity_before"]["blocks_2m"]["unmovable"],
            "unmovable_2m_blocks_after": after["blocks_2m"]["unmovable"],
            "blocks_2m": after["blocks_2m"]["total"],
            "pages_reclaimed": frames["frames_reclaimed_direct"]
            + frames["frames_reclaimed_background"],
            "pages_moved": sum(frames[key] for key in MOVES),
            "unmovable_region_mib": (
                r["unmovable_region_bytes"] / MEBIBYTE if r["unmovable_region_bytes"] else None
            ),
        }


def seconds(values: Mapping[str, Any], cycles: float) -> float:
    """Return how long so many cycles of a report's machine take."""
    clock = re.fullmatch(r"([0-9]+)MHz", str(values["config"]["machine"]["clock"]))
    return cycles / (int(clock[1]) if clock else 1) / 1e6 if cycles else 0.0


def shmem_enabled(design: Mapping[str, Any]) -> str:
    """Return the ``shmem_enabled`` of a report's design."""
    for scheme in design["translation"].values():
        if isinstance(scheme, Mapping):
            for table in (scheme, *scheme.values()):
                if isinstance(table, Mapping) and "shmem_enabled" in table:
                    return str(table["shmem_enabled"])
    return "never"


def aligned_shmem(enabled: str) -> str:
    """Return which shared memory Linux aligns under a ``shmem_enabled``, as reports call it."""
    if enabled in ("never", "deny"):
        return "none"
    return "all" if enabled == "force" else "unmounted"


def _known(values: Mapping[str, Any], cycles: int | None) -> float | None:
    return None if cycles is None else seconds(values, cycles)


def scan_period(values: Mapping[str, Any]) -> float | None:
    """Return the seconds between two scans of khugepaged; ``None`` where the design has none."""
    for scheme in values["config"]["design"]["translation"].values():
        if isinstance(scheme, Mapping) and "scan_interval" in scheme:
            return seconds_of(str(scheme["scan_interval"]))
    return None


def _requests(r: dict[str, Any]) -> dict[str, float | int | None]:
    """Return requests that a server answered, what each took, and percentiles of their latency."""
    requests = r.get("requests")
    answered = requests["answered"] if requests else None
    latency = (requests and requests["latency_cycles"]) or {}
    walks = sum(r["translation"][f"walks_{size}"] for size in ("4k", "2m", "1g"))
    # At 1 MHz, a cycle takes a microsecond.
    clock = float(str(r["config"]["machine"]["clock"]).removesuffix("MHz"))
    return {
        "requests": answered,
        "request_cycles": r["time"]["busy_cycles"] / answered if answered and r["time"] else None,
        "request_walks": walks / answered if answered else None,
        **{f"latency_{name}_us": latency[name] / clock if latency else None for name in LATENCIES},
    }


def _share(time: dict[str, Any] | None, *parts: str) -> float | None:
    """Return the share of parts of the cycles in which cores were not idle."""
    return None if time is None else _of_busy(time, sum(time["breakdown"][part] for part in parts))


def _of_busy(time: dict[str, Any], cycles: int | None) -> float | None:
    """Return the share of some cycles of all cores in those in which cores were not idle."""
    return None if cycles is None else float(cycles / max(time["busy_cycles"], 1))


def _walk_events(r: dict[str, Any]) -> dict[str, int | None]:
    """Return what perf would count of TLB misses; cycles only where cores were simulated."""
    events: dict[str, int | None] = {}
    for name, (misses, walks) in MISS_EVENTS.items():
        found = r["tlb"].get(misses)
        completed = None
        if found is not None:
            completed = sum(found[f"walk_completed_{size}"] for size in ("4k", "2m", "1g"))
        events[f"{name}.stlb_hit"] = found and found["stlb_hit"]
        events[f"{name}.walk_completed"] = completed
        cores = [core["walks"][walks] for core in r["cores"] if "walks" in core]
        for counter in ("walk_active", "walk_pending"):
            cycles = sum(core[counter] for core in cores) if cores else None
            events[f"{name}.{counter}"] = cycles
    return events


def reports_json(reports: Iterable[Report]) -> str:
    """Return reports as one JSON array, the same bytes for the same run."""
    return "[\n" + ",\n".join(report.json.rstrip("\n") for report in reports) + "\n]\n"


@contextmanager
def checking(reports: Sequence[Report]) -> Iterator[None]:
    """Take it for a fault of the reports, which anybody may have written, if code fails.

    Raises
    ------
    ResultsError
        When it does.
    """
    try:
        yield
    except KeyError as error:
        version = json.loads(reports[0].json).get("version", "unknown")
        raise ResultsError(
            f"reports of version {version} lack {error}: run again with this version"
        ) from error
    except (
        TypeError,
        ValueError,
        AttributeError,
        LookupError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise ResultsError(f"damaged: {error}; run again") from error
    except SizeError as error:
        raise ResultsError(f"damaged: {error}") from error
