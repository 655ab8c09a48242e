"""The modules of our packages that a module imports, directly or not.

This module imports nothing of ours: ``scripts/checks`` loads it without the built engine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

#: Our packages, in one folder.
PACKAGES = ("contigua", "contigua_experiments")


def imported(name: str, folder: Path) -> dict[str, ast.Module]:
    """Return the code of a module and of all of ours that it imports, without docstrings.

    Parameters
    ----------
    name
        The module, such as ``contigua.sizes``.
    folder
        The folder that has our packages.
    """
    found: dict[str, ast.Module] = {}
    left = [name]
    while left:
        name = left.pop()
        if name in found or (file := _source(name, folder)) is None:
            continue
        found[name], names = _parsed(file.read_bytes())
        left += names
    return found


@cache
def _parsed(content: bytes) -> tuple[ast.Module, tuple[str, ...]]:
    tree = ast.parse(content)
    names = tuple(imports(tree))
    _strip(tree)
    return tree, names


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield what may be a module: of ``from a import b`` both ``a`` and ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _strip(tree: ast.Module) -> None:
    """Take out the docstrings: what they say decides no result."""
    for node in ast.walk(tree):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and ast.get_docstring(node, clean=False):
            del node.body[0]


def _source(name: str, folder: Path) -> Path | None:
    top, *rest = name.split(".")
    # A package's own file only passes on what its modules have.
    if top not in PACKAGES or not rest:
        return None
    file = folder.joinpath(top, *rest[:-1], f"{rest[-1]}.py")
    return file if file.is_file() else None
