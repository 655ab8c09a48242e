"""Do odd and hostile programs run as they do natively, or end with a word?"""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import contigua
from conftest import GUESTS
from contigua import RunOptions, _engine

RUN = [sys.executable, "-m", "contigua.cli", "run", "--designs", "linux-4k"]
RUN += ["--detail", "translation", "--memory", "256MiB", "--"]
OPTIONS = RunOptions(detail="translation", memory="256MiB")


def run(*command: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *command],
        capture_output=True,
        text=True,
        timeout=120,
        **options,  # type: ignore[call-overload]
    )


def test_threads_are_not_limited_in_their_total(guest):
    ran = run(guest("relay"))
    assert (ran.stdout, ran.returncode) == ("4200 threads\n", 0), ran.stderr


def test_a_program_that_unmaps_everything_ends_incomplete(guest):
    (report,) = results = contigua.run([guest("unmap_all")], designs=["linux-4k"], options=OPTIONS)
    assert report.values["complete"] is False
    assert results.exit_code != 0


@pytest.mark.parametrize("options", [[], ["--skip", "50k"]], ids=["all", "fast-forward"])
def test_memory_that_a_program_locks_is_not_ours(options, guest):
    command = [*RUN[:-1], *options, "--", guest("lock_all")]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    said = process.stdout.readline()
    children = Path(f"/proc/{process.pid}/task").glob("*/children")
    (emulator,) = " ".join(file.read_text() for file in children).split()
    status = Path(f"/proc/{emulator}/status").read_text()
    process.communicate("", timeout=60)
    if said == "refused\n":
        pytest.skip("the limit of locked memory is too low")
    assert said == "locked\n"
    (resident,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    # QEMU's own: its code, and what it generates.
    assert int(resident.split()[1]) < 200 << 10, resident


@pytest.mark.parametrize("name", [(), ("copy",)], ids=["file", "without a path"])
def test_a_program_is_executed_by_a_descriptor(name, guest):
    ran = run(guest("execute_file"), *name)
    assert (ran.stdout, ran.returncode) == ("executed\n", 0), ran.stderr


def test_a_program_executed_by_a_descriptor_has_none_of_ours(guest):
    script = "ls -l /proc/self/fd | wc -l"
    native = subprocess.run(["sh", "-c", script], capture_output=True, text=True).stdout
    assert run("sh", "-c", script).stdout == native


def emulated(program: str) -> list[str]:
    return ["setarch", "-R", _engine.emulator(), *_engine.emulator_options(), program]


@pytest.mark.parametrize("blocked", [(), (signal.SIGUSR1, signal.SIGTERM)], ids=["none", "two"])
def test_signals_and_limits_are_those_of_the_shell(blocked, guest):
    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_NOFILE, (700, 900))

    program = str(GUESTS / "dispositions")
    alone = subprocess.run(emulated(program), capture_output=True, text=True, preexec_fn=prepare)
    assert "12 ignored" in alone.stdout
    assert run(program, preexec_fn=prepare).stdout == alone.stdout


def test_a_signal_for_files_that_are_too_large_ends_a_program(tmp_path):
    # Python ignores it.
    script = "ulimit -f 1; dd if=/dev/zero of=x bs=4096 count=1 2>/dev/null; echo status $?"
    assert run("sh", "-c", script, cwd=tmp_path).stdout == "status 153\n"


def test_threads_that_wait_for_room_are_woken_one_by_one(guest):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run(guest("spin"), "64", "30000").stdout == "done\n"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # All of them were woken for each chunk: three times as much as they computed.
    system, user = after.ru_stime - before.ru_stime, after.ru_utime - before.ru_utime
    assert system < user, (system, user)


def test_a_loader_that_is_no_file_is_refused(tmp_path):
    root = tmp_path / "root"
    (root / "lib64").mkdir(parents=True)
    os.mkfifo(root / "lib64" / "ld-linux-x86-64.so.2")
    command = [*RUN[:-1], "--root", str(root), "--", "/bin/true"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 126 and "ld-linux-x86-64.so.2 is not here" in ran.stderr, ran.stderr
