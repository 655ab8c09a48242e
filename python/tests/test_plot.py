"""Do figures show what results say, and do they refuse what cannot be drawn?"""

import pandas as pd
import pytest

import contigua
from contigua import RunOptions, plot, run

WITH_TIME = (plot.speedup, plot.breakdown)
ALL = (*WITH_TIME, plot.misses, plot.coverage, plot.contiguity)


@pytest.fixture(scope="module")
def results():
    options = RunOptions(memory="128MiB", detail="additive", age="fresh,scattered:3")
    return run(["/bin/true"], designs=["linux-4k", "linux-thp"], options=options)


def heights(axes):
    return [float(bar.get_height()) for bar in axes.patches]


@pytest.mark.parametrize("draw", ALL)
@pytest.mark.parametrize("width", ["one", "two"])
def test_every_figure_is_as_wide_as_asked_and_is_written(results, tmp_path, draw, width):
    figure = draw(results, width=width)
    assert figure.get_figwidth() == plot.WIDTHS[width]
    figure.savefig(tmp_path / "figure.pdf")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_bars_are_what_the_results_say(results):
    cycles = {(r["age"], r["design"]): r["cycles"] for r in results.rows()}
    ages = ("fresh", "scattered:3")
    faster = [cycles[age, "linux-4k"] / cycles[age, "linux-thp"] for age in ages]
    assert heights(plot.speedup(results).axes[0]) == pytest.approx([1, 1, *faster])
    covered = [100 * r["huge_page_coverage"] for r in results.rows()]
    drawn = heights(plot.coverage(results.to_pandas()).axes[0])
    assert drawn == pytest.approx([covered[i] for i in (0, 2, 1, 3)])


def test_the_parts_of_the_breakdown_add_up_to_the_cycles(results):
    bars = heights(plot.breakdown(results).axes[0])
    stacks = [sum(bars[place::4]) for place in range(4)]
    cycles = [row["cycles"] for row in results.rows()]
    wanted = [cycles[i] / cycles[i - i % 2] for i in range(4)]
    assert stacks == pytest.approx(wanted)
    assert all(bar > 0 for bar in bars[:8])  # Base and memory: /bin/true has both.


def test_shares_of_the_breakdown_are_those_of_the_table_and_add_up():
    rows = [
        {
            "design": design,
            "cycles": 100,
            "memory_share": memory,
            "walk_share": 0.02,
            "kernel_share": kernel,
            "translation_overhead": overhead,
        }
        for design, memory, kernel, overhead in (
            ("overlapping", 0.5, 0.1, 0.25),
            ("much", 0.05, 0.1, 0.3),
            ("all", 0.0, 0.4, 0.9),
            ("unknown", 0.5, 0.1, None),
        )
    ]
    bars = heights(plot.breakdown(pd.DataFrame(rows)).axes[0])
    parts = [bars[place::4] for place in range(4)]
    assert [sum(part) for part in parts] == pytest.approx([1, 1, 1, 1])
    base, memory, translation, kernel = (list(each) for each in zip(*parts, strict=True))
    assert translation == pytest.approx([0.25, 0.3, 0.6, 0.02])
    assert kernel == pytest.approx([0.1, 0.1, 0.4, 0.1])
    assert memory == pytest.approx([0.27, 0, 0, 0.5])
    assert min(base) >= 0


def test_bars_have_values_axes_titles_and_every_history_a_name(results):
    for draw in ALL:
        for axes in draw(results).axes:
            texts = [text.get_text() for text in axes.texts]
            bars = {round(height, 6) for height in heights(axes)}
            assert len(texts) >= 4 and bars, draw
            assert axes.get_xlabel() and axes.get_ylabel(), draw
    one = contigua.Results(results.reports[:2])
    axes = plot.speedup(one).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["fresh"]
    assert axes.get_xlabel() == "history of memory"


def test_a_legend_of_long_names_is_within_the_figure():
    names = [f"contiguitas-with-a-rather-long-name-{number}" for number in range(5)]
    figure = plot.speedup(pd.DataFrame([{"design": name, "cycles": 10} for name in names]))
    figure._repr_png_()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1


def test_seeds_are_means_with_whiskers_and_are_compared_one_by_one():
    rows = [
        {"design": design, "seed": seed, "cycles": cycles}
        for design, times in (("a", (100, 300)), ("b", (50, 100)))
        for seed, cycles in enumerate(times)
    ]
    axes = plot.speedup(pd.DataFrame(rows)).axes[0]
    assert heights(axes) == [1.0, 2.5]
    assert len(axes.collections) == 2


def test_times_that_were_not_simulated_are_an_error_that_says_what_to_do():
    untimed = run(
        ["/bin/true"],
        designs=["linux-4k"],
        options=RunOptions(memory="128MiB", detail="translation"),
    )
    for draw in WITH_TIME:
        with pytest.raises(plot.PlotError, match=r"linux-4k: run with detail=\"full\""):
            draw(untimed)
    for draw in set(ALL) - set(WITH_TIME):
        draw(untimed)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, "no rows"),
        ([{"design": "a"}], {}, "no column 'cycles'"),
        ([{"design": "a", "cycles": 1}], {"baseline": "b"}, "'b' did not run; designs are a"),
        ([{"design": "a", "cycles": 1}], {"width": "three"}, "known are one and two"),
        ([{"design": "a", "cycles": 1, "k": k} for k in (1, 2)], {}, "2 rows are for a: name the"),
    ],
)
def test_an_impossible_plot_is_one_clear_error(rows, options, message):
    with pytest.raises(plot.PlotError, match=message):
        plot.speedup(pd.DataFrame(rows), **options)


def test_columns_of_a_sweep_make_groups_when_they_are_named():
    frame = pd.DataFrame([{"design": "a", "cycles": k, "k": k} for k in (1, 2)])
    labels = plot.speedup(frame, by=["k"]).axes[0].get_xticklabels()
    assert [label.get_text() for label in labels] == ["1", "2"]
