"""The table that a run ends with: one column for each design; on a terminal, in HTML or Markdown.

All of them show the same :class:`Comparison`. CSV, which programs read, is another thing: it has
the keys of :meth:`contigua.Report.summary` as they are.
"""

from __future__ import annotations

import io
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from contigua.printing import printable
from contigua.sizes import duration

if TYPE_CHECKING:
    from contigua.terminal import Table

#: Forms of a run's results; all but the first have every row.
FORMATS = ("table", "markdown", "csv", "json")


#: Events of perf, by their first part: the keys of misses and of walks in a report.
MISS_EVENTS = {
    "dtlb_load_misses": ("load_misses", "loads"),
    "dtlb_store_misses": ("store_misses", "stores"),
    "itlb_misses": ("fetch_misses", "fetches"),
}

#: Huge pages that were split, by cause: keys of ``kernel``.
SPLITS = {
    "munmap": "splits_munmap",
    "mprotect": "splits_mprotect",
    "mremap": "splits_mremap",
    "madvise": "splits_madvise",
    "a fault": "splits_fault",
}


class Summarized(Protocol):
    """A column of the table: :class:`contigua.Report`, or what has its summary."""

    @property
    def values(self) -> dict[str, Any]:
        """The whole report."""

    @property
    def replicas(self) -> int:
        """Seeds that it is the mean of; 1 for a report."""

    def summary(self) -> dict[str, Any]:
        """Return the values by key."""

    def intervals(self) -> dict[str, float]:
        """Return halves of the confidence intervals of some of them."""


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _cycles(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _microseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f} µs"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _time(value: float | None) -> str:
    return "-" if value is None else duration(value)


