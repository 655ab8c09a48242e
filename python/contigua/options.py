"""Options of a run: everything but the program and the designs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from contigua.allocators import Preload, preload, with_sites
from contigua.checkpoints import check_checkpoints, checkpoint_file, known_as
from contigua.configs import Age
from contigua.files import is_stream
from contigua.loads import Commands
from contigua.presets import Preset
from contigua.presets import designs as design_presets
from contigua.presets import machines as machine_presets
from contigua.regions import Regions
from contigua.run_spec import (
    EXECUTION_KEYS,
    RUN_KEYS,
    AdvisedMemorySpec,
    DocumentSpec,
    ExecutionSpec,
    RecordedSpec,
    RunKeys,
    RunSpec,
    document,
)
from contigua.sampling import Sampling


@dataclass(frozen=True)
class RunOptions(RunKeys):
    """Everything about a run but the program and the designs.

    Those of :class:`~contigua.run_spec.RunKeys`, of which ``age`` and ``holes`` may have several,
    separated by commas, and:

    Attributes
    ----------
    machine
        A :class:`~contigua.Machine`, the name of one, or path of its TOML file.
    seeds
        Several seeds: each configuration is simulated with every one of them, side by side on one
        execution (with ``randomize_va_space`` one after another, each on its own), and tables show
        means with 95 % intervals. Empty: ``seed`` alone.
    malloc
        The program's allocator: ``"libc"``, its C library's own; ``"contigua"``; or another
        library, by its path or by a name that the linker knows. Traces have theirs inside.
    malloc_options
        ``KEY=VALUE`` settings of the allocator; for ``"contigua"`` those of ``docs/malloc.md``.
    malloc_clock
        Nanoseconds that pass for Contigua's allocator with each instruction of the program, so that
        what it gives back over time depends on nothing else; ``None`` for the system's clock.
    sample
        Simulate units of the region in detail, drawn at random, and fast-forward between them:
        much faster, and every estimate gets an interval. ``None``: simulate all.
    regions
        What of the program is simulated in detail, named by its user; the program fast-forwards
        elsewhere. ``None``: what ``skip``, ``instructions`` and ``sample`` say.
    client
        Commands that drive the program, which is a server: only what it does while they load it is
        measured, and reports have the latency of requests.
    advised
        Sets of memory that gets ``MADV_HUGEPAGE`` although the program does not ask. Each set is a
        configuration of its own on the same execution.
    sites
        Tell profiles which code asked for each block of the program's malloc: a library that tells
        of them is loaded first, whose instructions are the program's.
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
    seeds: tuple[int, ...] = ()
    malloc: str = "libc"
    malloc_options: tuple[str, ...] = ()
    malloc_clock: int | None = 100
    sample: Sampling | None = None
    regions: Regions | None = None
    client: Commands | None = None
    advised: tuple[tuple[AdvisedMemorySpec, ...], ...] = ((),)
    sites: bool = False
    checkpoint: Path | None = None
    checkpoint_at: tuple[int, ...] = ()
    resume: Path | None = None

    def plan(self) -> RecordedSpec:
        """Say which instructions are simulated: how many are skipped, how others are sampled."""
        sampling = None if self.sample is None else self.sample.spec(self.seed)
        return {"skip": self.skip, "sampling": sampling}

    def preload(self) -> Preload:
        """Say what the program is started with.

        Raises
        ------
        AllocatorError
            When there is no such allocator, or it cannot be told what it is told.
        """
        allocator = preload(self.malloc, self.malloc_options, self.malloc_clock)
        return with_sites(allocator) if self.sites else allocator

    def spec(self, design: str | Preset, age: str | Age, holes: str) -> RunSpec:
        """Describe one configuration to the engine.

        Raises
        ------
        PresetError
            When the design or the machine does not exist.
        """
        machine = machine_presets.get(self.machine)
        loaded = None if self.client is None else Regions.client()
        regions = self.regions or loaded
        preset = design_presets.get(design)
        spec: RunSpec = {
            "design_name": preset.name,
            "design": preset.text,
            "machine_name": machine.name,
            "machine": machine.text,
            "allocator": self.preload().name,
            "regions": None if regions is None else regions.spec(),
            "sampling": self.plan()["sampling"],
            "confidence": 0.95 if self.sample is None else self.sample.confidence,
            "goal": None if self.sample is None else self.sample.goal,
        }
        own = {
            **{key: getattr(self, key) for key in RUN_KEYS},
            "age": str(age).strip(),
            "holes": None if holes.strip() == "none" else holes.strip(),
        }
        return cast(RunSpec, {**spec, **own})

    def specs(self, designs: Sequence[str | Preset]) -> list[RunSpec]:
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
        found: list[RunSpec] = [
            {**replace(self, seed=seed).spec(design, age, holes), "advised": advised}
            for age in ages
            for holes in scenarios
            for design in designs
            for advised in self.advised
            for seed in seeds
        ]
        for spec in found:
            # One execution has one set of units.
            spec["sampling"] = replace(self, seed=seeds[0]).plan()["sampling"]
            # ... and one sequence of data accesses.
            spec["locality"] = self.locality and spec is found[0]
        written = {"timeline": self.timeline, "profile": self.profile, "smaps": self.smaps}
        if any(file is not None for file in written.values()) and len(found) > 1:
            varied = {
                "age": len(ages),
                "holes": len(scenarios),
                "design_name": len(designs),
                "seed": len(seeds),
            }
            for spec in found:
                values = [str(spec[key]) for key, count in varied.items() if count > 1]  # type: ignore[literal-required]
                for key, file in written.items():
                    if file is not None:
                        spec[key] = file_of(file, values)  # type: ignore[literal-required]
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
                        {"at": count, "file": checkpoint_file(self.checkpoint / str(count), values)}
                        for count in sorted(set(self.checkpoint_at))
                    ]
                if self.resume is not None:
                    spec["checkpoint"] = checkpoint_file(self.resume, values)
        return found

    def executions(self) -> tuple[int, ...]:
        """Return the seeds of the program's executions: one, unless seeds decide what it does."""
        seeds = self.seeds or (self.seed,)
        return seeds if self.randomize_va_space else seeds[:1]

    def addresses(self) -> ExecutionSpec:
        """Describe the choice of the program's addresses, as far as it is not the default."""
        keys = ("linux", "randomize_va_space", "shmem_enabled")
        default = RunKeys()
        own = {key: getattr(self, key) for key in keys}
        changed = {key: value for key, value in own.items() if value != getattr(default, key)}
        if self.randomize_va_space:
            changed["layout_seed"] = self.executions()[0]
        return cast(ExecutionSpec, changed)

    def document(
        self,
        designs: Sequence[str | Preset],
        *,
        command: Sequence[str] | None = None,
        trace: str | Path | None = None,
        execution: int | None = None,
    ) -> bytes:
        """Describe designs and what they see, a program or a trace, to the engine.

        Parameters
        ----------
        designs, command, trace
            As :func:`contigua.run` has them.
        execution
            One of several :meth:`executions`, by its seed.

        Raises
        ------
        PresetError
            When a design or the machine does not exist.
        """
        runs, before = self.specs(designs), self.preload()
        if execution is not None and len(self.executions()) > 1:
            runs = [run for run in runs if run["seed"] == execution]
        own = {
            **{key: getattr(self, key) for key in EXECUTION_KEYS},
            "layout_seed": self.executions()[0] if execution is None else execution,
            "command": None if command is None else list(command),
            "trace": trace,
            **before.spec(),
            # Where designs run beside, everything is recorded.
            "record_plan": {} if runs else self.plan(),
        }
        whole: DocumentSpec = {"runs": runs, "execution": cast(ExecutionSpec, own)}
        return document(whole)


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
