"""Does simulated memory hold what it holds under Linux?"""

import json
from pathlib import Path

import pytest

from conftest import hugetlb_pages

GUESTS = Path(__file__).parents[2] / "workloads/bin/tests"
MB = 1 << 20


def reports(cli, tmp_path, *command, options=()):
    """Run a guest under linux-4k and linux-thp; reports by design."""
    written = tmp_path / "reports.json"
    options = ("--designs", "linux-4k,linux-thp", "--memory", "1G", "--json", written, *options)
    ran = cli("run", *options, "--", GUESTS / command[0], *command[1:])
    assert ran.returncode == 0, ran.stderr
    return {report["config"]["design_name"]: report for report in json.loads(written.read_text())}


def resident(report):
    sizes = ("4k", "2m", "1g")
    return sum(report["memory"][f"resident_{size}_bytes"] for size in sizes)


def test_reads_of_untouched_memory_take_none(cli, tmp_path):
    """The huge zero page: natively, 128 blocks of 2 MB have no RSS and no AnonHugePages."""
    read = reports(cli, tmp_path, "reads", "128")
    for report in read.values():
        assert resident(report) < 2 * MB
        assert report["memory"]["resident_2m_bytes"] == 0
        assert report["kernel"]["faults_zero_page"] >= 128
    cycles = {design: report["time"]["cycles"] for design, report in read.items()}
    # 128 faults each, and one huge page to be zeroed.
    assert cycles["linux-thp"] < 2 * cycles["linux-4k"]
    written = reports(cli, tmp_path, "reads", "128", "write")
    assert written["linux-thp"]["memory"]["resident_2m_bytes"] >= 254 * MB
    assert resident(written["linux-4k"]) < 3 * MB


@pytest.mark.parametrize("kind", ["anonymous", "memfd", "posix", "sysv"])
def test_pages_of_shared_memory_are_one_whoever_touches_them_first(kind, cli, tmp_path):
    """Five processes, each with a mapping that is inherited, or made after the fork."""
    for report in reports(cli, tmp_path, "shared", kind, "16", "4").values():
        memory = report["memory"]
        assert memory["shmem_bytes"] == 16 * MB
        # Each process has half a megabyte of its own.
        assert 16 * MB < resident(report) < 22 * MB
        assert memory["resident_2m_bytes"] == 0
        # The first touches; others map what is there.
        assert 16 * MB // 4096 <= report["kernel"]["faults_anonymous_4k"] < 6000


@pytest.mark.parametrize("kind", ["hugetlb", "hugetlb-memfd", "hugetlb-sysv"])
def test_shared_memory_of_hugetlb_is_huge(kind, cli, tmp_path):
    """Five processes share 16 MB, which exist once."""
    with hugetlb_pages(8):
        found = reports(cli, tmp_path, "shared", kind, "16", "4")
    for report in found.values():
        memory = report["memory"]
        assert memory["hugetlb_shared_bytes"] == memory["resident_2m_bytes"] == 16 * MB
        assert memory["shmem_bytes"] == 0
        assert resident(report) < 22 * MB


def test_mappings_of_a_device_are_shared_memory_of_their_own(cli, tmp_path):
    """/dev lies in a tmpfs, too: three processes map 4 MB of /dev/zero each."""
    for report in reports(cli, tmp_path, "shared", "zero", "4", "2").values():
        assert report["memory"]["shmem_bytes"] == 12 * MB
        assert 12 * MB < resident(report) < 18 * MB


@pytest.mark.parametrize(
    ("enabled", "kind", "huge"),
    [
        ("never", "memfd", 0),
        ("advise", "memfd", 16),
        ("within_size", "anonymous", 16),
        ("always", "posix", 0),
        ("force", "posix", 16),
    ],
)
def test_shmem_enabled_decides_on_huge_pages_of_shared_memory(enabled, kind, huge, cli, tmp_path):
    """Values are those of the guest on Linux 6.18 (ShmemPmdMapped)."""
    design = tmp_path / "shmem.toml"
    settings = f'enabled = "never"\nshmem_enabled = "{enabled}"'
    design.write_text(f'description = ""\n[translation.thp]\n{settings}\n')
    written = tmp_path / "reports.json"
    options = ("--designs", design, "--memory", "1G", "--json", written)
    ran = cli("run", *options, "--", GUESTS / "shared", kind, "16", "2")
    assert ran.returncode == 0, ran.stderr
    memory = json.loads(written.read_text())[0]["memory"]
    assert memory["shmem_bytes"] == 16 * MB
    assert memory["shmem_huge_bytes"] == memory["resident_2m_bytes"] == huge * MB


@pytest.mark.parametrize("call", ["readv", "preadv2", "recvmsg", "recvmmsg"])
def test_vectors_of_system_calls_are_followed(call, cli, tmp_path):
    """Twelve pages that the program has not touched are those of the elements."""
    found = reports(cli, tmp_path, "vectors", call)["linux-4k"]
    others = reports(cli, tmp_path, "vectors", "writev")["linux-4k"]
    faults = [report["kernel"]["faults_anonymous_4k"] for report in (found, others)]
    assert faults[0] - faults[1] == 12, faults
    # What is written is read where it lies: the zero page.
    assert others["kernel"]["faults_zero_page"] >= 12
    assert found["syscalls"]["bytes_received"] - others["syscalls"]["bytes_received"] == 12 * 4096


def test_direct_io_and_pipes_pin_what_vectors_name(cli, tmp_path):
    file = tmp_path / "data"
    file.write_bytes(bytes(16 * 4096))
    direct = reports(cli, tmp_path, "vectors", "direct", file)
    piped = reports(cli, tmp_path, "vectors", "vmsplice")
    assert direct["linux-4k"]["frames"]["pins"] == 12
    # The last four lie there twice, and are pinned once.
    assert piped["linux-4k"]["frames"]["pins"] == 12
