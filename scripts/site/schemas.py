"""The reference of configuration files, from the JSON schema that the engine derives.

Keys, types, defaults and meanings are those of the Rust types and their comments. What an idea is
and where it comes from is said at the top of the file that has it, so that text is shown, too;
sources of a machine's values are the comments in its file. json-schema-for-humans makes a
site of its own, without these texts.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import AoT, Item, Table

ROOT = Path(__file__).parents[2]

Schema = dict[str, Any]

#: Types that a file writes as text or as a plain count: what the reference calls them.
QUANTITIES = {
    "Bytes": ("size", 'such as `"64MiB"`'),
    "Nanoseconds": ("duration", 'such as `"10ms"`'),
    "Megahertz": ("frequency", 'such as `"2.1GHz"`'),
    "Cycles": ("integer, cycles", ""),
}


@dataclass
class Source:
    """Files with values that the reference shows beside the keys."""

    name: str
    document: tomlkit.TOMLDocument

    def values(self, path: list[str]) -> Iterator[tuple[str, str]]:
        """Yield each value at a path, as TOML, and the comment beside it."""
        yield from _values(self.document, path)

    def comments(self, path: list[str]) -> Iterator[str]:
        """Yield the comment beside a table's header."""
        for item in _items(self.document, path):
            if isinstance(item, Table) and item.trivia.comment:
                yield _comment(item)


def _items(container: Any, path: list[str]) -> Iterator[Any]:  # noqa: ANN401 - tomlkit's
    if not path:
        yield container
        return
    if isinstance(container, list):
        for element in container:
            yield from _items(element, path)
    elif isinstance(container, dict) and path[0] in container:
        yield from _items(container[path[0]], path[1:])


def _values(container: Any, path: list[str]) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    for item in _items(container, path):
        if isinstance(item, Item) and not isinstance(item, Table | AoT):
            yield item.as_string().strip(), _comment(item)


def _comment(item: Item) -> str:
    return item.trivia.comment.lstrip("# ").strip()


def prose(text: str) -> str:
    """Turn a Rust comment into Markdown: links to items become code."""
    text = re.sub(r"\[(`[^`]+`)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\[(`[^`]+`)\](?!\()", r"\1", text)
    return text.strip()


def spaced(text: str) -> str:
    """Return a docstring's text without its indentation."""
    return inspect.cleandoc(text).replace("\b\n", "")


def module_comment(path: str) -> str:
    """Return what a Rust file says at its top."""
    lines = []
    for line in (ROOT / path).read_text().splitlines():
        if not line.startswith("//!"):
            break
        lines.append(line.removeprefix("//!").removeprefix(" "))
    return prose("\n".join(lines))


def files_of_variants(listing: str) -> dict[str, str]:
    """Return which file has which scheme or policy, from the macro call that lists them."""
    text = (ROOT / listing).read_text()
    found = re.findall(r'^    (\w+): \w+, "([^"]+)";$', text, re.MULTILINE)
    folder = Path(listing).parent
    return {name: str(folder / f"{module}.rs") for module, name in found}


