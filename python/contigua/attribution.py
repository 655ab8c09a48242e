"""Profiles: which code, which memory and which threads cause the cost of a run."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from contigua import _engine
from contigua.errors import ContiguaError
from contigua.locality import Locality, localities
from contigua.reading import parse_json, read_bytes, read_text
from contigua.sizes import size_text

#: The form of files that this version reads.
SCHEMA = 3
#: Bytes of a profile's file that are read at most.
MOST_PROFILE = 1 << 30
#: Bytes of names of generated code that are read at most.
MOST_GENERATED = 256 << 20


class ProfileError(ContiguaError):
    """A file is no profile, or is one of another version; or a profile cannot be made."""


@dataclass(frozen=True)
class Costs:
    """Costs of a group.

    Attributes
    ----------
    tlb_misses
        Accesses that missed the first-level TLB.
    walks
        Those of them that a page walk answered.
    translation_cycles
        Cycles from such a miss to its translation, added up over accesses that may overlap.
    faults, fault_cycles
        Page faults, and the kernel's cycles for them.
    data_misses, data_cycles
        Loads and stores that missed the first-level data cache, and cycles until their data came.
    """

    tlb_misses: int = 0
    walks: int = 0
    translation_cycles: int = 0
    faults: int = 0
    fault_cycles: int = 0
    data_misses: int = 0
    data_cycles: int = 0

    def __add__(self, other: Costs) -> Costs:
        """Return the sum of both."""
        return Costs(*(getattr(self, name) + getattr(other, name) for name in METRICS))


#: Measures that can be compared, by name.
METRICS = tuple(field.name for field in fields(Costs))


@dataclass(frozen=True)
class Frame:
    """An instruction in the source.

    Attributes
    ----------
    function
        Its function, or where it lies when that has no name.
    library
        Name of the file that its code is in; ``"[generated]"`` for code without a file.
    line
        Source file and line as ``file:line``; empty without debug information.
    address
        The address at which it ran.
    """

    function: str
    library: str
    line: str
    address: int


@dataclass(frozen=True)
class Row:
    """Costs of an instruction, by mapping, thread and call stack.

    Attributes
    ----------
    at
        The instruction.
    calls
        The call instructions that led there, outermost first.
    mapping
        Name of the memory that it accessed.
    site
        Name of the code that asked malloc for it; where that is not known, ``mapping``.
    process, thread
        Numbers of both, in the order in which they began.
    costs
        What it has cost.
    """

    at: Frame
    calls: tuple[Frame, ...]
    mapping: str
    site: str
    process: int
    thread: int
    costs: Costs


@dataclass(frozen=True)
class Cell:
    """Costs of some memory in a phase of the run.

    Attributes
    ----------
    mapping
        Name of the memory.
    start, size
        Its addresses: the first one, and how many.
    phase
        Number of the phase.
    costs
        What accesses to it have cost.
    """

    mapping: str
    start: int
    size: int
    phase: int
    costs: Costs


#: Groups by which costs can be added up.
KEYS: Mapping[str, Callable[[Row], str]] = {
    "function": lambda row: row.at.function,
    "line": lambda row: row.at.line or f"{row.at.library}+{row.at.address:#x}",
    "instruction": lambda row: f"{row.at.address:#x} {row.at.function}",
    "library": lambda row: row.at.library,
    "mapping": lambda row: row.mapping,
    "site": lambda row: row.site,
    "thread": lambda row: f"process {row.process}, thread {row.thread}",
    "stack": lambda row: ";".join([*(call.function for call in row.calls), row.at.function]),
}


class Attribution:
    """A profile that ``contigua profile`` or ``RunOptions(profile=FILE)`` has written.

    Parameters
    ----------
    values
        The file's content.

    Attributes
    ----------
    design, machine
        What was simulated.
    command
        The program and its arguments.
    instructions
        Instructions of the region of interest.
    cycles
        Cycles of the run; ``None`` where time was not simulated.
    translation_overhead
        Share of the cycles that translation costs, where time was simulated.
    sampled
        Only units were simulated in detail: costs are those of ``counted`` instructions.
    counted
        Instructions whose costs were counted.
    tlb_entries
        Entries of the machine's largest TLB that holds pages of 4 KB.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        if values.get("schema") != SCHEMA:
            raise ProfileError(f"no profile of this version (schema {SCHEMA})")
        self._values = values
        self.design: str = values["design"]
        self.machine: str = values["machine"]
        self.command: list[str] = values["command"]
        self.instructions: int = values["total_instructions"]
        self.cycles: int | None = values["cycles"]
        self.translation_overhead: float | None = values["translation_overhead"]
        self.sampled: bool = values["sampled"]
        self.counted: int = values["counted_instructions"]
        self.tlb_entries: int = values["tlb_entries"]

    @staticmethod
    def read(path: str | Path) -> Attribution:
        """Read a profile's file.

        Raises
        ------
        ProfileError
            When it is none.
        """
        try:
            return Attribution(parse_json(read_text(Path(path), MOST_PROFILE)))
        except (ValueError, KeyError, TypeError, AttributeError, ProfileError) as error:
            raise ProfileError(f"{path}: {error}") from error

    def to_json(self) -> str:
        """Return the file's content."""
        return json.dumps(self._values)

    @property
    def values(self) -> Mapping[str, Any]:
        """The file's content."""
        return self._values

    @cached_property
    def total(self) -> Costs:
        """The sum of all rows."""
        rows = self._values["rows"]
        return Costs(*(sum(row[name] for row in rows) for name in METRICS))

    def cycles_of(self, costs: Costs) -> float:
        """Estimate the cycles that translation and page faults of a part of the run cost.

        Misses overlap with other work and with each other, so their cycles do not add up to the
        time that they cost. That time is known for the whole run (``translation_overhead``); a
        part's share of it is taken to be its share of the misses' cycles. Faults of a sampled run
        are scaled to the whole.
        """
        overhead = (self.translation_overhead or 0.0) * (self.cycles or 0)
        total = max(self.total.translation_cycles, 1)
        scale = self.instructions / max(self.counted, 1)
        return overhead * costs.translation_cycles / total + scale * costs.fault_cycles

    @cached_property
    def places(self) -> list[tuple[str, int] | None]:
        """The file and the offset in it of each instruction; ``None`` for generated code."""
        found: list[tuple[str, int] | None] = []
        for at in self._values["instructions"]:
            mapping = self._values["mappings"][at["mapping"]]
            if mapping["file"] is None:
                found.append(None)
            else:
                offset = at["address"] - mapping["start"] + mapping["offset"]
                found.append((self._values["files"][mapping["file"]], offset))
        return found

    @cached_property
    def frames(self) -> list[Frame]:
        """Every instruction of the profile, named by the files that its code is in."""
        wanted: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        instructions, mappings = self._values["instructions"], self._values["mappings"]
        found = [_nowhere(at["address"]) for at in instructions]
        for index, (at, place) in enumerate(zip(instructions, self.places, strict=True)):
            if place is not None:
                wanted[place[0]][place[1]].append(index)
            elif names := self._generated.get(mappings[at["mapping"]]["process"]):
                found[index] = names.named(at["address"]) or found[index]
        for path, offsets in wanted.items():
            try:
                places = _engine.locate(path, list(offsets))
            except _engine.EngineError:
                # Deleted meanwhile, or no ELF file.
                places = [(None, None, None)] * len(offsets)
            library = Path(path).name
            for (offset, indices), found_at in zip(offsets.items(), places, strict=True):
                function, line, start = found_at
                for index in indices:
                    found[index] = Frame(
                        function=function or f"{library}+{start or offset:#x}",
                        library=library,
                        line="" if line is None else f"{line[0]}:{line[1]}",
                        address=instructions[index]["address"],
                    )
        return found

    @cached_property
    def _generated(self) -> dict[int, _Generated]:
        files = self._values["files"]
        maps = {
            int(process): Path(files[file]) for process, file in self._values["generated"].items()
        }
        return {process: _Generated.read(path) for process, path in maps.items() if path.is_file()}

    @cached_property
    def mappings(self) -> list[str]:
        """Names of the mappings: what they hold, how large they are, who made them.

        A name has as many of the functions that made the mapping, innermost first, as tell it from
        others; then a number where that is not enough. Of more than :data:`MOST_ALIKE` small ones
        that the same calls made, all have one name.
        """
        values = self._values["mappings"]
        stacks = _stacks_of(values)
        chains = [self._made_by(mapping) for mapping in values]
        names = [
            self._mapping_name(index, mapping, is_stack=index in stacks)
            for index, mapping in enumerate(values)
        ]
        shown = _told_apart(names, chains)
        shown = _numbered(shown, [mapping["file"] is None for mapping in values])
        alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for index, (mapping, chain) in enumerate(zip(values, chains, strict=True)):
            if chain and mapping["bytes"] < HUGE_BYTES:
                alike[mapping["kind"], *chain].append(index)
        many = [indices for indices in alike.values() if len(indices) > MOST_ALIKE]
        kinds = [values[indices[0]]["kind"] for indices in many]
        makers = _told_apart([""] * len(many), [chains[indices[0]] for indices in many])
        for indices, kind, by in zip(many, kinds, makers, strict=True):
            sizes = sorted(values[index]["bytes"] for index in indices)
            ends = dict.fromkeys((size_text(sizes[0]), size_text(sizes[-1])))
            for index in indices:
                shown[index] = f"{_what(kind)} {' to '.join(ends)}{by}, {len(indices):,} mappings"
        return shown

    @cached_property
    def sites(self) -> list[str]:
        """Names of the code that asked the program's malloc for memory, as those of mappings.

        Sites that cannot be told apart have one name. The first one stands for no site.
        """
        chains = [self._askers(site["by"]) for site in self._values["sites"]]
        return _told_apart(["malloc"] * len(chains), chains)

    def _mapping_name(self, index: int, mapping: Mapping[str, Any], *, is_stack: bool) -> str:
        kind = mapping["kind"]
        if kind == "unknown":
            return "[unknown]"
        if mapping["file"] is not None:
            return str(self._values["files"][mapping["file"]])
        if kind == "heap":
            return "[heap]"
        if kind == "image":
            if is_stack:
                return "[stack]"
            before = self._values["mappings"][index - 1] if index else {}
            if before.get("file") is not None:
                return f"{self._values['files'][before['file']]} (bss)"
            return "[image]"
        return f"{_what(kind)} {size_text(mapping['bytes'])}"

    def _made_by(self, mapping: Mapping[str, Any]) -> list[str]:
        """Return the functions that made a mapping, innermost first, without the C library's."""
        if mapping["by"] is None or mapping["file"] is not None or mapping["kind"] == "heap":
            return []
        return self._askers(mapping["by"])

    def _askers(self, by: Sequence[int]) -> list[str]:
        instruction, stack = by
        frames = [*self.calls[stack], self.frames[instruction]][::-1]
        own = [frame for frame in frames if not _is_plumbing(frame)] or frames[:1]
        return [
            f"{bare(frame.function)} ({_short(frame.line)})" if frame.line else bare(frame.function)
            for frame in own
        ]

    @cached_property
    def calls(self) -> list[tuple[Frame, ...]]:
        """The calls of each stack, outermost first."""
        found: list[tuple[Frame, ...]] = [()]
        for node in self._values["stacks"][1:]:
            found.append((*found[node["parent"]], self.frames[node["call"]]))
        return found

    @cached_property
    def localities(self) -> dict[str, Locality]:
        """The locality of each mapping, the one with most accesses first.

        Empty where the profile was made without ``locality``.
        """
        return localities(self._values, self.mappings)

    def rows(self) -> Iterator[Row]:
        """Return everything, as finely as it was counted."""
        for row in self._values["rows"]:
            yield Row(
                at=self.frames[row["instruction"]],
                calls=self.calls[row["stack"]],
                mapping=self.mappings[row["mapping"]],
                site=self.sites[row["site"]] if row["site"] else self.mappings[row["mapping"]],
                process=row["process"],
                thread=row["thread"],
                costs=Costs(*(row[name] for name in METRICS)),
            )

    def by(
        self, *keys: str, metric: str = "translation_cycles"
    ) -> list[tuple[tuple[str, ...], Costs]]:
        """Add costs up.

        Parameters
        ----------
        keys
            What to tell apart: of ``"function"``, ``"line"``, ``"instruction"``, ``"library"``,
            ``"mapping"``, ``"site"``, ``"thread"`` and ``"stack"``.
        metric
            What the result is sorted by, largest first: a field of :class:`Costs`.
        """
        sums: dict[tuple[str, ...], Costs] = defaultdict(Costs)
        for row in self.rows():
            key = tuple(KEYS[name](row) for name in keys)
            sums[key] = sums[key] + row.costs
        return sorted(sums.items(), key=lambda item: (-getattr(item[1], metric), item[0]))

    @property
    def has_sites(self) -> bool:
        """True if the program told of the blocks of its malloc (``RunOptions.sites``)."""
        return len(self._values["sites"]) > 1

    @property
    def phase(self) -> int:
        """Counted instructions of a phase of the run."""
        return int(self._values["phases"]["instructions"])

    @cached_property
    def memory_over_time(self) -> list[Cell]:
        """Costs of each part of a mapping in each phase: at most 128 parts and 64 phases."""
        return [
            Cell(
                self.mappings[row["mapping"]],
                row["start"],
                row["bytes"],
                row["phase"],
                Costs(*(row[name] for name in METRICS)),
            )
            for row in self._values["phases"]["memory"]
        ]

    def over_time(self, key: str) -> dict[str, list[Costs]]:
        """Return costs in each phase.

        Parameters
        ----------
        key
            What to tell apart: ``"function"``, ``"line"``, ``"instruction"``, ``"library"`` or
            ``"mapping"``.

        Raises
        ------
        ProfileError
            For another key: phases do not tell threads and stacks apart.
        """
        if key not in ("function", "line", "instruction", "library", "mapping"):
            raise ProfileError(f"phases are not told by {key}")
        if key == "mapping":
            cells = [(cell.mapping, cell.phase, cell.costs) for cell in self.memory_over_time]
        else:
            cells = [
                (
                    KEYS[key](Row(self.frames[row["instruction"]], (), "", "", 0, 0, Costs())),
                    row["phase"],
                    Costs(*(row[name] for name in METRICS)),
                )
                for row in self._values["phases"]["code"]
            ]
        count = -(-self.counted // self.phase)
        found: dict[str, list[Costs]] = defaultdict(lambda: [Costs()] * count)
        for name, phase, costs in cells:
            found[name][phase] += costs
        return dict(found)


class _Generated:
    """Names of a process's generated code, from its ``perf-PID.map``."""

    def __init__(self, ranges: Sequence[tuple[int, int, str]]) -> None:
        # Of code that was generated at the same place, the latest is the likeliest.
        latest = {start: (start, size, name) for start, size, name in ranges}
        self.ranges = sorted(latest.values())
        self.starts = [start for start, _, _ in self.ranges]

    @staticmethod
    def read(path: Path) -> _Generated:
        ranges = []
        for line in read_bytes(path, MOST_GENERATED).decode(errors="replace").splitlines():
            match = re.fullmatch(r"([0-9a-fA-F]+) ([0-9a-fA-F]+) (.+)", line.strip())
            if match is not None:
                ranges.append((int(match[1], 16), int(match[2], 16), match[3]))
        return _Generated(ranges)

    def named(self, address: int) -> Frame | None:
        place = bisect_right(self.starts, address) - 1
        if place < 0:
            return None
        start, size, name = self.ranges[place]
        return Frame(name, "[generated]", "", address) if address < start + size else None


def bare(function: str) -> str:
    """Return a C++ function's name without parameters, template arguments and return type.

    Examples
    --------
    >>> bare("int a::B<c::D, 4>::read<E>(char, F<G>) const")
    'a::B::read'
    >>> bare("main"), bare("std::ostream& operator<< (std::ostream&)")
    ('main', 'std::ostream& operator<< (std::ostream&)')
    """
    if "(" not in function or "operator" in function or not function[0].isalpha():
        return function
    depth, kept = 0, []
    for letter in function:
        depth -= letter in ")>"
        if depth == 0 and letter not in "()<>":
            kept.append(letter)
        depth += letter in "(<"
    words = "".join(kept).replace(" const", "").split()
    return words[-1] if words and depth == 0 else function


def _nowhere(address: int) -> Frame:
    # Four kilobytes of generated code are about a function.
    return Frame(f"[generated {address >> 12 << 12:#x}]", "[generated]", "", address)


def _what(kind: str) -> str:
    return {"thread-stack": "thread stack", "hugetlb": "HugeTLB"}.get(kind, kind)


def _chain(chain: Sequence[str], depth: int) -> str:
    return f" by {' < '.join(chain[:depth])}" if chain else ""


def _told_apart(names: Sequence[str], chains: Sequence[Sequence[str]]) -> list[str]:
    """Return names with as many functions as tell them apart, up to :data:`DEEPEST`."""
    shown = [name + _chain(chain, 1) for name, chain in zip(names, chains, strict=True)]
    for depth in range(2, DEEPEST + 1):
        alike = defaultdict(set)
        for name, chain in zip(shown, chains, strict=True):
            alike[name].add(tuple(chain))
        shown = [
            names[index] + _chain(chain, depth) if len(alike[shown[index]]) > 1 else shown[index]
            for index, chain in enumerate(chains)
        ]
    return shown


def _numbered(names: Sequence[str], wanted: Sequence[bool]) -> list[str]:
    """Return names with a number where one occurs several times and that is wanted."""
    counts: dict[str, int] = defaultdict(int)
    for name in names:
        counts[name] += 1
    seen: dict[str, int] = defaultdict(int)
    found = []
    for name, is_wanted in zip(names, wanted, strict=True):
        seen[name] += 1
        found.append(f"{name} #{seen[name]}" if is_wanted and counts[name] > 1 else name)
    return found


def _stacks_of(mappings: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the main stacks: the highest of what the loader maps without a file, by process."""
    highest: dict[int, int] = {}
    for index, mapping in enumerate(mappings):
        if mapping["kind"] == "image":
            before = highest.get(mapping["process"])
            if before is None or mappings[before]["start"] < mapping["start"]:
                highest[mapping["process"]] = index
    return set(highest.values())


#: Functions that the name of a mapping has at most.
DEEPEST = 3
#: Mappings below 2 MB, made by the same calls, that have names of their own.
MOST_ALIKE = 100
#: Bytes of a huge page.
HUGE_BYTES = 2 << 20
#: Functions by which programs ask for memory.
PLUMBING = ("malloc", "calloc", "realloc", "mmap", "mmap64", "sbrk", "brk", "operator new")


def _is_plumbing(frame: Frame) -> bool:
    name = frame.function
    return (
        frame.library.startswith(
            ("libc.so", "libc-", "ld-linux", "libstdc++", "libcontigua_malloc", "libcontigua_sites")
        )
        or frame.library == "[generated]"
        or name.startswith(PLUMBING)
    )


def _short(line: str) -> str:
    """Return the end of a path and its line."""
    return line.rsplit("/", 1)[-1]
