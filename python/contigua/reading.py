"""Files that somebody else may have written or chosen.

A path may name anything: opening a FIFO waits for a writer, ``/dev/zero`` never ends, a file has
any size and any bytes. Everything that a user names is opened here: without waiting, regular files
only, within bounds; what is wrong is one sentence.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tomllib
from io import BufferedReader
from pathlib import Path
from typing import Any

from contigua.files import FileError

#: Bytes of a TOML file; the longest that comes with the package has 6 kB.
MOST_TOML = 1 << 20
#: Bytes of a file of reports: several thousand of them.
MOST_RESULTS = 1 << 28
#: Integers beyond these fit no column of a table.
INTEGERS = range(-(1 << 63), 1 << 63)


class ReadError(FileError):
    """A file that cannot be read, or is not what it should be.

    Parameters
    ----------
    path
        The file.
    why
        What is wrong, in words.
    """

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.why = why


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading, without ever waiting.

    Raises
    ------
    ReadError
        When it cannot be opened, or is no regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise ReadError(path, getattr(error, "strerror", None) or str(error)) from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise ReadError(path, f"{_kind(mode)}; a regular file is needed")
    return open(descriptor, "rb")  # noqa: PTH123 - a descriptor


def read_bytes(path: Path, most: int) -> bytes:
    """Return a regular file's contents.

    Raises
    ------
    ReadError
        When it cannot be read, or has more than ``most`` bytes.
    """
    try:
        with open_file(path) as file:
            # As much as it has: Python takes memory for all that it is asked to read.
            size = min(os.fstat(file.fileno()).st_size, most)
            data = file.read(size + 1)
    except OSError as error:
        raise ReadError(path, error.strerror or str(error)) from error
    if len(data) > size:
        what = f"longer than {most} bytes" if size == most else "it grows while it is read"
        raise ReadError(path, what)
    return data


def read_text(path: Path, most: int = MOST_TOML) -> str:
    """Return a regular file's text.

    Raises
    ------
    ReadError
        When it cannot be read, has more than ``most`` bytes, or is no UTF-8.
    """
    try:
        return read_bytes(path, most).decode()
    except UnicodeDecodeError as error:
        raise ReadError(path, f"no UTF-8 at byte {error.start}") from error


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """Return a TOML file's text, and what it holds.

    Raises
    ------
    ReadError
        When it cannot be read, or is not valid TOML.
    """
    text = read_text(path)
    try:
        return text, tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReadError(path, f"not valid TOML: {error}") from error


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401 - JSON
    """Return what JSON text holds, if tables and other programs can hold it, too.

    Raises
    ------
    ValueError
        When it is no JSON, is nested too deeply, or has a number that is no number or needs more
        than 64 bits.

    Examples
    --------
    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse_json("1e999")
    Traceback (most recent call last):
    ValueError: 1e999 is out of range
    """
    try:
        return json.loads(text, parse_int=integer, parse_float=real, parse_constant=real)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def integer(digits: str) -> int:
    """Read an integer of 64 bits.

    Raises
    ------
    ValueError
        When it is larger.
    """
    # Python refuses to read more than 4300 digits, and takes long for less.
    value = int(digits) if len(digits) <= 20 else INTEGERS.stop
    if value not in INTEGERS:
        raise ValueError(f"{digits[:24]} is out of range")
    return value


def real(digits: str) -> float:
    """Read a finite number.

    Raises
    ------
    ValueError
        When it is none.
    """
    value = float(digits)
    if value - value != 0:
        raise ValueError(f"{digits[:24]} is out of range")
    return value


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory"
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits.

    Raises
    ------
    OSError, ReadError
        When it cannot be read.
    """
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
