"""Are results written whole or not at all, each by itself, and never in a device's place?"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from test_fleet_report import packed, report

import contigua
from contigua import EngineError, RunOptions, plot
from contigua.cli import cli as command_line
from contigua.files import FileError, Outputs, check_writable, open_log, write_whole, writing
from contigua.measuring import Computer
from contigua.options import file_of
from contigua.runner import OutputsError
from test_machines import rounds_of

pytestmark = pytest.mark.programs

TRANSLATION = RunOptions(detail="translation", memory="64MiB")
SMALL = ("--memory", "64M", "--hours", "0.01")


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """A short trace."""
    path = tmp_path_factory.mktemp("trace") / "true.trace"
    contigua.run(["/bin/true"], designs=[], options=RunOptions(record=path))
    return path


@pytest.fixture(autouse=True)
def computer(monkeypatch):
    """A computer whose measurements are there at once."""
    monkeypatch.setattr("contigua.commands.measure.measure", lambda *_: rounds_of(Computer.this()))


def device(path: Path, minor: int) -> Path:
    """Make a node for /dev/null (3) or /dev/full (7), or a link to it for those who may not."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
        path.open("wb").close()
    except PermissionError:
        path.unlink(missing_ok=True)
        path.symlink_to({3: "/dev/null", 7: "/dev/full"}[minor])
    return path


def commands(folder: Path, trace: Path) -> dict[str, list[object]]:
    """Return a command for each option that takes an output file; `OUT` stands for that."""
    results = folder / "results.json"
    write_whole(results, contigua.run(trace=trace, options=TRANSLATION).to_json())
    snapshots = folder / "snapshots"
    snapshots.mkdir()
    (snapshots / "one.snapshot").write_bytes(packed(report()))
    run = ["run", "--detail", "translation", "--memory", "64M", "--designs", "linux-4k"]
    replay = [*run, "--trace", trace]
    profile = ["profile", *run[1:]]
    fleet = ["fleet", "report", snapshots]
    other = folder / "other"
    query = ["query", results, "select design from results"]
    return {
        "run --json": [*replay, "--json", "OUT"],
        "run --record": [*run, "--record", "OUT", "--", "/bin/true"],
        "run --timeline": [*run[:1], *run[3:], "--timeline", "OUT", "--trace", trace],
        "run --smaps": [*run, "--smaps", "OUT", "--", "/bin/true"],
        **{
            f"profile --{option}": [*profile, f"--{option}", "OUT", "--", "/bin/true"]
            for option in ("html", "markdown", "perfetto", "pprof", "save", "speedscope")
        },
        "profile --advice": [
            *("profile", "--detail", "additive", "--memory", "64M", "--advice", "OUT", "--"),
            "/bin/true",
        ],
        "record --output": ["record", "-o", "OUT", "--", "/bin/true"],
        "age --png": ["age", *SMALL, "--png", "OUT"],
        "age --html": ["age", *SMALL, "--html", "OUT"],
        "age --json": ["age", *SMALL, "--json", "OUT"],
        "age --save": ["age", *SMALL, "--save", "OUT"],
        "fleet simulate --output": ["fleet", "simulate", "--servers", "1", *SMALL, "-o", "OUT"],
        "fleet report --output": [*fleet, "-o", "OUT"],
        "fleet report --parquet": [*fleet, "-o", other, "--parquet", "OUT"],
        "machines measure --output": ["machines", "measure", "-o", "OUT"],
        "machines measure --json": ["machines", "measure", "--json", "OUT"],
        "report --output": ["report", results, "-o", "OUT"],
        "query --output": [*query, "--format", "csv", "-o", "OUT"],
        "query --output, Parquet": [*query, "--format", "parquet", "-o", "OUT"],
    }


#: Options that name a folder, or how names begin; accounts of experiments take hours.
APART = {
    "run --checkpoint",
    "simpoints --output",
    "sweep --output",
    "experiment run --output",
    "experiment run --write",
    "experiment break --output",
    "experiment break --write",
    "validate --output",
}
OPTIONS = [
    "run --json",
    "run --record",
    "run --timeline",
    "run --smaps",
    "profile --advice",
    "profile --html",
    "profile --markdown",
    "profile --perfetto",
    "profile --pprof",
    "profile --save",
    "profile --speedscope",
    "record --output",
    "age --png",
    "age --html",
    "age --json",
    "age --save",
    "fleet simulate --output",
    "fleet report --output",
    "fleet report --parquet",
    "machines measure --output",
    "machines measure --json",
    "report --output",
    "query --output",
    "query --output, Parquet",
]


