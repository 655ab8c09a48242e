"""Profiles as a page that needs no network, and as files of other tools."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from html import escape
from importlib import resources
from typing import Any

from contigua.attribution import KEYS, METRICS, Attribution, Cell, Costs, Frame
from contigua.listing import Line, listings
from contigua.locality import NAMES, PAGES, Locality, locality_rows
from contigua.page import Page

#: Metrics by name, in the order of a menu.
TITLES: Mapping[str, str] = {
    "translation_cycles": "translation cycles",
    "walks": "page walks",
    "tlb_misses": "L1 TLB misses",
    "faults": "page faults",
    "fault_cycles": "page-fault cycles",
    "data_cycles": "data-miss cycles",
    "data_misses": "L1 data misses",
}
#: Tables that can be shown, by key.
GROUPS = {
    "function": "function",
    "line": "source line",
    "mapping": "memory",
    "site": "allocation site",
    "library": "library",
    "thread": "thread",
}
#: Mappings whose locality is shown.
MOST = 25


def _groups(profile: Attribution) -> dict[str, str]:
    """Return the tables of a profile: those of sites only where it has some."""
    return {key: name for key, name in GROUPS.items() if key != "site" or profile.has_sites}


def page_of(profiles: Sequence[Attribution], sentences: Sequence[str]) -> str:
    """Return the page of the profiles of some designs on one execution.

    Parameters
    ----------
    profiles
        One for each design; the first is shown at first.
    sentences
        What matters most.
    """
    first = profiles[0]
    style = _data("page.css")
    page = Page(f"{first.command[0].rsplit('/', 1)[-1]}: who causes the cost", style=style)
    page.sentences(sentences)
    designs = {str(index): profile.design for index, profile in enumerate(profiles)}
    page.raw(
        '<fieldset class="controls">'
        + _menu("Metric", "metric", TITLES)
        + _menu("Design", "design", designs)
        + _menu("By", "key", _groups(profiles[0]))
        + '<label>Search <input id="search" type="search"></label></fieldset>'
    )
    heads = "".join(f'<th scope="col">{escape(profile.design)}</th>' for profile in profiles)
    page.raw(
        '<div class="wide" tabindex="0"><table><thead><tr><th scope="col">Name</th>'
        f'<th scope="col">Share</th>{heads}</tr></thead><tbody id="rows"></tbody></table></div>'
        '<p class="note" id="more" role="status"></p>'
    )
    page.heading("Call stacks")
    page.raw(
        "<p>Click a function to zoom in, and the outermost one to go back. "
        '<button type="button" id="reset">All</button></p>'
        '<div class="wide" tabindex="0"><div id="flame"></div></div>'
    )
    content = _content(profiles)
    page.heading("Memory over time")
    page.raw(
        '<div class="controls"><label>Memory <select id="memory" autocomplete="off"></select>'
        '</label></div><div class="wide" tabindex="0"><canvas id="heat" role="img" '
        'aria-label="Costs by part of the memory and by time"></canvas></div>'
        '<p class="note" id="heated" role="status"></p>'
    )
    if first.localities:
        _add_locality(page, first)
    if content["code"]:
        page.heading("Source and assembly")
        page.raw(
            '<div class="controls"><label>Function <select id="function" autocomplete="off">'
            "</select></label>"
            + _menu("View", "view", {"source": "source", "assembly": "assembly"})
            + '</div><p class="note" id="uncoded" role="status"></p>'
            '<div class="wide" tabindex="0"><table class="code"><thead><tr>'
            '<th scope="col">Share</th><th scope="col">Line</th><th scope="col">Code</th>'
            '</tr></thead><tbody id="code"></tbody></table></div>'
        )
    page.data("profile", json.dumps(content))
    page.script(_data("page.js"))
    return page.html()


def _add_locality(page: Page, profile: Attribution) -> None:
    page.heading("Locality")
    entries = profile.tlb_entries
    page.text(
        f"Misses are shares of all data accesses, in a fully associative TLB of {entries:,} "
        "entries; a larger page is wanted where it saves more than 0.1 %."
    )
    page.raw('<div id="locality">')
    page.table(*locality_rows(profile.localities, entries, MOST))
    page.raw("</div>")
    page.raw(
        '<div class="controls"><label>Memory <select id="reach" autocomplete="off"></select>'
        '</label></div><div class="wide" tabindex="0"><svg id="curve" role="img" '
        'viewBox="0 0 640 260" aria-label="Miss ratio by number of TLB entries"></svg></div>'
        '<p class="note" id="legend"></p>'
    )


def _curves(profile: Attribution) -> dict[str, Any]:
    found = profile.localities
    accesses = sum(one.accesses for one in found.values())
    shown = dict(list(found.items())[:MOST])
    if len(found) > 1:
        whole = list(found.values())
        shown = {"all memory": sum(whole[1:], whole[0]), **shown}

    def shares(one: Locality, size: str) -> list[float]:
        reuse = one.reuse[size]
        return [round(reuse.misses(mark) / accesses, 7) for mark in reuse.entries]

    return {
        "tlb": profile.tlb_entries,
        "entries": next(iter(found.values())).reuse["4k"].entries,
        "sizes": [NAMES[size] for size in PAGES],
        "memory": [
            {"name": name, "misses": [shares(one, size) for size in PAGES]}
            for name, one in shown.items()
        ],
    }


def _data(name: str) -> str:
    return (resources.files("contigua") / "data" / "profile" / name).read_text()


def _menu(label: str, identity: str, choices: Mapping[str, str]) -> str:
    options = "".join(
        f'<option value="{escape(key)}">{escape(text)}</option>' for key, text in choices.items()
    )
    menu = f'<select id="{identity}" autocomplete="off">{options}</select>'
    return f"<label>{escape(label)} {menu}</label>"


class _Numbers(dict[Any, int]):
    """Places of things in a list, in the order in which they were asked for."""

    def __missing__(self, key: Any) -> int:  # noqa: ANN401 - any key
        self[key] = len(self)
        return self[key]


def _content(profiles: Sequence[Attribution]) -> dict[str, Any]:
    frames, labels, stacks = _Numbers(), _Numbers(), _Numbers()

    def written(runs: Sequence[Sequence[Line]]) -> list[list[list[Any]]]:
        def numbers(of: Sequence[Frame]) -> list[int]:
            return [frames[frame] for frame in of]

        return [[[line.place, line.text, numbers(line.frames)] for line in run] for run in runs]

    designs = []
    for profile in profiles:
        keys = _groups(profile)
        sums: dict[tuple[int, ...], Costs] = defaultdict(Costs)
        for row in profile.rows():
            stack = stacks[tuple(frames[frame] for frame in (*row.calls, row.at))]
            sums[stack, *(labels[KEYS[key](row)] for key in keys)] += row.costs
        designs.append(
            [
                {
                    "stack": stack,
                    "labels": dict(zip(keys, names, strict=True)),
                    "costs": asdict(costs),
                }
                for (stack, *names), costs in sums.items()
            ]
        )
    phases = [
        [
            [labels[cell.mapping], cell.start, cell.size, cell.phase, *astuple(cell.costs)]
            for cell in _drawn(profile.memory_over_time)
        ]
        for profile in profiles
    ]
    code = [
        {
            "function": one.function,
            "library": one.library,
            "source": {file: written(runs) for file, runs in one.source.items()},
            "assembly": written(one.assembly),
        }
        for one in listings(profiles)
    ]
    return {
        "code": code,
        "frames": [{"function": frame.function, "line": frame.line} for frame in frames],
        "phases": phases,
        "labels": list(labels),
        "stacks": list(stacks),
        "designs": designs,
        "phase": profiles[0].phase,
        "metrics": list(METRICS),
        "locality": _curves(profiles[0]) if profiles[0].localities else None,
    }


def _drawn(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Return cells; those of one name, place and phase are added up."""
    sums: dict[tuple[str, int, int, int], Costs] = defaultdict(Costs)
    for cell in cells:
        sums[cell.mapping, cell.start, cell.size, cell.phase] += cell.costs
    for (name, at, size, phase), costs in sums.items():
        yield Cell(name, at, size, phase, costs)


