"""Does going forward lose nothing, and do samples say what whole runs say?"""

import json
import re
from dataclasses import replace

import pytest

import contigua
from conftest import ROOT
from contigua import RunOptions
from contigua.reporting.cases import arrange
from contigua.reporting.sentences import headlines
from contigua.reporting.tables import main_table
from contigua.results import Report
from contigua.sampling import Sampling, matched

pytestmark = pytest.mark.programs

GUPS = ["--size", "16MiB", "--updates", "300000"]
SMALL = Sampling(distance=200_000, warm=180_000, detail=10_000, most=40)
OPTIONS = RunOptions(memory="256MiB", detail="additive", sample=SMALL)
DESIGNS = ["linux-4k", "linux-thp"]


@pytest.fixture(scope="module")
def command():
    return [str(ROOT / "workloads" / "bin" / "gups"), *GUPS]


@pytest.fixture(scope="module")
def runs(command, tmp_path_factory):
    """Reports of the same execution: programs see their environment, which tests change."""
    trace = tmp_path_factory.mktemp("trace") / "gups.trace"
    options = replace(OPTIONS, sample=None, record=trace)
    whole = contigua.run(command, designs=DESIGNS, options=options)
    skip = whole[0].values["executed"]["instructions"] // 2
    skips = RunOptions(memory="256MiB", detail="translation", skip=skip)
    return {
        "whole": whole,
        "sampled": contigua.run(command, designs=DESIGNS, options=OPTIONS),
        "again": contigua.run(command, designs=DESIGNS, options=OPTIONS),
        "replayed": contigua.run(trace=trace, designs=DESIGNS, options=OPTIONS),
        "skipped": contigua.run(command, designs=DESIGNS, options=skips),
        "skipped again": contigua.run(trace=trace, designs=DESIGNS, options=skips),
    }


def apart_from_events(report):
    values = report.values
    # Of a program that goes forward less is told, and in other batches.
    del values["program"]["events"], values["memory_course"]
    return values


def test_a_sampled_run_says_what_a_whole_one_says(runs):
    for part, all_of_it in zip(runs["sampled"], runs["whole"], strict=True):
        one, other = part.values, all_of_it.values
        for exact in ("kernel", "memory", "frames", "syscalls", "contiguity_after"):
            assert one[exact] == other[exact], exact
        assert one["executed"]["instructions"] == other["executed"]["instructions"]
        units = one["sample"]["units"]
        assert 20 < units <= 40 and one["sample"]["simulated_instructions"] >= units * 189_000
        estimate = one["sample"]["estimates"]["cycles"]
        truth = other["time"]["cycles"]
        assert abs(estimate["value"] - truth) <= max(2 * estimate["half_width"], 0.02 * truth)
        misses, true_misses = (r.summary()["l1d_tlb_mpki"] for r in (part, all_of_it))
        assert misses == pytest.approx(true_misses, rel=0.1, abs=0.05)
        assert one["tlb"]["data"]["lookups"] == pytest.approx(
            other["tlb"]["data"]["lookups"], rel=0.25
        )


def test_two_executions_give_the_same_report(runs):
    assert runs["again"].to_json() == runs["sampled"].to_json()


def test_a_trace_is_sampled_as_the_program_is(runs):
    for report, live in zip(runs["replayed"], runs["sampled"], strict=True):
        assert apart_from_events(report) == apart_from_events(live)


def test_designs_are_compared_unit_by_unit(runs):
    base, huge = (report.values for report in runs["sampled"])
    ratio = matched(huge, base)
    true = [report.values["time"]["cycles"] for report in runs["whole"]]
    assert ratio.units == base["sample"]["units"]
    assert abs(ratio.value - true[1] / true[0]) <= max(2 * ratio.half_width, 0.02)
    # Much is the same in both.
    alone = base["sample"]["estimates"]["cycles"]
    assert ratio.half_width < 2 * alone["half_width"] / alone["value"]
    assert matched(huge, runs["whole"][0].values) is None


def test_a_report_shows_intervals_and_calls_what_they_hide_equal(runs):
    found = arrange(list(runs["sampled"]))
    cells = {cell.text for row in main_table(found).rows for cell in row}
    assert any(" ± " in text for text in cells)
    said = headlines(found)
    assert " ± " in said[0] and said[-1].startswith("Sampled: ")
    base = runs["sampled"][0].values
    like = json.loads(json.dumps(base))
    like["config"]["design_name"] = "alike"
    like["time"]["cycles"] = round(base["time"]["cycles"] * 1.02)
    # Every other unit takes longer, the others less.
    issue = like["sample"]["by_unit"]["issue"]
    issue[::2] = [cycles * 3 for cycles in issue[::2]]
    pair = arrange([runs["sampled"][0], Report(json.dumps(like))])
    assert "equally fast" in headlines(pair)[0]