def output_options(command: click.Command, name: str = "") -> set[str]:
    """Find every option that takes a path which need not exist, but for those that are read."""
    if isinstance(command, click.Group):
        found, context = set(), click.Context(command)
        for own in command.list_commands(context):
            inner = command.get_command(context, own)
            found |= output_options(inner, f"{name} {own}".strip())
        return found
    read = {
        "--against",
        "--trace",
        "--snapshot",
        "--calibration",
        "--simpoints",
        "--weights",
        "--from",
        "--root",
    }
    return {
        f"{name} {max(option.opts, key=len)}"
        for option in command.params
        if isinstance(option, click.Option)
        and isinstance(option.type, click.Path)
        and not set(option.opts) & read
    }


def test_every_option_that_writes_is_tested_here():
    tested = {name.partition(",")[0] for name in OPTIONS}
    assert output_options(command_line) == tested | APART


def invoke(arguments: list[object], out: Path, cwd: Path) -> int:
    given = [str(out) if one == "OUT" else str(one) for one in arguments]
    before = Path.cwd()
    os.chdir(cwd)
    try:
        ran = CliRunner().invoke(command_line, given)
    finally:
        os.chdir(before)
    if ran.exception is not None and not isinstance(
        ran.exception, SystemExit | FileError | EngineError
    ):
        raise ran.exception
    return ran.exit_code


@pytest.mark.parametrize("name", OPTIONS)
def test_an_output_goes_through_devices_and_links_and_says_when_there_is_no_space(
    name, trace, tmp_path
):
    arguments = commands(tmp_path, trace)[name]
    for name, minor, status in (("null", 3, 0), ("full", 7, 1)):
        node, link = device(tmp_path / name, minor), tmp_path / "link"
        link.symlink_to(node)
        assert invoke(arguments, link, tmp_path) == status
        assert link.is_symlink() and stat.S_ISCHR(node.stat().st_mode)
        link.unlink()
    assert not [file for file in tmp_path.rglob(".*") if file.is_file()]


def test_a_fifo_gets_what_a_file_would(trace, tmp_path):
    for name in ("run --json", "age --save", "query --output, Parquet"):
        folder = tmp_path / name.split()[0]
        folder.mkdir()
        arguments = commands(folder, trace)[name]
        file, fifo = folder / "file", folder / "fifo"
        os.mkfifo(fifo)
        assert invoke(arguments, file, tmp_path) == 0
        got = []
        reader = threading.Thread(target=lambda fifo=fifo, got=got: got.append(fifo.read_bytes()))
        reader.start()
        assert invoke(arguments, fifo, tmp_path) == 0
        reader.join()
        assert got == [file.read_bytes()]
        assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    file.chmod(0o640)
    with pytest.raises(ZeroDivisionError), writing(file) as half:
        half.write(b"half")
        raise ZeroDivisionError
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
    write_whole(file, "new")
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(FileError, match="no/file"):
        write_whole(tmp_path / "no" / "file", "x")
    for refused in (tmp_path, tmp_path / "no" / "file"):
        with pytest.raises(FileError, match="give a file in a folder that exists"):
            check_writable(refused)


def test_a_timeline_for_each_design_does_not_litter_the_folder_of_devices(tmp_path):
    null = device(tmp_path / "null", 3)
    assert file_of(null, ["linux-4k"]) == null
    assert file_of(Path("-"), ["linux-4k"]) == Path("-")


def test_one_output_that_cannot_be_written_costs_no_other(trace, tmp_path):
    full, good = device(tmp_path / "full", 7), tmp_path / "good"
    age = ["age", *SMALL]
    for first, second in (("--json", "--save"), ("--save", "--json"), ("--png", "--html")):
        ran = CliRunner().invoke(
            command_line, [*age, first, str(full), second, str(good)], catch_exceptions=False
        )
        assert ran.exit_code == 1
        assert "At the end" in ran.output, "the table"
        assert f"{full}: No space left on device" in ran.output
        assert good.stat().st_size > 0
        good.unlink()


