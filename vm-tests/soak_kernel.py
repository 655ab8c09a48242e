"""Long runs of a kernel with Contiguitas under the kernel's own checks: make test-kernel-full."""

from __future__ import annotations

import os
import random

import pytest

from contigua_vm import Guest, Initramfs
from contigua_vm.building import built_kernel
from contigua_vm.confinement import borders
from contigua_vm.scatter import GIGANTIC, HUGE, Scatter, allocate
from contigua_vm.suites import complaints

KINDS = ("tables", "pipes", "sockets", "files", "mix")


@pytest.mark.parametrize("processors", [1, 2])
def test_the_kernels_own_checks_find_nothing(processors, workloads, node, capfd):
    minutes = float(os.environ.get("MINUTES", "30"))
    kernel = built_kernel("6.1", is_changed=True, is_debug=True)
    programs = {**workloads, "contigua-node": node}
    options = "contiguitas=on page_poison=1 slub_debug=FZP nokaslr"
    choose = random.Random(1)
    with Guest(
        kernel,
        Initramfs(programs=programs),
        memory_mib=2048,
        low_mib=512,
        options=options,
        hotplug_mib=1024,
        processors=processors,
    ) as guest:
        started = float(guest.check("cut -d' ' -f1 /proc/uptime"))
        workload = Scatter(guest)
        rounds = 0
        # By the guest's own clock: with one processor, that is the work that it has done.
        while float(guest.check("cut -d' ' -f1 /proc/uptime")) - started < 60 * minutes:
            kind = choose.choice(KINDS)
            workload.do(f"fill {choose.randrange(200, 500)}")
            workload.do(f"trade {kind} {choose.randrange(20, 150)} goes 2000")
            workload.do(f"trade {choose.choice(KINDS)} 2 stays 2000")
            # A storm of forks, beside it all.
            guest.check("for i in $(seq 60); do (true | cat | cat >/dev/null) & done; wait")
            if choose.random() < 0.5:
                workload.do("drop goes")
            if choose.random() < 0.3:
                workload.do("clear")
                allocate(guest, HUGE, 200)
                allocate(guest, GIGANTIC, 1)
                workload.do("drop stays")
                workload.do("drop goes")
            if rounds == 3:
                guest.plug(512)
                guest.run(
                    "sleep 1; for block in /sys/devices/system/memory/memory*; do "
                    "grep -q offline $block/state && echo online >$block/state; done"
                )
            rounds += 1
        assert not complaints(guest.kernel_log())
        guest.assert_well()
        with capfd.disabled():
            print(f"\n{rounds} rounds in {minutes:g} minutes of the guest's; {borders(guest)}")
