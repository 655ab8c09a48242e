"""Figures for papers: what runs and sweeps found, drawn with Matplotlib.

Each function takes :class:`~contigua.Results` (or the data frame that ``to_pandas`` makes of them)
and returns a Matplotlib ``Figure``, one or two columns of a page wide, which Jupyter shows and
``savefig`` writes. Bars stand in groups: within a group designs are beside each other, and a group
is whatever else differs, such as ages. Colors are those of Okabe and Ito, which people with any
common color blindness tell apart, and hatches tell designs apart in print without color. A design
has the same color and hatch in every figure.

Where a column ``seed`` has several values, bars are means and whiskers half of the 95 % interval
(Student's t).

``style`` is the same look for figures of your own.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from contigua.errors import ContiguaError
from contigua.extras import needs
from contigua.files import is_stream, writing
from contigua.results import Results
from contigua.statistics import mean_margin
from contigua.themes import HATCHES, LIGHT, Looks, color_of, design_looks

with needs("reports"):
    import matplotlib as mpl
    from cycler import cycler
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

if TYPE_CHECKING:
    import pandas as pd

    Source: TypeAlias = Results | pd.DataFrame

Width = Literal["one", "two"]

#: Widths of figures in inches: one column and both, as ACM's and IEEE's two-column pages have them.
WIDTHS: Mapping[str, float] = {"one": 3.33, "two": 7.0}
#: Height of a panel in inches.
PANEL = 1.75

#: Matplotlib settings of all figures. Fonts are embedded as TrueType, which publishers ask for.
STYLE: Mapping[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": LIGHT.ink,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.prop_cycle": cycler(color=LIGHT.lines),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 8,
    "figure.constrained_layout.use": True,
    "figure.dpi": 150,
    "figure.facecolor": LIGHT.paper,
    "font.size": 8,
    "grid.color": LIGHT.grid,
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "lines.linewidth": 1.2,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "savefig.dpi": 300,
    "xtick.labelsize": 7,
    "xtick.major.size": 0,
    "ytick.labelsize": 7,
}

#: Columns that tell rows of a run apart, besides the design.
AXES = ("workload", "machine", "age", "holes", "malloc")
#: Labels of their axis.
NAMES = {"workload": "program", "age": "history of memory", "holes": "holes", "malloc": "allocator"}
#: The column whose values are samples of the same thing.
SAMPLES = "seed"


class PlotError(ContiguaError):
    """Results that a figure cannot be drawn of; the message says why, and what to do."""


class PaperFigure(Figure):
    """A Matplotlib figure that Jupyter shows and that is saved in this module's style."""

    def savefig(self, fname: Any, **options: Any) -> None:  # noqa: ANN401 - as Matplotlib has it
        """Save the figure; see Matplotlib's ``Figure.savefig``."""
        with style():
            if not isinstance(fname, str | os.PathLike):
                super().savefig(fname, **options)
                return
            path = Path(fname)
            form = options.setdefault(
                "format", path.suffix.removeprefix(".") or mpl.rcParams["savefig.format"]
            )
            # As Matplotlib has it: a name without an ending gets one.
            if not path.suffix and not is_stream(path):
                path = path.with_suffix(f".{form}")
            with writing(path) as file:
                super().savefig(file, **options)

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=self.dpi)
        return file.getvalue()


@contextmanager
def style() -> Iterator[None]:
    """Draw with the settings of this module, :data:`STYLE`.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> with style():
    ...     axes = Figure(figsize=(WIDTHS["one"], 2)).subplots()
    >>> axes.spines["top"].get_visible()
    False
    """
    settings: Any = dict(STYLE)  # Newer versions of Matplotlib list all names as a type.
    with mpl.rc_context(settings):
        yield


