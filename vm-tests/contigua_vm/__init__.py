"""Virtual machines for tests: Debian's stock kernels under QEMU, booted in seconds.

Nothing is installed in or mounted from the host: a kernel is a file from a package, its root file
system an archive made for one boot, and commands travel over a serial line.
"""

from __future__ import annotations

from contigua_vm.errors import GuestDied, Unavailable, VmError
from contigua_vm.guest import Answer, Guest
from contigua_vm.initramfs import Initramfs
from contigua_vm.kernels import SUITES, Kernel, kernel
from contigua_vm.requirements import missing_requirement

__all__ = [
    "SUITES",
    "Answer",
    "Guest",
    "GuestDied",
    "Initramfs",
    "Kernel",
    "Unavailable",
    "VmError",
    "kernel",
    "missing_requirement",
]
