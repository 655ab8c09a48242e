"""The plots of a report, as Vega-Lite specifications.

All are horizontal bars, one row for each design under the name of its case: names can be read on a
phone, and a plot grows downwards with the number of runs. Colors are names of
:data:`contigua.themes.MEANINGS`, which a page defines for light and for dark and :func:`colored`
fills in for files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from contigua.reporting import measures
from contigua.reporting.cases import Run, Runs
from contigua.reporting.words import count, names, percent
from contigua.themes import MEANINGS, NAMED

Spec = dict[str, Any]
Row = dict[str, Any]
Measure = Callable[[Run], Mapping[str, float]]

#: More runs than this are shown one case at a time.
MANY = 40

#: Units of thousands and millions on axes, but none of thousandths.
TICK = "abs(datum.value) < 1000 ? format(datum.value, '~g') : format(datum.value, '~s')"

#: The name of an axis that shows what its reader chose: replaced where it is drawn.
MEASURE = "@measure"
#: Times the longest bar that a plot is wide at least: values at the ends of bars need room.
ROOM = 1.2
#: Text of a bar's value.
VALUE = (
    "datum.total >= 1e4 ? format(datum.total, '.3s') : datum.total >= 100 ? "
    "format(datum.total, ',.0f') : format(datum.total, '.3~g')"
)

#: Pixels that names of rows take, as a rule.
NAME_PIXELS = 110

#: Pixels from one row to the next.
STEP = 24
#: Pixels for each of several bars within a row.
THIN_STEP = 13


@dataclass(frozen=True)
class Plot:
    """One plot.

    Attributes
    ----------
    name
        A short name, for files and for the page's anchors.
    title
        What it shows.
    alternative
        The same in a sentence with figures.
    caption
        What a reader has to know.
    spec
        The Vega-Lite specification.
    rows
        What is drawn, as a table.
    """

    name: str
    title: str
    alternative: str
    caption: str
    spec: Spec
    rows: list[Row] = field(repr=False)


@dataclass(frozen=True)
class Choice:
    """Something that a reader picks above a plot: a label, and the names of what there is."""

    name: str
    label: str
    options: tuple[str, ...]


def plots(runs: Runs) -> list[Plot]:
    """Return the plots that the runs have figures for."""
    makers = (_cycles, _tlb_misses, _walks, _memory, _faults, _moved, _contiguity)
    found = [plot for plot in (make(runs) for make in makers) if plot is not None]
    # What Vega tells those who do not see it.
    return [
        replace(plot, spec={**plot.spec, "description": f"{plot.title}. {plot.alternative}"})
        for plot in found
    ]


def first_case(runs: Runs) -> str:
    """Return the case that plots show before a reader chooses one; empty for all of them."""
    return next(iter(runs.cases)) if len(runs.all) > MANY else ""


def colored(spec: Spec, *, dark: bool = False) -> Spec:
    """Return a specification whose colors are values, for drawing without a page."""

    def fill(value: Any) -> Any:  # noqa: ANN401 - JSON
        if isinstance(value, dict):
            return {key: fill(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [fill(inner) for inner in value]
        if isinstance(value, str) and value.startswith("var(--"):
            meaning = MEANINGS[value[6:-1]]
            return meaning.dark if dark else meaning.light
        return value

    filled: Spec = fill(spec)
    return filled


def _color(name: str) -> str:
    return f"var(--{name})"


CONFIG: Spec = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": _color("ink"),
        "titleColor": _color("soft"),
        "gridColor": _color("line"),
        "domain": False,
        "ticks": False,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {
        "labelColor": _color("ink"),
        "titleColor": _color("soft"),
        "labelFontSize": 12,
        "labelLimit": 240,
        "orient": "top",
        "title": None,
        "symbolType": "square",
        "columnPadding": 14,
    },
}


def _spec(
    runs: Runs,
    rows: Sequence[Row],
    parts: Sequence[str],
    unit: str,
    *,
    value: str = "datum.value",
    within: str | None = None,
    choices: Sequence[Choice] = (),
    where: str | None = None,
    totals: bool = False,
) -> Spec:
    """Make a specification of stacked bars.

    Parameters
    ----------
    runs
        The runs.
    rows
        For each bar's part ``row``, ``design``, ``part`` and ``value``.
    parts
        Their names, in the order in which they are stacked.
    unit
        Name of the horizontal axis.
    value
        What of a row is drawn, as an expression.
    within
        A field that tells several bars of one row apart.
    choices
        What a reader picks; each is a parameter for ``value`` and ``where``.
    where
        An expression that rows must fulfill.
    totals
        Whether each bar's value stands at its end.
    """
    heads = [
        {"row": _row(index), "head": case, "case": case, "design": "", "shown": 0}
        for index, case in enumerate(runs.cases)
        if case
    ]
    order = []
    for index, (case, members) in enumerate(runs.cases.items()):
        order += [_row(index)] if case else []
        order += list(dict.fromkeys(_row(index, run.design) for run in members))
    bars: Spec = {
        "mark": {"type": "bar", "stroke": _color("paper"), "strokeWidth": 0.6},
        "transform": [{"filter": "isValid(datum.part)"}],
        "params": [
            {"name": "chosen", "select": {"type": "point", "fields": ["part"]}, "bind": "legend"}
        ],
        "encoding": {
            "x": {
                "field": "shown",
                "type": "quantitative",
                "stack": "zero",
                "title": unit,
                "axis": {"labelExpr": TICK, "tickCount": 5},
            },
            "color": {
                "field": "part",
                "type": "nominal",
                "scale": {"domain": [*parts], "range": [_color(NAMED[part]) for part in parts]},
                "legend": {"columns": {"expr": legend_columns(parts)}} if len(parts) > 1 else None,
            },
            "order": {"field": "order", "type": "quantitative"},
            "opacity": {"condition": {"param": "chosen", "value": 1}, "value": 0.2},
            "tooltip": [
                {"field": "label", "title": "run"},
                {"field": "part", "title": "what"},
                *([{"field": within, "title": within}] if within else []),
                {
                    "field": "shown",
                    "type": "quantitative",
                    "format": ",.4~g",
                    "title": unit.replace(MEASURE, "value"),
                },
            ],
        },
    }
    if within:
        bars["encoding"]["yOffset"] = {"field": within, "type": "nominal", "sort": None}
    layers = [bars]
    if heads:
        layers.append(
            {
                "mark": {
                    "type": "text",
                    "align": "left",
                    "baseline": "middle",
                    "fontWeight": "bold",
                    "fontSize": 12,
                    "color": _color("ink"),
                    "x": 2,
                    "tooltip": None,
                },
                "transform": [{"filter": "isValid(datum.head)"}],
                "encoding": {"text": {"field": "head"}},
            }
        )
    if totals:
        summed: list[Spec] = [
            {"filter": "isValid(datum.part)"},
            {
                "aggregate": [{"op": "sum", "field": "shown", "as": "total"}],
                "groupby": ["row", *([within] if within else [])],
            },
        ]
        layers.append(
            {
                "mark": {"type": "point", "opacity": 0, "tooltip": None},
                "transform": [*summed, {"calculate": f"{ROOM} * datum.total", "as": "end"}],
                "encoding": {"x": {"field": "end", "type": "quantitative"}},
            }
        )
        layers.append(
            {
                "mark": {
                    "type": "text",
                    "align": "left",
                    "baseline": "middle",
                    "dx": 4,
                    "fontSize": 11,
                    "color": _color("ink"),
                    "tooltip": None,
                },
                "transform": [*summed, {"calculate": VALUE, "as": "said"}],
                "encoding": {
                    "x": {"field": "total", "type": "quantitative"},
                    "text": {"field": "said"},
                    **({"yOffset": bars["encoding"]["yOffset"]} if within else {}),
                },
            }
        )
    indexed = [{**row, "order": parts.index(row["part"])} for row in rows if row["part"] in parts]
    several = len({row[within] for row in indexed}) if within else 1
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container",
        "height": {"step": max(STEP, THIN_STEP * several + 8), "for": "position"},
        "autosize": {"type": "fit-x", "contains": "padding"},
        "params": [
            {"name": "hidden", "value": []},
            {"name": "place", "value": first_case(runs)},
            *(
                {
                    "name": choice.name,
                    "value": choice.options[0],
                    "bind": {
                        "input": "select",
                        "options": list(choice.options),
                        "name": choice.label,
                    },
                }
                for choice in choices
            ),
        ],
        "data": {"values": [*heads, *indexed]},
        "transform": [
            {"filter": "indexof(hidden, datum.design) < 0"},
            {"filter": "place === '' || datum.case === place"},
            *([{"filter": f"isValid(datum.head) || ({where})"}] if where else []),
            {"calculate": f"isValid(datum.head) ? 0 : {value}", "as": "shown"},
        ],
        "encoding": {
            "y": {
                "field": "row",
                "type": "nominal",
                "sort": order,
                "title": None,
                "axis": {
                    # What stands before the bar only puts rows in order.
                    "labelExpr": "slice(datum.label, indexof(datum.label, '|') + 1)",
                    "labelLimit": 150,
                },
            },
        },
        "layer": layers,
        "config": CONFIG,
    }


def legend_pixels(labels: Sequence[str]) -> int:
    """Return how wide a column of a legend is that cuts none of its labels."""
    return 7 * max(map(len, labels), default=0) + 44


def legend_columns(labels: Sequence[str]) -> str:
    """Return how many columns a legend has on a page, as an expression.

    They follow from the box that a plot is in: its own width changes when names of rows are
    measured, and a legend that then gets more lines would be cut.
    """
    box = "containerSize()[0]"
    fitting = f"max(1, floor(({box} - {NAME_PIXELS}) / {legend_pixels(labels)}))"
    return f"isFinite({box}) ? {fitting} : 1"


def _row(index: int, design: str = "") -> str:
    """Name a row: by its case, and for the axis by its design; a case's own row has none."""
    return f"{index}|{design}"


