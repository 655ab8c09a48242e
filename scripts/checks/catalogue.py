"""The checks of ``checks/catalogue.toml``, and what is known of their last run."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments import experiments
from inputs import ROOT, fingerprint

PASSED = ROOT / "checks" / "passed.json"
#: From the quickest to the slowest.
GATES = ("commit", "CI", "long", "release")


class CatalogueError(Exception):
    """The catalogue, or the file of results, is wrong."""


@dataclass(frozen=True)
class Check:
    """A check.

    Attributes
    ----------
    name
        Its name; a member of a group is ``GROUP/MEMBER``.
    covers
        What it checks.
    command
        The command that runs it.
    gate
        Who runs it: whoever commits (``commit``), CI each time (``CI``), whoever submits a change
        of its inputs (``long``; CI fails where its result is old), or releases (``release``).
    inputs, outputs
        What its result depends on, and the files that it writes.
    settings
        What else decides its result: of its own file and code, what does.
    drawn
        The command that runs it when a commit draws it; ``{folder}`` is where its figures go.
    undrawn
        Why no commit may draw it; empty where one may.
    tolerance
        How far figures that are computed again may be from the stored ones.
    record
        The file, JSON, in which its command writes the ``seconds`` that it took.
    """

    name: str
    covers: str
    command: str
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    gate: str = "long"
    settings: str = ""
    drawn: str = ""
    undrawn: str = ""
    tolerance: float = 0.0
    record: str = ""

    def has_result(self) -> bool:
        """Return whether it runs only when its inputs change, and its result is kept."""
        return self.gate in ("long", "release")

    def fingerprint(self, *, outputs: bool = True) -> str:
        """Return the hash of what the result depends on, and of what it wrote, as they are now."""
        try:
            inside = fingerprint(self.inputs, self.outputs if outputs else [])
        except ValueError as error:
            raise CatalogueError(f"check {self.name}: {error}") from error
        said = f"{inside}\0{self.command}\0{self.settings}"
        return hashlib.sha256(said.encode()).hexdigest()[:32]


def checks() -> list[Check]:
    """Read the catalogue.

    Raises
    ------
    CatalogueError
        When it is not as it should be.
    """
    path = ROOT / "checks" / "catalogue.toml"
    try:
        entries = tomllib.loads(path.read_text())
        found = []
        for name, entry in entries.items():
            found += _experiments(name, entry) if "named" in entry else [Check(name, **entry)]
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise CatalogueError(f"{path}: {error}") from error
    for one in found:
        if one.gate not in GATES:
            raise CatalogueError(f"{path}: {one.name} has no gate {one.gate!r}: {', '.join(GATES)}")
        if bool(one.inputs) != one.has_result():
            raise CatalogueError(
                f"{path}: {one.name}: {one.gate} checks run each time or have inputs"
            )
    return found


def _experiments(group: str, entry: dict[str, Any]) -> list[Check]:
    every = list(experiments(entry["frame"]))
    for topic in entry["when"]:
        if not any(topic in one.topics for one in every):
            raise CatalogueError(f"{group}: no experiment imports or is given {topic!r} (`when`)")
    if unknown := entry["undrawn"].keys() - {one.name for one in every}:
        raise CatalogueError(f"{group}: no experiment is called {', '.join(unknown)} (`undrawn`)")
    return [
        Check(
            f"{group}/{one.name}",
            entry["covers"],
            entry["command"],
            one.inputs(entry),
            [output.format(name=one.name) for output in entry["outputs"]],
            settings=one.deciding + one.code,
            drawn=entry["drawn"].replace("{name}", one.name),
            undrawn=entry["undrawn"].get(one.name, ""),
            tolerance=max((entry["tolerances"].get(t, 0.0) for t in one.topics), default=0.0),
            record=entry["record"].format(name=one.name),
        )
        for one in every
    ]


def passed() -> dict[str, dict[str, Any]]:
    """Read what has passed: for each check a fingerprint, the day and the seconds it took.

    Raises
    ------
    CatalogueError
        When the file is not JSON.
    """
    try:
        known = json.loads(PASSED.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CatalogueError(f"{PASSED}: {error}; restore it from git") from error
    if not isinstance(known, dict):
        raise CatalogueError(f"{PASSED}: not an object; restore it from git")
    return known


def write(known: dict[str, dict[str, Any]]) -> None:
    """Replace the file of what has passed, a line for each check."""
    lines = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in sorted(known.items())]
    new = Path(f"{PASSED}.new")
    new.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    new.replace(PASSED)
