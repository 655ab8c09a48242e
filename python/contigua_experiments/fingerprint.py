"""Inputs of an experiment's figures: they need not be computed again if none has changed.

That is its inputs, the version, the simulator, the presets, the processor that programs find, and
of the package's code what its module imports, directly or not, but for comments and docstrings.
What a figure is compared with is not part of it: verdicts are given anew whenever they are shown.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from contigua import _engine
from contigua.allocators import find_library
from contigua.kept import Kept
from contigua_experiments.base import Definition, Scale
from contigua_experiments.breaks import Break
from contigua_experiments.imports import imported

#: Further inputs of the figures of those who use a module.
PROGRAMS = "contigua_experiments.running"
MALLOC = "contigua_experiments.native"


def fingerprint(definition: Definition, scale: Scale, broken: Break | None = None) -> str:
    """Return a hash of everything that an experiment's figures depend on, with a break or none."""
    said: dict[str, Any] = {
        "experiment": definition.name,
        "scale": scale,
        "inputs": definition.inputs[scale],
        "keys": [figure.key for figure in definition.figures],
        "version": _engine.VERSION,
    }
    if broken is not None:
        said["broken"] = asdict(broken)
    folder = Path(__file__).parents[1]
    modules = imported(f"contigua_experiments.{definition.name.replace('-', '_')}", folder)
    if PROGRAMS in modules:
        said["emulator"] = _engine.emulator_options()
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    for name in sorted(modules):
        digest.update(ast.dump(modules[name]).encode())
    for file in _presets():
        digest.update(file.read_bytes())
    built: list[Path] = []
    if _engine.__file__ is not None:
        built.append(Path(_engine.__file__))
    if PROGRAMS in modules:
        from contigua.programs.program import WORKLOADS

        built += sorted(one for one in WORKLOADS.glob("*") if one.is_file())
    if MALLOC in modules and (library := find_library("libcontigua_malloc.so")) is not None:
        built.append(library)
    for path in built:
        digest.update(_hash(path, path.stat().st_mtime_ns))
    return digest.hexdigest()


@contextmanager
def unfinished(
    definition: Definition, scale: Scale, folder: Path, broken: Break | None = None
) -> Iterator[Kept]:
    """Keep the parts of a computation in its folder until all of it has finished.

    Parts of other inputs or other code are deleted.
    """
    own = folder / f"unfinished-{fingerprint(definition, scale, broken)[:16]}.jsonl"
    for other in folder.glob("unfinished-*.jsonl"):
        if other != own:
            other.unlink()
    with Kept(own) as kept:
        yield kept
    own.unlink(missing_ok=True)


@cache
def _hash(path: Path, _changed: int) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def _presets() -> Iterator[Traversable]:
    folders = [resources.files("contigua") / "data"]
    while folders:
        for one in sorted(folders.pop().iterdir(), key=lambda each: each.name):
            if one.is_dir():
                folders.append(one)
            elif one.name.endswith(".toml"):
                yield one
