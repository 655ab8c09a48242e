"""Options of a run: keys, types, defaults and help of the engine's ``Document``.

Made by ``scripts/run-spec`` of ``crates/machine/src/spec.rs``; change that.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NotRequired, TypedDict

from contigua._engine import EngineError
from contigua.configs import Age


class RunSpec(TypedDict):
    """One design on one machine, and everything else that decides what a run finds."""

    design_name: str
    design: str
    machine_name: str
    machine: str
    memory: NotRequired[str | None]
    age: NotRequired[str]
    detail: NotRequired[str]
    seed: NotRequired[int]
    skip: NotRequired[int]
    warmup: NotRequired[int]
    instructions: NotRequired[int | None]
    simulated_seconds: NotRequired[float | None]
    holes: NotRequired[str | None]
    classify_misses: NotRequired[bool]
    cores: NotRequired[int]
    migrations: NotRequired[float]
    allocator: NotRequired[str | None]
    advised: NotRequired[Sequence[AdvisedMemorySpec]]
    timeline: NotRequired[str | Path | None]
    profile: NotRequired[str | Path | None]
    locality: NotRequired[bool]
    smaps: NotRequired[str | Path | None]
    mapped: NotRequired[bool]
    sampling: NotRequired[SamplingSpec | None]
    regions: NotRequired[RegionSpec | None]
    confidence: NotRequired[float]
    goal: NotRequired[float | None]
    checkpoints: NotRequired[Sequence[SaveSpec]]
    checkpoint: NotRequired[str | Path | None]


class AdvisedMemorySpec(TypedDict):
    """Memory of a process that gets `MADV_HUGEPAGE`."""

    process: int
    call: NotRequired[int | None]


class SamplingSpec(TypedDict):
    """Units of detail, and what lies between them. All in instructions but `most`."""

    distance: int
    warm: int
    detail: int
    seed: int
    most: int
    long_warm: NotRequired[int]


class WindowsRegionSpec(TypedDict):
    """By counts of instructions."""

    kind: Literal["windows"]
    warm: int
    windows: Sequence[WindowSpec]


class SimPointsRegionSpec(TypedDict):
    """Windows that stand for the whole program (Sherwood et al., "`SimPoint`", ASPLOS 2002)."""

    kind: Literal["sim_points"]
    warm: int
    points: Sequence[PointSpec]


class MarkersRegionSpec(TypedDict):
    """From a marker in the program's code to another one."""

    kind: Literal["markers"]
    keep_warm: bool


class ClientRegionSpec(TypedDict):
    """While a client loads the server."""

    kind: Literal["client"]
    keep_warm: bool


class FunctionRegionSpec(TypedDict):
    """Calls of a function."""

    kind: Literal["function"]
    name: str
    keep_warm: bool


#: Regions of the program that the user names.
RegionSpec = (
    WindowsRegionSpec
    | SimPointsRegionSpec
    | MarkersRegionSpec
    | ClientRegionSpec
    | FunctionRegionSpec
)


class WindowSpec(TypedDict):
    """Instructions of the program from one count to another."""

    begin: int
    end: int


class PointSpec(TypedDict):
    """A window, and the share of the program that it stands for."""

    begin: int
    end: int
    weight: float


class SaveSpec(TypedDict):
    """A checkpoint to save."""

    at: int
    file: str | Path


class ExecutionSpec(TypedDict):
    """An execution of a program, or a replay of a trace."""

    command: NotRequired[Sequence[str | Path] | None]
    trace: NotRequired[str | Path | None]
    trace_format: NotRequired[str]
    physical: NotRequired[str]
    seconds: NotRequired[float | None]
    record: NotRequired[str | Path | None]
    record_plan: NotRequired[RecordedSpec]
    root: NotRequired[str | Path | None]
    linux: NotRequired[str]
    randomize_va_space: NotRequired[bool]
    shmem_enabled: NotRequired[str | None]
    layout_seed: NotRequired[int | None]
    preload: NotRequired[Sequence[str | Path]]
    environment: NotRequired[Mapping[str, str]]
    clock: NotRequired[int | None]


class RecordedSpec(TypedDict):
    """Which instructions of a recording are kept, and how."""

    skip: NotRequired[int]
    sampling: NotRequired[SamplingSpec | None]


class DocumentSpec(TypedDict):
    """Designs that see one execution of a program, or one replay of a trace."""

    runs: Sequence[RunSpec]
    execution: ExecutionSpec


