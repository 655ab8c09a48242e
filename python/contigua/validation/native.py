"""Native CPU times of a program, with 4 KB and with 2 MB pages, in alternation."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import hypot
from statistics import median_low, quantiles
from typing import Any

from contigua.errors import ContiguaError
from contigua.measuring.computer import Computer
from contigua.measuring.probes import PROBE, Measured

#: ``linux/prctl.h``; children inherit it, also across ``execve``.
PR_SET_THP_DISABLE = 41
#: glibc's malloc asks for 2 MB pages: ``glibc.malloc.hugetlb``, glibc 2.35 and later.
TUNABLES = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")

#: Pairs of runs at least and at most, and the spread of the speed-up that is enough.
PAIRS = (5, 40)
ENOUGH = 0.01
#: Seconds of a program's pairs, unless the fewest take longer.
SECONDS = 8.0

#: Memory in 4 KB pages whose places are looked at, as much as the chase below has, and how often:
#: each processor's list of free pages has others.
PLACED = 24 << 20
LOOKS = 5
#: Pages in a block of 2 MB, below which the server is ``partial`` (2 pages) rather than ``fresh``
#: (512): a chase takes a time in the middle of both servers' there (``benches/pieces.py``).
PIECES = 6


class ValidationError(ContiguaError):
    """A program that cannot be run, or a computer that cannot run it with both sizes of page."""


@dataclass(frozen=True)
class Native:
    """CPU times of a program, in seconds, and how much faster it is with 2 MB pages.

    Attributes
    ----------
    small, huge, speedup
        With 4 KB pages, with 2 MB pages, and their ratio.
    blocks
        In how many blocks of 2 MB the kernel puts 24 MB of 4 KB pages at that time; ``None`` where
        it does not say, because only root may know.
    """

    small: Measured
    huge: Measured
    speedup: Measured
    blocks: int | None = None

    @property
    def age(self) -> str:
        """The simulated server whose free memory is most like this computer's."""
        in_pieces = self.blocks is None or self.blocks * PIECES > PLACED // 4096
        return "partial" if in_pieces else "fresh"

    @staticmethod
    def from_json(values: dict[str, Any]) -> Native:
        """Read what ``asdict`` made.

        Raises
        ------
        TypeError, KeyError, ValueError
            When it is something else.
        """
        small, huge, speedup = (Measured(**values[key]) for key in ("small", "huge", "speedup"))
        count = values["blocks"]
        return Native(small, huge, speedup, None if count is None else int(count))


def check(computer: Computer) -> None:
    """Refuse a computer without transparent huge pages.

    Raises
    ------
    ValidationError
        When programs cannot get them.
    """
    if computer.thp not in ("always", "madvise"):
        raise ValidationError(
            "transparent huge pages are off: as root, echo madvise > "
            "/sys/kernel/mm/transparent_hugepage/enabled"
        )


@contextmanager
def _without_huge_pages(wanted: bool) -> Iterator[None]:
    """Let programs that are started here have 4 KB pages only."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if wanted and prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0:
        raise ValidationError(f"prctl(PR_SET_THP_DISABLE): {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        if wanted:
            prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)


def cpu_seconds(command: Sequence[str], *, huge: bool) -> float:
    """Run a program; the CPU time that it and its children took.

    Raises
    ------
    ValidationError
        When it cannot be started, or fails.
    """
    environment = os.environ | dict([TUNABLES])
    quiet = subprocess.DEVNULL
    with _without_huge_pages(not huge):
        try:
            child = subprocess.Popen(
                command, env=environment, stdin=quiet, stdout=quiet, stderr=quiet
            )
        except OSError as error:
            raise ValidationError(f"{command[0]}: {error.strerror}") from error
    try:
        _, status, usage = os.wait4(child.pid, 0)
    except KeyboardInterrupt:
        child.kill()
        raise
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        code = child.returncode
        how = f"died of signal {-code}" if code < 0 else f"exited with status {code}"
        raise ValidationError(f"{command[0]}: {how} when run natively")
    return usage.ru_utime + usage.ru_stime


def blocks() -> int | None:
    """Count the blocks of 2 MB that hold a process's 4 KB pages; ``None`` if that is not shown."""
    found = []
    for _ in range(LOOKS):
        try:
            text = subprocess.check_output(
                [PROBE, "frames", "--size", str(PLACED)], stderr=subprocess.DEVNULL, text=True
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        found.append(int(text.split()[1]))
    return median_low(found) or None


def undisturbed(seconds: Sequence[float]) -> Measured:
    """Return the lower quartile: others on the core or in its caches only lengthen runs.

    The spread is half the distance from the fastest run to the median.
    """
    low, middle, _ = quantiles(seconds, n=4, method="inclusive")
    return Measured(low, (middle - min(seconds)) / 2 / low, len(seconds))


def compared(small: Sequence[float], huge: Sequence[float]) -> Native:
    """Sum up the seconds of as many runs of both kinds, two of each at least."""
    times = undisturbed(small), undisturbed(huge)
    spread = hypot(times[0].spread, times[1].spread)
    speedup = Measured(times[0].value / times[1].value, spread, len(small))
    return Native(*times, speedup)


def measure(
    command: Sequence[str],
    progress: Callable[[float], None] | None = None,
    seconds: float = SECONDS,
) -> Native:
    """Time a program in pairs, until the spread of the speed-up is small.

    Raises
    ------
    ValidationError
        When it cannot be run.
    """
    small: list[float] = []
    huge: list[float] = []
    began = time.monotonic()
    fewest, most = PAIRS
    # What is not in any cache yet is of no pair.
    cpu_seconds(command, huge=True)
    while True:
        # Whoever comes first may find another clock, or another cache.
        order = (True, False) if len(small) % 2 else (False, True)
        for wanted in order:
            (huge if wanted else small).append(cpu_seconds(command, huge=wanted))
        taken = time.monotonic() - began
        if progress is not None:
            progress(min(taken / seconds, 1.0))
        if len(small) < fewest:
            continue
        found = compared(small, huge)
        settled = found.speedup.spread / len(small) ** 0.5 < ENOUGH and taken > seconds / 4
        if settled or taken > seconds or len(small) == most:
            return found
