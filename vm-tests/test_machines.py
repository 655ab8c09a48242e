"""The harness itself: does a machine boot, answer, take memory, and is its death noticed?"""

from __future__ import annotations

import pytest

from contigua_vm import SUITES, Guest, GuestDied, Initramfs, VmError, kernel


@pytest.mark.short
def test_a_guest_boots_answers_and_takes_memory(linux):
    files = {"etc/question": b"\x00\xff42\n"}
    with Guest(linux, Initramfs(files=files), memory_mib=512, hotplug_mib=1024) as guest:
        assert guest.check("uname -r").strip() == linux.release
        assert guest.read("/etc/question") == files["etc/question"]
        assert guest.run("echo no >&2; exit 3").code == 3
        assert guest.run("echo no >&2; exit 3").text == "no\n"
        assert guest.run("sleep 60", limit=1).code == 137
        count = "ls -d /sys/devices/system/memory/memory* | wc -l"
        before = int(guest.check(count))
        guest.plug(256)
        guest.wait(f"[ $({count}) = {before + 2} ]")
        assert guest.check("cat /proc/pressure/memory").startswith("some avg10=")
        guest.assert_well()


def test_a_panic_is_noticed_with_the_end_of_the_log(linux):
    with (
        Guest(linux, Initramfs(), memory_mib=512) as guest,
        pytest.raises(GuestDied, match="sysrq triggered crash"),
    ):
        guest.run("sync; echo c > /proc/sysrq-trigger; sleep 60")


@pytest.mark.parametrize("version", [version for version in SUITES if version != "6.1"])
def test_other_kernels_boot(version):
    try:
        other = kernel(version)
    except VmError as error:
        pytest.skip(str(error))
    with Guest(other, Initramfs(), memory_mib=512, numa_nodes=2) as guest:
        assert guest.check("uname -r").startswith(f"{version}.")
        assert guest.check("ls /sys/devices/system/node | grep -c 'node[01]'") == "2\n"
