"""One server's life in minutes, with the guard or without: demand for kernel memory comes and goes
over a full memory, and at the end somebody wants huge pages."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from contigua_vm.guest import Guest
from contigua_vm.initramfs import Initramfs
from contigua_vm.kernels import kernel
from contigua_vm.programs import build_workloads, node_binary
from contigua_vm.scatter import GIGANTIC, HUGE, Scatter, allocate, scan

#: A guest of 2.625 GiB; the split is the only difference between the runs. The kernel's frame table
#: lies at the top, and the border moves into the lowest gigabyte above 4 GiB; a whole one is left.
MEMORY_MIB, LOW_MIB, MOVABLE_MIB = 2688, 512, 2048
SPLIT = f"movablecore={MOVABLE_MIB}M"
#: Memory that programs leave; both kernels let them, though two zones have two sets of watermarks.
LEAVES_MIB = 220
#: Free memory during the trades, in single pages all over.
FREE_MIB = 400
#: Rounds in which kernel memory that stays and such that goes alternate.
ROUNDS = 5
#: Memory that programs leave when they have grown; both guests can have that.
GROWN_MIB = 260


@dataclass(frozen=True)
class Outcome:
    """Result of a guest.

    Attributes
    ----------
    kernel
        Its ``uname -r``.
    memory_mib
        Memory that its kernel manages.
    gigantic_at_boot
        Pages of 1 GB that the kernel could allocate before anything ran.
    huge_pages, gigantic_pages
        Pages of 2 MB and of 1 GB that it could allocate at the end, one kind after the other, by
        ``nr_hugepages``.
    gigantic_by_guard
        Pages of 1 GB that it had after ``guard huge``, which was run in both guests.
    guard_huge_said
        What that command said.
    unmovable_mib
        Kernel memory at the end.
    unmovable_blocks
        Share of blocks of 2 MB with an unmovable frame, in percent.
    unmovable_in_movable
        Unmovable frames in the movable zone, boot's own left out; none without one.
    moved_up
        Blocks that the running guard gave to the kernel while demand for kernel memory grew.
    moved_down
        Blocks that came back after that demand had fallen, when programs wanted memory.
    given_up, refused
        Moves that failed and were undone, and decisions that were refused.
    failures
        Allocations that failed, by the kernel's log, and tasks killed for memory.
    restored
        Whether release brought every block back.
    log
        What the guard said.
    """

    kernel: str
    memory_mib: int
    gigantic_at_boot: int
    huge_pages: int
    gigantic_pages: int
    gigantic_by_guard: int
    guard_huge_said: str
    unmovable_mib: float
    unmovable_blocks: float
    unmovable_in_movable: int | None
    moved_up: int
    moved_down: int
    given_up: int
    refused: int
    failures: int
    restored: bool | None
    log: str


def live(
    is_guarded: bool,
    *,
    version: str = "6.1",
    pinned_mib: int = 16,
    resident_mib: int = 100,
    churn_mib: int = 0,
    burst_mib: int = 400,
    rate_mib: int = 10,
    progress: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Run it once.

    Parameters
    ----------
    is_guarded
        With the split and the guard, or on the kernel as it comes.
    version
        Which of Debian's kernels.
    pinned_mib
        Programs' memory that is pinned for long, as single pages.
    resident_mib
        Kernel memory that stays.
    churn_mib
        Kernel memory that comes among it, and goes before the burst.
    burst_mib
        Kernel memory that comes at once, and goes.
    rate_mib
        How much of it comes in a second of the guest's.
    progress
        Told what happens.

    Raises
    ------
    VmError
        When the guest dies, or the workload is killed for memory.
    """
    programs: dict[str, Path] = {**build_workloads(), "contigua-node": node_binary()}
    options = f"nokaslr {SPLIT if is_guarded else ''}"
    with Guest(
        kernel(version),
        Initramfs(programs=programs),
        memory_mib=MEMORY_MIB,
        low_mib=LOW_MIB,
        options=options,
    ) as guest:
        at_boot = allocate(guest, GIGANTIC, 64)
        progress(f"booted; {at_boot} pages of 1 GB")
        if is_guarded:
            guest.check(
                "(echo -900 >/proc/self/oom_score_adj; exec contigua-node guard "
                "--interval 500ms >/run/guard.log 2>&1) &"
            )
        demand = {
            "pinned_mib": pinned_mib,
            "resident_mib": resident_mib,
            "churn_mib": churn_mib,
            "burst_mib": burst_mib,
            "rate_mib": rate_mib,
        }
        growth, fall = _day(guest, is_guarded, demand, progress)
        huge = allocate(guest, HUGE, 1 << 20)
        progress(f"{huge} pages of 2 MB")
        gigantic = allocate(guest, GIGANTIC, 64)
        progress(f"{gigantic} pages of 1 GB")
        # No block may change sides while frames are counted.
        guest.run("killall contigua-node; while pidof contigua-node; do sleep 0.2; done")
        # Now that the kernel has looked everywhere, per-CPU lists, whose frames look like its own,
        # are almost empty.
        frames = scan(guest)["frames"]
        movable = ", ".join(
            f"{name} {count}" for name, count in frames["zones"][3].items() if count
        )
        progress(f"counted every frame; Movable: {movable}")
        by_guard, said = _gigantic(guest)
        progress(f"{by_guard} pages of 1 GB by guard huge: {said}")
        restored = None
        if is_guarded:
            release = guest.run("contigua-node guard release", limit=600)
            restored = release.code == 0
            progress(release.text.rstrip())
        guest.assert_well()
        killed = int(guest.check("grep -w oom_kill /proc/vmstat").split()[1])
        log = growth + fall
        return Outcome(
            kernel=guest.check("uname -r").strip(),
            memory_mib=int(guest.check("free -m | grep Mem").split()[1]),
            gigantic_at_boot=at_boot,
            huge_pages=huge,
            gigantic_pages=gigantic,
            gigantic_by_guard=by_guard,
            guard_huge_said=said,
            unmovable_mib=frames["contiguity"]["certain"]["unmovable_frames"] / 256,
            unmovable_blocks=_percent(frames["contiguity"]["certain"]["blocks_2m"]),
            unmovable_in_movable=_unmovable(frames["zones"]) if is_guarded else None,
            moved_up=len(re.findall(r"moved block \d+ from Movable", growth)),
            moved_down=len(re.findall(r"moved block \d+ from the kernel", fall)),
            given_up=log.count("gave up on block"),
            refused=log.count("refused: "),
            failures=killed + guest.kernel_log().count("page allocation failure"),
            restored=restored,
            log=log,
        )


