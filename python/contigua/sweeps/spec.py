"""Specification of a sweep: a TOML text, or a dictionary alike, becomes a list of points.

::

    [options]                      # what all points have in common, as in RunOptions
    [workloads.NAME]               # programs: command, program or trace
    [designs.NAME]                 # variants: base = "...", set = { "dotted.key" = value }
    [machines.NAME]
    [sweep]                        # or [[sweep]], several tables one after the other
    designs = [...]                # names, or paths of TOML files
    machines, workloads, ages, seeds = [...]
    design."dotted.key" = [...]    # any parameter of the design, machine or run is an axis
    machine."dotted.key" = [...]
    options.KEY = [...]

Every combination of the values of a table is a point. All points are resolved by the engine before
anything runs, so a mistake in the last of them costs nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contigua import _engine
from contigua.configs import Age, Design, Machine
from contigua.options import RunOptions
from contigua.presets import Collection, Preset, designs, flatten, machines
from contigua.reading import ReadError, file_digest, read_toml
from contigua.reports import aligned_shmem, shmem_enabled
from contigua.run_spec import RunKeys, RunSpec, document
from contigua.sampling import RECORDED, Sampling
from contigua.schemas import run_keys
from contigua.sweeps.store import SweepError
from contigua.sweeps.tables import Keys, as_list, nearest
from contigua.sweeps.workloads import DIGITS, Workload, read_workload, recorded_plan

#: Options of a run that are axes of their own, or that many points cannot share.
NOT_OPTIONS = {
    "machine": "an axis: machines = [...]",
    "age": "an axis: ages = [...]",
    "seed": "an axis: seeds = [...]",
    "record": "what a sweep does by itself",
    "timeline": "for single runs; use `contigua run --timeline`",
    "profile": "for single runs; use `contigua profile`",
    "smaps": "for single runs; use `contigua run --smaps`",
    "trace_format": "said by a workload: format = ...",
    "physical": "for single runs; use `contigua run --physical`",
    "root": "for single runs; use `contigua run --root`",
}
#: TOML values of a type.
KINDS = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}
#: Options, with what their values are.
OPTIONS: dict[str, tuple[type, ...]] = {
    **{
        key: KINDS[kind.partition(" ")[0]]
        for key, kind in RunKeys.__annotations__.items()
        if key not in NOT_OPTIONS
    },
    "malloc": (str,),
    "malloc_options": (list, tuple),
    "malloc_clock": (int,),
    "sample": (bool, dict),
}
#: More points than this are taken for a mistake.
MOST_POINTS = 1_000_000


@dataclass(frozen=True)
class Planned:
    """A point before its program is recorded.

    Attributes
    ----------
    axes
        What it is on each axis.
    workload
        Its program.
    options
        How that is executed and simulated.
    spec
        The configuration, as the engine takes it.
    resolved
        The configuration as JSON with every default, and snapshots by their contents.
    files
        Files that the configuration needs, by SHA-256.
    """

    axes: Mapping[str, Any]
    workload: Workload
    options: RunOptions
    spec: RunSpec
    resolved: str
    files: Mapping[str, Path]

    def name(self, events: str) -> str:
        """Name the point by all that its report depends on, given the digest of its trace."""
        known = [_engine.VERSION, self.resolved, events, self.workload.trace_format]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:DIGITS]


@dataclass(frozen=True)
class Plan:
    """A sweep, checked.

    Attributes
    ----------
    points
        All points, in the order of the specification.
    specification
        The specification, for the record.
    description
        What it is for.
    """

    points: tuple[Planned, ...]
    specification: Mapping[str, Any]
    description: str


def load_spec(spec: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], Path, str]:
    """Return a specification, what its relative paths start from, and a name for messages.

    Raises
    ------
    SweepError
        When the file cannot be read, or is not valid TOML.
    """
    if isinstance(spec, Mapping):
        return dict(spec), Path.cwd(), "the sweep"
    path = Path(spec)
    try:
        return read_toml(path)[1], path.absolute().parent, str(path)
    except ReadError as error:
        raise SweepError(str(error)) from error


def make_plan(spec: str | Path | Mapping[str, Any]) -> Plan:
    """Read a specification and check every point of it.

    Parameters
    ----------
    spec
        The path of a TOML file, or what it would hold.

    Raises
    ------
    SweepError
        When the specification is not well formed.
    PresetError, EngineError, ConfigError, AllocatorError
        When a point cannot be simulated, in the words of who found out.
    """
    values, folder, name = load_spec(spec)
    try:
        return _Reader(values, folder).plan()
    except SweepError as error:
        raise SweepError(f"{name}: {error}") from error


class _Reader:
    """Reads one specification."""

    def __init__(self, values: dict[str, Any], folder: Path) -> None:
        self.values = values
        self.folder = folder
        keys = Keys("", values)
        self.description = keys.text("description", "").strip() if "description" in values else ""
        keys.known("description", "sweep")
        self.options = self._options("options", keys.tables("options"))
        self.workloads = {
            name: read_workload(name, table, folder)
            for name, table in keys.tables("workloads").items()
        }
        self.designs = self._variants("designs", keys.tables("designs"), Design, designs)
        self.machines = self._variants("machines", keys.tables("machines"), Machine, machines)
        keys.done()
        self.digests: dict[Path, str] = {}
        self.changed: dict[tuple[type, str, str], Preset] = {}
        #: Values of `shmem_enabled` that designs have.
        self.shmem: set[str] = set()

    def plan(self) -> Plan:
        sweeps = self.values.get("sweep")
        tables = [sweeps] if isinstance(sweeps, Mapping) else sweeps
        if not isinstance(tables, (list, tuple)) or not tables:
            raise SweepError("no [sweep] is there: its axes, such as designs = [...]")
        if not self.workloads:
            raise SweepError("no [workloads.NAME] is there: what to run, such as command = [...]")
        points: dict[str, Planned] = {}
        names: list[str] = []
        for number, table in enumerate(tables, 1):
            where = "sweep" if len(tables) == 1 else f"sweep {number}"
            if not isinstance(table, Mapping):
                raise SweepError(f"{where}: write a table")
            axes = self._axes(where, table)
            names += [name for name in axes if name not in names]
            count = 1
            for options in axes.values():
                count *= len(options)
            if len(points) + count > MOST_POINTS:
                raise SweepError(f"{where}: {count:,} points are more than {MOST_POINTS:,}")
            for values in itertools.product(*axes.values()):
                chosen = dict(zip(axes, values, strict=True))
                points.setdefault(
                    json.dumps(chosen, sort_keys=True, default=str), self._point(chosen)
                )
        whole = [
            dataclasses.replace(
                point,
                axes={name: point.axes.get(name) for name in names},
                options=self._placed(point),
            )
            for point in points.values()
        ]
        return Plan(tuple(whole), self.values, self.description)

    def _placed(self, point: Planned) -> RunOptions:
        """Have shared memory aligned if any design of the sweep aligns it, as single runs do."""
        options = point.options
        aligning = [one for one in self.shmem if aligned_shmem(one) != "none"]
        if point.workload.trace is not None or options.shmem_enabled is not None or not aligning:
            return options
        enabled = "force" if "force" in aligning else "advise"
        return dataclasses.replace(options, shmem_enabled=enabled)

    def _axes(self, where: str, table: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Return the values of every axis, by the names that results have for them."""
        keys = Keys(where, table)
        lists = {
            "workload": as_list(keys.get("workloads", list(self.workloads))),
            "design": as_list(keys.get("designs", [])),
            "machine": as_list(keys.get("machines", ["skylake"])),
            "age": [
                str(age) if isinstance(age, Age) else age
                for age in as_list(keys.get("ages", ["fresh"]))
            ],
            "seed": as_list(keys.get("seeds", [1])),
        }
        if not lists["design"]:
            raise SweepError(f"{where}: give designs = [...]")
        for kind in ("design", "machine"):
            given = keys.tables(kind)
            for key, value in (flatten(given) if given else {}).items():
                lists[f"{kind}.{key}"] = as_list(value)
        for key, value in keys.tables("options").items():
            self._options(f"{where}.options", {key: as_list(value)[0]} if as_list(value) else {})
            # Not by the bare name: reports have figures that are called `instructions` and
            # `migrations`, too.
            lists[f"options.{key}"] = as_list(value)
        keys.done()
        for name, values in lists.items():
            if not values:
                raise SweepError(f"{where}: axis {name} has no values")
            if len({json.dumps(value, default=str) for value in values}) < len(values):
                raise SweepError(f"{where}: axis {name} has a value twice")
        for name in ("workload", "age"):
            for value in lists[name]:
                if not isinstance(value, str):
                    raise SweepError(f"{where}: {name}s are texts, not {value!r}")
        for seed in lists["seed"]:
            if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 1 << 63:
                raise SweepError(f"{where}: seeds are whole numbers from 0, not {seed!r}")
        for name in lists["workload"]:
            if name not in self.workloads:
                raise SweepError(f"{where}: no workload is called {nearest(name, self.workloads)}")
        # Objects stand for themselves, and results call them by their names.
        for kind, known in (("design", self.designs), ("machine", self.machines)):
            for index, value in enumerate(lists[kind]):
                if isinstance(value, Preset):
                    if known.setdefault(value.name, value) != value:
                        raise SweepError(f"{where}: two {kind}s are called {value.name}")
                    lists[kind][index] = value.name
                elif not isinstance(value, str):
                    raise SweepError(f"{where}: {kind}s are texts, not {value!r}")
        return lists

    def _point(self, chosen: dict[str, Any]) -> Planned:
        workload = self.workloads[chosen["workload"]]
        design = self._changed(Design, chosen, self.designs)
        machine = self._changed(Machine, chosen, self.machines)
        own = {
            key.removeprefix("options."): value
            for key, value in chosen.items()
            if key.startswith("options.")
        }
        options = self._options("options", own, self.options)
        age, files = self._age(chosen["age"])
        options = dataclasses.replace(options, machine=machine, age=age, seed=chosen["seed"])
        if workload.trace is not None and options.preload().name is not None:
            raise SweepError(
                f"workloads.{workload.name}: a trace has its allocator inside: "
                "take options.malloc out, or record it with another one"
            )
        if workload.trace is not None and (addresses := options.addresses()):
            raise SweepError(
                f"workloads.{workload.name}: a trace has its addresses inside: "
                f"take options.{next(iter(addresses))} out, or record it with that"
            )
        try:
            spec = options.spec(design, age, options.holes)
            if workload.trace is None and (plan := recorded_plan(options)) is not None:
                # All points see the units that are recorded.
                spec["sampling"] = plan["sampling"]
            resolved = json.loads(_engine.resolve_run(document(spec)))
        except (OverflowError, TypeError, ValueError) as error:
            raise SweepError(f"{_said(chosen)}: {error}") from error
        except _engine.EngineError as error:
            raise _engine.EngineError(f"{_said(chosen)}: {error}") from error
        self.shmem.add(shmem_enabled(resolved["design"]))
        for digest in files:
            resolved["age"] = f"snapshot:{digest}"
        text = json.dumps(resolved, sort_keys=True)
        return Planned(chosen, workload, options, spec, text, files)

    def _changed(
        self, kind: type[Design] | type[Machine], chosen: dict[str, Any], known: dict[str, Preset]
    ) -> Preset:
        """Return a design or machine with what the point's axes say about it."""
        word = kind.__name__.lower()
        name = chosen[word]
        parameters = {
            key.removeprefix(f"{word}."): value
            for key, value in chosen.items()
            if key.startswith(f"{word}.")
        }
        key = (kind, name, json.dumps(parameters))
        if key not in self.changed:
            base = known.get(name) or kind(self._named(name, kind.collection))
            self.changed[key] = kind(base).with_(parameters) if parameters else base
        return self.changed[key]

    def _named(self, name: str, collection: Collection) -> Preset:
        """Find a preset by name, or a file from the specification's folder."""
        if "/" in name or name.endswith(".toml"):
            name = str(self.folder / name)
        return collection.get(name)

    def _variants(
        self,
        word: str,
        tables: dict[str, Any],
        kind: type[Design] | type[Machine],
        collection: Collection,
    ) -> dict[str, Preset]:
        found: dict[str, Preset] = {}
        for name, table in tables.items():
            where = f"{word}.{name}"
            if not isinstance(table, Mapping):
                raise SweepError(f'{where}: write {{ base = "...", set = {{ ... }} }}')
            keys = Keys(where, table)
            base = keys.text("base")
            parameters = keys.tables("set")
            keys.done()
            start = found.get(base) or self._named(base, collection)
            found[name] = kind(start).with_(flatten(parameters) if parameters else {}, name=name)
        return found

    def _options(
        self, where: str, values: Mapping[str, Any], base: RunOptions | None = None
    ) -> RunOptions:
        given: dict[str, Any] = {}
        for key, value in values.items():
            if key in NOT_OPTIONS:
                raise SweepError(f"{where}.{key}: this is {NOT_OPTIONS[key]}")
            if key not in OPTIONS:
                raise SweepError(f"{where}: unknown key {nearest(key, OPTIONS)}")
            kinds = OPTIONS[key]
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                named = " or ".join(
                    {"str": "text", "int": "whole number"}.get(k.__name__, k.__name__)
                    for k in kinds
                )
                raise SweepError(f"{where}.{key}: write a {named}, not {value!r}")
            words = run_keys().get(key, {}).get("words")
            if words and value not in words:
                raise SweepError(f"{where}.{key}: {value!r} is not one of {', '.join(words)}")
            given[key] = tuple(value) if isinstance(value, list) else value
        if "sample" in given:
            given["sample"] = _sampling(f"{where}.sample", given["sample"])
        if given.get("malloc_clock") == 0:
            given["malloc_clock"] = None
        return dataclasses.replace(base or RunOptions(), **given)

    def _age(self, text: str) -> tuple[Age, dict[str, Path]]:
        """Return an age, and its file by what is in it."""
        file = Age(text).file
        if file is None:
            return Age(text), {}
        path = (self.folder / file).resolve()
        if path not in self.digests:
            try:
                self.digests[path] = file_digest(path)
            except ReadError as error:
                raise SweepError(f"age {text}: {error}") from error
        return Age.snapshot(path), {self.digests[path]: path}


def _sampling(where: str, value: bool | Mapping[str, Any]) -> Sampling | None:
    """Return the sampling of ``true`` or of a table, ``None`` for ``false``."""
    if isinstance(value, bool):
        return RECORDED if value else None
    defaults = dataclasses.asdict(RECORDED)
    for key, number in value.items():
        if key not in defaults:
            raise SweepError(f"{where}: unknown key {nearest(key, defaults)}")
        whole = key not in ("confidence", "goal")
        if isinstance(number, bool) or not isinstance(number, int if whole else (int, float)):
            raise SweepError(f"{where}.{key}: write a {'whole ' * whole}number, not {number!r}")
    return dataclasses.replace(RECORDED, **value)


def _said(chosen: Mapping[str, Any]) -> str:
    """Say which point it is, as short as can be."""
    return ", ".join(f"{key} {value}" for key, value in chosen.items())
