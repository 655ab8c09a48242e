"""Advice: what to change for a program, in a file that ``contigua-node apply`` reads.

The form of the file is that of ``crates/node/src/commands/apply/advice.rs``, with a schema in
``docs/reference/node-advice.schema.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tomli_w

from contigua import _engine
from contigua.allocators import LIBRARY as MALLOC
from contigua.attribution import ProfileError
from contigua.mapped import MOST_CALLERS, Call, build_id_of
from contigua.settings import Tried, fresh_values
from contigua.sizes import size_text

#: The version of the file's form.
VERSION = 2
#: The library that ``contigua-node apply`` preloads, and its variable.
LIBRARY, RULES = "libcontigua_apply.so", "CONTIGUA_APPLY"
#: Where glibc reads its settings.
TUNABLES, MALLOC_HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
#: Callers that a sentence names.
NAMED = 2

Action = Literal["huge-pages", "malloc-huge-pages", "contigua-malloc", "huge-code"]


@dataclass(frozen=True)
class Rule:
    """Recognizes a mapping in another execution: private memory of no file.

    Attributes
    ----------
    bytes
        Bytes that ``mmap`` is asked for, in whole pages.
    order
        Its place among the mappings of a process with these bytes and callers, from 1 on; 0 for
        each of them.
    of
        How many of them there were.
    callers
        The call of ``mmap`` and the calls that led there, innermost first.
    """

    bytes: int
    order: int
    of: int
    callers: tuple[Call, ...] = ()

    def values(self) -> dict[str, Any]:
        """Return what the file has of it."""
        return {
            "bytes": self.bytes,
            "order": self.order,
            "of": self.of,
            "callers": [
                {
                    "build_id": build_id_of(call.file or ""),
                    "offset": call.offset,
                    "file": call.file or "",
                    "function": call.text,
                }
                for call in self.callers
            ],
        }


@dataclass(frozen=True)
class Change:
    """A change of a program's memory.

    Attributes
    ----------
    name
        Name of the memory.
    action
        The change.
    rule
        The mapping, for ``"huge-pages"``.
    """

    name: str
    action: Action
    rule: Rule | None = None

    @property
    def by_hand(self) -> str:
        """How a programmer or an operator does the same."""
        if self.action == "malloc-huge-pages":
            return f"set {TUNABLES}={MALLOC_HUGE_PAGES} (glibc 2.35 or later)"
        if self.action == "contigua-malloc":
            return f"set LD_PRELOAD={MALLOC}.0, or link with -lcontigua_malloc"
        if self.action == "huge-code":
            return "copy the code to huge pages at the start, as BOLT's --hugify does"
        assert self.rule is not None
        where = ", called by ".join(call.text for call in self.rule.callers[:NAMED])
        where = f" in {where}" if where else ""
        return (
            f"after the mmap of {size_text(self.rule.bytes)}{where}: madvise(address, "
            f"{self.rule.bytes}, MADV_HUGEPAGE), with address a multiple of 2 MB"
        )


@dataclass(frozen=True)
class Item:
    """Advice on one thing.

    Attributes
    ----------
    change
        What to do.
    saving, half_width
        Saving that is expected, as a share of the cycles, and half of its 95 % interval; 0 for
        complete runs.
    is_run
        A run with the change was compared with the run without; otherwise it is an estimate.
    memory_bytes
        Memory that it costs at the peak; unknown for estimates.
    fresh
        Saving on fresh memory and half of its interval, where the server's is not.
    """

    change: Change
    saving: float
    half_width: float = 0.0
    is_run: bool = False
    memory_bytes: int | None = None
    fresh: tuple[float, float] | None = None

    def values(self) -> dict[str, Any]:
        """Return what the file has of it."""
        memory = {} if self.memory_bytes is None else {"memory_bytes": self.memory_bytes}
        rule = self.change.rule
        return {
            "name": self.change.name,
            "action": self.change.action,
            "saving": self.saving,
            "half_width": self.half_width,
            **fresh_values(self.fresh),
            "rests_on": "run" if self.is_run else "estimate",
            **memory,
            "by_hand": self.change.by_hand,
            **({} if rule is None else {"mapping": rule.values()}),
        }


@dataclass(frozen=True)
class Rejected:
    """Something that does not help.

    Attributes
    ----------
    name
        Name of the memory, or the change.
    why
        The reason.
    """

    name: str
    why: str


@dataclass(frozen=True)
class Advice:
    """Changes that help a program, and those that do not.

    Attributes
    ----------
    program
        The file that is executed.
    command
        The command that was profiled.
    design, machine, cycles
        The run without the advice.
    items
        What to change, the largest saving first.
    rejected
        What does not help.
    settings
        Settings of the whole server that help, the largest saving first.
    saving, half_width
        Saving of all items together, and half of its interval; ``None`` where that was not run.
    """

    program: str
    command: tuple[str, ...]
    design: str
    machine: str
    cycles: int
    items: tuple[Item, ...]
    rejected: tuple[Rejected, ...]
    settings: tuple[Tried, ...] = ()
    saving: float | None = None
    half_width: float = 0.0

    def to_toml(self) -> str:
        """Return the file's content."""
        together = {} if self.saving is None else {"saving": self.saving}
        values: dict[str, Any] = {
            "version": VERSION,
            "program": {
                "path": self.program,
                "build_id": build_id_of(self.program),
                "command": list(self.command),
            },
            "basis": {
                "contigua": _engine.VERSION,
                "design": self.design,
                "machine": self.machine,
                "cycles": self.cycles,
                **together,
                "half_width": self.half_width,
            },
            "advice": [item.values() for item in self.items],
            "server": [tried.values() for tried in self.settings],
            "rejected": [{"name": one.name, "why": one.why} for one in self.rejected],
        }
        return tomli_w.dumps(values)


def rules_of(program: str, changes: Sequence[Change]) -> str | None:
    """Return the library's variable for changes; ``None`` where it has nothing to do.

    Its form is that of ``crates/apply/src/rules.rs``.
    """
    done = [change for change in changes if change.action in ("huge-pages", "huge-code")]
    if not done:
        return None
    objects: list[str] = []
    rules = []
    for rule in (change.rule for change in done):
        if rule is None:
            rules.append("c")
            continue
        callers = []
        for call in rule.callers[:MOST_CALLERS]:
            build_id = build_id_of(call.file or "")
            if build_id not in objects:
                objects.append(build_id)
            callers.append(f"{objects.index(build_id)}+{call.offset:x}")
        rules.append(f"m:{rule.bytes}:{rule.order}:{','.join(callers)}")
    identity = build_id_of(program) or f"={program.encode().hex()}"
    return ";".join(["1", identity, ",".join(objects), *rules])


def environment_of(program: str, changes: Sequence[Change]) -> Mapping[str, str]:
    """Return the variables with which a program has changes, beside libraries to preload.

    Raises
    ------
    ProfileError
        When two of them exclude each other.
    """
    actions = {change.action for change in changes}
    if {"malloc-huge-pages", "contigua-malloc"} <= actions:
        raise ProfileError("a program has one malloc: choose its C library's or Contigua's")
    found = {}
    if (rules := rules_of(program, changes)) is not None:
        found[RULES] = rules
    if "malloc-huge-pages" in actions:
        found[TUNABLES] = MALLOC_HUGE_PAGES
    return found
