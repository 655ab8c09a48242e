"""Pictures of memory: maps along a space-filling curve, contiguity over time, distributions.

Every picture is a function of data and a :class:`Theme`, so that a page can carry one for light and
one for dark. Figures are drawn without pyplot: it keeps global state, and wants a display.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from contigua.ageing import BEYOND, MemoryMap, Sample, share, total_frames
from contigua.extras import needs
from contigua.themes import (
    BLUE,
    GREEN,
    HATCHES,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    YELLOW,
    Picture,
    Theme,
    color_of,
    series,
)

with needs("reports"):
    import numpy as np
    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

DPI = 100
#: Pixels along the longer side of one map, at least and at most.
MAP_PIXELS = (384, 2048)

#: Styles of lines, in order: color is never all that tells two apart.
STYLES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 1))]

#: Colors of the classes of blocks and of frames; free and reserved are the theme's. Classes of
#: frames are more than other plots leave colors for, so theirs are of maps of frames only.
CLASSES = {
    **{name: color_of(name) for name in ("movable", "mixed", "unmovable")},
    "anonymous": SKY,
    "page cache": BLUE,
    "page table": YELLOW,
    "slab": PURPLE,
    "network buffer": VERMILION,
    "file-system buffer": ORANGE,
    "other kernel": GREEN,
}


def maps_picture(
    maps: Sequence[tuple[str, MemoryMap]], title: str, columns: int | None = None
) -> Picture:
    """Draw maps of memory side by side under one legend.

    Parameters
    ----------
    maps
        A title and a map each; all of the same kind of cell.
    title
        What all of them are about.
    columns
        Maps beside each other; by default up to three, and two for four of them.
    """
    beside = columns or (2 if len(maps) == 4 else min(3, len(maps)))
    return lambda theme: _draw_maps(maps, title, theme.columns(beside), theme)


def _draw_maps(
    maps: Sequence[tuple[str, MemoryMap]], title: str, columns: int, theme: Theme
) -> bytes:
    names = list(dict.fromkeys(name for _, one in maps for name in one.names))
    rows = math.ceil(len(maps) / columns)
    wide = max(_pixels(one)[0] for _, one in maps)
    high = max(_pixels(one)[1] for _, one in maps)
    scale = _scale(maps)
    across = max(1, (columns * (wide + 24) - 24) // _legend_pixels([*names, scale]))
    margin, head, foot = 24, 36, 24 + 24 * math.ceil((len(names) + 1) / across)
    width = columns * (wide + margin) + margin
    height = head + rows * (high + 40) + foot
    figure = _figure(width, height, theme)
    for index, (label, one) in enumerate(maps):
        left = margin + (index % columns) * (wide + margin)
        top = head + 28 + (index // columns) * (high + 40)
        own = _pixels(one)
        axes = figure.add_axes(
            (left / width, 1 - (top + own[1]) / height, own[0] / width, own[1] / height)
        )
        axes.imshow(_colors(one, theme), interpolation="nearest" if _whole(one) else "antialiased")
        axes.set_axis_off()
        axes.set_title(label, color=theme.ink, fontsize=10, loc="left")
    _title(figure, title, theme)
    handles = [
        Patch(facecolor=_color(name, theme), edgecolor=theme.grid, label=name) for name in names
    ]
    handles.append(Patch(facecolor="none", edgecolor=theme.ink, label=scale))
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=across,
        frameon=False,
        fontsize=9,
        labelcolor=theme.ink,
    )
    return _png(figure)


def _scale(maps: Sequence[tuple[str, MemoryMap]]) -> str:
    """Say what a cell of the maps is."""
    kinds = dict.fromkeys("2 MiB" if one.cell == "block" else "4 KiB" for _, one in maps)
    return f"one cell: {' or '.join(kinds)}"


def _legend_pixels(labels: Sequence[str]) -> int:
    """Return how wide a column of a legend is that cuts none of its labels."""
    return 7 * max(map(len, labels), default=0) + 48


def _pixels(one: MemoryMap) -> tuple[int, int]:
    least, most = MAP_PIXELS
    longer = max(one.width, one.height)
    if longer > most:
        return one.width * most // longer, one.height * most // longer
    scale = max(1, math.ceil(least / longer))
    return one.width * scale, one.height * scale


def _whole(one: MemoryMap) -> bool:
    return max(one.width, one.height) <= MAP_PIXELS[1]


def _colors(one: MemoryMap, theme: Theme) -> npt.NDArray[np.uint8]:
    palette = np.zeros((256, 3), dtype=np.uint8)
    palette[BEYOND] = _rgb(theme.paper)
    for index, name in enumerate(one.names):
        palette[index] = _rgb(_color(name, theme))
    cells = np.frombuffer(one.cells, dtype=np.uint8).reshape(one.height, one.width)
    colored: npt.NDArray[np.uint8] = palette[cells]
    return colored


def _color(name: str, theme: Theme) -> str:
    themed = {"free": theme.free, "reserved": theme.reserved}
    return themed.get(name) or CLASSES.get(name, theme.ink)


def _rgb(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def time_picture(servers: Sequence[tuple[str, Sequence[Sample]]], title: str) -> Picture:
    """Draw contiguity over time: free, potential and unmovable, one line per server."""
    panels: list[tuple[str, Callable[[Sample], float]]] = [
        ("free memory", lambda s: 100 * s["contiguity"]["free_frames"] / total_frames(s)),
        ("free 2 MB blocks", lambda s: share(s, "2m", "free")),
        ("polluted 2 MB blocks", lambda s: share(s, "2m", "unmovable")),
        ("potential 1 GB blocks", lambda s: share(s, "1g", "potential")),
    ]
    charts = [
        (
            f"{name}, % of memory",
            {label: over_time(samples, measure) for label, samples in servers},
        )
        for name, measure in panels
    ]
    return lines_picture(charts, title, "hours")


def over_time(
    samples: Sequence[Sample], measure: Callable[[Sample], float]
) -> tuple[list[float], list[float]]:
    """Return the hours and values of a measure, for a curve."""
    return [s["seconds"] / 3600 for s in samples], [measure(s) for s in samples]


Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def lines_picture(
    charts: Sequence[tuple[str, Curves]], title: str, across: str, *, steps: bool = False
) -> Picture:
    """Draw charts of lines, two beside each other, all with one horizontal axis.

    Parameters
    ----------
    charts
        For each chart what goes up, and the named curves: places across, and values.
    title
        What all of them are about.
    across
        Name of the horizontal axis.
    steps
        Whether values hold until the next place, as in a distribution.
    """

    def draw(theme: Theme) -> bytes:
        columns = theme.columns(min(2, len(charts)))
        rows = math.ceil(len(charts) / columns)
        figure = _figure(460 * columns + 60, 290 * rows + 100, theme)
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in list(grid.flat)[len(charts) :]:
            axes.set_axis_off()
        for (name, curves), axes in zip(charts, grid.flat, strict=False):
            _dress(axes, theme, name, across)
            looks = series(list(curves), theme)
            for (label, (x, y)), (color, pattern) in zip(curves.items(), looks, strict=True):
                axes.plot(
                    x,
                    y,
                    label=label,
                    color=color,
                    linestyle=STYLES[pattern % len(STYLES)],
                    drawstyle="steps-post" if steps else "default",
                    linewidth=1.8,
                )
            if not steps:
                axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
        _legend(figure, grid.flat[0], theme, title)
        return _png(figure)

    return draw


def bars_picture(
    groups: Sequence[str], bars: Mapping[str, Sequence[float]], title: str, up: str
) -> Picture:
    """Draw grouped bars with their values on top.

    Parameters
    ----------
    groups
        Names along the horizontal axis.
    bars
        For each series one value per group.
    title
        What it is about.
    up
        Name of the vertical axis.
    """

    def draw(theme: Theme) -> bytes:
        figure = _figure(theme.width(max(520, 60 + 45 * len(groups) * (len(bars) + 1))), 390, theme)
        axes = figure.subplots()
        _dress(axes, theme, up, "")
        width = 0.8 / max(1, len(bars))
        # Shares of a percent need their digits.
        is_small = max((max(values, default=0.0) for values in bars.values()), default=0.0) < 10
        looks = series(list(bars), theme)
        for index, (label, values) in enumerate(bars.items()):
            color, pattern = looks[index]
            places = [at + (index - (len(bars) - 1) / 2) * width for at in range(len(groups))]
            drawn = axes.bar(
                places,
                values,
                width * 0.92,
                label=label,
                color=color,
                hatch=HATCHES[pattern % len(HATCHES)],
                edgecolor=theme.paper,
            )
            axes.bar_label(drawn, fmt="%.2g" if is_small else "%.0f", fontsize=8, color=theme.ink)
        axes.set_xticks(range(len(groups)), groups)
        _legend(figure, axes, theme, title)
        return _png(figure)

    return draw


def scatter_picture(
    x: Sequence[float], y: Sequence[float], title: str, across: str, up: str
) -> Picture:
    """Draw one dot per server, with a logarithmic horizontal axis."""

    def draw(theme: Theme) -> bytes:
        figure = _figure(theme.width(640), 400, theme)
        axes = figure.subplots()
        _dress(axes, theme, up, across)
        axes.scatter(x, y, s=14, color=theme.lines[0], alpha=0.7)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        _legend(figure, axes, theme, title)
        return _png(figure)

    return draw


class Point(NamedTuple):
    """A choice by its cost and benefit; on the front, no other one brings as much for less."""

    label: str
    kind: str
    cost: float
    benefit: float
    on_front: bool


#: Shapes of points, in order: color is never all that tells two kinds apart.
MARKERS = "os^Dv*"


def front_picture(
    charts: Sequence[tuple[str, Sequence[Point]]], title: str, across: str
) -> Picture:
    """Draw choices by cost and benefit, with the Pareto front as a line whose points have names.

    Costs lie on an axis that is linear up to 100 and logarithmic above, so that those that cost
    nothing have their place.

    Parameters
    ----------
    charts
        For each chart what goes up, and the points.
    title
        What all of them are about.
    across
        Name of the cost.
    """
    kinds = list(dict.fromkeys(point.kind for _, points in charts for point in points))

    def draw(theme: Theme) -> bytes:
        columns = theme.columns(min(2, len(charts)))
        rows = math.ceil(len(charts) / columns)
        figure = _figure(theme.width(560 * columns + 60), 380 * rows + 100, theme)
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in list(grid.flat)[len(charts) :]:
            axes.set_axis_off()
        for (name, points), axes in zip(charts, grid.flat, strict=False):
            _dress(axes, theme, name, across)
            axes.set_xscale("symlog", linthresh=100)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            front = sorted((p for p in points if p.on_front), key=lambda p: (p.cost, p.benefit))
            axes.plot(
                [point.cost for point in front],
                [point.benefit for point in front],
                color=theme.ink,
                linewidth=1,
                drawstyle="steps-post",
                zorder=1,
            )
            for index, kind in enumerate(kinds):
                own = [point for point in points if point.kind == kind]
                axes.scatter(
                    [point.cost for point in own],
                    [point.benefit for point in own],
                    s=[70 if point.on_front else 22 for point in own],
                    marker=MARKERS[index % len(MARKERS)],
                    color=theme.lines[index % len(theme.lines)],
                    edgecolors=[theme.ink if point.on_front else "none" for point in own],
                    label=kind,
                    zorder=2,
                )
            for point in front:
                axes.annotate(
                    point.label,
                    (point.cost, point.benefit),
                    xytext=(6, 7),
                    textcoords="offset points",
                    fontsize=8,
                    color=theme.ink,
                )
            most = max((point.cost for point in points), default=0)
            axes.set_xlim(-15, max(200, most * 8))
            axes.margins(y=0.15)
        _legend(figure, grid.flat[0], theme, title)
        return _png(figure)

    return draw


def _figure(width: float, height: float, theme: Theme) -> Figure:
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor=theme.paper)
    FigureCanvasAgg(figure)
    return figure


def _dress(axes: Axes, theme: Theme, up: str, across: str) -> None:
    axes.set_facecolor(theme.paper)
    axes.set_title(up, color=theme.ink, fontsize=10, loc="left")
    axes.set_xlabel(across, color=theme.ink, fontsize=9)
    axes.tick_params(which="both", colors=theme.ink, labelcolor=theme.ink, labelsize=9)
    axes.grid(color=theme.grid, linewidth=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.grid)


def _legend(figure: Figure, axes: Axes, theme: Theme, title: str) -> None:
    handles, labels = axes.get_legend_handles_labels()
    top = figure.get_figheight() * DPI
    _title(figure, title, theme)
    columns = int(figure.get_figwidth() * DPI // _legend_pixels(labels))
    columns = max(1, min(columns, len(labels)))
    if handles:
        figure.legend(
            handles,
            labels,
            loc="lower center",
            ncols=columns,
            frameon=False,
            fontsize=9,
            labelcolor=theme.ink,
        )
    rows = math.ceil(len(labels) / columns)
    figure.tight_layout(rect=(0, (10 + 20 * rows) / top if handles else 0, 1, 1))


def _title(figure: Figure, title: str, theme: Theme) -> None:
    width, height = figure.get_size_inches() * DPI
    figure.suptitle(
        title, color=theme.ink, fontsize=12, x=24 / width, y=1 - 12 / height, ha="left", va="top"
    )


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    # No date or version inside: the same data give the same bytes.
    metadata: dict[str, Any] = {"Software": None}
    figure.savefig(file, format="png", metadata=metadata, facecolor=figure.get_facecolor())
    return file.getvalue()