def perfetto(profile: Attribution, metric: str) -> str:
    """Return costs over time for https://ui.perfetto.dev: counters in Chrome's trace format.

    Time is in counted instructions: a thousand are a microsecond. There is a counter for all, and
    one for each function and each mapping with at least a hundredth of the whole, the
    :data:`MOST` largest.

    Parameters
    ----------
    metric
        What is counted: a field of :class:`~contigua.attribution.Costs`.
    """
    whole = getattr(profile.total, metric)
    events: list[dict[str, Any]] = []

    def add(process: int, of: str, tracks: Mapping[str, Sequence[int]]) -> None:
        events.append(
            {"ph": "M", "name": "process_name", "pid": process, "args": {"name": of}},
        )
        for name, values in tracks.items():
            events.extend(
                {
                    "ph": "C",
                    "name": name,
                    "pid": process,
                    "ts": phase * profile.phase / 1000,
                    "args": {"all": value},
                }
                for phase, value in enumerate([*values, 0])
            )

    for process, key in enumerate(("function", "mapping"), 2):
        found = {
            name: [getattr(costs, metric) for costs in of]
            for name, of in profile.over_time(key).items()
        }
        if key == "function":
            sums = [sum(values) for values in zip(*found.values(), strict=True)]
            add(1, profile.design, {TITLES[metric]: sums})
        largest = sorted(found.items(), key=lambda item: -sum(item[1]))[:MOST]
        add(process, f"by {GROUPS[key]}", {n: v for n, v in largest if sum(v) >= 0.01 * whole})
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events})


def speedscope(profile: Attribution) -> str:
    """Return a profile in the file format of https://www.speedscope.app, a view for each metric."""
    frames = _Numbers()
    samples = []
    rows = list(profile.rows())
    for row in rows:
        stack = [(frame.function, frame.library, frame.line) for frame in (*row.calls, row.at)]
        samples.append([frames[frame] for frame in stack])
    views = []
    for metric in METRICS:
        weights = [getattr(row.costs, metric) for row in rows]
        kept = [place for place, weight in enumerate(weights) if weight]
        views.append(
            {
                "type": "sampled",
                "name": f"{TITLES[metric]} ({profile.design})",
                "unit": "none",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": [samples[place] for place in kept],
                "weights": [weights[place] for place in kept],
            }
        )
    shared = []
    for function, library, line in frames:
        file, _, number = line.rpartition(":")
        place = {"file": file, "line": int(number)} if number.isdigit() else {"file": library}
        shared.append({"name": function, **place})
    return json.dumps(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "name": " ".join(profile.command),
            "exporter": "contigua",
            "shared": {"frames": shared},
            "profiles": views,
        }
    )
