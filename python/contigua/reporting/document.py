"""The page of a report: one file with everything inside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib import resources

from contigua._engine import VERSION
from contigua.page import Page
from contigua.reporting import tables, vega
from contigua.reporting.cases import Runs
from contigua.reporting.plots import Plot, first_case, plots
from contigua.reporting.sentences import headlines
from contigua.reporting.tables import Cell, Table
from contigua.themes import MEANINGS


def page_of(runs: Runs, *, title: str | None = None, inputs: Sequence[tuple[str, str]] = ()) -> str:
    """Return the page of some runs, the same bytes for the same runs.

    Parameters
    ----------
    runs
        What ran.
    title
        The page's title; by default the programs and how many designs.
    inputs
        Name and SHA-256 of each file or folder that was read.
    """
    page = Page(title or default_title(runs), style=style())
    page.sentences(headlines(runs))
    drawn = plots(runs)
    if len(runs.designs) > 1 or len(runs.cases) > 1:
        page.raw(_choices(runs))
    page.raw('<div class="plots">')
    for plot in drawn:
        page.raw(_figure(plot))
    page.raw("</div>")
    page.raw("<noscript><p>The plots need JavaScript; the tables have all figures.</p></noscript>")
    page.heading("Figures")
    page.raw(_table(tables.main_table(runs), runs))
    page.note(
        "Click a column heading to sort. Speed is relative to " + _bases(runs) + ".", runs.timed
    )
    page.fold("All figures", _table(tables.whole_table(runs), runs))
    page.heading("Configuration")
    differing = tables.differences(runs)
    if differing.rows:
        page.text("What differs:")
        page.raw(_keys(differing))
    same = tables.common(runs)
    page.fold(f"What is the same in all runs ({len(same.rows)} values)", _keys(same))
    page.heading("Provenance")
    page.raw(_keys(_provenance(runs, inputs)))
    compiled = {plot.name: vega.compiled(plot.spec) for plot in drawn}
    page.data("plots", json.dumps(compiled, separators=(",", ":")))
    page.script(vega.runtime())
    page.script(_data("page.js"))
    return page.html()


def default_title(runs: Runs) -> str:
    """Say what ran, on how many designs."""
    programs = list(dict.fromkeys(run.program for run in runs.all))
    said = programs[0] if len(programs) == 1 else f"{len(programs)} programs"
    count = len(runs.designs)
    return f"{said} on {runs.designs[0] if count == 1 else f'{count} designs'}"


def style() -> str:
    """Return what a report adds to a page's style."""
    light, dark = (
        "; ".join(f"--{name}: {both[place]}" for name, both in MEANINGS.items()) for place in (0, 1)
    )
    return (
        f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ @media screen {{ "
        f":root {{ {dark} }} }} }}\n@media print {{ :root {{ {light} }} }}\n{_data('page.css')}"
    )


def _data(name: str) -> str:
    return (resources.files("contigua") / "data" / "report" / name).read_text()


def _choices(runs: Runs) -> str:
    """Return what a reader picks for all plots: designs, and one case or all."""
    found = []
    if len(runs.designs) > 1:
        found += [
            f'<label><input type="checkbox" value="{escape(design)}" checked> '
            f"{escape(design)}</label>"
            for design in runs.designs
        ]
    if len(runs.cases) > 1:
        first = first_case(runs)
        options = "".join(
            f'<option value="{escape(case)}"{" selected" if case == first else ""}>'
            f"{escape(case or 'all')}</option>"
            for case in ("", *runs.cases)
        )
        found.append(
            f'<label>Plots of <select class="case" autocomplete="off">{options}</select></label>'
        )
    return f'<fieldset class="choices"><legend>Show</legend>{"".join(found)}</fieldset>'


def _figure(plot: Plot) -> str:
    return (
        f'<figure id="{plot.name}"><h2>{escape(plot.title)}</h2>'
        f'<div class="plot" data-plot="{plot.name}"></div>'
        f"<figcaption>{escape(plot.alternative)} {escape(plot.caption)}</figcaption></figure>"
    )


def _table(table: Table, runs: Runs) -> str:
    """Return a table of runs whose heads sort it."""
    head = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{escape(name)}</button></th>'
        for name in table.heads
    )
    body = []
    for run, row in zip(runs.all, table.rows, strict=True):
        cells = "".join(map(_cell, row))
        body.append(f'<tr data-design="{escape(run.design)}">{cells}</tr>')
    return (
        f'<div class="wide" tabindex="0"><table id="{table.name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    return f"<td{value}>{escape(cell.text)}</td>"


def _keys(table: Table) -> str:
    """Return a table of keys and their values."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.heads)
    body = "".join(
        # Keys may be broken after their dots.
        f"<tr><td>{escape(key.text).replace('.', '.<wbr>')}</td>"
        + "".join(f"<td>{escape(cell.text)}</td>" for cell in cells)
        + "</tr>"
        for key, *cells in table.rows
    )
    kind = "keys pairs" if len(table.heads) == 2 else "keys"
    return (
        f'<div class="wide" tabindex="0"><table class="{kind}" id="{table.name}"><thead><tr>{head}'
        f"</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _bases(runs: Runs) -> str:
    return " or ".join(dict.fromkeys(runs.baseline(case).design for case in runs.cases))


def _provenance(runs: Runs, inputs: Sequence[tuple[str, str]]) -> Table:
    values = [run.values for run in runs.all]

    def each(found: Sequence[str]) -> str:
        return "; ".join(dict.fromkeys(found))

    rows = [
        ("results by Contigua", each([str(one["version"]) for one in values])),
        ("page by Contigua", VERSION),
        ("command", each([" ".join(one["program"]["command"]) or "a trace" for one in values])),
        ("execution (hash of its events)", each([str(one["program"]["events"]) for one in values])),
        ("stopped early", "yes" if any(one["program"]["limited"] for one in values) else ""),
        ("machine", each([str(one["config"]["machine_name"]) for one in values])),
        ("memory before", each([str(one["config"]["age"]) for one in values])),
        ("detail", each([str(one["config"]["detail"]) for one in values])),
        ("seed", each([str(one["config"]["seed"]) for one in values])),
        *((f"input {name}", f"SHA-256 {digest}") for name, digest in inputs),
    ]
    cells = tuple((Cell(key), Cell(value)) for key, value in rows if value)
    return Table("provenance", ("", ""), cells)
