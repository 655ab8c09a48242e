"""One run of one program under one malloc, and what is remembered of it.

A program's function gets a `Trial`, runs commands through it, and notes two kinds of facts: values
that every malloc must lead to (`same`), and the names of tests that failed (`failed`), of which
ours may not add any.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DATA = Path(__file__).resolve().parent / "data"
LIBRARY = ROOT / "target" / "release" / "libcontigua_malloc.so"
OWN_MESSAGE = re.compile(r"^contigua-malloc: .*$", re.MULTILINE)
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


# The C library itself, for programs that Debian links with jemalloc.
LIBC = "libc.so.6"
SOURCES = ROOT / "target" / "check-programs" / "sources"
DEBIAN = "http://deb.debian.org/debian"


@dataclass(frozen=True)
class Mode:
    """A malloc and its settings."""

    name: str
    environment: Mapping[str, str]
    huge_pages: bool = False
    """Return whether the system gives huge pages to all programs meanwhile."""


PRELOAD = {"LD_PRELOAD": str(LIBRARY)}
GLIBC = Mode("glibc", {})
MODES = [
    GLIBC,
    Mode("per CPU", PRELOAD),
    Mode("level 2", PRELOAD | {"CONTIGUA_MALLOC_HARDEN": "2"}),
    Mode("per thread", PRELOAD | {"CONTIGUA_MALLOC_PER_CPU": "off"}),
    Mode("background on", PRELOAD | {"CONTIGUA_MALLOC_BACKGROUND": "on"}),
    Mode("background idle", PRELOAD | {"CONTIGUA_MALLOC_BACKGROUND": "idle"}),
    Mode("THP always", PRELOAD, huge_pages=True),
]
SERVERS_ONLY = ("background on", "background idle")


@dataclass
class Facts:
    """Findings of a trial."""

    same: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    tests: int = 0
    """Tests with a verdict of their own."""
    with_library: int = 0
    without_library: list[str] = field(default_factory=list)
    """Names of programs that were seen running without the library."""
    seconds: float = 0.0

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def broken(self) -> list[str]:
        """Commands that should have worked under any malloc and did not."""
        return [
            f"{what} is {value}"
            for what, value in self.same.items()
            if what.startswith("exit code of") and value != "0"
        ]

    def beyond(self, reference: Facts) -> list[str]:
        """Return the failures here that are not in `reference`."""
        found = []
        for what in sorted(self.same.keys() | reference.same.keys()):
            mine, theirs = self.same.get(what, "missing"), reference.same.get(what, "missing")
            if mine != theirs:
                found.append(f"{what}: {shorten(mine)} instead of {shorten(theirs)}")
        return found + sorted(set(self.failures) - set(reference.failures))


def shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 120 else line[:117] + "..."


@dataclass
class Result:
    """Result of a command."""

    code: int
    out: str
    err: str


class Server:
    """A program that runs until it is told to stop."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self, number: int = signal.SIGTERM, seconds: float = 60) -> int:
        """Send a signal and wait; the exit code, or -1000 if it had to be killed."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait(seconds)

    def wait(self, seconds: float = 60) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            kill(self.process)
            return -1000


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Trial:
    """Runs commands and remembers facts."""

    def __init__(self, mode: Mode, directory: Path) -> None:
        self.mode = mode
        self.directory = directory
        self.facts = Facts()
        self.servers: list[Server] = []
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("CONTIGUA_", "LD_"))}
        self.environment = kept | {"LC_ALL": "C.UTF-8", "HOME": str(directory)}

    def same(self, what: str, value: object) -> None:
        """Note a value that every malloc must lead to."""
        self.facts.same[what] = str(value)

    def failed(self, test: str) -> None:
        """Note a test that failed."""
        self.facts.failures.append(test)

    def _environment(self, more: Mapping[str, str], preload: bool) -> dict[str, str]:
        return self.environment | (dict(self.mode.environment) if preload else {}) | dict(more)

    def _messages(self, text: str) -> None:
        for line in OWN_MESSAGE.findall(text):
            self.failed(re.sub(r"0x[0-9a-f]+", "0x…", line))

    def run(
        self,
        *command: str | Path,
        text: str | None = None,
        seconds: float = 240,
        preload: bool = True,
        more: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> Result:
        """Run a command to its end, with the malloc of this trial if `preload`."""
        if not shutil.which(command[0]):
            return Result(127, "", f"{command[0]} is missing")
        process = subprocess.Popen(
            command,
            env=self._environment(more or {}, preload),
            cwd=directory or self.directory,
            stdin=subprocess.PIPE if text is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(text.encode() if text is not None else None, seconds)
        except subprocess.TimeoutExpired:
            kill(process)
            out, err = process.communicate()
            err += f"\nended after {seconds} s".encode()
        except BaseException:
            # Interrupted: nothing that was started goes on.
            kill(process)
            raise
        result = Result(
            process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        )
        self._messages(result.err)
        return result

    def check(self, what: str, *command: str | Path, **options: object) -> Result:
        """Run a command whose exit code every malloc must lead to."""
        result = self.run(*command, **options)  # type: ignore[arg-type]
        self.same(f"exit code of {what}", result.code)
        if result.code:
            print(f"    {what} ends with {result.code}: {shorten(result.err[-400:])}")
        return result

    @contextlib.contextmanager
    def server(
        self, *command: str | Path, port: int = 0, more: Mapping[str, str] | None = None
    ) -> Iterator[Server]:
        """Start a server and wait until it listens; it is killed at the end if it still runs."""
        log = self.directory / f"server-{len(self.servers)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                env=self._environment(more or {}, preload=True),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        server = Server(process, log)
        self.servers.append(server)
        try:
            self.same(f"{Path(command[0]).name} listens", port == 0 or listens(process, port))
            yield server
        finally:
            if process.poll() is None:
                kill(process)
            self._messages(log.read_text(errors="replace"))


def listens(process: subprocess.Popen[bytes], port: int, seconds: float = 30) -> bool:
    """Wait until somebody accepts connections."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        time.sleep(0.05)
    return False