@dataclass(frozen=True)
class _Bars:
    """Bars of a plot: for each group and design the values of each seed.

    Attributes
    ----------
    groups
        Names of the groups, one above the other where there are several columns.
    designs
        Names of the designs.
    rows
        By group and design, then one row for each seed.
    across
        What the groups are.
    """

    groups: tuple[str, ...]
    designs: tuple[str, ...]
    rows: Mapping[tuple[str, str], list[dict[str, Any]]]
    across: str = ""


@style()
def speedup(
    results: Source,
    *,
    baseline: str | None = None,
    by: Sequence[str] | None = None,
    width: Width = "one",
) -> Figure:
    """Draw how many times as fast as a baseline each design is, by its cycles.

    Parameters
    ----------
    results
        Results with time (``detail`` is ``"full"`` or ``"additive"``), or their data frame.
    baseline
        The design that is 1; by default the first one. Seeds are compared one by one.
    by
        Columns that make the groups; by default those of workload, machine, age, holes and malloc
        that differ.
    width
        ``"one"`` or ``"two"`` columns of a page.

    Raises
    ------
    PlotError
        When times were not simulated, the baseline did not run, or rows differ in columns that
        ``by`` does not name.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"design": ["linux-4k", "linux-thp"], "cycles": [300, 200]})
    >>> figure = speedup(frame)
    >>> [round(float(bar.get_height()), 2) for bar in figure.axes[0].patches]
    [1.0, 1.5]
    """
    bars = _bars(results, ["cycles"], by)
    first = _baseline(bars, baseline)

    def compared(group: str, design: str) -> list[float]:
        own, base = bars.rows.get((group, design), []), bars.rows[group, first]
        return [b["cycles"] / o["cycles"] for o, b in _paired(own, base)]

    figure, (axes,) = _panels(1, width)
    _draw(axes, bars, compared)
    axes.axhline(1, color=LIGHT.ink, linewidth=0.6)
    axes.set_ylabel(f"speed, {first} = 1")
    _legend(figure, _design_handles(bars))
    return figure


#: Parts of the breakdown from the bottom: name, hatch.
PARTS = (("base", ""), ("memory", "///"), ("translation", "xxx"), ("kernel", "..."))


def _parts(row: Mapping[str, Any]) -> tuple[float, ...]:
    """Return shares of cycles in the order of :data:`PARTS`; they add up to 1.

    Most waits for walks overlap with others, so that translation is what a perfect TLB would save;
    waits that are no part of that are for memory.
    """
    kernel = float(row["kernel_share"])
    overhead = row.get("translation_overhead")
    if overhead is None or overhead != overhead:
        overhead = row["walk_share"]
    waits = float(row["memory_share"]) + float(row["walk_share"])
    translation = min(float(overhead), 1 - kernel)
    memory = min(max(waits - translation, 0.0), 1 - kernel - translation)
    return 1 - memory - translation - kernel, memory, translation, kernel


