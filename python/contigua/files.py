"""Writing results: whole or not at all, and each by itself.

Every option that takes an output file goes through :func:`write_whole` or :func:`writing`, or the
engine's own writers, which share one mechanism (``crates/output``): a regular file appears when it
is complete, devices, FIFOs and descriptors are written through, the target of a link is replaced,
and ``-`` is standard output.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from contigua._engine import EngineError, Output
from contigua.errors import ContiguaError
from contigua.printing import printable

#: Exit statuses: an output could not be written; what the shell expects after an interrupt.
FAILED = 1
INTERRUPTED = 130
#: Signals that end a command as an interrupt does: what there is, is shown and written.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class FileError(ContiguaError):
    """A file or folder that cannot be read or written."""


class ClosedPipeError(FileError):
    """Standard output was closed, as after ``| head``: no reason to complain."""


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def check_writable(path: Path) -> None:
    """Refuse a path that results cannot be written to, before any time is spent.

    Raises
    ------
    FileError
        When the path is a folder, or its folder does not exist or cannot be written to.
    """
    try:
        Output.check(path)
    except OSError as error:
        raise FileError(
            f"{path}: cannot be written ({_reason(error)}); give a file in a folder that exists"
        ) from error


def check_descriptors(count: int) -> None:
    """Find out whether so many files can be opened at once.

    Raises
    ------
    OSError
        When they cannot.
    """
    with ExitStack() as opened:
        for _ in range(count):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))


def is_stream(path: Path) -> bool:
    """Return whether a path is written through: a device, a FIFO or a descriptor."""
    return Output.is_through(path)


def is_standard_output(path: Path | None) -> bool:
    """Return whether a path means standard output: ``-``, ``/dev/stdout``."""
    return path is not None and Output.descriptor(path) == 1


@contextmanager
def standard_output_to_error(wanted: bool) -> Iterator[None]:
    """Let what programs that are started here print go to standard error, where it is wanted."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    own = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(own, 1)
        os.close(own)


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write to, which becomes ``path`` when all went well.

    Raises
    ------
    FileError
        When the file cannot be written. Nothing is left behind.
    """
    try:
        if is_standard_output(path) and sys.stdout is not None:
            # What was printed before comes before.
            sys.stdout.flush()
        output = Output(path)
        try:
            with os.fdopen(os.dup(output.fileno()), "wb") as file:
                yield file
            output.keep()
        finally:
            output.discard()
    except OSError as error:
        raise FileError(f"{path}: {_reason(error)}") from error


def write_whole(path: Path, contents: str | bytes) -> None:
    """Write a file whole or not at all.

    Raises
    ------
    FileError
        When the file cannot be written.
    """
    with writing(path) as file:
        file.write(contents.encode() if isinstance(contents, str) else contents)


def open_log(path: Path) -> BinaryIO:
    """Open a file of ours to read it and to add to its end: a regular file, and no link to one.

    Raises
    ------
    OSError
        When it cannot be opened, or is something else.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    number = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(number, "a+b")


def write_each(contents: Mapping[Path, str | bytes]) -> None:
    """Write files, each whole or not at all, also after one could not be written.

    Raises
    ------
    FileError
        When some cannot be written; the message names them.
    """
    lost = []
    for path, data in contents.items():
        try:
            write_whole(path, data)
        except FileError as error:
            lost.append(str(error))
    if lost:
        raise FileError("; ".join(lost))


def complain(message: str) -> None:
    """Say on standard error what went wrong; where that is gone, the exit status has to do."""
    try:
        line = "\r\x1b[K" if sys.stderr.isatty() else ""
        click.echo(f"{line}contigua: {printable(message, chr(10))}", err=True)
    except (OSError, AttributeError, ValueError):
        pass


class Outputs:
    """The results of a command. One that cannot be written does not keep others from it.

    Examples
    --------
    >>> outputs = Outputs()
    >>> with outputs.each():
    ...     print("the table")
    the table
    >>> outputs.status(0)
    0
    """

    def __init__(self) -> None:
        self.failed = False

    def lost(self, why: str) -> None:
        """Note, and say, that an output could not be written."""
        self.failed = True
        complain(why)

    @contextmanager
    def each(self) -> Iterator[None]:
        """Write one output here: what keeps it from being written is said and noted."""
        try:
            yield
        except ClosedPipeError:
            self.failed = True
        except (FileError, EngineError) as error:
            self.lost(str(error))
        except OSError as error:
            self.lost(f"{error.filename or 'an output'}: {_reason(error)}")

    def status(self, status: int = 0) -> int:
        """Return the exit status of a command that would else end with ``status``."""
        return FAILED if self.failed and status != INTERRUPTED else status