def test_a_recording_and_a_timeline_that_are_lost_cost_no_report(trace, tmp_path):
    full, good, fifo = device(tmp_path / "full", 7), tmp_path / "good", tmp_path / "fifo"
    os.mkfifo(fifo)

    def read_the_beginning():
        with fifo.open("rb") as file:
            file.read(1)

    reader = threading.Thread(target=read_the_beginning)
    reader.start()
    options = RunOptions(memory="64MiB", record=fifo, timeline=full)
    with pytest.raises(OutputsError) as caught:
        contigua.run(
            ["sleep", "0.3"],
            designs=["linux-4k"],
            options=options,
            progress=lambda state: reader.join() if state else None,
        )
    assert caught.value.failures == [
        f"{full}: No space left on device (os error 28)",
        f"{fifo}: Broken pipe (os error 32)",
    ]
    assert caught.value.results[0].values["complete"]
    arguments = ["--memory", "64M", "--designs", "linux-4k", "--timeline", full, "--json", good]
    ran = CliRunner().invoke(command_line, ["run", *map(str, arguments), "--trace", str(trace)])
    assert ran.exit_code == 1 and "instructions" in ran.output
    assert json.loads(good.read_text())[0]["complete"]


def test_the_exit_status_says_that_an_output_is_lost(capsys):
    outputs = Outputs()
    assert outputs.status(3) == 3
    with outputs.each():
        raise FileError("a: no")
    with outputs.each():
        raise OSError(28, "No space left on device", "b")
    assert capsys.readouterr().err == "contigua: a: no\ncontigua: b: No space left on device\n"
    assert [outputs.status(status) for status in (0, 3, 130)] == [1, 1, 130]


def once(state):
    """Interrupt a run as soon as it has begun."""
    if state:
        raise KeyboardInterrupt


def test_an_interrupted_replay_says_that_it_is_incomplete(tmp_path):
    trace = tmp_path / "loop.trace"
    loop = "i=0; while [ $i -lt 10000 ]; do i=$((i+1)); done"
    recorded = RunOptions(detail="translation", record=trace)
    whole = contigua.run(["sh", "-c", loop], designs=["linux-4k"], options=recorded)
    assert whole[0].values["complete"] and whole[0].values["ended"] == "program"
    # Two results of one design would count as one where they are equal.
    cut = contigua.run(trace=trace, designs=["linux-4k", "linux-thp"], progress=once)
    assert cut.exit_code == 130
    assert {(one.values["complete"], one.values["ended"]) for one in cut} == {
        (False, "interrupted")
    }
    done = cut[0].summary()["instructions"]
    assert done < whole[0].summary()["instructions"]
    frame = cut.to_pandas()
    assert not frame["complete"].any() and set(frame["ended"]) == {"interrupted"}
    file = tmp_path / "cut.json"
    file.write_text(cut.to_json())
    page = tmp_path / "page.html"
    written = cut.report(page)
    said = "was interrupted: incomplete, "
    assert said in written.headlines[0] and said in page.read_text()
    table = CliRunner().invoke(
        command_line, ["query", str(file), "select complete, ended from results", "--format", "csv"]
    )
    assert table.output.splitlines()[1] == 'false,"interrupted"'
    assert "interrupted" in cut[0]._repr_html_()


def test_an_interrupted_program_says_so_and_a_limit_is_no_interruption():
    cut = contigua.run(["sleep", "60"], designs=["linux-4k"], options=TRANSLATION, progress=once)
    assert cut.exit_code == 130
    assert (cut[0].values["complete"], cut[0].values["ended"]) == (False, "interrupted")
    for options, ended in (({"seconds": 0.1}, "time"), ({"instructions": 1000}, "instructions")):
        limited = RunOptions(detail="translation", memory="64MiB", **options)
        stopped = contigua.run(["sleep", "60"], designs=["linux-4k"], options=limited)
        assert stopped.exit_code == 0
        assert (stopped[0].values["complete"], stopped[0].values["ended"]) == (True, ended)


