"""Do recordings of a part of a program say what the program's own run said, and no more?"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import pytest

import contigua
from conftest import ROOT
from contigua import EngineError, RunOptions, SweepError, _engine
from contigua.sampling import RECORDED, Sampling, recorded
from contigua.sweeps import make_plan

pytestmark = pytest.mark.programs

GUPS = ["--size", "16MiB", "--updates", "300000"]
DESIGNS = ["linux-4k", "linux-thp"]
UNITS = Sampling(distance=200_000, warm=50_000, detail=10_000, most=40)
DETAILS = ["full", "additive", "translation"]
ASKED = {
    "whole": RunOptions(),
    "units": RunOptions(sample=UNITS),
    "behind": RunOptions(sample=UNITS, skip=3_000_000),
    "skipped": RunOptions(skip=3_000_000),
}
#: Seconds in which anything here is done; only a failure takes as long.
TIMEOUT = 120


@pytest.fixture(scope="module")
def command():
    return [str(ROOT / "workloads" / "bin" / "gups"), *GUPS]


def run_alike(command, designs, options):
    """Run without the name of the test: addresses depend on the environment's length."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTEST_CURRENT_TEST")
        return contigua.run(command, designs=designs, options=options)


@pytest.fixture(scope="module")
def traces(command, tmp_path_factory):
    """Recordings of the same program: all of it, units, and units behind what is skipped."""
    folder = tmp_path_factory.mktemp("traces")
    for name, options in ASKED.items():
        run_alike(command, [], replace(options, record=folder / name))
    return {name: folder / name for name in ASKED}


@pytest.fixture(scope="module")
def runs(traces, command):
    """Return reports of the program's own runs."""
    return {
        (name, detail): run_alike(command, DESIGNS, replace(asked, memory="256MiB", detail=detail))
        for name, asked in ASKED.items()
        for detail in DETAILS
        if name != "whole"
    }


@pytest.mark.parametrize("detail", DETAILS)
@pytest.mark.parametrize("name", ["units", "behind", "skipped"])
def test_a_recording_says_what_the_run_said(traces, runs, name, detail):
    options = RunOptions(memory="256MiB", detail=detail)
    same = replace(options, sample=ASKED[name].sample, skip=ASKED[name].skip)
    # The recording knows its plan; who asks for the same gets the same.
    for replayed in (options, same):
        results = contigua.run(trace=traces[name], designs=DESIGNS, options=replayed)
        assert results.to_json() == runs[name, detail].to_json()


def test_a_recording_of_units_is_small_and_knows_how_long_the_program_was(traces):
    sizes = {name: trace.stat().st_size for name, trace in traces.items()}
    assert max(sizes["units"], sizes["behind"]) < sizes["whole"]
    assert recorded(traces["units"]) == UNITS and recorded(traces["whole"]) is None
    options = RunOptions(memory="256MiB", detail="translation")
    lengths = {
        contigua.run(trace=traces[name], designs=["linux-4k"], options=options)[0].values[
            "executed"
        ]["instructions"]
        for name in ("whole", "units")
    }
    assert len(lengths) == 1


def test_fewer_units_are_those_of_a_whole_recording(traces):
    few = replace(UNITS, warm=20_000, most=20)
    options = RunOptions(memory="256MiB", detail="additive", sample=few)
    part, whole = (
        contigua.run(trace=traces[name], designs=["linux-4k"], options=options)[0].values
        for name in ("units", "whole")
    )
    del part["program"]["events"], whole["program"]["events"]
    del part["residency"], whole["residency"]
    assert part == whole and part["sample"]["units"] > 5


def test_seeds_share_the_units_of_a_recording(traces):
    options = RunOptions(memory="256MiB", detail="translation", age="scattered:3")
    one, two = (
        contigua.run(
            trace=traces["units"], designs=["linux-thp"], options=replace(options, seed=seed)
        )[0].values
        for seed in (1, 2)
    )
    assert one["sample"]["sampling"] == two["sample"]["sampling"]
    assert one["contiguity_before"] != two["contiguity_before"]


