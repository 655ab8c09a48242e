"""The table that a run ends with: one column for each design."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

from contigua.results import Results
from contigua.sampling import matched
from contigua.terminal import Table


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _cycles(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _mebibytes(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} MiB"


#: Label, key of ``Report.summary``, format; ``None`` draws a line.
ROWS: list[tuple[str, str, Callable[[Any], str]] | None] = [
    ("instructions", "instructions", _count),
    ("units in detail", "sample_units", _count),
    ("cycles", "cycles", _count),
    ("instructions per cycle", "ipc", _decimal),
    ("cycles in page walks", "walk_share", _percent),
    ("cycles in the kernel", "kernel_share", _percent),
    ("interrupts to other cores", "interrupts", _count),
    ("pages moved in use", "migrations", _count),
    ("... away for, cycles", "unavailable_cycles", _cycles),
    None,
    ("L1 data TLB MPKI", "l1d_tlb_mpki", _decimal),
    ("L1 instruction TLB MPKI", "l1i_tlb_mpki", _decimal),
    ("L2 TLB MPKI", "l2_tlb_mpki", _decimal),
    ("accesses through a segment", "segment_accesses", _count),
    ("walks to 4 KB pages", "walks_4k", _count),
    ("walks to 2 MB pages", "walks_2m", _count),
    ("entries read by walks", "walk_references", _count),
    None,
    ("page faults", "page_faults", _count),
    ("peak memory, 4 KB pages", "resident_4k_mib", _mebibytes),
    ("peak memory, 2 MB pages", "resident_2m_mib", _mebibytes),
    ("peak memory, 1 GB pages", "resident_1g_mib", _mebibytes),
    ("peak memory, perforated pages", "perforated_mib", _mebibytes),
    ("peak memory, segment", "segment_mib", _mebibytes),
    ("huge-page coverage", "huge_page_coverage", _percent),
    ("huge pages not to be had", "huge_page_fallbacks", _count),
    ("mean memory", "mean_resident_mib", _mebibytes),
    ("mean huge-page coverage", "mean_huge_page_coverage", _percent),
    ("given back by the program", "given_back_mib", _mebibytes),
    ("... breaking huge pages", "huge_pages_broken", _count),
    ("huge pages made on request", "collapsed", _count),
    ("... not made for want of memory", "collapses_failed", _count),
    None,
    ("free 2 MB blocks before", "free_2m_blocks_before", _count),
    ("free 2 MB blocks after", "free_2m_blocks_after", _count),
    ("unmovable 2 MB blocks", "unmovable_2m_blocks_after", _count),
    ("pages reclaimed", "pages_reclaimed", _count),
    ("pages moved", "pages_moved", _count),
    ("unmovable region", "unmovable_region_mib", _mebibytes),
]


#: Rows that are shown where they are not all zero.
RARE = {
    "sample_units",
    "resident_1g_mib",
    "perforated_mib",
    "segment_mib",
    "segment_accesses",
    "interrupts",
    "migrations",
    "unavailable_cycles",
    "given_back_mib",
    "huge_pages_broken",
    "collapsed",
    "collapses_failed",
}


def title_of(summary: dict[str, Any]) -> str:
    """Say what all columns of a table have in common."""
    malloc = "" if summary["malloc"] is None else f", malloc: {summary['malloc']}"
    return f"{summary['machine']}{malloc}"


def heads_of(summaries: list[dict[str, Any]]) -> list[str]:
    """Say, in lines, what each column of a table is."""
    holes = any(summary["holes"] != "none" for summary in summaries)
    return [
        f"{summary['design']}\n{summary['age']}"
        + (f"\n{summary['holes']}" if holes else "")
        + ("\ninterrupted" if summary["complete"] is False else "")
        for summary in summaries
    ]


def with_interval(key: str, value: Any, text: str, half: float | None) -> str:  # noqa: ANN401
    """Add half an interval to a cell.

    Examples
    --------
    >>> with_interval("cycles", 2000, "2,000", 10.0)
    '2,000 ± 0.5 %'
    >>> with_interval("walk_share", 0.25, "25.0 %", 0.002)
    '25.0 ± 0.2 %'
    >>> with_interval("ipc", 1.5, "1.50", None)
    '1.50'
    """
    if half is None or value is None:
        return text
    if key == "cycles":
        return f"{text} ± {100 * half / max(value, 1):.1f} %"
    if text.endswith(" %"):
        return f"{text[:-2]} ± {100 * half:.1f} %"
    return f"{text} ± {half:,.2f}"


def compared(results: Results) -> list[str]:
    """Say how the cycles of sampled designs compare with the first one's, unit by unit."""
    if len(results) < 2:
        return []
    first, *others = results
    base = first.values
    found = [(report, matched(report.values, base)) for report in others]
    return [
        f"{report.design}: {100 * (ratio.value - 1):+.1f} ± {100 * ratio.half_width:.1f} % of the "
        f"cycles of {first.design}, from {ratio.units:,} units of both"
        for report, ratio in found
        if ratio is not None
    ]


def lines_of(
    summaries: list[dict[str, Any]], intervals: list[dict[str, float]] | None = None
) -> list[tuple[str, list[str]] | None]:
    """Return label and cells of each row; ``None`` for a line between two sections."""
    halves = intervals or [{}] * len(summaries)
    lines: list[tuple[str, list[str]] | None] = []
    for row in ROWS:
        if row is None:
            lines.append(None)
            continue
        label, key, show = row
        if key not in RARE or any(summary[key] for summary in summaries):
            cells = [
                with_interval(key, summary[key], show(summary[key]), half.get(key))
                for summary, half in zip(summaries, halves, strict=True)
            ]
            lines.append((label, cells))
    return lines


def results_table(results: Results) -> Table:
    """Make the table of some results."""
    summaries = [report.summary() for report in results]
    intervals = [report.intervals() for report in results]
    table = Table(title=title_of(summaries[0]), title_justify="left")
    table.add_column("", no_wrap=True)
    for head in heads_of(summaries):
        table.add_column(head, justify="right")
    for line in lines_of(summaries, intervals):
        if line is None:
            table.add_section()
        else:
            table.add_row(line[0], *line[1])
    return table


def results_html(results: Results) -> str:
    """Make the same table for a notebook."""
    summaries = [report.summary() for report in results]
    lines = lines_of(summaries, [report.intervals() for report in results])
    heads = "".join(
        f"<th>{escape(head).replace(chr(10), '<br>')}</th>" for head in heads_of(summaries)
    )
    body = "".join(
        f"<tr><th style='text-align: left'>{escape(line[0])}</th>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in line[1])
        + "</tr>"
        for line in lines
        if line is not None
    )
    caption = escape(title_of(summaries[0]))
    return (
        f"<table><caption>{caption}</caption><thead><tr><th></th>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )
