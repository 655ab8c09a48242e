"""Predicted against measured."""

from __future__ import annotations

from collections.abc import Sequence

from contigua.extras import needs
from contigua.plot import PANEL, WIDTHS, PaperFigure, style
from contigua.themes import LIGHT, color_of
from contigua.validation.compare import TARGETS, Comparison

with needs("reports"):
    from matplotlib.figure import Figure

#: Labels of the points of CPU time.
LABELS = {"small": "4 KB pages", "huge": "2 MB pages"}
#: Colors of points.
COLORS = {"speedup": LIGHT.ink, **{size: color_of(label) for size, label in LABELS.items()}}


@style()
def scatter(comparisons: Sequence[Comparison]) -> Figure:
    """Draw speed-ups with 2 MB pages, and CPU times: measured across, predicted up.

    The band is the error that is wanted of the worst program. Hollow: measurements that vary too
    much to conclude anything.
    """
    figure = PaperFigure(figsize=(WIDTHS["two"], 1.6 * PANEL))
    left, right = figure.subplots(1, 2)
    panels = (
        (left, ("speedup",), "speed-up with 2 MB pages", TARGETS["speedup_worst"]),
        (right, ("small", "huge"), "CPU time, s", TARGETS["time"]),
    )
    for axes, sizes, label, wanted in panels:
        points = [
            (getattr(one.native, size).value, one.predicted[size], one.concludes, index)
            for index, size in enumerate(sizes)
            for one in comparisons
        ]
        low = 0.9 * min(min(x, y) for x, y, _, _ in points)
        high = 1.1 * max(max(x, y) for x, y, _, _ in points)
        ends = [low, high]
        axes.plot(ends, ends, color=LIGHT.ink, linewidth=0.6)
        band = [[(1 + sign * wanted) * end for end in ends] for sign in (-1, 1)]
        axes.fill_between(ends, *band, color=LIGHT.grid, linewidth=0)
        for index, size in enumerate(sizes):
            for sure in (True, False):
                own = [(x, y) for x, y, known, of in points if of == index and known == sure]
                if not own:
                    continue
                axes.scatter(
                    [x for x, _ in own],
                    [y for _, y in own],
                    s=12,
                    facecolors=COLORS[size] if sure else "none",
                    edgecolors=COLORS[size],
                    linewidths=0.8,
                    label=LABELS.get(size) if sure else None,
                )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(f"{label}, measured")
        axes.set_ylabel("predicted")
        axes.set_title(f"band: {100 * wanted:.0f} %")
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    return figure
