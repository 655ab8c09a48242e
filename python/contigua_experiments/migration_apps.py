"""Servers whose pages are moved while they serve (Contiguitas, ISCA 2023, section 5; article).

Each server is recorded once under its client; every rate and mechanism replays the same events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua.programs.program import Program
from contigua.programs.servers import Load, memcached, nginx
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.running import Cell, Values, hertz, run_cells, throughput

if TYPE_CHECKING:
    from contigua.page import Page

#: Names of hardware's designs in the keys of figures, the article's first.
WAYS = ("hardware", "noncacheable", "switch_first")
#: Note for every throughput.
SATURATED = (
    "Throughput is that of a saturated server: requests x cores x clock / cycles in which cores "
    "were busy, start and filling included."
)


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run both servers at every rate with each mechanism, and memcached with both pages."""
    options = RunOptions(
        machine=inputs["machine"],
        memory=inputs["memory"],
        detail=inputs["detail"],
        seed=inputs["seed"],
        cores=inputs["cores"],
    )
    found: dict[str, dict[Cell, Values]] = {}
    notes = []
    servers = programs(inputs)
    for index, program in enumerate(servers):
        missing = program.missing()
        if missing is not None:
            notes.append(f"Left out: {missing}.")
            continue
        cells = moving(inputs)
        if program.name == "memcached":
            cells += [Cell(design) for design in inputs["pages"]]
        found[program.name] = run_cells(program, cells, options, record=True, kept=context.kept)
        if context.progress is not None:
            context.progress((index + 1) / len(servers))
    return figures(found, inputs, notes)


def programs(inputs: dict[str, Any]) -> list[Program]:
    """Return the servers, with as many workers as there are cores."""
    cache, web = inputs["memcached"], inputs["nginx"]
    return [
        memcached(
            Load(cache["keys"], cache["value_bytes"], cache["requests"]), threads=inputs["cores"]
        ),
        nginx(web["files"], web["requests"], workers=inputs["cores"]),
    ]


def moving(inputs: dict[str, Any]) -> list[Cell]:
    """Return each mechanism at every rate, and hardware's other ways at the highest."""
    cells = [
        Cell(design, migrations=rate) for design in inputs["designs"] for rate in inputs["rates"]
    ]
    return cells + [Cell(design, migrations=max(inputs["rates"])) for design in inputs["ways"]]


def figures(
    found: dict[str, dict[Cell, Values]], inputs: dict[str, Any], notes: list[str]
) -> Outcome:
    """Set throughput beside that without migrations."""
    software, lazy, hardware = inputs["designs"]
    rates, printed = inputs["rates"], inputs["printed_rate"]
    most = max(rates)
    none = Cell(software, migrations=0)
    relative = {
        name: {
            cell: 100 * throughput(cells[cell]) / throughput(cells[none]) for cell in moving(inputs)
        }
        for name, cells in found.items()
    }
    behind = [
        one[Cell(software, migrations=rate)] < one[Cell(hardware, migrations=rate)]
        for name, one in relative.items()
        for rate in rates
        # A short run at a low rate may end before the first migration.
        if rate > 0 and _moved(found[name][Cell(software, migrations=rate)])["completed"] > 0
    ]
    values: dict[str, float | None] = {
        "software_behind": 100 * sum(behind) / len(behind) if behind else None,
        "idle": min((one[Cell(hardware, migrations=0)] for one in relative.values()), default=None),
        "memcached_huge": None,
    }
    for name in ("memcached", "nginx"):
        one = relative.get(name, {})
        values[f"printed_{name}"] = one.get(Cell(hardware, migrations=printed))
        for way, design in zip(WAYS, (hardware, *inputs["ways"]), strict=True):
            values[f"{way}_{name}"] = one.get(Cell(design, migrations=most))
        slower = {
            design: latency(found[name][Cell(design, migrations=most)], "p99")
            / latency(found[name][none], "p99")
            for design in inputs["designs"]
            if name in found
        }
        values[f"slower_{name}"] = slower.get(hardware)
        values[f"slower_software_{name}"] = (
            min(slower[software], slower[lazy]) / slower[hardware] if slower else None
        )
    for mechanism, design in (("software", software), ("hardware", hardware)):
        moved = [_moved(cells[Cell(design, migrations=most)]) for cells in found.values()]
        held = sum(one["held"] for one in moved)
        buffers = sum(one["buffers"] for one in moved)
        values[f"{mechanism}_held"] = 100 * held / (held + buffers) if held + buffers else None
    sheets = [_rates(found, relative), _latencies(found)]
    if "memcached" in found:
        small, huge = (throughput(found["memcached"][Cell(design)]) for design in inputs["pages"])
        values["memcached_huge"] = 100 * (huge / small - 1)
        sheets.append(
            Sheet(
                "memcached and the size of pages",
                ["design", "requests a second", "gain, %"],
                [
                    [design, f"{rate:,.0f}", f"{100 * (rate / small - 1):+.2f}"]
                    for design, rate in zip(inputs["pages"], (small, huge), strict=True)
                ],
            )
        )
    notes = [*notes, SATURATED]
    for rate in (printed, most):
        few = min(
            (
                cells[Cell(hardware, migrations=rate)]["migration"]["completed"]
                for cells in found.values()
            ),
            default=0,
        )
        notes.append(f"At {rate:,} migrations a second hardware moved at least {few:,} pages.")
    times = [cells[none]["time"]["cycles"] / hertz(cells[none]) for cells in found.values()]
    if times:
        notes.append(
            f"{inputs['cores']} cores; the servers ran for {min(times):.3f} to {max(times):.3f} "
            "simulated seconds, the paper's for seconds."
        )

    def illustrate(page: Page) -> None:
        from contigua.pictures import bars_picture

        for name, one in relative.items():
            bars = {
                design: [one[Cell(design, migrations=rate)] for rate in rates]
                for design in inputs["designs"]
            }
            page.heading(name)
            page.picture(
                bars_picture([f"{rate:g} a second" for rate in rates], bars, name, "% of none"),
                f"Throughput of {name} at each rate of migrations, in percent of none.",
            )

    return Outcome(values, illustrate, notes=notes, sheets=sheets)


