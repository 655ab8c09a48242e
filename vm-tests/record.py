#!/usr/bin/env python3
"""Record what Debian's kernels say about every frame of a guest with a bit of everything in it.

    vm-tests/record.py [VERSION...]

writes crates/live/tests/fixtures/linux-VERSION/: `kpageflags.zst` (the file's little-endian words),
`iomem` and `zoneinfo`, and the kernel's own figures taken before and after it was read.
"""

from __future__ import annotations

import sys

import pyarrow

from contigua_vm import SUITES, Guest, Initramfs, kernel
from contigua_vm.programs import CHECKOUT, build_workloads
from contigua_vm.scatter import HUGE, Scatter

FIXTURES = CHECKOUT / "crates" / "live" / "tests" / "fixtures"
AROUND = ["meminfo", "buddyinfo", "vmstat", "slabinfo"]
ONCE = ["iomem", "zoneinfo", "version", "cmdline"]


def record(version: str) -> None:
    programs = build_workloads()
    with Guest(
        kernel(version),
        Initramfs(programs=programs),
        memory_mib=512,
        # Where two zones would have little each, reclaim of the second spins on newer kernels.
        options="nokaslr" if version == "6.12" else "nokaslr movablecore=128M",
    ) as guest:
        scatter = Scatter(guest)
        scatter.do("fill 260")
        scatter.do("shed 24")
        scatter.do("take mix 12 kernel")
        guest.check(f"echo 4 >{HUGE}")
        guest.run("echo always >/sys/kernel/mm/transparent_hugepage/enabled")
        # A buffer of this size is in transparent huge pages.
        guest.check("dd if=/dev/zero of=/dev/null bs=16M >/dev/null 2>&1 & sleep 3")
        guest.check("killall -STOP dd; sleep 1")
        # Reading the figures of each moment in one command leaves the guest little time to change.
        guest.check(
            "mkdir /run/before /run/after; cd /proc; "
            f"cp {' '.join(AROUND)} /run/before; cat kpageflags >/run/kpageflags; "
            f"cp {' '.join(AROUND)} /run/after"
        )
        folder = FIXTURES / f"linux-{version}"
        for moment in ("before", "after"):
            (folder / moment).mkdir(parents=True, exist_ok=True)
            for name in AROUND:
                (folder / moment / name).write_bytes(guest.read(f"/run/{moment}/{name}"))
        for name in ONCE:
            (folder / name).write_bytes(guest.read(f"/proc/{name}"))
        flags = guest.read("/run/kpageflags")
        packed = pyarrow.Codec("zstd", compression_level=19).compress(flags, asbytes=True)
        (folder / "kpageflags.zst").write_bytes(packed)
        print(f"{version}: {len(flags) // 8} frames in {len(packed)} bytes")


for each in sys.argv[1:] or SUITES:
    record(each)
