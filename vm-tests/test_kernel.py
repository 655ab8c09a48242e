"""A kernel with Contiguitas in virtual machines; `make kernel` builds it."""

from __future__ import annotations

import pytest

from contigua_vm import Guest, Initramfs, VmError
from contigua_vm.building import built_kernel, is_built
from contigua_vm.confinement import borders, scatter, stalled
from contigua_vm.cost import measure
from contigua_vm.scatter import GIGANTIC, Scatter, allocate, allocate_huge

SERIES = "6.1"
#: Of the stock kernel's instructions, where more than 3 % are known: watermarks of single movable
#: pages are a difference of two counts, and movable pages are counted twice where they go on and
#: off free lists, as they are of the type CMA.
MOST_WHEN_ON = {
    "movable_0": 1.05,
    "movable_0_batch": 1.1,
    "movable_2_batch": 1.1,
    "movable_4": 1.05,
}


@pytest.fixture(scope="module")
def changed():
    if not is_built(SERIES):
        pytest.skip("no kernel with Contiguitas is built here; `make kernel` does that, in minutes")
    try:
        return built_kernel(SERIES, is_changed=True)
    except VmError as error:
        pytest.skip(str(error))


@pytest.fixture
def guest(changed, workloads, node):
    def boot(options="contiguitas=on", **more):
        programs = {**workloads, "contigua-node": node}
        files = Initramfs(programs=programs)
        settings = {"memory_mib": 1024, "low_mib": 512, **more}
        return Guest(changed, files, options=f"nokaslr {options}", **settings)

    return boot


def border(guest, zone="Normal"):
    return next(line for line in borders(guest) if line["zone"] == zone)


def unmovable_mib(guest):
    return sum(int(line["unmovable_mib"]) for line in borders(guest))


def blocks_of_types(guest, zone="Normal"):
    lines = guest.check("cat /proc/pagetypeinfo").split("Number of blocks type")[1].splitlines()
    names = lines[0].split()
    numbers = next(line for line in lines if line.split()[3:4] == [zone]).split()[4:]
    return dict(zip(names, map(int, numbers), strict=True))


def test_without_the_parameter_nothing_is_there(guest):
    with guest(options="") as machine:
        assert machine.run("ls /sys/kernel/mm/contiguitas").code != 0
        assert blocks_of_types(machine)["CMA"] == 0
        machine.assert_well()


@pytest.mark.parametrize("bad", ["yes", "0", "100%", "1k"])
def test_a_parameter_that_means_nothing_is_said_and_ignored(guest, bad):
    with guest(options=f"contiguitas={bad}") as machine:
        assert machine.run("ls /sys/kernel/mm/contiguitas").code != 0
        assert "is neither on, off, a size nor a share" in machine.check("dmesg")
        machine.assert_well()


def test_each_pageblock_has_the_type_of_its_side(guest):
    with guest(options="contiguitas=128M") as machine:
        zone = border(machine)
        types = blocks_of_types(machine)
        assert types["Movable"] == 0
        below = types["Unmovable"] + types["Reclaimable"] + types["HighAtomic"]
        # What the kernel allocates before it knows its nodes lies at the top, in a block or so.
        assert 0 <= below - int(zone["unmovable_mib"]) // 2 <= 1
        assert 0 <= int(zone["movable_mib"]) // 2 - types["CMA"] <= 1
        total = sum(int(line["unmovable_free_mib"]) for line in borders(machine))
        # The kernel has taken some of it by now.
        assert 40 <= total <= 128
        machine.assert_well()


def test_bounce_buffers_do_not_leave_boot_without_unmovable_memory(guest):
    # 64 MB below 4 GB, because memory above may be plugged in; the region begins with as much.
    with guest(memory_mib=1024, low_mib=None, hotplug_mib=4096) as machine:
        assert int(border(machine, "DMA32")["unmovable_mib"]) >= 128
        machine.assert_well()


def test_the_border_follows_demand_up_and_down(guest):
    with guest(options="contiguitas=64M") as machine:
        workload = Scatter(machine)
        before = unmovable_mib(machine)
        workload.do("take tables 250 burst")
        high = unmovable_mib(machine)
        assert high >= before + 150
        workload.do("drop burst")
        # Programs want what the burst had.
        workload.do("fill 220")
        assert unmovable_mib(machine) < high
        assert int(machine.check("grep -w oom_kill /proc/vmstat").split()[1]) == 0
        machine.assert_well()


def test_pins_leave_the_movable_side(guest):
    with guest() as machine:
        workload = Scatter(machine)
        workload.do("fill 300")
        workload.do("pin 8 buffers")
        workload.do("clear")
        # 2,000 pages at random places would be in every block.
        movable = sum(int(line["movable_mib"]) for line in borders(machine))
        assert 2 * allocate_huge(machine) >= 0.7 * movable
        machine.assert_well()


def test_gigantic_pages_come_from_the_movable_side_at_run_time(guest):
    with guest(memory_mib=3072) as machine:
        workload = Scatter(machine)
        workload.do("fill 1600")
        workload.do("take mix 60 kernel")
        assert allocate(machine, GIGANTIC, 4) >= 1
        machine.assert_well()


