"""Experiments with their mechanisms taken out."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from contigua.presets import REPLACED, designs
from contigua_experiments import EXPERIMENTS, find
from contigua_experiments.breaking import Row, document, merged, read_rows, run_breaks, table
from contigua_experiments.breaks import Break, BreakError
from contigua_experiments.everything import kept
from contigua_experiments.one import taken_apart
from contigua_experiments.reproduction import ACCOUNTS

DOCS = Path(__file__).parents[2] / "docs"
#: Runs in a second.
QUICK = "subrelease-tradeoff"
#: Met figures that no break is for yet, and why.
WITHOUT = {
    ("direct-segment-overhead", "inside_gups"): "where a program's memory lies is its own",
    ("direct-segment-overhead", "inside_bt"): "where a program's memory lies is its own",
    ("direct-segment-overhead", "inside_cg"): "where a program's memory lies is its own",
    ("rival-mosaic", "occupancy"): "buckets have constant sizes: crates/paging/tests/iceberg.rs",
}


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if find(name).breaks])
def test_breaks_name_figures_and_change_what_the_engine_reads(name):
    one = find(name)
    for broken in one.breaks:
        assert set(broken.figures) <= {figure.key for figure in one.figures}
        changed = broken.replaced()
        for preset, text in changed.items():
            kind, _, file = preset.partition("/")
            if kind == "designs":
                designs.resolver(text, preset)
                assert text != designs.get(file.removesuffix(".toml")).text
        assert changed or broken.inputs(one.inputs["quick"]) != one.inputs["quick"]


def test_every_printed_number_that_is_met_has_a_break():
    met = ("within tolerance", "same shape")
    with (DOCS / f"{ACCOUNTS['quick']}.csv").open(newline="") as file:
        stored = [row for row in csv.DictReader(file) if row["verdict"] in met]
    lacking = set()
    for name in EXPERIMENTS:
        one = find(name)
        labels = {row["figure"] for row in stored if row["experiment"] == name}
        broken = {key for each in one.breaks for key in each.figures}
        lacking |= {
            (name, figure.key)
            for figure in one.figures
            if figure.kind == "compared" and figure.label in labels and figure.key not in broken
        }
    assert lacking <= WITHOUT.keys()


def test_verdicts_notice_a_break_and_not_one_that_changes_nothing(tmp_path, cli):
    rows = list(run_breaks(find(QUICK), "quick", tmp_path))
    assert {row.told for row in rows} == {"noticed"}
    assert [(row.sound, row.ours) for row in rows] == [("4.5 %", "100.0 %"), ("2.2 %", "100.0 %")]
    # What has finished does not run again.
    assert kept(find(QUICK), "quick", tmp_path, broken=1).is_old
    page = tmp_path / "breaks.md"
    ran = cli("experiment", "break", QUICK, "--output", str(tmp_path), "--write", str(page))
    assert ran.returncode == 0
    assert read_rows(page.with_suffix(".csv").read_text()) == rows


def test_a_table_beside_standard_output_is_refused(cli):
    ran = cli("experiment", "break", QUICK, "--write", "-")
    assert ran.returncode == 2 and "--write takes a file" in ran.stderr


def test_a_break_that_no_verdict_notices_is_told():
    before = Row("x", "y", "z", "figure", "1 %", "holds", "1 %", "holds", "NOT NOTICED")
    noticed = replace(before, verdict="fails", told="noticed")
    page = document([before, noticed], "quick", ["z"])
    assert "Not run yet: z." in page
    assert "1 verdicts of 1 experiments got worse" in page
    assert "1 did not" in page
    assert merged([before, replace(before, experiment="a")], [noticed]) == [
        replace(before, experiment="a"),
        noticed,
    ]
    assert read_rows(table([before, noticed])) == [before, noticed]


def test_a_broken_preset_takes_the_place_of_the_packages():
    broken = Break("no segment", ("worst",), "designs/direct-segment", "linux-4k")
    one = find("direct-segment-scaling")
    try:
        assert taken_apart(one, broken).inputs == one.inputs
        assert designs.get("direct-segment").text == designs.get("linux-4k").text
    finally:
        REPLACED.clear()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"figures": ["a"]}, "one of instead and put"),
        ({"figures": ["a"], "instead": "linux-4k"}, "instead needs a preset"),
        ({"figures": ["a"], "preset": "design/x", "put": {"a": 1}}, "not in designs, machines"),
        ({"figures": [], "put": {"a": 1}}, "names the figures"),
    ],
)
def test_a_break_that_is_not_well_formed_is_refused(values, message):
    with pytest.raises(BreakError, match=message):
        Break.read({"what": "x", **values})


def test_the_stored_table_has_all_breaks_of_its_experiments():
    rows = read_rows((DOCS / "breaks.csv").read_text())
    stored = {(row.experiment, row.broken, row.key) for row in rows}
    listed = {
        (name, one.what, key)
        for name in {row.experiment for row in rows}
        for one in find(name).breaks
        for key in one.figures
    }
    assert stored == listed
