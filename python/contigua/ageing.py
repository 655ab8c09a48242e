"""Ageing servers: the state of their memory over hours of service.

Which designs are compared, and from which histories, is decided here once: a history is a profile,
a size of memory, a seed and the options below, and every design sees the same one. Servers are aged
on threads; the engine lets go of Python while it works.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from contigua import _engine
from contigua.errors import ContiguaError
from contigua.extras import needs
from contigua.kept import Kept, key_of
from contigua.presets import Preset, designs, profiles
from contigua.progress import REFRESH
from contigua.schemas import AGE

if TYPE_CHECKING:
    import pandas as pd

FRAME = 4096
BLOCK_SIZES = {"2m": 2 << 20, "4m": 4 << 20, "32m": 32 << 20, "1g": 1 << 30}
#: Index of a cell beyond the end of memory.
BEYOND = 255

#: Prefixes of the names of columns from tables within a sample.
PREFIXES = {"contiguity": "", "classes": "class", "events": "event"}

Sample = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class AgeOptions:
    """A history of memory: everything about ageing but the design.

    Attributes
    ----------
    profile
        Name of a profile of service, or path of its TOML file.
    memory
        Simulated memory, such as ``"64G"``.
    hours
        Simulated hours of service.
    seed
        Seed of everything random.
    sample_seconds
        Simulated seconds between two samples; by default a hundredth of the history, and at least
        one second.
    load
        Scales the tenants' demand for memory.
    kernel
        Scales the kernel's demand for unmovable memory.
    files
        Scales the files that the tenants use.
    daily
        Whether demand follows a day, or is steady.
    paranoid
        Whether the engine checks its structures as it goes, which is slow.
    gigantic_pages
        1 GB pages to allocate at run time when the server has aged; samples and snapshots are of
        the time before.
    nodes
        NUMA nodes that share the memory evenly, 1 to 8.
    """

    profile: str = "web"
    memory: str = "64G"
    hours: float = 2.0
    seed: int = 1
    sample_seconds: float | None = None
    load: float = 1.0
    kernel: float = 1.0
    files: float = 1.0
    daily: bool = True
    paranoid: bool = False
    gigantic_pages: int = 0
    nodes: int = 1

    def spec(self, design: str | Preset) -> _engine.AgeSpec:
        """Return what the engine is told for a design.

        Raises
        ------
        PresetError
            When the design or profile does not exist.
        """
        chosen, profile = designs.get(design), profiles.get(self.profile)
        samples = self.sample_seconds
        if samples is None:
            samples = max(1.0, self.hours * 36.0)
        return {
            "design_name": chosen.name,
            "design": chosen.text,
            "profile_name": profile.name,
            "profile": profile.text,
            "memory": self.memory,
            "hours": float(self.hours),
            "seed": self.seed,
            "sample_seconds": float(samples),
            "load": float(self.load),
            "kernel": float(self.kernel),
            "files": float(self.files),
            "daily": self.daily,
            "paranoid": self.paranoid,
            "gigantic_pages": self.gigantic_pages,
            "nodes": self.nodes,
        }


@dataclass(frozen=True)
class MemoryMap:
    """Physical memory along a Hilbert curve, one cell per block or frame.

    Attributes
    ----------
    width, height
        Cells in a row, and rows.
    names
        Names of the classes.
    cells
        One byte per cell, row by row: an index into ``names``, or 255 beyond the end of memory.
    cell
        What a cell is: ``"block"`` (2 MiB) or ``"frame"`` (4 KiB).
    """

    width: int
    height: int
    names: tuple[str, ...]
    cells: bytes
    cell: str

    def counts(self) -> dict[str, int]:
        """Count the cells of each class."""
        found = Counter(self.cells)
        return {name: found.get(index, 0) for index, name in enumerate(self.names)}


@dataclass(frozen=True)
class AgedServer:
    """A server after its history: samples over time, a report, and its memory.

    Attributes
    ----------
    native
        The engine's own server.
    """

    native: _engine.AgedServer

    @staticmethod
    def load(path: str | Path) -> AgedServer:
        """Read a snapshot that :meth:`save` wrote.

        Raises
        ------
        EngineError
            When the file cannot be read, or is no snapshot or a damaged one.
        """
        return AgedServer(_engine.load_snapshot(path))

    @cached_property
    def report(self) -> dict[str, Any]:
        """The resolved configuration, counts of events and the final sample."""
        parsed: dict[str, Any] = json.loads(self.native.report)
        return parsed

    @cached_property
    def samples(self) -> list[Sample]:
        """The samples, first at second 0, last at the end."""
        parsed: list[Sample] = json.loads(self.native.samples)
        return parsed

    @property
    def design(self) -> str:
        """Name of the design; a snapshot that does not say is called so."""
        config = self.report["config"] or {}
        return str(config.get("design_name", "snapshot"))

    @property
    def title(self) -> str:
        """Return memory, profile and age of the server."""
        config = self.report["config"] or {}
        hours = f"after {self.final['seconds'] / 3600:.4g} h"
        return " of ".join(str(config[k]) for k in ("memory", "profile_name") if k in config) + (
            f" {hours}" if config else f"A server {hours}"
        )

    @property
    def final(self) -> Sample:
        """The last sample."""
        return self.samples[-1]

    def samples_frame(self) -> pd.DataFrame:
        """Return one row for each sample; the columns are those of :func:`flat_sample`."""
        # Half a second to import, which most uses can do without.
        with needs("reports"):
            import pandas as pd

        return pd.DataFrame([flat_sample(sample) for sample in self.samples])

    def memory_map(self, cell: str = "block") -> MemoryMap:
        """Return the final state of memory as a map.

        Parameters
        ----------
        cell
            ``"block"`` for one cell per 2 MiB, ``"frame"`` for one per 4 KiB.
        """
        width, height, names, cells = self.native.memory_map(cell)
        return MemoryMap(width, height, tuple(names), cells, cell)

    def save(self, path: str | Path) -> None:
        """Save a snapshot, whole or not at all."""
        self.native.save(path)

    def to_json(self) -> str:
        """Return report and samples as one JSON object, the same bytes for the same history."""
        whole = {"schema": AGE, "report": self.report, "samples": self.samples}
        return json.dumps(whole, indent=1) + "\n"


class Stopped(ContiguaError):
    """Other work failed or was interrupted, so this was given up."""


def age(
    design: str = "linux-thp",
    options: AgeOptions | None = None,
    *,
    progress: Callable[[float], None] | None = None,
) -> AgedServer:
    """Age one server.

    Parameters
    ----------
    design
        Name of a design, or path of its TOML file.
    options
        The history.
    progress
        Called a few times a second with the part that is done, 0 to 1; may raise to stop.

    Returns
    -------
    AgedServer
        The server after its history.

    Raises
    ------
    PresetError
        When the design or profile does not exist.
    EngineError
        When the history cannot be simulated; the message says what to do.
    """
    (server,) = age_all([(options or AgeOptions()).spec(design)], _whole, 1, progress)
    return server


def age_all(
    specs: Sequence[_engine.AgeSpec],
    keep: Callable[[int, AgedServer], T],
    jobs: int | None = None,
    progress: Callable[[float], None] | None = None,
    kept: Kept | None = None,
) -> list[T]:
    """Age several servers at a time.

    Parameters
    ----------
    specs
        What the engine is told for each.
    keep
        Takes what is wanted of a server that is done, given its place in ``specs``; the server
        itself is then let go. Called on any thread.
    jobs
        Servers at a time; by default one for each processor.
    progress
        As for :func:`age`, over all servers.
    kept
        Has what was kept of servers before, and takes that of the others, which JSON must be able
        to hold.

    Returns
    -------
    list
        What was kept of each, in the order of ``specs``.
    """
    costs = [max(spec["hours"], 1e-9) for spec in specs]
    done = [0.0] * len(specs)
    stop = threading.Event()

    def work(index: int) -> T:
        spec = specs[index]

        def tick(seconds: float) -> None:
            if stop.is_set():
                raise Stopped("stopped")
            done[index] = costs[index] * min(seconds / (3600 * costs[index]), 1.0)

        if stop.is_set():
            raise Stopped("stopped")
        key = "" if kept is None else key_of(spec, _engine_digest())
        if kept is not None and key in kept.values:
            found: T = kept.values[key]
        else:
            found = keep(index, AgedServer(_engine.age(spec, tick)))
            if kept is not None:
                found = kept.add(key, found)
        done[index] = costs[index]
        return found

    workers = max(1, jobs or os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        # The longest first, so that no processor is left with one long history at the end.
        order = sorted(range(len(specs)), key=lambda index: -costs[index])
        futures = {index: pool.submit(work, index) for index in order}
        waiting: set[Future[T]] = set(futures.values())
        try:
            while waiting:
                finished, waiting = wait(waiting, REFRESH, FIRST_EXCEPTION)
                for future in finished:
                    future.result()
                if progress is not None:
                    progress(sum(done) / sum(costs))
        except BaseException:
            # An interrupt or a failure: the others end at their next tick.
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [futures[index].result() for index in range(len(specs))]


@cache
def _engine_digest() -> str:
    file = getattr(_engine, "__file__", None)
    if file is None:
        return _engine.VERSION
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _whole(_: int, server: AgedServer) -> AgedServer:
    return server


def flat_sample(sample: Sample) -> dict[str, Any]:
    """Flatten a sample into one row.

    Returns
    -------
    dict
        ``seconds``; frames (``free_frames``, ``class_slab``...); numbers of aligned blocks
        (``blocks_2m_free``...); ``unmovable_region_bytes``, or ``None`` for designs without one;
        pressure in percent of time (``pressure_all_avg10``...); and counts of events since
        second 0 (``event_allocations``...).
    """
    return dict(_flat(sample))


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        name = prefix + PREFIXES.get(key, key)
        if isinstance(value, dict):
            yield from _flat(value, f"{name}_" if name else "")
        elif not isinstance(value, str):
            yield name, value


def region_bytes(sample: Sample) -> int | None:
    """Return the size of the region for unmovable memory; ``None`` where a design has none."""
    region: int | None = sample["unmovable_region_bytes"]
    return region


def total_frames(sample: Sample) -> int:
    """Return all frames of a server, reserved ones too."""
    kinds = ("free_frames", "movable_frames", "unmovable_frames", "reserved_frames")
    return sum(int(sample["contiguity"][kind]) for kind in kinds)


def share(sample: Sample, size: str, what: str) -> float:
    """Return the share of total memory that blocks make up, in percent.

    Parameters
    ----------
    sample
        A sample.
    size
        ``"2m"``, ``"4m"``, ``"32m"`` or ``"1g"``.
    what
        ``"free"``, ``"potential"`` or ``"unmovable"``.
    """
    blocks = sample["contiguity"][f"blocks_{size}"][what]
    return float(100 * blocks * BLOCK_SIZES[size] / (FRAME * total_frames(sample)))
