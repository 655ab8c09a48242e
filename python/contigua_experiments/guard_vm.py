"""The guard on stock kernels in virtual machines, beside the same kernels without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from contigua.programs.program import ProgramError
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.virtual_machines import harness, ticks

if TYPE_CHECKING:
    from contigua.page import Page

#: Steps of the scenario that tell of progress, about.
STEPS = 50


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run the scenario on each kernel, without the guard and with it."""
    machines, scenario = harness("scenario")
    kernels = inputs["kernels"]
    demand = {key: inputs[key] for key in DEMAND}
    runs: list[Any] = []
    for version in kernels:
        for is_guarded in (False, True):
            try:
                run = scenario.live(
                    is_guarded,
                    version=version,
                    **demand,
                    progress=ticks(context, len(runs), 2 * len(kernels), STEPS),
                )
            except machines.VmError as error:
                raise ProgramError(f"Linux {version}: {error}") from error
            runs.append(run)
    pairs = list(zip(runs[::2], runs[1::2], strict=True))
    return Outcome(
        values=figures(pairs),
        illustrate=lambda page: _illustrate(page, pairs),
        notes=[*NOTES, *(note for pair in pairs for note in _said(*pair))],
        sheets=[table(pairs)],
    )


#: Demand of the workload, of the experiment's inputs.
DEMAND = ("pinned_mib", "resident_mib", "churn_mib", "burst_mib", "rate_mib")

#: Notes for readers: common conditions, and how the pages were requested.
NOTES = (
    "Both guests lived the same commands, in the same order. What pollutes most pages of 2 MB "
    "without the guard is memory of programs that is pinned for long, page by page, as the buffers "
    "of an io_uring are: it stays where it happens to be, and compaction cannot move it. Linux "
    "moves such a page out of ZONE_MOVABLE first, from 5.13 on. Its own memory the stock kernel "
    "keeps together fairly well at this rate, with so much of it free. A scan cannot tell what is "
    "pinned: blocks with unmovable memory are those with the kernel's own.",
    "Both guests were asked for huge pages by the same commands, in the same order: all memory "
    "in 2 MB pages by nr_hugepages, which were given back; 64 pages of 1 GB by nr_hugepages; and "
    "64 by contigua-node guard huge.",
    "Stock kernels make no page of 1 GB in ZONE_MOVABLE while they run. Guard huge takes an "
    "aligned gigabyte of it offline, which empties it, brings it online as the kernel's, and "
    "writes nr_hugepages at once. Without a split there is nothing that it could take.",
)


def _said(without: Any, guarded: Any) -> list[str]:  # noqa: ANN401 (the harness is imported late)
    restored = "every block" if guarded.restored else "not every block: some hold kernel memory"
    return [
        f"Linux {guarded.kernel}, guard huge without a split: {without.guard_huge_said}",
        f"Linux {guarded.kernel}, guard huge with it: {guarded.guard_huge_said.splitlines()[0]}",
        f"Linux {guarded.kernel}: at the end, guard release brought {restored} back.",
    ]


def figures(pairs: list[tuple[Any, Any]]) -> dict[str, float | None]:
    """Return the worst of all kernels for each figure."""

    def gain(without: Any, guarded: Any) -> float:  # noqa: ANN401 (as above)
        more: float = guarded.huge_pages / max(without.huge_pages, 1) - 1
        return 100.0 * more

    return {
        "gigantic_without": max(
            max(without.gigantic_pages, without.gigantic_by_guard) for without, _ in pairs
        ),
        "gigantic_with": min(guarded.gigantic_by_guard for _, guarded in pairs),
        "huge_gain": min(gain(*pair) for pair in pairs),
        "unmovable_without": min(without.unmovable_blocks for without, _ in pairs),
        "unmovable_with": max(guarded.unmovable_blocks for _, guarded in pairs),
        "in_movable": max(guarded.unmovable_in_movable for _, guarded in pairs),
        "moved_up": min(guarded.moved_up for _, guarded in pairs),
        "moved_down": min(guarded.moved_down for _, guarded in pairs),
        "failures": max(guarded.failures for _, guarded in pairs),
    }


def table(pairs: list[tuple[Any, Any]]) -> Sheet:
    """Return all runs' figures in one table, a column for each."""
    runs = [run for pair in pairs for run in pair]
    heads = ["", *(f"{run.kernel}, {_name(run)}" for run in runs)]

    def row(label: str, figure: Callable[[Any], str]) -> list[str]:
        return [label, *(figure(run) for run in runs)]

    def guards(value: Callable[[Any], int]) -> Callable[[Any], str]:
        return lambda run: "-" if run.restored is None else str(value(run))

    rows = [
        row("memory", lambda run: f"{run.memory_mib} MiB"),
        row("1 GB pages at boot, nr_hugepages", lambda run: str(run.gigantic_at_boot)),
        row("2 MB pages at the end, nr_hugepages", lambda run: str(run.huge_pages)),
        row("1 GB pages at the end, nr_hugepages", lambda run: str(run.gigantic_pages)),
        row("1 GB pages at the end, guard huge", lambda run: str(run.gigantic_by_guard)),
        row("unmovable memory at the end", lambda run: f"{run.unmovable_mib:.0f} MiB"),
        row("2 MB blocks with unmovable memory", lambda run: f"{run.unmovable_blocks:.1f} %"),
        row("unmovable frames in Movable", guards(lambda run: run.unmovable_in_movable)),
        row("blocks to the kernel as its demand grew", guards(lambda run: run.moved_up)),
        row("blocks to Movable after it fell", guards(lambda run: run.moved_down)),
        row("moves given up", guards(lambda run: run.given_up)),
        row("moves refused", guards(lambda run: run.refused)),
        row("allocations failed, tasks killed", lambda run: str(run.failures)),
    ]
    return Sheet("Both runs", heads, rows)


def _name(run: Any) -> str:  # noqa: ANN401 (as above)
    return "without" if run.restored is None else "with the guard"


def _illustrate(page: Page, pairs: list[tuple[Any, Any]]) -> None:
    from contigua.pictures import bars_picture

    bars: dict[str, list[float]] = {"without": [], "with the guard": []}
    for pair in pairs:
        for values, run in zip(bars.values(), pair, strict=True):
            values.append(run.unmovable_blocks)
    kernels = [without.kernel for without, _ in pairs]
    page.picture(
        bars_picture(kernels, bars, "Blocks of 2 MB with unmovable memory", "%"),
        "For each kernel, blocks with unmovable memory without the guard and with it",
    )
    for _, guarded in pairs:
        page.heading(f"What the guard said on Linux {guarded.kernel}")
        for line in guarded.log.splitlines():
            page.text(line)
