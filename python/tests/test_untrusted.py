"""Does input that somebody else chose or wrote give one clear error, and do nothing else?"""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console
from test_fleet_report import GIGABYTE, packed, report

import contigua
from conftest import takes_namespaces
from contigua import Design, EngineError, Results, RunOptions
from contigua.cli import cli
from contigua.errors import ContiguaError
from contigua.fleet_report import read_fleet, write_page
from contigua.printing import printable
from contigua.reports import ResultsError
from contigua.snapshots import Problem
from contigua.terminal import Table

FUZZER = Path(__file__).parents[2] / "fuzz" / "python_readers.py"
#: Seconds after which a command that waits for ever has failed.
TIMEOUT = 60


@contextlib.contextmanager
def no_hang():
    def ring(*_):
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(TIMEOUT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refused(*arguments):
    """Return the message of a command that must fail with one clear error."""
    with no_hang():
        ran = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert ran.exit_code != 0, ran.output
    if isinstance(ran.exception, SystemExit):
        return ran.output
    assert isinstance(ran.exception, ContiguaError | EngineError), repr(ran.exception)
    return str(ran.exception)


@pytest.fixture
def fifo(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


COMMANDS = {
    "design": ("designs", "show"),
    "designs diff": ("designs", "diff", "linux-thp"),
    "machine": ("machines", "show", "--resolved"),
    "profile": ("profiles", "show"),
    "spec": ("sweep",),
    "results": ("report",),
    "snapshot": ("age", "--snapshot"),
    "trace": ("run", "--trace"),
    "champsim": ("run", "--designs", "linux-thp", "--trace-format", "champsim", "--trace"),
    "program": ("run", "--"),
    "allocator": ("run", "--malloc"),
    "calibration": ("fleet", "simulate", "--servers", 1, "-o", "x.parquet", "--calibration"),
}


@pytest.mark.parametrize("what", [name for name in COMMANDS if name != "champsim"])
def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(what, fifo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rest = ("--", "/bin/true") if what == "allocator" else ()
    path = f"{fifo.parent}/./{fifo.name}"
    said = refused(*COMMANDS[what], path, *rest)
    assert "a pipe" in said or "no such library" in said or "no regular file" in said, said
    assert str(fifo.name) in said


@pytest.mark.parametrize("what", list(COMMANDS))
def test_a_device_in_the_place_of_a_file_is_refused_at_once(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rest = ("--", "/bin/true") if what == "allocator" else ()
    said = refused(*COMMANDS[what], "/dev/zero", *rest)
    assert "/dev/zero" in said


def test_a_question_to_a_pipe_is_refused_at_once(fifo):
    assert "a pipe" in refused("query", fifo, "from results")
    fifo.rename(fifo.with_suffix(".parquet"))
    assert "a pipe" in refused("query", fifo.with_suffix(".parquet"), "from results")


@pytest.mark.parametrize("what", ["design", "machine", "spec", "calibration", "results"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'description = "\xff"', "no UTF-8 at byte 15|damaged|no array"),
        (b"\xef\xbb\xbf\x00", "not valid TOML|no array"),
        (b"a = " + b"[" * 100_000, "not valid TOML|no array"),
        (b"a = " + b"9" * 10_000, "not valid TOML|no array"),
        (b"#" * (2 << 20), "longer than 1048576 bytes|no array"),
    ],
)
def test_damaged_text_is_one_clear_error(what, content, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "file.toml"
    file.write_bytes(content)
    said = refused(*COMMANDS[what], file)
    assert any(part in said for part in expected.split("|")), said


@pytest.mark.parametrize(
    "option",
    [
        ("--seed", "-1"),
        ("--skip", "-1"),
        ("--warmup", "-1"),
        ("--instructions", "-1"),
        ("--instructions", str(2**64)),
        ("--migrations", "nan"),
        ("--migrations", "inf"),
        ("--designs", ","),
    ],
)
def test_numbers_out_of_range_are_usage_errors(option):
    said = refused("run", *option, "--", "/bin/true")
    assert "Traceback" not in said
    assert any(word in said for word in ("range", "at least one", "migrations")), said


def test_a_sweep_over_numbers_out_of_range_is_one_clear_error(tmp_path):
    spec = {"workloads": {"x": {"command": ["/bin/true"]}}, "sweep": {"designs": "linux-thp"}}
    for key, value in (("seeds", [-1]), ("seeds", [2**64])):
        with pytest.raises((ContiguaError, EngineError), match="seed"):
            contigua.sweep(spec | {"sweep": {**spec["sweep"], key: value}}, tmp_path / "out")


@pytest.mark.parametrize("seconds", [-1, float("nan"), 1e300])
def test_a_time_that_is_none_is_an_error_in_python(seconds):
    with pytest.raises(EngineError, match="seconds"):
        contigua.run(["/bin/true"], options=RunOptions(seconds=seconds))


def test_a_text_is_no_allocator(tmp_path):
    file = tmp_path / "lib.so"
    file.write_text("no library" * 10)
    assert "no shared library" in refused("run", "--malloc", file, "--", "/bin/true")


def test_a_pipe_serves_one_design_only(fifo):
    arguments = ("--trace-format", "champsim", "--trace", fifo)
    assert "give one design" in refused("run", *arguments)


# What others' text does to terminals.

HOSTILE = "a[/x]\x1b]0;owned\x07\u202e\udc80"


def test_others_text_is_shown_and_not_obeyed():
    table = Table("name", HOSTILE, title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE, "[bold]", "x")
    console = Console(width=200, force_terminal=True)
    with console.capture() as capture:
        console.print(table)
    shown = capture.get()
    assert r"a[/x]\x1b]0;owned\x07\u202e\udc80" in shown and "[bold]" in shown
    assert "\x1b]" not in shown and "\x07" not in shown
    shown.encode()


def test_names_of_designs_are_no_markup(tmp_path):
    design = Design("linux-thp").with_({}, name="x[/x]\x1b[2J")
    options = RunOptions(memory="64MiB", detail="translation")
    results = contigua.run(["/bin/true"], designs=[design], options=options)
    file = tmp_path / "run.json"
    file.write_text(results.to_json())
    console = Console(width=200)
    with console.capture() as capture:
        from contigua.table import terminal_table

        console.print(terminal_table(results))
    assert r"x[/x]\x1b[2J" in capture.get()
    asked = CliRunner().invoke(cli, ["query", str(file), "select design from results"])
    assert r"x[/x]\x1b[2J" in asked.output, asked.output


def test_headlines_of_a_report_do_not_speak_to_the_terminal(results_text, tmp_path):
    file = tmp_path / "run.json"
    file.write_text(results_text.replace("/bin/true", "/bin/\\u001b]0;owned\\u0007"))
    ran = CliRunner().invoke(cli, ["report", str(file), "-o", str(tmp_path / "page.html")])
    assert ran.exit_code == 0, ran.exception
    assert "\x1b]" not in ran.output and "\x07" not in ran.output


def test_errors_do_not_speak_to_the_terminal(cli, tmp_path):
    ran = cli("designs", "show", tmp_path / "\x1b]0;owned\x07.toml")
    assert ran.returncode == 1 and "\x1b" not in ran.stderr and r"\x1b]0;owned" in ran.stderr


# Snapshots of fleets.


def corrupt(key, value):
    def change(whole):
        at = whole
        *way, last = key.split(".")
        for part in way:
            at = at[int(part) if part.isdigit() else part]
        at[last] = value

    return change


ABSURD = {
    "more than 64 bits": corrupt("machine.memory_bytes", 10**30),
    "nothing": corrupt("machine.memory_bytes", None),
    "negative": corrupt("frames.classes.slab", -5),
    "too large when counted in bytes": corrupt("frames.classes.free", 2**62),
    "infinite": corrupt("machine.uptime_seconds", float("inf")),
    "not a number": corrupt("frames.sizes.0.free_share_of_free.certain", float("nan")),
    "no number": corrupt("frames.pins_held", "many"),
    "a truth": corrupt("frames.pins_held", True),
    "another list": corrupt("frames.sizes", []),
    "no object": corrupt("machine", 7),
}


def test_an_absurd_snapshot_is_skipped_and_counted_and_the_others_are_not(tmp_path, fifo):
    folder = tmp_path / "fleet"
    folder.mkdir()
    (folder / "good").write_bytes(packed(report(0)))
    for number, change in enumerate(ABSURD.values()):
        whole = report(number + 1)
        change(whole)
        (folder / f"bad{number}").write_bytes(packed(whole))
    fifo.rename(folder / "pipe")
    with no_hang():
        fleet = read_fleet([folder])
    assert [row["host"] for row in fleet.rows] == ["host0"]
    assert fleet.skipped == {Problem.DAMAGED: len(ABSURD), Problem.UNREADABLE: 1}
    write_page(fleet, tmp_path / "page.html")


def test_names_that_are_no_text_are_shown_and_keep_nothing_back(tmp_path):
    whole = report(0, free=2 * GIGABYTE)
    whole["machine"]["host"] = "\udc80\x1b[2J<script>"
    (tmp_path / os.fsdecode(b"name\xff\x1b")).write_bytes(packed(whole))
    page, table = tmp_path / "out.html", tmp_path / "out.parquet"
    arguments = ["fleet", "report", tmp_path, "-o", page, "--parquet", table]
    ran = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert ran.exit_code == 0, ran.exception
    import pyarrow.parquet

    (row,) = pyarrow.parquet.read_table(table).to_pylist()
    assert row["host"] == r"\udc80\x1b[2J<script>" and row["file"].endswith(r"name\udcff\x1b")


# Files of results.


@pytest.fixture(scope="module")
def results_text():
    options = RunOptions(memory="64MiB", detail="translation")
    return contigua.run(["/bin/true"], designs=["linux-thp"], options=options).to_json()


@pytest.mark.parametrize("number", ["1e999", "NaN", "-Infinity", "9" * 5000, "9" * 30])
def test_numbers_that_are_none_are_refused(results_text, number):
    text = results_text.replace('"instructions": ', f'"instructions": {number}, "x": ', 1)
    with pytest.raises(ResultsError, match="damaged"):
        Results.from_json(text)


def test_nested_without_end_is_refused():
    with pytest.raises(ResultsError, match="damaged"):
        Results.from_json("[" + "[" * 200_000 + "]" * 200_001)


@pytest.mark.parametrize("target", ["fleet_snapshot", "results"])
def test_a_sample_of_what_is_fuzzed_is_refused_or_read(target, capsys, monkeypatch):
    spec = importlib.util.spec_from_file_location("python_readers", FUZZER)
    fuzzer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fuzzer)
    fuzzer.fuzz(target, 300, 1)
    assert "300 inputs" in capsys.readouterr().out


def test_printable_keeps_what_can_be_seen():
    assert printable("Größe 日本 'x'") == "Größe 日本 'x'"
    assert printable("a\nb", "\n") == "a\nb"
    assert printable("a\nb") == r"a\nb"
    assert printable(str(Path("x"))) == "x"


@takes_namespaces
def test_more_memory_than_this_computer_can_keep_account_of_is_refused(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 2000 kB\nMemAvailable: 1000 kB\n")
    command = [sys.executable, "-m", "contigua.cli", "run", "--memory", "64G", "--", "true"]
    mounted = f'mount --bind {meminfo} /proc/meminfo && exec "$@"'
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounted, "sh", *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert ran.returncode == 1
    assert "64GiB of memory: simulating it takes 256MiB" in ran.stderr
    assert "give less with --memory" in ran.stderr
