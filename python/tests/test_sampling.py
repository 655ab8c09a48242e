"""Does going forward lose nothing, and do samples say what whole runs say?"""

import json
import os
import re
from dataclasses import replace
from statistics import NormalDist

import pytest

import contigua
from conftest import ROOT
from contigua import RunOptions
from contigua.commands.parameters import ERROR
from contigua.reporting.cases import arrange
from contigua.reporting.sentences import headlines
from contigua.reporting.tables import main_table
from contigua.reports import Report
from contigua.sampling import (
    CHECKED,
    FEWEST,
    GOALS,
    LEAST_UNITS,
    VARIATION,
    Sampling,
    TimeError,
    matched,
)

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
    del values["program"]["events"], values["residency"]
    return values


def test_a_sampled_run_says_what_a_whole_one_says(runs):
    for part, all_of_it in zip(runs["sampled"], runs["whole"], strict=True):
        one, other = part.values, all_of_it.values
        for exact in ("kernel", "memory", "frames", "syscalls", "contiguity_after"):
            assert one[exact] == other[exact], exact
        assert one["executed"]["instructions"] == other["executed"]["instructions"]
        units = one["sample"]["units"]
        assert 20 < units <= 40 and one["sample"]["simulated_instructions"] >= (units - 1) * 189_000
        estimate = one["sample"]["estimates"]["cycles"]
        truth = other["time"]["cycles"]
        assert abs(estimate["value"] - truth) <= max(2 * estimate["half_width"], 0.02 * truth)
        misses, true_misses = (r.summary()["l1d_tlb_mpki"] for r in (part, all_of_it))
        assert misses == pytest.approx(true_misses, rel=0.1, abs=0.05)
        assert one["tlb"]["data"]["lookups"] == pytest.approx(
            other["tlb"]["data"]["lookups"], rel=0.25
        )


def test_counts_stand_for_the_part_of_the_program_that_they_were_made_in(command, runs):
    # The table is filled while units are near, and read at random when they are far apart.
    sample = Sampling(distance=100_000, warm=100_000, most=32)
    sampled = contigua.run(command, designs=DESIGNS, options=replace(OPTIONS, sample=sample))
    for part, all_of_it in zip(sampled, runs["whole"], strict=True):
        one, other = part.summary(), all_of_it.summary()
        assert part.values["sample"]["simulated_instructions"] < 0.6 * one["instructions"]
        for key in ("l1d_tlb_mpki", "l2_tlb_mpki"):
            assert one[key] == pytest.approx(other[key], rel=0.1, abs=0.1), key
        loads = [report.values["executed"]["loads"] for report in (part, all_of_it)]
        assert loads[0] == pytest.approx(loads[1], rel=0.1)


def test_the_kernels_time_is_counted_throughout(command, tmp_path):
    """Also that of faults while caches are warmed: failed walks, which the kernel pays for."""
    whole = RunOptions(memory="256MiB", record=tmp_path / "gups.trace")
    sampled = replace(whole, record=None, sample=Sampling(distance=200_000))
    one = contigua.run(command, designs=["linux-4k"], options=whole)[0].values
    part = contigua.run(trace=whole.record, designs=["linux-4k"], options=sampled)[0].values
    kernel = one["time"]["breakdown"]["kernel"]
    assert part["time"]["breakdown"]["kernel"] == pytest.approx(kernel, rel=0.001)


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
    assert one["sampling"]["seed"] != two["sampling"]["seed"]


def test_pages_touched_while_skipping_are_mapped_when_the_region_begins(runs):
    instructions = runs["whole"][0].values["executed"]["instructions"]
    both = zip(runs["skipped"], runs["skipped again"], runs["whole"], strict=True)
    for report, again, all_of_it in both:
        assert apart_from_events(report) == apart_from_events(again)
        assert report.values["executed"]["instructions"] < instructions / 2 + 1000
        faults = report.summary()["page_faults"]
        # The program's end touches some pages of code for the first time.
        assert faults <= max(10, 0.01 * all_of_it.summary()["page_faults"])
        assert report.summary()["resident_mib"] == all_of_it.summary()["resident_mib"]


def test_the_first_touches_of_a_gigabyte_can_be_skipped():
    """All pages are mapped when the region begins: its reads, of random pages, fault on none."""
    command = [str(ROOT / "workloads" / "bin" / "random"), "--size", "1GiB", "--reads", "200000"]
    options = RunOptions(memory="2GiB", detail="translation", skip=8_000_000)
    pages = 1 << 18
    region = contigua.run(command, designs=["linux-4k"], options=options)[0].summary()
    # Reads of that many pages would fault, had the skipped part not mapped them.
    assert region["l2_tlb_mpki"] * region["instructions"] / 1000 > pages / 4
    assert region["page_faults"] <= 0.01 * pages
    assert region["resident_mib"] >= 1024


