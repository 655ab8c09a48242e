"""Running programs for experiments: one execution feeds every configuration.

A cell is one configuration: a design, and what differs from the other cells' options. Servers are
programs that somebody else must drive: their client runs natively beside them.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from contigua import _engine
from contigua.allocators import Preload
from contigua.errors import ContiguaError
from contigua.experiments.base import ImpossibleError
from contigua.results import Report
from contigua.runner import Progress, RunOptions

#: Where the workloads are that a checkout builds; an installed package has none.
WORKLOADS = Path(__file__).parents[3] / "workloads" / "bin"

#: As many configurations read a running program at most; for more it is recorded first.
READERS = 24
#: As many replay a recorded one at a time.
REPLAYS = 8

#: Seconds that a server may take to answer for the first time.
START_TIMEOUT = 120.0


class ProgramError(ContiguaError):
    """A program that an experiment needs failed."""


class MissingProgramError(ProgramError, ImpossibleError):
    """A program that an experiment needs, or a part of the system, is not there."""


class Cell(NamedTuple):
    """One configuration.

    Attributes
    ----------
    design
        Name of the design.
    holes
        Scenario of holes, or ``"none"``.
    age, memory, cores, migrations
        As in :class:`~contigua.runner.RunOptions`; ``None`` for what the options say.
    """

    design: str
    holes: str = "none"
    age: str | None = None
    memory: str | None = None
    cores: int | None = None
    migrations: float | None = None

    def spec(self, options: RunOptions) -> _engine.RunSpec:
        """Describe the cell to the engine."""
        own = {name: value for name, value in self._asdict().items() if value is not None}
        del own["design"], own["holes"]
        options = replace(options, **own)
        return options.spec(self.design, options.age, self.holes)


Values = dict[str, Any]
#: Waits for a server and drives it until it may end. ``stopped`` is set when the run has failed.
#: Returns how many requests were answered, if it counts them.
Client = Callable[[Path, threading.Event], int | None]


@dataclass(frozen=True)
class Program:
    """A program that an experiment runs.

    Attributes
    ----------
    name
        What tables call it.
    command
        The command line; ``{folder}`` stands for a folder of its own.
    needs
        Programs that must be there, with the Debian packages that have them.
    client
        What drives it, if it is a server.
    prepare
        What is run natively before it, in its folder.
    """

    name: str
    command: tuple[str, ...]
    needs: dict[str, str] = field(default_factory=dict)
    client: Client | None = None
    prepare: Callable[[Path], None] | None = None

    def missing(self) -> str | None:
        """Say what is not installed, if anything."""
        for program, package in self.needs.items():
            if find_program(program) is None:
                return f"{self.name}: {program} is not installed (Debian package {package})"
        if self.command[0].startswith(str(WORKLOADS)) and not Path(self.command[0]).exists():
            return f"{self.name}: {self.command[0]} is not built (make -C workloads)"
        return None


def find_program(name: str) -> str | None:
    """Return a program's path; servers' are often not on the path of those who are not root."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def workload(name: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line of one of the project's own workloads."""
    return (str(WORKLOADS / name), *arguments)


def run_cells(
    program: Program,
    cells: Sequence[Cell],
    options: RunOptions,
    progress: Callable[[float], None] | None = None,
    *,
    record: bool = False,
    warm: float = 0.0,
    failures: dict[Cell, str] | None = None,
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
    warm
        Share of its instructions, from 0 to 1, that are simulated and not counted: the program is
        recorded first.
    failures
        Takes the cells that cannot be simulated, such as those whose server has no memory left, and
        why; the others go on. Without it, the first one ends the run. The program is recorded
        first.

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
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="contigua-")))
        needs_trace = record or warm or failures is not None or len(specs) > READERS
        trace = folder / "events.trace" if needs_trace else None
        watching = specs if trace is None else [_counting(options)] if warm else []
        reports, requests = execute(
            program,
            folder,
            watching,
            record=trace,
            progress=interruptible if progress is None or trace else _fraction(progress),
        )
        if trace is not None:
            if warm:
                executed = Report(reports[0]).values["executed"]["instructions"]
                for spec in specs:
                    spec["warmup"] += int(warm * executed)
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
    batch: Sequence[tuple[Cell, _engine.RunSpec]], trace: Path, failures: dict[Cell, str] | None
) -> dict[Cell, str]:
    """Replay a trace in some cells at a time; one by one to find those that cannot be simulated."""
    try:
        reports, _ = run_whole([spec for _, spec in batch], trace=trace)
        return dict(zip((cell for cell, _ in batch), reports, strict=True))
    except _engine.EngineError as error:
        if failures is None:
            raise
        if len(batch) == 1:
            failures[batch[0][0]] = str(error)
            return {}
    return {cell: text for one in batch for cell, text in _replay([one], trace, failures).items()}


