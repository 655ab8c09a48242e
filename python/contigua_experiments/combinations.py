"""Designs that nobody wrote down: every placement with every page policy and translation scheme.

A part of a design is a table of its TOML file, so a combination is the text of its tables put
together. What makes no sense is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from contigua.errors import ContiguaError
from contigua.files import write_whole
from contigua.presets import designs

#: Placements of memory.
#: ``contiguitas-hw`` also has the hardware that moves pages in use.
PLACEMENTS = {
    "linux": "",
    "illuminator": "[placement.illuminator]\n",
    "defrag-mode": "[placement.defrag-mode]\n",
    "zone-movable": "[placement.zone-movable]\n",
    "superpageblocks": "[placement.superpageblocks]\n",
    "contiguitas": "[placement.contiguitas]\n",
    "contiguitas-hw": "[placement.contiguitas]\n\n[migration.llc]\n",
}
#: Page policies: transparent huge pages by their setting, pages set aside at boot by their size.
PAGES = {"4k": "never", "thp": "always", "madvise": "madvise", "2m": "2m", "1g": "1g"}
#: Translation schemes, by the name of their table.
SCHEMES = {
    "radix": "",
    "perforated": "perforated",
    "perforated-lazy": "perforated",
    "direct-segment": "direct-segment",
    "gtsm": "gtsm",
    "colt": "colt",
    "amd-coalescing": "amd-coalescing",
    "arm-contiguous": "arm-contiguous",
    "range": "range",
}
#: On the machine itself, or in a virtual machine whose host maps memory in the same way.
ENVIRONMENTS = ("native", "virtual")


class CombinationError(ContiguaError):
    """A combination that is named wrongly."""


class Combination(NamedTuple):
    """A choice from each axis."""

    placement: str
    pages: str
    scheme: str
    environment: str = "native"

    @staticmethod
    def read(text: str) -> Combination:
        """Read ``PLACEMENT PAGES SCHEME [ENVIRONMENT]``.

        Raises
        ------
        CombinationError
            When a word is not on its axis.
        """
        words = text.split()
        if not 3 <= len(words) <= 4:
            raise CombinationError(f"{text!r} is not PLACEMENT PAGES SCHEME [ENVIRONMENT]")
        one = Combination(*words)
        for word, axis in zip(one, AXES, strict=True):
            if word not in axis:
                raise CombinationError(f"{text!r}: {word!r} is none of {', '.join(axis)}")
        return one

    @property
    def name(self) -> str:
        """Return its name in tables and files."""
        return ".".join(self)

    @property
    def baseline(self) -> Combination:
        """Linux with 4 KB pages and conventional hardware, in the same environment."""
        return Combination("linux", "4k", "radix", self.environment)

    def impossible(self) -> str | None:
        """Say why the combination makes no sense, if it does not."""
        reserved = self.pages in ("2m", "1g")
        if self.scheme == "radix":
            return None
        if self.scheme == "direct-segment":
            return None if self.pages == "4k" else "what no segment maps has 4 KB pages"
        if reserved:
            return "pages that are set aside at boot have no holes, and nothing to coalesce"
        if self.pages == "4k" and self.scheme.startswith(("perforated", "gtsm")):
            return "without 2 MB pages there is nothing to have holes"
        if self.environment == "virtual" and self.scheme in ("arm-contiguous", "range"):
            return "the engine forms no such groups of a guest's pages, whose frames are a host's"
        return None

    def text(self) -> str:
        """Return the design as TOML."""
        told = f"{self.placement}, {self.pages}, {self.scheme}, {self.environment}"
        tables = [f'description = "Combination: {told}"', self._translation("translation")]
        tables.append(PLACEMENTS[self.placement].strip())
        if self.environment == "virtual":
            tables.append(self._translation("host.translation"))
            if self.placement != "linux":
                name = self.placement.removesuffix("-hw")
                tables.append(f"[host.placement.{name}]")
        return "\n\n".join(table for table in tables if table) + "\n"

    def _translation(self, table: str) -> str:
        value = PAGES[self.pages]
        if self.scheme == "radix":
            if self.pages in ("2m", "1g"):
                return f'[{table}.hugetlb]\npage = "{value}"'
            if self.pages == "4k":
                return f"[{table}.base]"
            return f'[{table}.thp]\nenabled = "{value}"'
        text = f"[{table}.{SCHEMES[self.scheme]}]"
        if self.scheme == "direct-segment":
            return text
        text += f'\nhuge = {{ enabled = "{value}" }}'
        return text + ("\nlazy = true" if self.scheme == "perforated-lazy" else "")


AXES: tuple[Iterable[str], ...] = (PLACEMENTS, PAGES, SCHEMES, ENVIRONMENTS)


def combine(
    placements: Sequence[str],
    pages: Sequence[str],
    schemes: Sequence[str],
    environments: Sequence[str],
) -> tuple[list[Combination], dict[str, list[Combination]]]:
    """Return all combinations, and those that make no sense, by reason."""
    good: list[Combination] = []
    bad: dict[str, list[Combination]] = {}
    for words in product(environments, placements, schemes, pages):
        environment, placement, scheme, page = words
        one = Combination.read(f"{placement} {page} {scheme} {environment}")
        reason = one.impossible()
        if reason is None:
            good.append(one)
        else:
            bad.setdefault(reason, []).append(one)
    return good, bad


def write_designs(combinations: Iterable[Combination], folder: Path) -> dict[Combination, str]:
    """Write each combination's design into a folder, and return their paths.

    Raises
    ------
    EngineError
        When a design is not well formed.
    FileError
        When a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for one in combinations:
        path = folder / f"{one.name}.toml"
        write_whole(path, one.text())
        designs.resolve(str(path))
        paths[one] = str(path)
    return paths
