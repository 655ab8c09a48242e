"""Are mappings of simulated programs, and their memory, those of Linux?"""

import platform
import re
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

from conftest import hugetlb_pages, shmem_enabled
from contigua import _engine
from contigua.validation.mappings import HUGE, as_linux, compare, read_smaps

GUESTS = Path(__file__).parents[2] / "workloads/bin/tests"
THP = Path("/sys/kernel/mm/transparent_hugepage")
VERSION = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
#: MB of huge pages of each process on Linux 6.18, where the program advises them: anonymous memory.
ADVISED = {
    "heap": [2],
    "reserved": [6],
    "arenas": [16],
    "refused": [10],
    "collapsed": [4],
    "disabled": [8, 0],
    "remapped": [14],
    "kept": [6],
    "unreplaced": [4],
    "discarded": [4],
    "protected": [4],
    "forked": [8, 6],
}
#: Programs beside the guests, which end before anything collapses.
PROGRAMS = {
    "sh": ["-c", "for i in 1 2 3; do echo $i | cat; done; (exit 0)"],
    "python3": ["-I", "-c", "print(len([str(i) for i in range(100000)]))"],
    "perl": ["-e", "my %h; $h{$_} = $_ for 1 .. 50000; print scalar(keys %h)"],
}


def design(folder, **settings):
    """Write linux-thp with settings, and without khugepaged."""
    text = "".join(f'{key} = "{value}"\n' for key, value in settings.items())
    file = folder / "thp.toml"
    file.write_text(f'description = ""\n[translation.thp]\nscan_interval = "24h"\n{text}')
    return file


def simulated(cli, folder, command, **settings):
    """Return mappings of each process of a simulated program."""
    written = folder / "simulated.smaps"
    options = ("--designs", design(folder, **settings), "--detail", "translation")
    ran = cli("run", *options, "--memory", "1G", "--smaps", written, "--", *command)
    assert ran.returncode == 0, ran.stderr
    return read_smaps(written.read_text()), ran


def own(processes):
    """Return memory in mappings that the guest has made: others are small, or of files."""
    return [
        mapping.resident
        for process in processes
        for mapping in process
        if mapping.end - mapping.start >= 1 << 20 and mapping.kind in ("anonymous", "shmem")
    ]


def huge(processes):
    """Return MB of huge pages of each process, anonymous and shared."""
    kinds = list(HUGE)
    sums = [
        [sum(mapping.huge[kinds.index(kind)] for mapping in process) for process in processes]
        for kind in ("anonymous", "shmem")
    ]
    return [sum(pair) >> 20 for pair in zip(*sums, strict=True)]


@pytest.mark.parametrize("case", ADVISED)
def test_calls_that_change_memory_leave_the_huge_pages_of_linux(case, cli, tmp_path):
    found, _ = simulated(cli, tmp_path, [GUESTS / "mappings", case], enabled="madvise")
    assert huge(found) == ADVISED[case]


@pytest.mark.skipif(
    VERSION < (6, 13) or platform.machine() != "x86_64" or "-B" in _engine.emulator_options(),
    reason="takes Linux 6.13 or newer on x86-64 to compare with, and QEMU 7.2",
)
@pytest.mark.parametrize("case", [*ADVISED, "shared", "zeros", "hugetlb", *PROGRAMS])
def test_mappings_equal_those_of_the_native_kernel(case, cli, tmp_path, monkeypatch):
    """With the computer's own settings."""
    monkeypatch.setenv("PERL_HASH_SEED", "0")
    enabled = re.search(r"\[(\w+)\]", (THP / "enabled").read_text())
    command = [GUESTS / "mappings", case]
    if case in PROGRAMS:
        path = shutil.which(case, path="/usr/bin:/bin")
        if path is None:
            pytest.skip(f"{case} is not there")
        command = [path, *PROGRAMS[case]]
    natively = tmp_path / "native.smaps"
    is_shared = case in ("shared", "zeros")
    pool = hugetlb_pages(7) if case == "hugetlb" else nullcontext()
    with pool, shmem_enabled("advise" if is_shared else None) as shmem:
        ran = subprocess.run(
            [GUESTS / "smaps_at_exit", natively, *command], capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
        settings = {"enabled": enabled[1], "shmem_enabled": shmem}
        ours, _ = simulated(cli, tmp_path, command, **settings)
    native = read_smaps(natively.read_text())
    found = compare(native, [as_linux(process) for process in ours])
    assert (found.only_native, found.only_simulated, found.unlike) == ((), (), ())
    assert found.equal > 8
    if case not in PROGRAMS:
        assert own(native) == own(ours)


@pytest.mark.parametrize(("case", "expected"), [("stack", 0), ("array", 4)])
def test_the_stack_has_huge_pages_where_it_has_grown_beyond_them(case, expected, cli, tmp_path):
    """Natively with `always` on Linux 6.18: frame by frame none, an array's from its first byte."""
    found, _ = simulated(cli, tmp_path, [GUESTS / "mappings", case], enabled="always")
    stacks = [mapping for mapping in found[0] if mapping.kind == "stack"]
    assert [mapping.huge[0] >> 20 for mapping in stacks] == [expected]
    assert 6 << 20 < stacks[0].end - stacks[0].start < 8 << 20


def test_what_qemu_refuses_programs_is_named(cli, tmp_path):
    _, ran = simulated(cli, tmp_path, [GUESTS / "mappings", "asked"], enabled="madvise")
    assert ran.stdout == "0 0 0\n"
    assert "io_uring, Linux AIO (io_setup) and userfaultfd, which QEMU refuses" in ran.stderr
