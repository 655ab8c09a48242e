"""Recorded programs as objects."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from contigua import _engine
from contigua.options import RunOptions
from contigua.reading import file_digest
from contigua.reports import Report


@dataclass(frozen=True)
class TraceInfo:
    """Contents of a trace.

    Attributes
    ----------
    size
        Of the file, in bytes.
    digest
        SHA-256 of the file, in hexadecimal digits.
    instructions, loads, stores
        Executed by all threads together.
    processes, threads
        How many there were.
    """

    size: int
    digest: str
    instructions: int
    loads: int
    stores: int
    processes: int
    threads: int


@dataclass(frozen=True)
class Trace:
    """A recorded program.

    Attributes
    ----------
    path
        The file.
    format
        Who wrote it: ``"contigua"``, ``"champsim"``, ``"lackey"`` or ``"drmemtrace"``.
    """

    path: Path
    format: str = "contigua"

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))

    @cached_property
    def info(self) -> TraceInfo:
        """Return the trace's contents; the whole file is read, and every byte of it checked.

        Raises
        ------
        EngineError
            When it cannot be read, or is damaged.
        """
        options = RunOptions(detail="translation", trace_format=self.format)
        (text,), _, _ = _engine.run(options.document(["linux-4k"], trace=self.path))
        report = Report(text).values
        executed, program = report["executed"], report["program"]
        return TraceInfo(
            self.path.stat().st_size,
            file_digest(self.path),
            *(executed[key] for key in ("instructions", "loads", "stores")),
            *(program[key] for key in ("processes", "threads")),
        )