def latency(values: Values, percentile: str) -> float:
    """Return a percentile of requests' latencies, in cycles."""
    return float(values["requests"]["latency_cycles"][percentile])


def waits(values: Values) -> float:
    """Return how long cores wait for the network device, of the time in which they are busy."""
    return float(values["devices"]["wait_cycles"]) / float(values["time"]["busy_cycles"])


def _moved(values: Values) -> dict[str, int]:
    """Return the counters of migrations; a run without any has none."""
    none = {
        name: 0
        for name in (
            "requested",
            "completed",
            "held",
            "buffers",
            "interprocessor_interrupts",
            "wait_cycles",
        )
    }
    counted: dict[str, int] = values["migration"] or none
    return counted


def _rates(found: dict[str, dict[Cell, Values]], relative: dict[str, dict[Cell, float]]) -> Sheet:
    rows = []
    for name, one in relative.items():
        for cell, share in one.items():
            values = found[name][cell]
            moved = _moved(values)
            rows.append(
                [
                    name,
                    cell.design,
                    f"{cell.migrations:g}",
                    f"{moved['completed']:,}",
                    f"{moved['held']:,} of {moved['requested']:,}",
                    f"{moved['interprocessor_interrupts']:,}",
                    f"{values['client']['requests']:,}",
                    f"{throughput(values):,.0f}",
                    f"{share:.3f}",
                    f"{100 * moved['wait_cycles'] / values['time']['busy_cycles']:.2f}",
                    f"{100 * waits(values):.2f}",
                ]
            )
    heads = ["server", "design", "a second", "moved", "could not move", "interrupts", "requests"]
    heads += ["requests a second", "% of none"]
    heads += ["waits for moving pages, % of busy time", "and for the network"]
    return Sheet("Throughput while pages are moved", heads, rows)


def _latencies(found: dict[str, dict[Cell, Values]]) -> Sheet:
    quantiles = ("p50", "p95", "p99", "p99_9", "most")
    rows = [
        [
            name,
            cell.design,
            f"{cell.migrations:g}",
            *(f"{1e6 * latency(values, one) / hertz(values):.2f}" for one in quantiles),
        ]
        for name, cells in found.items()
        for cell, values in cells.items()
        if cell.migrations is not None
    ]
    heads = ["server", "design", "a second", "50 %, µs", "95 %", "99 %", "99.9 %", "most"]
    return Sheet("Latency of requests while pages are moved", heads, rows)
