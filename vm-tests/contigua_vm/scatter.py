"""The workload that scatters kernel memory, and what a guest's memory is good for then."""

from __future__ import annotations

import json
import time
from typing import Any

from contigua_vm.errors import VmError
from contigua_vm.guest import Guest


class Scatter:
    """``workloads/scatter.c`` at work in a guest that has it as a program."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._answers = 0
        guest.check("mkfifo /run/scatter; scatter <>/run/scatter >/run/scattered 2>&1 &")

    def do(self, command: str, limit: float = 1800) -> str:
        """Have it do one thing, and wait.

        Raises
        ------
        VmError
            When it fails, or is killed for memory.
        """
        self._guest.check(f"echo '{command}' >/run/scatter")
        self._answers += 1
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            said = self._guest.check(
                "wc -l </run/scattered; tail -n 1 /run/scattered; pidof scatter || echo dead"
            ).splitlines()
            if int(said[0]) >= self._answers:
                if not said[1].startswith("ok"):
                    raise VmError(f"{command}: {said[1]}")
                return said[1]
            if said[-1] == "dead":
                log = self._guest.run("dmesg | grep -A 40 invoked").text
                raise VmError(f"{command}: the workload was killed:\n{log}")
            time.sleep(0.3)
        raise VmError(f"{command}: not done after {limit:.0f} s")


HUGE = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
GIGANTIC = "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"


def allocate(guest: Guest, file: str, wanted: int) -> int:
    """Ask a guest for huge pages, return how many it has then, and give them back."""
    guest.check(f"echo {wanted} >{file}", limit=300)
    got = int(guest.check(f"cat {file}"))
    guest.check(f"echo 0 >{file}")
    return got


def scan(guest: Guest) -> dict[str, Any]:
    """Return what ``contigua-node scan`` says about a guest."""
    report: dict[str, Any] = json.loads(guest.check("contigua-node scan --json", limit=300))
    return report


def status(guest: Guest) -> dict[str, Any]:
    """Return what ``contigua-node guard status`` says about a guest."""
    report: dict[str, Any] = json.loads(guest.check("contigua-node guard status --json"))
    return report
