"""Designs, machines and ages as objects, to be changed and compared.

Wherever a function takes a name, it takes one of these, too. A design is its TOML text: changing a
value writes a new text, and the engine checks it at once, so a mistake is reported where it is
made, in the engine's own words.
"""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, ClassVar, Self

import tomli_w

from contigua.errors import ContiguaError
from contigua.presets import Collection, Preset, designs, flatten, machines


class ConfigError(ContiguaError):
    """A parameter that cannot be set, or an age that cannot be."""


class _Configuration(Preset):
    """Base of designs and machines: a text with a name, and changes to it."""

    collection: ClassVar[Collection]

    def __init__(self, name: str | Preset) -> None:
        preset = self.collection.get(name)
        super().__init__(preset.name, preset.text, preset.origin)

    @classmethod
    def from_toml(cls, text: str, name: str = "unnamed") -> Self:
        """Make one of TOML text.

        Parameters
        ----------
        text
            What a file of it would hold.
        name
            What reports call it.

        Raises
        ------
        EngineError
            When the text is not well formed; the message names the line.
        """
        made = cls(Preset(name, text, name))
        made.resolve()
        return made

    def with_(
        self,
        parameters: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        **tables: Any,  # noqa: ANN401 - whatever TOML has
    ) -> Self:
        """Return one in which some parameters have other values.

        Parameters
        ----------
        parameters
            Values by dotted keys of the TOML file; the parts of an array have numbers. ``None``
            takes a key out, so that it has its default.
        name
            What reports call it; the same as before by default.
        tables
            Values by key, nested as in the file.

        Raises
        ------
        ConfigError
            When a key goes through something that is no table.
        EngineError
            When there is no such parameter, or it cannot have the value.

        Examples
        --------
        >>> Design("perforated").with_({"translation.perforated.most_holes": 64}).diff("perforated")
        [('translation.perforated.most_holes', 64, 511)]
        >>> Machine("skylake").with_(memory="256MiB").resolve()["memory"]
        '256MiB'
        """
        changes = {**(parameters or {}), **(flatten(tables) if tables else {})}
        values = tomllib.loads(self.text)
        for key, value in changes.items():
            _put(values, key, value)
        said = ", ".join(f"{key} = {json.dumps(value)}" for key, value in changes.items())
        changed = Preset(
            name or self.name,
            tomli_w.dumps(values),
            f"{self.origin} with {said}" if said else self.origin,
        )
        made = type(self)(changed)
        made.resolve()
        return made

    def resolve(self) -> dict[str, Any]:
        """Return all parameters with every default filled in.

        Raises
        ------
        EngineError
            When the text is not well formed; the message names the line.
        """
        return self.collection.resolve(self)

    def diff(self, other: str | Preset) -> list[tuple[str, Any, Any]]:
        """List what differs: key, value here, value there; ``None`` where one side lacks it."""
        return self.collection.diff(self, other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.origin})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td style='text-align: left'><code>{escape(key)}</code></td>"
            f"<td>{escape(str(value))}</td></tr>"
            for key, value in flatten(self.resolve()).items()
            if key != "description"
        )
        kind = type(self).__name__
        return (
            f"<details><summary>{kind} <b>{escape(self.name)}</b>: {escape(self.description)}"
            f"</summary><table>{rows}</table></details>"
        )


class Design(_Configuration):
    """A design: how memory is placed, which pages there are, how addresses are translated.

    Parameters
    ----------
    name
        Name of a design (``contigua designs list``), or path of a TOML file.

    Examples
    --------
    >>> design = Design("linux-thp")
    >>> design.description
    'Linux with transparent huge pages, always on'
    >>> sorted(design.resolve())
    ['description', 'memory', 'migration', 'placement', 'translation']
    >>> Design("linux-thp").diff("linux-thp-madvise")
    [('translation.thp.enabled', 'always', 'madvise')]
    """

    collection = designs


class Machine(_Configuration):
    """A machine: memory, TLBs, caches, cores, and what the kernel's work costs.

    Parameters
    ----------
    name
        Name of a machine (``contigua machines list``), or path of a TOML file.

    Examples
    --------
    >>> small = Machine("skylake").with_({"tlb.l1d.4k.entries": 32, "tlb.l1d.4k.ways": 4})
    >>> small.diff("skylake")
    [('tlb.l1d.4k.entries', 32, 64)]
    """

    collection = machines


def _put(values: dict[str, Any], key: str, value: Any) -> None:  # noqa: ANN401 - TOML
    """Set what a dotted key names; tables on the way are made."""
    *way, last = key.split(".")
    at: Any = values
    for part in way:
        at = _step(at, part, key)
    value = copy.deepcopy(value)
    if isinstance(at, list):
        index = _index(at, last, key)
        if value is None:
            del at[index]
        else:
            at[index] = value
    elif not isinstance(at, dict):
        raise ConfigError(f"{key}: {'.'.join(way)} is no table")
    elif value is None:
        at.pop(last, None)
    else:
        at[last] = value


def _step(at: Any, part: str, key: str) -> Any:  # noqa: ANN401 - TOML
    if isinstance(at, list):
        return at[_index(at, part, key)]
    if isinstance(at, dict):
        return at.setdefault(part, {})
    raise ConfigError(f"{key}: there is nothing within {at!r}")


def _index(at: list[Any], part: str, key: str) -> int:
    if part.isdigit() and int(part) < len(at):
        return int(part)
    last = len(at) - 1
    raise ConfigError(f"{key}: {part!r} is no part of this array; they have numbers, 0 to {last}")


@dataclass(frozen=True)
class Age:
    """History of memory before a program starts.

    Attributes
    ----------
    text
        As on the command line.

    Examples
    --------
    >>> print(Age.scattered(2.5), Age.profile("web", "2h"), Age.fresh())
    scattered:2.5 web:2h fresh
    """

    text: str

    @classmethod
    def fresh(cls) -> Age:
        """Name memory of which nothing was ever allocated."""
        return cls("fresh")

    @classmethod
    def scattered(cls, percent: float) -> Age:
        """Name memory with unmovable frames all over, at random: this many percent, 0 to 90.

        Raises
        ------
        ConfigError
            When the number is none of these.

        Examples
        --------
        >>> Age.scattered(91)
        Traceback (most recent call last):
        contigua.configs.ConfigError: scattered: 91 is not between 0 and 90 percent
        """
        if not 0 <= percent <= 90:
            raise ConfigError(f"scattered: {percent:g} is not between 0 and 90 percent")
        return cls(f"scattered:{percent:.12g}")

    @classmethod
    def partial(cls) -> Age:
        """Name a random server of a fleet, whose former tenants have left."""
        return cls("partial")

    @classmethod
    def full(cls) -> Age:
        """Name the same after files have taken all memory that was free."""
        return cls("full")

    @classmethod
    def profile(cls, name: str, time: str | float) -> Age:
        """Name a server that was used in this way for this long, and whose tenants have left.

        Parameters
        ----------
        name
            A profile that comes with the package (``contigua profiles list``).
        time
            Such as ``"2h"``; a number is of hours.
        """
        return cls(f"{name}:{time if isinstance(time, str) else f'{round(time * 3.6e12)}ns'}")

    @classmethod
    def snapshot(cls, file: str | Path) -> Age:
        """Name memory as a snapshot has it, of a simulated server or of a real one."""
        return cls(f"snapshot:{file}")

    @property
    def file(self) -> Path | None:
        """The snapshot's file, if it is one."""
        kind, _, path = self.text.partition(":")
        return Path(path) if kind == "snapshot" else None

    def __str__(self) -> str:
        return self.text