def _rows(runs: Runs, measure: Measure, **more: Any) -> list[Row]:  # noqa: ANN401 - constants
    """Return a row for each run and part of it."""
    index = {case: place for place, case in enumerate(runs.cases)}
    return [
        {
            "row": _row(index[run.case], run.design),
            "label": run.label,
            "case": run.case,
            "design": run.design,
            "part": part,
            "value": value,
            **more,
        }
        for run in runs.all
        for part, value in measure(run).items()
    ]


def _used(rows: Sequence[Row], parts: Sequence[str]) -> Sequence[str]:
    """Leave out the parts that are zero in every run."""
    present = {row["part"] for row in rows if row["value"]}
    return [part for part in parts if part in present]


def _extremes(runs: Runs, measure: Callable[[Run], float], say: Callable[[float], str]) -> str:
    """Say where a figure is lowest and highest."""
    ordered = sorted(runs.all, key=measure)
    low, high = measure(ordered[0]), measure(ordered[-1])
    if say(low) == say(high):
        return f"{say(low)} in every run"
    return f"from {say(low)} ({ordered[0].label}) to {say(high)} ({ordered[-1].label})"


def _cycles(runs: Runs) -> Plot | None:
    if not runs.timed:
        return None
    parts = ("base", "memory", "translation", "kernel")
    rows = _rows(runs, measures.cycles)
    totals = {run.label: sum(measures.cycles(run).values()) for run in runs.all}
    for row in rows:
        base = runs.baseline(row["case"])
        row["relative"] = 100 * row["value"] / max(totals[base.label], 1)
        row["share"] = 100 * row["value"] / max(totals[row["label"]], 1)
    bases = list(dict.fromkeys(runs.baseline(case).design for case in runs.cases))
    against = f"percent of {names(bases)}"
    options = (against, "cycles", "percent of the run's own")
    choice = Choice("measure", "Show ", options)
    value = (
        f"measure === {json.dumps(options[1])} ? datum.value : "
        f"measure === {json.dumps(options[2])} ? datum.share : datum.relative"
    )
    spec = _spec(runs, rows, parts, MEASURE, value=value, choices=[choice], totals=True)
    said = [
        f"{run.label} {count(totals[run.label])} cycles: {names(measures.costs(run))}"
        for run in _few(runs)
    ]
    return Plot(
        "cycles",
        "Where the cycles go",
        _and_more("; ".join(said), runs),
        " ".join(f"{name.capitalize()}: {mean}." for name, mean in measures.CYCLES_MEAN.items())
        + (
            " Cycles of all cores in which they were not idle."
            if any(len(run.values["cores"]) > 1 for run in runs.all)
            else ""
        ),
        spec,
        rows,
    )