@pytest.mark.parametrize(
    ("redirection", "status", "message"),
    [
        (">/dev/full", 1, "contigua: standard output: No space left on device\n"),
        (">&-", 1, "contigua: standard output: Bad file descriptor\n"),
        ("2>/dev/full", 0, ""),
        ("2>&-", 0, ""),
        ("<&- >&- 2>&-", 1, ""),
    ],
)
def test_standard_streams_that_are_full_or_closed_cost_nothing_else(
    redirection, status, message, trace, tmp_path
):
    file = tmp_path / "report.json"
    line = f'exec "$@" {redirection}'
    arguments = ["run", "--trace", trace, "--detail", "translation", "--json", file]
    command = [sys.executable, "-m", "contigua.cli", *arguments]
    ran = subprocess.run(
        ["sh", "-c", line, "sh", *command], capture_output=True, text=True, timeout=120
    )
    assert (ran.returncode, ran.stderr) == (status, message)
    assert json.loads(file.read_text())[0]["complete"]


def test_standard_output_is_a_dash_and_has_nothing_else_on_it(trace, cli):
    ran = cli("run", "--trace", trace, "--detail", "translation", "--json", "-")
    assert json.loads(ran.stdout)[0]["complete"]
    assert "instructions" in ran.stderr


def test_an_experiment_shows_its_table_before_a_file_is_lost(monkeypatch, tmp_path):
    from contigua_experiments import command as experiment
    from contigua_experiments import find
    from contigua_experiments.base import Outcome, Result

    definition = find("tlb-coverage")
    result = Result(definition, "quick", {}, Outcome({}, lambda _: None))
    monkeypatch.setattr(experiment, "compute", lambda *_: result)
    (tmp_path / "figures.json").mkdir()
    ran = CliRunner().invoke(command_line, ["experiment", "tlb-coverage", "-o", str(tmp_path)])
    assert ran.exit_code == 1
    assert definition.title in ran.output
    assert "figures.json: Is a directory" in ran.output
    assert (tmp_path / "index.html").read_text().rstrip().endswith("</html>")


def test_files_of_a_report_are_written_each_by_itself(trace, tmp_path):
    results = tmp_path / "results.json"
    results.write_text(contigua.run(trace=trace, options=TRANSLATION).to_json())
    lost = tmp_path / "report" / "contiguity.csv"
    lost.mkdir(parents=True)
    arguments = ["report", str(results), "--format", "csv", "-o", str(lost.parent)]
    ran = CliRunner().invoke(command_line, arguments)
    assert ran.exit_code == 1
    assert f"contigua: {lost}: Is a directory\n" in ran.output
    assert "Times were not simulated" in ran.output, "the headlines"
    assert len([file for file in lost.parent.iterdir() if file.is_file()]) > 1


def test_a_figure_is_saved_whole_and_through_links(trace, tmp_path):
    figure = plot.coverage(contigua.run(trace=trace, options=TRANSLATION))
    link, target = tmp_path / "link.pdf", tmp_path / "target"
    link.symlink_to(target)
    figure.savefig(link)
    assert link.is_symlink() and target.read_bytes().startswith(b"%PDF")
    figure.savefig(tmp_path / "plain")
    assert (tmp_path / "plain.png").read_bytes().startswith(b"\x89PNG")
    full = device(tmp_path / "full", 7)
    with pytest.raises(FileError, match="full: No space left"):
        figure.savefig(full, format="png")
    assert stat.S_ISCHR(full.stat().st_mode)


@pytest.mark.parametrize("planted", ["link", "fifo"])
def test_a_log_is_a_file_of_ours_or_an_error(planted, tmp_path):
    victim, log = tmp_path / "victim", tmp_path / "log"
    victim.write_text("precious\n")
    if planted == "link":
        log.symlink_to(victim)
    else:
        os.mkfifo(log)
    with pytest.raises(OSError, match=r"regular file|symbolic links"):
        open_log(log)
    assert victim.read_text() == "precious\n"
    log.unlink()
    for line in (b"one\n", b"two\n"):
        with open_log(log) as file:
            file.write(line)
    assert log.read_bytes() == b"one\ntwo\n"