def _mebibytes(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} MiB"


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes
    ----------
    label
        What stands at its beginning.
    key
        Key of :meth:`contigua.Report.summary`.
    show
        Writes a value, or ``-`` for ``None``.
    main
        Whether it is shown without ``--details``.
    rare
        Whether it is left out where it is zero in every column.
    """

    label: str
    key: str
    show: Callable[[Any], str] = _count
    main: bool = False
    rare: bool = False


#: The rows, in sections.
SECTIONS = (
    (
        Row("instructions", "instructions", main=True),
        Row("sampled units", "sample_units", main=True, rare=True),
        Row("regions", "regions", main=True, rare=True),
        Row("cycles", "cycles", main=True),
        Row("requests", "requests", main=True, rare=True),
        Row("cycles per request", "request_cycles", _cycles, main=True, rare=True),
        Row("page walks per request", "request_walks", _decimal, main=True, rare=True),
        Row("mean latency of requests", "latency_mean_us", _microseconds, rare=True),
        Row("median latency of requests", "latency_p50_us", _microseconds, main=True, rare=True),
        Row("95th percentile", "latency_p95_us", _microseconds, main=True, rare=True),
        Row("99th percentile", "latency_p99_us", _microseconds, main=True, rare=True),
        Row("99.9th percentile", "latency_p99_9_us", _microseconds, main=True, rare=True),
        Row("instructions per cycle", "ipc", _decimal, main=True),
        Row("translation overhead", "translation_overhead", _percent, main=True),
        Row("walk-active cycles", "walk_active_share", _percent, main=True),
        Row("cycles stalled on walks", "walk_share", _percent),
        Row("kernel cycles", "kernel_share", _percent, main=True),
        Row("simulated time", "seconds", _time, main=True),
        Row("khugepaged's scan interval", "scan_period", _time, main=True),
        Row("inter-processor interrupts", "interrupts", rare=True),
        Row("in-use pages migrated", "migrations", main=True, rare=True),
        Row("in-use pages that could not move", "not_moved", main=True, rare=True),
        Row("mean cycles unavailable", "unavailable_cycles", _cycles, main=True, rare=True),
    ),
    (
        Row("L1 data TLB MPKI", "l1d_tlb_mpki", _decimal),
        Row("L1 instruction TLB MPKI", "l1i_tlb_mpki", _decimal),
        Row("L2 TLB MPKI", "l2_tlb_mpki", _decimal, main=True),
        Row("direct-segment accesses", "segment_accesses", rare=True),
        Row("page walks, 4 KB pages", "walks_4k"),
        Row("page walks, 2 MB pages", "walks_2m"),
        Row("page-table entries read", "walk_references"),
    ),
    # The names of perf on Intel's processors, for comparisons with a real one.
    tuple(
        Row(f"{event}.{counter}", f"{event}.{counter}")
        for event in MISS_EVENTS
        for counter in ("stlb_hit", "walk_completed", "walk_active", "walk_pending")
    ),
    (
        Row("page faults", "page_faults", main=True),
        Row("peak memory, 4 KB pages", "resident_4k_mib", _mebibytes),
        Row("peak memory, 2 MB pages", "resident_2m_mib", _mebibytes),
        Row("peak memory, 1 GB pages", "resident_1g_mib", _mebibytes, rare=True),
        Row("peak memory, perforated pages", "perforated_mib", _mebibytes, rare=True),
        Row("peak memory, segment", "segment_mib", _mebibytes, rare=True),
        Row("peak memory, shared", "shmem_mib", _mebibytes, rare=True),
        Row("  of that in 2 MB pages", "shmem_huge_mib", _mebibytes, rare=True),
        Row("peak memory, shared pages of HugeTLB", "hugetlb_shared_mib", _mebibytes, rare=True),
        Row("mean huge-page coverage", "mean_huge_page_coverage", _percent, main=True),
        Row("huge-page allocation failures", "huge_page_fallbacks", main=True),
        Row("longest stall of an access", "longest_stall", _time),
        Row("huge pages split", "huge_page_splits", rare=True),
        *(Row(f"  by {cause}", key, rare=True) for cause, key in SPLITS.items()),
        Row("direct compactions", "direct_compactions", rare=True),
        Row("background compactions", "background_compactions", rare=True),
        Row("bitmaps of holes read", "bitmap_fills", rare=True),
        Row("holes looked up", "hole_walks", rare=True),
        Row("mean memory", "mean_resident_mib", _mebibytes),
        Row("huge-page coverage at the peak", "huge_page_coverage", _percent),
        Row("memory released by madvise", "given_back_mib", _mebibytes, rare=True),
        Row("huge pages collapsed by madvise", "collapsed", rare=True),
        Row("failed collapses by madvise", "collapses_failed", rare=True),
    ),
    (
        Row("free 2 MB blocks before", "free_2m_blocks_before", main=True),
        Row("free 2 MB blocks after", "free_2m_blocks_after"),
        Row("polluted 2 MB blocks after", "unmovable_2m_blocks_after"),
        Row("pages reclaimed", "pages_reclaimed"),
        Row("pages migrated by the kernel", "pages_moved"),
        Row("unmovable region", "unmovable_region_mib", _mebibytes),
    ),
)
#: Rows by key.
ROWS = {row.key: row for row in chain.from_iterable(SECTIONS)}


def cut_short(values: Mapping[str, Any]) -> str:
    """Say in a few words why a report is incomplete; empty where it is not.

    Examples
    --------
    >>> cut_short({"complete": False, "ended": "signal", "program": {"signal": 11}})
    'killed by SIGSEGV'
    >>> cut_short({"complete": True, "ended": "time"})
    ''
    """
    if values.get("complete") is not False:
        return ""
    ended, program = values.get("ended"), values.get("program") or {}
    if ended == "exit_status":
        return f"exit status {program['exit_status']}"
    if ended == "signal":
        return f"killed by {signal_name(int(program['signal']))}"
    return "not observed to its end" if ended == "failure" else "interrupted"


def signal_name(number: int) -> str:
    """Return a signal's name, or its number where it has none.

    Examples
    --------
    >>> signal_name(11), signal_name(99)
    ('SIGSEGV', 'signal 99')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def shown(summaries: Sequence[dict[str, Any]], *, details: bool) -> list[list[Row]]:
    """Return the rows that say something of these runs, in sections, none of them empty.

    Parameters
    ----------
    summaries
        What :meth:`contigua.Report.summary` says of each run.
    details
        Whether all such rows are wanted, or those that matter most, which are one section.
    """

    def says(row: Row) -> bool:
        values = [summary[row.key] for summary in summaries]
        return any(values) if row.rare else any(value is not None for value in values)

    if not details:
        return [[row for row in ROWS.values() if row.main and says(row)]]
    sections = ([row for row in section if says(row)] for section in SECTIONS)
    return [section for section in sections if section]


def with_interval(row: Row, value: Any, half: float | None) -> str:  # noqa: ANN401
    """Write a cell, with half of its interval where there is one.

    Examples
    --------
    >>> with_interval(ROWS["cycles"], 2000, 10.0)
    '2,000 ± 0.5 %'
    >>> with_interval(ROWS["translation_overhead"], 0.25, 0.002)
    '25.0 ± 0.2 %'
    >>> with_interval(ROWS["ipc"], 1.5, 0.1), with_interval(ROWS["ipc"], 1.5, None)
    ('1.50 ± 0.10', '1.50')
    """
    text = row.show(value)
    if half is None or value is None:
        return text
    if row.key == "cycles":
        return f"{text} ± {100 * half / max(value, 1):.1f} %"
    if text.endswith(" %"):
        return f"{text[:-2]} ± {100 * half:.1f} %"
    return f"{text} ± {half:,.2f}"


