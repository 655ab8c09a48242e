"""JSON that Contigua writes: version numbers, JSON schemas, and reports of the previous version.

Schemas of the engine's reports come from its Rust types, those of what Python writes from the types
below. A document's ``schema`` is the version of its form: it grows when a key goes or changes its
meaning. Sizes and times in a report's ``config`` are text, as in the design and machine files that
they are from.
"""

from __future__ import annotations

import json
import types
import typing
from functools import cache
from typing import Any, Literal, TypedDict

from contigua import _engine
from contigua.sizes import size_bytes

#: Versions of the documents; the engine has that of a run's reports.
AGE, EXPERIMENT, EXPERIMENT_RUN, SWEEP = 2, 2, 1, 1


@cache
def run_keys() -> dict[str, dict[str, Any]]:
    """Return the JSON schemas of what the engine is told of a run and its execution, by keys.

    Keys of words have them as ``words``.
    """
    schema = json.loads(_engine.schema("document"))["$defs"]
    found: dict[str, dict[str, Any]] = {}
    for key, known in (schema["RunSpec"]["properties"] | schema["Execution"]["properties"]).items():
        named = known if "$ref" in known else known.get("anyOf", [{}])[0]
        definition = schema.get(named.get("$ref", "").rpartition("/")[2], {})
        words = [one["const"] for one in definition.get("oneOf", []) if "const" in one]
        found[key] = {**known, "words": words}
    return found


_Class = TypedDict(
    "_Class", {"class": Literal["compared", "same shape", "own", "by construction", "fitted"]}
)


class ExperimentFigure(_Class):
    """A value that an experiment computed, what it is judged by, and the verdict."""

    key: str
    label: str
    number: str | None
    paper: list[float] | None
    ours: float | None
    margin: float | None
    tolerance: float | None
    at_least: float | None
    at_most: float | None
    unit: str
    why: str
    differs: str
    verdict: Literal[
        "within tolerance",
        "same shape",
        "cannot tell",
        "differs",
        "holds",
        "fails",
        "by construction",
        "fitted",
        "no data",
    ]
    source: str


class ExperimentTable(TypedDict):
    """A table as it is shown."""

    title: str
    heads: list[str]
    rows: list[list[str]]


class ExperimentDocument(TypedDict):
    """``figures.json`` of `contigua experiment run`."""

    schema: int
    experiment: str
    scale: Literal["quick", "full"]
    version: str
    inputs: dict[str, Any]
    figures: list[ExperimentFigure]
    notes: list[str]
    tables: list[ExperimentTable]


class SweepPoint(TypedDict):
    """A point of a sweep: the name of its file, and its place on each axis."""

    point: str
    axes: dict[str, Any]


class SweepDocument(TypedDict):
    """``sweep.json`` of `contigua sweep`; ``points/NAME.json`` has a point's report."""

    format: Literal["contigua-sweep"]
    schema: int
    version: str
    points: list[SweepPoint]


#: Documents that have a schema here, by name; the engine has ``run``, ``age`` and ``attribution``.
DOCUMENTS = {"experiment": ExperimentDocument, "sweep": SweepDocument}
NAMES = ("run", "age", "attribution", *DOCUMENTS)


def schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of a document: one of :data:`NAMES`.

    Examples
    --------
    >>> schema("sweep")["required"]
    ['format', 'schema', 'version', 'points']
    """
    if name in DOCUMENTS:
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_of(DOCUMENTS[name])}
    found: dict[str, Any] = json.loads(_engine.schema(name))
    return found


def _of(kind: Any) -> dict[str, Any]:  # noqa: ANN401 - a type
    """Return the schema of a type."""
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind)
        return {
            "title": kind.__name__,
            "description": kind.__doc__,
            "type": "object",
            "properties": {key: _of(of) for key, of in hints.items()},
            "required": list(hints),
        }
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_of(part) for part in parts]}
    if origin is Literal:
        return {"enum": list(parts)}
    if origin is list:
        return {"type": "array", "items": _of(parts[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(parts[1])}
    if kind is Any:
        return {}
    names = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
    return {"type": names[kind]}


#: Sizes that reports had as text before they had a version number, by part.
SIZES = {
    "advice": ("given_back", "given_back_whole"),
    "memory": (
        *("resident_4k", "resident_2m", "resident_1g", "perforated", "segment", "reserved"),
        *("page_tables", "set_aside", "hole_bitmaps"),
    ),
    "residency": ("mean_resident", "mean_huge"),
}
#: Keys that had no unit then.
UNITLESS = {"residency": ("resident", "huge", "eligible")}


def current(report: dict[str, Any]) -> dict[str, Any]:
    """Bring a report of a run into today's form; those of the version before have no number.

    Raises
    ------
    KeyError
        When it lacks something: it is older.
    SizeError
        When a size is none.
    """
    if "schema" in report:
        return report
    if "memory_course" in report:
        report["residency"] = report.pop("memory_course")
    for part, keys in SIZES.items():
        for key in filter(report[part].__contains__, keys):
            report[part][f"{key}_bytes"] = size_bytes(report[part].pop(key))
    for part, keys in UNITLESS.items():
        for key in filter(report[part].__contains__, keys):
            report[part][f"{key}_bytes"] = report[part].pop(key)
    # What machines did not have.
    machine = report["config"]["machine"]
    machine["core"].setdefault("taken_branch_cycles", 0)
    machine["core"].setdefault("page_walk_replay_cycles", 0)
    machine["cache"]["prefetch"].setdefault("stream_lines", 0)
    machine["cache"]["dram"].setdefault("loaded", [])
    region = report.pop("unmovable_region")
    report["unmovable_region_bytes"] = None if region is None else size_bytes(region)
    return {"schema": 1, **report}
