"""Requests to real kernels, replayed on the simulated placements, and their distance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from contigua import requests
from contigua.programs.program import ProgramError
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.virtual_machines import harness, ticks

if TYPE_CHECKING:
    from contigua.page import Page

#: A kernel and a scenario, and what became of its record under each design.
Record = tuple[str, dict[str, requests.Replayed]]
#: Steps of a recording that tell of progress.
STEPS = 18

NOTES = (
    "Kernel and simulation begin in the same state, get the same requests in the same order, and "
    "free the same blocks. Kinds of pages are those of the requests in both.",
    "Off by orders: earth mover's distance between how free pages on lists are shared out among "
    "orders 0 to 10. Off by pages: the same between how many unmovable pages pageblocks have.",
)


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Record each scenario on each kernel, and replay it under each design."""
    machines, recorder = harness("requests")
    runs = [(version, kind) for version in inputs["kernels"] for kind in inputs["scenarios"]]
    records: list[Record] = []
    context.folder.mkdir(parents=True, exist_ok=True)
    for version, scenario in runs:
        kind, _, memory = scenario.partition(":")
        file = context.folder / f"requests-{version}-{scenario.replace(':', '-')}.xz"
        # One that is there already is replayed again, not made anew.
        try:
            if not file.exists():
                recorder.record(
                    kind,
                    file,
                    version=version,
                    memory_mib=int(memory or inputs["memory_mib"]),
                    progress=ticks(context, len(records), len(runs), STEPS),
                )
        except machines.VmError as error:
            raise ProgramError(f"Linux {version}, {scenario}: {error}") from error
        replays = {design: requests.replay(file, design) for design in inputs["designs"]}
        where = f" in {memory} MiB" if memory else ""
        records.append((f"Linux {version}, {kind}{where}", replays))
    return Outcome(
        values=figures(records),
        illustrate=lambda page: _illustrate(page, records),
        notes=list(NOTES),
        sheets=[sheet for record in records for sheet in tables(*record)],
    )


def figures(records: Sequence[Record]) -> dict[str, float | None]:
    """Return the worst of all records for each figure."""
    pairs = [_both(replays) for _, replays in records]
    distances = [[look.distance() for look in linux.looks[1:]] for linux, _ in pairs]

    def polluted(replayed: requests.Replayed) -> list[float]:
        return [look.simulated.polluted["2 MB"] for look in replayed.looks[1:]]

    def kernels(replayed: requests.Replayed) -> list[float]:
        return [look.kernel.polluted["2 MB"] for look in replayed.looks[1:]]

    return {
        "orders": max(requests.mean([one.orders for one in each]) for each in distances),
        "polluted": max(
            requests.mean([abs(one.polluted["2 MB"]) for one in each]) for each in distances
        ),
        "unmovable": max(requests.mean([one.unmovable for one in each]) for each in distances),
        "contiguitas": max(max(polluted(apart)) / max(kernels(apart)) for _, apart in pairs),
        "unseen": max(
            100 * look.unseen / linux.managed for linux, _ in pairs for look in linux.looks
        ),
    }


def _both(replays: dict[str, requests.Replayed]) -> tuple[requests.Replayed, requests.Replayed]:
    by_placement = {replayed.placement: replayed for replayed in replays.values()}
    return by_placement["linux"], by_placement["contiguitas"]


def tables(name: str, replays: dict[str, requests.Replayed]) -> list[Sheet]:
    """Return a record's tables: distances at each look, polluted blocks, and what was counted."""
    linux, apart = _both(replays)
    return [
        Sheet(f"{name}: distance of the simulated Linux", *_distances(linux)),
        Sheet(f"{name}: blocks with unmovable memory", *_polluted(linux, apart)),
        Sheet(f"{name}: counted", *_counted(linux)),
    ]


