"""Colors of pictures and pages, light and dark, and what each stands for.

Hues are those of Okabe and Ito, which people with any common color blindness tell apart; what
belongs together has shades of one hue. A name has the same color in every plot and picture
(:data:`MEANINGS`), and a design the same color and hatch (:func:`design_looks`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#F0E442"
ORANGE, VERMILION, PURPLE = "#E69F00", "#D55E00", "#CC79A7"


@dataclass(frozen=True)
class Theme:
    """Colors of paper and ink, and of lines in their order.

    Pictures for a narrow screen have their charts below each other.
    """

    ink: str
    paper: str
    grid: str
    free: str
    reserved: str
    lines: tuple[str, ...]
    narrow: bool = False

    def columns(self, wanted: int) -> int:
        """Return how many charts stand beside each other."""
        return 1 if self.narrow else wanted

    def width(self, wanted: int) -> int:
        """Return the width of a picture of one chart, in pixels."""
        return min(wanted, NARROW) if self.narrow else wanted


#: Width of a picture of one chart that a screen of 360 pixels shows whole and readable.
NARROW = 520

LIGHT = Theme(
    ink="#1b1b1b",
    paper="#ffffff",
    grid="#d8d8d8",
    free="#ececec",
    reserved="#4d4d4d",
    lines=(BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY),
)
DARK = Theme(
    ink="#e8e8e8",
    paper="#16181c",
    grid="#3a3d44",
    free="#2e3138",
    reserved="#a6a6a6",
    lines=(SKY, ORANGE, GREEN, VERMILION, PURPLE, YELLOW),
)

#: A picture that can be drawn in any theme; the result is a PNG file's contents.
Picture = Callable[[Theme], bytes]


class Meaning(NamedTuple):
    """A color, light and dark, what it stands for, and the names that have it."""

    light: str
    dark: str
    what: str
    names: tuple[str, ...] = ()


#: Colors by name: what plots and pictures show, but for the classes of single frames and designs.
MEANINGS = {
    "ink": Meaning(LIGHT.ink, DARK.ink, "text"),
    "paper": Meaning(LIGHT.paper, DARK.paper, "the page"),
    "line": Meaning(LIGHT.grid, DARK.grid, "grids and free memory", ("free",)),
    "soft": Meaning("#5c5c5c", "#a6a6a6", "titles of axes"),
    "neutral": Meaning(
        "#969ca6",
        "#6b717c",
        "what a run has anyway: base cycles, 4 KB pages, first-level caches",
        ("base", "4 KB pages", "zeroed 4 KB page", "first-level cache"),
    ),
    "sky": Meaning(
        SKY,
        SKY,
        "data: in memory, in files, in frames that can move",
        ("memory", "file", "reclaimed", "in use, movable", "movable"),
    ),
    "sky-mid": Meaning("#94cff1", "#35789c", "the last-level cache", ("last level",)),
    "sky-pale": Meaning("#cfe9f9", "#22495f", "the second-level cache", ("second level",)),
    "blue": Meaning(BLUE, "#4c9fd6", "2 MB", ("2 MB pages", "zeroed 2 MB page", "2 MB")),
    "blue-holes": Meaning("#7fb8d8", "#2b5f86", "2 MB with holes", ("perforated pages",)),
    "blue-4m": Meaning("#00588a", "#7bbbe4", "4 MB", ("4 MB",)),
    "blue-32m": Meaning("#003f63", "#a9d4f2", "32 MB", ("32 MB",)),
    "blue-1g": Meaning("#00263b", "#d7ecfb", "1 GB", ("1 GB pages", "1 GB")),
    "green": Meaning(
        GREEN,
        "#1fb98a",
        "contiguity that is available, or was made without a wait",
        ("could be freed by compaction", "segment", "moved in use"),
    ),
    "green-pale": Meaning("#8fd3bf", "#0d6b51", "resized regions", ("region resized",)),
    "orange": Meaning(
        ORANGE,
        ORANGE,
        "the kernel: its work, and blocks that it shares",
        ("kernel", "copy on write", "compacted, program waits", "mixed"),
    ),
    "orange-pale": Meaning(
        "#f5d492", "#7a5500", "the kernel in the background", ("compacted in the background",)
    ),
    "red": Meaning(
        VERMILION,
        "#ee7733",
        "memory that cannot move",
        ("polluted", "unmovable", "share of unmovable memory"),
    ),
    "purple": Meaning(
        PURPLE, PURPLE, "translation: page walks", ("translation", "second-level TLB (page walks)")
    ),
    "purple-mid": Meaning(
        "#dda6c4", "#99577b", "the first-level data TLB", ("first-level data TLB",)
    ),
    "purple-pale": Meaning(
        "#eed3e2", "#66394f", "the first-level instruction TLB", ("first-level instruction TLB",)
    ),
    "yellow": Meaning("#cdbf1b", YELLOW, "what is rare", ("other", "pinned elsewhere, evacuated")),
}
#: For each name its color's.
NAMED = {name: key for key, meaning in MEANINGS.items() for name in meaning.names}


def color_of(name: str, *, dark: bool = False) -> str:
    """Return the color of a part, a size or a class of memory, as ``#rrggbb``.

    Examples
    --------
    >>> color_of("2 MB pages") == color_of("2 MB") == BLUE
    True
    """
    meaning = MEANINGS[NAMED[name]]
    return meaning.dark if dark else meaning.light


#: Designs in the order of their colors and hatches.
DESIGNS = (
    *("linux-4k", "linux-thp", "contiguitas-thp", "illuminator-thp", "perforated"),
    *("direct-segment", "hugetlb-2m", "hugetlb-1g", "contiguitas-hw", "contiguitas-1g"),
    *("linux-thp-madvise", "linux-fleet", "contiguitas-rfc-thp", "perforated-lazy", "gtsm"),
    *("range-tlb", "colt", "arm-contiguous", "amd-coalescing", "perfect-4k", "perfect-thp"),
    *("nested-4k", "nested-thp", "nested-perforated", "nested-direct-segment", "nested-gtsm"),
    *("nested-guest-segment", "nested-host-segment"),
    *("software-migration", "lazy-migration", "llc-migration"),
)
#: Colors of a theme's lines, and hatches or styles of lines.
COLORS = len(LIGHT.lines)
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "+++")


class Looks(NamedTuple):
    """Style of a series: its place among a theme's lines, and its pattern's."""

    color: int
    pattern: int


def _looks(number: int) -> Looks:
    rounds, color = divmod(number, COLORS)
    return Looks(color, (number + rounds) % len(HATCHES))


def design_looks(names: Iterable[str]) -> dict[str, Looks]:
    """Return the looks of designs: the same ones whatever stands beside them.

    A user's own design has looks by its name; where another design of the picture has them already,
    it gets the next ones that are free. Beyond 36 designs, looks repeat.

    Examples
    --------
    >>> design_looks(["linux-thp"])["linux-thp"] == design_looks(["colt", "linux-thp"])["linux-thp"]
    True
    """
    all_of_them = COLORS * len(HATCHES)
    asked = list(dict.fromkeys(names))
    numbers = {name: DESIGNS.index(name) for name in asked if name in DESIGNS}
    for name in asked:
        if name not in numbers:
            first = zlib.crc32(name.encode())
            places = [(first + step) % all_of_them for step in range(all_of_them)]
            taken = set(numbers.values())
            numbers[name] = next((at for at in places if at not in taken), places[0])
    return {name: _looks(numbers[name]) for name in asked}


def series(labels: Sequence[str], theme: Theme) -> list[tuple[str, int]]:
    """Return the color and the number of the pattern of each series of a picture.

    Designs and names of :data:`NAMED` have their own; others get the theme's in their order.
    """
    if any(label in DESIGNS for label in labels):
        return [(theme.lines[look.color], look.pattern) for look in design_looks(labels).values()]
    dark = theme is DARK
    return [
        (color_of(label, dark=dark) if label in NAMED else theme.lines[at % COLORS], at)
        for at, label in enumerate(labels)
    ]