def _few(runs: Runs) -> Sequence[Run]:
    return runs.all[:8]


def _and_more(text: str, runs: Runs) -> str:
    more = len(runs.all) - len(_few(runs))
    return f"{text}; and {more} more in the table." if more > 0 else f"{text}."


def _tlb_misses(runs: Runs) -> Plot:
    parts = ("first-level data TLB", "first-level instruction TLB", "second-level TLB (page walks)")
    rows = [{**row, "TLB": row["part"]} for row in _rows(runs, measures.tlb_misses)]
    used = _used(rows, parts) or parts
    kept = [row for row in rows if row["part"] in used]
    unit = "misses per thousand instructions"
    spec = _spec(runs, kept, used, unit, within="TLB", totals=True)
    said = _extremes(runs, lambda run: float(run.summary["l2_tlb_mpki"]), lambda v: f"{v:.2f}")
    data = _extremes(runs, lambda run: float(run.summary["l1d_tlb_mpki"]), lambda v: f"{v:.2f}")
    return Plot(
        "tlb-misses",
        "TLB misses",
        f"Page walks per thousand instructions: {said}; misses of the first-level data TLB: "
        f"{data}.",
        "What misses the second level walks the page tables.",
        spec,
        rows,
    )


def _walks(runs: Runs) -> Plot | None:
    parts = ("first-level cache", "second level", "last level", "memory")
    rows = _rows(runs, measures.walk_references)
    used = _used(rows, parts)
    if not used:
        return None

    def total(run: Run) -> float:
        return sum(measures.walk_references(run).values())

    return Plot(
        "walks",
        "What page walks read",
        f"Page-table entries read per thousand instructions: "
        f"{_extremes(runs, total, lambda value: f'{value:.2f}')}.",
        "Each entry is read from the caches like data; one that lies in memory costs most.",
        _spec(runs, rows, used, "entries per thousand instructions", totals=True),
        rows,
    )


