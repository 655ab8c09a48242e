"""The guard on a stock kernel: does it keep its promises?"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import contextmanager

import pytest

from contigua_vm import Guest, Initramfs
from contigua_vm.programs import CHECKOUT, GUEST
from contigua_vm.scatter import Scatter, scan, status

#: The kernel has 1 GiB and a block of its highest zone, block 32; the rest is movable. Without that
#: block, the first that moves would be the whole of that zone, which the kernel uses first, so that
#: it could not come back.
SPLIT = {"memory_mib": 2560, "low_mib": 1024, "options": "nokaslr movablecore=1408M"}
#: So large a reserve makes the kernel's zones short at once: one block moves for each look.
HURRY = "--once --reserve 1000MiB"
STEPS = [
    "before-intent",
    "during-store",
    "after-intent",
    "during-change",
    "during-change:2",
    "after-offline",
    "after-online",
    "during-store:2",
    "after-record",
]


@contextmanager
def guarded(linux, node, workloads, **options):
    programs = {**workloads, "contigua-node": node}
    with Guest(linux, Initramfs(programs=programs), **{**SPLIT, **options}) as guest:
        yield guest
        guest.assert_well()


def layout(guest):
    """Every block's state and zone."""
    lines = guest.check(
        "cd /sys/devices/system/memory; grep -H . memory*/state memory*/valid_zones"
    ).splitlines()
    blocks = {}
    for line in sorted(lines):
        name, value = line.split(":", 1)
        blocks.setdefault(name.split("/")[0], []).append(value)
    return {name: " ".join(values) for name, values in blocks.items()}


def movable(guest):
    return sorted(name for name, where in layout(guest).items() if where == "online Movable")


def test_the_border_moves_and_comes_back(linux, node, workloads):
    with guarded(linux, node, workloads) as guest:
        before = layout(guest)
        dry = guest.check(f"contigua-node guard {HURRY} --dry-run")
        assert re.search(
            r"dry run: would move block \d+ from Movable to the kernel's zones", dry
        ), dry
        assert layout(guest) == before
        told = guest.check(f"contigua-node guard {HURRY}")
        # Which one depends on what the guest's frames look like at the moment.
        moved = re.search(r"moved block (\d+) from Movable", told)
        assert moved and "below the" in told, told
        assert layout(guest) == {**before, f"memory{moved[1]}": "online Normal"}
        assert status(guest)["state"]["originals"] == {moved[1]: "movable"}
        told = guest.check("contigua-node guard release")
        assert told.endswith("every block is where it was\n")
        assert layout(guest) == before


def test_a_machine_without_a_split_is_told_what_to_do(linux, node, workloads):
    with guarded(linux, node, workloads, memory_mib=512, low_mib=None, options="") as guest:
        answer = guest.run("contigua-node guard --once")
        assert answer.code == 1
        assert "movablecore=SIZE" in answer.text
        assert answer.text.count("\n") == 1


@pytest.fixture(scope="module")
def mortal_node():
    """A guard that dies where the environment says, which the shipped one cannot."""
    target, flags = GUEST
    folder = CHECKOUT / "target" / "mortal"
    command = ["cargo", "build", "--quiet", "--locked", "--profile", "guest", "-p", "contigua-node"]
    command += ["--features", "fault-injection", "--target", target, "--target-dir", str(folder)]
    subprocess.run(command, cwd=CHECKOUT, check=True, env=os.environ | {"RUSTFLAGS": flags})
    return folder / target / "guest" / "contigua-node"


