"""Causes of differences between designs, in words, as the counters show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from contigua.reporting.cases import Run
from contigua.reporting.words import count, names
from contigua.reports import seconds
from contigua.sizes import duration
from contigua.table import SPLITS

#: Causes of a difference: in words, and how often each happened.
CAUSES: tuple[tuple[str, Callable[[Mapping[str, Any]], int]], ...] = (
    ("{} direct compaction{s}", lambda values: int(values["frames"]["direct_compactions"])),
    ("{} of the program's pages were moved", lambda values: _moved(values)),
    (
        "{} L2 TLB misses read which sub-pages of a perforated page are holes",
        lambda values: int(values["translation_scheme"].get("bitmap_fills", 0)),
    ),
    (
        "{} walked again for a 4 KB page in a hole",
        lambda values: int(values["translation_scheme"].get("hole_walks", 0)),
    ),
)
#: Bytes of a page that is moved.
PAGE = 4096
#: Pages that are moved are told if they are so many of a thousand that the program has.
LEAST_MOVED = 1
#: A stall is told if it is so many times as long as the other run's longest.
LONGER = 2


def causes(run: Run, base: Run) -> list[str]:
    """Say what a run's counters have more of than those of another run."""
    said = _failed(run, base)
    for text, counted in CAUSES:
        own, before = (counted(one.values) for one in (run, base))
        if own > before:
            said.append(text.format(count(own), s="" if own == 1 else "s"))
    return [*said, *_splits(run, base), *_stalls(run, base)]


def _moved(values: Mapping[str, Any]) -> int:
    """Return the program's pages that were moved; 0 where these are too few to matter."""
    moved = int(values["kernel"]["pages_moved"])
    resident = sum(values["memory"][f"resident_{size}_bytes"] for size in ("4k", "2m", "1g"))
    return moved if 1000 * moved * PAGE >= LEAST_MOVED * resident else 0


def _failed(run: Run, base: Run) -> list[str]:
    """Say how many huge-page faults found no block, and how long compaction had to make some."""
    own, before = (int(one.values["kernel"]["huge_page_fallbacks"]) for one in (run, base))
    if own <= before:
        return []
    ran = int(run.summary["background_compactions"])
    number = (
        f"{count(ran)} background compaction{'' if ran == 1 else 's'}"
        if ran
        else ("no background compaction")
    )
    time = run.summary["seconds"]
    within = f" within {duration(time)}" if time else ""
    return [f"{count(own)} huge-page faults found no free 2 MB block, with {number}{within}"]


def _splits(run: Run, base: Run) -> list[str]:
    """Say how many huge pages were split, and by what."""
    own, before = (int(one.values["kernel"]["huge_page_splits"]) for one in (run, base))
    if own <= before:
        return []
    text = f"{count(own)} huge pages were split"
    by = {cause: int(run.values["kernel"].get(key, 0)) for cause, key in SPLITS.items()}
    told = [f"{count(number)} by {cause}" for cause, number in by.items() if number]
    return [f"{text} ({names(told)})" if told else text]


def _stalls(run: Run, base: Run) -> list[str]:
    """Say for how long one access waited for a kernel that took more cycles, if much longer."""
    if _kernel(run) <= _kernel(base):
        return []
    found = [one.values["kernel"].get("longest_stall_cycles", 0) for one in (run, base)]
    if found[0] <= LONGER * found[1]:
        return []
    longest, before = (
        duration(seconds(one.values, cycles))
        for one, cycles in zip((run, base), found, strict=True)
    )
    return [f"one access waited {longest} for the kernel, the longest under {base.design} {before}"]


def _kernel(run: Run) -> float:
    """Return a run's cycles of the kernel; 0 without times."""
    time = run.values["time"]
    return float(time["breakdown"]["kernel"]) if time else 0.0
