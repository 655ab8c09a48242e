"""Does a scan agree with what a kernel says about itself?"""

from __future__ import annotations

import json

import pytest

from contigua_vm import SUITES, Guest, Initramfs, VmError, kernel
from contigua_vm.medley import MEMORY_MIB, MOVABLE_MIB, play

#: The kernel's figures, in frames: free by buddyinfo, and the rest by meminfo and slabinfo.
FIGURES = """
awk '{ for (i = w = 1; i + 4 <= NF; i++) { n += $(i + 4) * w; w *= 2 } }
     END { print "free", n }' /proc/buddyinfo
awk '/^PageTables/ { print "page_table", $2 / 4 } /^AnonHugePages/ { print "thp", $2 / 4 }
     /^HugePages_Total/ { n = $2 } /^Hugepagesize/ { print "hugetlb", n * $2 / 4 }' /proc/meminfo
awk 'NR > 2 { n += $6 * $15 } END { print "slab", n }' /proc/slabinfo
"""
#: A few frames change hands between two looks: what the scan itself takes.
FEW = 64


@pytest.mark.parametrize("version", SUITES)
def test_a_scan_agrees_with_the_kernel(version, workloads, node):
    try:
        linux = kernel(version)
    except VmError as error:
        pytest.skip(str(error))
    programs = {**workloads, "contigua-node": node}
    options = f"nokaslr movablecore={MOVABLE_MIB}M" if version in ("5.10", "6.1") else "nokaslr"
    with Guest(
        linux, Initramfs(programs=programs), memory_mib=MEMORY_MIB, options=options
    ) as guest:
        play(guest)
        # In one command, so that little happens in between.
        before, scanned, after = guest.check(
            f"{FIGURES} echo ---; contigua-node scan --json; echo ---; {FIGURES}", limit=300
        ).split("---\n")
        frames = json.loads(scanned)["frames"]
        classes = frames["classes"]
        for line in zip(before.splitlines(), after.splitlines(), strict=True):
            (name, first), (_, last) = (each.split() for each in line)
            low, high = sorted((int(float(first)), int(float(last))))
            slack = high // 100 + FEW
            assert low - slack <= classes[name] <= high + slack, (name, line, classes[name])
            assert classes[name] > 0, name
        assert classes["page_cache"] > 16 * 256
        assert classes["anonymous"] > 0
        assert frames["outcome"]["unknown_bits"] == 0
        # Each frame of the machine has a class.
        assert sum(classes.values()) - classes["hole"] >= 0.99 * MEMORY_MIB * 256
        guest.assert_well()