def test_memory_that_is_plugged_in_is_movable(guest):
    with guest(hotplug_mib=512) as machine:
        before = int(border(machine)["movable_mib"])
        machine.plug(256)
        machine.check(
            "sleep 1; for block in /sys/devices/system/memory/memory*; do "
            "grep -q offline $block/state && echo online >$block/state; done; true"
        )
        assert int(border(machine)["movable_mib"]) >= before + 240
        machine.assert_well()


def test_a_cma_area_stays_where_the_border_passes_it(guest):
    with guest(options="contiguitas=64M cma=64M") as machine:
        workload = Scatter(machine)
        workload.do("take tables 200 burst")
        assert "CmaTotal:          65536 kB" in machine.check("cat /proc/meminfo")
        assert blocks_of_types(machine)["CMA"] + blocks_of_types(machine, "DMA32")["CMA"] >= 32
        machine.assert_well()


@pytest.mark.parametrize("kind", ["tables", "pipes"])
def test_out_of_memory_by_the_kernels_own_kills_only_when_memory_is_gone(guest, kind):
    with guest(memory_mib=768) as machine:
        with pytest.raises(VmError, match="was killed"):
            Scatter(machine).do(f"take {kind} 2000 all")
        assert int(machine.check("grep -w oom_kill /proc/vmstat").split()[1]) == 1
        # It had most of memory: the border had gone all the way.
        assert "Out of memory: Killed process" in machine.check("dmesg")
        assert sum(int(line["unmovable_mib"]) for line in borders(machine)) > 450
        assert sum(stalled(machine).values()) > 0
        # And the machine goes on.
        machine.check("dd if=/dev/zero of=/tmp/file bs=1M count=20")
        machine.assert_well()


@pytest.mark.long
def test_suspend_to_idle_freezes_and_thaws_the_thread(guest):
    with guest() as machine:
        machine.check("echo freezer >/sys/power/pm_test; echo freeze >/sys/power/state", 60)
        Scatter(machine).do("take tables 120 more")
        machine.assert_well()


def test_each_numa_node_has_its_borders(guest):
    with guest(memory_mib=1024, numa_nodes=2, low_mib=None) as machine:
        nodes = {line["node"] for line in borders(machine)}
        assert nodes == {"0", "1"}
        Scatter(machine).do("take tables 100 burst")
        machine.assert_well()


def test_two_processors_that_allocate_at_once_keep_to_their_sides(guest):
    with guest(processors=2) as machine:
        assert machine.check("nproc").strip() == "2"
        workload = Scatter(machine)
        workload.do("fill 250")
        # Movable memory and processes on one of them, kernel memory on either.
        machine.check(
            "while [ ! -e /run/enough ]; do dd if=/dev/zero of=/tmp/file bs=1M count=40; "
            "for i in $(seq 20); do true | cat; done; rm /tmp/file; done >/dev/null 2>&1 & "
            "echo $! >/run/other"
        )
        for _ in range(4):
            workload.do("trade tables 60 goes 2000")
            workload.do("trade mix 5 stays 2000")
            workload.do("drop goes")
        machine.check("touch /run/enough; while [ -e /proc/$(cat /run/other) ]; do sleep 0.1; done")
        types = blocks_of_types(machine)
        assert types["Movable"] == 0
        assert 0 <= int(border(machine)["movable_mib"]) // 2 - types["CMA"] <= 5
        workload.do("clear")
        movable = sum(int(line["movable_mib"]) for line in borders(machine))
        assert 2 * allocate_huge(machine) >= 0.7 * movable
        machine.assert_well()


@pytest.mark.long
def test_scattering_leaves_more_than_on_the_stock_kernel(changed):
    plain = built_kernel(SERIES, is_changed=False)
    settings = {"memory_mib": 2048, "rounds": 4, "goes_mib": 40, "stays_mib": 2}
    before = scatter(plain, "tables", **settings)
    after = scatter(changed, "tables", options="contiguitas=on", **settings)
    assert after.polluted["2 MB"] < before.polluted["2 MB"]
    assert after.huge_pages > before.huge_pages
    assert after.killed == before.killed == 0


def test_off_it_costs_nothing_and_on_it_costs_little(changed):
    plain = built_kernel(SERIES, is_changed=False)
    stock, off, on = measure(plain), measure(changed), measure(changed, "contiguitas=on")
    # A clock that counts instructions counts these.
    assert 100_001 <= stock.operations["loop"] < 100_050
    for name, before in stock.operations.items():
        # From boot to boot the least differs by almost a percent.
        assert off.operations[name] <= 1.01 * before, name
        assert on.operations[name] <= 1.03 * before, name
    for name, before in stock.allocations.items():
        # A branch that is patched out is an instruction, too.
        assert off.allocations[name] <= 1.02 * before, name
        assert on.allocations[name] <= MOST_WHEN_ON.get(name, 1.03) * before, name
