"""Does `contigua validate` compare what it should, and conclude only what it may?"""

import json
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from contigua import RunOptions
from contigua.cli import cli
from contigua.commands import validate as command
from contigua.measuring import Computer, Measured
from contigua.programs.program import WORKLOADS, Program
from contigua.validation import native as native_module
from contigua.validation.compare import (
    LOUD,
    Comparison,
    compare,
    designs,
    key_of,
    stored,
    summary,
)
from contigua.validation.native import (
    Native,
    ValidationError,
    check,
    compared,
    cpu_seconds,
    measure,
)
from contigua.validation.plot import scatter
from contigua.validation.programs import QUICK, WHOLE

pytestmark = pytest.mark.programs

GUPS = Program("gups", (str(WORKLOADS / "gups"), "--size", "1MiB", "--updates", "1000"))
OPTIONS = RunOptions(machine="skylake", memory="1G")


def native(small, huge, spread=0.01):
    """Times, and their ratio."""
    return Native(*(Measured(value, spread, 5) for value in (small, huge, small / huge)))


def comparison(small, huge, spread=0.01, **other):
    """One program that takes 2 s with 4 KB pages and 1 s with 2 MB pages, as it is predicted."""
    values = {"small": small, "huge": huge, "speedup": small / huge}
    made = Comparison("p", ("p",), 100, native(2.0, 1.0, spread), values, (0.5, 0.1), "fresh")
    return replace(made, **other)


def test_errors_are_of_the_measured():
    one = comparison(2.2, 1.0)
    assert one.error("small") == pytest.approx(0.1)
    assert one.error("huge") == 0
    assert one.error("speedup") == pytest.approx(0.1)


def test_a_summary_has_medians_and_the_worst_of_what_concludes():
    found = summary([comparison(2.0, 1.0), comparison(2.2, 1.0), comparison(1.0, 1.0),
                     comparison(9.0, 1.0, spread=0.06)])  # fmt: skip
    assert (found.programs, found.unsure) == (3, 1)
    assert found.speedup_median == pytest.approx(0.1)
    assert found.speedup_worst == pytest.approx(0.5)
    assert found.time_worst == pytest.approx(0.5)
    assert summary([comparison(2.0, 1.0, spread=0.06)]) is None


def test_comparisons_are_read_back(tmp_path):
    file = tmp_path / "one.json"
    one = comparison(2.2, 1.0)
    file.write_text(json.dumps({"schema": 1, **one.as_json()}))
    assert stored(file) == one
    for text in ("", "{}", "[1]", '{"schema": 1}', json.dumps({"schema": 2, **one.as_json()})):
        file.write_text(text)
        assert stored(file) is None, text
    assert stored(tmp_path / "none") is None


@pytest.mark.parametrize(("page", "host"), [(None, None), ("4k", "base"), ("2m", "thp")])
def test_designs_have_the_memory_of_the_computer(page, host):
    small, huge = (design.resolve() for design in designs(page, "madvise"))
    assert list(small["translation"]) == ["base"]
    assert huge["translation"]["thp"]["enabled"] == "madvise"
    for one in (small, huge):
        found = one.get("host")
        assert (list(found["translation"]) if found else None) == ([host] if host else None)


def test_a_name_is_of_all_that_a_comparison_depends_on():
    pair = designs(None, "madvise")
    name = key_of(GUPS, OPTIONS, pair)
    assert name == key_of(GUPS, OPTIONS, designs(None, "madvise"))
    others = (
        key_of(replace(GUPS, command=(*GUPS.command, "--no-verify")), OPTIONS, pair),
        key_of(GUPS, replace(OPTIONS, machine="zen-4"), pair),
        key_of(GUPS, OPTIONS, designs("4k", "madvise")),
        key_of(GUPS, replace(OPTIONS, age="partial"), pair),
        key_of(GUPS, replace(OPTIONS, memory="3G"), pair),
    )
    assert len({name, *others}) == 6


def test_the_default_programs_are_many_and_differ():
    assert len(WHOLE) >= 20
    assert len({one.name for one in WHOLE}) == len({one.command for one in WHOLE}) == len(WHOLE)
    assert len(QUICK) == 5
    assert not [one.missing() for one in (*WHOLE, *QUICK) if one.missing()]


