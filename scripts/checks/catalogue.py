"""The checks of ``checks/catalogue.toml``, and what is known of their last run."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inputs import PYTHON, ROOT, _imports_module, fingerprint

PASSED = ROOT / "checks" / "passed.json"


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
    inputs, outputs
        What its result depends on, and the files that it writes.
    settings
        What else decides its result: the part of its own file that does.
    """

    name: str
    covers: str
    command: str
    inputs: list[str]
    outputs: list[str] = field(default_factory=list)
    settings: str = ""

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
            found += list(_members(name, entry)) if "each" in entry else [Check(name, **entry)]
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise CatalogueError(f"{path}: {error}") from error
    return found


def _members(group: str, entry: dict[str, Any]) -> list[Check]:
    members = []
    for file in sorted(ROOT.glob(entry["each"])):
        definition = tomllib.loads(file.read_text())
        # Lists are none, and what runs apart is a check of its own.
        if "figures" not in definition or definition.get("apart"):
            continue
        name = ".".join(file.relative_to(PYTHON).with_suffix("").parts)
        name = name.replace("-", "_")
        inputs = [*entry["inputs"], f"python:{name}"]
        inputs += [f"python/contigua/data/machines/{one}.toml" for one in _machines(definition)]
        modules = _imports_module().imported(name, PYTHON)
        for module, more in entry["importing"].items():
            if module in modules:
                inputs += more
        # What a figure is compared with decides the verdict, not the figure.
        deciding = {key: definition.get(key) for key in ("inputs", "quick")}
        deciding["keys"] = [figure["key"] for figure in definition["figures"]]
        members.append(
            Check(
                f"{group}/{file.stem.replace('_', '-')}",
                entry["covers"],
                entry["command"],
                inputs,
                entry["outputs"],
                json.dumps(deciding, default=str),
            )
        )
    return members


def _machines(definition: object) -> set[str]:
    """Return the machines that an experiment names, and the one that runs take by default."""
    if isinstance(definition, dict):
        named = {definition["machine"]} if isinstance(definition.get("machine"), str) else set()
        return named.union({"skylake"}, *map(_machines, definition.values()))
    if isinstance(definition, list):
        return {"skylake"}.union(*map(_machines, definition))
    return set()


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