def _distances(linux: requests.Replayed) -> tuple[list[str], list[list[str]]]:
    heads = ["look", "orders", *requests.TYPES[:3], "types", "pageblocks", "per-CPU, kernel"]
    heads += ["per-CPU, simulated", "unmovable a pageblock"]
    rows = []
    for look in linux.looks:
        off = look.distance()
        by_type = [off.by_type.get(name) for name in requests.TYPES[:3]]
        rows.append(
            [
                look.name,
                f"{off.orders:.2f}",
                *("-" if each is None else f"{each:.2f}" for each in by_type),
                f"{100 * off.types:.1f} %",
                f"{100 * off.pageblocks:.1f} %",
                f"{look.kernel.per_cpu}",
                f"{look.simulated.per_cpu}",
                f"{off.unmovable:.1f}",
            ]
        )
    return heads, rows


def _polluted(
    linux: requests.Replayed, apart: requests.Replayed
) -> tuple[list[str], list[list[str]]]:
    sizes = list(linux.looks[0].kernel.polluted)
    heads = ["look", *(f"{size}: kernel / Linux / Contiguitas" for size in sizes)]
    rows = []
    for look, other in zip(linux.looks, apart.looks, strict=True):
        states = (look.kernel, look.simulated, other.simulated)
        rows.append(
            [
                look.name,
                *(
                    " / ".join(f"{100 * state.polluted[size]:.1f} %" for state in states)
                    for size in sizes
                ),
            ]
        )
    return heads, rows


def _counted(linux: requests.Replayed) -> tuple[list[str], list[list[str]]]:
    last = linux.looks[-1]
    count = last.totals
    rows = [
        ["requests", f"{count['requests']}", f"{count['requests'] - count['refused']}"],
        ["requests of other zones, left out", f"{count['elsewhere']}", "-"],
        ["freed without having been handed out", f"{count['unmatched']}", "-"],
        [
            "requests served from pageblocks of another type, which they kept",
            f"{count['fallbacks'] - count['claims']}",
            f"{count['simulated_borrows']}",
        ],
        [
            "pageblocks that are of another type than at the start",
            _retyped(linux, "kernel"),
            _retyped(linux, "simulated"),
        ],
        ["pages moved by compaction", f"{count['moved']}", f"{count['simulated_moves']}"],
        ["pages in use that no event had handed out", f"{last.unseen}", "-"],
    ]
    return ["", "kernel", "simulated Linux"], rows


def _retyped(replayed: requests.Replayed, whose: str) -> str:
    first, last = (
        getattr(look, whose).pageblocks for look in (replayed.looks[0], replayed.looks[-1])
    )
    return str(sum(abs(now - then) for now, then in zip(last, first, strict=True)) // 2)


def _illustrate(page: Page, records: Sequence[Record]) -> None:
    from contigua.pictures import bars_picture, lines_picture

    for name, replays in records:
        linux, apart = _both(replays)
        looks = linux.looks
        bars = {
            "kernel": [100 * look.kernel.polluted["2 MB"] for look in looks],
            "simulated Linux": [100 * look.simulated.polluted["2 MB"] for look in looks],
            "simulated Contiguitas": [
                100 * look.simulated.polluted["2 MB"] for look in apart.looks
            ],
        }
        names = [look.name for look in looks]
        page.picture(
            bars_picture(names, bars, f"{name}: 2 MB blocks with unmovable memory", "%"),
            f"{name}: blocks with unmovable memory at each look, in the kernel and simulated",
        )
        orders = list(range(looks[0].kernel.pages.shape[1]))
        charts = [
            (
                look.name,
                {
                    label: (orders, (100 * _shares(state)).tolist())
                    for label, state in (("kernel", look.kernel), ("simulated", look.simulated))
                },
            )
            for look in looks[1:]
        ]
        page.picture(
            lines_picture(charts, f"{name}: free pages up to an order, %", "order", steps=True),
            f"{name}: how free pages are shared out among orders, in the kernel and simulated",
        )


def _shares(state: requests.State) -> Any:  # noqa: ANN401 (an array)
    pages = state.pages.sum(axis=0)
    return pages.cumsum() / max(pages.sum(), 1)