@dataclass(frozen=True, kw_only=True)
class RunKeys:
    """Options that the engine takes as they are.

    Attributes
    ----------
    memory
        Simulated memory, such as 8G; by default a snapshot's, or the machine's.
    age
        Histories of memory, separated by commas: fresh; scattered:P with P % of frames unmovable;
        partial, a random server of a fleet; full, one without free memory; PROFILE:TIME such as
        web:2h; snapshot:FILE.
    detail
        full: caches, and an instruction window in which what is independent overlaps; additive:
        caches, and stalls that add up, faster; translation: count translation events, no time,
        fastest.
    seed
        Seed of everything random.
    skip
        Instructions to fast-forward over first; only the operating system is simulated.
    warmup
        Instructions to simulate without counting.
    instructions
        Instructions to count, then stop.
    simulated_seconds
        Simulated time to count, such as 200ms, then stop; without a unit in seconds.
    holes
        Holes in the program's memory, separated by commas: SHARE:FRACTION:PATTERN:KIND such as
        0.5:0.1:dispersed:remapped; PATTERN is clustered or dispersed, KIND remapped or unallocated.
    classify_misses
        Count data TLB misses that a direct segment would avoid (in JSON).
    cores
        Cores that the program's threads run on, each with TLBs and caches of its own.
    migrations
        Migrate this many in-use pages per simulated second, using the design's mechanism (kernel
        shootdown or last-level cache).
    timeline
        Write what each core did when, for Perfetto (Chrome's trace format). With several designs,
        FILE.json becomes FILE.DESIGN.json for each.
    profile
        Write which instructions, mappings, threads and call stacks cause TLB misses, walks, faults
        and cache misses. Several designs as for the timeline.
    locality
        With a profile: count reuse distances of data accesses, too, for each mapping.
    smaps
        Write mappings and their memory of each process at its end, in the format of
        /proc/PID/smaps. Several designs as for the timeline.
    mapped
        Map all memory that a trace of another tool touches before it begins, in the order of
        addresses: first touches are no page faults. The trace is read twice.
    trace_format
        Who wrote the trace; drmemtrace is found by itself. Traces of other tools do not say what is
        mapped: all addresses are taken to be anonymous memory.
    physical
        Where pages of a drmemtrace trace lie: simulated, where designs place them; traced, where
        the traced machine had them (v2p.textproto or markers).
    seconds
        Stop the program after this time of this computer's clock, such as 30s; without a unit in
        seconds.
    record
        Also record the events here: all of them, or, where no design runs beside, those that skip
        and sample leave.
    root
        Files of another system, such as unpacked packages of Debian's arm64. PROGRAM is looked for
        in PATH's directories within DIR, or within DIR by an absolute path; it sees DIR's files
        first, and then this computer's.
    linux
        Version of Linux whose rules place the program's mappings, and say which may have huge
        pages.
    randomize_va_space
        Randomize the program's addresses as Linux does, by the seed: where the program, its
        mappings and its stack begin. With several seeds, the program is executed once for each.
    shmem_enabled
        Place the program's shared memory as Linux does under this setting of huge pages for it:
        aligned to 2 MB unless it is never or deny. By default, it is aligned if any of the designs
        has another.
    """

    memory: str | None = None
    age: str | Age = "fresh"
    detail: str = "full"
    seed: int = 1
    skip: int = 0
    warmup: int = 0
    instructions: int | None = None
    simulated_seconds: float | None = None
    holes: str = "none"
    classify_misses: bool = False
    cores: int = 1
    migrations: float = 0.0
    timeline: Path | None = None
    profile: Path | None = None
    locality: bool = False
    smaps: Path | None = None
    mapped: bool = False
    trace_format: str = "contigua"
    physical: str = "simulated"
    seconds: float | None = None
    record: Path | None = None
    root: Path | None = None
    linux: str = "6.18"
    randomize_va_space: bool = False
    shmem_enabled: str | None = None


#: Keys of a :class:`RunSpec` that are options of their own.
RUN_KEYS = (
    "memory",
    "age",
    "detail",
    "seed",
    "skip",
    "warmup",
    "instructions",
    "simulated_seconds",
    "holes",
    "classify_misses",
    "cores",
    "migrations",
    "timeline",
    "profile",
    "locality",
    "smaps",
    "mapped",
)
#: Those of an :class:`ExecutionSpec`.
EXECUTION_KEYS = (
    "trace_format",
    "physical",
    "seconds",
    "record",
    "root",
    "linux",
    "randomize_va_space",
    "shmem_enabled",
)


def document(value: Mapping[str, object]) -> bytes:
    """Write what crosses to the engine as JSON; names of files may be no UTF-8.

    Raises
    ------
    EngineError
        When a number is infinite or none, which JSON has not.
    """
    _check_finite(value)
    text = json.dumps(value, ensure_ascii=False, default=os.fspath)
    return text.encode("utf-8", "surrogateescape")


def _check_finite(value: Mapping[str, object]) -> None:
    for key, one in value.items():
        if isinstance(one, float) and not math.isfinite(one):
            raise EngineError(f"{key} = {one}: give a finite number")
        for inner in one if isinstance(one, list) else [one]:
            if isinstance(inner, Mapping):
                _check_finite(inner)
