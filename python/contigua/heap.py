"""The page heap in virtual time: what a policy would have done with a program's demand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from contigua import _engine

#: From a time in seconds on, a program uses so many bytes.
Demand = Sequence[tuple[float, int]]


@dataclass(frozen=True)
class HeapSettings:
    """A page heap's settings, and the program's.

    Attributes
    ----------
    release_rate
        Bytes given back in a second at most; 0 for none.
    interval
        Δ in seconds: memory used within it is not broken off huge pages; 0 for the static policy.
    cache_interval
        The same for whole free huge pages, in seconds.
    schedule
        The window of both measures of fragmentation, in seconds.
    collapses
        Broken huge pages that are made whole in a second, at most.
    sizes
        Bytes of the program's allocations, in turn.
    removal
        Which of them go first: the ``"oldest"``, the ``"newest"``, or any (``"random"``).
    seed
        Draws those.
    """

    release_rate: int
    interval: float
    cache_interval: float = 0.0
    schedule: float = 300.0
    collapses: int = 0
    sizes: tuple[int, ...] = (8192,)
    removal: str = "newest"
    seed: int = 0


@dataclass(frozen=True)
class Replay:
    """What became of the heap.

    Attributes
    ----------
    summary
        Means of ``used``, ``mapped``, ``average_fragmentation``, ``realized_fragmentation`` in
        bytes and ``coverage`` from 0 to 1; in all ``broken_total`` huge pages, ``skipped`` bytes,
        and of these ``skipped_correct``, from 0 to 1.
    samples
        The same of each second, in columns, with ``seconds``.
    """

    summary: dict[str, float]
    samples: dict[str, list[float]]


def replay(
    demand: Demand, seconds: float, settings: HeapSettings, *, warmup: float = 0.0
) -> Replay:
    """Let a heap live through a program's demand, in virtual time.

    Parameters
    ----------
    demand
        What the program uses, in order of time.
    seconds
        When to end.
    settings
        The heap's and the program's.
    warmup
        Seconds at the beginning that the summary leaves out.
    """
    spec: _engine.HeapSpec = {
        "demand": demand,
        "seconds": seconds,
        "release_rate": settings.release_rate,
        "interval": settings.interval,
        "cache_interval": settings.cache_interval,
        "schedule": settings.schedule,
        "collapses": settings.collapses,
        "sizes": settings.sizes,
        "removal": settings.removal,
        "seed": settings.seed,
    }
    found = json.loads(_engine.replay_heap(spec, warmup=warmup))
    return Replay(found["summary"], found["samples"])


def square_wave(low: int, high: int, period: float, seconds: float) -> list[tuple[float, int]]:
    """Use ``high`` bytes for the first half of each period and ``low`` for the second."""
    half = period / 2
    return [(index * half, low if index % 2 else high) for index in range(int(seconds / half) + 1)]