FORKS = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); done; "


def run_forward(script):
    """A script in detail, and the one that goes forward over nearly all of it."""
    options = RunOptions(memory="256MiB", detail="translation")
    told = contigua.run(["sh", "-c", script], designs=["linux-4k"], options=options)
    nearly_all = int(0.99 * told[0].summary()["instructions"])
    skipped = contigua.run(
        ["sh", "-c", script], designs=["linux-4k"], options=replace(options, skip=nearly_all)
    )
    assert skipped.exit_code == 0
    return told[0], skipped[0]


def test_programs_that_fork_and_execute_others_go_forward():
    told, skipped = run_forward(FORKS + "(echo one); ls /; ls / >/dev/null; true")
    assert skipped.values["program"]["processes"] == told.values["program"]["processes"] == 4
    resident, all_resident = (r.summary()["resident_mib"] for r in (skipped, told))
    # A child's code is not told again: nobody knows which pages it executes that its parent has.
    assert 0.85 * all_resident < resident < 1.15 * all_resident


def test_programs_that_run_beside_each_other_go_forward():
    # The host's scheduler decides how many of them hold memory at once.
    told, skipped = run_forward(FORKS + "(echo one & wait); ls / | sort")
    assert skipped.values["program"]["processes"] == told.values["program"]["processes"]


def test_threads_go_forward(guest):
    command = [guest("threads")]
    options = RunOptions(memory="256MiB", detail="translation", sample=SMALL)
    part = contigua.run(command, designs=["linux-4k"], options=options)
    assert part.exit_code == 0 and part[0].values["sample"]["units"] >= 1


IDLE = """
import threading
stop = threading.Event()
threads = [threading.Thread(target=stop.wait) for _ in range(3)]
for thread in threads:
    thread.start()
print(sum(i * i for i in range(50_000)))
stop.set()
"""


def test_threads_that_wait_do_not_shorten_units():
    sampling = Sampling(distance=1_000_000, warm=100_000)
    options = RunOptions(memory="1GiB", detail="translation", sample=sampling)
    run = contigua.run(["python3", "-SEc", IDLE], designs=["linux-4k"], options=options)
    values = run[0].values
    units = values["sample"]["by_unit"]["instructions"]
    assert abs(len(units) - values["executed"]["instructions"] / 1_000_000) <= 2
    # The first one may begin before the program.
    assert min(units[1:]) > 9000


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--sample-distance", "9"], "--sample-distance is of sampled runs: add --sample"),
        (["--sample", "--sample-detail", "10"], "at least 1000 instructions of detail, not 10"),
        (["--sample", "--sample-distance", "2000"], "do not fit into a distance of 2000"),
        (["--sample", "--cores", "2"], "sampling takes one core so far, not 2"),
        (["--sample", "--warmup", "5"], "leave --warmup out"),
        (["--sample", "--confidence", "1"], "confidence"),
        (["--within", "1s"], "1 s are too few to sample 2 runs"),
        (["--within", "2m", "--sample-units", "50"], "give either --sample-units or --within"),
        (["--within", "2m", "--sample-error", "2%"], "give either --sample-error or --within"),
        (["--sample-error", "0"], "no error between 0.5% and 50%"),
        (["--sample-error", "60%"], "no error between 0.5% and 50%"),
        (["--sample-error", "two"], "'two' is no error"),
        (["--sample-error", "nan"], "'nan' is no error"),
        (["--sample-error", "2%", "--detail", "translation"], "--detail translation has none"),
        (["--sample-error", "2%", "--window", "1M:2M"], "--sample cannot be combined with regions"),
    ],
)
def test_impossible_sampling_options_are_refused(arguments, expected, cli):
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


@pytest.mark.parametrize("runs", [1, 2, 12])
def test_a_time_asks_for_units_that_fit_into_it(runs):
    most = [Sampling.within(seconds, runs, 2).most for seconds in (300, 600, 3600)]
    assert most == sorted(set(most)) and all(number % (2 * CHECKED) == 0 for number in most)
    # Twice the processors do as much as half of the runs.
    assert Sampling.within(600, 2 * runs, 4).most == most[1]
    with pytest.raises(TimeError, match=r"give \d+ s or more") as error:
        Sampling.within(1, runs, 2)
    least = int(error.value.args[0].split("give ")[1].split()[0])
    assert Sampling.within(least, runs, 2).most >= LEAST_UNITS
    with pytest.raises(TimeError):
        Sampling.within(least - 1, runs, 2)


