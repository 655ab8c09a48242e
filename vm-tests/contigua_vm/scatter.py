"""The workload that scatters kernel memory, and what a guest's memory is good for then."""

from __future__ import annotations

import json
from typing import Any

from contigua_vm.errors import VmError
from contigua_vm.guest import Guest


class Scatter:
    """``workloads/scatter.c`` at work in a guest that has it as a program."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        guest.check(
            "mkfifo /run/scatter /run/scattered; scatter <>/run/scatter 1<>/run/scattered &"
        )

    def do(self, command: str, limit: float = 1800) -> str:
        """Have it do one thing, and wait.

        Raises
        ------
        VmError
            When it fails, is killed for memory, or takes longer than a limit in seconds.
        """
        # The answer has an end also if the program that was to give it is killed.
        said = self._guest.run(
            f"pidof scatter >/dev/null && echo '{command}' >/run/scatter && "
            "head -n 1 /run/scattered",
            limit,
        ).text.strip()
        if not said and self._guest.run("pidof scatter").code == 0:
            raise VmError(f"{command}: no end in {limit:.0f} s of the guest's")
        if not said:
            log = self._guest.run("dmesg | grep -A 40 invoked").text
            raise VmError(f"{command}: the workload was killed:\n{log}")
        if not said.startswith("ok"):
            raise VmError(f"{command}: {said}")
        return said


HUGE = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
GIGANTIC = "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"


def allocate(guest: Guest, file: str, wanted: int) -> int:
    """Ask a guest for huge pages, return how many it has then, and give them back.

    The kernel stops at its first failure, so it compacts memory and is asked again for as long as
    that helps.
    """
    got = int(
        guest.check(
            "last=-1; now=0; while [ $now -gt $last ]; do last=$now; "
            f"echo 1 >/proc/sys/vm/compact_memory; echo {wanted} >{file}; now=$(cat {file}); "
            "done; echo $now",
            limit=600,
        )
    )
    guest.check(f"echo 0 >{file}")
    return got


#: Memory that a guest keeps when all else becomes huge pages, or its programs are killed.
KEEPS_MIB = 150


def allocate_huge(guest: Guest) -> int:
    """Ask a guest for pages of 2 MB of all memory but a little, and return how many it has then."""
    free = int(guest.check("grep MemFree /proc/meminfo").split()[1]) // 1024
    return allocate(guest, HUGE, (free - KEEPS_MIB) // 2)


def scan(guest: Guest) -> dict[str, Any]:
    """Return what ``contigua-node scan`` says about a guest."""
    report: dict[str, Any] = json.loads(guest.check("contigua-node scan --json", limit=300))
    return report


def status(guest: Guest) -> dict[str, Any]:
    """Return what ``contigua-node guard status`` says about a guest."""
    report: dict[str, Any] = json.loads(guest.check("contigua-node guard status --json"))
    return report