class Execution(NamedTuple):
    """What came of executing a program: reports, and requests answered if its client counts."""

    reports: list[str]
    requests: int | None


def execute(
    program: Program,
    folder: Path,
    specs: Sequence[_engine.RunSpec],
    *,
    record: Path | None = None,
    record_plan: _engine.Plan | None = None,
    preload: Preload | None = None,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> Execution:
    """Execute a program that is installed, with its client if it is a server.

    Parameters
    ----------
    program, folder
        The program, and an empty folder for what it writes.
    specs
        The configurations that watch it.
    record
        Where to record it, too.
    record_plan
        What the recording holds; ``None``: everything.
    preload
        The allocator that it is given.
    seconds
        Stop it after this time.
    progress
        As :func:`contigua.run` has it.

    Raises
    ------
    ProgramError
        When it, what prepares it, or its client fails.
    """
    if program.prepare is not None:
        try:
            program.prepare(folder)
        except (OSError, subprocess.SubprocessError) as error:
            raise ProgramError(f"{program.name}: what prepares it failed: {error}") from error
    before = preload or Preload()
    command = [part.replace("{folder}", str(folder)) for part in program.command]
    if shutil.which(command[0]) is None:
        command[0] = find_program(command[0]) or command[0]
    command = ["/bin/sh", "-c", 'exec "$@" > /dev/null 2> "$0"', f"{folder}/errors", *command]
    with _Driver(program.client, folder) as client:
        reports, status = run_whole(
            specs,
            command=command,
            record=record,
            record_plan=record_plan,
            seconds=seconds,
            preload=before.library,
            environment=list(before.environment),
            clock=before.clock,
            progress=client.watched(progress or interruptible),
        )
        client.finish()
    if status != 0:
        errors = (folder / "errors").read_text(errors="replace").strip().splitlines()
        said = f": {errors[-1]}" if errors else ""
        raise ProgramError(f"{program.name} ended with status {status}{said}")
    return Execution(reports, client.answered)


def run_whole(
    specs: Sequence[_engine.RunSpec],
    **options: Any,  # noqa: ANN401 - those of the engine
) -> tuple[list[str], int]:
    """Run configurations as the engine does, but never return what was cut short.

    The engine takes an interrupt as the wish to see what ran so far, which a table of experiments
    or a sweep must not take for a result.

    Raises
    ------
    KeyboardInterrupt
        When there was one.
    EngineError
        Also when the recording could not be written.
    """
    options.setdefault("progress", interruptible)
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        return _whole(*_engine.run(specs, **options))
    seen = threading.Event()

    def interrupted(number: int, frame: FrameType | None) -> None:
        seen.set()
        before(number, frame)

    signal.signal(signal.SIGINT, interrupted)
    try:
        result = _engine.run(specs, **options)
    finally:
        signal.signal(signal.SIGINT, before)
    if seen.is_set():
        raise KeyboardInterrupt
    return _whole(*result)


def _whole(reports: list[str], status: int, failures: list[str]) -> tuple[list[str], int]:
    if failures:
        raise _engine.EngineError(failures[0])
    return reports, status


def interruptible(_: list[tuple[int, int]]) -> None:
    """Let an interrupt through: the engine asks a few times a second."""


def _fraction(progress: Callable[[float], None]) -> Progress:
    def called(state: list[tuple[int, int]]) -> None:
        # How long a program will run is not known: half of what is left at each look.
        done = min((instructions for instructions, _ in state), default=0)
        progress(1 - 1 / (1 + done / 1e8))

    return called


class _Driver:
    """The client of a server, in a thread of its own."""

    def __init__(self, client: Client | None, folder: Path) -> None:
        self.client = client
        self.folder = folder
        self.stopped = threading.Event()
        self.error: Exception | None = None
        self.answered: int | None = None
        self.thread: threading.Thread | None = None

    def __enter__(self) -> _Driver:
        if self.client is not None:
            self.thread = threading.Thread(target=self._drive)
            self.thread.start()
        return self

    def _drive(self) -> None:
        try:
            assert self.client is not None
            self.answered = self.client(self.folder, self.stopped)
        except (OSError, subprocess.SubprocessError, ContiguaError) as error:
            self.error = error

    def watched(self, called: Progress) -> Progress:
        """Give up the run when the client has failed: its server would wait for ever."""

        def call(state: list[tuple[int, int]]) -> None:
            self.check()
            called(state)

        return call

    def finish(self) -> None:
        """Wait for the client, and raise what went wrong there."""
        if self.thread is not None:
            self.thread.join()
        self.check()

    def check(self) -> None:
        """Raise what went wrong in the client."""
        if self.error is not None:
            raise ProgramError(f"the client failed: {self.error}")

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        if self.thread is not None:
            self.thread.join()


def wait_for(answers: Callable[[], bool], stopped: threading.Event) -> None:
    """Wait until a server answers.

    Raises
    ------
    ProgramError
        When it does not within two minutes, or the run was given up.
    """
    end = time.monotonic() + START_TIMEOUT
    while not answers():
        if stopped.is_set():
            raise ProgramError("the server ended before it answered")
        if time.monotonic() > end:
            raise ProgramError(f"the server did not answer within {START_TIMEOUT:.0f} s")
        time.sleep(0.2)


def succeeds(*command: str) -> bool:
    """Whether a command ends with status 0; its output goes nowhere."""
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=60
    )
    return done.returncode == 0


