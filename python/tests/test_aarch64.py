"""Do programs of aarch64 run as those of x86-64 do, and are the counts right?"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import contigua
from contigua import EngineError, RunOptions, _engine, emulator

ROOT = Path(__file__).parents[2]
BIN = ROOT / "workloads" / "bin" / "aarch64"
COMPILER = "aarch64-linux-gnu-gcc"
#: Loader and C library, as Debian's cross compiler brings them.
LIBRARIES = Path("/usr/aarch64-linux-gnu")
TRANSLATION = RunOptions(detail="translation")

pytestmark = [
    pytest.mark.skipif(
        shutil.which(COMPILER) is None or not (LIBRARIES / "lib" / "libc.so.6").exists(),
        reason=f"needs {COMPILER} and its C library (gcc-aarch64-linux-gnu, libc6-dev-arm64-cross)",
    ),
    pytest.mark.skipif(
        shutil.which("qemu-aarch64") is None, reason="needs qemu-aarch64 (Debian's qemu-user)"
    ),
]


def emulators():
    """Return the emulators of this computer that load plugins: the host's, and built ones."""
    host = shutil.which("qemu-aarch64")
    built = sorted(emulator.cache_folder().glob("[0-9]*/qemu-aarch64"))
    return [
        Path(path)
        for path in [host, *built]
        if path
        and "\n-plugin" in subprocess.run([path, "--help"], capture_output=True, text=True).stdout
    ]


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Build a program from C or assembler; other arguments are the compiler's."""
    folder = tmp_path_factory.mktemp("built")

    def compiled(name: str, source: str, *arguments: str) -> Path:
        file = folder / (f"{name}.c" if "main(" in source else f"{name}.s")
        file.write_text(source)
        subprocess.run([COMPILER, "-o", folder / name, file, *arguments], check=True)
        return folder / name

    return compiled


@pytest.fixture(scope="session")
def counter(tmp_path_factory):
    """A plugin of its own, which counts with per-instruction callbacks and nothing else."""
    plugin = tmp_path_factory.mktemp("counter") / "counter.so"
    source = Path(__file__).parent / "counter.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", plugin, source], check=True)

    def count(*command: str, root: Path | None = None) -> dict[str, int]:
        # The same processor and layout of addresses as under contigua.
        qemu = [_engine.emulator("aarch64"), *_engine.emulator_options("aarch64")]
        ran = subprocess.run(
            [
                *("setarch", "-R", *qemu),
                *(["-L", str(root)] if root else []),
                *("-plugin", plugin, *command),
            ],
            capture_output=True,
            text=True,
            check=True,
            env=dict(os.environ),
        )
        found = re.findall(r"counter: (\w+) (\d+)", ran.stderr)
        return {name: int(value) for name, value in found}

    return count


