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
#: Seconds between two lines of a run where standard error is no terminal.
LINES = 30.0


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
    """Progress of a run: redrawn in place on a terminal, else a line every half minute.

    Parameters
    ----------
    ends
        Instructions and seconds after which the run ends; ``None`` where they are unknown.
    """

    def __init__(self, ends: tuple[int | None, float | None] = (None, None)) -> None:
        self.ends = ends
        self.is_terminal = sys.stderr.isatty()
        self.start = time.monotonic()
        self.last = 0.0 if self.is_terminal else self.start

    def __call__(self, state: list[tuple[int, int]]) -> None:
        """Show the progress of the slowest design."""
        now = time.monotonic()
        if now - self.last < (REFRESH if self.is_terminal else LINES):
            return
        self.last = now
        seconds = now - self.start
        if state:
            line = self._line(min(done for done, _ in state), seconds)
        elif seconds >= DELAY:
            line = f"ageing memory, {seconds:.0f} s"
        else:
            return
        start, end = ("\r\x1b[K", "") if self.is_terminal else ("contigua: ", "\n")
        print(f"{start}{line}", end=end, file=sys.stderr, flush=True)

    def _line(self, instructions: int, seconds: float) -> str:
        """Return the share done, if it is known, the speed and the time left."""
        line = f"{instructions / 1e6:,.0f} M instructions"
        line += f", {instructions / max(seconds, 1e-9) / 1e6:,.1f} MIPS"
        if share := self._share(instructions, seconds):
            left = seconds * (1 - share) / share
            line = f"{100 * share:.0f} %, {line}, about {span(left)} left"
        return line

    def _share(self, instructions: int, seconds: float) -> float:
        """Return the share of the run that is done; 0 where it is unknown."""
        last, limit = self.ends
        shares = [instructions / last if last else 0.0, seconds / limit if limit else 0.0]
        return min(max(shares), 1.0)

    def clear(self) -> None:
        """Leave nothing behind."""
        if self.is_terminal:
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
