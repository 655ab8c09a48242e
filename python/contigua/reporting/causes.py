"""Causes of differences between designs, in words, as the counters show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from contigua.reporting.cases import Run
from contigua.reporting.words import count

#: Causes of a difference: in words, and how often each happened.
CAUSES: tuple[tuple[str, Callable[[Mapping[str, Any]], int]], ...] = (
    (
        "{} huge-page faults found no free 2 MB block",
        lambda values: int(values["kernel"]["huge_page_fallbacks"]),
    ),
    ("{} direct compactions", lambda values: int(values["frames"]["direct_compactions"])),
    (
        "{} of the program's pages were moved",
        lambda values: int(values["kernel"]["pages_moved"]),
    ),
    (
        "{} L2 TLB misses read which sub-pages of a perforated page are holes",
        lambda values: int(values["translation_scheme"].get("bitmap_fills", 0)),
    ),
    (
        "{} walked again for a 4 KB page in a hole",
        lambda values: int(values["translation_scheme"].get("hole_walks", 0)),
    ),
    ("{} huge pages were split", lambda values: int(values["kernel"]["huge_page_splits"])),
)


def causes(run: Run, base: Run) -> list[str]:
    """Say what a run's counters have more of than those of another run."""
    said = []
    for text, counted in CAUSES:
        own, before = (counted(one.values) for one in (run, base))
        if own > before:
            said.append(text.format(count(own)))
    return said