def _day(
    guest: Guest,
    is_guarded: bool,
    demand: dict[str, int],
    progress: Callable[[str], None],
) -> tuple[str, str]:
    """Live it; what the guard said while demand for kernel memory grew, and then."""
    growth = [
        f"fill {LEAVES_MIB}",
        f"shed {FREE_MIB - LEAVES_MIB}",
        # Buffers for devices: with a movable zone, the kernel moves such pages out of it first.
        f"pin {demand['pinned_mib']} buffers",
        # What stays comes little by little, among what goes.
        *(
            f"trade mix {demand[f'{kind}_mib'] // ROUNDS} {kind} {demand['rate_mib']}"
            for _ in range(ROUNDS)
            for kind in ("resident", "churn")
        ),
        "drop churn",
        f"trade mix {demand['burst_mib']} burst {demand['rate_mib']}",
    ]
    fall = [
        "drop burst",
        # Now programs want more, little by little; the guard has time to see it.
        *(
            f"fill {leave}"
            for leave in range(FREE_MIB + demand["burst_mib"] // 2, GROWN_MIB - 1, -40)
        ),
        "clear",
    ]
    scatter = Scatter(guest)
    told: list[str] = []
    for commands in (growth, fall):
        heard = ""
        for command in commands:
            progress(scatter.do(command))
            guest.check("sleep 3")
            if is_guarded:
                new = guest.check("cat /run/guard.log")[len("".join(told) + heard) :]
                progress(new.rstrip())
                heard += new
        told.append(heard)
    return told[0], told[1]


def _gigantic(guest: Guest) -> tuple[int, str]:
    said = guest.run("contigua-node guard huge --count 64", limit=600).text.strip()
    pages = int(guest.check(f"cat {GIGANTIC}"))
    guest.check(f"echo 0 >{GIGANTIC}")
    return pages, said


def _percent(blocks: dict[str, int]) -> float:
    return 100.0 * blocks["unmovable"] / max(blocks["total"], 1)


def _unmovable(zones: list[dict[str, int]]) -> int:
    # x86-64's zones are DMA, DMA32, Normal, Movable, Device.
    return sum(zones[3][name] for name in ("slab", "page_table", "kernel"))