def call(*command: str, text: str | None = None) -> None:
    """Run a command whose output goes nowhere.

    Raises
    ------
    CalledProcessError
        When it fails.
    """
    subprocess.run(
        command,
        input=text,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=1800,
    )


def _counting(options: RunOptions) -> _engine.RunSpec:
    """Describe the fastest way to count all instructions."""
    whole = replace(options, detail="translation", warmup=0, skip=0, instructions=None)
    plain = replace(whole, age="fresh", cores=1, migrations=0.0, classify_misses=False)
    return Cell("linux-4k").spec(plain)


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


# Programs that several experiments run.

#: Where servers listen.
HOST = "127.0.0.1"


def free_port() -> int:
    """Return a TCP port that nobody listens to."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        port: int = one.getsockname()[1]
        return port


def redis_command(port: int) -> tuple[str, ...]:
    """Return redis-server's command line: everything in memory."""
    quiet = ("--save", "", "--appendonly", "no", "--dir", "{folder}")
    return ("redis-server", "--port", str(port), *quiet)


def redis(keys: int, value_bytes: int, requests: int) -> Program:
    """Return redis-server, filled by one client with values of a size, then read at random."""
    port = free_port()

    def drive(_: Path, stopped: threading.Event) -> None:
        cli = ("redis-cli", "-p", str(port))
        wait_for(lambda: succeeds(*cli, "ping"), stopped)
        bench: tuple[str, ...] = (
            "redis-benchmark",
            "-p",
            str(port),
            "-q",
            "-d",
            str(value_bytes),
            "-P",
            "4",
        )
        bench += ("-r", str(keys), "-c", "4")
        try:
            call(*bench, "-t", "set", "-n", str(keys * 2))
            call(*bench, "-t", "get", "-n", str(requests))
        finally:
            # It ends without an answer.
            succeeds(*cli, "shutdown", "nosave")

    needs = {"redis-server": "redis-server", "redis-benchmark": "redis-tools"}
    return Program("redis", redis_command(port), needs, drive)


def sqlite(rows: int, lookups: int) -> Program:
    """Return sqlite3 with a table in memory, filled and then looked up at random."""
    statement = (
        "create table t(k integer primary key, v text); "
        f"with recursive c(x) as (select 1 union all select x + 1 from c where x < {rows}) "
        "insert into t select (x * 2654435761) % 4294967296, hex(x * x) || hex(x) from c; "
        f"with recursive c(x) as (select 1 union all select x + 1 from c where x < {lookups}) "
        "select count(v) from c join t on t.k = (((c.x * 7919) % "
        f"{rows}) * 2654435761) % 4294967296;"
    )
    return Program("sqlite3", ("sqlite3", ":memory:", statement), {"sqlite3": "sqlite3"})


def mariadb(rows: int, queries: int) -> Program:
    """Return MariaDB's server with a table, looked up at random through one connection."""

    def prepare(folder: Path) -> None:
        call(
            "mariadb-install-db",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--user=root",
            f"--datadir={folder}/data",
        )

    def drive(folder: Path, stopped: threading.Event) -> None:
        client = ("mariadb", "-u", "root", f"--socket={folder}/socket")
        wait_for(lambda: succeeds(*client, "-e", "select 1"), stopped)
        fill = (
            "create database d; use d; create table t(k int primary key, v varchar(200)) "
            f"engine=memory; insert into t select seq, repeat(md5(seq), 6) from seq_1_to_{rows};"
        )
        looked = "".join(
            f"select v from d.t where k = {(number * 7919 * 7919) % rows + 1};\n"
            for number in range(queries)
        )
        try:
            call(*client, text=fill)
            call(*client, text=looked)
        finally:
            succeeds("mariadb-admin", "-u", "root", f"--socket={folder}/socket", "shutdown")

    command: tuple[str, ...] = (
        "mariadbd",
        "--no-defaults",
        "--user=root",
        "--datadir={folder}/data",
    )
    command += ("--socket={folder}/socket", "--skip-networking", "--pid-file={folder}/pid")
    # InnoDB does not get past its start under QEMU 7.2's user mode: tables are in memory.
    command += ("--skip-innodb", "--default-storage-engine=MEMORY", "--performance-schema=OFF")
    command += ("--max-heap-table-size=4G",)
    needs = {"mariadbd": "mariadb-server", "mariadb": "mariadb-client"}
    return Program("mariadb", command, needs, drive, prepare)
