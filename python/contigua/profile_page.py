"""Profiles as a page that needs no network, and as files of other tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib import resources
from typing import Any

from contigua.attribution import KEYS, METRICS, Attribution, Frame
from contigua.listing import Line, listings
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
    "library": "library",
    "thread": "thread",
}


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
        + _menu("By", "key", GROUPS)
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

    designs = [
        [
            {
                "stack": stacks[tuple(frames[frame] for frame in (*row.calls, row.at))],
                "labels": {key: labels[KEYS[key](row)] for key in GROUPS},
                "costs": asdict(row.costs),
            }
            for row in profile.rows()
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
        "labels": list(labels),
        "stacks": list(stacks),
        "designs": designs,
    }


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
