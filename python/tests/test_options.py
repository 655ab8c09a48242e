"""Do options reach the engine as they were given?"""

import os
import re
import sys
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

import pytest
from click import UsageError
from click.testing import CliRunner

import contigua
from contigua import Design, EngineError, RunOptions, _engine, run
from contigua import cli as cli_module
from contigua.commands.options import changed
from contigua.commands.parameters import CLOCK, DURATION, HOURS
from contigua.options import file_of
from contigua.presets import designs
from contigua.results import Results
from contigua.run_spec import document
from contigua.sampling import Sampling
from contigua.sizes import SizeError, count_of, seconds_of
from contigua_experiments.running import Cell


@pytest.fixture
def command(monkeypatch):
    """The command line, with options caught on their way to the engine."""

    def invoke(*arguments):
        caught = {}

        def run(program, **given):
            caught.update(given)
            return Results((), 0)

        monkeypatch.setattr("contigua.commands.run.run", run)
        ran = CliRunner().invoke(cli_module.cli, ["run", *map(str, arguments), "--", "true"])
        return ran, caught.get("options")

    return invoke


def test_defaults_are_one_core_and_nothing_moved(command):
    ran, options = command()
    assert ran.exit_code == 0, ran.output
    assert options == RunOptions()
    spec = options.spec("linux-4k", "fresh", "none")
    assert (spec["cores"], spec["migrations"], spec["timeline"]) == (1, 0.0, None)
    assert spec["detail"] == "full"


def test_cores_migrations_detail_and_timeline_reach_the_engine(command, tmp_path):
    file = tmp_path / "line.json"
    given = ("--cores", 8, "--migrations", 1000, "--detail", "additive", "--timeline", file)
    ran, options = command(*given)
    assert ran.exit_code == 0, ran.output
    (spec,) = options.specs(["linux-thp"])
    assert (spec["cores"], spec["migrations"], spec["timeline"]) == (8, 1000.0, file)
    assert spec["detail"] == "additive"


@pytest.mark.parametrize(
    "arguments",
    [("--cores", 0), ("--cores", 65), ("--cores", "two"), ("--migrations", -1), ("--detail", "x")],
)
def test_impossible_options_are_refused_by_name(command, arguments):
    ran, options = command(*arguments)
    assert ran.exit_code == 2 and options is None
    assert arguments[0] in ran.output


def test_a_timeline_that_cannot_be_written_is_refused_before_the_run(command):
    ran, options = command("--timeline", "/proc/no/such.json")
    assert ran.exit_code != 0 and options is None


def test_each_configuration_has_a_timeline_of_its_own():
    file = Path("out/line.json")
    options = RunOptions(
        timeline=file, age="fresh,scattered:3", holes="none,1:0.1:dispersed:remapped"
    )
    names = [str(spec["timeline"]) for spec in options.specs(["linux-4k", "linux-thp"])]
    assert len(set(names)) == 8
    assert all(re.fullmatch(r"out/line\.[\w.-]+\.json", name) for name in names)
    assert names[-1] == "out/line.scattered-3.1-0.1-dispersed-remapped.linux-thp.json"
    # What they have in common is not said.
    names = [
        str(spec["timeline"]) for spec in RunOptions(timeline=file).specs(["linux-4k", "linux-thp"])
    ]
    assert names == ["out/line.linux-4k.json", "out/line.linux-thp.json"]
    assert file_of(file, ["a/b c"]) == Path("out/line.a-b-c.json")


def test_any_key_of_designs_and_machine_is_set(command):
    ran, options = command(
        *("--set", "design.translation.thp.enabled=madvise", "--designs", "linux-thp"),
        *("--set", "machine.memory=2GiB", "--set", "machine.tlb.l1d.4k.entries=128"),
    )
    assert ran.exit_code == 0, ran.output
    assert options.machine.diff("skylake") == [
        ("memory", "2GiB", "8GiB"),
        ("tlb.l1d.4k.entries", 128, 64),
    ]
    assert options.machine.name == "skylake"


def test_a_key_of_a_scheme_goes_to_the_designs_that_have_it():
    settings = [("design.translation.thp.enabled", "madvise"), ("design.description", "changed")]
    (plain, huge), _ = changed(settings, ["linux-4k", "linux-thp"], "skylake")
    assert (plain.diff("linux-4k"), plain.description) == ([], "changed")
    assert huge.diff("linux-thp") == [("translation.thp.enabled", "madvise", "always")]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("memory=2G", "write design.KEY=VALUE or machine.KEY=VALUE"),
        ("design.memory", "write design.KEY=VALUE or machine.KEY=VALUE"),
        ("design.translation.nothing=1", "nothing"),
        ("design.translation.colt.run_log2=2", "none of linux-thp has translation.colt"),
        ("machine.memory=much", "much"),
    ],
)
def test_an_impossible_setting_is_refused_with_its_key(cli, setting, said):
    ran = cli("run", "--designs", "linux-thp", "--set", setting, "--", "/bin/true", check=False)
    assert ran.returncode in (1, 2) and said in ran.stderr, ran.stderr