SHOW = '"$0" chase --size 4M --huge --operations 1000 > "$1"'


def test_the_kernel_gives_huge_pages_to_one_side_only(tmp_path):
    if Computer.this().thp not in ("always", "madvise"):
        pytest.skip("transparent huge pages are off")
    seen = {}
    for huge in (False, True):
        file = tmp_path / str(huge)
        shell = ("/bin/sh", "-c", SHOW, str(WORKLOADS / "probe"), str(file))
        assert cpu_seconds(shell, huge=huge) > 0
        seen[huge] = int(file.read_text().split()[1])
    assert seen == {False: 0, True: 4096}
    # This process is as it was.
    assert "THP_enabled:\t1" in open("/proc/self/status").read()  # noqa: PTH123, SIM115


def test_runs_that_others_lengthen_do_not_count():
    quiet = compared([2.0] * 8, [1.0] * 8)
    loud = compared(
        [2.0, 3.1, 2.0, 3.3, 2.0, 2.0, 2.0, 3.0], [1.7, 1.0, 1.0, 1.0, 1.0, 1.8, 1.0, 1.9]
    )
    assert [loud.small.value, loud.huge.value] == [quiet.small.value, quiet.huge.value]
    assert loud.speedup == quiet.speedup
    # Where most runs are longer than the fastest, nobody knows which of them were disturbed.
    assert compared([2.0, 3.0, 3.1, 3.2], [1.0] * 4).speedup.spread > LOUD


def test_pairs_go_on_until_the_speedup_is_known(monkeypatch):
    times = iter([9.0] + [2.0, 1.0, 1.0, 2.0] * 100)
    monkeypatch.setattr(native_module, "cpu_seconds", lambda *_, **__: next(times))
    found = measure(("x",), seconds=0.0)
    assert found == Native(Measured(2.0, 0.0, 5), Measured(1.0, 0.0, 5), Measured(2.0, 0.0, 5))


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (("/nonexistent",), "No such file"),
        ((sys.executable, "-c", "raise SystemExit(3)"), "exited with status 3"),
        (("/bin/sh", "-c", "kill -9 $$"), "died of signal 9"),
    ],
)
def test_a_program_that_fails_natively_says_how(program, why):
    with pytest.raises(ValidationError, match=why):
        cpu_seconds(program, huge=True)


def test_a_computer_without_huge_pages_is_refused():
    with pytest.raises(ValidationError, match="transparent huge pages are off: as root, echo"):
        check(replace(Computer.this(), thp="never"))


def test_the_simulated_memory_is_in_pieces_where_this_computers_is():
    one = native(2.0, 1.0)
    ages = {count: replace(one, blocks=count).age for count in (12, 1024, 1025, 6144, None)}
    assert ages == {12: "fresh", 1024: "fresh", 1025: "partial", 6144: "partial", None: "partial"}


def test_pages_lie_in_blocks_or_are_not_shown(tmp_path, monkeypatch):
    for text, found in (("blocks 7", 7), ("blocks 0", None)):
        probe = tmp_path / "probe"
        probe.write_text(f"#!/bin/sh\necho {text}\n")
        probe.chmod(0o755)
        monkeypatch.setattr(native_module, "PROBE", probe)
        assert native_module.blocks() == found
    monkeypatch.setattr(native_module, "PROBE", tmp_path / "none")
    assert native_module.blocks() is None


@pytest.mark.parametrize(("count", "age"), [(12, "fresh"), (6000, "partial")])
def test_a_comparison_has_the_age_of_its_native_runs(tmp_path, monkeypatch, count, age):
    seen = []

    def simulated(program, folder, pair, options):
        seen.append(options.age)
        return 1, {"small": 2.0, "huge": 1.0, "speedup": 2.0}, (0.1, 0.0)

    monkeypatch.setattr("contigua.validation.compare.measure", lambda *_: native(2.0, 1.0))
    monkeypatch.setattr("contigua.validation.compare.blocks", lambda: count)
    monkeypatch.setattr("contigua.validation.compare.simulated", simulated)
    measured = replace(OPTIONS, age="measured")
    found = compare(GUPS, measured, designs(None, "madvise"), tmp_path / "gups.json")
    assert (found.age, seen) == (age, [age])
    assert stored(tmp_path / "gups.json") == found