@dataclass(frozen=True)
class Comparison:
    """The table as text, before it is drawn.

    Attributes
    ----------
    title
        What all columns have in common.
    heads
        What each column is, in lines.
    sections
        Label and cells of each row, in sections.
    """

    title: str
    heads: tuple[str, ...]
    sections: tuple[tuple[tuple[str, ...], ...], ...]


def compare(reports: Sequence[Summarized], *, details: bool = False) -> Comparison:
    """Set the runs side by side."""
    summaries = [report.summary() for report in reports]
    intervals = [report.intervals() for report in reports]
    sections = tuple(
        tuple(
            (
                row.label,
                *(
                    with_interval(row, summary[row.key], halves.get(row.key))
                    for summary, halves in zip(summaries, intervals, strict=True)
                ),
            )
            for row in section
        )
        for section in shown(summaries, details=details)
    )
    heads = _heads(summaries, [report.values for report in reports])
    return Comparison(_title(reports[0], summaries[0]), heads, sections)


def _title(report: Summarized, summary: dict[str, Any]) -> str:
    malloc = "" if summary["malloc"] is None else f", malloc: {summary['malloc']}"
    sample = report.values.get("sample")
    sampled = ""
    if sample:
        by_weight = sample.get("weights") is not None
        sampled = f", ± for {100 * sample['confidence']:g} % confidence"
        sampled = ", estimated from SimPoints" if by_weight else sampled
    if report.replicas > 1:
        sampled = f", means of {report.replicas} seeds, ± for 95 % confidence"
    return f"{summary['machine']}{malloc}{sampled}"


def _heads(
    summaries: Sequence[dict[str, Any]], values: Sequence[dict[str, Any]]
) -> tuple[str, ...]:
    holes = any(summary["holes"] != "none" for summary in summaries)
    return tuple(
        f"{summary['design']}\n{summary['age']}"
        + (f"\n{summary['holes']}" if holes else "")
        + (f"\n{cut}" if cut else "")
        for summary, cut in zip(summaries, map(cut_short, values), strict=True)
    )


def terminal_table(reports: Sequence[Summarized], *, details: bool = False) -> Table:
    """Make the table for a terminal."""
    # What draws takes a while to import.
    from contigua.terminal import Table

    found = compare(reports, details=details)
    table = Table(title=found.title, title_justify="left")
    table.add_column("", no_wrap=True)
    for head in found.heads:
        table.add_column(head, justify="right")
    for section in found.sections:
        for line in section:
            table.add_row(*line)
        table.add_section()
    return table


def table_text(reports: Sequence[Summarized]) -> str:
    """Write the table as plain text, for ``print``."""
    from rich.console import Console

    from contigua.terminal import show

    file = io.StringIO()
    show(Console(file=file, color_system=None), terminal_table(reports))
    return file.getvalue().rstrip("\n")


def table_markdown(reports: Sequence[Summarized]) -> str:
    """Write the whole table in Markdown."""
    found = compare(reports, details=True)
    return markdown_table([found.title, *found.heads], chain.from_iterable(found.sections))


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown; all columns but the first are numbers."""

    def line(cells: Sequence[str]) -> str:
        said = (printable(cell.replace("\n", ", ")).replace("|", "\\|") for cell in cells)
        return f"| {' | '.join(said)} |\n"

    return line(heads) + f"|---|{'---:|' * (len(heads) - 1)}\n" + "".join(map(line, rows))


def table_html(reports: Sequence[Summarized]) -> str:
    """Make the table for a notebook: the rows that matter most, the others folded."""
    return (
        f"{_html(compare(reports))}<details><summary>Details</summary>"
        f"{_html(compare(reports, details=True))}</details>"
    )


def _html(found: Comparison) -> str:
    heads = "".join(f"<th>{escape(head).replace(chr(10), '<br>')}</th>" for head in found.heads)
    body = "".join(
        f"<tr><th style='text-align: left'>{escape(label)}</th>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for label, *cells in chain.from_iterable(found.sections)
    )
    return (
        f"<table><caption>{escape(found.title)}</caption><thead><tr><th></th>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )
