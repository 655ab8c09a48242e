"""The plots of a report, as Vega-Lite specifications.

All are horizontal bars, one row for each design under the name of its case: names can be read on a
phone, and a plot grows downwards with the number of runs. Colours are names of :data:`COLOURS`,
which a page defines for light and for dark and :func:`coloured` fills in for files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from contigua.reporting import measures
from contigua.reporting.cases import Run, Runs
from contigua.reporting.words import count, names, percent
from contigua.themes import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, YELLOW

Spec = dict[str, Any]
Row = dict[str, Any]
Measure = Callable[[Run], Mapping[str, float]]

#: Colours by name, for light and for dark.
COLOURS = {
    "ink": ("#1b1b1b", "#e8e8e8"),
    "paper": ("#ffffff", "#16181c"),
    "line": ("#d8d8d8", "#3a3d44"),
    "soft": ("#5c5c5c", "#a6a6a6"),
    "neutral": ("#b9bec6", "#5b616c"),
    "blue": (BLUE, "#4c9fd6"),
    "sky": (SKY, SKY),
    "green": (GREEN, "#1fb98a"),
    "orange": (ORANGE, ORANGE),
    "red": (VERMILION, "#ee7733"),
    "purple": (PURPLE, PURPLE),
    "yellow": ("#cdbf1b", YELLOW),
}

#: More runs than this are shown one case at a time.
MANY = 40

#: Units of thousands and millions on axes, but none of thousandths.
TICK = "abs(datum.value) < 1000 ? format(datum.value, '~g') : format(datum.value, '~s')"

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


def coloured(spec: Spec, *, dark: bool = False) -> Spec:
    """Return a specification whose colours are values, for drawing without a page."""

    def fill(value: Any) -> Any:  # noqa: ANN401 - JSON
        if isinstance(value, dict):
            return {key: fill(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [fill(inner) for inner in value]
        if isinstance(value, str) and value.startswith("var(--"):
            return COLOURS[value[6:-1]][dark]
        return value

    filled: Spec = fill(spec)
    return filled


def _colour(name: str) -> str:
    return f"var(--{name})"


CONFIG: Spec = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": _colour("ink"),
        "titleColor": _colour("soft"),
        "gridColor": _colour("line"),
        "domain": False,
        "ticks": False,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {
        "labelColor": _colour("ink"),
        "titleColor": _colour("soft"),
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
    colours: Mapping[str, str],
    unit: str,
    *,
    value: str = "datum.value",
    within: str | None = None,
    choices: Sequence[Choice] = (),
    where: str | None = None,
) -> Spec:
    """Make a specification of stacked bars.

    Parameters
    ----------
    runs
        The runs.
    rows
        For each bar's part ``row``, ``design``, ``part`` and ``value``.
    colours
        Colour of each part, in the order in which they are stacked.
    unit
        Name of the horizontal axis.
    value
        What of a row is drawn, as an expression.
    within
        A field that tells several bars of one row apart.
    choices
        What a reader picks; each is a parameter for ``value`` and ``where``.
    where
        An expression that rows must fulfil.
    """
    parts = list(colours)
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
        "mark": {"type": "bar", "stroke": _colour("paper"), "strokeWidth": 0.6},
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
                "scale": {"domain": parts, "range": [_colour(name) for name in colours.values()]},
                "legend": {"columns": {"expr": "width < 420 ? 1 : width < 700 ? 2 : 4"}}
                if len(parts) > 1
                else None,
            },
            "order": {"field": "order", "type": "quantitative"},
            "opacity": {"condition": {"param": "chosen", "value": 1}, "value": 0.2},
            "tooltip": [
                {"field": "label", "title": "run"},
                {"field": "part", "title": "what"},
                *([{"field": within, "title": within}] if within else []),
                {"field": "shown", "type": "quantitative", "format": ",.4~g", "title": unit},
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
                    "color": _colour("ink"),
                    "x": 2,
                    "tooltip": None,
                },
                "transform": [{"filter": "isValid(datum.head)"}],
                "encoding": {"text": {"field": "head"}},
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


def _used(rows: Sequence[Row], colours: Mapping[str, str]) -> dict[str, str]:
    """Leave out the parts that are zero in every run."""
    present = {row["part"] for row in rows if row["value"]}
    return {part: colour for part, colour in colours.items() if part in present}


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
    colours = {"base": "neutral", "memory": "sky", "translation": "red", "kernel": "orange"}
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
    spec = _spec(runs, rows, colours, "", value=value, choices=[choice])
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
    colours = {
        "first-level data TLB": "sky",
        "first-level instruction TLB": "neutral",
        "second-level TLB (page walks)": "red",
    }
    rows = [{**row, "TLB": row["part"]} for row in _rows(runs, measures.tlb_misses)]
    used = _used(rows, colours) or colours
    kept = [row for row in rows if row["part"] in used]
    spec = _spec(runs, kept, used, "misses per thousand instructions", within="TLB")
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
    colours = {
        "first-level cache": "neutral",
        "second level": "sky",
        "last level": "orange",
        "memory": "red",
    }
    rows = _rows(runs, measures.walk_references)
    used = _used(rows, colours)
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
        _spec(runs, rows, used, "entries per thousand instructions"),
        rows,
    )


def _memory(runs: Runs) -> Plot:
    colours = {
        "4 KB pages": "neutral",
        "2 MB pages": "blue",
        "1 GB pages": "green",
        "perforated pages": "orange",
        "segment": "purple",
    }
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
        _spec(runs, rows, _used(rows, colours) or colours, "MiB"),
        rows,
    )


def _faults(runs: Runs) -> Plot | None:
    colours = {
        "zeroed 4 KB page": "neutral",
        "zeroed 2 MB page": "blue",
        "file": "sky",
        "copy on write": "orange",
        "segment": "purple",
        "other": "yellow",
    }
    rows = _rows(runs, measures.faults)
    used = _used(rows, colours)
    if not used:
        return None
    said = _extremes(runs, lambda run: float(run.summary["page_faults"]), count)
    failed = _extremes(runs, lambda run: float(run.summary["huge_page_fallbacks"]), count)
    return Plot(
        "faults",
        "Page faults",
        f"Page faults: {said}. Huge-page allocation failures: {failed}.",
        "By what the kernel did about them.",
        _spec(runs, rows, used, "faults"),
        rows,
    )


def _moved(runs: Runs) -> Plot | None:
    colours = {
        "compacted, program waits": "red",
        "compacted in the background": "orange",
        "region resized": "purple",
        "pinned elsewhere, evacuated": "yellow",
        "moved in use": "green",
        "reclaimed": "sky",
    }
    rows = _rows(runs, measures.moved)
    used = _used(rows, colours)
    if not used:
        return None
    moved = _extremes(runs, lambda run: float(run.summary["pages_moved"]), count)
    gone = _extremes(runs, lambda run: float(run.summary["pages_reclaimed"]), count)
    return Plot(
        "moved",
        "Pages that the kernel moved or reclaimed",
        f"Pages moved: {moved}; pages reclaimed: {gone}.",
        "4 KB pages, while the program ran.",
        _spec(runs, rows, used, "pages of 4 KB"),
        rows,
    )


def _contiguity(runs: Runs) -> Plot:
    colours = {
        "free": "green",
        "could be freed by compaction": "sky",
        "in use, movable": "neutral",
        "polluted": "red",
    }
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
            colours,
            "percent of memory",
            within="when",
            choices=[choice],
            where="datum.size === block",
        ),
        rows,
    )
