"""Inputs of a check's result, as a hash that is the same in every clone.

An input is a pattern of files (``crates/malloc/tests/c/*``), ``crate:NAME`` (the sources of a crate
and of all crates that it is built from, with the versions of what they use of others),
``values:RUN`` (the golden values of the fixed runs whose names begin so) or ``named:PATTERN``
(those of the files whose names stand in the inputs before it, and the golden values of designs and
machines among them); ``!PATTERN`` takes files out of what stands before it. Comments, docstrings
and unit tests inside sources do not count: they decide no result. Nor do the lists that name the
files of schemes and placements.

An output is a file, or ``FILE#NAME``: the rows of a CSV file whose first cell is a name.

DVC and Bazel hash whole files: a comment would run an hour of experiments again.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import json
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
#: The folder of the Python packages, and the one of the experiments.
PYTHON = ROOT / "python"
EXPERIMENTS = PYTHON / "contigua_experiments"
#: The folder of presets, from the root.
PRESETS = "python/contigua/data"

#: Comments and strings of Rust and C, strings to be kept as they are.
LEXEMES = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<text>\bb?r(?P<hashes>\#*)".*?"(?P=hashes)|"(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^'\\\n])')""",
    re.DOTALL | re.VERBOSE,
)
#: A module of unit tests, which ends at the first brace that is not indented.
UNIT_TESTS = re.compile(
    r"^#\[cfg\(test\)\]\n(?:pub(?:\(crate\))? )?mod \w+ (?:\{.*?^\}|;)", re.M | re.S
)
#: Names of presets.
WORD = re.compile(r"[\w-]+")
#: Golden values of fixed runs, by the run's name.
VALUES = ROOT / "crates" / "machine" / "tests" / "values.json"
#: Code that names the files of a folder: the files themselves are inputs of what depends on them.
LISTS = re.compile(r"^(?:schemes|policies)! \{\n.*?^\}", re.M | re.S)
C_LIKE = {".rs", ".c", ".h", ".cc"}
#: Folders of a crate that its library is not built from.
BESIDE = {"tests", "benches", "examples", "man", "target"}


def fingerprint(inputs: list[str], outputs: list[str]) -> str:
    """Return a hash of everything that the inputs and outputs name.

    Raises
    ------
    ValueError
        When one of them names nothing.
    """
    digest = hashlib.sha256()
    for name, content in sorted(_parts(inputs)):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    for output in outputs:
        # A result that is missing is stale.
        digest.update(_result(output) or b"missing")
    return digest.hexdigest()[:32]


def _result(output: str) -> bytes | None:
    file, _, name = output.partition("#")
    path = ROOT / file
    if not path.is_file():
        return None
    if not name:
        return path.read_bytes()
    start = f"{name},".encode()
    return b"\n".join(line for line in path.read_bytes().split(b"\n") if line.startswith(start))


def _parts(inputs: list[str]) -> set[tuple[str, bytes]]:
    parts: set[tuple[str, bytes]] = set()
    for one in inputs:
        kind, _, name = one.partition(":")
        if one.startswith("!"):
            out = {str(file.relative_to(ROOT)) for file in _glob(one[1:])}
            if not out:
                raise ValueError(f"{one} names no file")
            parts = {part for part in parts if part[0] not in out}
            continue
        if kind == "crate":
            parts |= _crate_parts(name)
        elif kind == "values":
            runs = {run: value for run, value in _values() if f"{run} ".startswith(f"{name} ")}
            if not runs:
                raise ValueError(
                    f"{one}: {VALUES.relative_to(ROOT)} has no such run; write it anew "
                    "(CONTIGUA_WRITE_VALUES=1 cargo test -p contigua-machine values)"
                )
            parts |= set(runs.items())
        elif kind == "named":
            parts |= _named(name, parts)
        else:
            files = list(_glob(one))
            if not files:
                raise ValueError(f"{one} names no file")
            parts |= {(str(file.relative_to(ROOT)), meaning(file)) for file in files}
    return parts


def _named(pattern: str, parts: set[tuple[str, bytes]]) -> set[tuple[str, bytes]]:
    """Return the files whose names are words of some parts, or of such files (``base``)."""
    found: set[tuple[str, bytes]] = set()
    left = b"\n".join(content for _, content in parts)
    while left:
        words = set(WORD.findall(left.decode(errors="replace")))
        files = [file for file in _glob(pattern) if file.stem in words]
        more = {(str(file.relative_to(ROOT)), meaning(file)) for file in files} - found
        found |= more
        runs = {f"{file.parent.name.removesuffix('s')} {file.stem} " for file in files}
        found |= {part for part in _values() if f"{part[0]} ".startswith(tuple(runs))}
        left = b"\n".join(content for _, content in more)
    return found


@cache
def _values() -> tuple[tuple[str, bytes], ...]:
    runs = json.loads(VALUES.read_text())
    return tuple((run, json.dumps(one, sort_keys=True).encode()) for run, one in runs.items())


def _glob(pattern: str) -> Iterator[Path]:
    for file in ROOT.glob(pattern):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file


