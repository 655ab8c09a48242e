"""Presets by name: the TOML files that come with the package, and the user's own."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from contigua import _engine
from contigua.errors import ContiguaError
from contigua.reading import ReadError, read_toml

#: Presets of the package that were read, as ``designs/NAME.toml``: what results depend on.
READ: set[str] = set()
#: Texts that stand for presets of the package, by the same names: a design broken on purpose.
REPLACED: dict[str, str] = {}

#: Key of a file that starts from another one.
BASE = "base"
#: Tables that name one of several kinds: another one takes the place of the base's.
KINDS = ("translation", "placement", "migration")


class PresetError(ContiguaError):
    """A design, machine or profile that does not exist; the message offers what does."""


@dataclass(frozen=True)
class Preset:
    """A TOML file with a name.

    Attributes
    ----------
    name
        The file's name without ``.toml``.
    text
        The file's contents.
    origin
        Where it came from, for messages.
    """

    name: str
    text: str
    origin: str

    @property
    def description(self) -> str:
        """The file's own one-line description."""
        return str(tomllib.loads(self.text).get("description", ""))


@dataclass(frozen=True)
class Collection:
    """All presets of one kind."""

    kind: str
    resolver: Callable[[str, str], str]

    def _folder(self) -> resources.abc.Traversable:
        return resources.files("contigua") / "data" / f"{self.kind}s"

    def names(self) -> list[str]:
        """Names of the presets that come with the package, sorted."""
        files = self._folder().iterdir()
        return sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml"))

    def __iter__(self) -> Iterator[Preset]:
        """All presets that come with the package, by name."""
        return (self.get(name) for name in self.names())

    def get(self, name: str | Preset) -> Preset:
        """Find a preset by name, or a file by path.

        Parameters
        ----------
        name
            A preset's name, or a path that contains a slash or ends in ``.toml``. One that was
            found before is itself.

        Its text is whole: keys of a file with ``base = "NAME"`` are put over those of that preset,
        or of that file, by its path from the folder of the first.

        Raises
        ------
        PresetError
            When there is no such preset or file, or bases lead back to where they began.
        """
        return name if isinstance(name, Preset) else self._whole(name, ())

    def _whole(self, name: str, way: tuple[str, ...]) -> Preset:
        """Find a preset or file that others, the way, start from."""
        found = self._read(name)
        if found.origin in way:
            raise PresetError(f"bases form a circle: {' -> '.join((*way, found.origin))}")
        try:
            own = tomllib.loads(found.text)
        except tomllib.TOMLDecodeError:
            # The engine says where and why.
            return found
        if BASE not in own:
            return found
        base = own.pop(BASE)
        if not isinstance(base, str):
            raise PresetError(f"{found.origin}: {BASE} = {base!r}: write a name or a path")
        is_path = "/" in base or base.endswith(".toml")
        if is_path and found.origin != f"{self.kind}s/{found.name}.toml":
            base = str(Path(found.origin).parent / base)
        try:
            under = self._whole(base, (*way, found.origin))
        except PresetError as error:
            if way:
                raise
            raise PresetError(f"{found.origin}: {error}") from error
        text = tomli_w.dumps(laid_over(tomllib.loads(under.text), own))
        return Preset(found.name, text, found.origin)

    def _read(self, name: str) -> Preset:
        """Read a preset by name, or a file by path, as it is written."""
        if "/" in name or name.endswith(".toml"):
            path = Path(name)
            try:
                text, _ = read_toml(path)
            except ReadError as error:
                raise PresetError(str(error)) from error
            return Preset(path.stem, text, str(path))
        if name not in self.names():
            close = difflib.get_close_matches(name, self.names(), n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            known = ", ".join(self.names())
            raise PresetError(f"no {self.kind} is called {name!r}{hint} (there are {known})")
        file = self._folder() / f"{name}.toml"
        origin = f"{self.kind}s/{name}.toml"
        READ.add(origin)
        return Preset(name, REPLACED.get(origin) or file.read_text(), origin)

    def resolve(self, name: str | Preset) -> dict[str, Any]:
        """Return a preset's values with every default filled in.

        Raises
        ------
        PresetError
            When there is no such preset.
        EngineError
            When the file is not well formed; the message names the line.
        """
        preset = self.get(name)
        resolved: dict[str, Any] = json.loads(self.resolver(preset.text, preset.origin))
        return resolved

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of such files: every key with its type, default and meaning."""
        schema: dict[str, Any] = json.loads(_engine.schema(self.kind))
        said = f"Name of the {self.kind} that this one starts from, or path of its file."
        schema["properties"] = {
            BASE: {"type": ["string", "null"], "default": None, "description": said},
            **schema["properties"],
        }
        return schema

    def diff(self, first: str | Preset, second: str | Preset) -> list[tuple[str, Any, Any]]:
        """List what differs between two presets: key, first value, second value.

        Descriptions always differ and are left out. A key that one side lacks has ``None`` there.
        """
        left, right = (flatten(self.resolve(name)) for name in (first, second))
        keys = sorted((left.keys() | right.keys()) - {"description"})
        pairs = ((key, left.get(key), right.get(key)) for key in keys)
        return [(key, a, b) for key, a, b in pairs if a != b or (key in left) != (key in right)]


def laid_over(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of both tables; where both have one, its value in ``own``.

    Examples
    --------
    >>> laid_over({"memory": "1GiB", "tlb": {"a": 1, "b": 2}}, {"tlb": {"b": 3}})
    {'memory': '1GiB', 'tlb': {'a': 1, 'b': 3}}
    >>> laid_over({"translation": {"thp": {"enabled": "always"}}}, {"translation": {"ideal": {}}})
    {'translation': {'ideal': {}}}
    """
    found = dict(base)
    for key, value in own.items():
        before = found.get(key)
        if not isinstance(value, dict) or not isinstance(before, dict):
            found[key] = value
        elif key in KINDS:
            found[key] = {name: laid_over(before.get(name, {}), of) for name, of in value.items()}
        else:
            found[key] = laid_over(before, value)
    return found


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Turn nested tables into one table of dotted keys; an empty table stays, as ``{}``."""
    if isinstance(value, dict) and value:
        flat: dict[str, Any] = {}
        for key, inner in value.items():
            flat |= flatten(inner, f"{prefix}.{key}" if prefix else key)
        return flat
    return {prefix: value}


designs = Collection("design", _engine.resolve_design)
machines = Collection("machine", _engine.resolve_machine)
profiles = Collection("profile", _engine.resolve_profile)
