"""Does a run that was none say so: first line, report, table, exit status, sweep?"""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_addresses import QEMUS, emulator_of

import contigua
from conftest import GUESTS, as_root
from contigua import EngineError, RunOptions
from contigua.reporting.writing import Input, told
from contigua.results import Results
from contigua.sampling import Sampling
from contigua.sweeps import Sweep

OPTIONS = ["--designs", "linux-4k", "--detail", "translation", "--memory", "256MiB"]
TRANSLATION = RunOptions(detail="translation", memory="256MiB")
EXIT = str(GUESTS / "exit_status")

#: A program, its status, what ended it, what its table's head and first line say.
ENDS = {
    "status": ([EXIT, "--exit", "3"], 3, "exit_status", "ended with exit status 3"),
    "signal": ([EXIT, "--signal", "11"], 139, "signal", "was killed by SIGSEGV"),
    "killed": (["sh", "-c", "kill -9 $$"], 137, "signal", "was killed by SIGKILL"),
}


@pytest.mark.parametrize(("command", "status", "ended", "said"), ENDS.values(), ids=ENDS)
def test_a_program_that_failed_is_no_result(command, status, ended, said, cli, tmp_path):
    report, trace = tmp_path / "report.json", tmp_path / "recorded.trace"
    ran = cli("run", *OPTIONS, "--json", report, "--record", trace, "--", *command)
    first = next(line for line in ran.stderr.splitlines() if "incomplete" in line)
    assert said in first
    assert re.search(r"\d[\d,.]*( thousand)? instructions were measured\.$", first)
    assert said.split(maxsplit=1)[1].removeprefix("with ") in ran.stderr.split(first)[1]
    assert ran.returncode == status
    (values,) = json.loads(report.read_text())
    assert (values["complete"], values["ended"]) == (False, ended)
    # A replay ends as the program did.
    replayed = cli("run", *OPTIONS, "--json", tmp_path / "again.json", "--trace", trace)
    assert replayed.returncode == status
    assert (tmp_path / "again.json").read_text() == report.read_text()
    assert replayed.stdout.startswith(first)


def test_a_child_that_crashes_is_the_programs_own_matter():
    command = ["sh", "-c", f"{EXIT} --signal 11; {EXIT} --exit 3; exit 0"]
    (report,) = contigua.run(command, designs=["linux-4k"], options=TRANSLATION)
    assert (report.values["complete"], report.values["ended"]) == (True, "program")


@pytest.mark.parametrize("version", QEMUS)
def test_children_that_signals_end_are_the_programs_own_matter(version, cli):
    # QEMU 10 leaves signals that end a process without a core file to the kernel: it tells no end.
    qemu = emulator_of(version)
    script = f"yes | head -1; {EXIT} --signal 15; {EXIT} --signal 1; exit 0"
    command = ["run", *OPTIONS, "--", "sh", "-c", script]
    ran = cli(*command, env={"CONTIGUA_QEMU": str(qemu)})
    assert ran.returncode == 0 and "incomplete" not in ran.stderr, ran.stderr
    killed = cli("run", *OPTIONS, "--", EXIT, "--signal", 15, env={"CONTIGUA_QEMU": str(qemu)})
    assert killed.returncode == 143 and "was killed by SIGTERM" in killed.stderr, killed.stderr


def test_children_killed_while_they_become_other_programs_are_the_programs_own_matter(
    cli, tmp_path
):
    # The emulator of the next program takes milliseconds to begin.
    script = """mkfifo told; for i in 1 2 3 4 5 6; do
        (echo; exec /bin/true) > told & read line < told; kill -9 $!; wait $!
    done; exit 0"""
    ran = cli("run", *OPTIONS, "--", "sh", "-c", script, cwd=tmp_path)
    assert ran.returncode == 0 and "incomplete" not in ran.stderr, ran.stderr


@pytest.mark.parametrize(
    ("options", "within"),
    [
        (RunOptions(skip=10**9), "--skip 1000000000"),
        (RunOptions(warmup=10**9), "--warmup 1000000000"),
        (RunOptions(skip=1000, warmup=10**9), "--skip 1000 and --warmup 1000000000"),
        (RunOptions(skip=10**9, sample=Sampling()), "--skip 1000000000"),
    ],
    ids=["skip", "warmup", "both", "sampled"],
)
def test_a_program_that_ends_before_anything_is_measured_is_an_error(options, within):
    with pytest.raises(EngineError) as raised:
        contigua.run([EXIT, "--exit", "0"], designs=["linux-4k"], options=options)
    pattern = rf"the program ended after \d+ instructions, within {within}: nothing was measured"
    assert re.fullmatch(pattern, str(raised.value))


@pytest.mark.parametrize("option", ["--skip", "--warmup"])
def test_a_trace_that_ends_before_anything_is_measured_is_an_error(option, cli, tmp_path):
    trace = tmp_path / "tiny.champsim"
    record = struct.Struct("<QBB2B4B2Q4Q")
    trace.write_bytes(record.pack(0x400000, 0, 0, *[0] * 6, 0, 0, 0x1000000, 0, 0, 0) * 9000)
    command = ("run", "--trace-format", "champsim", "--trace", trace, *OPTIONS)
    ran = cli(*command, option, "200M")
    assert ran.returncode == 1
    assert "ended after 9000 instructions, within " + option in ran.stderr
    assert cli(*command).returncode == 0


