"""Programs on the running machine: what an allocator does with real huge pages.

Nothing here simulates. A server runs under an allocator that is loaded before the C library's, and
the kernel's own figures about it are read while it runs.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from contigua.allocators import find_library
from contigua.programs.program import MissingProgramError, ProgramError

#: The kernel's switch for transparent huge pages.
SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MB = 1 << 20


@dataclass(frozen=True)
class Allocator:
    """An allocator for a program that uses the C library's interface.

    Attributes
    ----------
    name
        What tables call it.
    library
        The file name of its library; nothing for the C library's own.
    environment
        Variables that configure it.
    """

    name: str
    library: str | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def path(self) -> Path | None:
        """Return where its library is, or nothing if it is not installed."""
        return None if self.library is None else find_library(self.library)

    def missing(self) -> bool:
        """Return whether it cannot be used here."""
        return self.library is not None and self.path() is None

    def variables(self) -> dict[str, str]:
        """Return the environment of a program that is to use it."""
        path = self.path()
        kept = {
            key: value
            for key, value in os.environ.items()
            if key != "LD_PRELOAD" and not key.startswith("CONTIGUA_MALLOC_")
        }
        return {**kept, **self.environment, **({"LD_PRELOAD": str(path)} if path else {})}


def chosen(switch: Path = SWITCH) -> str:
    """Return when the kernel uses transparent huge pages: ``always``, ``madvise`` or ``never``."""
    try:
        text = switch.read_text()
    except OSError as error:
        raise MissingProgramError(
            f"this kernel has no transparent huge pages ({switch})"
        ) from error
    found = re.search(r"\[(\w+)\]", text)
    if found is None:
        raise ProgramError(f"{switch} does not say what is chosen")
    return found[1]


@contextmanager
def huge_pages(wanted: str, switch: Path = SWITCH) -> Iterator[None]:
    """Have the kernel use transparent huge pages so for a time; then as before.

    A process of its own waits for our end and puts the switch back, so that it is put back however
    we end.

    Raises
    ------
    ProgramError
        When the switch is not where it must be and may not be set, or somebody else moved it.
    """
    before = chosen(switch)
    if before == wanted:
        yield
        _check_still(wanted, switch)
        return
    if not os.access(switch, os.W_OK):
        raise MissingProgramError(
            f"transparent huge pages are on {before!r} and must be on {wanted!r}; as root: "
            f"echo {wanted} > {switch}"
        )
    # It reads until the other end of the pipe is closed, by us or by the kernel when we die. In a
    # session of its own it does not get the terminal's signals.
    script = 'trap "" HUP INT TERM; while read -r _; do :; done; echo "$1" > "$0"'
    with subprocess.Popen(
        ["/bin/sh", "-c", script, str(switch), before],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as keeper:
        assert keeper.stdin is not None
        try:
            switch.write_text(wanted)
            yield
            _check_still(wanted, switch)
        except OSError as error:
            raise ProgramError(f"{switch}: {error.strerror}") from error
        finally:
            keeper.stdin.close()
            keeper.wait()


def _check_still(wanted: str, switch: Path) -> None:
    now = chosen(switch)
    if now != wanted:
        raise ProgramError(
            f"transparent huge pages were put on {now!r} meanwhile ({switch}): what was measured "
            "means nothing"
        )


@dataclass(frozen=True)
class Sample:
    """A process at one time.

    Attributes
    ----------
    seconds
        Since sampling began.
    rss, anonymous, huge
        Bytes resident; of these anonymous; of these in huge pages.
    minor_faults
        Since the process began.
    heap
        The allocator's own figures, if it is ours; bytes unless their names say otherwise.
    """

    seconds: float
    rss: int
    anonymous: int
    huge: int
    minor_faults: int
    heap: dict[str, int]

    @property
    def coverage(self) -> float:
        """Share of anonymous memory in huge pages, in percent."""
        return 100 * self.huge / max(self.anonymous, 1)


def sample(pid: int, seconds: float) -> Sample:
    """Read a process's memory as the kernel and the allocator count it.

    Raises
    ------
    OSError
        When there is no such process any more.
    """
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kilobytes = {
        name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)
    }
    # The name in parentheses may contain anything.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Sample(
        seconds=seconds,
        rss=kilobytes["Rss"] << 10,
        anonymous=kilobytes["Anonymous"] << 10,
        huge=kilobytes["AnonHugePages"] << 10,
        minor_faults=int(fields[7]),
        heap=heap_figures(pid),
    )


#: The figures of the allocator's shared page, in order (``crates/telemetry/src/lib.rs``).
HEAP_FIGURES = (
    "nanoseconds",
    "small_in_use",
    "large_in_use",
    "large_objects",
    "cpu_cached",
    "transfer_cached",
    "central_free",
    "misses",
    "heap_used",
    "heap_mapped",
    "heap_free_mapped",
    "heap_unmapped",
    "heap_cached",
    "filler_used",
    "filler_used_intact",
    "huge_intact",
    "huge_broken",
    "broken_total",
    "peak_used",
    "peak_mapped",
    "recent_peak_used",
    "average_fragmentation",
    "realized_fragmentation",
    "skipped",
    "skipped_correct",
    "skipped_incorrect",
    "released_whole",
    "released_broken",
    "released_for_limit",
    "limit_failures",
    "system_failures",
    "metadata",
)
HEAD = struct.Struct("<8sIIQ")


def heap_figures(pid: int) -> dict[str, int]:
    """Read the figures that our allocator shows; nothing if the process does not have it."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    mapping = re.search(r"^([0-9a-f]+)-\S+ .*/memfd:contigua-malloc", maps, re.MULTILINE)
    if mapping is None:
        return {}
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for _ in range(100):
            memory.seek(int(mapping[1], 16))
            page = memory.read(HEAD.size + 8 * len(HEAP_FIGURES))
            memory.seek(int(mapping[1], 16))
            again = memory.read(HEAD.size)
            if page[: HEAD.size] == again and HEAD.unpack(again)[3] % 2 == 0:
                return parse_heap(page)
    return {}


def parse_heap(page: bytes) -> dict[str, int]:
    """Read the figures of a shared page's copy; nothing if it is none that we know."""
    magic, version, count, _ = HEAD.unpack_from(page)
    if magic != b"CONTIGUA" or version != 1:
        return {}
    known = HEAP_FIGURES[:count]
    return dict(zip(known, struct.unpack_from(f"<{len(known)}Q", page, HEAD.size), strict=True))


class Sampler:
    """Samples a process until it is left.

    Parameters
    ----------
    pid
        The process.
    period
        Seconds between two samples.
    """

    def __init__(self, pid: int, period: float) -> None:
        self.pid = pid
        self.period = period
        self.samples: list[Sample] = []
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.started = 0.0

    def __enter__(self) -> Sampler:
        self.started = time.monotonic()
        self.thread.start()
        return self

    def _run(self) -> None:
        number = 0
        while not self.stopped.is_set():
            try:
                self.samples.append(sample(self.pid, time.monotonic() - self.started))
            except (OSError, KeyError):
                return
            # Samples stand for equal times: one that comes late does not delay the next.
            passed = time.monotonic() - self.started
            number = max(number + 1, int(passed / self.period))
            self.stopped.wait(max(0.0, number * self.period - passed))

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()
