"""Running designs on a program or a trace."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from contigua import _engine
from contigua._engine import EngineError
from contigua.allocators import AllocatorError
from contigua.files import INTERRUPTED, FileError
from contigua.options import RunOptions
from contigua.presets import Preset
from contigua.programs.execute import Driver, interruptible
from contigua.programs.program import ProgramError
from contigua.progress import Progress
from contigua.reports import Report
from contigua.results import Results
from contigua.traces import Trace

#: Ends of runs that are over before their programs.
OVER = ("instructions", "time", "interrupted")


class OutputsError(FileError):
    """A recording, a timeline or a checkpoint could not be written.

    Attributes
    ----------
    results
        What ran; nothing of it is lost.
    failures
        Why, for each such output.
    """

    def __init__(self, failures: Sequence[str], results: Results) -> None:
        super().__init__("; ".join(failures))
        self.failures = list(failures)
        self.results = results


def run(
    command: Sequence[str] | None = None,
    *,
    trace: str | Path | Trace | None = None,
    designs: Sequence[str | Preset] = ("linux-4k", "linux-thp"),
    options: RunOptions | None = None,
    progress: Progress | None = None,
) -> Results:
    """Run designs on one execution of a program, or on one recorded trace.

    With ``randomize_va_space``, the program is executed once for each seed.

    Parameters
    ----------
    command
        The program and its arguments. It runs unmodified, under QEMU's user mode.
    trace
        A trace to replay instead: its path, or a :class:`~contigua.Trace`, which knows its format.
    designs
        Each a :class:`~contigua.Design`, the name of one, or path of its TOML file. All see the
        same execution.
    options
        Everything else.
    progress
        Called a few times a second with (instructions, batches behind) for each design.

    Returns
    -------
    Results
        One report for each age, scenario of holes, design and seed, and the program's exit status.
        After an interrupt the reports say so (``complete``, ``ended``), and the status is 130.

    Raises
    ------
    PresetError
        When a design or machine does not exist.
    ProgramError
        When the server does not answer, or its client fails.
    AllocatorError
        When the allocator does not exist, or there is no program to give it to.
    EngineError
        When the program cannot be run or simulated; the message says what to do.
    OutputsError
        When the recording, a timeline or a checkpoint could not be written; it has the results.
    CheckpointError
        When checkpoints are wanted that cannot be saved or found.

    Examples
    --------
    >>> from contigua import Age, Design
    >>> few = Design("perforated").with_({"translation.perforated.most_holes": 8}, name="few")
    >>> options = RunOptions(memory="256MiB", age=Age.scattered(3), detail="translation")
    >>> results = run(["/bin/true"], designs=["linux-thp", few], options=options)
    >>> list(results.to_pandas()["design"])
    ['linux-thp', 'few']
    """
    options = options or RunOptions()
    if command is None and options.preload().name is not None:
        raise AllocatorError("a trace has its allocator inside: record it with another one")
    if command is None and options.client is not None:
        raise ProgramError("a trace needs no client: what its server was asked is inside")
    if isinstance(trace, Trace):
        options, trace = replace(options, trace_format=trace.format), trace.path
    seeds = options.executions()
    if len(seeds) > 1 and options.record is not None:
        raise EngineError("randomize_va_space: each seed is an execution of its own; record one")
    found: list[list[Report]] = []
    exit_code, failures = 0, []
    for seed in seeds:
        told = options.document(designs, command=command, trace=trace, execution=seed)
        of_seed, status, failed = _execute(told, options, progress)
        found.append(of_seed)
        exit_code = exit_code or status
        failures += failed
        if status == INTERRUPTED:
            break
    # Of each configuration, its seeds follow each other.
    reports = tuple(report for of_seeds in zip(*found, strict=True) for report in of_seeds)
    results = Results(reports, exit_code)
    if failures:
        raise OutputsError(failures, results)
    return results


def _execute(
    told: bytes, options: RunOptions, progress: Progress | None
) -> tuple[list[Report], int, list[str]]:
    """Run what a document says; return reports, the exit status, and why outputs are not there."""
    with (
        tempfile.TemporaryDirectory(prefix="contigua-") as folder,
        Driver(options.client, Path(folder), _engine.Load()) as client,
    ):
        watched = progress if options.client is None else client.watched(progress or interruptible)
        texts, exit_code, failures = _engine.run(told, watched, client.load)
        reports = list(map(Report, texts))
        client.finish(is_cut_short=any(one.values["ended"] in OVER for one in reports))
    return reports, exit_code, failures