@style()
def breakdown(
    results: Source,
    *,
    baseline: str | None = None,
    by: Sequence[str] | None = None,
    width: Width = "one",
) -> Figure:
    """Draw what cycles were spent on, as a share of the baseline's cycles.

    Bars are as high as a design's cycles and divided as its busy cycles are: ``translation``, the
    translation overhead, which is what a perfect TLB would save; ``memory``, other waits for
    instructions and data beyond the first-level caches; ``kernel``, the kernel's work; ``base``,
    all else.

    Parameters
    ----------
    results, baseline, by, width
        As for :func:`speedup`.

    Raises
    ------
    PlotError
        As :func:`speedup`.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"design": ["linux-4k", "linux-thp"], "cycles": [300, 150],
    ...     "memory_share": [0.5, 0.5], "walk_share": [0.1, 0.0], "kernel_share": [0.1, 0.1],
    ...     "translation_overhead": [0.4, 0.0]})
    >>> figure = breakdown(frame)
    >>> [round(float(bar.get_height()), 2) for bar in figure.axes[0].patches]  # base, memory, ...
    [0.3, 0.2, 0.2, 0.25, 0.4, 0.0, 0.1, 0.05]
    """
    bars = _bars(results, ["cycles", *SHARES], by)
    first = _baseline(bars, baseline)
    figure, (axes,) = _panels(1, width)
    names = [f"{d}\n{g}" if g else d for g in bars.groups for d in bars.designs]
    bottoms = [0.0] * len(names)
    for index, (name, hatch) in enumerate(PARTS):
        heights = []
        for group in bars.groups:
            for design in bars.designs:
                own, base = bars.rows.get((group, design), []), bars.rows[group, first]
                parts = [
                    _parts(o)[index] * o["cycles"] / b["cycles"] for o, b in _paired(own, base)
                ]
                heights.append(sum(parts) / len(parts) if parts else 0.0)
        axes.bar(
            range(len(names)),
            heights,
            0.7,
            bottom=bottoms,
            label=name,
            color=color_of(name),
            hatch=hatch,
            edgecolor=LIGHT.paper,
        )
        bottoms = [low + high for low, high in zip(bottoms, heights, strict=True)]
    if len(names) > (4 if width == "one" else 9):  # They would run into each other.
        names = [name.replace("\n", ", ") for name in names]
        axes.set_xticks(range(len(names)), names, rotation=90)
        figure.set_figheight(figure.get_figheight() + 0.06 * max(map(len, names)))
    else:
        axes.set_xticks(range(len(names)), names)
    for place, height in enumerate(bottoms):
        axes.annotate(
            f"{height:.3g}",
            (place, height),
            xytext=(0, 1.5),
            textcoords="offset points",
            ha="center",
            fontsize=5.5,
        )
    axes.margins(y=0.12)
    axes.set_xlabel(", ".join(["design", *([bars.across] if bars.across else [])]))
    axes.set_ylabel(f"cycles, {first} = 1")
    _legend(figure, axes.get_legend_handles_labels()[0])
    return figure


@style()
def misses(results: Source, *, by: Sequence[str] | None = None, width: Width = "two") -> Figure:
    """Draw TLB misses per thousand instructions: first level for data, and second level.

    Parameters
    ----------
    results, by, width
        As for :func:`speedup`, but times are not needed.

    Raises
    ------
    PlotError
        When there is nothing to draw, or rows differ in columns that ``by`` does not name.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"design": ["linux-4k"], "l1d_tlb_mpki": [4.1], "l2_tlb_mpki": [2.7]})
    >>> [axes.get_title(loc="left") for axes in misses(frame).axes]
    ['L1 data TLB', 'L2 TLB']
    """
    panels = {"L1 data TLB": "l1d_tlb_mpki", "L2 TLB": "l2_tlb_mpki"}
    bars = _bars(results, list(panels.values()), by)
    figure, found = _panels(2, width)
    for (title, column), axes in zip(panels.items(), found, strict=True):
        _draw(axes, bars, _column(bars, column))
        axes.set_title(title)
        axes.set_ylabel("misses per 1,000 instr.")
    _legend(figure, _design_handles(bars))
    return figure


@style()
def coverage(results: Source, *, by: Sequence[str] | None = None, width: Width = "one") -> Figure:
    """Draw the share of a program's memory that lies in pages larger than 4 KB, at its peak.

    Parameters
    ----------
    results, by, width
        As for :func:`speedup`, but times are not needed.

    Raises
    ------
    PlotError
        When there is nothing to draw, or rows differ in columns that ``by`` does not name.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"design": ["linux-thp"], "huge_page_coverage": [0.98]})
    >>> [round(float(bar.get_height())) for bar in coverage(frame).axes[0].patches]
    [98]
    """
    bars = _bars(results, ["huge_page_coverage"], by)
    figure, (axes,) = _panels(1, width)
    _draw(axes, bars, _column(bars, "huge_page_coverage", 100))
    axes.set_ylim(0, 112)
    axes.set_yticks(range(0, 101, 20))
    axes.set_ylabel("huge-page coverage, %")
    _legend(figure, _design_handles(bars))
    return figure


