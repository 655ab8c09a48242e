"""Run a command where something is missing or ends it, and say what it left behind.

A `Subject` is a command with outputs that can be checked; a `Hazard` is what happens to it. `run`
gives an `Outcome`; `faults` lists what no command may do, whatever happens to it: end as a crash
does, show a traceback, claim success without its outputs, leave an output that is not whole, or
leave processes, files or shared memory behind.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow
import pyarrow.parquet

from contigua import _engine, read_results
from contigua.errors import ContiguaError
from contigua.fleet_report import read_fleet
from contigua.options import RunOptions

MARK = "HARNESS_RUN"
"""A variable that all processes of a run have in their environments."""

GRACE = 60.0
"""Seconds after which something hangs. Nothing that passes takes as long."""

CRASHES = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGXFSZ}
"""Signals by which no command ends, unless they were sent."""

PANIC = 101
"""The exit status of a Rust program that panicked."""


def is_json(file: Path) -> bool:
    """Say whether a file is a JSON document."""
    try:
        json.loads(file.read_text())
    except ValueError:
        return False
    return True


def is_trace(file: Path) -> bool:
    """Say whether a trace can be replayed to its end."""
    options = RunOptions(detail="translation", memory="64MiB")
    try:
        _engine.run(options.document(["linux-4k"], trace=file))
    except _engine.EngineError:
        return False
    return True


def is_snapshot(file: Path) -> bool:
    """Say whether a snapshot of a server can be loaded."""
    try:
        _engine.load_snapshot(str(file))
    except _engine.EngineError:
        return False
    return True


def is_png(file: Path) -> bool:
    """Say whether a picture has its last chunk."""
    return file.read_bytes().endswith(b"IEND\xaeB`\x82")


def is_page(file: Path) -> bool:
    """Say whether a page is closed."""
    return file.read_text().rstrip().endswith("</html>")


def is_table(file: Path) -> bool:
    """Say whether a Parquet file can be read."""
    try:
        pyarrow.parquet.read_table(file)
    except (pyarrow.ArrowException, OSError):
        return False
    return True


def is_node_snapshot(file: Path) -> bool:
    """Say whether a snapshot of a real server can be read."""
    return not read_fleet([file]).skipped


def is_sweep(folder: Path) -> bool:
    """Say whether every result in a sweep's folder is whole."""
    try:
        read_results(folder)
    except ContiguaError:
        # Before the first point has ended there is nothing to read.
        return not list(folder.glob("points/*.json"))
    return True


@dataclass(frozen=True)
class Subject:
    """A command, and what it writes into the folder that it runs in."""

    name: str
    command: Sequence[str]
    outputs: Mapping[str, Callable[[Path], bool]]


@dataclass(frozen=True)
class Hazard:
    """Hazard that a command meets.

    Attributes
    ----------
    prefix
        A command that starts it; `{out}` is the folder of its outputs.
    redirect
        What a shell does with its descriptors.
    number, moment
        A signal, and when it is sent, in seconds after the start.
    silent
        Whether the command cannot say what is wrong.
    """

    name: str
    prefix: Sequence[str] = ()
    redirect: str = ""
    number: int | None = None
    moment: float = 0.0
    silent: bool = False

    def __str__(self) -> str:
        return self.name


#: Message of a process of ``multiprocessing`` whose parent ended while it started.
ORPHANED = re.compile(
    r"Traceback \(most recent call last\):\n(?:  .*\n)*?.*in spawn_main\n(?:  .*\n)*EOFError: .*"
)


@dataclass(frozen=True)
class Outcome:
    """Result of a command.

    Attributes
    ----------
    status
        The exit status, or minus the signal that ended it.
    outputs
        ``"whole"``, ``"absent"`` or ``"damaged"`` for each.
    left
        Processes, files and shared memory that it left behind.
    """

    hazard: Hazard
    status: int
    said: str
    outputs: Mapping[str, str]
    left: Sequence[str] = field(default=())
    seconds: float = 0.0

    def faults(self) -> list[str]:
        """List what no command may do."""
        sent = self.hazard.number
        found = [f"left behind: {what}" for what in self.left]
        found += [
            f"{name} is damaged" for name, state in self.outputs.items() if state == "damaged"
        ]
        ended = -self.status if self.status < 0 else self.status - 128
        if self.status == PANIC or (ended in CRASHES and ended != sent):
            found.append(f"crashed: status {self.status}")
        # Python shows one when it is interrupted before a command has begun, and in a process that
        # it starts when its parent is killed before it has said what to do.
        said = self.said
        if sent == signal.SIGKILL:
            said = ORPHANED.sub("", said)
        if sent != signal.SIGINT and re.search(r"Traceback \(most|panicked at", said):
            found.append("shows where it failed instead of what")
        if self.status == 0:
            found += [
                f"succeeds without {name}" for name, s in self.outputs.items() if s == "absent"
            ]
        elif sent is None and not self.hazard.silent and not self.said.strip():
            found.append(f"fails with {self.status} and does not say why")
        return [f"{problem}\n{self.said[-2000:]}" for problem in found]


