"""Results that outlive an interruption, one line of a file for each."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TypeVar

from contigua.files import FileError, open_log
from contigua.reading import open_file

T = TypeVar("T")


class Kept:
    """Finished parts of a long computation in a file, to which any thread may add.

    Parameters
    ----------
    path
        The file; without one nothing outlives this object.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.values: dict[str, Any] = {}
        self.lock = threading.Lock()
        self.file: BinaryIO | None = None

    def __enter__(self) -> Kept:
        """Read what is there. A last line that was cut short is passed over."""
        lines: list[bytes] = []
        if self.path is not None and self.path.exists():
            with open_file(self.path) as file:
                lines = file.read().splitlines()
        for line in lines:
            try:
                entry = json.loads(line)
                self.values[entry["key"]] = entry["value"]
            except (ValueError, KeyError, TypeError):
                continue
        return self

    def add(self, key: str, value: T) -> T:
        """Keep what JSON can hold, and return it as it is when it is read."""
        line = json.dumps({"key": key, "value": value})
        with self.lock:
            read: T = json.loads(line)["value"]
            self.values[key] = read
            if self.path is None:
                return read
            try:
                if self.file is None:
                    self.file = open_log(self.path)
                    # A line of its own, whatever an interruption left behind.
                    if self.file.tell() > 0 and not self.path.read_bytes().endswith(b"\n"):
                        self.file.write(b"\n")
                self.file.write(line.encode() + b"\n")
                self.file.flush()
            except OSError as error:
                raise FileError(f"{self.path}: {error.strerror}") from error
        return read

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()


def key_of(*parts: object) -> str:
    """Hash what decides a result and JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
