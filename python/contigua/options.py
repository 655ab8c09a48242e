"""Options of a run: everything but the program and the designs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from contigua import _engine
from contigua.allocators import Preload, preload
from contigua.checkpoints import check_checkpoints, checkpoint_file, known_as
from contigua.configs import Age
from contigua.files import is_stream
from contigua.presets import Preset
from contigua.presets import designs as design_presets
from contigua.presets import machines as machine_presets
from contigua.regions import Regions
from contigua.sampling import Sampling


@dataclass(frozen=True)
class RunOptions:
    """Everything about a run but the program and the designs.

    Attributes
    ----------
    machine
        A :class:`~contigua.Machine`, the name of one, or path of its TOML file.
    memory
        Simulated memory, such as ``"8GiB"``; by default the snapshot's, if ``age`` is one, else the
        machine's own.
    age
        What memory went through before: ``"fresh"``; ``"scattered:P"``, P in percent of frames;
        ``"partial"``, a random server of a fleet whose tenants have left; ``"full"``, the same with
        files in all free memory; ``"PROFILE:TIME"`` such as ``"web:2h"``; ``"snapshot:FILE"``.
        Several, separated by commas, are run side by side. Or an :class:`~contigua.Age`.
    detail
        ``"full"``, caches and an instruction window that overlaps what does not depend on each
        other; ``"additive"``, caches and stalls that add up, which is faster; ``"translation"``,
        counts without time, which is fastest.
    seed
        Seed of everything random.
    seeds
        Several seeds: each configuration is simulated with every one of them, side by side on one
        execution, and tables show means with 95 % intervals. Empty: ``seed`` alone.
    skip, warmup, instructions
        The region of interest, in instructions: first fast-forward over ``skip`` (the operating
        system goes on), then simulate without counting, then count (``None``: to the end).
    seconds
        Stop a live program after this many seconds; what ran is reported.
    trace_format
        Who wrote a trace that is replayed: ``"contigua"``, ``"champsim"``, ``"lackey"``
        or ``"drmemtrace"``, which is found by itself. Traces of other tools do not say what is
        mapped: all addresses are taken to be anonymous memory.
    mapped
        Map all memory that a trace of another tool touches before it begins, in the order of
        addresses, as if the program had done so: first touches are no page faults. The trace is
        read twice.
    physical
        Where pages of a drmemtrace trace lie in physical memory: ``"simulated"``, where the design
        places them; ``"traced"``, where the traced machine had them (``v2p.textproto`` or markers).
    record
        Where to record the program's events as well: all of them, or, where no design runs beside,
        what ``skip`` and ``sample`` leave.
    holes
        Holes that the program's memory has: ``"SHARE:FRACTION:PATTERN:KIND"``, such as
        ``"0.5:0.1:dispersed:remapped"``: this share of its 2 MB pages has this share of holes,
        ``clustered`` or ``dispersed``, ``remapped`` elsewhere or ``unallocated`` until they are
        touched; ``"none"`` for none. Several, separated by commas, are run side by side.
    classify_misses
        Count data TLB misses by whether a primary region would hold their addresses.
    cores
        Cores of the simulated server, 1 to 64. Threads share them in simulated time.
    migrations
        Pages in use that are moved in a simulated second, by the mechanism that the design has.
    root
        Folder with the files of another system, such as unpacked packages of Debian's arm64:
        without a slash, the program's name is looked for in the directories of ``PATH`` within it,
        and an absolute path within it first. The program sees its files first, and then this
        computer's. The program's architecture decides which QEMU runs it.
    malloc
        The program's allocator: ``"libc"``, its C library's own; ``"contigua"``; or another
        library, by its path or by a name that the linker knows. Traces have theirs inside.
    malloc_options
        ``KEY=VALUE`` settings of the allocator; for ``"contigua"`` those of ``docs/malloc.md``.
    malloc_clock
        Nanoseconds that pass for Contigua's allocator with each instruction of the program, so that
        what it gives back over time depends on nothing else; ``None`` for the system's clock.
    timeline
        Where to write what each core did and when, in Chrome's trace format (Perfetto opens it).
        With several configurations, what they differ in is put before the file's ending.
    profile
        Where to write which instructions, mappings, threads and call stacks cause TLB misses,
        walks, faults and cache misses (:class:`~contigua.Attribution` reads it). Several
        configurations as for ``timeline``.
    sample
        Simulate units of the region in detail, drawn at random, and fast-forward between them:
        much faster, and every estimate gets an interval. ``None``: simulate all.
    regions
        What of the program is simulated in detail, named by its user; the program fast-forwards
        elsewhere. ``None``: what ``skip``, ``instructions`` and ``sample`` say.
    checkpoint
        Folder in which the simulated servers of a recording's replay are saved: in a folder for
        each of ``checkpoint_at``, a file for each configuration.
    checkpoint_at
        Counts of instructions since the start of the recording.
    resume
        One of those folders: the run goes on from there, and its reports equal those of a run from
        the start.
    """

    machine: str | Preset = "skylake"
    memory: str | None = None
    age: str | Age = "fresh"
    detail: str = "full"
    seed: int = 1
    seeds: tuple[int, ...] = ()
    skip: int = 0
    warmup: int = 0
    instructions: int | None = None
    seconds: float | None = None
    trace_format: str = "contigua"
    mapped: bool = False
    physical: str = "simulated"
    record: Path | None = None
    holes: str = "none"
    classify_misses: bool = False
    cores: int = 1
    migrations: float = 0.0
    root: Path | None = None
    malloc: str = "libc"
    malloc_options: tuple[str, ...] = ()
    malloc_clock: int | None = 100
    timeline: Path | None = None
    profile: Path | None = None
    sample: Sampling | None = None
    regions: Regions | None = None
    checkpoint: Path | None = None
    checkpoint_at: tuple[int, ...] = ()
    resume: Path | None = None

    def plan(self) -> _engine.Plan:
        """Say which instructions are simulated: how many are skipped, how others are sampled."""
        return self.skip, None if self.sample is None else self.sample.spec(self.seed)

    def preload(self) -> Preload:
        """Say what the program is started with.

        Raises
        ------
        AllocatorError
            When there is no such allocator, or it cannot be told what it is told.
        """
        return preload(self.malloc, self.malloc_options, self.malloc_clock)

    def spec(self, design: str | Preset, age: str | Age, holes: str) -> _engine.RunSpec:
        """Describe one configuration to the engine.

        Raises
        ------
        PresetError
            When the design or the machine does not exist.
        """
        machine = machine_presets.get(self.machine)
        preset = design_presets.get(design)
        return {
            "design_name": preset.name,
            "design": preset.text,
            "machine_name": machine.name,
            "machine": machine.text,
            "memory": self.memory,
            "age": str(age).strip(),
            "detail": self.detail,
            "seed": self.seed,
            "skip": self.skip,
            "warmup": self.warmup,
            "instructions": self.instructions,
            "holes": None if holes.strip() == "none" else holes.strip(),
            "classify_misses": self.classify_misses,
            "cores": self.cores,
            "migrations": self.migrations,
            "allocator": self.preload().name,
            "timeline": None if self.timeline is None else str(self.timeline),
            "profile": None if self.profile is None else str(self.profile),
            "sampling": self.plan()[1],
            "regions": None if self.regions is None else self.regions.spec(),
            "confidence": 0.95 if self.sample is None else self.sample.confidence,
            "goal": None if self.sample is None else self.sample.goal,
            "mapped": self.mapped,
        }

    def specs(self, designs: Sequence[str | Preset]) -> list[_engine.RunSpec]:
        """Describe every configuration: each age, scenario of holes and design.

        Raises
        ------
        PresetError
            When a design or the machine does not exist.
        """
        # An object is one age: the name of its file may have a comma.
        ages = [self.age.text] if isinstance(self.age, Age) else self.age.split(",")
        scenarios = self.holes.split(",")
        seeds = self.seeds or (self.seed,)
        found = [
            replace(self, seed=seed).spec(design, age, holes)
            for age in ages
            for holes in scenarios
            for design in designs
            for seed in seeds
        ]
        for spec in found:
            # One execution has one set of units.
            spec["sampling"] = replace(self, seed=seeds[0]).plan()[1]
        if (self.timeline or self.profile) is not None and len(found) > 1:
            varied = {
                "age": len(ages),
                "holes": len(scenarios),
                "design_name": len(designs),
                "seed": len(seeds),
            }
            for spec in found:
                values = [str(spec[key]) for key, count in varied.items() if count > 1]  # type: ignore[literal-required]
                if self.timeline is not None:
                    spec["timeline"] = str(file_of(self.timeline, values))
                if self.profile is not None:
                    spec["profile"] = str(file_of(self.profile, values))
        if self.checkpoint is not None or self.checkpoint_at or self.resume is not None:
            known = [
                [
                    *([spec["age"]] if len(ages) > 1 else []),
                    *([str(spec["holes"])] if len(scenarios) > 1 else []),
                    spec["design_name"],
                    *([str(spec["seed"])] if len(seeds) > 1 else []),
                ]
                for spec in found
            ]
            check_checkpoints(self.checkpoint, self.checkpoint_at, known)
            for spec, values in zip(found, known, strict=True):
                if self.checkpoint is not None:
                    spec["checkpoints"] = [
                        (count, str(checkpoint_file(self.checkpoint / str(count), values)))
                        for count in sorted(set(self.checkpoint_at))
                    ]
                if self.resume is not None:
                    spec["checkpoint"] = str(checkpoint_file(self.resume, values))
        return found


def file_of(file: Path, values: Sequence[str]) -> Path:
    """Put what a configuration is known by before a file's ending.

    Examples
    --------
    >>> file_of(Path("out/line.json"), ["scattered:3", "linux-4k"])
    PosixPath('out/line.scattered-3.linux-4k.json')
    """
    if is_stream(file):
        return file
    return file.with_name(f"{file.stem}.{known_as(values)}{file.suffix}")
