"""A fleet: many servers of different ages, sizes and services, one row each.

Finished servers are kept in a file beside the output under the hash of everything that decides
them, so that a fleet that was interrupted, or that grows, carries on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contigua.ageing import FRAME, age_all, flat_sample, total_frames
from contigua.calibration import Calibration, Draw, calibration, draw
from contigua.extras import needs
from contigua.files import check_writable, is_stream, writing
from contigua.kept import Kept

Row = dict[str, Any]


@dataclass(frozen=True)
class FleetOptions:
    """Everything about a fleet but its size.

    Attributes
    ----------
    design
        Name of a design, or path of its TOML file.
    memory
        Size of every server; by default drawn.
    longest_hours
        Limits the oldest age.
    seed
        The fleet's seed.
    jobs
        Servers at a time; by default one for each processor.
    calibration
        TOML file to draw from; by default the package's own.
    """

    design: str = "linux-thp"
    memory: str | None = None
    longest_hours: float = math.inf
    seed: int = 1
    jobs: int | None = None
    calibration: Path | None = None


def simulate(
    servers: int,
    options: FleetOptions | None = None,
    *,
    kept: Path | None = None,
    progress: Callable[[float], None] | None = None,
) -> list[Row]:
    """Age a fleet.

    Parameters
    ----------
    servers
        How many.
    options
        Everything else.
    kept
        File in which finished servers are kept, and from which they are taken.
    progress
        As for :func:`contigua.age`.

    Returns
    -------
    list of dict
        One row per server: its draw, and the final sample as of :func:`flat_sample`. ``excluded``
        says whether it has too little free memory to count in distributions.
    """
    options = options or FleetOptions()
    fleet = calibration(options.calibration)
    draws = [
        draw(fleet, options.seed, server, options.memory, options.longest_hours)
        for server in range(servers)
    ]
    specs = [one.options().spec(options.design) for one in draws]
    with Kept(kept) as done:
        samples = age_all(specs, lambda _, server: server.final, options.jobs, progress, done)
        design = specs[0]["design_name"] if specs else options.design
        return [
            _row(fleet, one, design, sample) for one, sample in zip(draws, samples, strict=True)
        ]


def _row(fleet: Calibration, one: Draw, design: str, sample: dict[str, Any]) -> Row:
    row: Row = {
        "server": one.server,
        "design": design,
        "profile": one.profile,
        "memory": FRAME * total_frames(sample),
        "hours": one.hours,
        "load": one.load,
        "kernel": one.kernel,
        "files": one.files,
        "seed": one.seed,
    }
    row |= flat_sample(sample)
    row["excluded"] = FRAME * row["free_frames"] < fleet.least_free(row["memory"])
    return row


def kept_beside(output: Path) -> Path | None:
    """Return where the finished servers of a fleet are kept; nowhere beside a device or pipe."""
    return None if is_stream(output) else output.with_name(output.name + ".servers.jsonl")


def write_parquet(rows: list[Row], path: Path, notes: Mapping[str, str]) -> None:
    """Write a fleet, one row per server, whole or not at all.

    Parameters
    ----------
    rows
        The servers.
    path
        The file.
    notes
        What a reader should know, stored in the file's metadata.
    """
    # Half a second to import, which most uses can do without.
    with needs("sweeps"):
        import pyarrow
        import pyarrow.parquet

    check_writable(path)
    columns = {key: [row.get(key) for row in rows] for row in rows[:1] for key in row}
    # A column without any value would have no type: a design without a region has no size of it.
    arrays = {
        key: pyarrow.array(values, pyarrow.int64() if set(values) == {None} else None)
        for key, values in columns.items()
    }
    table = pyarrow.table(arrays).replace_schema_metadata(dict(notes))
    with writing(path) as file:
        pyarrow.parquet.write_table(table, file)