def test_another_seed_samples_other_units(runs, command):
    other = contigua.run(command, designs=DESIGNS[:1], options=replace(OPTIONS, seed=2))
    one, two = (results[0].values["sample"] for results in (runs["sampled"], other))
    assert one["sampling"]["offset"] != two["sampling"]["offset"]


def test_what_is_touched_while_skipping_is_mapped_when_the_region_begins(runs):
    instructions = runs["whole"][0].values["executed"]["instructions"]
    both = zip(runs["skipped"], runs["skipped again"], runs["whole"], strict=True)
    for report, again, all_of_it in both:
        assert apart_from_events(report) == apart_from_events(again)
        assert report.values["executed"]["instructions"] < instructions / 2 + 1000
        faults = report.summary()["page_faults"]
        # The program's end touches some pages of code for the first time.
        assert faults <= max(10, 0.01 * all_of_it.summary()["page_faults"])
        assert report.summary()["resident_mib"] == all_of_it.summary()["resident_mib"]


def test_programs_that_fork_and_execute_others_go_forward(guest):
    script = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); done; (echo one & wait); ls / | sort"
    options = RunOptions(memory="256MiB", detail="translation", skip=100_000_000_000)
    results = contigua.run(["sh", "-c", script], designs=["linux-4k"], options=options)
    told = contigua.run(
        ["sh", "-c", script],
        designs=["linux-4k"],
        options=replace(options, skip=0),
    )
    assert results.exit_code == 0
    assert results[0].values["program"]["processes"] == told[0].values["program"]["processes"]
    faults, all_faults = (r[0].summary()["page_faults"] for r in (results, told))
    # A child's code is not told again: nobody knows which pages it executes that its parent has.
    assert 0.85 * all_faults < faults <= all_faults


def test_threads_go_forward(guest):
    command = [guest("threads")]
    options = RunOptions(memory="256MiB", detail="translation", sample=SMALL)
    part = contigua.run(command, designs=["linux-4k"], options=options)
    assert part.exit_code == 0 and part[0].values["sample"]["units"] >= 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--sample-distance", "9"], "--sample-distance is of sampled runs: add --sample"),
        (["--sample", "--sample-detail", "10"], "at least 1000 instructions of detail, not 10"),
        (["--sample", "--sample-distance", "2000"], "do not fit into a distance of 2000"),
        (["--sample", "--cores", "2"], "sampling takes one core so far, not 2"),
        (["--sample", "--warmup", "5"], "leave --warmup out"),
        (["--sample", "--confidence", "1"], "confidence"),
    ],
)
def test_what_cannot_be_sampled_is_said(arguments, expected, cli):
    ran = cli("run", *arguments, "--", "true")
    assert ran.returncode != 0 and expected in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_table_shows_intervals_and_the_verdict(cli, command, tmp_path):
    file = tmp_path / "r.json"
    units = ["--sample", "--sample-distance", 200_000, "--sample-warm", 50_000]
    ran = cli(
        "run", *units, "--sample-detail", 10_000, "--memory", "256M", "--json", file, "--", *command
    )
    assert ran.returncode == 0, ran.stderr
    assert "sampled units" in ran.stderr and "± for 95 % confidence" in ran.stderr
    verdict = next(line for line in ran.stderr.splitlines() if "linux-thp is fastest" in line)
    assert re.search(r"cycles, [\d.]+ ± [\d.]+ % fewer than linux-4k", verdict)
    report = contigua.Results.from_json(file.read_text())[0]
    assert set(report.intervals()) >= {"cycles", "ipc", "l2_tlb_mpki"}
    assert json.loads(file.read_text())[0]["sample"]["confidence"] == 0.95


def test_every_detail_counts_the_same(command, tmp_path):
    """Times differ; the kernel, which has nothing to do in the background here, does not."""
    options = RunOptions(memory="256MiB", detail="translation", record=tmp_path / "gups.trace")
    first = contigua.run(command, designs=["linux-4k"], options=options)[0].values
    additive, full = (
        contigua.run(
            trace=tmp_path / "gups.trace",
            designs=["linux-4k"],
            options=RunOptions(memory="256MiB", detail=detail),
        )[0].values
        for detail in ("additive", "full")
    )
    for part in ("tlb", "translation", "kernel", "memory", "frames", "contiguity_after"):
        for report in (first, additive, full):
            drop_times(report[part])
        assert first[part] == additive[part] == full[part], part
    for part in ("l1i", "l1d", "l2", "llc", "fetches", "data", "walks"):
        assert additive["cache"][part] == full["cache"][part], part


def drop_times(counts):
    for name in [name for name in counts if name.endswith("_cycles")]:
        del counts[name]
