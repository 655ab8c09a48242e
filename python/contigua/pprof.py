"""Profiles for ``pprof``: the gzipped protocol buffer of its ``proto/profile.proto``."""

from __future__ import annotations

import gzip
from collections.abc import Iterable

from contigua.attribution import METRICS, Attribution, Frame

#: Units of the metrics; of all others, events are counted.
CYCLES = "cycles"
#: The time in a gzip file's header: equal profiles give equal bytes.
NO_TIME = 0


def pprof_of(profile: Attribution) -> bytes:
    """Return a profile in pprof's form: metrics are sample types, memory, site and thread labels.

    Addresses are those of the run; functions and lines are named in the file, so that pprof needs
    no binary.
    """
    written = _Writer()
    samples = []
    for row in profile.rows():
        frames = (row.at, *reversed(row.calls))
        values = [getattr(row.costs, metric) for metric in METRICS]
        labels = {"memory": row.mapping, "site": row.site, "thread": f"{row.process}.{row.thread}"}
        samples.append(
            _numbers(1, [written.location(frame) for frame in frames])
            + _numbers(2, values)
            + b"".join(
                _message(3, _number(1, written.text(key)) + _number(2, written.text(value)))
                for key, value in labels.items()
            )
        )
    types = []
    for metric in METRICS:
        unit = CYCLES if metric.endswith("_cycles") else "count"
        types.append(_number(1, written.text(metric)) + _number(2, written.text(unit)))
    comment = f"{' '.join(profile.command)} under {profile.design} on {profile.machine}"
    parts = [
        *(_message(1, of) for of in types),
        *(_message(2, sample) for sample in samples),
        *(_message(4, location) for location in written.locations.values()),
        *(_message(5, function) for function in written.functions.values()),
    ]
    last = _numbers(13, [written.text(comment)]) + _number(14, written.text("translation_cycles"))
    texts = [_message(6, text.encode(errors="replace")) for text in written.texts]
    return gzip.compress(b"".join([*parts, *texts, last]), mtime=NO_TIME)


class _Writer:
    """Tables of a profile; numbers of locations and functions begin at 1, of texts at 0."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {"": 0}
        self.functions: dict[tuple[str, str], bytes] = {}
        self.locations: dict[Frame, bytes] = {}
        self._function_numbers: dict[tuple[str, str], int] = {}
        self._location_numbers: dict[Frame, int] = {}

    def text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def _function(self, name: str, file: str) -> int:
        key = (name, file)
        if key not in self._function_numbers:
            number = self._function_numbers[key] = len(self._function_numbers) + 1
            text = self.text(name)
            self.functions[key] = (
                _number(1, number)
                + _number(2, text)
                + _number(3, text)
                + _number(4, self.text(file))
            )
        return self._function_numbers[key]

    def location(self, frame: Frame) -> int:
        if frame not in self._location_numbers:
            number = self._location_numbers[frame] = len(self._location_numbers) + 1
            file, _, line = frame.line.rpartition(":")
            function = self._function(frame.function, file or frame.library)
            place = _number(1, function) + _number(2, int(line) if line.isdigit() else 0)
            self.locations[frame] = (
                _number(1, number) + _number(3, frame.address) + _message(4, place)
            )
        return self._location_numbers[frame]


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(field: int, value: int) -> bytes:
    """Write a field that is a number; 0 is what is not written."""
    return _varint(field << 3) + _varint(value) if value else b""


def _message(field: int, content: bytes) -> bytes:
    """Write a field that is a message or a text."""
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _numbers(field: int, values: Iterable[int]) -> bytes:
    """Write a field that is a list of numbers."""
    return _message(field, b"".join(map(_varint, values)))
