"""A report on a fleet of real servers: the figures of Contiguitas, section 2, for one's own.

Snapshots are read one at a time; of each a row of numbers stays.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from contigua.extras import needs
from contigua.files import write_whole, writing
from contigua.page import Page
from contigua.printing import printable
from contigua.snapshots import Problem, Snapshot, SnapshotError, find_files, read_snapshot

if TYPE_CHECKING:
    import pyarrow

    from contigua.pictures import Curves

#: Block sizes as the report of a server orders them.
SIZES = ("2m", "4m", "32m", "1g")
LABELS = {"2m": "2 MB", "4m": "4 MB", "32m": "32 MB", "1g": "1 GB"}
#: Classes that do not move.
UNMOVABLE = ("slab", "page_table", "kernel", "unexplained", "poisoned")
NAMES = {
    "slab": "slab",
    "page_table": "page tables",
    "kernel": "other kernel",
    "unexplained": "kernel or free on a CPU",
    "poisoned": "poisoned",
}
#: Servers with less free memory are left out of the distributions of free contiguity.
LEAST_FREE = 1 << 30
#: Servers are young up to this age ("a few hours of uptime").
YOUNG_HOURS = 6.0
FRAME = 4096
#: Rows that are written at a time.
BATCH = 4096
#: Points of a curve; more would not be seen.
POINTS = 400
#: Problems that are named, of each kind.
NAMED = 3

#: Range of a count.
COUNTS = range(1 << 63)

Row = dict[str, Any]


def row(snapshot: Snapshot) -> Row:
    """Return the numbers of a snapshot that a fleet's report needs.

    Raises
    ------
    SnapshotError
        When it has no frames, or a figure is missing.
    """
    report = snapshot.report
    try:
        machine, seen = report["machine"], report["frames"]
        if seen is None:
            raise SnapshotError(Problem.WITHOUT_FRAMES, "frames were not looked at")
        classes = seen["classes"]
        values: Row = {
            "file": printable(str(snapshot.path)),
            "host": printable(str(machine["host"])),
            "kernel": printable(str(machine["kernel"])),
            "taken": int(machine["unix_seconds"]),
            "uptime_hours": float(machine["uptime_seconds"]) / 3600,
            "memory": int(machine["memory_bytes"]),
            "free": int(classes["free"]) * FRAME,
            "huge": (int(classes["thp"]) + int(classes["hugetlb"])) * FRAME,
            "pins_held": seen["pins_held"],
            "problems": int(seen["outcome"]["problem_count"]),
        }
        managed = sum(
            int(seen["contiguity"]["certain"][kind])
            for kind in ("free_frames", "movable_frames", "unmovable_frames")
        )
        for bound in ("certain", "possible"):
            unmovable = int(seen["contiguity"][bound]["unmovable_frames"])
            values[f"unmovable_frames_share_{bound}"] = unmovable / max(1, managed)
        for key in UNMOVABLE:
            values[f"unmovable_{key}"] = int(classes[key]) * FRAME
        for size, figures in zip(SIZES, seen["sizes"], strict=True):
            blocks = int(figures["blocks"])
            values[f"blocks_{size}"] = blocks
            for bound in ("certain", "possible"):
                free = int(figures["free_blocks"][bound])
                polluted = int(figures["unmovable_blocks"][bound])
                potential = int(figures["potential_blocks"][bound])
                values[f"free_blocks_{size}_{bound}"] = free
                values[f"free_share_{size}_{bound}"] = float(figures["free_share_of_free"][bound])
                values[f"unmovable_share_{size}_{bound}"] = polluted / max(1, blocks)
                values[f"potential_share_{size}_{bound}"] = potential / max(1, blocks)
        for key, value in values.items():
            # Sums and sizes of what was in range may not be.
            if isinstance(value, int) and value not in COUNTS:
                raise ValueError(f"{key} is {value}")
            if isinstance(value, float) and not 0 <= value < math.inf:
                raise ValueError(f"{key} is {value}")
        pins = values["pins_held"]
        if isinstance(pins, bool) or not isinstance(pins, int | None):
            raise ValueError("pins_held is no number")
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise SnapshotError(Problem.DAMAGED, f"its report lacks a figure: {error!r}") from error
    return values


@dataclass
class Fleet:
    """Findings about a fleet.

    Attributes
    ----------
    rows
        One for each snapshot that could be read.
    skipped
        How many files were passed over, by problem.
    named
        Some of them, in words.
    """

    rows: list[Row] = field(default_factory=list)
    skipped: Counter[Problem] = field(default_factory=Counter)
    named: list[str] = field(default_factory=list)

    def skip(self, path: Path, error: SnapshotError) -> None:
        """Count a file that is passed over."""
        self.skipped[error.problem] += 1
        if self.skipped[error.problem] <= NAMED:
            self.named.append(printable(f"{path}: {error}"))


def read_fleet(paths: Iterable[Path], progress: Callable[[int], None] | None = None) -> Fleet:
    """Read snapshots, one at a time.

    Parameters
    ----------
    paths
        Files, and directories of files.
    progress
        Is told how many files were read.
    """
    fleet = Fleet()
    for count, path in enumerate(find_files(paths), 1):
        try:
            fleet.rows.append(row(read_snapshot(path)))
        except SnapshotError as error:
            fleet.skip(path, error)
        finally:
            if progress is not None:
                progress(count)
    return fleet


def write_table(rows: Sequence[Row], path: Path) -> None:
    """Write a Parquet file with a row for each snapshot."""
    with needs("sweeps"):
        import pyarrow
        import pyarrow.parquet

    schema = _schema()
    with writing(path) as file, pyarrow.parquet.ParquetWriter(file, schema) as writer:
        for start in range(0, len(rows), BATCH):
            batch = list(rows[start : start + BATCH])
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))


def _schema() -> pyarrow.Schema:
    """Return the columns, which do not depend on the first row's values."""
    with needs("sweeps"):
        import pyarrow

    fields = [("file", "string"), ("host", "string"), ("kernel", "string"), ("taken", "int64")]
    fields += [("uptime_hours", "double"), ("memory", "int64"), ("free", "int64")]
    fields += [("huge", "int64"), ("pins_held", "int64"), ("problems", "int64")]
    bounds = ("certain", "possible")
    fields += [(f"unmovable_frames_share_{bound}", "double") for bound in bounds]
    fields += [(f"unmovable_{key}", "int64") for key in UNMOVABLE]
    for size in SIZES:
        fields.append((f"blocks_{size}", "int64"))
        for bound in bounds:
            fields.append((f"free_blocks_{size}_{bound}", "int64"))
            for share in ("free", "unmovable", "potential"):
                fields.append((f"{share}_share_{size}_{bound}", "double"))
    return pyarrow.schema(
        [(name, getattr(pyarrow, {"double": "float64"}.get(kind, kind))()) for name, kind in fields]
    )


