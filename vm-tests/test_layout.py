"""Do programs have the addresses that an older kernel would give them?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from contigua_vm import Guest, Initramfs, VmError, kernel

PROGRAM = Path(__file__).parents[1] / "workloads" / "bin" / "tests" / "addresses"
CASES = ("neighbors", "holes", "remaps", "threads", "stacks", "heap", "fork")
#: Linux's addresses are higher than those of programs by this (crates/program/src/layout.rs).
HIGHER = 0x3000_0000_0000
#: The C library's choice depends on how many processors there are.
ARENAS = {"MALLOC_ARENA_MAX": "4"}
#: Puts the program's interpreter and library where they belong, in the place of a root file system.
SETUP = """
mkdir -p /lib64 /lib/x86_64-linux-gnu
mv /etc/ld-linux-x86-64.so.2 /lib64
mv /etc/libc.so.6 /lib/x86_64-linux-gnu
echo 0 > /proc/sys/kernel/randomize_va_space
"""


def addresses(text: str, higher: int = 0) -> list[tuple[str, int | None]]:
    """Return addresses of lines such as `1 MB: 0x7fff0000`, in order; low ones as they are."""
    lines = re.findall(r"^(.+): (?:0x([0-9a-f]+)|failed)$", text, re.MULTILINE)
    return [
        (what, int(at, 16) + (0 if what == "low" else higher) if at else None) for what, at in lines
    ]


def libraries() -> dict[str, bytes]:
    """Return the interpreter and the C library that the program takes."""
    said = subprocess.run(["ldd", PROGRAM], capture_output=True, text=True, check=True).stdout
    found = (Path(path) for path in re.findall(r"(/\S+) \(0x", said))
    return {f"etc/{path.name}": path.read_bytes() for path in found}


@pytest.mark.parametrize("version", ["6.1", "6.12"])
def test_addresses_are_those_of_an_older_kernel(version):
    try:
        linux = kernel(version)
    except VmError as error:
        pytest.skip(str(error))
    files = Initramfs(programs={"addresses": PROGRAM}, files=libraries())
    with Guest(linux, files, memory_mib=1024) as guest:
        guest.check(SETUP)
        arenas = " ".join(f"{key}={value}" for key, value in ARENAS.items())
        natively = {case: guest.check(f"{arenas} addresses {case}") for case in CASES}
    command = [sys.executable, "-m", "contigua.cli", "run", "--designs", "linux-4k"]
    command += ["--detail", "translation", "--memory", "1GiB", "--linux", version, "--"]
    for case in CASES:
        simulated = subprocess.run(
            [*command, PROGRAM, case],
            capture_output=True,
            text=True,
            check=True,
            env=dict(os.environ) | ARENAS,
        ).stdout
        assert len(addresses(simulated)) > 6
        assert addresses(simulated, HIGHER) == addresses(natively[case]), case
