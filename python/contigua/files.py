"""Writing files whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contigua.errors import ContiguaError


class FileError(ContiguaError):
    """A file or folder that cannot be read or written."""


def check_writable(path: Path) -> None:
    """Refuse a path that cannot become a file, before any time is spent.

    Raises
    ------
    FileError
        When the path is a folder, or its folder does not exist or cannot be written to.
    """
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise FileError(f"{path}: cannot be written; give a file in a folder that exists")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name beside ``path``; it becomes ``path`` when all went well.

    Raises
    ------
    FileError
        When the file cannot be written. Nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, contents: str | bytes) -> None:
    """Write a file whole or not at all.

    Raises
    ------
    FileError
        When the file cannot be written.
    """
    data = contents.encode() if isinstance(contents, str) else contents
    with replacing(path) as temporary:
        temporary.write_bytes(data)
