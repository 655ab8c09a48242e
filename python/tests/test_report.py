"""Does a report say what is true, in a page that works alone, and in files?"""

from __future__ import annotations

import csv
import json
import re
import resource
import shutil
from contextlib import contextmanager

import pytest

import contigua
from conftest import ROOT
from contigua.errors import ContiguaError
from contigua.page import Page
from contigua.reporting import measures
from contigua.reporting.cases import arrange
from contigua.reporting.plots import legend_columns, legend_pixels, plots
from contigua.reporting.sentences import headlines
from contigua.reporting.writing import Input, ReportError, told
from contigua.results import Results

DESIGNS = ["linux-4k", "linux-thp"]
#: The largest page that a report may be, in bytes.
LARGEST = 3_000_000
#: Milliseconds within which a page must have drawn its plots, on a busy computer, too.
TIMEOUT = 120_000


@pytest.fixture(scope="module")
def results():
    options = contigua.RunOptions(age="fresh,scattered:3", memory="1G", detail="additive")
    program = [str(ROOT / "workloads" / "bin" / "gups"), "--size", "8MiB", "--updates", "20000"]
    return contigua.run([*program, "--no-verify"], designs=DESIGNS, options=options)


@pytest.fixture(scope="module")
def page(results, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "page.html"
    results.report(path)
    return path


def changed(report, **cycles):
    """A report with other cycles."""
    values = report.values
    values["time"].update(cycles)
    return contigua.Report(json.dumps(values))


def test_a_page_is_the_same_bytes_for_the_same_results_and_small(results, page, tmp_path):
    results.report(tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()
    assert page.stat().st_size < LARGEST


def test_headlines_say_who_is_fastest_and_by_how_much(results):
    base = changed(results[0], cycles=1_000_000)
    fast = changed(results[1], cycles=750_000)
    first = headlines(arrange([base, fast]))[0]
    assert first.startswith("linux-thp is fastest: 750.0 thousand cycles, 25 % fewer than linux-4k")
    slow = changed(results[1], cycles=1_200_000)
    first = headlines(arrange([base, slow]))[0]
    assert first == (
        "No design is faster than linux-4k (1.0 million cycles); linux-thp takes 20 % more."
    )


def test_huge_pages_win_on_fresh_memory_and_the_page_says_so(results):
    said = "\n".join(headlines(arrange(list(results))))
    assert "fresh: linux-thp is fastest" in said
    assert "under linux-thp" in said


def test_a_case_is_all_that_differs_but_the_design(results):
    runs = arrange(list(results))
    assert runs.axes == ("age",)
    assert {case: [run.design for run in members] for case, members in runs.cases.items()} == {
        "fresh": DESIGNS,
        "scattered:3": DESIGNS,
    }
    # The same report twice is one; the same run with another outcome is told apart.
    assert len(arrange([*results, *results]).all) == 4
    again = arrange([results[0], changed(results[0], cycles=5)])
    assert again.axes == ("run",)


def test_files_have_the_plots_and_their_numbers(results, tmp_path):
    written = results.report(tmp_path / "out", formats=("png", "svg", "csv"))
    assert {path.suffix for path in written.files} == {".png", ".svg", ".csv"}
    assert (tmp_path / "out" / "cycles.png").read_bytes().startswith(b"\x89PNG")
    drawing = (tmp_path / "out" / "cycles.svg").read_text()
    assert "linux-thp" in drawing and "var(--" not in drawing
    with (tmp_path / "out" / "cycles.csv").open() as file:
        rows = list(csv.DictReader(file))
    cycles = sum(
        float(row["value"]) for row in rows if (row["design"], row["age"]) == ("linux-4k", "fresh")
    )
    assert cycles == results[0].values["time"]["busy_cycles"]


def test_the_legend_of_a_file_is_within_the_picture(results, tmp_path):
    results.report(tmp_path, formats=("svg",))
    drawing = (tmp_path / "cycles.svg").read_text()
    height = float(re.search(r'height="([\d.]+)"', drawing)[1])
    top = float(re.search(r'transform="translate\([\d.]+,([\d.]+)\)"', drawing)[1])
    legend = re.search(r"role-legend.*?translate\(-?[\d.]+,(-?[\d.]+)\)", drawing, re.DOTALL)
    assert 0 <= top + float(legend[1]) < height


def test_the_bar_of_translation_is_what_a_perfect_tlb_would_save(results):
    """Most walks overlap with waits for memory; the breakdown counts them as that."""
    breakdown = dict.fromkeys(results[0].values["time"]["breakdown"], 0)
    breakdown.update(issue=400, data=500, walk=20, kernel=80)
    report = changed(results[0], translation_overhead=0.25, breakdown=breakdown)
    run = arrange([report]).all[0]
    wanted = {"base": 400, "memory": 270, "translation": 250, "kernel": 80}
    assert measures.cycles(run) == wanted


def seeded(results, cycles):
    """Reports of seeds 1 and 2 and so on, with these cycles, of the first case's designs."""
    found = []
    for design, own in zip(results[:2], cycles, strict=True):
        for seed, each in enumerate(own, 1):
            values = changed(design, cycles=each).values
            values["config"]["seed"] = seed
            found.append(contigua.Report(json.dumps(values)))
    return found


def test_seeds_are_averaged_with_intervals_and_compared_pairwise(results):
    # The seeds differ much, the designs of one seed by a tenth.
    reports = seeded(results, [(1_000_000, 2_000_000, 3_000_000), (900_000, 1_800_000, 2_700_000)])
    runs = arrange(reports)
    assert [run.design for run in runs.all] == DESIGNS and list(runs.cases) == [""]
    assert [run.cycles for run in runs.all] == [2_000_000, 1_800_000]
    assert all(len(run.seeds) == 3 for run in runs.all)
    # Student's t with two degrees of freedom: 4.303 * 1e6 / sqrt(3).
    assert runs.all[0].intervals["cycles"] == pytest.approx(2_484_138, rel=1e-3)
    said = headlines(runs)
    assert said[0].startswith("linux-thp is fastest: 1.8 million cycles, 10 % fewer than linux-4k")
    assert "Means of 3 seeds; ± is the half-width of a 95 % confidence interval." in said
    # One seed is no mean.
    assert not arrange(reports[:1]).all[0].seeds


def test_a_difference_that_seeds_do_not_agree_on_is_none(results):
    reports = seeded(results, [(1_000_000, 1_000_000), (700_000, 1_200_000)])
    assert headlines(arrange(reports))[0].startswith("All designs are equally fast")


def test_every_history_that_ran_is_named(results):
    reports = []
    for number in range(6):
        values = results[0].values
        values["config"]["age"] = f"web:{number + 1}h"
        reports.append(contigua.Report(json.dumps(values)))
    said = "\n".join(headlines(arrange(reports)))
    assert all(f"web:{number + 1}h" in said for number in range(6))


def test_drawings_have_titles_values_and_whole_legends(results, tmp_path):
    reports = [report for report in results if report.values["config"]["age"] == "fresh"]
    contigua.Results(tuple(reports)).report(tmp_path, formats=("svg",))
    for file in tmp_path.glob("*.svg"):
        drawing = file.read_text()
        width = float(re.search(r'width="([\d.]+)"', drawing)[1])
        assert "@measure" not in drawing
        assert "role-axis-title" in drawing, file.name
        # Each label of the legend begins, and with six pixels a letter ends, within the picture.
        legend = re.search(r'class="mark-group role-legend-entry".*?</g></g></g></g></g>', drawing)
        for text in re.findall(r">([^<>]+)</text>", legend[0] if legend else ""):
            assert text in drawing and 6 * len(text) < width
    cycles = (tmp_path / "cycles.svg").read_text()
    assert ">percent of linux-4k<" in cycles and ">100</text>" in cycles


def test_a_legend_has_as_many_columns_as_fit(results):
    for plot in plots(arrange(list(results))):
        for layer in plot.spec["layer"]:
            legend = layer["encoding"].get("color", {}).get("legend")
            if legend:
                labels = layer["encoding"]["color"]["scale"]["domain"]
                assert legend["columns"] == {"expr": legend_columns(labels)}
                assert str(legend_pixels(labels)) in legend_columns(labels)
    assert legend_pixels(["x" * 30]) >= 30 * 7


def test_no_format_of_that_name(results, tmp_path):
    with pytest.raises(ReportError, match="no format pdf; there are html, png, svg, csv"):
        results.report(tmp_path / "out", formats=("pdf",))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("nonsense", "no array of reports"),
        ("[]", "no finished run"),
        ('[{"config": {"design_name": "x"}}]', "run again with this version"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(cli, tmp_path, text, said):
    file = tmp_path / "r.json"
    if text is not None:
        file.write_text(text)
    done = cli("report", file, "-o", tmp_path / "page.html")
    assert done.returncode == 1
    assert said in done.stderr and done.stderr.count("\n") == 1 and "r.json" in done.stderr
    assert not (tmp_path / "page.html").exists()


def test_the_command_writes_a_page_and_says_what_matters(cli, results, tmp_path):
    (tmp_path / "r.json").write_text(results.to_json())
    done = cli("report", tmp_path / "r.json", "-o", tmp_path / "p.html", "--title", "A <b> title")
    assert done.returncode == 0, done.stderr
    assert "fresh: linux-thp is fastest" in done.stdout
    assert f"Report: {tmp_path / 'p.html'}" in done.stdout
    text = (tmp_path / "p.html").read_text()
    assert "<h1>A &lt;b&gt; title</h1>" in text and "SHA-256" in text


# In a browser.

CHROMIUM = shutil.which("chromium")
browser_tests = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is missing; as root, run: apt-get install chromium"
)


@contextmanager
def opened(path, **look):
    """Open a file in a browser; whatever it complains about or asks the network for is an error."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing")
    wrong = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        tab = browser.new_context(**look).new_page()
        tab.set_default_timeout(TIMEOUT)
        tab.on("console", lambda message: wrong.append(message.text))
        tab.on("pageerror", lambda error: wrong.append(str(error)))

        def only_itself(route):
            if route.request.url == path.as_uri():
                route.continue_()
            else:
                wrong.append(route.request.url)
                route.abort()

        tab.route("**/*", only_itself)
        tab.goto(path.as_uri())
        yield tab
        browser.close()
    assert not wrong


def hidden_parts(tab):
    """Parts of a page that need sideways scrolling."""
    return tab.evaluate(
        """() => [...document.querySelectorAll(".wide")]
            .filter(part => part.scrollWidth > part.clientWidth + 1)
            .map(part => part.outerHTML.slice(0, 80))"""
    )


def drawn(tab):
    tab.wait_for_selector("body[data-drawn]")
    return tab


def bars(tab, plot):
    """Widths and heights of what is drawn in a plot."""
    return tab.evaluate(
        """name => [...document.querySelectorAll(`#${name} .mark-rect path`)]
            .map(mark => mark.getBoundingClientRect()).map(box => [box.width, box.height])""",
        plot,
    )


def column(tab, place):
    return tab.evaluate(
        """place => [...document.querySelectorAll("#figures tbody tr")]
            .map(row => row.cells[place]).map(cell => cell.dataset.value || cell.textContent)""",
        place,
    )


@browser_tests
def test_plots_are_drawn_and_designs_can_be_hidden(page):
    with opened(page) as tab:
        drawn(tab)
        figures = tab.locator("figure").count()
        assert figures >= 6 and tab.get_attribute("body", "data-drawn") == str(figures)
        for plot in ("cycles", "tlb-misses", "walks", "page-sizes", "faults", "contiguity"):
            seen = bars(tab, plot)
            assert any(width > 20 and height > 4 for width, height in seen), plot
            assert tab.locator(f"#{plot} figcaption").inner_text()
            assert len(tab.get_attribute(f"#{plot} .plot", "aria-label")) > 40
        before = len(bars(tab, "cycles"))
        tab.uncheck(".choices input[value=linux-thp]")
        tab.wait_for_function(
            "() => !document.querySelector('#cycles svg').textContent.includes('linux-thp')"
        )
        assert 0 < len(bars(tab, "cycles")) < before
        assert tab.locator("#figures tbody tr:visible").count() == 2
        tab.check(".choices input[value=linux-thp]")
        tab.select_option(".choices .case", "fresh")
        tab.wait_for_function(
            "() => !document.querySelector('#cycles svg').textContent.includes('scattered')"
        )


@browser_tests
def test_a_table_sorts_by_click_and_by_key(page):
    with opened(page) as tab:
        head = tab.locator("#figures th", has_text=re.compile("^cycles$"))
        place = head.evaluate("head => head.cellIndex")
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "ascending"
        found = [float(value) for value in column(tab, place)]
        assert found == sorted(found) and len(set(found)) > 1
        head.locator("button").press("Enter")
        assert head.get_attribute("aria-sort") == "descending"
        assert [float(value) for value in column(tab, place)] == sorted(found, reverse=True)
        first = tab.locator("#figures th").first
        first.locator("button").press("Space")
        assert column(tab, 0) == sorted(column(tab, 0))
        assert head.get_attribute("aria-sort") == "none"


@browser_tests
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (400, "dark"), (1280, "dark")])
def test_a_page_can_be_read_on_any_screen(page, width, scheme):
    with opened(page, color_scheme=scheme, viewport={"width": width, "height": 800}) as tab:
        drawn(tab)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        inks = tab.evaluate(
            """() => ["body", "#cycles svg .mark-text text"].map(
                name => getComputedStyle(document.querySelector(name)))
                .map((style, index) => index ? style.fill : style.color)"""
        )
        assert len(set(inks)) == 1, "a plot's text is as dark as the page's"
        # Legends are within their drawings.
        outside = tab.evaluate(
            """() => [...document.querySelectorAll(".plot svg")].flatMap(svg => {
                const frame = svg.getBoundingClientRect();
                return [...svg.querySelectorAll(".role-legend-label text")].filter(text => {
                    const box = text.getBoundingClientRect();
                    return box.top < frame.top - 1 || box.right > frame.right + 1;
                }).map(text => text.textContent);
            })"""
        )
        assert outside == []


@browser_tests
def test_values_at_the_ends_of_bars_are_whole(results, tmp_path):
    several = [report.values for report in results]
    for values in several:
        # Nearly as many as the axis has.
        values["frames"]["frames_reclaimed_background"] = 7_374
        values["config"]["design_name"] += "-contig"
    page = tmp_path / "page.html"
    Results(tuple(contigua.Report(json.dumps(values)) for values in several)).report(page)
    with opened(page, viewport={"width": 360, "height": 800}) as tab:
        drawn(tab)
        cut = tab.evaluate(
            """() => [...document.querySelectorAll(".plot svg")].flatMap(svg => {
                const edge = svg.getBoundingClientRect().right;
                return [...svg.querySelectorAll(".mark-text.role-mark text")]
                    .filter(text => text.getBoundingClientRect().right > edge)
                    .map(text => text.textContent);
            })"""
        )
        assert cut == []


@browser_tests
def test_an_experiments_page_works_alone(tmp_path):
    page = Page("An <i>experiment</i>")
    page.text("Some text.")
    page.table(["a", "b" * 80], [["1", "2" * 80]])
    path = tmp_path / "index.html"
    path.write_text(page.html())
    with opened(path, viewport={"width": 360, "height": 800}) as tab:
        assert tab.title() == "An <i>experiment</i>"
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("megabytes", [400, 4000])
def test_a_report_under_a_limit_of_addresses_says_what_it_takes(megabytes, cli, tmp_path):
    results = tmp_path / "results.json"
    results.write_text(contigua.run(["/bin/true"], designs=["linux-4k"]).to_json())

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    ran = cli("report", results, "-o", tmp_path / "page.html", preexec_fn=limit)
    assert ran.returncode == 1
    assert "drawing takes 65 GiB of addresses, raise the limit (ulimit -v)" in ran.stderr
    assert "walks" in ran.stdout or "cycles" in ran.stdout, "what can be said without plots is"


def _without(values, path):
    """A copy that lacks what a path leads to."""
    if len(path) == 1:
        return {key: value for key, value in values.items() if key != path[0]}
    return {**values, path[0]: _without(values[path[0]], path[1:])}


def _paths(values, at=()):
    for key, value in values.items():
        yield (*at, key)
        if isinstance(value, dict):
            yield from _paths(value, (*at, key))


def test_damaged_results_are_an_error_that_says_so():
    """Whichever key is missing, or holds something else: sentences and tables, or one error."""
    (report,) = contigua.run(
        ["/bin/true"], designs=["linux-4k"], options=contigua.RunOptions(detail="additive")
    )
    assert report.values["complete"] is True
    values = report.values | {"complete": False, "ended": "failure"}
    refused = 0
    for path in _paths(values):
        for damaged in (_without(values, path), _with(values, path, "x"), _with(values, path, [])):
            text = "[" + json.dumps(damaged) + "]"
            try:
                results = Results.from_json(text)
                told([Input("x", results.reports)])
                str(results)
            except ContiguaError:
                refused += 1
    assert refused > 100


def _with(values, path, other):
    """A copy that has something else where a path leads to."""
    inner = other if len(path) == 1 else _with(values[path[0]], path[1:], other)
    return {**values, path[0]: inner}