@dataclass
class Reference:
    """Writes the keys of a collection's files.

    Attributes
    ----------
    schema
        Of the whole file.
    sources
        Files whose values are shown.
    essays
        By a table's path, the Rust file whose first comment is shown above its keys.
    """

    schema: Schema
    sources: list[Source] = field(default_factory=list)
    essays: dict[str, str] = field(default_factory=dict)
    _queue: list[tuple[list[str], Schema, str]] = field(default_factory=list)
    _anchors: dict[str, str] = field(default_factory=dict)

    def markdown(self) -> str:
        """Return a section for each table, each with its keys."""
        parts: list[str] = []
        self._queue = [([], self.schema, "")]
        while self._queue:
            path, schema, mark = self._queue.pop(0)
            parts.append(self._section(path, schema, mark))
        return "\n\n".join(parts)

    def _resolve(self, schema: Schema) -> tuple[Schema, str | None]:
        """Follow a reference; `null` beside it says only that the key may be absent."""
        for choice in schema.get("anyOf", []):
            if choice.get("type") != "null":
                return self._resolve(choice | {"description": schema.get("description")})
        if "$ref" in schema:
            name = schema["$ref"].removeprefix("#/$defs/")
            return self.schema["$defs"][name], name
        return schema, None

    def _section(self, path: list[str], schema: Schema, mark: str) -> str:
        title = mark.format(".".join(path)) if path else "(top)"
        anchor = "-".join(path) or "top"
        parts = [f"### `{title}` {{#{anchor}}}" if path else "### The file itself {#top}"]
        if path:
            parts.append(prose(schema.get("description", "")))
        if file := self.essays.get(".".join(path)):
            parts.append(f"{module_comment(file)}\n\n([`{file}`](../../{file}))")
        for source in self.sources:
            if path:
                parts += [f"*{source.name}*: {text}" for text in source.comments(path)]
        parts += [self._key(path, key, value, schema) for key, value in self._keys(schema)]
        if "oneOf" in schema:
            parts.insert(2, "Exactly one of these tables:")
        elif not schema.get("properties"):
            parts.append("No keys.")
        return "\n\n".join(part for part in parts if part)

    def _keys(self, schema: Schema) -> Iterator[tuple[str, Schema]]:
        for variant in schema.get("oneOf", []):
            for key, value in variant.get("properties", {}).items():
                yield key, value | {"description": variant.get("description", "")}
        yield from schema.get("properties", {}).items()

    def _key(self, path: list[str], key: str, schema: Schema, table: Schema) -> str:
        inner = [*path, key]
        kind, more = self._type(inner, schema)
        if "oneOf" in table:
            default = ""
        elif key in table.get("required", []):
            default = "required"
        else:
            default = self._default(schema)
        facts = " · ".join(fact for fact in (kind, _range(schema), default) if fact)
        text = prose(schema.get("description") or "").replace("\n", "\n    ")
        lines = [f"`{key}` <small>{facts}</small>", f":   {text}"]
        lines += [f"    {line}" for line in more]
        shown = [
            f"    - {source.name}: `{value}`" + (f" ({comment})" if comment else "")
            for source in self.sources
            for value, comment in source.values(inner)
        ]
        return "\n".join([*lines, *([""] if shown else []), *shown])

    def _type(self, path: list[str], schema: Schema) -> tuple[str, list[str]]:
        """Return a key's type, and lines that say more about it."""
        resolved, name = self._resolve(schema)
        if name in QUANTITIES:
            kind, example = QUANTITIES[name]
            return f"{kind}{', ' if example else ''}{example}", []
        if values := _alternatives(resolved):
            about = prose(resolved.get("description", "")) if name else ""
            kind = "one of " + ", ".join(f"`{_toml(value)}`" for value, _ in values)
            told = [(value, text) for value, text in values if text]
            meanings = [f"- `{_toml(value)}`: {prose(text)}" for value, text in told]
            return kind, [about.replace("\n", " "), "", *meanings]
        if "properties" in resolved or "oneOf" in resolved or resolved.get("type") == "object":
            return self._table(path, resolved, name, "[{}]", "table"), []
        if _types(resolved) == ["array"]:
            element, element_name = self._resolve(resolved["items"])
            if "properties" in element:
                mark = "[[{}]]"
                return self._table(path, element, element_name, mark, "array of tables"), []
            return f"array of {self._type(path, resolved['items'])[0]}", []
        kinds = {"integer": "integer", "number": "number", "boolean": "`true` or `false`"}
        return " or ".join(kinds.get(kind, kind) for kind in _types(resolved)), []

    def _default(self, schema: Schema) -> str:
        default = schema.get("default")
        if default is None or default == []:
            return "none by default"
        if not isinstance(default, dict):
            return f"default `{_toml(default)}`"
        table, _ = self._resolve(schema)
        if "oneOf" in table:
            return f"default `{next(iter(default))}`"
        usual = {key: value.get("default") for key, value in table.get("properties", {}).items()}
        other = {key: value for key, value in default.items() if value != usual.get(key)}
        return f"default `{_toml(other)}`" if other else "defaults as in the table"

    def _table(
        self, path: list[str], schema: Schema, name: str | None, mark: str, kind: str
    ) -> str:
        identity = name or ".".join(path)
        if identity not in self._anchors:
            self._anchors[identity] = "-".join(path)
            self._queue.append((path, schema, mark))
        anchor = self._anchors[identity]
        return f"[{kind}](#{anchor})"


def _types(schema: Schema) -> list[str]:
    kinds = schema.get("type", "anything")
    return [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]


def _alternatives(schema: Schema) -> list[tuple[Any, str]]:
    """Return the values of an enumeration and what each of them means."""
    if "enum" in schema:
        return [(value, "") for value in schema["enum"]]
    alternatives: list[tuple[Any, str]] = []
    for variant in schema.get("oneOf", []):
        if "const" in variant:
            alternatives.append((variant["const"], variant.get("description", "")))
        elif "enum" in variant:
            alternatives += [(value, variant.get("description", "")) for value in variant["enum"]]
        else:
            return []
    return alternatives


def _range(schema: Schema) -> str:
    """Return the range of a number or quantity, or nothing."""
    least = schema.get("minimum", schema.get("x-minimum"))
    most = schema.get("maximum", schema.get("x-maximum"))
    if least is None or most is None:
        return ""
    return f"{least} to {most}" + (", a power of two" if schema.get("x-power-of-two") else "")


def _toml(value: Any) -> str:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value)
