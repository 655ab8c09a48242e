"""The series of ``kernel/series`` in virtual machines: make test-kernel-series."""

from __future__ import annotations

import re

import pytest

from contigua_vm import VmError
from contigua_vm.series import built_series, run_guest

#: Shell functions for scripts: the workload that scatters kernel memory, the sums of what borders
#: say, the kernel's own tests again, and tasks that were killed for memory.
FUNCTIONS = """
mkfifo /run/scatter /run/scattered
(echo 0 >/proc/self/oom_score_adj
  exec scatter <>/run/scatter 1<>/run/scattered 2>/dev/null) &
workload=$!
ask() { echo "$*" >/run/scatter
  head -n 1 /run/scattered | grep -q ^ok || { echo "failed: $*"; exit 1; }; }
sum() { total=0; for file in /sys/kernel/mm/contiguitas/*/$1; do
  total=$((total + $(cat $file))); done; echo "$2=$total"; }
again() { echo >/sys/kernel/debug/kunit/contiguitas/run
  grep -q '# contiguitas: pass:12 fail:0 skip:0' /sys/kernel/debug/kunit/contiguitas/results &&
  echo "$1=1" || { cat /sys/kernel/debug/kunit/contiguitas/results; echo "$1=0"; }; }
say() { echo "$1=$(grep -w "$2" $3 | grep -o '[0-9]*' | tail -n 1)"; }
"""


@pytest.fixture(scope="module")
def guest(workloads):
    try:
        image = built_series()
    except VmError as error:
        pytest.skip(str(error))

    def run(script, **settings):
        programs = {name: workloads[name] for name in ("scatter", "latency")}
        answer = run_guest(image, FUNCTIONS + script, programs=programs, **settings)
        assert answer.code == 0, answer.text
        return answer

    return run


def test_the_kernels_own_tests_pass_at_boot(guest):
    answer = guest("dmesg | grep contiguitas")
    assert "# contiguitas: pass:12 fail:0 skip:0" in answer.text


def test_without_the_parameter_nothing_is_there(guest):
    answer = guest("ls /sys/kernel/mm; dmesg | grep contiguitas:", options="")
    assert not re.search("^contiguitas$", answer.text, re.MULTILINE)
    # What asks for borders is skipped.
    assert "# contiguitas: pass:9 fail:0 skip:3" in answer.text


@pytest.mark.parametrize("bad", ["yes", "0", "100%", "1k", "5%%"])
def test_a_parameter_that_means_nothing_is_said_and_ignored(guest, bad):
    answer = guest("ls /sys/kernel/mm; dmesg | grep neither", options=f"contiguitas={bad}")
    assert "is neither on, off, a size nor a share" in answer.text
    assert not re.search("^contiguitas$", answer.text, re.MULTILINE)


def test_the_least_unmovable_memory_is_kept(guest):
    answer = guest(
        "sum unmovable_pages pages; sleep 5; sum unmovable_pages later", options="contiguitas=128M"
    )
    assert answer.number("pages") >= 128 * 256 - 512
    assert answer.number("later") >= 128 * 256 - 512


@pytest.mark.parametrize("processors", [1, 2])
def test_the_selftest_passes(guest, processors):
    answer = guest("selftest", processors=processors)
    assert "# Totals: pass:4 fail:0" in answer.text


def test_cma_counters_count_cma_areas_only(guest):
    answer = guest("say total CmaTotal /proc/meminfo; say free CmaFree /proc/meminfo")
    assert answer.number("total") == answer.number("free") == 0


@pytest.mark.parametrize("kind", ["tables", "pipes", "files"])
def test_no_page_lies_on_the_wrong_side_after_waves_in_full_memory(guest, kind):
    answer = guest(f"""
ask fill 30
for wave in 1 2 3; do
  ask trade {kind} 40 goes 2000
  ask trade {kind} 3 stays 2000
  ask drop goes
  ask fill 30
done
again full
sum pages_evacuated evacuated
ask clear
sleep 6
again empty
say killed oom_kill /proc/vmstat
""")
    assert answer.number("full") == answer.number("empty") == 1
    assert answer.number("killed") == 0


