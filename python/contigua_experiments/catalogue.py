"""Every figure and table of the papers, and which experiment repeats it.

``papers.toml`` lists them; the experiments' own files say what they repeat, so that nothing is said
twice.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from contigua_experiments.base import Definition, ExperimentError


@dataclass(frozen=True)
class Item:
    """A figure or table of a paper.

    Attributes
    ----------
    key
        What experiments call it: the paper's number among the project's, and its own.
    paper
        The paper's short name.
    number
        Its number, or its name where there is no number.
    shows
        What it shows.
    experiments
        Those that repeat it.
    why
        Why none does; empty where one does.
    """

    key: str
    paper: str
    number: str
    shows: str
    experiments: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Catalogue:
    """All figures and tables, in the papers' order.

    Attributes
    ----------
    items
        The figures and tables.
    beyond
        Experiments that repeat none, and the question that each answers.
    """

    items: tuple[Item, ...]
    beyond: dict[str, str]

    def gaps(self) -> list[str]:
        """Return what neither an experiment repeats nor a reason excuses."""
        return [item.key for item in self.items if not item.experiments and not item.why]


def read_catalogue(definitions: Iterable[Definition]) -> Catalogue:
    """Read the catalogue and join what the experiments say.

    Raises
    ------
    ExperimentError
        When the file is not well formed, or an experiment claims what no paper has.
    """
    file = resources.files("contigua_experiments") / "papers.toml"
    claims: dict[str, list[str]] = {}
    for one in definitions:
        for key in one.reproduces:
            claims.setdefault(key, []).append(one.name)
    try:
        values = tomllib.loads(file.read_text())
        items = []
        for each in values["items"]:
            key = f"{each['paper']} {each['number']}"
            by = tuple(claims.pop(key, ()))
            why = "" if by else each.get("why", "")
            paper = values["papers"][each["paper"]]
            items.append(Item(key, paper, each["number"], each["shows"], by, why))
        beyond = dict(values["beyond"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExperimentError(f"{file.name}: {error}") from error
    if claims:
        key, names = next(iter(claims.items()))
        raise ExperimentError(
            f"{names[0]} reproduces {key!r}, which is not in {file.name} "
            "(write the paper's number, a space and the figure's, as they stand there)"
        )
    return Catalogue(tuple(items), beyond)
