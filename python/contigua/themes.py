"""Colors of pictures and pages, light and dark.

They are those of Okabe and Ito, which people with any common color blindness tell apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#F0E442"
ORANGE, VERMILION, PURPLE = "#E69F00", "#D55E00", "#CC79A7"


@dataclass(frozen=True)
class Theme:
    """Colors of paper and ink, and of lines in their order."""

    ink: str
    paper: str
    grid: str
    free: str
    reserved: str
    lines: tuple[str, ...]


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