def test_a_run_within_a_time_is_sampled(cli, command, tmp_path):
    file = tmp_path / "r.json"
    ran = cli("run", "--within", "10m", "--memory", "256M", "--json", file, "--", *command)
    assert ran.returncode == 0, ran.stderr
    sampling = json.loads(file.read_text())[0]["sample"]["sampling"]
    processors = len(os.sched_getaffinity(0))
    assert sampling["most"] == Sampling.within(600, 2, processors).most


def test_a_verdict_says_what_longer_warming_changes(runs):
    report = json.loads(json.dumps(runs["sampled"][0].values))
    sampling = report["sample"]["sampling"] | {"warm": 500_000, "long_warm": 2_000_000}
    cycles = {"value": -0.042, "half_width": 0.003}
    warming = {"units": [], "quantile": 2.0, "cycles": cycles, "differs": True, "by_unit": {}}
    report["sample"] |= {"sampling": sampling, "warming": warming}

    def said():
        found = headlines(arrange([Report(json.dumps(report))]), brief=True)
        return [line for line in found if "warming" in line]

    assert said() == [
        "Units of linux-4k take 4.2 % fewer cycles after 2.0 million instructions of warming than "
        "after 500.0 thousand; values are corrected by that, and ± holds it. --sample-warm 2000000 "
        "narrows it."
    ]
    warming["differs"] = False
    assert said() == []


def test_designs_are_compared_with_what_longer_warming_changes(runs):
    base, huge = (json.loads(json.dumps(report.values)) for report in runs["sampled"])
    alone = matched(huge, base).half_width
    lengths = base["sample"]["by_unit"]["instructions"]
    units = list(range(0, len(lengths), 4))
    for report, change in ((base, 0), (huge, 500)):
        by_unit = {
            part: [report["sample"]["by_unit"][part][unit] for unit in units]
            for part in report["sample"]["by_unit"]
        }
        by_unit["data"] = [cycles + change for cycles in by_unit["data"]]
        report["sample"]["warming"] = {"units": units, "quantile": 2.3, "by_unit": by_unit}
    # 500 cycles more a unit in one design only.
    each = base["executed"]["instructions"] / (sum(lengths) / len(lengths))
    change = 500 * each / base["time"]["cycles"]
    found = matched(huge, base).half_width
    assert found == pytest.approx((alone**2 + change**2) ** 0.5, rel=1e-6)


@pytest.mark.parametrize("text", ["2%", "0.02", " 2 % "])
def test_an_error_is_a_share(text):
    assert ERROR.convert(text, None, None) == 0.02


@pytest.mark.parametrize("goal", [*GOALS, 0.01, 0.02, 0.0313])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.9999])
def test_a_goal_asks_for_as_many_units_as_it_takes(goal, confidence):
    plan = Sampling.toward(goal, confidence)
    assert plan.detail < plan.distance and plan.goal == goal and plan.confidence == confidence
    # As many are left after every other one was dropped.
    left = plan.most // 2
    quantile = NormalDist().inv_cdf(0.5 + confidence / 2)
    assert left >= FEWEST and quantile * VARIATION / left**0.5 <= goal * (1 + 1e-9)
    assert left == FEWEST or quantile * VARIATION / (left - 1) ** 0.5 > goal * (1 - 1e-9)


def test_a_goal_that_is_missed_says_what_reaches_it(cli, command, tmp_path):
    trace, file = tmp_path / "gups.trace", tmp_path / "r.json"
    shared = ["--memory", "256M", "--detail", "additive", "--sample-error", "10%", "--json", file]

    def samples(*options):
        ran = cli("run", *shared, *options)
        assert ran.returncode == 0, ran.stderr
        reports = [report.values for report in contigua.Results.from_json(file.read_text())]
        lines = (ran.stderr + ran.stdout).splitlines()
        return reports, next(line for line in lines if "The goal of" in line)

    assert cli("record", "-o", trace, "--", *command).returncode == 0
    few, said = samples("--sample-units", "20", "--", *command)
    goals = [report["sample"]["goal"] for report in few]
    worst = max(goals, key=lambda goal: goal["half_width"])
    assert not worst["reached"] and worst["error"] == 0.1 < worst["half_width"]
    assert f"missed: cycles of {few[goals.index(worst)]['config']['design_name']}" in said
    advice = re.search(r"--sample-units 0 --sample-distance \d+", said)
    assert advice is not None
    enough, said = samples("--trace", trace, *advice[0].split())
    assert all(report["sample"]["goal"]["reached"] for report in enough), said
    # The first unit is not at the beginning.
    assert enough[0]["sample"]["units"] >= worst["units"] - 1
    assert re.search(r"The goal of ± 10 % is reached: cycles have ± [\d.]+ %, or less", said)