def free_port() -> int:
    """A TCP port that nobody uses at the moment."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def source(package: str) -> Path:
    """Get and unpack a Debian source package, once; lists of the machine's own are not touched."""
    target = SOURCES / package
    if target.exists():
        return target
    lists = SOURCES / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    sources = SOURCES / "sources.list"
    sources.write_text(
        f"deb-src {DEBIAN} bookworm main\ndeb-src {DEBIAN}-security bookworm-security main\n"
    )
    apt = ["apt-get", "-qq", "-o", f"Dir::Etc::SourceList={sources}"]
    apt += ["-o", "Dir::Etc::SourceParts=/dev/null", "-o", f"Dir::State::Lists={lists}"]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "source", "--download-only", package], cwd=SOURCES, check=True)
    description = max(SOURCES.glob(f"{package}_*.dsc"))
    subprocess.run(
        ["dpkg-source", "--no-check", "-x", description, target],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return target


class Watcher:
    """Looks again and again which descendants of this process have the library mapped."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, str], tuple[bool, int]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            for pid in descendants(os.getpid()):
                with contextlib.suppress(OSError):
                    program = (Path("/proc") / str(pid) / "exe").readlink().name
                    maps = (Path("/proc") / str(pid) / "maps").read_bytes()
                    mapped = LIBRARY.name.encode() in maps
                    _, times = self.seen.get((pid, program), (False, 0))
                    self.seen[pid, program] = (mapped, times + 1)

    def into(self, facts: Facts) -> None:
        """Note who had the library, and who was seen twice without it."""
        facts.with_library = sum(mapped for mapped, _ in self.seen.values())
        without = {
            program
            for (_, program), (mapped, times) in self.seen.items()
            if not mapped and times > 1
        }
        facts.without_library = sorted(without)


def descendants(ancestor: int) -> list[int]:
    """Processes that `ancestor` started, and those that they started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        of = children.get(waiting.pop(), [])
        found += of
        waiting += of
    return found


@contextlib.contextmanager
def huge_pages_for_everybody(wanted: bool) -> Iterator[None]:
    """Switch transparent huge pages to `always`, and back."""
    if not wanted:
        yield
        return
    before = HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
    HUGE_PAGES.write_text("always")
    try:
        yield
    finally:
        HUGE_PAGES.write_text(before)


@dataclass(frozen=True)
class Program:
    """A program, how to get it, and what is done with it."""

    name: str
    what: str
    """For the table: what was run."""
    function: Callable[[Trial], None]
    needs: tuple[tuple[str, str], ...] = ()
    """Commands (or files) and the Debian packages that have them."""
    version: tuple[str, ...] = ()
    """A command that prints the version."""
    server: bool = False
    suite: bool = False
    """A test suite of many minutes: with caches of CPUs and of threads only."""

    def modes(self) -> list[Mode]:
        if self.suite:
            return MODES[:3]
        return [mode for mode in MODES if self.server or mode.name not in SERVERS_ONLY]

    def install(self) -> None:
        """Get what is missing."""
        for command, package in self.needs:
            if not (Path(command).exists() if "/" in command else shutil.which(command)):
                subprocess.run([ROOT / "scripts" / "require", command, package], check=True)

    def trial(self, mode: Mode) -> Facts:
        """Run it once."""
        with tempfile.TemporaryDirectory(prefix=f"contigua-{self.name}-") as directory:
            Path(directory).chmod(0o755)
            trial = Trial(mode, Path(directory))
            begin = time.monotonic()
            with huge_pages_for_everybody(mode.huge_pages), Watcher() as watcher:
                self.function(trial)
            trial.facts.seconds = round(time.monotonic() - begin, 1)
            watcher.into(trial.facts)
            return trial.facts