@style()
def contiguity(results: Source, *, by: Sequence[str] | None = None, width: Width = "two") -> Figure:
    """Draw free and polluted 2 MB blocks of memory before and after, in percent of all blocks.

    A block is free when all of its frames are, and unmovable when one is that cannot be moved.

    Parameters
    ----------
    results, by, width
        As for :func:`speedup`, but times are not needed.

    Raises
    ------
    PlotError
        When there is nothing to draw, or rows differ in columns that ``by`` does not name.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"design": ["linux-thp"], "blocks_2m": [128],
    ...     "free_2m_blocks_before": [96], "free_2m_blocks_after": [64],
    ...     "unmovable_2m_blocks_before": [16], "unmovable_2m_blocks_after": [32]})
    >>> [float(bar.get_height()) for axes in contiguity(frame).axes for bar in axes.patches]
    [75.0, 50.0, 12.5, 25.0]
    """
    moments = ("before", "after")
    columns = [f"{kind}_2m_blocks_{at}" for kind in ("free", "unmovable") for at in moments]
    bars = _bars(results, [*columns, "blocks_2m"], by)
    figure, found = _panels(2, width)
    groups = tuple(f"{g}, {at}" if g else at for g in bars.groups for at in moments)
    for kind, axes in zip(("free", "unmovable"), found, strict=True):
        rows: dict[tuple[str, str], list[dict[str, Any]]] = {
            (f"{group}, {at}" if group else at, design): [
                {"share": 100 * row[f"{kind}_2m_blocks_{at}"] / max(row["blocks_2m"], 1)}
                for row in rows
            ]
            for (group, design), rows in bars.rows.items()
            for at in moments
        }
        both = _Bars(groups, bars.designs, rows, bars.across)
        _draw(axes, both, _column(both, "share"))
        axes.set_title(f"{kind} 2 MB blocks")
        axes.set_ylabel("% of all blocks")
        axes.set_ylim(0, max(5.0, axes.get_ylim()[1]))
    _legend(figure, _design_handles(bars))
    return figure


#: Columns that :func:`breakdown` needs besides cycles.
SHARES = ("memory_share", "walk_share", "kernel_share")
TIMES = {"cycles", *SHARES}


def _bars(results: Source, needed: Sequence[str], by: Sequence[str] | None) -> _Bars:
    """Sort rows by group and design, after checking that the figure can be drawn of them."""
    frame = results.to_pandas() if isinstance(results, Results) else results
    if "status" in frame:  # A sweep's: points that failed have no figures.
        frame = frame[frame["status"] == "done"]
    if not len(frame):
        raise PlotError("there is nothing to draw: the results have no rows")
    missing = [name for name in ("design", *needed, *(by or ())) if name not in frame]
    if missing:
        raise PlotError(
            f"the data frame has no column {missing[0]!r}: draw what Results.to_pandas() returned"
        )
    untimed = frame[frame[[*needed]].isna().any(axis=1)]["design"].unique()
    if len(untimed) and TIMES & set(needed):
        raise PlotError(
            f"times were not simulated for {', '.join(map(str, untimed))}: "
            'run with detail="full" or "additive"'
        )
    columns = [*by] if by is not None else [a for a in AXES if _differs(frame, a)]
    if not columns and by is None and "age" in frame:
        columns = ["age"]  # What memory went through is said also where there is one history.
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in frame.to_dict("records"):
        group = ", ".join(str(row[column]) for column in columns if column != "design")
        rows.setdefault((group, str(row["design"])), []).append({str(k): v for k, v in row.items()})
    for (group, design), samples in rows.items():
        if len({sample.get(SAMPLES) for sample in samples}) < len(samples):
            where = f"{design} ({group})" if group else design
            raise PlotError(
                f"{len(samples)} rows are for {where}: name the columns that they differ in with "
                f"by=, besides {', '.join(columns) or 'none'}"
            )
    groups, designs = dict.fromkeys(g for g, _ in rows), dict.fromkeys(d for _, d in rows)
    across = ", ".join(NAMES.get(column, column) for column in columns if column != "design")
    return _Bars(tuple(groups), tuple(designs), rows, across)


