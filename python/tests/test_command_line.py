"""Does the command line do what people expect of one?"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from itertools import pairwise
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

import contigua
from contigua.cli import cli as root
from contigua.commands import shell
from contigua.commands.options import ends_after
from contigua.presets import designs, machines, profiles
from contigua.progress import RunLine
from contigua.terminal import Table
from contigua_experiments import EXPERIMENTS, find

SMALL = ("--memory", "256M", "--detail", "translation")
COLOR = re.compile(r"\x1b\[[0-9;]*[34][0-7][0-9;]*m")


def leaves(group=root, path=()):
    """Every command, with the words that call it."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


def on_terminal(*arguments, columns=80, **environment):
    """Return a command's output on a terminal."""
    child, terminal = pty.fork()
    size = struct.pack("HHHH", 50, columns, 0, 0)
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, size)
        os.environ.pop("COLUMNS", None)
        os.environ.update({"TERM": "xterm-256color", **environment})
        command = [sys.executable, "-m", "contigua.cli", *arguments]
        os.execv(sys.executable, command)
    shown = b""
    while True:
        try:
            read = os.read(terminal, 1 << 16)
        except OSError:
            break
        if not read:
            break
        shown += read
    os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return shown.decode().replace("\r\n", "\n"), status


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.parametrize("path", [path for path, _ in leaves()], ids=" ".join)
def test_every_command_has_short_help_and_names_the_nearest_option(path):
    shown = CliRunner().invoke(root, [*path, "-h"])
    assert shown.exit_code == 0 and shown.output.startswith("Usage: ")
    command = dict(leaves())[path]
    long = [name for param in command.params for name in param.opts if len(name) > 4]
    long = [name for name in long if name.startswith("--")]
    for option in long[:1]:
        wrong = option[:-2] + option[-1] + option[-2]
        if wrong in long or wrong == option:
            continue
        refused = CliRunner().invoke(root, [*path, wrong, "--", "true"])
        assert refused.exit_code == 2
        assert f"No such option '{wrong}'" in refused.output and option in refused.output


def test_short_version():
    shown = CliRunner().invoke(root, ["-V"])
    assert shown.exit_code == 0 and contigua.__version__ in shown.output
    assert shown.output == CliRunner().invoke(root, ["--version"]).output


def test_options_of_the_program_are_its_own(cli):
    done = cli("run", *SMALL, "--", "/bin/echo", "--designs", "-h")
    assert (done.returncode, done.stdout) == (0, "--designs -h\n")
    done = cli("run", *SMALL, "/bin/echo", "-h")
    assert (done.returncode, done.stdout) == (0, "-h\n")


def test_json_goes_to_standard_output_alone(cli):
    done = cli("run", *SMALL, "--json", "-", "--", "/bin/echo", "hello")
    assert done.returncode == 0
    assert [report["config"]["design_name"] for report in json.loads(done.stdout)] == [
        "linux-4k",
        "linux-thp",
    ]
    assert "hello\n" in done.stderr and "page faults" in done.stderr
    done = cli("age", "--memory", "256M", "--hours", "1m", "--json", "-")
    assert done.returncode == 0 and json.loads(done.stdout)
    assert "At the end" in done.stderr


def test_two_outputs_cannot_both_be_standard_output(cli):
    done = cli("run", *SMALL, "--json", "-", "--timeline", "-", "--", "true")
    assert done.returncode == 2 and "only one output" in done.stderr


@pytest.mark.parametrize("command", [("run",), ("record", "-o", "t"), ("simpoints", "-o", "t")])
def test_a_program_that_cannot_run_has_the_status_of_a_shell(cli, tmp_path, command):
    if command[0] == "simpoints":
        pytest.importorskip("sklearn", reason="simpoints needs scikit-learn")
    file = tmp_path / "file"
    file.write_text("no program")
    statuses = {}
    for name, program in (("missing", "no-such-program"), ("plain", file)):
        done = cli(*command, "--", program, cwd=tmp_path)
        assert done.stderr.startswith("contigua: ") and done.stderr.count("\n") == 1
        statuses[name] = done.returncode
    file.chmod(0o755)
    statuses["format"] = cli(*command, "--", file, cwd=tmp_path).returncode
    assert statuses == {"missing": 127, "plain": 126, "format": 126}


