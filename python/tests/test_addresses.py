"""Do mappings of programs have the addresses that Linux gives them?"""

import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import contigua
from contigua import RunOptions, _engine

#: Linux's addresses are higher than those of programs by this (crates/program/src/layout.rs).
HIGHER = 0x3000_0000_0000
#: The first Linux that aligns only whole huge pages.
OLDEST = (6, 13)
VERSION = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
natively = pytest.mark.skipif(
    VERSION < OLDEST or platform.machine() != "x86_64",
    reason="takes Linux 6.13 or newer on x86-64 to compare with",
)
#: File systems whose files are aligned for huge pages, as `stat -f` names them.
LARGE_FOLIOS = ("ext2/ext3", "xfs", "btrfs")
RUN = ["run", "--designs", "linux-4k", "--detail", "translation", "--memory", "1GiB", "--"]
#: QEMU 10 leaves the choice to the host's kernel, among its own mappings.
pytestmark = pytest.mark.skipif(
    "-B" in _engine.emulator_options(), reason="takes QEMU 7.2, for which mappings are placed"
)
PRINT_MAPPINGS = {
    "python3": ["-E", "-s", "-c", "import ssl, decimal; print(open('/proc/self/maps').read())"],
    "node": ["-e", "console.log(require('fs').readFileSync('/proc/self/maps', 'utf8'))"],
}


def natives(*command: str | Path) -> str:
    """Return what a program prints natively, its addresses not randomized."""
    ran = subprocess.run(["setarch", "-R", *command], capture_output=True, text=True, check=True)
    return ran.stdout


def addresses(text: str) -> list[tuple[str, int | None]]:
    """Return the addresses of lines such as `1 MB: 0x7fff0000`, in order, with what is there."""
    lines = re.findall(r"^(.+): (?:0x([0-9a-f]+)|failed)$", text, re.MULTILINE)
    return [(what, int(address, 16) if address else None) for what, address in lines]


def linuxs(found: Sequence[tuple[str, int | None]]) -> list[tuple[str, int | None]]:
    """Return addresses of a simulated program as Linux would give them; low ones are equal."""
    return [
        (what, address if address is None or what == "low" else address + HIGHER)
        for what, address in found
    ]


@natively
@pytest.mark.parametrize(
    "case", ["neighbors", "holes", "remaps", "files", "threads", "stacks", "heap", "fork"]
)
def test_mappings_are_where_linux_puts_them(case, cli, guest, tmp_path):
    if case == "files":
        kind = subprocess.check_output(["stat", "-f", "-c", "%T", tmp_path], text=True).strip()
        if kind not in LARGE_FOLIOS:
            pytest.skip(f"takes files on ext4, XFS or Btrfs; {tmp_path} is on {kind}")
    command = [guest("addresses"), case, tmp_path / "file"]
    found = addresses(cli(*RUN, *command).stdout)
    assert len(found) > 6
    assert linuxs(found) == addresses(natives(*command))


def files(text: str) -> dict[str, tuple[int, int]]:
    """Return the first and last address of each file in a text such as `/proc/self/maps`."""
    ranges: dict[str, tuple[int, int]] = {}
    for start, end, file in re.findall(r"^(\w+)-(\w+) .* (/.*)$", text, re.MULTILINE):
        first, last = ranges.get(file, (1 << 64, 0))
        ranges[file] = min(first, int(start, 16)), max(last, int(end, 16))
    return ranges


@natively
@pytest.mark.parametrize("program", PRINT_MAPPINGS)
def test_libraries_of_real_programs_are_where_linux_puts_them(program, cli):
    path = shutil.which(program, path="/usr/bin:/bin")
    if path is None:
        pytest.skip(f"{program} is not there")
    command = [path, *PRINT_MAPPINGS[program]]
    native, simulated = (files(text) for text in (natives(*command), cli(*RUN, *command).stdout))
    libraries = [file for file in native if ".so" in file]
    assert len(libraries) > 5
    for file in libraries:
        start, end = simulated[file]
        assert (start + HIGHER, end + HIGHER) == native[file], file


@pytest.mark.parametrize("case", ["threads", "heap", "remaps"])
def test_every_execution_has_the_same_addresses(case, cli, guest):
    first, second = (cli(*RUN, guest("addresses"), case).stdout for _ in range(2))
    assert addresses(first) == addresses(second) != []


def test_programs_that_others_execute_have_the_same_addresses(cli, guest):
    at_once = cli(*RUN, guest("addresses"), "holes").stdout
    by_another = cli(*RUN, "env", guest("addresses"), "holes").stdout
    assert addresses(at_once) == addresses(by_another) != []


@pytest.mark.parametrize(("case", "huge_pages"), [("touched", 32), ("stacks", 0)])
def test_huge_pages_are_those_of_linux(case, huge_pages, guest):
    """Linux 6.18 with `always` has 65,536 KB of `AnonHugePages` for 32 mappings of 2 MB, none for
    as many stacks (`MAP_STACK`)."""
    options = RunOptions(detail="translation", memory="1GiB")
    (report,) = contigua.run([guest("addresses"), case], designs=["linux-thp"], options=options)
    assert report.values["memory"]["resident_2m_bytes"] == huge_pages << 21