def test_several_seeds_are_replicas_on_one_execution(cli, tmp_path):
    file = tmp_path / "reports.json"
    # Of the first program of a server of scattered memory, some pages are huge or not by the seed.
    run = ("run", "--seeds", "1,2,3", "--age", "scattered:0.05", "--designs", "linux-thp,linux-4k")
    ran = cli(*run, "--json", file, "--", sys.executable, "-c", "b = bytearray(60 << 20)")
    reports = Results.from_json(file.read_text())
    known = [(one.design, one.values["config"]["seed"]) for one in reports]
    assert known == [(name, seed) for name in ("linux-thp", "linux-4k") for seed in (1, 2, 3)]
    assert len({one.values["program"]["events"] for one in reports}) == 1
    mean, _ = reports.columns()
    cycles = [one.values["time"]["cycles"] for one in reports[:3]]
    half = 4.3027 * stdev(cycles) / sqrt(3)
    assert mean.summary()["cycles"] == round(fmean(cycles))
    assert mean.intervals()["cycles"] == pytest.approx(half)
    assert "means of 3 seeds, ± for 95 % confidence" in ran.stderr
    assert f"{fmean(cycles):,.0f} ± {100 * half / fmean(cycles):.1f} %" in ran.stderr
    assert ran.stderr.count("scattered:0.05") == 2


def test_seeds_share_the_units_of_a_sampled_run():
    options = RunOptions(seeds=(5, 6), sample=Sampling())
    specs = options.specs(["linux-4k"])
    assert [spec["seed"] for spec in specs] == [5, 6]
    assert specs[0]["sampling"] == specs[1]["sampling"]
    assert specs[0]["sampling"] == RunOptions(seed=5, sample=Sampling()).plan()["sampling"]


@pytest.mark.parametrize("seeds", ["1", "1,1", "1,x", "-1,2"])
def test_seeds_that_are_no_replicas_are_refused(command, seeds):
    ran, options = command("--seeds", seeds)
    assert ran.exit_code == 2 and options is None and "--seeds" in ran.output


def test_help_has_options_below_headings():
    text = CliRunner().invoke(cli_module.cli, ["run", "--help"]).output
    headings = ["Program", "Server", "What is simulated", "Sampling", "Output", "Other"]
    places = [text.index(f"\n{heading}:\n") for heading in headings]
    assert places == sorted(places)
    assert places[1] < text.index("--machine") < places[2] < text.index("--detail") < places[3]
    assert places[4] < text.index("--json PATH") < text.index("--record PATH") < places[5]


def test_help_says_what_each_option_is_for():
    text = " ".join(CliRunner().invoke(cli_module.cli, ["run", "--help"]).output.split())
    for words in ("--cores", "[default: 1; 1<=x<=64]", "Perfetto", "stalls that add up"):
        assert words in text
    assert "--instructions N[k|M|G]" in text and "100M, 1.5G or 1e9" in text
    # Units lie at random, and are nested under doubling.
    assert "one of each two neighbors is dropped" in text and "every other" not in text
    assert "fast-forward" in text and "go forward" not in text


def test_a_cell_says_what_differs_from_its_options():
    options = RunOptions(age="partial", cores=4, migrations=5.0)
    spec = Cell("linux-4k").spec(options)
    assert (spec["age"], spec["cores"], spec["migrations"]) == ("partial", 4, 5.0)
    spec = Cell("linux-4k", age="full", cores=2, migrations=0).spec(options)
    assert (spec["age"], spec["cores"], spec["migrations"]) == ("full", 2, 0)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("5000", 5000),
        ("1_000", 1000),
        ("20k", 20_000),
        ("100M", 100_000_000),
        ("1.5G", 1_500_000_000),
        ("2.50m", 2_500_000),
        ("1e9", 1_000_000_000),
        ("1.5E+3", 1500),
        ("18446744073709551615", 2**64 - 1),
    ],
)
def test_counts_have_decimal_suffixes(text, count):
    assert count_of(text) == count


@pytest.mark.parametrize(
    "text", ["", "k", "1T", "1Ki", "1.5", "1.0001k", "1e-6", "1e6k", "1e999", "many", "9" * 5000]
)
def test_a_count_must_be_a_whole_number(text):
    with pytest.raises(SizeError, match="no count; write"):
        count_of(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5),
        ("0.5", 0.5),
        ("200ms", 0.2),
        ("30s", 30),
        ("2m", 120),
        ("2min", 120),
        ("1.5 h", 5400),
    ],
)
def test_times_have_units_and_are_seconds_without(text, seconds):
    assert seconds_of(text) == pytest.approx(seconds)


def test_a_time_without_a_unit_has_the_options_own():
    clock, hours = CLOCK.convert, HOURS.convert
    assert [clock(f"{n}ns", None, None) for n in range(1, 2000)] == list(range(1, 2000))
    assert [clock(text, None, None) for text in ("2", "1us", "system")] == [2, 1000, 0]
    assert [hours(text, None, None) for text in ("2", "90m", "1d")] == [2, 1.5, 24]
    for option, unit in ((CLOCK, "nanoseconds"), (HOURS, "hours"), (DURATION, "seconds")):
        with pytest.raises(UsageError, match=rf"write, e.g., 5 \({unit}\)"):
            option.convert("soon", None, None)
    with pytest.raises(UsageError, match="from 1ns to 4294967295ns"):
        clock("5s", None, None)