def pearson(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return the correlation of two series; none where one of them does not vary."""
    if len(x) < 3:
        return None
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    both = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    squares = [math.fsum((v - m) ** 2 for v in s) for s, m in ((x, mean_x), (y, mean_y))]
    scale = math.sqrt(squares[0] * squares[1])
    return both / scale if scale > 0 else None


def distribution(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return a cumulative distribution, in percent of servers, of values in percent."""
    ordered = sorted(100 * value for value in values)
    if not ordered:
        return [], []
    count = len(ordered)
    places = sorted({min(count - 1, round(i * (count - 1) / POINTS)) for i in range(POINTS + 1)})
    x = [0.0] + [ordered[place] for place in places] + [100.0]
    y = [0.0] + [100 * (place + 1) / count for place in places] + [100.0]
    return x, y


def counted(rows: Sequence[Row]) -> list[Row]:
    """Return the servers that count in distributions of free contiguity."""
    return [one for one in rows if one["free"] >= LEAST_FREE]


def figures(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Return what is most asked of a fleet: what, here, in the paper."""
    with_free = counted(rows)
    result = [
        (
            "servers with less than 1 GB free, left out of free contiguity",
            f"{len(rows) - len(with_free)} of {len(rows)}",
            "left out, too",
        ),
    ]
    papers = {"2m": "23 %", "4m": "", "32m": "59 %", "1g": "nearly all"}
    for size in SIZES:
        low, high = (
            _percent(
                sum(one[f"free_blocks_{size}_{bound}"] == 0 for one in with_free), len(with_free)
            )
            for bound in ("possible", "certain")
        )
        result.append((f"without one free {LABELS[size]} block", _range(low, high), papers[size]))
    if rows:
        for name, key, paper in (
            ("unmovable 4 KB pages, median", "unmovable_frames_share", "7.6 %"),
            ("2 MB blocks with an unmovable page, median", "unmovable_share_2m", "34 %"),
            ("1 GB blocks with an unmovable page, median", "unmovable_share_1g", ""),
        ):
            # Here `possible` means that what is unexplained is free: the lower bound.
            low, high = (
                f"{100 * median(one[f'{key}_{bound}'] for one in rows):.1f} %"
                for bound in ("possible", "certain")
            )
            result.append((name, _range(low, high), paper))
    for name, some, paper in (
        ("correlation of uptime and free 2 MB blocks", rows, "0.00286"),
        (
            f"  of servers up for less than {YOUNG_HOURS:g} hours",
            [one for one in rows if one["uptime_hours"] < YOUNG_HOURS],
            "0.16",
        ),
    ):
        value = pearson(
            [one["uptime_hours"] for one in some],
            [float(one["free_blocks_2m_certain"]) for one in some],
        )
        text = "too few servers, or all alike" if value is None else f"{value:.3g}"
        result.append((name, text, paper))
    return result


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "no servers"


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def sources(rows: Sequence[Row]) -> dict[str, float]:
    """Return each class's share of all unmovable memory, in percent, in order of size."""
    sums = {key: sum(one[f"unmovable_{key}"] for one in rows) for key in UNMOVABLE}
    total = sum(sums.values())
    ordered = sorted(sums.items(), key=lambda item: -item[1])
    return {NAMES[key]: 100 * value / total for key, value in ordered if value > 0}


def write_page(fleet: Fleet, path: Path) -> None:
    """Write the report as one HTML page that needs no other file."""
    rows = fleet.rows
    page = Page(f"Contiguity of physical memory on {len(rows)} servers")
    hosts = len({one["host"] for one in rows})
    kernels = Counter(one["kernel"] for one in rows)
    page.text(
        f"{len(rows)} snapshots of {hosts} hosts, taken by contigua-node scan. Kernels: "
        + ", ".join(f"{kernel} ({count})" for kernel, count in kernels.most_common(5))
        + "."
    )
    for problem, count in sorted(fleet.skipped.items(), key=lambda item: -item[1]):
        page.text(f"{count} files were passed over: {problem.value}.")
    for name in fleet.named:
        page.text(f"For example {name}")
    if not rows:
        page.text("There is nothing to show.")
        write_whole(path, page.html())
        return
    page.table(["", "here", "Contiguitas (ISCA 2023), section 2"], figures(rows))
    page.text(
        "Where two numbers stand, memory that is either the kernel's or free on the list of one "
        "processor is taken for free in one, and for the kernel's in the other."
    )
    _distributions(page, rows)
    _sources(page, rows)
    _uptimes(page, rows)
    write_whole(path, page.html())


def _distributions(page: Page, rows: Sequence[Row]) -> None:
    from contigua.pictures import lines_picture

    page.heading("Free contiguity")
    with_free = counted(rows)
    curves: Curves = {
        LABELS[size]: distribution(
            [min(1.0, one[f"free_share_{size}_certain"]) for one in with_free]
        )
        for size in SIZES
    }
    page.picture(
        lines_picture(
            [("servers, %", curves)],
            "Free memory in free blocks of at least a size",
            "share of free memory, %",
            steps=True,
        ),
        "Cumulative distribution over servers of the share of free memory that lies in free "
        "blocks of 2 MB, 4 MB, 32 MB and 1 GB.",
        "As figure 4 of the paper: the further left a curve rises, the less contiguous.",
    )
    page.heading("Unmovable memory")
    curves = {
        LABELS[size]: distribution([one[f"unmovable_share_{size}_certain"] for one in rows])
        for size in SIZES
    }
    page.picture(
        lines_picture(
            [("servers, %", curves)],
            "Blocks with an unmovable page",
            "share of blocks, %",
            steps=True,
        ),
        "Cumulative distribution over servers of the share of blocks that hold an unmovable page.",
        "As figure 5 of the paper: the further right a curve rises, the less compaction can do.",
    )


def _sources(page: Page, rows: Sequence[Row]) -> None:
    from contigua.pictures import bars_picture

    page.heading("Sources of unmovable memory")
    shares = sources(rows)
    if not shares:
        page.text("No server has any.")
        return
    page.picture(
        bars_picture(
            list(shares),
            {"share of unmovable memory": list(shares.values())},
            "What unmovable pages are",
            "%",
        ),
        "Shares: " + ", ".join(f"{name} {share:.0f} %" for name, share in shares.items()),
        "As figure 6 of the paper, by what a page's flags tell. Network buffers, the paper's "
        "largest source, are among slab, other kernel and unexplained pages; page_owner tells "
        "them apart on single servers (contigua-node scan --sites).",
    )


def _uptimes(page: Page, rows: Sequence[Row]) -> None:
    from contigua.pictures import scatter_picture

    page.heading("Uptime")
    up = [one for one in rows if one["uptime_hours"] > 0]
    if not up:
        return
    page.picture(
        scatter_picture(
            [one["uptime_hours"] for one in up],
            [100 * min(1.0, one["free_share_2m_certain"]) for one in up],
            "Does contiguity wear off?",
            "hours since boot",
            "free memory in 2 MB blocks, %",
        ),
        "A dot for each server: hours since boot, and the share of free memory in 2 MB blocks.",
        "The paper finds next to no correlation.",
    )
