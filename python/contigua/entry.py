"""The process around a command: its standard streams, interrupts, and errors as one line."""

from __future__ import annotations

import _thread
import errno
import io
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, TextIO

import click

from contigua._engine import EngineError, NoSuchProgramError, NotExecutableError
from contigua.errors import ContiguaError
from contigua.files import ENDING, FAILED, INTERRUPTED, ClosedPipeError, FileError, complain

#: File name of frames in which Python runs an import.
IMPORTING = "<frozen importlib._bootstrap>"
#: Signals that end the command, which it has received.
_received: list[int] = []
#: Exit statuses of shells for programs that are not there, or cannot be executed.
NOT_FOUND, NOT_EXECUTABLE = 127, 126


def call(command: click.Command) -> int:
    """Run a command and return its exit status; every foreseeable error is one line."""
    open_streams()
    sys.unraisablehook = _repeat_interrupt
    # Where it is ignored, nobody can wait for a child.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in ENDING:
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(number, interrupt)
    status = _called(command)
    if status == INTERRUPTED and _received:
        status = 128 + _received[0]
    for number in ENDING[1:]:
        if signal.getsignal(number) is interrupt:
            signal.signal(number, signal.SIG_DFL)
    try:
        sys.stdout.flush()
    except FileError as error:
        status = status or _failed(error)
    _drop_unwritten()
    return status


def _called(command: click.Command) -> int:
    try:
        status = command.main(standalone_mode=False)
        return status if isinstance(status, int) else 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        complain("interrupted")
        return INTERRUPTED
    except NoSuchProgramError as error:
        return _failed(error, NOT_FOUND)
    except NotExecutableError as error:
        return _failed(error, NOT_EXECUTABLE)
    except (EngineError, ContiguaError) as error:
        return _failed(error)
    except RuntimeError as error:
        # Python has no other sign of it.
        if str(error) != "can't start new thread":
            raise
        complain("cannot start a thread; raise the limit of processes (ulimit -u)")
        return FAILED
    except MemoryError:
        complain("out of memory; raise the limit of address space (ulimit -v), if there is one")
        return FAILED
    except OSError as error:
        named = f"{error.filename}: " if error.filename is not None else ""
        complain(f"{named}{error.strerror or error}")
        return FAILED
    except Exception:
        # Code in C that reads a Python object may tell an interrupt as an error of its own:
        # matplotlib's renderer says "Invalid bounding box".
        if not _received:
            raise
        complain("interrupted")
        return INTERRUPTED


def _repeat_interrupt(lost: sys.UnraisableHookArgs) -> None:
    """Send an interrupt again that Python dropped.

    It drops those that arrive in callbacks of weak references, which each import has, and in
    ``__del__``.
    """
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return

    _send_again(_received[-1] if _received else signal.SIGINT)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal that ends the command; one that arrives in an import waits for its end.

    A module of C that was left half-initialized may abort when the process exits.
    """
    while frame is not None:
        if frame.f_code.co_filename == IMPORTING:
            _send_again(number)
            return
        frame = frame.f_back
    _received.append(number)
    raise KeyboardInterrupt


def _send_again(number: int) -> None:
    """Send a signal to the main thread soon."""
    main = threading.main_thread().ident or 0

    def send() -> None:
        # At once, it would come where it came from: in the hook, in the import.
        time.sleep(0.02)
        signal.pthread_kill(main, number)

    _thread.start_new_thread(send, ())


def _failed(error: Exception, status: int = FAILED) -> int:
    if not isinstance(error, ClosedPipeError):
        complain(str(error))
    return status


def open_streams() -> None:
    """Make standard output fail clearly, and standard error silently.

    A closed descriptor is taken, so that no file that is opened later becomes the program's
    standard output; writing to it fails as it would have.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # 0 cannot be read, 1 cannot be written; nobody can be told about 2.
            flags = {0: os.O_WRONLY, 1: os.O_RDONLY, 2: os.O_WRONLY}[number]
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
    sys.stdout = _stream(_Output(1, "wb", closefd=False), sys.stdout)
    sys.stderr = _stream(_Errors(2, "wb", closefd=False), sys.stderr, "backslashreplace")


def _stream(raw: io.FileIO, before: TextIO | None, errors: str = "strict") -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(before, "encoding", None) or "utf-8",
        errors=getattr(before, "errors", None) or errors,
        line_buffering=errors == "backslashreplace" or raw.isatty(),
    )


class _Output(io.FileIO):
    """Standard output. What cannot be written there is an error like that of any other file."""

    def write(self, data: Any) -> int:  # noqa: ANN401 - whatever has bytes
        try:
            return super().write(data)
        except OSError as error:
            kind = ClosedPipeError if error.errno == errno.EPIPE else FileError
            raise kind(f"standard output: {error.strerror}") from error


class _Errors(io.FileIO):
    """Standard error. Where it cannot be written, there is nobody to tell."""

    def write(self, data: Any) -> int:  # noqa: ANN401 - whatever has bytes
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _drop_unwritten() -> None:
    """Let Python's own flush at exit, of what could not be written, succeed."""
    try:
        sys.stdout.flush()
    except FileError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
