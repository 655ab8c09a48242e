"""Running programs for experiments: one execution feeds every configuration.

A cell is one configuration: a design, and what differs from the other cells' options. Servers are
programs that somebody else must drive: their client runs natively beside them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from contigua import _engine
from contigua.kept import Kept, key_of
from contigua.options import RunOptions
from contigua.presets import Preset
from contigua.programs.catalogue import catalogue
from contigua.programs.databases import mariadb
from contigua.programs.execute import execute, interruptible, run_whole
from contigua.programs.program import MissingProgramError, Program, ProgramError, workload
from contigua.programs.servers import Load, memcached, redis_store
from contigua.programs.tpcc import Company
from contigua.progress import Progress
from contigua.regions import Regions
from contigua.reports import Report
from contigua.run_spec import RunSpec

#: As many configurations read a running program at most; for more it is recorded first.
READERS = 24
#: As many replay a recorded one at a time.
REPLAYS = 8


class Cell(NamedTuple):
    """One configuration.

    Attributes
    ----------
    design
        Name of the design.
    holes
        Scenario of holes, or ``"none"``.
    age, memory, cores, migrations, machine, seed
        As in :class:`~contigua.options.RunOptions`; ``None`` for what the options say.
    preset
        The design, where it is an experiment's own.
    """

    design: str
    holes: str = "none"
    age: str | None = None
    memory: str | None = None
    cores: int | None = None
    migrations: float | None = None
    machine: Preset | None = None
    seed: int | None = None
    preset: Preset | None = None

    def spec(self, options: RunOptions) -> RunSpec:
        """Describe the cell to the engine."""
        apart = ("design", "holes", "preset")
        own = {k: v for k, v in self._asdict().items() if v is not None and k not in apart}
        options = replace(options, **own)
        return options.spec(self.preset or self.design, options.age, self.holes)


Values = dict[str, Any]


def run_cells(
    program: Program,
    cells: Sequence[Cell],
    options: RunOptions,
    progress: Callable[[float], None] | None = None,
    *,
    record: bool = False,
    failures: dict[Cell, str] | None = None,
    kept: Kept | None = None,
) -> dict[Cell, Values]:
    """Execute a program once and simulate it in every cell.

    Parameters
    ----------
    program
        The program.
    cells, options
        The configurations, and what they have in common.
    progress
        Called with the part that is done.
    record
        Whether to record the program first, so that it does not wait for slow configurations.
    failures
        Takes the cells that cannot be simulated, such as those whose server has no memory left, and
        why; the others go on. Without it, the first one ends the run. The program is recorded
        first.
    kept
        Has the reports of programs that ran before, and takes this one's. The program's name and
        command, and the configurations, tell it from others.

    Returns
    -------
    dict
        The report of each cell. If the client of a server counts its requests, they are under
        ``client``, ``requests``.

    Raises
    ------
    MissingProgramError
        When the program is not there.
    ProgramError
        When it fails, or its client does.
    """
    missing = program.missing()
    if missing is not None:
        raise MissingProgramError(missing)
    specs = [cell.spec(options) for cell in cells]
    if kept is None:
        return _run(program, cells, specs, options, progress, record, failures)
    key = key_of(program.name, program.command, specs)
    if key not in kept.values:
        failed: dict[Cell, str] | None = None if failures is None else {}
        reports = _run(program, cells, specs, options, progress, record, failed)
        places = {cell: place for place, cell in enumerate(cells)}
        kept.add(
            key,
            [
                [[places[cell], one] for cell, one in part.items()]
                for part in (reports, failed or {})
            ],
        )
    finished, refused = kept.values[key]
    if failures is not None:
        failures |= {cells[place]: reason for place, reason in refused}
    return {cells[place]: report for place, report in finished}


def _run(
    program: Program,
    cells: Sequence[Cell],
    specs: Sequence[RunSpec],
    options: RunOptions,
    progress: Callable[[float], None] | None,
    record: bool,
    failures: dict[Cell, str] | None,
) -> dict[Cell, Values]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="contigua-")))
        needs_trace = record or failures is not None or len(specs) > READERS
        trace = folder / "events.trace" if needs_trace else None
        reports, requests = execute(
            program,
            folder,
            specs if trace is None else [],
            record=trace,
            load=None if options.regions is None else _engine.Load(),
            progress=interruptible if progress is None or trace else _fraction(progress),
        )
        if trace is not None:
            replayed: dict[Cell, str] = {}
            for start in range(0, len(specs), REPLAYS):
                batch = list(zip(cells, specs, strict=True))[start : start + REPLAYS]
                replayed |= _replay(batch, trace, failures)
                if progress is not None:
                    progress(min(1.0, (start + REPLAYS) / len(specs)))
            cells, reports = list(replayed), list(replayed.values())
    found = [Report(report).values for report in reports]
    if requests is not None:
        for values in found:
            values["client"] = {"requests": requests}
    return dict(zip(cells, found, strict=True))


def _replay(
    batch: Sequence[tuple[Cell, RunSpec]], trace: Path, failures: dict[Cell, str] | None
) -> dict[Cell, str]:
    """Replay a trace in some cells at a time; one by one to find those that cannot be simulated."""
    try:
        reports, _ = run_whole([spec for _, spec in batch], {"trace": trace})
        return dict(zip((cell for cell, _ in batch), reports, strict=True))
    except _engine.EngineError as error:
        if failures is None:
            raise
        if len(batch) == 1:
            failures[batch[0][0]] = str(error)
            return {}
    return {cell: text for one in batch for cell, text in _replay([one], trace, failures).items()}


def _fraction(progress: Callable[[float], None]) -> Progress:
    def called(state: list[tuple[int, int]]) -> None:
        # How long a program will run is not known: half of what is left at each look.
        done = min((instructions for instructions, _ in state), default=0)
        progress(1 - 1 / (1 + done / 1e8))

    return called


def sized(name: str, part: dict[str, Any], options: RunOptions) -> tuple[Program, RunOptions]:
    """Return a program at a size of its own, and options that count its main part alone.

    Parameters
    ----------
    part
        Of a workload: its ``arguments``, the ``function``, and how many ``instructions`` of it are
        counted. Of MariaDB: ``warehouses`` and what their rows are divided by (``divisor``), and
        transactions ``before`` those that are counted.
    """
    if "warehouses" in part:
        company = Company(part["warehouses"], part["divisor"])
        server = mariadb(company, part["transactions"], before=part["before"])
        return server, replace(options, regions=Regions.client())
    command = workload(name, *part["arguments"])
    # A shell starts it.
    regions = Regions.function(f"{part['function']}@{command[0]}")
    counted = replace(options, regions=regions, instructions=part["instructions"])
    return Program(name, command), counted


def main_parts(
    inputs: dict[str, Any], options: RunOptions
) -> tuple[list[tuple[Program, RunOptions]], list[str]]:
    """Return servers and workloads at their sizes, with options that count their main part.

    Parameters
    ----------
    inputs
        ``stores`` has the loads of memcached, which has ``memcached_mib``, and of redis; ``parts``
        what :func:`sized` takes, by program.

    Returns
    -------
    list
        Those that are installed.
    list
        A remark on each of the others.
    """
    asked = replace(options, regions=Regions.client())
    stores = inputs["stores"]
    runs = [
        (memcached(Load(**stores["memcached"]), memory_mib=inputs["memcached_mib"]), asked),
        (redis_store(Load(**stores["redis"])), asked),
        *(sized(name, part, options) for name, part in inputs["parts"].items()),
    ]
    missing = [one.missing() for one, _ in runs]
    there = [run for run, absent in zip(runs, missing, strict=True) if absent is None]
    return there, [f"Left out: {absent}." for absent in missing if absent is not None]


def instructions_of(program: Program, options: RunOptions) -> int:
    """Count the instructions that a program executes."""
    counting = replace(options, detail="translation", warmup=0, skip=0, instructions=None)
    (values,) = run_cells(program, [Cell("linux-4k")], counting).values()
    return int(values["executed"]["instructions"])


# Figures of a report.


def cycles(values: Values) -> float:
    """All simulated cycles."""
    return float(values["time"]["cycles"])


def hertz(values: Values) -> float:
    """Cycles in a simulated second."""
    text = str(values["config"]["machine"]["clock"])
    for unit, factor in (("GHz", 1e9), ("MHz", 1e6), ("kHz", 1e3), ("Hz", 1.0)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise ProgramError(f"the report's clock is {text!r}")


def throughput(values: Values) -> float:
    """Return requests in a simulated second by a saturated server: no core waits for work.

    What the cores waited in the recording, for a client on the same computer, is left out: all of
    them together answer the requests in the cycles in which they were busy.
    """
    time = values["time"]
    busy = float(time.get("busy_cycles", time["cycles"]))
    # Additive cores are one, and have no list.
    cores = max(1, len(values.get("cores", [])))
    requests = float(values["client"]["requests"])
    return requests * cores * hertz(values) / max(busy, 1.0)


def data_walk_share(values: Values) -> float:
    """Share of cycles spent on data TLB misses that walk, in percent (Direct Segments, Table 4)."""
    walked = float(values["translation"]["data_walk_cycles"])
    return 100 * walked / max(cycles(values), 1.0)


def inside_share(values: Values) -> float:
    """Share of data TLB misses inside of a segment, 0 to 1 (Direct Segments, Table 5)."""
    counted = values["classified"]
    return float(counted["inside"]) / max(float(counted["data_walks"]), 1.0)


def resident(values: Values) -> int:
    """Bytes of memory that the program has at its peak."""
    kinds = ("resident_4k", "resident_2m", "resident_1g", "perforated", "segment")
    return sum(int(values["memory"][f"{kind}_bytes"]) for kind in kinds)


def fraction_text(fraction: float) -> str:
    """Write a share of a page as the engine reads it."""
    return f"{fraction:.10g}"


def scenarios(
    shares: Iterable[float], fractions: Iterable[float], patterns: Iterable[str], kind: str
) -> list[str]:
    """Return every scenario of holes of some shares, fractions and patterns."""
    fractions, patterns = list(fractions), list(patterns)
    return [
        f"{share:g}:{fraction_text(fraction)}:{pattern}:{kind}"
        for share in shares
        for fraction in fractions
        for pattern in patterns
    ]


def chosen(names: list[str], scale: str) -> tuple[list[Program], list[str]]:
    """Return the programs that are installed, and a note for each that is not."""
    every = catalogue(scale)
    programs, notes = [], []
    for name in names:
        missing = every[name].missing()
        if missing is None:
            programs.append(every[name])
        else:
            notes.append(f"Left out: {missing}.")
    return programs, notes
