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

#: A guest of 3.25 GiB; the split is the only difference between the runs. The kernel's frame table
#: lies at the top, and the border moves into the lowest gigabyte above 4 GiB; a whole one is left.
MEMORY_MIB, LOW_MIB, MOVABLE_MIB = 3328, 1024, 2048
SPLIT = f"movablecore={MOVABLE_MIB}M"
RESERVE_MIB = 32
#: Memory that the kernel lets a program leave at the least: two zones have two sets of watermarks,
#: and the kernel's zone keeps a share for itself.
LEAVES_MIB = {False: 110, True: 260}
#: Free memory during the trades, in single pages all over.
FREE_MIB = 500


@dataclass(frozen=True)
class Outcome:
    """What became of a guest.

    Attributes
    ----------
    kernel
        Its ``uname -r``.
    memory_mib
        Memory that its kernel manages.
    huge_pages, gigantic_pages
        Pages of 2 MB and of 1 GB that it could allocate at the end, one kind after the other.
    unmovable_mib
        Kernel memory at the end.
    unmovable_blocks
        Share of blocks of 2 MB with an unmovable frame, in percent.
    unmovable_in_movable
        Unmovable frames in the movable zone, boot's own left out; none without one.
    moved_up, moved_down
        Blocks that went to the kernel's zones and back.
    given_up, refused
        Moves that failed and were undone, and decisions that were refused.
    restored
        Whether release brought every block back.
    log
        What the guard said.
    """

    kernel: str
    memory_mib: int
    huge_pages: int
    gigantic_pages: int
    unmovable_mib: float
    unmovable_blocks: float
    unmovable_in_movable: int | None
    moved_up: int
    moved_down: int
    given_up: int
    refused: int
    restored: bool | None
    log: str


def live(
    is_guarded: bool,
    *,
    version: str = "6.1",
    resident_mib: int = 150,
    burst_mib: int = 300,
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
    resident_mib
        Kernel memory that stays.
    burst_mib
        Kernel memory that comes and goes.
    rate_mib
        How much of it comes in a second.
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
        if is_guarded:
            guest.check(
                "(echo -900 >/proc/self/oom_score_adj; exec contigua-node guard "
                f"--reserve {RESERVE_MIB}MiB --interval 500ms >/run/guard.log 2>&1) &"
            )
        scatter = Scatter(guest)
        leaves = LEAVES_MIB[is_guarded]
        day = [
            f"fill {leaves}",
            f"shed {FREE_MIB - leaves}",
            f"trade mix {resident_mib} resident {rate_mib}",
            f"trade mix {burst_mib} burst {rate_mib}",
            "drop burst",
            # Now programs want more, little by little; the guard has time to see it.
            *(f"fill {leave}" for leave in range(FREE_MIB, leaves + 40, -50)),
            "clear",
        ]
        try:
            for command in day:
                progress(scatter.do(command))
                guest.check("sleep 3")
        finally:
            log = guest.run("cat /run/guard.log").text if is_guarded else ""
            progress(log)
        frames = scan(guest)["frames"]
        huge = allocate(guest, HUGE, 1 << 20)
        gigantic, restored = _gigantic(guest, is_guarded)
        guest.assert_well()
        return Outcome(
            kernel=guest.check("uname -r").strip(),
            memory_mib=int(guest.check("free -m | grep Mem").split()[1]),
            huge_pages=huge,
            gigantic_pages=gigantic,
            unmovable_mib=frames["contiguity"]["certain"]["unmovable_frames"] / 256,
            unmovable_blocks=_percent(frames["contiguity"]["possible"]["blocks_2m"]),
            unmovable_in_movable=_unmovable(frames["zones"]) if is_guarded else None,
            moved_up=len(re.findall(r"moved block \d+ from Movable", log)),
            moved_down=len(re.findall(r"moved block \d+ from the kernel", log)),
            given_up=log.count("gave up on block"),
            refused=log.count("refused: "),
            restored=restored,
            log=log,
        )


def _gigantic(guest: Guest, is_guarded: bool) -> tuple[int, bool | None]:
    if not is_guarded:
        return allocate(guest, GIGANTIC, 64), None
    guest.check("killall contigua-node; while pidof contigua-node; do sleep 0.2; done")
    guest.run("contigua-node guard huge --count 64", limit=600)
    pages = int(guest.check(f"cat {GIGANTIC}"))
    guest.check(f"echo 0 >{GIGANTIC}")
    return pages, guest.run("contigua-node guard release", limit=600).code == 0


def _percent(blocks: dict[str, int]) -> float:
    return 100.0 * blocks["unmovable"] / max(blocks["total"], 1)


def _unmovable(zones: list[dict[str, int]]) -> int:
    # x86-64's zones are DMA, DMA32, Normal, Movable, Device.
    return sum(zones[3][name] for name in ("slab", "page_table", "kernel"))