@pytest.mark.parametrize(
    ("command", "root"),
    [
        (["gups-static", "--size", "1MiB", "--updates", "20000"], None),
        (["gups", "--size", "1MiB", "--updates", "20000"], LIBRARIES),
        (["bfs", "--scale", "8", "--roots", "2"], LIBRARIES),
        # C++'s and C's routines for memory: much of it is zeroed.
        (["hashjoin", "--heads", "10000", "--rows", "3000"], LIBRARIES),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_counts_agree_with_an_independent_plugin(command, root, counter, cli, tmp_path):
    command = [str(BIN / command[0]), *command[1:]]
    report = tmp_path / "report.json"
    where = ["--root", root] if root else []
    ran = cli("run", "--detail", "translation", *where, "--json", report, "--", *command)
    assert ran.returncode == 0, ran.stderr
    ours = json.loads(report.read_text())[0]
    theirs = counter(*command, root=root)
    # The other plugin leaves mappings where QEMU 10 puts them, and routines for memory take some
    # instructions more or fewer where they work on other addresses.
    most = 200 if root and "-B" in _engine.emulator_options("aarch64") else 0
    for name, count in theirs.items():
        assert abs(ours["executed"][name] - count) <= most, (name, ours["executed"], theirs)
    assert ours["kernel"]["unexplained_accesses"] == 0


#: A program without libraries, in a loop of known length.
BARE = """
    .globl _start
    .bss
    .balign 4096
room: .skip 16384
    .text
    .arch armv8.1-a
_start:
    adrp x19, room
    add x19, x19, :lo12:room
    mov x20, #1000
1:  ldr x0, [x19]
    str x0, [x19, #8]
    ldp x0, x1, [x19]
    stp x0, x1, [x19, #16]
    ldr q0, [x19]
    stp q0, q0, [x19, #64]
    ld4 {v0.4s - v3.4s}, [x19]
    st1 {v0.16b, v1.16b}, [x19]
    add x2, x19, #4096
    dc zva, x2
    add x2, x2, #200
    dc zva, x2
    mov x3, #1
    ldxr x0, [x19]
    swpal x3, x4, [x19]
    sub x20, x20, #1
    cbnz x20, 1b
    mov x8, #93
    mov x0, #0
    svc #0
"""
#: Expected executions. An access of 16 bytes counts as two of 8, those of structures as one for
#: each element, and a block of 64 bytes that is zeroed as one store. QEMU makes a load and a store
#: of an atomic exchange as long as there is one thread.
EXECUTED = {
    "instructions": 3 + 1000 * 17 + 3,
    "loads": 1000 * (1 + 2 + 2 + 16 + 1 + 1),
    "stores": 1000 * (1 + 2 + 4 + 4 + 1 + 1 + 1),
}


@pytest.mark.parametrize("qemu", emulators(), ids=lambda path: path.parent.name)
@pytest.mark.parametrize("detail", ["translation", "full"])
def test_a_program_without_libraries_counts_the_same_on_every_qemu(qemu, detail, build, cli):
    program = build("bare", BARE, "-nostdlib", "-static")
    command = ["run", "--designs", "linux-4k", "--detail", detail, "--format", "json"]
    ran = cli(*command, "--", program, env={"CONTIGUA_QEMU_AARCH64": str(qemu)})
    assert ran.returncode == 0, ran.stderr
    (report,) = json.loads(ran.stdout)
    found = {name: report["executed"][name] for name in EXECUTED}
    assert found == EXECUTED
    assert report["kernel"]["unexplained_accesses"] == 0


#: Zeroes memory as C libraries do.
ZEROES = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    size_t bytes = (size_t)atoi(argv[1]) << 20;
    char *memory = aligned_alloc(1 << 21, bytes);
    memset(memory, 0, bytes);
    puts("zeroed");
    return memory[bytes / 2];
}
"""


def test_memory_that_is_zeroed_at_once_is_touched(build):
    program = build("zeroes", ZEROES, "-O1", "-static")
    options = replace(TRANSLATION, memory="512MiB")
    found = {}
    for megabytes in (8, 24):
        results = contigua.run(
            [str(program), str(megabytes)], designs=["linux-4k"], options=options
        )
        found[megabytes] = results[0].values
    more = {
        name: found[24]["executed"][name] - found[8]["executed"][name]
        for name in ("instructions", "stores")
    }
    # One store for each line, by four instructions.
    assert 16 * 2**20 // 64 <= more["stores"] <= 16 * 2**20 // 64 + 100
    assert abs(more["instructions"] - 4 * more["stores"]) < 1000
    faults = [values["kernel"]["faults_anonymous_4k"] for values in found.values()]
    # A page more or less, by where the C library puts what lies beside the memory.
    assert abs(faults[1] - faults[0] - 16 * 2**20 // 4096) <= 2


def test_programs_find_a_processor_whose_accesses_are_seen_or_their_users_choice(cli):
    command = ["run", "--detail", "translation", "--root", LIBRARIES, "--", BIN / "tests/processor"]
    assert cli(*command, env={"QEMU_CPU": ""}).stdout == "processor: sve 0, zva 64\n"
    assert cli(*command, env={"QEMU_CPU": "max"}).stdout == "processor: sve 1, zva 512\n"


@pytest.fixture(scope="session")
def system(tmp_path_factory, build):
    """A folder as of a small system: libraries, and a shell that knows one command line."""
    root = tmp_path_factory.mktemp("system")
    shutil.copytree(LIBRARIES / "lib", root / "lib", symlinks=True)
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "etc").mkdir()
    (root / "etc" / "sh").symlink_to("/usr/bin/shell")
    (root / "usr" / "bin" / "sh").symlink_to("/etc/sh")
    shell = """
        #include <spawn.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/wait.h>

        extern char **environ;

        int main(int argc, char **argv)
        {
            /* sh -c '"$1" --status 8; exit $(($? + 1))' sh PROGRAM */
            if (argc != 5 || strcmp(argv[1], "-c") || !strstr(argv[2], "--status 8"))
                return 1;
            char *command[] = {argv[4], "--status", "8", NULL};
            pid_t pid;
            int status;
            if (posix_spawn(&pid, argv[4], NULL, NULL, command, environ))
                return 1;
            if (waitpid(pid, &status, 0) != pid)
                return 1;
            return WEXITSTATUS(status) + 1;
        }
    """
    shutil.copy(build("shell", shell, "-O1"), root / "usr" / "bin" / "shell")
    for name in ("echo", "execs"):
        shutil.copy(BIN / "tests" / name, root / "usr" / "bin" / f"small-{name}")
    script = root / "usr" / "bin" / "small-script"
    script.write_text("#!/bin/small-echo\n")
    script.chmod(0o755)
    return root


@pytest.mark.parametrize("name", ["threads", "forks", "signals", "memory"])
def test_processes_threads_and_signals_are_followed(name):
    options = replace(TRANSLATION, root=LIBRARIES)
    results = contigua.run([str(BIN / "tests" / name)], designs=["linux-4k"], options=options)
    assert results.exit_code == 0
    values = results[0].values
    assert values["kernel"]["unexplained_accesses"] == 0
    if name == "threads":
        assert values["program"]["threads"] == 9
    if name == "forks":
        assert values["program"]["processes"] == 15
    if name == "memory":
        faults = values["kernel"]["faults_anonymous_4k"] + values["kernel"]["faults_copy_on_write"]
        assert 2512 <= faults <= 2512 + 150


@pytest.mark.parametrize("where", ["inside", "host"])
def test_programs_that_are_executed_come_from_the_root(where, system, cli):
    program = "small-execs" if where == "inside" else BIN / "tests" / "execs"
    command = ["run", "--detail", "translation", "--format", "json", "--root", system]
    ran = cli(*command, "--", program)
    assert ran.returncode == 0, ran.stderr
    # The shell, and what it starts, too.
    assert "spawned child exited with 7, shell with 9" in ran.stderr
    report = json.loads(ran.stdout)[0]
    assert report["program"]["processes"] == 4


def test_a_name_is_looked_for_in_the_root_and_a_script_runs_its_interpreter(system, cli):
    run = ["run", "--detail", "translation", "--root", system, "--"]
    for name in ("small-echo", "/usr/bin/small-echo", "/bin/small-echo"):
        ran = cli(*run, name, input="text\n")
        assert (ran.returncode, ran.stdout) == (0, "text\n"), ran.stderr
    # Its arguments are the script, of which it knows nothing.
    ran = cli(*run, "small-script")
    assert "unexpected argument '/usr/bin/small-script'" in ran.stderr
    missing = cli(*run, "true")
    assert missing.returncode == 127 and "true: no such program" in missing.stderr


def test_a_recording_replays_to_the_same_report_with_a_whole_core(tmp_path):
    trace = tmp_path / "gups.trace"
    command = [str(BIN / "gups"), "--size", "1MiB", "--updates", "20000"]
    options = RunOptions(machine="neoverse-v2", root=LIBRARIES, record=trace)
    names = ["linux-4k", "arm-contiguous"]
    live = contigua.run(command, designs=names, options=options)
    replayed = contigua.run(trace=trace, designs=names, options=RunOptions(machine="neoverse-v2"))
    assert replayed.to_json() == live.to_json()
    for report in live:
        cycles = report.values["time"]["cycles"]
        instructions = report.values["executed"]["instructions"]
        # Every instruction is decoded: none is a guess of ten cycles, none is free.
        assert 0.2 < cycles / instructions < 5


def test_a_part_of_a_program_is_simulated_where_it_was_forwarded_over(counter):
    command = [str(BIN / "gups"), "--size", "1MiB", "--updates", "20000"]
    whole = contigua.run(
        command, designs=["linux-4k"], options=replace(TRANSLATION, root=LIBRARIES)
    )
    count = whole[0].values["executed"]["instructions"]
    options = replace(TRANSLATION, root=LIBRARIES, skip=count // 2)
    rest = contigua.run(command, designs=["linux-4k"], options=options)[0].values
    assert abs(rest["executed"]["instructions"] - count // 2) < 512
    faults = [values["kernel"]["faults_anonymous_4k"] for values in (whole[0].values, rest)]
    assert faults[1] <= faults[0]
    assert rest["memory"]["resident_4k_bytes"] == whole[0].values["memory"]["resident_4k_bytes"]


@pytest.mark.parametrize("region", ["markers", "function:main"])
def test_regions_that_only_code_of_x86_names_are_refused(region, cli):
    ran = cli("run", "--region", region, "--", BIN / "gups-static")
    assert ran.returncode == 1
    assert "markers and calls of functions are found in x86_64 programs" in ran.stderr
    assert "for aarch64: name the region by counts of instructions (--window" in ran.stderr


def test_missing_prerequisites_of_aarch64_are_named_in_one_line(cli, tmp_path, system):
    def said(*arguments, **environment):
        ran = cli("run", "--detail", "translation", *arguments, env=environment)
        assert ran.stderr.count("\n") == 1 and ran.returncode != 0, ran.stderr
        return ran.returncode, ran.stderr

    if not Path("/lib/ld-linux-aarch64.so.1").exists():
        status, text = said("--", BIN / "gups")
        assert status == 126
        assert "its loader /lib/ld-linux-aarch64.so.1 is not here; give --root DIR" in text
    status, text = said("--", BIN / "gups-static", CONTIGUA_QEMU_AARCH64="/no/such/qemu")
    assert (
        "no QEMU that loads plugins (CONTIGUA_QEMU_AARCH64=/no/such/qemu: no such program); run "
        "`contigua setup qemu --architecture aarch64` to build one, or set CONTIGUA_QEMU_AARCH64"
    ) in text
    _, text = said("--root", tmp_path / "none", "--", "true")
    assert f"{tmp_path}/none: no folder to run programs from: No such file" in text
    ran = cli("run", "--root", system, "--trace", tmp_path)
    assert ran.returncode == 2 and "--root is of programs" in ran.stderr
    # QEMU of the other architecture is not tried.
    static = BIN / "gups-static"
    small = ("--", static, "--size", "64K", "--updates", "100")
    assert cli("run", *small, env={"CONTIGUA_QEMU": "/no/such/qemu"}).returncode == 0


def test_a_mistaken_emulator_is_refused(monkeypatch):
    monkeypatch.setenv("CONTIGUA_QEMU_AARCH64", "/bin/true")
    with pytest.raises(EngineError, match="CONTIGUA_QEMU_AARCH64=/bin/true: loads no plugins"):
        _engine.emulator("aarch64")
    with pytest.raises(
        EngineError, match='unknown architecture "riscv": known are x86_64, aarch64'
    ):
        _engine.emulator("riscv")
