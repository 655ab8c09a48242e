"""Snapshots of real servers: files that ``contigua-node scan --snapshot`` writes.

A snapshot is one zstd frame: a line of JSON, runs of frames as numbers that end with a zero, and
the report as another line of JSON (``crates/live/src/snapshot.rs``). No byte of a number is zero,
so whoever wants the report alone looks for the first one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO

from contigua.extras import needs
from contigua.reading import ReadError, open_file, parse_json

FORMAT = "contigua-live-memory"
VERSION = 1

#: First bytes of zstd frames, and the bit of the next byte for a checksum at the end.
MAGIC = b"\x28\xb5\x2f\xfd"
CHECKSUM = 4
#: Bytes that are unpacked at a time.
PIECE = 1 << 20
#: Longest first line and longest report, as the writer has them.
LONGEST_HEADER = 1 << 16
LONGEST_REPORT = 1 << 26
#: Bytes of a whole snapshot: runs of 16 TB of memory, in which no two frames are alike.
LONGEST = 1 << 33


class Problem(Enum):
    """Why a file is not part of a report."""

    DAMAGED = "damaged, or no snapshots"
    NEWER = "from a newer version"
    OLDER = "from an older version"
    UNREADABLE = "unreadable"
    WITHOUT_FRAMES = "without frames (taken without the right to look)"


class SnapshotError(Exception):
    """A file that is no snapshot for this version.

    Parameters
    ----------
    problem
        Its kind.
    what
        What is wrong, in words.
    """

    def __init__(self, problem: Problem, what: str) -> None:
        super().__init__(what)
        self.problem = problem


@dataclass(frozen=True)
class Snapshot:
    """A snapshot's report.

    Attributes
    ----------
    path
        The file.
    report
        What ``contigua-node scan --json`` prints.
    """

    path: Path
    report: dict[str, Any]


def read_snapshot(path: Path) -> Snapshot:
    """Read the report of a snapshot, in memory that does not depend on the server's size.

    The whole file is unpacked, because only its end tells that nothing is damaged.

    Raises
    ------
    SnapshotError
        When it cannot be read.
    """
    # Half a second to import, which most uses can do without.
    with needs("sweeps"):
        import pyarrow

    try:
        with open_file(path) as file:
            start = file.read(5)
            if start[:4] != MAGIC or len(start) < 5 or not start[4] & CHECKSUM:
                raise SnapshotError(Problem.DAMAGED, "it is no zstd frame with a checksum")
            file.seek(0)
            with pyarrow.CompressedInputStream(file, "zstd") as data:
                report = _report(_pieces(data))
    except SnapshotError:
        raise
    except ReadError as error:
        raise SnapshotError(Problem.UNREADABLE, error.why) from error
    except OSError as error:
        problem = Problem.UNREADABLE if error.errno else Problem.DAMAGED
        raise SnapshotError(problem, f"{path}: {error.strerror or error}") from error
    return Snapshot(path, report)


def _pieces(data: BinaryIO) -> Iterator[bytes]:
    length = 0
    while piece := data.read(PIECE):
        length += len(piece)
        if length > LONGEST:
            raise SnapshotError(Problem.DAMAGED, "it unpacks to more than any server's frames")
        yield piece


def _report(pieces: Iterator[bytes]) -> dict[str, Any]:
    line, rest = _until(pieces, b"", b"\n", LONGEST_HEADER)
    header = _json(line)
    if header.get("format") != FORMAT:
        raise SnapshotError(Problem.DAMAGED, "it has another format")
    version = header.get("version")
    if not isinstance(version, int):
        raise SnapshotError(Problem.DAMAGED, "it has no version")
    if version != VERSION:
        problem = Problem.NEWER if version > VERSION else Problem.OLDER
        raise SnapshotError(problem, f"format {version}, this version reads {VERSION}")
    # Runs are passed over: what is before the zero is dropped as it comes.
    while (at := rest.find(b"\0")) < 0:
        rest = next(pieces, b"")
        if not rest:
            raise SnapshotError(Problem.DAMAGED, "it ends within the frames")
    line, rest = _until(pieces, rest[at + 1 :], b"\n", LONGEST_REPORT)
    if rest or next(pieces, b""):
        raise SnapshotError(Problem.DAMAGED, "something follows its end")
    return _json(line)


def _until(pieces: Iterator[bytes], rest: bytes, end: bytes, longest: int) -> tuple[bytes, bytes]:
    """Return what comes before ``end``, and what comes behind it."""
    parts = [rest]
    length = len(rest)
    while end not in parts[-1]:
        piece = next(pieces, b"")
        length += len(piece)
        if not piece or length > longest + PIECE:
            raise SnapshotError(Problem.DAMAGED, "it ends within a line")
        parts.append(piece)
    line, _, rest = b"".join(parts).partition(end)
    return line, rest


def _json(line: bytes) -> dict[str, Any]:
    try:
        value = parse_json(line)
    except ValueError as error:
        raise SnapshotError(Problem.DAMAGED, f"a line is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise SnapshotError(Problem.DAMAGED, "a line is no JSON object")
    return value


def find_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Return files as they are named, and all files in directories, in order."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for folder, folders, names in os.walk(path):
            folders.sort()
            # Hidden ones, and those that are being written, are nobody's yet.
            files = (name for name in sorted(names) if name[0] != "." and name[-5:] != ".part")
            yield from (Path(folder, name) for name in files)