def test_a_goal_samples_a_trace_as_the_program(command, tmp_path):
    options = replace(OPTIONS, sample=Sampling.toward(0.02), record=tmp_path / "gups.trace")
    live = contigua.run(command, designs=DESIGNS, options=options)
    again = contigua.run(
        trace=tmp_path / "gups.trace", designs=DESIGNS, options=replace(options, record=None)
    )
    for one, other in zip(live, again, strict=True):
        assert apart_from_events(one) == apart_from_events(other)
        assert one.values["sample"]["goal"]["error"] == 0.02


def test_a_sampled_recordings_units_are_judged_by_a_goal(cli, command, tmp_path):
    trace, file = tmp_path / "gups.trace", tmp_path / "r.json"
    units = ["--sample", "--sample-distance", "500k", "--sample-units", "0"]
    assert cli("record", *units, "-o", trace, "--", *command).returncode == 0
    ran = cli("run", "--trace", trace, "--sample-error", "50%", "--memory", "256M", "--json", file)
    assert ran.returncode == 0 and "The goal of ± 50 % is reached" in ran.stdout + ran.stderr
    sample = json.loads(file.read_text())[0]["sample"]
    assert sample["sampling"]["distance"] == 500_000 and sample["goal"]["reached"]


def test_a_verdict_says_what_became_of_a_goal(runs):
    def said(*goals):
        reports = []
        for run, goal in zip(runs["sampled"], goals, strict=False):
            report = json.loads(json.dumps(run.values))
            usual = {"error": 0.02, "reached": False, "units": None, "distance": None}
            report["sample"]["goal"] = usual | goal
            reports.append(Report(json.dumps(report)))
        return headlines(arrange(reports), brief=True)[-1]

    assert said({"half_width": None}) == (
        "The goal of ± 2 % is missed: too few units fit in. Simulate all of the program."
    )
    assert said({"half_width": 0.25, "units": 12_345}) == (
        "The goal of ± 2 % is missed: cycles of linux-4k have ± 25.0 %. 12.3 thousand units would "
        "reach it: simulate all of the program."
    )
    # The worst design decides.
    near, far = {"half_width": 0.01, "reached": True}, {"half_width": 0.015, "reached": True}
    both = "The goal of ± 2 % is reached: cycles have ± 1.5 %, or less."
    assert said(near, far) == said(far, near) == both
    missed = {"half_width": 0.04, "units": 4400, "distance": 91_000}
    assert said(near, missed) == (
        "The goal of ± 2 % is missed: cycles of linux-thp have ± 4.0 %. 4,400 units would reach "
        "it: --sample-units 0 --sample-distance 91000."
    )
    assert "cycles of linux-4k have ± 4.0 %" in said(missed, near)


@pytest.mark.parametrize("machine", ["sandy-bridge", "skylake"])
def test_every_detail_counts_the_same(command, tmp_path, machine):
    """Times differ; the kernel, which has nothing to do in the background here, does not.

    Skylake translates pages ahead of the program, for prefetches whose lines depend on times; and
    without caches nothing is translated ahead.
    """
    trace = tmp_path / "gups.trace"
    options = RunOptions(machine, memory="256MiB", detail="translation", record=trace)
    first = contigua.run(command, designs=["linux-4k"], options=options)[0].values
    additive, full = (
        contigua.run(
            trace=trace,
            designs=["linux-4k"],
            options=RunOptions(machine, memory="256MiB", detail=detail),
        )[0].values
        for detail in ("additive", "full")
    )
    parts = ["kernel", "memory", "frames", "contiguity_after"]
    if machine == "sandy-bridge":
        parts += ["tlb", "translation"]
        for part in ("l1i", "l1d", "l2", "llc", "fetches", "data", "walks"):
            assert additive["cache"][part] == full["cache"][part], part
    for part in parts:
        for report in (first, additive, full):
            drop_times(report[part])
        assert first[part] == additive[part] == full[part], part


def drop_times(counts):
    for name in [name for name in counts if name.endswith("_cycles")]:
        del counts[name]
