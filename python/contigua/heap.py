"""The page heap in virtual time: what a policy would have done with a program's demand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from contigua import _engine
from contigua.options import RunOptions
from contigua.run_spec import document

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

    def spec(self, demand: Demand, seconds: float) -> _engine.HeapSpec:
        """Describe a program's life to the engine."""
        return {
            "demand": demand,
            "seconds": seconds,
            "release_rate": self.release_rate,
            "interval": self.interval,
            "cache_interval": self.cache_interval,
            "schedule": self.schedule,
            "collapses": self.collapses,
            "sizes": self.sizes,
            "removal": self.removal,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class Replay:
    """Result of a heap's replay.

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
    spec = settings.spec(demand, seconds)
    found = json.loads(_engine.replay_heap(spec, warmup=warmup))
    return Replay(found["summary"], found["samples"])


@dataclass(frozen=True)
class Server:
    """A simulated server for a heap to live on.

    Attributes
    ----------
    design
        Name of a design, or path of its TOML file.
    age
        What its memory went through before, as for ``contigua.run``.
    options
        Everything else that concerns a server: machine, memory, detail (``"full"`` counts as
        ``"additive"``), seed.
    """

    design: str = "linux-thp-madvise"
    age: str = "fresh"
    options: RunOptions = field(default_factory=lambda: RunOptions(detail="additive"))


@dataclass(frozen=True)
class ServerReplay:
    """Result of a heap's replay on a server.

    Attributes
    ----------
    summary
        After the warm-up. Means in bytes of ``used``, ``mapped`` (what the heap takes for
        backed), ``resident`` (what is), ``average_fragmentation`` and ``realized_fragmentation``;
        shares from 0 to 1: ``coverage`` of resident memory by huge pages, and
        ``believed_coverage``, what the heap says of used memory; ``walks_per_read`` and
        ``walk_cycles_per_read``; counts of ``faults_4k``, ``faults_2m``, ``fallbacks``
        (huge-page allocation failures), ``broken``, ``collapsed``, ``collapses_failed``,
        ``collapsed_in_background``, ``pages_moved``; ``given_back`` bytes, ``kernel_cycles``.
    samples
        Figures of each second, in columns, with ``seconds``; ``huge`` is resident in huge pages.
    free_2m_blocks_before
        2 MB blocks that were free before.
    blocks_2m
        2 MB blocks that the server has.
    """

    summary: dict[str, float]
    samples: dict[str, list[float]]
    free_2m_blocks_before: int
    blocks_2m: int


def on_server(
    demand: Demand,
    seconds: float,
    settings: HeapSettings,
    server: Server | None = None,
    *,
    warmup: float = 0.0,
    reads: int = 10_000,
) -> ServerReplay:
    """Let a heap live through a program's demand on a simulated server, in virtual time.

    The program writes every page that it allocates, and reads words of what it has. What the heap
    asks of its system the simulated kernel does, or fails to do.

    Parameters
    ----------
    demand
        What the program uses, in order of time.
    seconds
        When to end.
    settings
        The heap's and the program's.
    server
        Where it runs; by default one with fresh memory and huge pages where they are asked for.
    warmup
        Seconds at the beginning that the summary leaves out.
    reads
        Words read in a second, anywhere in what is allocated with equal probability.

    Raises
    ------
    PresetError
        When the design or machine does not exist.
    EngineError
        When the server cannot be made, or has not enough memory.
    """
    server = server or Server()
    place = server.options.spec(server.design, server.age, "none")
    text = _engine.heap_on_server(
        settings.spec(demand, seconds), document(place), warmup=warmup, reads=reads
    )
    found = json.loads(text)
    samples = found["samples"]
    columns = {name: [sample[name] for sample in samples] for name in samples[0]}
    return ServerReplay(
        found["summary"], columns, found["free_2m_blocks_before"], found["blocks_2m"]
    )


def square_wave(low: int, high: int, period: float, seconds: float) -> list[tuple[float, int]]:
    """Use ``high`` bytes for the first half of each period and ``low`` for the second."""
    half = period / 2
    return [(index * half, low if index % 2 else high) for index in range(int(seconds / half) + 1)]
