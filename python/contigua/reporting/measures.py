"""Figures of a run that several plots and sentences use, grouped as a reader thinks of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contigua.reporting.cases import Run
from contigua.reporting.words import percent
from contigua.reports import MOVES

MEBIBYTE = 1 << 20

#: Parts of the cycles, in the order in which they are stacked: name, keys of ``time.breakdown``.
CYCLES = {
    "base": ("issue", "branch", "dependence"),
    "memory": ("fetch", "data"),
    "translation": ("tlb", "walk"),
    "kernel": ("kernel",),
}
#: Meaning of each part, for captions.
CYCLES_MEAN = {
    "base": "issuing instructions, wrong branches, and waiting for results",
    "memory": "waiting for caches and memory beyond the first level",
    "translation": "what a perfect TLB would save, also of waits that overlap with others",
    "kernel": "faults, system calls, compaction and migration",
}
#: Kinds of mapping, by key of ``memory``.
MAPPINGS = {
    "4 KB pages": "resident_4k_bytes",
    "2 MB pages": "resident_2m_bytes",
    "1 GB pages": "resident_1g_bytes",
    "perforated pages": "perforated_bytes",
    "segment": "segment_bytes",
}
#: Page faults, by keys of ``kernel``.
FAULTS = {
    "zeroed 4 KB page": ("faults_anonymous_4k",),
    "zeroed 2 MB page": ("faults_anonymous_2m",),
    "zero page": ("faults_zero_page",),
    "file": ("faults_file",),
    "copy on write": ("faults_copy_on_write",),
    "segment": ("faults_segment",),
    "other": ("faults_spurious", "faults_host"),
}
#: Pages that moved or went, by keys of ``frames``.
MOVED = {
    "compacted, program waits": ("frames_compacted_direct",),
    "compacted in the background": ("frames_compacted_background",),
    "region resized": ("frames_moved_by_resizes",),
    "pinned elsewhere, evacuated": ("frames_evacuated", "pin_migrations"),
    "reclaimed": ("frames_reclaimed_direct", "frames_reclaimed_background"),
}
assert {key for keys in MOVED.values() for key in keys} >= set(MOVES)
#: Block sizes, by key of ``contiguity_*``.
BLOCKS = {"2 MB": "blocks_2m", "4 MB": "blocks_4m", "32 MB": "blocks_32m", "1 GB": "blocks_1g"}
#: Levels that serve walks, by key of ``cache.walks``.
LEVELS = {"first-level cache": "l1", "second level": "l2", "last level": "llc", "memory": "memory"}


def _summed(table: Mapping[str, Any], groups: Mapping[str, tuple[str, ...]]) -> dict[str, float]:
    # Reports of earlier versions lack some.
    return {name: sum(table.get(key, 0) for key in keys) for name, keys in groups.items()}


def cycles(run: Run) -> dict[str, float]:
    """Return busy cycles of all cores by part; empty without times."""
    time = run.values["time"]
    if time is None:
        return {}
    parts = _summed(time["breakdown"], CYCLES)
    overhead = run.summary["translation_overhead"]
    if overhead is not None:
        # Walks overlap with waits for memory, which the breakdown counts as that.
        waits = parts["memory"] + parts["translation"]
        parts["translation"] = min(round(overhead * sum(parts.values())), waits)
        parts["memory"] = waits - parts["translation"]
    return parts


def costs(run: Run) -> list[str]:
    """Say which shares of a run's cycles translation and the kernel cost, as far as measured."""
    shares = {"translation overhead": "translation_overhead", "kernel cycles": "kernel_share"}
    halves = run.intervals
    return [
        f"{percent(run.summary[key], halves.get(key))} {name}"
        for name, key in shares.items()
        if run.summary[key] is not None
    ]


def per_thousand(run: Run, events: float) -> float:
    """Return events per thousand instructions."""
    return 1000 * events / max(int(run.summary["instructions"]), 1)


def tlb_misses(run: Run) -> dict[str, float]:
    """Return misses per thousand instructions, by TLB."""
    keys = {
        "first-level data TLB": "l1d_tlb_mpki",
        "first-level instruction TLB": "l1i_tlb_mpki",
        "second-level TLB (page walks)": "l2_tlb_mpki",
    }
    return {name: float(run.summary[key]) for name, key in keys.items()}


def walk_references(run: Run) -> dict[str, float]:
    """Return page-table entries that walks read per thousand instructions, by where they lay."""
    caches = run.values["cache"]
    if caches is None:
        return {}
    return {name: per_thousand(run, caches["walks"][key]) for name, key in LEVELS.items()}


def mapped(run: Run) -> dict[str, float]:
    """Return the program's memory at its largest in MiB, by kind of mapping."""
    memory = run.values["memory"]
    return {name: memory[key] / MEBIBYTE for name, key in MAPPINGS.items()}


def faults(run: Run) -> dict[str, float]:
    """Return page faults, by what they did."""
    return _summed(run.values["kernel"], FAULTS)


def moved(run: Run) -> dict[str, float]:
    """Return 4 KB pages that the kernel moved or reclaimed, and those that moved in use."""
    migration = run.values["migration"]
    return {
        **_summed(run.values["frames"], MOVED),
        "moved in use": migration["completed"] if migration else 0,
    }


def contiguity(run: Run, when: str, size: str) -> dict[str, float]:
    """Return shares of memory (percent) by what its blocks of a size are.

    Parameters
    ----------
    run
        The run.
    when
        ``"before"`` or ``"after"``.
    size
        A name of :data:`BLOCKS`.
    """
    blocks = run.values[f"contiguity_{when}"][BLOCKS[size]]
    total = max(blocks["total"], 1)
    # The limits of compaction: a block can be freed only where nothing unmovable lies, and only as
    # many as there are free frames for.
    freeable = max(blocks["potential"] - blocks["free"], 0)
    rest = max(total - blocks["free"] - freeable - blocks["unmovable"], 0)
    parts = {
        "free": blocks["free"],
        "could be freed by compaction": freeable,
        "in use, movable": rest,
        "polluted": blocks["unmovable"],
    }
    return {name: 100 * part / total for name, part in parts.items()}
