"""Tests due after a change: crates, Python files and tests that depend on the changed files.

nextest's ``rdeps(...)`` follows crates, not files to crates; pytest-testmon runs under coverage.
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

from catalogue import CatalogueError
from inputs import PYTHON, ROOT, _imports_module, dependencies, manifests

#: A change to one of these may change how everything is built.
EVERYTHING = {"Cargo.toml", "Cargo.lock", "rust-toolchain.toml", ".config/nextest.toml"}


def affected(base: str, kind: str) -> list[str]:
    """Return the names of what is affected by a change.

    Parameters
    ----------
    base
        A commit; what differs from it in the work tree counts as changed. If nothing does, its
        parent is taken.
    kind
        ``crates``: the changed crates and all that use them; ``tests``: the Python test files that
        are changed, or import what is.

    Raises
    ------
    CatalogueError
        When git does not know the commit.
    """
    files = changed(base) or changed(f"{base}~1")
    if kind == "crates":
        return crates(files)
    return tests([file for file in files if file.suffix == ".py" and (ROOT / file).exists()])


def changed(base: str) -> list[Path]:
    """Return the files that differ from a commit, also those that git does not track yet."""
    names = _git("diff", "--name-only", base, "--") + _git(
        "ls-files", "--others", "--exclude-standard"
    )
    return [Path(name) for name in dict.fromkeys(names)]


def crates(files: list[Path]) -> list[str]:
    """Return the crates that the files belong to, and all whose build or tests use these."""
    known = manifests()
    if any(str(file) in EVERYTHING for file in files):
        return sorted(known)
    by_folder = {folder.name: name for name, (folder, _) in known.items()}
    found: set[str] = set()
    left = [
        by_folder[file.parts[1]]
        for file in files
        if file.parts[0] == "crates" and len(file.parts) > 2 and file.parts[1] in by_folder
    ]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += [n for n, (_, m) in known.items() if one in dependencies(m, dev=True)]
    return sorted(found)


def tests(python: list[Path]) -> list[str]:
    """Return the test files that import a changed file of ours, or are one."""
    modules = {
        ".".join((ROOT / file).relative_to(PYTHON).with_suffix("").parts)
        for file in python
        if file.parts[0] == "python"
    }
    found = []
    for file in sorted((ROOT / "python" / "tests").glob("test_*.py")):
        names = set(_imports_module().imports(ast.parse(file.read_bytes())))
        used = {one for name in names for one in _imports_module().imported(name, PYTHON)}
        if file.relative_to(ROOT) in python or used & modules or names & modules:
            found.append(str(file.relative_to(ROOT)))
    return found


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise CatalogueError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.splitlines()