def test_output_fits_a_terminal_of_80_columns_and_every_design_is_there():
    designs = "linux-4k,linux-thp,colt,perforated,gtsm"
    ages = "fresh,scattered:7"
    arguments = ("run", *SMALL, "--designs", designs, "--age", ages, "--", "/bin/true")
    shown, status = on_terminal(*arguments)
    lines = plain(shown).splitlines()
    assert status == 0 and max(map(len, lines)) <= 80 and "…" not in shown
    for design in designs.split(","):
        assert sum(design in line for line in lines if line.startswith("┃")) == 2
    assert "scattered:7" in shown and "linux-4k" in shown
    done = subprocess.run(
        [sys.executable, "-m", "contigua.cli", *arguments], capture_output=True, text=True
    )
    heads = [line for line in done.stderr.splitlines() if line.startswith("┃")]
    assert heads[0].count("linux-4k") == 2, "a pipe gets all in one line"


@pytest.mark.parametrize(
    "arguments",
    [
        ("experiment", "list"),
        ("experiment", "list", "--figures"),
        ("experiment", "show", "contiguitas-fleet"),
        ("designs", "list"),
        ("designs", "diff", "linux-thp", "perforated"),
        ("age", "--memory", "256M", "--hours", "1m", "--designs", "linux-thp,contiguitas-thp"),
    ],
    ids=" ".join,
)
def test_lists_and_tables_fit_80_columns_without_cutting_names(arguments):
    shown, status = on_terminal(*arguments)
    lines = plain(shown).splitlines()
    assert status == 0 and max(map(len, lines)) <= 80 and "…" not in shown


def test_the_list_of_experiments_has_a_line_for_each_name(cli):
    lines = cli("experiment", "list").stdout.splitlines()
    for name in EXPERIMENTS:
        assert any(line.split()[:1] == [name] and find(name).title in line for line in lines)
    said = cli("experiment", "show", "contiguitas-fleet").stdout
    one = find("contiguitas-fleet")
    assert one.needs in said and one.durations["full"] in said and "Figure 4" in said


def test_no_color_means_none():
    arguments = ("designs", "show", "linux-thp")
    assert COLOR.search(on_terminal(*arguments)[0])
    assert not COLOR.search(on_terminal(*arguments, NO_COLOR="1")[0])


@pytest.mark.parametrize(
    "collection", [designs, machines, profiles], ids=lambda collection: collection.kind
)
def test_a_preset_that_is_shown_to_a_file_is_the_preset(collection):
    for preset in collection:
        shown = CliRunner().invoke(root, [f"{collection.kind}s", "show", preset.name])
        assert shown.output == preset.text


def test_a_table_is_split_by_columns_and_loses_nothing():
    heads = ["", *(f"column {number}" for number in range(9))]
    table = Table(*heads, title="title")
    for row in range(3):
        table.add_row(f"row {row}", *(f"{row}.{column}" for column in range(9)))
    parts = table.fitting(40)
    assert [part.title is None for part in parts] == [False] + [True] * (len(parts) - 1)
    columns = [str(column.header) for part in parts for column in part.columns[1:]]
    assert columns == heads[1:]
    assert all(str(part.columns[0].header) == "" for part in parts)
    cells = [str(cell) for part in parts for column in part.columns[1:] for cell in column.cells]
    assert cells == [f"{row}.{column}" for column in range(9) for row in range(3)]
    assert table.fitting(1000) == [table]


def test_histories_are_shown_as_they_were_typed():
    ages = ("scattered:7", "scattered:0.2", "web:1min", "ci:60s")
    options = contigua.RunOptions(age=",".join(ages), memory="256M", detail="translation")
    results = contigua.run(["/bin/true"], designs=["linux-thp"], options=options)
    assert [report.summary()["age"] for report in results] == list(ages)
    assert all(age in str(results) for age in ages)


def test_the_time_left_follows_from_what_is_counted_and_from_the_limit(monkeypatch):
    options = {"instructions": 900, "skip": 50, "warmup": 50, "seconds": None}
    assert ends_after(options) == (1000, None)
    assert ends_after({**options, "instructions": None, "seconds": 5.0}) == (None, 5.0)
    found = [RunLine(ends)._line(250, 10.0) for ends in ((1000, None), (1000, 15.0), (None, None))]
    assert found[0] == "25 %, 0 M instructions, 0.0 MIPS, about 30 s left"
    assert found[1] == "67 %, 0 M instructions, 0.0 MIPS, about 5 s left"
    assert found[2] == "0 M instructions, 0.0 MIPS"


