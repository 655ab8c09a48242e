#!/usr/bin/env python3
"""Record how many frames of Debian's kernels have which flags, in guests with a bit of everything.

    vm-tests/record.py [CONFIGURATION...]

writes crates/live/tests/recorded/linux-CONFIGURATION.txt, the output of ``contigua-node record``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from contigua_vm import Guest, Initramfs, kernel
from contigua_vm.medley import MEMORY_MIB, MOVABLE_MIB, play
from contigua_vm.programs import CHECKOUT, build_workloads, node_binary

RECORDED = CHECKOUT / "crates" / "live" / "tests" / "recorded"


@dataclass(frozen=True)
class Configuration:
    """A kernel, words for its command line, and what is done to it at first."""

    version: str
    options: str = ""
    setting: str = "true"


#: Cgroups of version 1: frames are charged to them in another way than to those of version 2.
CGROUP_V1 = (
    "umount /sys/fs/cgroup; mount -t cgroup -o memory cgroup /sys/fs/cgroup; "
    "mkdir /sys/fs/cgroup/some; echo $PPID >/sys/fs/cgroup/some/cgroup.procs"
)
CONFIGURATIONS = {
    "5.10": Configuration("5.10"),
    "5.10-movablecore": Configuration("5.10", f"movablecore={MOVABLE_MIB}M"),
    "6.1": Configuration("6.1"),
    "6.1-movablecore": Configuration("6.1", f"movablecore={MOVABLE_MIB}M"),
    "6.1-page-owner": Configuration("6.1", "page_owner=on"),
    "6.1-cgroup-v1": Configuration("6.1", "", CGROUP_V1),
    "6.1-thp-always": Configuration("6.1", "transparent_hugepage=always"),
    "6.12": Configuration("6.12"),
}


def record(name: str) -> None:
    """Boot a configuration and write what its frames look like."""
    configuration = CONFIGURATIONS[name]
    programs = {**build_workloads(), "contigua-node": node_binary()}
    with Guest(
        kernel(configuration.version),
        Initramfs(programs=programs),
        memory_mib=MEMORY_MIB,
        options=f"nokaslr {configuration.options}",
    ) as guest:
        guest.check(configuration.setting)
        play(guest)
        text = guest.check("contigua-node record", limit=300)
        (RECORDED / f"linux-{name}.txt").write_text(text)
        print(f"{name}: {text.splitlines()[0]}, {len(text.splitlines())} lines", flush=True)


for each in sys.argv[1:] or CONFIGURATIONS:
    record(each)
