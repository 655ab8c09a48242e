"""One line on standard error that says how far long work is."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

#: Called with (instructions, batches behind) of each design.
Progress = Callable[[list[tuple[int, int]]], None]

#: Seconds before the line first shows, and between two updates.
DELAY = 2.0
REFRESH = 0.25


class FractionLine:
    """A line redrawn in place; silent for short work, and when standard error is no terminal.

    Parameters
    ----------
    label
        What is being done.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.enabled = sys.stderr.isatty()
        self.start = time.monotonic()
        self.last = self.start + DELAY - REFRESH
        self.drawn = False
        self.lock = threading.Lock()

    def __call__(self, fraction: float) -> None:
        """Draw how much of the work is done, 0 to 1."""
        now = time.monotonic()
        with self.lock:
            if not self.enabled or now - self.last < REFRESH:
                return
            self.last = now
            self.drawn = True
            line = f"{self.label}: {100 * min(fraction, 1.0):.0f} %"
            if fraction > 0.02:
                left = (now - self.start) * (1 - fraction) / fraction
                line += f", about {span(left)} left"
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave nothing behind."""
        with self.lock:
            if self.drawn:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
                self.drawn = False

    def __enter__(self) -> FractionLine:
        """Start the line."""
        return self

    def __exit__(self, *_: object) -> None:
        """Clear the line, whatever happened."""
        self.clear()


class RunLine:
    """How far a run is, redrawn in place; silent when standard error is no terminal.

    Parameters
    ----------
    ends
        Instructions and seconds after which the run ends; ``None`` where nobody knows.
    """

    def __init__(self, ends: tuple[int | None, float | None] = (None, None)) -> None:
        self.ends = ends
        self.enabled = sys.stderr.isatty()
        self.start = time.monotonic()
        self.last = 0.0

    def __call__(self, state: list[tuple[int, int]]) -> None:
        """Draw how far the slowest design is."""
        now = time.monotonic()
        if not self.enabled or now - self.last < REFRESH:
            return
        self.last = now
        if not state:
            aged = now - self.start
            if aged >= DELAY:
                line = f"ageing memory, {aged:.0f} s"
                print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
            return
        instructions = min(done for done, _ in state)
        behind = max(waiting for _, waiting in state)
        speed = instructions / max(now - self.start, 1e-9) / 1e6
        line = (
            f"{instructions / 1e6:,.0f} M instructions, {speed:,.0f} MIPS, {behind} batches behind"
        )
        if (left := self._left(instructions, now - self.start)) is not None:
            line += f", about {span(left)} left"
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    def _left(self, instructions: int, seconds: float) -> float | None:
        """Return the seconds that are left at most, at the speed until now."""
        last, limit = self.ends
        found = [] if limit is None else [limit - seconds]
        if last and instructions:
            found.append(seconds * (last - instructions) / instructions)
        return max(min(found), 0.0) if found else None

    def clear(self) -> None:
        """Leave nothing behind."""
        if self.enabled:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def span(seconds: float) -> str:
    """Say a time.

    Examples
    --------
    >>> span(12.3), span(150)
    ('12 s', '2 minutes')
    """
    if seconds >= 90:
        return f"{seconds / 60:.0f} minutes"
    return f"{max(seconds, 0):.0f} s"
