"""A guest with a bit of every kind of memory in it, for tests of the rule that tells them apart."""

from __future__ import annotations

from contigua_vm.guest import Guest
from contigua_vm.scatter import HUGE, Scatter

#: Memory of the guest, and what may become movable at boot, in MiB.
MEMORY_MIB, MOVABLE_MIB = 512, 128


def play(guest: Guest) -> None:
    """Put in it: anonymous memory, page cache, pipes, socket queues, page tables, slab, pages of
    2 MB, transparent ones and of ``HugeTLB``; and free memory in single pages all over.

    Raises
    ------
    VmError
        When the guest does not give them.
    """
    scatter = Scatter(guest)
    scatter.do("fill 260")
    scatter.do("shed 24")
    scatter.do("take mix 12 kernel")
    guest.check(f"echo 4 >{HUGE}; [ $(cat {HUGE}) = 4 ]")
    guest.run("dd if=/dev/zero of=/tmp/file bs=1M count=16 2>/dev/null")
    guest.check("echo always >/sys/kernel/mm/transparent_hugepage/enabled")
    # A buffer of this size is in transparent huge pages.
    guest.check("dd if=/dev/zero of=/dev/null bs=16M >/dev/null 2>&1 & sleep 3")
    guest.check("killall -STOP dd; sleep 1")
