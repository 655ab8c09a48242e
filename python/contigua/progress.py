"""One line on standard error that says how far long work is."""

from __future__ import annotations

import sys
import threading
import time

#: Seconds before the line first shows, and between two updates.
PATIENCE = 2.0
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
        self.last = self.start + PATIENCE - REFRESH
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
                line += f", about {_span(left)} left"
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


def _span(seconds: float) -> str:
    if seconds >= 90:
        return f"{seconds / 60:.0f} minutes"
    return f"{max(seconds, 0):.0f} s"