def _differs(frame: pd.DataFrame, column: str) -> bool:
    return column in frame and frame[column].nunique(dropna=False) > 1


def _baseline(bars: _Bars, name: str | None) -> str:
    """Return the baseline's name; it must have run in every group."""
    first = name or bars.designs[0]
    for group in bars.groups:
        if (group, first) not in bars.rows:
            where = f" for {group}" if group else ""
            known = ", ".join(bars.designs)
            raise PlotError(f"the baseline {first!r} did not run{where}; designs are {known}")
    return first


def _paired(
    own: Sequence[dict[str, Any]], base: Sequence[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Put each seed's row beside the baseline's of the same seed."""
    by_seed = {row.get(SAMPLES): row for row in base}
    yield from ((row, by_seed[row.get(SAMPLES)]) for row in own if row.get(SAMPLES) in by_seed)


Values = Callable[[str, str], list[float]]


def _column(bars: _Bars, name: str, factor: float = 1) -> Values:
    return lambda group, design: [factor * row[name] for row in bars.rows.get((group, design), [])]


def _panels(count: int, width: Width) -> tuple[Figure, list[Axes]]:
    """Make a figure: panels beside each other over two columns, else one above the other."""
    if width not in WIDTHS:
        raise PlotError(f"unknown width {width!r}: known are {' and '.join(WIDTHS)}")
    across = count if width == "two" else 1
    down = count // across
    figure = PaperFigure(figsize=(WIDTHS[width], PANEL * down + 0.35))
    found = figure.subplots(down, across, squeeze=False)
    return figure, list(found.flat)


def _draw(axes: Axes, bars: _Bars, values: Values) -> None:
    """Draw grouped bars, with whiskers where there are several seeds."""
    wide = 0.8 / len(bars.designs)
    looks = design_looks(bars.designs)
    for index, design in enumerate(bars.designs):
        for at, group in enumerate(bars.groups):
            found = values(group, design)
            if found:
                drawn = axes.bar(
                    at + (index - (len(bars.designs) - 1) / 2) * wide,
                    sum(found) / len(found),
                    wide * 0.92,
                    yerr=mean_margin(found),
                    error_kw={"elinewidth": 0.7, "capsize": 1.5, "ecolor": LIGHT.ink},
                    **_drawn(looks[design]),
                )
                # Beside each other where there is room.
                crowded = len(bars.groups) * len(bars.designs) > 8
                axes.bar_label(
                    drawn, fmt="%.3g", fontsize=5.5, padding=1.5, rotation=90 if crowded else 0
                )
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.12 * (high - low))
    names = [group.replace(", ", "\n") for group in bars.groups]
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel(bars.across)


def _drawn(looks: Looks) -> dict[str, Any]:
    """Return what Matplotlib is told of a design's color and hatch."""
    return {
        "facecolor": LIGHT.lines[looks.color],
        "hatch": HATCHES[looks.pattern],
        "edgecolor": LIGHT.paper,
        "linewidth": 0.4,
    }


def _design_handles(bars: _Bars) -> list[Any]:
    looks = design_looks(bars.designs)
    return [Patch(label=design, **_drawn(looks[design])) for design in bars.designs]


def _legend(figure: Figure, handles: Sequence[Any]) -> None:
    """Put one legend above all panels, in as many columns as fit."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    room = int(figure.get_figwidth() / (0.4 + 0.068 * longest))
    figure.legend(
        handles=list(handles), loc="outside upper left", ncols=max(1, min(len(handles), room))
    )
