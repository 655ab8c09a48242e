"""Mappings of a profile: who made each, and how it is recognized in another execution."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

from contigua import _engine
from contigua.attribution import METRICS, Attribution, Costs, Frame, bare
from contigua.run_spec import AdvisedMemorySpec

#: Callers by which a mapping is recognized; ``contigua-node apply`` takes as many.
MOST_CALLERS = 4
#: Files whose code asks the kernel for a program's memory itself: their calls of ``mmap`` cannot be
#: replaced.
C_LIBRARY = ("libc.so", "libc-", "ld-linux", "ld-musl")


@dataclass(frozen=True)
class Call:
    """An instruction by its file.

    Attributes
    ----------
    file
        The file of its code; ``None`` for generated code.
    offset
        Its offset in the file.
    frame
        Its function and line.
    """

    file: str | None
    offset: int
    frame: Frame = field(compare=False)

    @property
    def text(self) -> str:
        """Function and line."""
        line = self.frame.line.rsplit("/", 1)[-1]
        return f"{bare(self.frame.function)} ({line})" if line else bare(self.frame.function)


@dataclass(frozen=True)
class Mapped:
    """A mapping, as it was made.

    Attributes
    ----------
    name
        Its name in tables.
    kind
        Its contents, as the profile's file has it: ``"anonymous"``, ``"heap"``, ``"file"``...
    process
        The process that made it.
    program
        The file that the process executed.
    bytes
        Bytes that were asked for, in whole pages; of the heap, as many as it ever had.
    call
        Its place among all that the process maps by calls; ``None`` for the heap, and for what the
        kernel maps with the program.
    calls
        The system call's instruction and the calls that led there, innermost first.
    costs
        What accesses to it cost.
    """

    name: str
    kind: str
    process: int
    program: str | None
    bytes: int
    call: int | None
    calls: tuple[Call, ...]
    costs: Costs

    @property
    def is_of_malloc(self) -> bool:
        """The C library got it for ``malloc``."""
        if self.kind == "heap":
            return True
        # Besides malloc, the C library maps stacks (of another kind) and files.
        return self.kind == "anonymous" and len(self.calls) > 1 and _is_c_library(self.calls[1])

    @property
    def advised(self) -> AdvisedMemorySpec:
        """How a simulated server is told to give it huge pages."""
        return {"process": self.process, "call": self.call}

    @property
    def callers(self) -> tuple[Call, ...]:
        """The call of ``mmap`` and those before it; empty where it cannot be told or replaced.

        They end where the C library calls: its updates are to change nothing.
        """
        if self.kind != "anonymous" or len(self.calls) < 2 or not _is_c_library(self.calls[0]):
            return ()
        found = self.calls[1 : 1 + MOST_CALLERS]
        return tuple(
            takewhile(lambda call: call.file is not None and not _is_c_library(call), found)
        )


def _is_c_library(call: Call) -> bool:
    return call.file is not None and Path(call.file).name.startswith(C_LIBRARY)


class MappedMemory:
    """All mappings of a profile, in the order in which they were made.

    Parameters
    ----------
    profile
        The profile.
    """

    def __init__(self, profile: Attribution) -> None:
        self.profile = profile
        self._values: dict[str, Any] = dict(profile.values)

    @cached_property
    def mappings(self) -> list[Mapped]:
        """Every mapping."""
        values = self._values["mappings"]
        programs = list(self._programs())
        costs = self._costs()
        return [
            Mapped(
                name=name,
                kind=mapping["kind"],
                process=mapping["process"],
                program=program,
                bytes=mapping["bytes"] if mapping["kind"] == "heap" else mapping["mapped"],
                call=mapping.get("call"),
                calls=tuple(map(self._call, self._stack(mapping["by"]))),
                costs=costs[index],
            )
            for index, (mapping, name, program) in enumerate(
                zip(values, self.profile.mappings, programs, strict=True)
            )
        ]

    def _costs(self) -> dict[int, Costs]:
        found: dict[int, Costs] = defaultdict(Costs)
        for row in self._values["rows"]:
            costs = Costs(*(row[name] for name in METRICS))
            found[row["mapping"]] = found[row["mapping"]] + costs
        return found

    def _stack(self, by: Sequence[int] | None) -> Iterator[int]:
        """Yield instructions, innermost first."""
        if by is None:
            return
        instruction, stack = by
        yield instruction
        nodes = self._values["stacks"]
        for _ in range(MOST_CALLERS):
            if not stack:
                return
            yield nodes[stack]["call"]
            stack = nodes[stack]["parent"]

    def _call(self, instruction: int) -> Call:
        at = self._values["instructions"][instruction]
        mapping = self._values["mappings"][at["mapping"]]
        file = mapping["file"]
        return Call(
            file=None if file is None else self._values["files"][file],
            offset=at["address"] - mapping["start"] + mapping["offset"],
            frame=self.profile.frames[instruction],
        )

    def _programs(self) -> Iterator[str | None]:
        """Yield the file that a mapping's process executes.

        The kernel maps a program before all others, and its loader; the loader's own calls map the
        libraries. A process that was forked executes what its parent does.
        """
        executed: dict[int, str | None] = {}
        is_loaded: dict[int, bool] = defaultdict(lambda: True)
        is_found: dict[int, bool] = defaultdict(bool)
        first: str | None = None
        for mapping in self._values["mappings"]:
            process, file = mapping["process"], mapping["file"]
            if mapping.get("image", False):
                if is_loaded[process]:
                    is_loaded[process] = is_found[process] = False
                if file is not None and not is_found[process]:
                    is_found[process] = True
                    executed[process] = self._values["files"][file]
                    first = first or executed[process]
            else:
                is_loaded[process] = True
            yield executed.get(process, first)


def build_id_of(file: str) -> str:
    """Return a file's build id in hexadecimal digits; empty where it has none."""
    try:
        found = _engine.build_id(file)
    except _engine.EngineError:
        return ""
    return (found or b"").hex()
