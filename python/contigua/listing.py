"""Source and assembly of the functions that cost most, each line with its instructions."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path

from contigua import _engine
from contigua.attribution import METRICS, Attribution, Frame
from contigua.errors import ContiguaError
from contigua.reading import read_text

#: Names of a function.
NAMES = ("function", "library")
#: Functions that are listed for each metric, the most expensive ones.
LISTED = 8
#: Lines and instructions before and after each that costs something.
LINES, INSTRUCTIONS = 4, 6
#: Bytes of a source file that is shown.
MOST_SOURCE = 4 << 20


@dataclass(frozen=True)
class Line:
    """A line of source, or an instruction.

    Attributes
    ----------
    place
        The number of the line, or the address of the instruction in its file.
    text
        What it says; ``None`` where the source is not here.
    frames
        Instructions of profiles that belong to it.
    """

    place: int
    text: str | None
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Listing:
    """A function near its instructions that cost something; runs of lines are without gaps.

    Attributes
    ----------
    function, library
        Its names.
    source
        Lines by source file, with functions that were inlined; empty without debug information.
    assembly
        Instructions; empty where its code cannot be read, or has no symbol.
    """

    function: str
    library: str
    source: Mapping[str, list[list[Line]]]
    assembly: list[list[Line]]


def listings(profiles: Sequence[Attribution]) -> list[Listing]:
    """List the functions that cost most by any metric in any of the profiles."""
    chosen: dict[tuple[str, str], None] = {}
    for profile in profiles:
        sums = [(function, library, costs) for (function, library), costs in profile.by(*NAMES)]
        for metric in METRICS:
            costly = nlargest(LISTED, ((getattr(one[2], metric), *one[:2]) for one in sums))
            chosen |= {(function, library): None for cost, function, library in costly if cost}
    places: dict[tuple[str, str], dict[Frame, tuple[str, int] | None]] = defaultdict(dict)
    for profile in profiles:
        paid = {row.at for row in profile.rows()}
        for frame, place in zip(profile.frames, profile.places, strict=True):
            if frame in paid:
                places[frame.function, frame.library][frame] = place
    assembly = _assembly(place for key in chosen for place in places[key].values())
    found = [Listing(*key, _source(places[key]), assembly(places[key])) for key in chosen]
    return [one for one in found if one.source or one.assembly]


def _source(places: Iterable[Frame]) -> dict[str, list[list[Line]]]:
    by_file: dict[str, dict[int, list[Frame]]] = defaultdict(lambda: defaultdict(list))
    for frame in places:
        file, _, number = frame.line.rpartition(":")
        if number.isdigit():
            by_file[file][int(number)].append(frame)
    found = {}
    for file, numbers in by_file.items():
        try:
            texts = read_text(Path(file), MOST_SOURCE).splitlines()
        except ContiguaError:
            texts = []
        shown = set(numbers)
        if texts:
            near = range(-LINES, LINES + 1)
            shown |= {number + step for number in numbers for step in near}
            shown &= set(range(1, len(texts) + 1))
        lines = [
            Line(number, texts[number - 1] if texts else None, tuple(numbers.get(number, ())))
            for number in sorted(shown)
        ]
        found[file] = _runs(lines)
    return found


def _runs(lines: Iterable[Line]) -> list[list[Line]]:
    runs: list[list[Line]] = []
    for line in lines:
        if runs and runs[-1][-1].place + 1 == line.place:
            runs[-1].append(line)
        else:
            runs.append([line])
    return runs


def _assembly(
    wanted: Iterable[tuple[str, int] | None],
) -> Callable[[Mapping[Frame, tuple[str, int] | None]], list[list[Line]]]:
    """Return a function that lists instructions; each file is read once."""
    offsets: dict[str, list[int]] = defaultdict(list)
    for place in wanted:
        if place is not None:
            offsets[place[0]].append(place[1])
    listed: dict[str, list[tuple[int, list[list[tuple[int, int, str]]]]]] = {}
    for file, of_file in offsets.items():
        try:
            listed[file] = sorted(_engine.disassemble(file, of_file, INSTRUCTIONS))
        except _engine.EngineError:
            # Deleted meanwhile, or no ELF file.
            listed[file] = []

    def of(places: Mapping[Frame, tuple[str, int] | None]) -> list[list[Line]]:
        frames: dict[tuple[str, int], list[Frame]] = defaultdict(list)
        parts: dict[tuple[str, int], list[list[tuple[int, int, str]]]] = {}
        for frame, place in places.items():
            if place is None:
                continue
            file, offset = place
            frames[place].append(frame)
            index = bisect_right(listed[file], offset, key=lambda one: one[0]) - 1
            if index >= 0:
                start, runs = listed[file][index]
                parts[file, start] = runs
        return [
            [
                Line(address, text, tuple(frames.get((file, offset), ())))
                for offset, address, text in run
            ]
            for (file, _), runs in sorted(parts.items())
            for run in runs
        ]

    return of