def run(subject: Subject, hazard: Hazard, folder: Path) -> Outcome:
    """Run a command in an empty folder, under a hazard.

    Raises
    ------
    TimeoutError
        When it does not end.
    """
    out = folder / "out"
    out.mkdir(parents=True)
    said = folder / "said"
    mark = f"{MARK}={uuid.uuid4()}"
    shared = shared_memory()
    prefix = [part.replace("{out}", str(out)) for part in hazard.prefix]
    command = [*prefix, *subject.command]
    if hazard.redirect:
        command = ["sh", "-c", f'exec "$@" {hazard.redirect}', "sh", *command]
    name, _, value = mark.partition("=")
    start = time.monotonic()
    with said.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=out,
            env={**os.environ, name: value},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        if hazard.number is not None:
            time.sleep(hazard.moment)
            process.send_signal(hazard.number)
        status = process.wait(timeout=GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        text = said.read_text(errors="replace")
        raise TimeoutError(f"{shlex.join(command)} does not end\n{text}") from None
    seconds = time.monotonic() - start
    left = [f"process {what}" for what in processes_left(mark)]
    left += [f"shared memory {name}" for name in sorted(shared_memory() - shared)]
    left += [f"file {file.name}" for file in out.iterdir() if file.name not in subject.outputs]
    outputs = {name: state(out / name, whole) for name, whole in subject.outputs.items()}
    text = said.read_text(errors="replace")
    return Outcome(hazard, status, text, outputs, left, seconds)


def state(file: Path, is_whole: Callable[[Path], bool]) -> str:
    """Say what became of an output."""
    if not file.exists():
        return "absent"
    return "whole" if is_whole(file) else "damaged"


def shared_memory() -> set[str]:
    """List our names in shared memory; others use it at the same time."""
    try:
        return {file.name for file in Path("/dev/shm").iterdir() if "contigua" in file.name}
    except OSError:
        return set()


def processes_left(mark: str) -> list[str]:
    """List processes of a run that do not end by themselves within the time of grace."""
    start = time.monotonic()
    while (found := marked(mark)) and time.monotonic() - start < GRACE / 4:
        time.sleep(0.02)
    return found


def marked(mark: str) -> list[str]:
    """List the command lines of all processes with a mark in their environments."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark.encode() in (process / "environ").read_bytes():
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append(f"{process.name}: {line.strip()}")
        except OSError:
            continue
    return found


SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)
MOMENTS = 20


def signals(
    duration: float, numbers: Sequence[int] = SIGNALS, moments: int = MOMENTS
) -> list[Hazard]:
    """Each signal at moments that are spread over a command's duration."""
    return [
        Hazard(
            f"{signal.Signals(number).name} at {moment / moments:.0%}",
            number=number,
            moment=duration * moment / moments,
        )
        for number in numbers
        for moment in range(moments)
    ]


def limited(option: str, *values: str) -> list[Hazard]:
    """A limit of resources, at several values."""
    return [
        Hazard(f"{option}={value}", ["prlimit", f"--{option}={value}:{value}"]) for value in values
    ]


def in_mounts(name: str, setup: str) -> Hazard:
    """A private view of the file system, which `setup` changes."""
    return Hazard(name, ["unshare", "--mount", "sh", "-c", f'set -e; {setup}; exec "$@"', "sh"])


def on_mount(name: str, options: str) -> Hazard:
    """A file system of its own for the outputs. What it holds at the end is copied out of it."""
    script = (
        f"mkdir ../kept && mount -t tmpfs -o {options.split(';')[0]} none {{out}} && cd {{out}}; "
        f"{options.partition(';')[2] or ':'}; "
        '"$@"; status=$?; cp -a . ../kept; cd ..; umount {out}; cp -a kept/. {out}; exit $status'
    )
    return Hazard(name, ["unshare", "--mount", "sh", "-c", script, "sh"])


NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
READS_ALL = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
"""The tree of these sources may be readable by its owner only."""

SURROUNDINGS = [
    *limited("as", "1073741824", "4294967296", "12884901888"),
    *limited("nofile", "3", "5", "8", "12", "16", "24", "32"),
    Hazard("fsize=0", ["prlimit", "--fsize=0:0"], silent=True),
    *limited("fsize", "1024", "65536", "1048576"),
    *limited("core", "0"),
    *limited("stack", "1048576"),
    Hazard("nproc=1, not root", ["prlimit", "--nproc=1:1", *NOBODY, *READS_ALL]),
    Hazard("not root, folder of another user", [*NOBODY, *READS_ALL]),
    Hazard("not root", ["sh", "-c", 'chmod 777 {out}; exec "$@"', "sh", *NOBODY, *READS_ALL]),
    Hazard("no capabilities", ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]),
    in_mounts("no /dev/shm", "umount -l /dev/shm"),
    in_mounts("read-only /dev/shm", "mount -t tmpfs -o ro none /dev/shm"),
    in_mounts("full /tmp", "mount -t tmpfs -o size=4k none /tmp"),
    in_mounts(
        "read-only folder", "mount --bind {out} {out}; mount -o remount,ro,bind {out}; cd {out}"
    ),
    on_mount("full disk, 4 KiB", "size=4k"),
    on_mount("full disk, 64 KiB", "size=64k"),
    on_mount("no inodes", "nr_inodes=2"),
    Hazard("PID namespace", ["unshare", "--pid", "--fork", "--kill-child"]),
    Hazard(
        "PID namespace with /proc", ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    ),
    Hazard("first process of a PID namespace's children", ["unshare", "--pid"]),
    Hazard("user namespace", ["unshare", "--user"]),
    Hazard("user namespace as root", ["unshare", "--user", "--map-root-user"]),
    Hazard(
        "user and PID namespace",
        ["unshare", "-r", "--pid", "--fork", "--kill-child", "--mount-proc"],
    ),
    Hazard("network namespace", ["unshare", "--net"]),
    Hazard("no standard input", redirect="0<&-"),
    Hazard("no standard output", redirect="1>&-"),
    Hazard("no standard error", redirect="2>&-", silent=True),
    Hazard("no standard descriptors", redirect="0<&- 1>&- 2>&-", silent=True),
    Hazard("full standard output", redirect=">/dev/full"),
    Hazard("full standard error", redirect="2>/dev/full", silent=True),
    Hazard("full standard output and error", redirect=">/dev/full 2>/dev/full", silent=True),
]
"""All but signals. They take root, and change nothing outside of namespaces of their own."""
