"""A program's predicted and measured times, and what they add up to."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from contigua import _engine
from contigua.allocators import Preload
from contigua.configs import Design
from contigua.files import write_whole
from contigua.measuring.probes import Measured
from contigua.options import RunOptions
from contigua.presets import Preset, machines
from contigua.programs.execute import execute
from contigua.programs.program import Program, ProgramError
from contigua.reading import ReadError, parse_json, read_bytes
from contigua.reports import Report
from contigua.validation.native import TUNABLES, Native, ValidationError, blocks, measure

#: Of the JSON; another number where a key changes its meaning or goes.
SCHEMA = 1
#: Largest file of one comparison.
MOST = 1 << 20

#: Goals: median and worst error of the speed-up, worst error of CPU time.
TARGETS = {"speedup_median": 0.05, "speedup_worst": 0.15, "time": 0.25}
#: Speed-ups measured with a larger spread conclude nothing.
LOUD = 0.05
#: The history that follows from where the kernel puts pages.
MEASURED_AGE = "measured"


@dataclass(frozen=True)
class Comparison:
    """One program.

    Attributes
    ----------
    name
        What tables call it.
    command
        Its command line.
    instructions
        Executed, as simulated.
    native
        Seconds of CPU time and the speed-up with 2 MB pages, measured.
    predicted
        The same, simulated: ``small``, ``huge`` and ``speedup``.
    overhead
        Translation overhead with 4 KB and with 2 MB pages, simulated, as shares of cycles.
    age
        History of the simulated memory.
    """

    name: str
    command: tuple[str, ...]
    instructions: int
    native: Native
    predicted: dict[str, float]
    overhead: tuple[float, float]
    age: str

    @property
    def concludes(self) -> bool:
        """Return whether the measured speed-up varies little enough."""
        return self.native.speedup.spread <= LOUD

    def error(self, what: str) -> float:
        """Return predicted over measured, less 1, of ``small``, ``huge`` or ``speedup``."""
        measured: Measured = getattr(self.native, what)
        return self.predicted[what] / measured.value - 1

    def as_json(self) -> dict[str, Any]:
        """Return it for a file."""
        return asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> Comparison:
        """Read what :meth:`as_json` made.

        Raises
        ------
        TypeError, KeyError, ValueError
            When it is something else.
        """
        return Comparison(
            name=str(values["name"]),
            command=tuple(map(str, values["command"])),
            instructions=int(values["instructions"]),
            native=Native.from_json(values["native"]),
            predicted={
                key: float(values["predicted"][key]) for key in ("small", "huge", "speedup")
            },
            overhead=(float(values["overhead"][0]), float(values["overhead"][1])),
            age=str(values["age"]),
        )


@dataclass(frozen=True)
class Summary:
    """Errors over programs, as shares; of those whose measurements conclude something.

    Attributes
    ----------
    programs, unsure
        How many conclude something, and how many do not.
    speedup_median, speedup_worst
        Errors of the speed-up.
    time_median, time_worst
        Errors of CPU time, of both sizes of page.
    """

    programs: int
    unsure: int
    speedup_median: float
    speedup_worst: float
    time_median: float
    time_worst: float


def summary(comparisons: Sequence[Comparison]) -> Summary | None:
    """Sum up; ``None`` where nothing was concluded."""
    sure = [one for one in comparisons if one.concludes]
    if not sure:
        return None
    speedups = [abs(one.error("speedup")) for one in sure]
    times = [abs(one.error(size)) for one in sure for size in ("small", "huge")]
    return Summary(
        len(sure),
        len(comparisons) - len(sure),
        median(speedups),
        max(speedups),
        median(times),
        max(times),
    )


def designs(host_page: str | None, thp: str) -> tuple[Design, Design]:
    """Return Linux with 4 KB pages and with THP, on the memory that this computer has.

    Parameters
    ----------
    host_page
        With which pages a hypervisor backs memory, ``"4k"`` or ``"2m"``; ``None`` without one.
    thp
        ``transparent_hugepage/enabled``.
    """
    schemes = {"4k": "base", "2m": "thp"}
    host = "" if host_page is None else f"\n[host.translation.{schemes[host_page]}]\n"
    small = f'description = "4 KB pages"\n[translation.base]\n{host}'
    huge = f'description = "2 MB pages"\n[translation.thp]\nenabled = "{thp}"\n{host}'
    return Design.from_toml(small, "4k"), Design.from_toml(huge, "2m")


def key_of(program: Program, options: RunOptions, pair: Sequence[Design]) -> str:
    """Return a name for what a comparison depends on."""
    parts = [
        _engine.VERSION,
        program.name,
        *program.command,
        machines.get(options.machine).text,
        str(options.age),
        str(options.memory),
        *(design.text for design in pair),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def stored(file: Path) -> Comparison | None:
    """Return a comparison that was written before, if it is there and whole."""
    try:
        values = parse_json(read_bytes(file, MOST))
        return Comparison.from_json(values) if values["schema"] == SCHEMA else None
    except (ReadError, TypeError, KeyError, ValueError, IndexError):
        return None


def compare(
    program: Program,
    options: RunOptions,
    pair: tuple[Design, Design],
    file: Path,
    progress: Callable[[float], None] | None = None,
) -> Comparison:
    """Run a program natively and simulated; or return what a file says of it already.

    Raises
    ------
    ValidationError
        When it is not there, or fails.
    """
    if (before := stored(file)) is not None and before.concludes:
        return before
    missing = program.missing()
    if missing is not None:
        raise ValidationError(missing)

    with tempfile.TemporaryDirectory(prefix="contigua-") as name:
        folder = Path(name)
        if program.prepare is not None:
            program.prepare(folder)
        native = _native(program, name, file.parent, progress)
        age = native.age if options.age == MEASURED_AGE else str(options.age)
        made = simulated(program, folder, pair, replace(options, age=age))
    found = Comparison(program.name, program.command, made[0], native, *made[1:], age)
    write_whole(file, json.dumps({"schema": SCHEMA, **found.as_json()}, indent=2) + "\n")
    return found


def _native(
    program: Program, name: str, kept: Path, progress: Callable[[float], None] | None
) -> Native:
    """Time a program in its folder, unless it was timed before: times are of no machine file."""
    parts = ("lower quartile, blocks", program.name, *program.command)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    file = kept / f"native-{key}.json"
    try:
        values = parse_json(read_bytes(file, MOST))
        found = Native.from_json(values)
        if found.speedup.spread <= LOUD:
            return found
    except (ReadError, TypeError, KeyError, ValueError):
        pass
    found = measure([word.replace("{folder}", name) for word in program.command], progress)
    found = replace(found, blocks=blocks())
    write_whole(file, json.dumps(asdict(found), indent=2) + "\n")
    return found


def simulated(
    program: Program, folder: Path, pair: tuple[Design, Design], options: RunOptions
) -> tuple[int, dict[str, float], tuple[float, float]]:
    """Instructions, seconds and speed-up, and translation overheads."""
    specs = [options.spec(design, options.age, "none") for design in pair]
    try:
        texts, _ = execute(program, folder, specs, preload=Preload(environment=(TUNABLES,)))
    except ProgramError as error:
        raise ValidationError(f"simulated: {error}") from error
    reports = [Report(text) for text in texts]
    small, huge = (_seconds(report.values, options.machine) for report in reports)
    overheads = [report.summary()["translation_overhead"] or 0.0 for report in reports]
    return (
        reports[0].values["executed"]["instructions"],
        {"small": small, "huge": huge, "speedup": small / huge},
        (overheads[0], overheads[1]),
    )


def _seconds(report: dict[str, Any], machine: str | Preset) -> float:
    """CPU time of a run: its cycles, but those in which a host gives memory to its guest.

    A virtual machine that has run for a while has its memory already.
    """
    cycles = report["time"]["busy_cycles"] - report["kernel"]["host_fault_cycles"]
    megahertz = float(str(machines.resolve(machine)["clock"]).removesuffix("MHz"))
    return float(cycles / megahertz / 1e6)
