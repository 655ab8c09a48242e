"""Do maps of memory say what their colors and cells are?"""

import matplotlib.colors
import numpy as np
import pytest
from matplotlib.figure import Figure

from contigua import MemoryMap, pictures
from contigua.themes import DARK, LIGHT

NAMES = ("free", "movable", "slab", "network buffers and other allocations of the kernel")
CELLS = bytes([0, 1, 2, 3, 255, 0, 1, 1])


@pytest.fixture
def figures(monkeypatch):
    """Give what is drawn, before it is a file."""
    drawn: list[Figure] = []
    whole = pictures._png

    def kept(figure: Figure) -> bytes:
        drawn.append(figure)
        return whole(figure)

    monkeypatch.setattr(pictures, "_png", kept)
    return drawn


@pytest.mark.parametrize("theme", [LIGHT, DARK])
@pytest.mark.parametrize(("cell", "scale"), [("block", "2 MiB"), ("frame", "4 KiB")])
def test_a_map_has_a_legend_of_its_colors_and_a_scale(figures, theme, cell, scale):
    one = MemoryMap(4, 2, NAMES, CELLS, cell)
    pictures.maps_picture([("fresh", one), ("aged", one)], "Memory")(theme)
    (figure,) = figures
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == [*NAMES, f"one cell: {scale}"]
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.y0 >= 0
    assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
    colors = [matplotlib.colors.to_rgb(patch.get_facecolor()) for patch in legend.get_patches()]
    for axes in figure.axes:
        (image,) = axes.images
        shown = np.asarray(image.get_array()).reshape(-1, 3) / 255
        assert axes.get_title(loc="left") in ("fresh", "aged")
        for index, color in zip(CELLS, shown, strict=True):
            if index != 255:
                assert np.allclose(color, colors[index], atol=1 / 255), NAMES[index]