def test_a_comparison_runs_both_sides_once(tmp_path, monkeypatch):
    monkeypatch.setattr("contigua.validation.compare.measure", lambda *_: native(2.0, 1.0))
    file = tmp_path / "gups.json"
    pair = designs(None, "madvise")
    found = compare(GUPS, OPTIONS, pair, file)
    assert found.instructions > 100_000
    assert 0 < found.predicted["huge"] < 1
    assert found.predicted["speedup"] == found.predicted["small"] / found.predicted["huge"]
    monkeypatch.setattr("contigua.validation.compare.measure", lambda *_: pytest.fail("ran"))
    assert compare(GUPS, OPTIONS, pair, file) == found


def test_memory_that_a_host_gives_costs_no_time(tmp_path, monkeypatch):
    monkeypatch.setattr("contigua.validation.compare.measure", lambda *_: native(2.0, 1.0))
    bare, guest = (
        compare(GUPS, OPTIONS, designs(page, "madvise"), tmp_path / f"{page}.json")
        for page in (None, "4k")
    )
    # A host's faults on the same pages would double the kernel's time.
    assert guest.predicted["small"] < 1.3 * bare.predicted["small"]


def test_the_command_writes_json_and_plot_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("contigua.validation.compare.measure", lambda *_: native(2.0, 1.0))
    options = ["validate", "--machine", "skylake", "--host-page", "none", "--age", "fresh"]
    options += ["-o", str(tmp_path / "out"), "--", *GUPS.command]
    done = CliRunner().invoke(cli, options, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "Concluded for 1 programs" in done.output
    made = tmp_path / "out"
    values = json.loads((made / "validation.json").read_text())
    assert values["schema"] == 1
    assert values["machine"] == "skylake"
    assert values["summary"]["programs"] == 1
    assert values["programs"][0]["native"]["small"]["value"] == 2.0
    assert (made / "validation.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("contigua.validation.compare.execute", lambda *_, **__: pytest.fail("ran"))
    assert CliRunner().invoke(cli, options, catch_exceptions=False).exit_code == 0
    assert CliRunner().invoke(cli, [*options[:1], "--stored", *options[1:]]).exit_code == 0
    options[options.index("skylake")] = "zen-4"
    missing = CliRunner().invoke(cli, [*options[:1], "--stored", *options[1:]])
    assert missing.exit_code == 1
    assert "not run yet" in missing.output


def test_measurements_that_vary_conclude_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "compare", lambda *_: comparison(2.0, 1.0, spread=0.2))
    options = ["validate", "--machine", "skylake", "--host-page", "none", "-o", str(tmp_path)]
    done = CliRunner().invoke(cli, [*options, "--", "p"])
    assert done.exit_code == 1
    assert "No conclusion" in done.output
    assert "varies" in done.output


def test_one_failure_does_not_keep_others_from_running(tmp_path, monkeypatch):
    def compared(program, *_):
        if program is QUICK[0]:
            raise ValidationError("it broke")
        return comparison(2.0, 1.0)

    monkeypatch.setattr(command, "compare", compared)
    options = ["validate", "--quick", "--machine", "skylake", "--host-page", "none"]
    done = CliRunner().invoke(cli, [*options, "-o", str(tmp_path)])
    assert done.exit_code == 1
    assert f"{QUICK[0].name}: it broke" in done.output
    values = json.loads((tmp_path / "validation.json").read_text())
    assert values["failures"] == {QUICK[0].name: "it broke"}
    assert values["summary"]["programs"] == 4


def test_the_plot_shows_every_program():
    figure = scatter([comparison(2.0, 1.0), comparison(3.0, 1.0), comparison(3.0, 1.0, 0.2)])
    speedups, times = figure.axes
    assert sum(len(one.get_offsets()) for one in speedups.collections[1:]) == 3
    assert sum(len(one.get_offsets()) for one in times.collections[1:]) == 6
