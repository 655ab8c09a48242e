"""Kernel memory that is scattered on purpose, on any kernel, and what memory is good for then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from contigua_vm.errors import VmError
from contigua_vm.guest import Guest
from contigua_vm.initramfs import Initramfs
from contigua_vm.kernels import Kernel
from contigua_vm.programs import build_workloads, node_binary
from contigua_vm.scatter import GIGANTIC, Scatter, allocate, allocate_huge, scan

#: Of a guest, in MiB; all but the first share lies above 4 GiB in one piece.
MEMORY_MIB, LOW_MIB = 4096, 512
#: Memory that programs leave free when memory is full.
LEAVES_MIB = 80
#: Kernel memory, in MiB a second of the guest's.
RATE_MIB = 2000
#: Between two probes of allocation latency, in microseconds.
PROBE = 2000
#: Seconds of the guest's that a part of a wave may take; it takes less than one where memory comes.
TIMEOUT = 120
#: Sizes of blocks in a scan's report, and what they are called.
BLOCKS = {"blocks_2m": "2 MB", "blocks_4m": "4 MB", "blocks_32m": "32 MB", "blocks_1g": "1 GB"}


@dataclass(frozen=True)
class Latency:
    """Latency of allocations of one page, in nanoseconds of a guest that counts instructions."""

    count: int
    median: int
    p99: int
    p999: int
    longest: int


@dataclass(frozen=True)
class Outcome:
    """State of a guest's memory at the end.

    Attributes
    ----------
    release
        The kernel's ``uname -r``.
    memory_mib
        Memory that it manages.
    unmovable_mib
        Kernel memory at the end.
    polluted
        Share of blocks with an unmovable frame by their size, in percent.
    free_contiguity, potential_contiguity
        Share of blocks that are free, and that compaction could free, by their size, in percent;
        when huge pages have been asked for and given back.
    huge_pages, gigantic_pages
        Pages of 2 MB and of 1 GB that could be allocated when programs had given all memory back.
    latency
        Of an unmovable and of a movable page during the scenario.
    killed
        Tasks killed for memory.
    contiguitas
        What the kernel says of its borders at the end of the waves; empty without.
    stalled
        Microseconds in which tasks waited for ``unmovable`` and for ``movable`` memory; empty
        without.
    """

    release: str
    memory_mib: int
    unmovable_mib: float
    polluted: dict[str, float]
    free_contiguity: dict[str, float]
    potential_contiguity: dict[str, float]
    huge_pages: int
    gigantic_pages: int
    latency: dict[str, Latency]
    killed: int
    contiguitas: list[dict[str, str]] = field(default_factory=list)
    stalled: dict[str, int] = field(default_factory=dict)


def scatter(
    kernel: Kernel,
    kind: str,
    *,
    options: str = "",
    setting: str = "true",
    memory_mib: int = MEMORY_MIB,
    rounds: int = 8,
    stays_mib: int = 3,
    goes_mib: int = 75,
    progress: Callable[[str], None] = lambda _: None,
    log: Path | None = None,
) -> Outcome:
    """Fill memory, and let kernel memory come and go in it, in waves.

    A little of each wave stays, all over what the wave took, and programs fill what it leaves. The
    next wave must look for other places.

    Parameters
    ----------
    kernel
        What to boot.
    kind
        ``tables``, ``pipes``, ``sockets``, ``files`` or ``mix``.
    options
        More words for its command line.
    setting
        A command at the beginning.
    memory_mib
        Of the guest.
    rounds, stays_mib, goes_mib
        How many waves, and kernel memory that stays and goes in each of the four parts of one.
    progress
        Told what happens.
    log
        Where the kernel's log is kept.

    Raises
    ------
    VmError
        When the guest dies, the workload is killed for memory, or a part of a wave takes longer
        than ``TIMEOUT``.
    """
    programs: dict[str, Path] = {**build_workloads(), "contigua-node": node_binary()}
    with Guest(
        kernel,
        Initramfs(programs=programs),
        memory_mib=memory_mib,
        low_mib=LOW_MIB,
        options=f"nokaslr {options}",
        log=log,
    ) as guest:
        # One processor's lists may keep a zone's whole low watermark, and what programs give back
        # goes there first: here as little as on each of many processors.
        guest.check("echo 1000 >/proc/sys/vm/percpu_pagelist_high_fraction")
        # Watermarks are a smaller share of a server's memory than of a small guest's.
        guest.check(f"echo {memory_mib * 2} >/proc/sys/vm/min_free_kbytes")
        guest.check(setting)
        workload = Scatter(guest)
        progress(workload.do(f"fill {LEAVES_MIB}"))
        guest.check(f"latency {PROBE} >/run/latency & sleep 0.1")
        for number in range(rounds):
            for _ in range(4):
                workload.do(f"trade {kind} {goes_mib} goes{number} {RATE_MIB}", TIMEOUT)
                workload.do(f"trade {kind} {stays_mib} stays {RATE_MIB}", TIMEOUT)
            workload.do(f"drop goes{number}")
            progress(workload.do(f"fill {LEAVES_MIB}", TIMEOUT))
        guest.check("killall -TERM latency; while pidof latency >/dev/null; do sleep 0.1; done")
        latency = _latency(guest.check("cat /run/latency"))
        at_work = borders(guest)
        progress(workload.do("clear"))
        guest.check("sleep 3")
        huge = allocate_huge(guest)
        progress(f"{huge} pages of 2 MB")
        gigantic = allocate(guest, GIGANTIC, 64)
        progress(f"{gigantic} pages of 1 GB")
        # Not before: frames on per-CPU lists look like the kernel's own, and now these are empty.
        frames = scan(guest)["frames"]["contiguity"]["certain"]
        blocks = {name: frames[key] for key, name in BLOCKS.items()}
        guest.assert_well()
        return Outcome(
            release=guest.check("uname -r").strip(),
            memory_mib=int(guest.check("free -m | grep Mem").split()[1]),
            unmovable_mib=frames["unmovable_frames"] / 256,
            polluted=_shares(blocks, "unmovable"),
            free_contiguity=_shares(blocks, "free"),
            potential_contiguity=_shares(blocks, "potential"),
            huge_pages=huge,
            gigantic_pages=gigantic,
            latency=latency,
            killed=int(guest.check("grep -w oom_kill /proc/vmstat").split()[1]),
            contiguitas=at_work,
            stalled=stalled(guest),
        )


def borders(guest: Guest) -> list[dict[str, str]]:
    """Return what a kernel with Contiguitas says of each zone; nothing from one without."""
    answer = guest.run("cat /sys/kernel/mm/contiguitas/zones")
    if answer.code != 0:
        return []
    head, *lines = (line.split() for line in answer.text.splitlines())
    return [dict(zip(head, line, strict=True)) for line in lines]


def stalled(guest: Guest) -> dict[str, int]:
    """Return how long tasks waited for unmovable and for movable memory, in microseconds."""
    answer = guest.run("cat /sys/kernel/mm/contiguitas/pressure")
    if answer.code != 0:
        return {}
    return {line.split()[0]: int(line.rpartition("=")[2]) for line in answer.text.splitlines()}


def _latency(text: str) -> dict[str, Latency]:
    found = {}
    for line in text.splitlines():
        name, *numbers = line.split()
        found[name] = Latency(*map(int, numbers))
    if set(found) != {"movable", "unmovable"}:
        raise VmError(f"the probe of latencies said {text!r}")
    return found


def _shares(blocks: dict[str, dict[str, int]], what: str) -> dict[str, float]:
    return {name: 100.0 * block[what] / max(block["total"], 1) for name, block in blocks.items()}
