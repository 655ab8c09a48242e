"""Does one color have one meaning, whatever is drawn?"""

from __future__ import annotations

import re
from itertools import combinations

import pytest
from test_table import report

from conftest import ROOT
from contigua import Results, pictures, plot
from contigua.presets import designs
from contigua.reporting.cases import arrange
from contigua.reporting.plots import plots
from contigua.themes import (
    COLORS,
    DARK,
    DESIGNS,
    HATCHES,
    LIGHT,
    MEANINGS,
    NAMED,
    color_of,
    design_looks,
    series,
)
from contigua.validation.plot import COLORS as VALIDATION
from contigua.validation.plot import LABELS


def channels(color):
    return [int(color[at : at + 2], 16) for at in (1, 3, 5)]


def distance(one, other):
    """Roughly what the eye sees of a difference ("redmean", CompuPhase), 0 to 765."""
    a, b = channels(one), channels(other)
    red = (a[0] + b[0]) / 2
    dr, dg, db = ((x - y) ** 2 for x, y in zip(a, b, strict=True))
    return ((2 + red / 256) * dr + 4 * dg + (2 + (255 - red) / 256) * db) ** 0.5


def test_a_name_has_one_color_and_a_color_one_meaning():
    names = [name for meaning in MEANINGS.values() for name in meaning.names]
    assert len(names) == len(set(names))
    for shade in ("light", "dark"):
        values = [getattr(meaning, shade).lower() for meaning in MEANINGS.values()]
        assert len(values) == len(set(values)), shade
        assert all(re.fullmatch(r"#[0-9a-f]{6}", value) for value in values)
    assert len({meaning.what for meaning in MEANINGS.values()}) == len(MEANINGS)


def test_what_a_plot_shows_has_its_colors_which_can_be_told_apart():
    one = report("linux-4k", 500_000)
    seen = set()
    for found in plots(arrange([one])):
        scale = found.spec["layer"][0]["encoding"]["color"]["scale"]
        assert scale["range"] == [f"var(--{NAMED[part]})" for part in scale["domain"]], found.name
        seen |= set(scale["domain"])
        for dark in (False, True):
            for a, b in combinations(scale["domain"], 2):
                near = distance(color_of(a, dark=dark), color_of(b, dark=dark))
                assert near > 60, (found.name, a, b, dark)
    assert {"translation", "polluted", "memory"} <= seen


def test_figures_and_maps_have_the_same_colors_as_reports():
    for name, _ in plot.PARTS:
        assert name in MEANINGS[NAMED[name]].names
    assert pictures.CLASSES["movable"] == color_of("in use, movable")
    assert pictures.CLASSES["unmovable"] == color_of("polluted")
    assert {VALIDATION[size] for size in LABELS} == set(map(color_of, LABELS.values()))
    # The block sizes of fleets are those of pages.
    assert series(["2 MB", "4 MB", "1 GB"], LIGHT)[0][0] == color_of("2 MB pages")
    assert series(["2 MB", "4 MB", "1 GB"], DARK)[2][0] == color_of("1 GB pages", dark=True)


def test_the_picture_of_a_real_server_has_the_colors_of_simulated_ones():
    text = (ROOT / "crates/live/src/picture.rs").read_text()
    body = text[text.index("fn color") :]
    found = dict(re.findall(r"Self::(\w+) => \[(0x.., 0x.., 0x..)\]", body))
    rust = {
        look: "#" + "".join(part[2:] for part in value.split(", ")) for look, value in found.items()
    }
    assert rust["Movable"] == color_of("movable").lower()
    assert rust["Huge"] == color_of("2 MB pages").lower()
    assert rust["Kernel"] == color_of("unmovable").lower()
    assert rust["Polluted"] == color_of("mixed").lower()
    assert rust["Reserved"] == LIGHT.reserved


def test_designs_that_come_with_us_have_looks_of_their_own():
    assert set(DESIGNS) <= set(designs.names())
    looks = design_looks([*DESIGNS, *designs.names()])
    assert len(set(looks.values())) == min(len(looks), COLORS * len(HATCHES))


def test_a_design_looks_the_same_whatever_stands_beside_it():
    whole = design_looks([*DESIGNS, "mine"])
    for name in DESIGNS:
        assert design_looks([name])[name] == design_looks(["mine", name])[name] == whole[name]
    # A user's own design too, where nobody has its looks; never those of another.
    assert design_looks(["mine"]) == design_looks(["mine"])
    own = [f"mine-{number}" for number in range(5)]
    together = design_looks([*own, *DESIGNS])
    assert len(set(together.values())) == len(together) == COLORS * len(HATCHES)


@pytest.mark.parametrize("names", [("linux-4k", "linux-thp"), ("colt", "linux-thp", "mine")])
def test_figures_and_pictures_draw_designs_alike(names):
    found = Results(tuple(report(name, 500_000) for name in names))
    drawn = plot.speedup(found)
    expected = {name: LIGHT.lines[look.color] for name, look in design_looks(names).items()}
    handles = drawn.legends[0].legend_handles
    from matplotlib.colors import to_hex

    shown = {
        text.get_text(): to_hex(handle.get_facecolor())
        for text, handle in zip(drawn.legends[0].get_texts(), handles, strict=True)
    }
    assert shown == {name: color.lower() for name, color in expected.items()}
    assert [color for color, _ in series(names, LIGHT)] == [expected[name] for name in names]
    assert series(["linux-thp"], LIGHT) == [series(["linux-4k", "linux-thp"], LIGHT)[1]]