def _memory(runs: Runs) -> Plot:
    parts = ("4 KB pages", "2 MB pages", "1 GB pages", "perforated pages", "segment")
    rows = _rows(runs, measures.mapped)
    said = [
        f"{run.label} {percent(run.summary['huge_page_coverage'])} of "
        f"{sum(measures.mapped(run).values()):,.1f} MiB"
        for run in _few(runs)
    ]
    return Plot(
        "page-sizes",
        "How the program's memory is mapped",
        "In pages larger than 4 KB or a segment: " + _and_more("; ".join(said), runs),
        "At the time when most of its memory was resident.",
        _spec(runs, rows, _used(rows, parts) or parts, "MiB", totals=True),
        rows,
    )


def _faults(runs: Runs) -> Plot | None:
    parts = ("zeroed 4 KB page", "zeroed 2 MB page", "file", "copy on write", "segment", "other")
    rows = _rows(runs, measures.faults)
    used = _used(rows, parts)
    if not used:
        return None
    said = _extremes(runs, lambda run: float(run.summary["page_faults"]), count)
    failed = _extremes(runs, lambda run: float(run.summary["huge_page_fallbacks"]), count)
    return Plot(
        "faults",
        "Page faults",
        f"Page faults: {said}. Huge-page allocation failures: {failed}.",
        "By what the kernel did about them.",
        _spec(runs, rows, used, "faults", totals=True),
        rows,
    )


def _moved(runs: Runs) -> Plot | None:
    parts = (
        "compacted, program waits",
        "compacted in the background",
        "region resized",
        "pinned elsewhere, evacuated",
        "moved in use",
        "reclaimed",
    )
    rows = _rows(runs, measures.moved)
    used = _used(rows, parts)
    if not used:
        return None
    moved = _extremes(runs, lambda run: float(run.summary["pages_moved"]), count)
    gone = _extremes(runs, lambda run: float(run.summary["pages_reclaimed"]), count)
    return Plot(
        "moved",
        "Pages that the kernel moved or reclaimed",
        f"Pages moved: {moved}; pages reclaimed: {gone}.",
        "4 KB pages, while the program ran.",
        _spec(runs, rows, used, "pages of 4 KB", totals=True),
        rows,
    )


def _contiguity(runs: Runs) -> Plot:
    parts = ("free", "could be freed by compaction", "in use, movable", "polluted")
    rows = [
        row
        for size in measures.BLOCKS
        for when in ("before", "after")
        for row in _rows(
            runs,
            lambda run, when=when, size=size: measures.contiguity(run, when, size),  # type: ignore[misc]
            when=when,
            size=size,
        )
    ]
    sizes = tuple(measures.BLOCKS)
    choice = Choice("block", "Blocks of ", sizes)

    def part(when: str, name: str) -> Callable[[Run], float]:
        return lambda run: measures.contiguity(run, when, sizes[0])[name] / 100

    return Plot(
        "contiguity",
        "Contiguity of physical memory before and after",
        "Share of memory in free 2 MB blocks before the program: "
        f"{_extremes(runs, part('before', 'free'), percent)}; after it: "
        f"{_extremes(runs, part('after', 'free'), percent)}. Share of polluted blocks: "
        f"{_extremes(runs, part('after', 'polluted'), percent)}.",
        "For each run the upper bar is before the program, the lower one when it ended. A polluted "
        "block has an unmovable page in it and can never become a huge page.",
        _spec(
            runs,
            rows,
            parts,
            "percent of memory",
            within="when",
            choices=[choice],
            where="datum.size === block",
        ),
        rows,
    )