@cache
def meaning(file: Path) -> bytes:
    """Return what of a file can decide a result.

    To parse all sources takes seconds: what was found of a content is kept, for all clones.
    """
    content = file.read_bytes()
    if file.suffix not in {*C_LIKE, ".py", ".toml"}:
        return content
    key = hashlib.sha256(b"\0".join([_rules(), file.suffix.encode(), content])).hexdigest()
    kept = _cache_folder() / key
    try:
        return kept.read_bytes()
    except OSError:
        found = _meaning(file, content)
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as temporary:
            temporary.write(found)
        Path(temporary.name).replace(kept)
    return found


@cache
def _rules() -> bytes:
    """Return the code that decides what a content means."""
    code = [Path(__file__), EXPERIMENTS / "imports.py"]
    return b"\0".join(file.read_bytes() for file in code) + sys.version.encode()


@cache
def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "contigua" / "checks"


def _meaning(file: Path, content: bytes) -> bytes:
    if file.suffix in C_LIKE:
        return _without_comments(LISTS.sub("", UNIT_TESTS.sub("", content.decode()))).encode()
    if file.suffix == ".py":
        tree = ast.parse(content)
        _imports_module()._strip(tree)
        return ast.dump(tree).encode()
    # Names of tables and keys in their order, without comments.
    return json.dumps(tomllib.loads(content.decode()), default=str).encode()


def _without_comments(source: str) -> str:
    """Return code without comments, and with single spaces where there was any white space."""
    texts = []

    def kept(found: re.Match[str]) -> str:
        if found["comment"]:
            return " "
        texts.append(found[0])
        return f"\0{len(texts) - 1}\0"

    code = re.sub(r"\s+", " ", LEXEMES.sub(kept, source)).strip()
    return re.sub(r"\0(\d+)\0", lambda found: texts[int(found[1])], code)


@cache
def _imports_module() -> ModuleType:
    file = EXPERIMENTS / "imports.py"
    spec = importlib.util.spec_from_file_location("checks_imports", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def manifests() -> dict[str, tuple[Path, dict[str, Any]]]:
    """Return the folder and manifest of every crate of the workspace, by name."""
    return dict(_manifests())


@cache
def _manifests() -> tuple[tuple[str, tuple[Path, dict[str, Any]]], ...]:
    found = []
    for file in sorted((ROOT / "crates").glob("*/Cargo.toml")):
        manifest = tomllib.loads(file.read_text())
        found.append((manifest["package"]["name"], (file.parent, manifest)))
    return tuple(found)


def dependencies(manifest: dict[str, Any], *, dev: bool = False) -> set[str]:
    """Return the names of the packages that a crate is built from; with ``dev``, its tests, too."""
    kinds = ["dependencies", "build-dependencies", *(["dev-dependencies"] if dev else [])]
    tables = [manifest, *manifest.get("target", {}).values()]
    names = set()
    for table in tables:
        for kind in kinds:
            for name, value in table.get(kind, {}).items():
                names.add(value.get("package", name) if isinstance(value, dict) else name)
    return names


#: Crates that another crate's build script builds.
NESTED = {"contigua-py": {"contigua-qemu-plugin"}}


@cache
def crate_closure(name: str) -> frozenset[str]:
    """Return a crate and all crates of the workspace that it is built from."""
    crates = manifests()
    found: set[str] = set()
    left = [name]
    while left:
        one = left.pop()
        if one not in crates:
            if one == name:
                raise ValueError(f"crate:{name} names no crate of the workspace")
            continue
        if one not in found:
            found.add(one)
            left += dependencies(crates[one][1]) | NESTED.get(one, set())
    return frozenset(found)


@cache
def _crate_parts(name: str) -> frozenset[tuple[str, bytes]]:
    crates = manifests()
    closure = crate_closure(name)
    others: set[str] = set()
    parts = set()
    for crate in closure:
        _, manifest = crates[crate]
        others |= dependencies(manifest) - crates.keys()
        kept = {
            key: manifest.get(key)
            for key in ("dependencies", "build-dependencies", "target", "features", "lib")
        }
        kept["target"] = {
            target: {key: value for key, value in table.items() if key != "dev-dependencies"}
            for target, table in (manifest.get("target") or {}).items()
        }
        parts.add((f"{crate}/Cargo.toml", json.dumps(kept).encode()))
        for file in _crate_files(crate):
            if file.name == "tests.rs":
                continue
            parts.add((str(file.relative_to(ROOT)), meaning(file)))
    parts |= {("Cargo.lock", version.encode()) for version in _locked(frozenset(others))}
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())
    parts.add(("profile", json.dumps(workspace["profile"]["release"]).encode()))
    parts.add(("toolchain", meaning(ROOT / "rust-toolchain.toml")))
    return frozenset(parts)


def _crate_files(name: str) -> Iterator[Path]:
    folder, _ = manifests()[name]
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder)
        if file.is_file() and inside.parts[0] not in BESIDE and file.name != "Cargo.toml":
            yield file


def _locked(names: frozenset[str]) -> set[str]:
    """Return names and versions of packages, and of all that they depend on."""
    packages: dict[str, list[dict[str, Any]]] = {}
    for package in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]:
        packages.setdefault(package["name"], []).append(package)
    found = set()
    left = sorted(names)
    while left:
        name, _, version = left.pop().partition(" ")
        for package in packages.get(name, []):
            if version and package["version"] != version.split()[0]:
                continue
            known = f"{name} {package['version']}"
            if known not in found:
                found.add(known)
                left += package.get("dependencies", [])
    return found
