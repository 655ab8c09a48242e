"""Requests that a real kernel's page allocator got, given to the simulated placements.

A record (``vm-tests/contigua_vm/requests.py`` makes one) has every block that a kernel handed out
and got back, and looks at memory on the way. :func:`replay` gives the same requests to a design's
placement, and :class:`Distance` says how far apart both have come at a look.

**Measure.** Orders are numbers, so two free lists are compared by the earth mover's distance
(first Wasserstein distance) between how free pages are shared out among orders 0 to 10: the mean
number of orders by which a free page's block is too large or too small. A measure that compares
order by order would call a block of order 9 in place of one of order 10 as wrong as one of order 0.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contigua import _engine
from contigua.errors import ContiguaError
from contigua.extras import needs
from contigua.presets import designs
from contigua.reading import ReadError, open_file

with needs("reports"):
    import numpy as np
    import numpy.typing as npt

#: Migrate types that have free lists, in the order of their numbers.
TYPES = ("unmovable", "movable", "reclaimable", "high-atomic")
#: Sizes of blocks that are looked at, and what their counts are called.
SIZES = {"2 MB": "blocks_2m", "4 MB": "blocks_4m", "32 MB": "blocks_32m", "1 GB": "blocks_1g"}
#: Bytes of a record, unpacked, at most.
LONGEST = 1 << 30


class RecordError(ContiguaError):
    """A record of requests that cannot be read."""


@dataclass(frozen=True)
class State:
    """Memory at a look, the kernel's or the simulation's.

    Attributes
    ----------
    pages
        Free pages on lists, by type (:data:`TYPES`) and order.
    per_cpu
        Free pages on processors' lists.
    pageblocks
        Pageblocks by type.
    polluted
        Share of blocks with an unmovable page, by size (:data:`SIZES`); none where there is no
        block of that size.
    unmovable
        Unmovable pages of each pageblock.
    """

    pages: npt.NDArray[np.int64]
    per_cpu: int
    pageblocks: tuple[int, ...]
    polluted: dict[str, float]
    unmovable: npt.NDArray[np.int64]

    @classmethod
    def of(cls, state: dict[str, Any]) -> State:
        """Make one of what the engine says."""
        blocks = {size: state["contiguity"][key] for size, key in SIZES.items()}
        return cls(
            pages=np.array(state["free"]) << np.arange(len(state["free"][0])),
            per_cpu=state["per_cpu"],
            pageblocks=tuple(state["pageblocks"]),
            polluted={
                size: counts["unmovable"] / counts["total"]
                for size, counts in blocks.items()
                if counts["total"]
            },
            unmovable=np.array(state["unmovable"]),
        )


@dataclass(frozen=True)
class Distance:
    """Distance between kernel and simulation at a look.

    Attributes
    ----------
    orders
        Earth mover's distance between how free pages are shared out among orders, of all types.
    by_type
        The same of each type (:data:`TYPES`); none where one of the two has no such page.
    types
        Share of free pages that are on another type's lists (total variation).
    pageblocks
        Share of pageblocks that are of another type (the same).
    polluted
        Percentage points that the simulation's share of polluted blocks is above the kernel's.
    unmovable
        Earth mover's distance between how many unmovable pages pageblocks have, in pages.
    """

    orders: float
    by_type: dict[str, float]
    types: float
    pageblocks: float
    polluted: dict[str, float]
    unmovable: float


@dataclass(frozen=True)
class Look:
    """Kernel and simulation at one time.

    Attributes
    ----------
    name
        What the recorder called it.
    seconds
        The guest's clock.
    kernel, simulated
        Memory.
    totals
        What happened so far: ``requests``, ``frees``, ``fallbacks`` and the like.
    unseen, ghosts
        Pages of which the record knows less than the kernel: in use although nothing had handed
        them out, and free although nothing had given them back.
    """

    name: str
    seconds: float
    kernel: State
    simulated: State
    totals: dict[str, int]
    unseen: int
    ghosts: int

    def distance(self) -> Distance:
        """Compare both."""
        ours, theirs = self.simulated, self.kernel
        each = zip(TYPES, ours.pages, theirs.pages, strict=True)
        return Distance(
            orders=shift(ours.pages.sum(axis=0), theirs.pages.sum(axis=0)),
            by_type={name: shift(a, b) for name, a, b in each if a.any() and b.any()},
            types=variation(ours.pages.sum(axis=1), theirs.pages.sum(axis=1)),
            pageblocks=variation(ours.pageblocks, theirs.pageblocks),
            polluted={
                size: 100 * (ours.polluted[size] - theirs.polluted[size])
                for size in theirs.polluted
                if size in ours.polluted
            },
            unmovable=float(np.abs(np.sort(ours.unmovable) - np.sort(theirs.unmovable)).mean()),
        )


@dataclass(frozen=True)
class Replayed:
    """A record, replayed.

    Attributes
    ----------
    placement
        The policy that placed the simulated memory.
    zone
        The kernel's zone.
    managed
        Its pages.
    looks
        All of them; at the first one, memory begins.
    """

    placement: str
    zone: str
    managed: int
    looks: tuple[Look, ...]


def shift(ours: npt.ArrayLike, theirs: npt.ArrayLike) -> float:
    """Return the earth mover's distance between two distributions over consecutive numbers.

    Without any weight on one side there is none to move; that counts as 0 if the other has none
    either, and as the longest way else.
    """
    first, second = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    if not first.sum() or not second.sum():
        return 0.0 if first.sum() == second.sum() else float(len(first) - 1)
    return float(np.abs(np.cumsum(first / first.sum() - second / second.sum())).sum())


def variation(ours: npt.ArrayLike, theirs: npt.ArrayLike) -> float:
    """Return the total variation between two distributions over names, 0 to 1."""
    first, second = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    if not first.sum() or not second.sum():
        return 0.0 if first.sum() == second.sum() else 1.0
    return float(np.abs(first / first.sum() - second / second.sum()).sum() / 2)


def replay(record: Path, design: str = "linux-4k") -> Replayed:
    """Give a record's requests to a design's placement.

    Parameters
    ----------
    record
        An xz file.
    design
        A design's name; of it, placement and memory management count.

    Raises
    ------
    RecordError
        When the file cannot be read.
    EngineError
        When it is no record, or the policy cannot have this memory.
    """
    try:
        with open_file(Path(record)) as packed, lzma.open(packed) as file:
            content = file.read(LONGEST + 1)
    except ReadError as error:
        raise RecordError(str(error)) from error
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise RecordError(f"{record}: {error}") from error
    if len(content) > LONGEST:
        raise RecordError(f"{record}: a record has at most {LONGEST} bytes")
    text = designs.get(design).text
    replayed = json.loads(_engine.replay_requests(content, text, design))
    return Replayed(
        placement=replayed["placement"],
        zone=replayed["zone"],
        managed=replayed["managed"],
        looks=tuple(_look(mark) for mark in replayed["marks"]),
    )


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return sum(values) / len(values)


def _look(mark: dict[str, Any]) -> Look:
    return Look(
        name=mark["name"],
        seconds=mark["milliseconds"] / 1000,
        kernel=State.of(mark["kernel"]),
        simulated=State.of(mark["simulated"]),
        totals=mark["totals"],
        unseen=mark["unseen"],
        ghosts=mark["ghosts"],
    )