HELD = (
    "it holds what `contigua record --sample --sample-distance 200000 --sample-warm 50000 "
    "--sample-detail 10000 --sample-units 40` keeps, and this run needs more"
)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("units", ["--sample", "--sample-distance", "100k"], HELD),
        ("units", ["--sample", "--sample-distance", "600k"], HELD),
        ("units", ["--sample", "--sample-warm", "60k"], HELD),
        ("units", ["--sample", "--sample-detail", "20k"], HELD),
        ("units", ["--skip", "5"], HELD),
        ("units", ["--cores", "2"], "sampling takes one core so far, not 2"),
        ("units", ["--warmup", "5"], "leave --warmup out"),
        ("skipped", ["--skip", "2M"], "it holds what `contigua record --skip 3000000` keeps"),
    ],
)
def test_what_a_recording_does_not_hold_is_said(traces, name, arguments, expected, cli):
    trace = traces[name]
    ran = cli("run", "--trace", trace, "--memory", "256M", *arguments)
    assert ran.returncode == 1 and expected in ran.stderr and str(trace) in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--sample-units", "9"], "--sample-units is of sampled runs: add --sample"),
        (["--sample", "--sample-detail", "10"], "at least 1000 instructions of detail, not 10"),
        (["--sample", "--sample-distance", "2000"], "do not fit into a distance of 2000"),
    ],
)
def test_an_impossible_recording_is_refused(arguments, expected, cli, tmp_path):
    ran = cli("record", *arguments, "-o", tmp_path / "trace", "--", "true")
    assert ran.returncode != 0 and expected in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_command_records_units(command, cli, tmp_path):
    trace = tmp_path / "trace"
    units = ["--sample", "--sample-distance", "200k", "--sample-warm", "50k", "--seed", "3"]
    ran = cli("record", *units, "--skip", "1M", "-o", trace, "--", *command)
    assert ran.returncode == 0 and re.search(r"trace: [\d.]+ MB$", ran.stderr.strip())
    expected = replace(RECORDED, distance=200_000, warm=50_000)
    assert json.loads(_engine.trace_plan(trace)) == held(1_000_000, expected.spec(3))
    # What is left out is the recording's.
    ran = cli(
        "run", "--trace", trace, "--sample", "--sample-warm", "10k", "--memory", "256M",
        "--confidence", "0.9", "--designs", "linux-4k", "--format", "json",
    )  # fmt: skip
    (report,) = json.loads(ran.stdout)
    assert report["sample"]["sampling"]["warm"] == 10_000
    assert report["sample"]["sampling"]["distance"] == 200_000
    assert report["sample"]["confidence"] == 0.9 and report["config"]["skip"] == 1_000_000


def test_threads_and_processes_are_recorded(guest, tmp_path):
    """They differ between executions, but not between replays of one."""
    options = RunOptions(sample=replace(UNITS, distance=50_000, warm=10_000))
    script = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); done; (echo one & wait); ls / | sort"
    for number, command in enumerate(([guest("threads")], ["sh", "-c", script])):
        trace = tmp_path / str(number)
        recording = contigua.run(command, designs=[], options=replace(options, record=trace))
        assert recording.exit_code == 0
        one, again = (
            contigua.run(trace=trace, designs=DESIGNS, options=RunOptions(memory="256MiB"))
            for _ in range(2)
        )
        assert one.to_json() == again.to_json()
        assert one[0].values["sample"]["units"] > 1


def sweep_of(command, **sweep):
    return {
        "options": {"detail": "additive", "memory": "256MiB"},
        "workloads": {"gups": {"command": command}},
        "sweep": {"designs": DESIGNS, **sweep},
    }


def held(skip, sampling):
    return {"skip": skip, "sampling": sampling}


def trace_plans(folder):
    found = [json.loads(_engine.trace_plan(file)) for file in (folder / "traces").glob("*.trace")]
    return sorted(found, key=json.dumps)


