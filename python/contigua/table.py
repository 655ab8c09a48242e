"""The table that a run ends with: one column for each design."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.table import Table

from contigua.results import Results


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


def results_table(results: Results) -> Table:
    """Make the table of some results."""
    summaries = [report.summary() for report in results]
    title = summaries[0]["machine"]
    if summaries[0]["malloc"] is not None:
        title += f", malloc: {summaries[0]['malloc']}"
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for summary in summaries:
        head = f"{summary['design']}\n{summary['age']}"
        if any(other["holes"] != "none" for other in summaries):
            head += f"\n{summary['holes']}"
        table.add_column(head, justify="right")
    for row in ROWS:
        if row is None:
            table.add_section()
            continue
        label, key, show = row
        if key in RARE and not any(summary[key] for summary in summaries):
            continue
        table.add_row(label, *(show(summary[key]) for summary in summaries))
    return table