def test_memory_of_a_burst_is_movable_again_when_demand_ends(guest):
    answer = guest("""
sum unmovable_pages border
sum movable_free_pages before
ask take tables 150 burst
sum unmovable_pages high
sum movable_free_pages low
ask drop burst
sleep 8
sum movable_free_pages after
again well
""")
    assert answer.number("high") > answer.number("border") + 100 * 256
    assert answer.number("low") < answer.number("before") - 100 * 256
    # Few pages that stay may keep the border up; empty blocks below it are lent.
    assert answer.number("after") > answer.number("before") - 16 * 256
    assert answer.number("well") == 1


def test_programs_have_what_a_burst_had(guest):
    # At once, and nobody dies of the border.
    answer = guest("""
ask take tables 200 burst
ask drop burst
ask fill 40
say killed oom_kill /proc/vmstat
again well
""")
    assert answer.number("killed") == 0
    assert answer.number("well") == 1


@pytest.mark.parametrize("kind", ["tables", "pipes"])
def test_a_task_is_killed_only_when_memory_is_gone(guest, kind):
    answer = guest(f"""
echo "take {kind} 2000 all" >/run/scatter
wait $workload
say killed oom_kill /proc/vmstat
dmesg | grep -o 'DMA32 free:[0-9]*kB' | tail -n 1 | sed 's/.*:/free=/; s/kB//'
dd if=/dev/zero of=/tmp/file bs=1M count=20
again well
""")
    assert answer.number("killed") == 1
    # Of 512 MB.
    assert answer.number("free") < 32 * 1024
    assert answer.number("well") == 1


def test_large_watermarks_do_not_inflate_the_unmovable_side(guest):
    script = "echo 1000 >/proc/sys/vm/watermark_scale_factor; ask take tables 8 t; sleep 6; "
    large = guest(script + "sum unmovable_pages pages").number("pages")
    usual = guest("ask take tables 8 t; sleep 6; sum unmovable_pages pages").number("pages")
    # The high watermark is a fifth of memory, of which a quarter holds for the side.
    assert large - usual < 512 * 256 // 16


def test_the_unmovable_side_stays_small_and_the_rest_becomes_huge_pages(guest):
    answer = guest("""
ask fill 30
for wave in 1 2 3; do
  ask trade tables 40 goes 2000
  ask trade tables 3 stays 2000
  ask drop goes
  ask fill 30
done
sum unmovable_pages side
ask clear
sleep 4
echo 1 >/proc/sys/vm/compact_memory
echo 200 >/proc/sys/vm/nr_hugepages
echo huge=$(cat /proc/sys/vm/nr_hugepages)
""")
    # Of 512 MB, of which waves had 43 at once; empty blocks below the border are lent.
    assert answer.number("side") < 128 * 256
    assert answer.number("huge") == 200


def test_unmovable_requests_in_full_memory_do_not_wait_long(guest, capfd):
    script = """
echo 1000 >/proc/sys/vm/percpu_pagelist_high_fraction
ask fill 30
latency 2000 >/run/latency &
sleep 0.1
for wave in 1 2 3 4; do
  ask trade tables 40 goes 2000
  ask trade tables 2 stays 2000
  ask drop goes
  ask fill 30
done
killall -TERM latency; while pidof latency >/dev/null; do sleep 0.1; done
sed 's/^movable/M/; s/^unmovable/U/' /run/latency |
while read -r side count median p99 p999 longest; do
  echo "$side.count=$count"; echo "$side.p999=$p999"; echo "$side.longest=$longest"
done
"""
    stock, ours = guest(script, options=""), guest(script)
    with capfd.disabled():
        for name, answer in (("stock", stock), ("Contiguitas", ours)):
            numbers = [
                f"{side}{part} {answer.number(f'{side}.{part}')}"
                for side in "UM"
                for part in ("count", "p999", "longest")
            ]
            print(f"\n{name}, in nanoseconds of a guest that counts instructions: {numbers}")
    assert ours.number("U.p999") <= max(1_000_000, 2 * stock.number("U.p999"))
    assert ours.number("U.longest") < 10_000_000