@pytest.mark.parametrize("text", ["", "s", "-5", "5x", "1e3", "nan", "inf", "5 5", "9" * 5000])
def test_a_malformed_time_is_refused(text):
    with pytest.raises(SizeError, match="no time; write"):
        seconds_of(text)


def test_times_and_rates_take_suffixes(command):
    given = ("--for", "20ms", "--wall", "5", "--migrations", "1k", "--instructions", "1e9")
    ran, found = command(*given)
    assert ran.exit_code == 0, ran.output
    assert (found.simulated_seconds, found.seconds) == (0.02, 5.0)
    assert (found.migrations, found.instructions) == (1000.0, 10**9)
    for option in ("--for", "--wall", "--migrations"):
        ran, found = command(option, "soon")
        assert ran.exit_code == 2 and option in ran.output and found is None


def test_every_option_that_counts_instructions_takes_suffixes(command):
    options = ("skip", "warmup", "instructions", "sample-distance", "sample-warm", "sample-detail")
    given = [word for number, name in enumerate(options) for word in (f"--{name}", f"{number}k")]
    ran, found = command("--sample", *given)
    assert ran.exit_code == 0, ran.output
    assert (found.skip, found.warmup, found.instructions) == (0, 1000, 2000)
    sampling = found.sample
    assert (sampling.distance, sampling.warm, sampling.detail) == (3000, 4000, 5000)
    ran, _ = command("--skip", "20G20")
    assert ran.exit_code == 2 and "'20G20' is no count" in ran.output


def test_a_program_with_children_runs_under_each_design():
    # An event ring has at most 32 readers.
    every = designs.names()
    for first in range(0, len(every), 30):
        names = every[first : first + 30]
        results = run(
            ["sh", "-c", "/bin/true; /bin/true"],
            designs=names,
            options=RunOptions(memory="1GiB", detail="translation"),
        )
        assert all(report.values["complete"] for report in results)
        assert {report.values["program"]["processes"] for report in results} == {3}


def test_a_populated_host_has_no_faults_and_the_same_walks():
    nested = Design("nested-thp")
    populated = nested.with_({"host.populated": True}, name="populated")
    options = RunOptions(memory="256MiB", detail="additive")
    first, second = (
        one.values for one in run(["/bin/true"], designs=[nested, populated], options=options)
    )
    assert first["kernel"]["faults_host"] > 0 and second["kernel"]["faults_host"] == 0
    assert second["kernel"]["host_fault_cycles"] == 0
    less = first["time"]["breakdown"]["kernel"] - second["time"]["breakdown"]["kernel"]
    # What it maps is in no cache before.
    assert less == pytest.approx(first["kernel"]["host_fault_cycles"], rel=0.01)
    for key in ("nested_walks", "references", "walks_4k"):
        assert second["translation"][key] == first["translation"][key] > 0, key


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"color": 1}, "unknown field `color`"),
        ({"seed": -1}, "invalid value: integer `-1`"),
        ({"cores": 65}, "cores = 65 is out of range: 1 to 64"),
        ({"migrations": -1.0}, "migrations = -1 is out of range: 0 to 10^9"),
        ({"confidence": 1.0}, "confidence = 1 is out of range"),
        ({"goal": 2.0}, "goal = 2 is out of range"),
        ({"locality": True}, "locality needs a profile"),
        ({"detail": "none"}, "unknown variant `none`"),
        ({"memory": "much"}, "much"),
    ],
)
def test_the_engine_refuses_a_key_or_value_that_cannot_be(spec, said):
    whole = {**RunOptions().spec("linux-4k", "fresh", "none"), **spec}
    with pytest.raises(EngineError, match=re.escape(said)):
        _engine.resolve_run(document(whole))


def test_the_first_option_is_the_machine():
    assert RunOptions("zen-3", memory="1GiB").machine == "zen-3"


def test_names_of_files_that_are_no_utf_8_reach_the_engine(tmp_path):
    file = tmp_path / os.fsdecode(b"\xff.trace")
    contigua.run(["/bin/true"], designs=[], options=RunOptions(record=file))
    assert file.stat().st_size > 0
    (report,) = contigua.run(
        trace=file, designs=["linux-4k"], options=RunOptions(detail="translation")
    )
    assert report.summary()["complete"]


def test_arguments_that_are_no_utf_8_reach_the_program(tmp_path):
    file = tmp_path / os.fsdecode(b"\xfe")
    contigua.run(["/bin/touch", str(file)], designs=["linux-4k"])
    assert file.exists()


def test_keys_that_are_left_out_have_their_defaults():
    whole = RunOptions().spec("linux-4k", "fresh", "none")
    least = {key: whole[key] for key in ("design_name", "design", "machine_name", "machine")}
    assert _engine.resolve_run(document(least)) == _engine.resolve_run(document(whole))