def test_the_guard_may_die_at_every_step(linux, mortal_node, workloads):
    with guarded(linux, mortal_node, workloads) as guest:
        before = layout(guest)
        for step in STEPS:
            died = guest.run(f"CONTIGUA_GUARD_FAULT={step} contigua-node guard {HURRY}")
            assert died.code == 134, f"{step}: {died.text}"
            settled = guest.run("contigua-node guard recover")
            assert settled.code == 0, f"{step}: {settled.text}"
            now = layout(guest)
            assert "offline" not in "".join(now.values()), step
            moved = {name: where for name, where in before.items() if now[name] != where}
            recorded = status(guest)["state"]["originals"]
            assert {f"memory{number}" for number in recorded} == set(moved), step
            assert set(moved.values()) <= {"online Movable"}, step
            guest.check("contigua-node guard release")
            assert layout(guest) == before, step
        # And at moments that nobody chose.
        for delay in range(0, 200, 20):
            guest.run(
                f"contigua-node guard --reserve 1000MiB --interval 50ms >/dev/null & "
                f"usleep {delay}000; kill -9 $!; wait"
            )
            guest.check("contigua-node guard recover")
            assert "offline" not in "".join(layout(guest).values()), delay
        guest.check("contigua-node guard release")
        assert layout(guest) == before


def test_a_block_that_does_not_go_is_given_up(linux, node, workloads):
    more = {"memory_mib": 3072, "options": "nokaslr movablecore=1920M"}
    with guarded(linux, node, workloads, **more) as guest:
        scatter = Scatter(guest)
        # 650 MiB in the lowest blocks of Movable, which are the first at the border.
        scatter.do("fill 2250")
        # Pages in pipes keep an additional reference, so that the kernel tries for ever.
        scatter.do("splice 2000 pinned")
        before = layout(guest)
        told = guest.check(f"contigua-node guard {HURRY} --limit 1s", limit=120)
        assert told.count("gave up on block") == 3, told
        assert "not done within 1 s" in told
        assert layout(guest) == before
        assert status(guest)["state"]["intent"] is None
        scatter.do("drop pinned")
        told = guest.check(f"contigua-node guard {HURRY}", limit=120)
        assert "moved block" in told


def test_memory_that_is_plugged_in_becomes_movable_and_whole(linux, node, workloads):
    options = "movable_node"
    with guarded(
        linux, node, workloads, memory_mib=1024, low_mib=None, options=options, hotplug_mib=4096
    ) as guest:
        known = set(layout(guest))
        guest.plug(2048)
        blocks = "$(ls -d /sys/devices/system/memory/memory* | wc -l)"
        guest.wait(f"[ {blocks} = {len(known) + 16} ]")
        assert movable(guest) == []
        guest.check("contigua-node guard --once --online-new movable --blocks-per-minute 99")
        assert len(movable(guest)) == 16
        # None of it holds anything that was there at boot: both gigabytes are contiguous.
        told = guest.check("contigua-node guard huge --count 1", limit=300)
        assert "node 0 has 1 HugeTLB pages of 1 GB now" in told
        hugetlb = [zone["hugetlb"] for zone in scan(guest)["frames"]["zones"]]
        assert sum(hugetlb) == 1 << 18
        guest.check("echo 0 > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages")
        # Ranges that were tried for the page were the kernel's, which may have put something of its
        # own there; release names such blocks, and brings all others back.
        told = guest.run("contigua-node guard release", limit=300)
        left = {f"memory{number}" for number in re.findall(r"(\d+) \(offline\)", told.text)}
        assert told.code == (1 if left else 0), told.text
        assert len(left) < 8, told.text
        now = layout(guest)
        assert movable(guest) == []
        assert {name for name in set(now) - known if now[name].startswith("online")} == left


def test_the_experiment_shows_what_the_guard_is_for(tmp_path):
    experiments = pytest.importorskip(
        "contigua_experiments", reason="contigua is not installed here (make setup)"
    )
    definition = experiments.find("guard-vm")
    result = experiments.run_experiment(definition, "quick", experiments.Context(tmp_path))
    values = result.outcome.values
    assert values["gigantic_without"] == 0
    assert values["gigantic_with"] >= 1
    assert values["in_movable"] == 0
    assert values["moved_up"] >= 1
    assert values["moved_down"] >= 1
    assert values["unmovable_with"] < values["unmovable_without"]
    # Without it, what is pinned pollutes most of them.
    assert values["huge_gain"] > 100
    assert values["failures"] == 0
    (sheet,) = result.outcome.sheets
    assert [head.partition(", ")[2] for head in sheet.heads] == ["", "without", "with the guard"]
    assert "<img" in (tmp_path / "index.html").read_text()
