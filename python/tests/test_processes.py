"""Does a run own exactly the processes that it started, and do they end with it?"""

import ctypes
import errno
import inspect
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import as_root, takes_namespaces
from contigua import _engine

CONTIGUA = [sys.executable, "-m", "contigua.cli"]
RUN = [*CONTIGUA, "run", "--designs", "linux-4k", "--detail", "translation", "--memory", "256MiB"]
GRACE = 30
"""Seconds after which something hangs. Nothing that passes takes as long."""


def started(*command: str, **options: object) -> subprocess.Popen[str]:
    """Start a run whose guest says when it is there, and wait for that."""
    process = subprocess.Popen(
        [*RUN, "--", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )
    assert process.stdout.readline() == "there\n", process.communicate()[1]
    return process


def ends(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Read both outputs to their ends, which come when all who hold them have ended."""
    try:
        return process.communicate(timeout=GRACE)
    except subprocess.TimeoutExpired:
        pytest.fail(f"guests outlive their run ({subprocess.list2cmdline(process.args)})")


BLOCKED = "echo there; read nothing"
STOPPED = "echo there; kill -STOP $$"
SPREAD = "sleep 1000 & (sleep 1000 & sh -c 'kill -STOP $$' & sleep 1000) & echo there; wait"
SESSION = "setsid sh -c 'echo there; sleep 1000' & wait"
RUNNING = "echo there; while :; do :; done"


SIGNALS = [
    *((guest, signal.SIGKILL) for guest in (BLOCKED, SPREAD, SESSION)),
    (STOPPED, signal.SIGTERM),
    (RUNNING, signal.SIGHUP),
]


def ended_by(guest: str, number: int) -> None:
    run = started("sh", "-c", guest)
    run.send_signal(number)
    ends(run)
    assert run.returncode == (-number if number == signal.SIGKILL else 128 + number)


@pytest.mark.parametrize(
    ("guest", "number"), SIGNALS, ids=["blocked", "spread", "session", "stopped", "running"]
)
def test_no_guest_outlives_a_run_that_a_signal_ends(guest, number):
    """`communicate` waits for all who hold the outputs. Their owner is dead and not yet reaped."""
    ended_by(guest, number)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("guest", [BLOCKED, STOPPED, SPREAD, SESSION, RUNNING])
def test_no_guest_outlives_a_run_whichever_signal_ends_it(guest, number):
    ended_by(guest, number)


def test_a_time_limit_ends_all_processes_of_the_guest():
    run = subprocess.Popen(
        [*RUN, "--wall", "1s", "--", "sh", "-c", SPREAD],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ends(run)
    assert run.returncode == 0


# Process 1 of a PID namespace of its own, so that nothing but its decoys can be harmed.
NAMESPACE = """
import subprocess, sys
decoys = [subprocess.Popen(["sleep", "1000"]) for _ in range(8)]
guest = ["unshare", "--pid", "--fork", "sh", "-c", "sleep 1000 & sleep 1000 & echo there; wait"]
run = subprocess.Popen([*sys.argv[1:], "--wall", "1s", "--", *guest])
try:
    status = run.wait(timeout=20)
except subprocess.TimeoutExpired:
    status = "none: it does not end"
print("dead:", [decoy.pid for decoy in decoys if decoy.poll() is not None], "status:", status)
"""


@takes_namespaces
@pytest.mark.parametrize("proc", [[], ["--mount-proc"]], ids=["proc-of-the-host", "own-proc"])
def test_processes_of_another_pid_namespace_are_not_taken_for_the_hosts(proc):
    outer = ["unshare", "--pid", "--fork", "--kill-child", *proc]
    done = subprocess.run(
        [*outer, sys.executable, "-c", NAMESPACE, *RUN],
        capture_output=True,
        text=True,
        timeout=3 * GRACE,
    )
    assert "dead: [] status: 0" in done.stdout, done.stdout + done.stderr


@as_root
def test_a_guest_that_drops_privileges_executes_the_next_program():
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    inner = "exec 3>&- 4>&- 5>&- 6>&-; id -u; exec expr 6 '*' 7"
    done = subprocess.run([*RUN, "--", *nobody, "sh", "-c", inner], capture_output=True, text=True)
    assert done.stdout.startswith("65534\n42\n"), done.stdout + done.stderr
    assert done.returncode == 0


CLOSES = """
import os, sys
os.closerange(3, 1 << 20)
for fd in range(3, 1024):
    try:
        os.dup2(0, fd)
    except OSError:
        break
if os.fork() == 0:
    os.execv("/bin/echo", ["echo", "child"])
os.wait()
os.execv("/bin/echo", ["echo", "parent"])
"""


def test_a_guest_may_close_and_replace_all_descriptors(tmp_path):
    script = tmp_path / "closes.py"
    script.write_text(CLOSES)
    done = subprocess.run(
        [*RUN, "--", sys.executable, "-I", "-S", str(script)], capture_output=True, text=True
    )
    assert done.stdout.startswith("child\nparent\n"), done.stdout + done.stderr
    assert done.returncode == 0


def test_a_guest_finds_the_descriptors_that_it_would_find_natively():
    listing = ["sh", "-c", "ls /proc/self/fd; sh -c 'ls /proc/self/fd'"]
    native = subprocess.run(listing, capture_output=True, text=True).stdout
    done = subprocess.run([*RUN, "--", *listing], capture_output=True, text=True)
    assert done.stdout.startswith(native), done.stdout + done.stderr


@as_root
def test_a_guest_without_proc_can_fork(tmp_path):
    """Servers change their root directory and then make their workers."""
    script = tmp_path / "forks.py"
    script.write_text(
        "import os, time\n"
        f"os.chroot({str(tmp_path)!r})\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        os.write(1, b'child\\n'); os._exit(0)\n"
        "    os.wait()\n"
    )
    done = subprocess.run(
        [*RUN, "--", sys.executable, "-I", "-S", str(script)],
        capture_output=True,
        text=True,
        timeout=GRACE,
    )
    assert done.stdout.startswith("child\n" * 3), done.stdout + done.stderr


#: A program for 32-bit x86 that says "there" and waits for ever, in the base 0x08048000.
WAITS_32 = bytes.fromhex("b804000000bb01000000b973800408ba06000000cd80b81d000000cd80ebf7")


def test_a_program_that_qemu_cannot_run_ends_with_its_run(tmp_path):
    code = WAITS_32 + b"there\n"
    base, at = 0x0804_8000, 84
    size = at + len(code)
    numbers = (2, 3, 1, base + at, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    header = struct.pack("<16s2H5I6H", b"\x7fELF\1\1\1", *numbers)
    program = tmp_path / "waits"
    program.write_bytes(header + struct.pack("<8I", 1, 0, base, base, size, size, 5, 4096) + code)
    program.chmod(0o755)
    try:
        subprocess.run([program], timeout=0.5, stdout=subprocess.PIPE)
    except subprocess.TimeoutExpired:
        pass
    except OSError as error:
        pytest.skip(f"this kernel runs no 32-bit programs ({error.strerror})")
    ended_by(f"exec {program}", signal.SIGKILL)


#: A program that runs one, and forks meanwhile.
FORKS = """
import os, sys, threading, time, contigua
guest = threading.Thread(target=lambda: contigua.run(
    ["sh", "-c", "echo there; read nothing"], designs=["linux-4k"],
    options=contigua.RunOptions(detail="translation")), daemon=True)
guest.start()
time.sleep(2)
copy = os.fork()
if copy == 0:
    os.closerange(0, 3)
    time.sleep(1000)
print(copy, flush=True)
time.sleep(1000)
"""


def test_a_fork_of_its_owner_does_not_keep_a_guest_alive():
    run = subprocess.Popen(
        [sys.executable, "-c", FORKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    first, second = sorted([run.stdout.readline(), run.stdout.readline()])
    assert second == "there\n"
    try:
        run.kill()
        ends(run)
    finally:
        os.kill(int(first), signal.SIGKILL)


def test_a_descendant_that_outlives_its_parents_is_waited_for():
    script = "sh -c '(sleep 0.5; echo late) & exit 0'; echo early; exit 3"
    done = subprocess.run([*RUN, "--", "sh", "-c", script], capture_output=True, text=True)
    assert done.stdout.startswith("early\nlate\n"), done.stdout + done.stderr
    assert done.returncode == 3


def test_a_run_with_closed_standard_descriptors_keeps_its_ring():
    """Shared memory with number 1 would be what guests write to."""
    script = "echo lost; cat <&0; for i in 1 2 3 4 5 6 7 8; do echo lost; done; exit 5"
    command = subprocess.list2cmdline([*RUN, "--", "sh", "-c", script])
    done = subprocess.run(["sh", "-c", f"exec {command} 0<&- 1>&-"], timeout=GRACE)
    assert done.returncode == 5


@as_root
def test_a_guest_without_proc_ends_with_its_run_too(tmp_path):
    script = tmp_path / "forks.py"
    script.write_text(
        "import os, time\n"
        f"os.chroot({str(tmp_path)!r})\n"
        "if os.fork() == 0:\n"
        "    os.write(1, b'there\\n')\n"
        "time.sleep(1000)\n"
    )
    run = started(sys.executable, "-I", "-S", str(script))
    run.kill()
    ends(run)


def children() -> set[str]:
    return set(Path("/proc/thread-self/children").read_text().split())


def test_the_python_interface_leaves_no_child_behind():
    from contigua import RunOptions, run

    before = children()
    options = RunOptions(detail="translation", memory="256MiB", seconds=0.3)
    run(["sh", "-c", "sleep 1000 & wait"], designs=["linux-4k"], options=options)
    start = time.monotonic()
    while children() - before and time.monotonic() - start < GRACE:
        time.sleep(0.01)
    assert children() <= before


def test_an_interrupt_that_python_drops_is_sent_again():
    # Each import has such callbacks; an interrupt in one of them is lost to Python.
    program = """
import signal, sys, time, weakref
import click
from contigua.entry import call
class Thing: pass
@click.command()
def command():
    thing = Thing()
    reference = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
    del thing
    time.sleep(60)
sys.exit(call(command))
"""
    run = [sys.executable, "-c", program]
    output = subprocess.run(run, check=False, capture_output=True, text=True, timeout=30)
    assert (output.returncode, output.stderr.strip()) == (130, "contigua: interrupted")


def test_an_interrupt_waits_for_the_end_of_an_import(tmp_path: Path):
    # A module of C that is left half-initialized may abort at exit: matplotlib's does.
    module = "import signal\nsignal.raise_signal(signal.SIGINT)\nprint('imported', flush=True)\n"
    (tmp_path / "interrupting.py").write_text(module)
    program = """
import sys, time
import click
from contigua.entry import call
@click.command()
def command():
    import interrupting
    time.sleep(60)
sys.exit(call(command))
"""
    run = [sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    output = subprocess.run(
        run, check=False, capture_output=True, text=True, timeout=30, env=environment
    )
    assert (output.returncode, output.stdout) == (130, "imported\n")
    assert output.stderr.strip() == "contigua: interrupted"


@pytest.mark.parametrize("interrupted", [True, False])
def test_an_interrupt_that_code_in_c_tells_as_its_own_error_is_one(interrupted: bool):
    # As matplotlib's renderer does while it reads a rectangle.
    program = f"""
import signal, sys
import click
from contigua.entry import call
@click.command()
def command():
    try:
        if {interrupted}:
            signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt:
        pass
    raise ValueError("Invalid bounding box")
sys.exit(call(command))
"""
    run = [sys.executable, "-c", program]
    output = subprocess.run(run, check=False, capture_output=True, text=True, timeout=30)
    if interrupted:
        assert (output.returncode, output.stderr.strip()) == (143, "contigua: interrupted")
    else:
        assert output.returncode == 1
        assert output.stderr.endswith("ValueError: Invalid bounding box\n")


UNSHARE, SET_ROBUST_LIST = 272, 273


def refuse(call: int, error: int) -> None:
    """Let a system call fail for this process and all that it starts."""
    no_new_privileges, seccomp, mode_filter = 38, 22, 2
    load, if_equal, answer = 0x20, 0x15, 0x06
    instructions = b"".join(
        struct.pack("HBBI", *one)
        for one in (
            (load, 0, 0, 0),
            (if_equal, 0, 1, call),
            (answer, 0, 0, 0x0005_0000 | error),
            (answer, 0, 0, 0x7FFF_0000),
        )
    )
    program = ctypes.create_string_buffer(instructions, len(instructions))
    filter_ = struct.pack("HxxxxxxQ", 4, ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.prctl(seccomp, mode_filter, filter_):
        raise OSError(ctypes.get_errno(), "prctl")


def refuse_unshare() -> None:
    """As Docker's default filter does."""
    refuse(UNSHARE, errno.EPERM)


def test_a_run_needs_no_unshare():
    refused = subprocess.run(
        ["unshare", "--user", "true"], preexec_fn=refuse_unshare, capture_output=True, text=True
    )
    assert "Operation not permitted" in refused.stderr
    run = subprocess.run(
        [*RUN, "--", "sh", "-c", "sh -c true; exit 7"],
        preexec_fn=refuse_unshare,
        capture_output=True,
        text=True,
        timeout=GRACE,
    )
    assert run.returncode == 7, run.stderr


def no_robust_futexes(error: int) -> str:
    return (
        f"set_robust_list: {os.strerror(error)} (os error {error}): contigua needs robust futexes "
        "to know when a process has ended; under QEMU's user mode, which has none, run it in a "
        "virtual machine; where a seccomp filter refuses the call, allow it\n"
    )


def refused_run(folder: Path, **options: object) -> str:
    """Return the message of a run that ends with an error and leaves nothing."""
    folder.mkdir()
    run = subprocess.run(
        [*RUN, "--", "echo", "it runs"],
        capture_output=True,
        text=True,
        timeout=GRACE,
        **options,  # type: ignore[call-overload]
    )
    assert run.stdout == ""
    assert run.returncode == 1, run.stderr
    assert not list(folder.iterdir())
    return run.stderr


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_a_run_without_robust_futexes_says_so(error, tmp_path):
    folder = tmp_path / "temporary"
    said = refused_run(
        folder,
        preexec_fn=lambda: refuse(SET_ROBUST_LIST, error),
        env=os.environ | {"TMPDIR": str(folder)},
    )
    assert said == f"contigua: {no_robust_futexes(error)}"


def test_a_program_without_robust_futexes_says_so(tmp_path):
    qemu = _engine.emulator()
    refusing = tmp_path / "qemu-x86_64"
    refusing.write_text(
        f"#!{sys.executable}\nimport ctypes, os, struct, sys\n{inspect.getsource(refuse)}\n"
        f"refuse({SET_ROBUST_LIST}, {errno.ENOSYS})\nos.execv({qemu!r}, sys.argv)\n"
    )
    refusing.chmod(0o755)
    folder = tmp_path / "temporary"
    environment = {"TMPDIR": str(folder), "CONTIGUA_QEMU": str(refusing)}
    said = refused_run(folder, env=os.environ | environment)
    assert said.startswith(f"contigua plugin: {no_robust_futexes(errno.ENOSYS)}")
    assert "contigua: QEMU could not run the program: it ended with exit status: 1" in said


def test_a_guest_is_what_the_kernel_ends_first_when_memory_runs_out():
    command = [*RUN, "--", "sh", "-c", "cat /proc/self/oom_score_adj"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.splitlines()[0] == "1000"