def test_a_sweep_records_what_its_points_need(command, tmp_path):
    sample = {"distance": 200_000, "warm": 50_000, "most": 40}
    spec = sweep_of(command, seeds=[1, 2])
    spec["options"]["sample"] = sample
    contigua.sweep(spec, tmp_path / "one", workers=0)
    assert trace_plans(tmp_path / "one") == [held(0, UNITS.spec(1))]
    results = contigua.read_results(tmp_path / "one")
    # As the program's own run, though what executes it differs: the units are the same.
    seeds = {report.values["sample"]["sampling"]["seed"] for report in results}
    assert seeds == {UNITS.spec(1)["seed"]}
    assert len({report.values["sample"]["units"] for report in results}) == 1
    # A point that needs all has a recording of all.
    spec = sweep_of(command, options={"sample": [sample, False], "skip": [0, 1_000_000]})
    swept = contigua.sweep(spec, tmp_path / "both", workers=0)
    assert set(swept.to_pandas()["status"]) == {"done"}
    parts = [held(0, None), held(0, UNITS.spec(1)), held(1_000_000, UNITS.spec(1))]
    assert trace_plans(tmp_path / "both") == sorted(parts, key=json.dumps)


def test_a_sweep_replays_a_recording_of_units(traces, tmp_path):
    trace = traces["units"]
    spec = sweep_of([])
    spec["workloads"] = {"gups": {"trace": str(trace)}}
    contigua.sweep(spec, tmp_path / "out", workers=0)
    options = RunOptions(memory="256MiB", detail="additive")
    expected = contigua.run(trace=trace, designs=DESIGNS, options=options)
    assert contigua.read_results(tmp_path / "out").to_json() == expected.to_json()


def test_the_default_of_sweeps_is_that_of_recordings(command):
    spec = sweep_of(command)
    for sample, expected in ((True, RECORDED), ({"warm": 9}, replace(RECORDED, warm=9))):
        spec["options"]["sample"] = sample
        assert {point.options.sample for point in make_plan(spec).points} == {expected}
    spec["options"]["sample"] = {"offset": 1}
    with pytest.raises((SweepError, EngineError), match="unknown key"):
        make_plan(spec)


def events(folder):
    try:
        lines = (folder / "executions.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("}")]


def test_a_killed_worker_loses_nothing_of_a_sampled_sweep(command, tmp_path):
    file, folder = tmp_path / "spec.toml", tmp_path / "out"
    file.write_text(
        f"""
        [options]
        detail = "full"
        memory = "256MiB"
        sample = {{ distance = 200_000, warm = 50_000, most = 40 }}
        [workloads.gups]
        command = {json.dumps(command)}
        [sweep]
        designs = {json.dumps(DESIGNS)}
        seeds = [1, 2, 3, 4, 5, 6]
        """
    )
    sweep = [sys.executable, "-m", "contigua.cli", "sweep", file, "-o", folder, "--workers", "2"]
    client = subprocess.Popen(sweep, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + TIMEOUT
    while sum(event["event"] == "finished" for event in events(folder)) < 3:
        assert client.poll() is None and time.monotonic() < end, client.communicate()
        time.sleep(0.005)
    busy = [event for event in events(folder) if event["event"] == "started"][-1]["pid"]
    os.kill(busy, signal.SIGKILL)
    said, errors = client.communicate(timeout=TIMEOUT)
    assert client.returncode == 0, errors
    assert "12 points" in said and len(contigua.read_results(folder)) == 12
    assert trace_plans(folder) == [held(0, UNITS.spec(1))]
    told = Counter((event["event"], event["point"]) for event in events(folder))
    assert {count for (event, _), count in told.items() if event == "finished"} == {1}
    assert sum(count for (event, _), count in told.items() if event == "started") <= 13
    # Nothing is lost, and what ran twice says what it says alone.
    points = [path for path in (folder / "points").iterdir() if path.suffix == ".json"]
    reports = {path: json.loads(path.read_text())["report"] for path in points}
    for path in points:
        path.unlink()
    contigua.sweep(file, folder, workers=0)
    assert reports == {path: json.loads(path.read_text())["report"] for path in points}
