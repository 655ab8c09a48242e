"""Cost of a kernel's allocations while memory is plentiful, counted in instructions.

A guest's clocks are its count of instructions, so that a loop takes as long in each run, whatever
else its host does.
"""

from __future__ import annotations

from dataclasses import dataclass

from contigua_vm.guest import Guest
from contigua_vm.initramfs import Initramfs
from contigua_vm.kernels import Kernel
from contigua_vm.programs import build_workloads

#: Ticks of the time-stamp counter in an instruction, which are nanoseconds.
TICKS = 4


@dataclass(frozen=True)
class Cost:
    """Cost of a kernel.

    Attributes
    ----------
    allocations
        Instructions of an allocation and its free, by the names of ``modules/page_cost.c``.
    operations
        Instructions of what programs do, by the names of ``workloads/operations.c``.
    """

    allocations: dict[str, float]
    operations: dict[str, float]


def measure(kernel: Kernel, options: str = "") -> Cost:
    """Measure a kernel that was built here.

    Parameters
    ----------
    kernel
        What to boot.
    options
        More words for its command line.

    Raises
    ------
    VmError
        When the guest dies, or something fails in it.
    """
    programs = {"operations": build_workloads()["operations"]}
    module = kernel.module("page_cost").read_bytes()
    files = Initramfs(programs=programs, files={"page_cost.ko": module})
    options = f"nokaslr norandmaps {options}"
    with Guest(kernel, files, memory_mib=2048, low_mib=512, options=options) as guest:
        # One processor's lists may hold as much as many processors' lists; here they end soon.
        guest.check("echo 1000 >/proc/sys/vm/percpu_pagelist_high_fraction")
        guest.check("insmod /page_cost.ko")
        allocations = guest.check("dmesg | sed -n 's/^page_cost: pairs //p'")
        guest.check("echo 0 >/proc/sys/vm/percpu_pagelist_high_fraction")
        operations = guest.check("operations", limit=300)
        guest.assert_well()
    return Cost(_of_lines(allocations), _of_lines(operations))


def _of_lines(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        name, count, least, _ = line.split()
        found[name] = int(least) / TICKS / int(count)
    return found