def test_a_run_without_a_terminal_tells_its_progress_every_half_minute(monkeypatch, capsys):
    times = iter([0.0, 29.0, 31.0, 59.0, 62.0])
    clock = SimpleNamespace(monotonic=lambda: next(times))
    monkeypatch.setattr("contigua.progress.time", clock)
    line = RunLine((100_000_000, None))
    for done in (10, 25, 40, 50):
        line([(done * 1_000_000, 0)])
    assert capsys.readouterr().err == (
        "contigua: 25 %, 25 M instructions, 0.8 MIPS, about 2 minutes left\n"
        "contigua: 50 %, 50 M instructions, 0.8 MIPS, about 62 s left\n"
    )


@pytest.fixture
def shells(tmp_path):
    """A shell's environment: a package's ``share``, and a command that says its arguments."""
    for place, text in shell.share_files(root, "1.2.3").items():
        file = tmp_path / "share" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    command = tmp_path / "contigua"
    command.write_text(
        '#!/bin/sh\n[ -n "$_CONTIGUA_COMPLETE" ] || { echo "got: $*"; exit 0; }\n'
        f'exec {sys.executable} -c "import sys; sys.argv[0] = '
        '\'contigua\'; from contigua.cli import main; main()" "$@"\n'
    )
    command.chmod(0o755)
    return os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_DATA_DIRS": str(tmp_path / "share"),
        "ZDOTDIR": str(tmp_path),
    }


def test_bash_completes_commands_and_options(shells, tmp_path):
    asked = f"""
        set -e; source {tmp_path / "share" / shell.PLACES["bash"]}
        COMP_WORDS=(contigua run --des) COMP_CWORD=2; _contigua_completion contigua
        echo "${{COMPREPLY[@]}}"
        COMPREPLY=()
        COMP_WORDS=(contigua exp) COMP_CWORD=1; _contigua_completion contigua
        echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, env=shells)
    assert done.stdout.splitlines() == ["--designs", "experiment"], done.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is missing")
def test_zsh_completes_commands_and_options(shells, tmp_path):
    folder = (tmp_path / "share" / shell.PLACES["zsh"]).parent
    (tmp_path / ".zshrc").write_text(
        f"fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -D; PS1=\n"
    )
    said = typed(["zsh", "-i"], b"contigua run --des\t\ncontigua exp\t\nexit\n", shells)
    assert re.findall(r"got: (.*?) *\r", said) == ["run --designs", "experiment"], said


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is missing")
def test_fish_completes_commands_and_options(shells):
    asked = "complete -C 'contigua run --des'; complete -C 'contigua exp'"
    done = subprocess.run(["fish", "-c", asked], capture_output=True, text=True, env=shells)
    found = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert found == ["--designs", "experiment"], (done.stdout, done.stderr)


def typed(command, text, environment):
    """Return what a program says on a terminal where somebody types a text."""
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(command[0], command, environment)
    os.write(terminal, text)
    said = b""
    with suppress(OSError):  # The terminal's other end is gone.
        while piece := os.read(terminal, 4096):
            said += piece
    os.waitpid(process, 0)
    os.close(terminal)
    return said.decode()


def test_shells_and_man_find_their_files_in_a_package():
    files = shell.share_files(root, "1.2.3")
    assert set(files) == {*shell.PLACES.values(), shell.MANUAL}
    for name, place in shell.PLACES.items():
        assert "_CONTIGUA_COMPLETE" in files[place] and f"{name}_complete" in files[place]


def test_the_manual_page_has_every_command_and_option_and_man_reads_it(tmp_path):
    page = shell.man_page(root, "1.2.3")
    read = page.replace("\\-", "-")
    for path, command in leaves():
        assert f'.SS "contigua {" ".join(path)}' in read
        for param in command.params:
            assert isinstance(param, click.Argument) or param.opts[0] in read, (path, param)
    assert shell._plain(".x -a \\n") == "\\&.x \\-a \\en"
    if shutil.which("groff"):
        done = subprocess.run(
            ["groff", "-man", "-ww", "-Tascii", "-P-cbou"],
            input=page,
            capture_output=True,
            text=True,
        )
        assert not done.stderr and "--sample-units" in done.stdout


@pytest.mark.parametrize(
    "arguments", [("run", *SMALL, "--", "sleep", "60"), ("age", "--hours", "99")]
)
def test_an_interrupt_ends_cleanly(arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "contigua.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(3)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said


def test_options_that_are_alike_are_in_one_place():
    """Each option of a program's run has one definition, with one help text."""
    commands = dict(leaves())
    for one, other in pairwise([("run",), ("record",), ("simpoints",)]):
        texts = [
            {p.opts[0]: p.help for p in commands[path].params if isinstance(p, click.Option)}
            for path in (one, other)
        ]
        assert texts[0]["--wall"] == texts[1]["--wall"]
