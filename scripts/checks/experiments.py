"""Inputs of an experiment's figures.

That is its file and module, the modules beside it and in ``CODE`` that it imports, the presets and
programs that these name, and the golden values (``crates/machine/tests/values.json``) of the
designs and machines among them. The library around it (runner, tables, command line) is left to
``make test``.
"""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from inputs import EXPERIMENTS, PYTHON, ROOT, _imports_module

#: Folders whose modules decide figures.
CODE = (EXPERIMENTS, PYTHON / "contigua" / "programs")
#: Parts of an experiment's file that decide its figures at the scale that is checked.
DECIDING = ("inputs", "quick", "fixed_runs")


@dataclass(frozen=True)
class Experiment:
    """An experiment's file and code.

    Attributes
    ----------
    name
        What the command calls it.
    deciding
        What of its file decides its figures, not what they are compared with.
    code
        What of its module, and of those beside it that it imports, can decide a figure.
    words
        All strings in file and code, and what precedes a colon in them (``ci`` of ``ci:2h``).
    topics
        Keys of its inputs, and last parts of imported modules' names.
    """

    name: str
    deciding: str
    code: str
    words: frozenset[str]
    topics: frozenset[str]

    def inputs(self, entry: dict[str, Any]) -> list[str]:
        """Return its inputs by the rules of the catalogue's entry.

        ``when`` has inputs of those experiments that have a topic; ``named`` has patterns of files
        that are inputs where their names are words, and further inputs for each of these.
        """
        found: list[str] = []
        words = set(self.words)
        for topic, more in entry["when"].items():
            if topic in self.topics:
                found += more
                for file in (ROOT / one for one in more if one.endswith(".toml")):
                    words |= _words(tomllib.loads(file.read_text()))
        for pattern, more in entry["named"].items():
            files = {file.stem: file for file in ROOT.glob(pattern)}
            for name in sorted(words & files.keys()):
                found += _with_base(name, files)
                found += [one.format(name) for one in more]
        return list(dict.fromkeys(found))


def experiments(frame: Iterable[str]) -> Iterator[Experiment]:
    """Yield the experiments that run with all others.

    Parameters
    ----------
    frame
        Modules beside them that decide no figure.
    """
    for file in sorted(EXPERIMENTS.glob("*.toml")):
        definition = tomllib.loads(file.read_text())
        # Lists are none, and what runs apart is run by hand.
        if "figures" not in definition or definition.get("apart"):
            continue
        deciding = {key: definition.get(key) for key in DECIDING}
        modules = _modules(file.with_suffix(".py"), set(frame))
        words = _words(deciding).union(*(one.words for one in modules.values()))
        topics = _keys(deciding).union(*(one.imports for one in modules.values()))
        deciding["keys"] = [figure["key"] for figure in definition["figures"]]
        yield Experiment(
            file.stem.replace("_", "-"),
            json.dumps(deciding, default=str),
            json.dumps({name: one.code for name, one in sorted(modules.items())}),
            frozenset(words | {word.partition(":")[0] for word in words}),
            frozenset(topics),
        )


@dataclass(frozen=True)
class Module:
    """A module without docstrings and imports, its strings, and the last parts of its imports.

    ``files`` are the modules that it imports of those that decide figures.
    """

    code: str
    words: set[str]
    imports: set[str]
    files: list[Path]


def _modules(file: Path, frame: set[str]) -> dict[str, Module]:
    """Return a module and those deciding figures that it imports, directly or not.

    Where they stand, and from where they import, is not part of their code.
    """
    found: dict[Path, Module] = {}
    left = [file]
    while left:
        file = left.pop()
        if file not in found and not (file.parent == EXPERIMENTS and file.stem in frame):
            found[file] = read_module(file)
            left += found[file].files
    return {file.stem: one for file, one in found.items()}


@cache
def read_module(file: Path) -> Module:
    """Read a module."""
    tree = ast.parse(file.read_bytes())
    imports = [one.split(".") for one in _imports_module().imports(tree)]
    _imports_module()._strip(tree)
    names = sorted(_take_imports(tree))
    files = [PYTHON.joinpath(*one).with_suffix(".py") for one in imports]
    return Module(
        f"{names}\n{ast.dump(tree)}",
        set(_strings(tree)),
        {one[-1] for one in imports if one[0].startswith("contigua")},
        [one for one in files if one.parent in CODE and one.is_file()],
    )


def _strings(tree: ast.Module) -> Iterator[str]:
    """Yield strings but for those in brackets, which are keys of reports."""
    keys = {id(node.slice) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in keys:
            yield node.value


def _take_imports(tree: ast.Module) -> Iterator[str]:
    """Take the imports from the project out of a module, and yield the names that they bind."""
    for node in list(ast.walk(tree)):
        for part in ("body", "orelse"):
            block = getattr(node, part, None)
            if not isinstance(block, list):
                continue
            ours = [
                one
                for one in block
                if isinstance(one, ast.ImportFrom) and (one.module or "").startswith("contigua")
            ]
            setattr(node, part, [one for one in block if one not in ours])
            for one in ours:
                yield from (f"{alias.name} as {alias.asname}" for alias in one.names)


def _words(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(_words, value.values()))
    if isinstance(value, list):
        return set().union(*map(_words, value))
    return {value} if isinstance(value, str) else set()


def _keys(value: object) -> set[str]:
    return set(value).union(*map(_keys, value.values())) if isinstance(value, dict) else set()


def _with_base(name: str, files: dict[str, Path]) -> list[str]:
    """Return a preset's file and those that it is based on."""
    found: list[str] = []
    following: Any = name
    while following in files and (path := str(files[following].relative_to(ROOT))) not in found:
        found.append(path)
        is_preset = files[following].suffix == ".toml"
        following = tomllib.loads(files[following].read_text()).get("base") if is_preset else None
    return found