def started(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "contigua.cli", *map(str, arguments)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "there\n", process.communicate()[1]
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_signals_that_end_a_run_leave_its_results(number, tmp_path):
    report = tmp_path / "report.json"
    run = started("run", *OPTIONS, "--json", report, "--", "sh", "-c", "echo there; sleep 1000")
    run.send_signal(number)
    said = run.communicate(timeout=60)[1]
    assert run.returncode == 128 + number
    assert "was interrupted: incomplete" in said and "interrupted" in said.split("incomplete")[1]
    (values,) = json.loads(report.read_text())
    assert (values["complete"], values["ended"]) == (False, "interrupted")


def descendants(process: int) -> list[int]:
    found = []
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            found += [child, *descendants(child)]
    return found


@pytest.mark.parametrize(
    ("guest", "status", "ended"),
    [
        ("echo there; read nothing", 137, "signal"),
        ("sh -c 'echo there; read nothing'; exit 0", 1, "failure"),
    ],
    ids=["the program's", "a child's"],
)
def test_a_run_whose_emulator_is_killed_is_incomplete(guest, status, ended, tmp_path):
    report = tmp_path / "report.json"
    run = started("run", *OPTIONS, "--json", report, "--", "sh", "-c", guest)
    os.kill(descendants(run.pid)[-1], signal.SIGKILL)
    said = run.communicate(timeout=60)[1]
    assert run.returncode == status, said
    (values,) = json.loads(report.read_text())
    assert (values["complete"], values["ended"]) == (False, ended)
    if ended == "failure":
        assert "killed from outside" in values["program"]["failure"]
        assert "was not observed to its end (the emulator of one of its processes" in said


@as_root
@pytest.mark.parametrize("last", ["exec", "exit 0; exec"], ids=["the program's", "a child's"])
def test_a_run_whose_plugin_gives_up_is_incomplete(last, cli, tmp_path):
    # Nothing of /proc is there any more when the next program is executed.
    hidden = f"mount -t tmpfs none /proc; exec {EXIT} --exit 0"
    script = f"unshare -m sh -c '{hidden}'; {last} true"
    report = tmp_path / "report.json"
    ran = cli("run", *OPTIONS, "--json", report, "--", "sh", "-c", script)
    if "permission denied" in ran.stderr.lower():
        pytest.skip("takes namespaces with mounts")
    assert ran.returncode == 1, ran.stderr
    (values,) = json.loads(report.read_text())
    assert (values["complete"], values["ended"]) == (False, "failure")
    assert "exit_status: cannot be observed" in values["program"]["failure"]
    assert "was not observed to its end" in ran.stderr


SPEC = """
[sweep]
designs = ["linux-4k"]
[options]
detail = "translation"
memory = "256MiB"
[workloads.good]
command = ["{good}", "--exit", "0"]
[workloads.bad]
command = ["{good}", "--exit", "3"]
"""


def _input(results: Results) -> Input:
    return Input("", results.reports, results.axes, results.failures)


def test_failed_points_of_a_sweep_stand_in_its_summary_and_its_report(cli, tmp_path):
    spec, folder = tmp_path / "spec.toml", tmp_path / "out"
    spec.write_text(SPEC.format(good=EXIT))
    ran = cli("sweep", spec, "-o", folder, "--workers", "0")
    assert ran.returncode == 1
    assert "2 points: 0 were finished before, 2 ran; 1 of all failed." in ran.stdout
    summary = [line for line in ran.stdout.splitlines() if "bad" in line]
    assert len(summary) == 1 and re.search(r"│ 1\s+│$", summary[0]), ran.stdout
    again = cli("sweep", spec, "-o", folder, "--workers", "0")
    said = "2 points: 1 were finished before, 1 had failed before, 0 ran; 1 of all failed."
    assert said in again.stdout and again.returncode == 1
    found = Sweep(folder)
    assert [failure["workload"] for failure in found.failures] == ["bad"]
    assert "1 of 2 points failed: bad ended with status 3" in told([_input(found.results)])[0]
    page = tmp_path / "page.html"
    assert cli("report", folder, "-o", page).returncode == 0
    assert "1 of 2 points failed" in page.read_text()


def test_a_sweep_over_a_trace_of_a_crash_says_so(cli, tmp_path):
    trace, spec = tmp_path / "crash.trace", tmp_path / "spec.toml"
    recorded = cli("record", "-o", trace, "--", EXIT, "--signal", "11")
    assert recorded.returncode == 139 and "ended with status 139" in recorded.stderr
    spec.write_text(
        '[sweep]\ndesigns = ["linux-4k"]\n[options]\ndetail = "translation"\nmemory = "256MiB"\n'
        f'[workloads.crash]\ntrace = "{trace}"\n'
    )
    ran = cli("sweep", spec, "-o", tmp_path / "out", "--workers", "0")
    assert ran.returncode == 1
    assert "1 of all are incomplete." in ran.stdout
    assert "contigua: 1 incomplete: killed by SIGSEGV" in ran.stderr


def test_reports_of_which_some_are_incomplete_say_of_how_many(cli):
    whole = contigua.run([EXIT, "--exit", "0"], designs=["linux-4k"], options=TRANSLATION)
    cut = contigua.run([EXIT, "--exit", "3"], designs=["linux-4k"], options=TRANSLATION)
    both = Results((*whole.reports, *cut.reports))
    assert told([Input("", both.reports)])[0].startswith(
        "1 of 2 runs: exit_status --exit 3 ended with"
    )


def test_time_that_is_over_within_skip_is_an_error(guest):
    options = RunOptions(skip=10**15, seconds=0.5)
    start = time.monotonic()
    with pytest.raises(EngineError, match=r"time was over after .* within --skip"):
        contigua.run([guest("forever")], designs=["linux-4k"], options=options)
    assert time.monotonic() - start < 60
