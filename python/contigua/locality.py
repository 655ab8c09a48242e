"""Locality of a program's data: which page sizes its mappings want, and for TLBs of which size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contigua.sizes import size_text

#: Sizes of pages in which distances are counted: name in files and bytes.
PAGES: Mapping[str, int] = {"4k": 4 << 10, "64k": 64 << 10, "2m": 2 << 20}
#: Names of them as people write them.
NAMES: Mapping[str, str] = {"4k": "4 KB", "64k": "64 KB", "2m": "2 MB"}
#: A larger page size is wanted where it saves more misses than this share of all data accesses.
LEAST = 0.001
#: Mappings with a smaller share of the accesses are left out of tables.
SHOWN = 0.0005


@dataclass(frozen=True)
class Reuse:
    """Data accesses by the distance to the last access to their page, for one size of page.

    The distance is the number of other pages that were accessed in between. A fully associative
    TLB that replaces the least recently used entry holds the pages of distances below its number
    of entries.

    Attributes
    ----------
    entries
        Numbers of entries that divide distances into groups.
    distances
        Accesses of each group: of distances below the first number, from there below the second,
        ..., and beyond the last.
    first
        Accesses to pages that were not accessed before.
    pages
        Pages that were accessed.
    """

    entries: tuple[int, ...]
    distances: tuple[int, ...]
    first: int
    pages: int

    @property
    def accesses(self) -> int:
        """All accesses."""
        return sum(self.distances) + self.first

    def misses(self, entries: int) -> int:
        """Return the accesses that miss a TLB of so many entries.

        Where these are not among :attr:`entries`, the next smaller number that is.

        Raises
        ------
        ValueError
            When there is less than one entry.

        Examples
        --------
        >>> reuse = Reuse(entries=(1, 2, 4), distances=(90, 5, 3, 1), first=1, pages=9)
        >>> reuse.misses(2), reuse.misses(3), reuse.misses(4)
        (5, 5, 2)
        """
        if entries < self.entries[0]:
            raise ValueError(f"{entries} entries: give at least {self.entries[0]}")
        held = sum(1 for mark in self.entries if mark <= entries)
        return sum(self.distances[held:]) + self.first

    def __add__(self, other: Reuse) -> Reuse:
        """Return the accesses of both."""
        return Reuse(
            self.entries,
            tuple(one + more for one, more in zip(self.distances, other.distances, strict=True)),
            self.first + other.first,
            self.pages + other.pages,
        )


@dataclass(frozen=True)
class Locality:
    """Locality of some memory.

    Attributes
    ----------
    reuse
        Reuse of its pages, by their size: ``"4k"``, ``"64k"``, ``"2m"``.
    """

    reuse: Mapping[str, Reuse]

    @property
    def accesses(self) -> int:
        """Data accesses."""
        return self.reuse["4k"].accesses

    @property
    def touched(self) -> int:
        """Bytes of the pages of 4 KB that were accessed."""
        return self.reuse["4k"].pages * PAGES["4k"]

    def density(self, size: str) -> float:
        """Return the share of larger pages, of those accessed at all, that was accessed."""
        pages = self.reuse[size].pages
        return self.touched / (pages * PAGES[size]) if pages else 0.0

    def wanted(self, entries: int, accesses: int) -> str:
        """Return the smallest size of page for which larger ones save too little.

        Parameters
        ----------
        entries
            Entries of the TLB.
        accesses
            All data accesses of the program: what saves at most :data:`LEAST` of them is too
            little.
        """
        misses = {size: self.reuse[size].misses(entries) for size in PAGES}
        best = min(misses.values())
        return next(size for size, count in misses.items() if count - best <= LEAST * accesses)

    def __add__(self, other: Locality) -> Locality:
        """Return the locality of both."""
        return Locality({size: self.reuse[size] + other.reuse[size] for size in PAGES})


def localities(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Locality]:
    """Read the locality of each mapping from a profile's file.

    Parameters
    ----------
    values
        The file's content.
    names
        Names of its mappings. Those of one name are added up.
    """
    found: dict[str, Locality] = {}
    of = values.get("locality") or {"entries": [], "mappings": []}
    entries = tuple(of["entries"])
    for row in of["mappings"]:
        own = Locality(
            {
                size: Reuse(
                    entries,
                    tuple(row[size]["distances"]),
                    row[size]["first"],
                    row[size]["pages"],
                )
                for size in PAGES
            }
        )
        name = names[row["mapping"]]
        found[name] = found[name] + own if name in found else own
    return dict(sorted(found.items(), key=lambda item: -item[1].accesses))


def locality_rows(
    found: Mapping[str, Locality], entries: int, top: int
) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows of a table: the mappings that miss most with pages of 4 KB.

    Parameters
    ----------
    found
        Localities of mappings by their names.
    entries
        Entries of a fully associative TLB, whose misses are shares of all data accesses.
    top
        Rows at most.
    """
    heads = ["memory", "accesses", "touched", "of its 64 KB pages", "of its 2 MB pages"]
    heads += [f"misses, {NAMES[size]}" for size in PAGES] + ["wants"]
    accesses = max(sum(one.accesses for one in found.values()), 1)
    rows: list[list[str]] = []
    for name, one in sorted(found.items(), key=lambda item: -item[1].reuse["4k"].misses(entries)):
        if len(rows) < top and one.accesses >= SHOWN * accesses:
            rows.append(
                [
                    name,
                    f"{100 * one.accesses / accesses:.1f} %",
                    size_text(one.touched),
                    *(f"{100 * one.density(size):.0f} %" for size in ("64k", "2m")),
                    *(
                        f"{100 * one.reuse[size].misses(entries) / accesses:.3f} %"
                        for size in PAGES
                    ),
                    NAMES[one.wanted(entries, accesses)],
                ]
            )
    return heads, rows
