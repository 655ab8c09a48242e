"""Mappings of a simulated program beside those of a native execution, as ``smaps`` has them.

The simulator keeps what decides about pages: neighbors that differ only in their file, in rights to
read and execute, or in how Linux came to have them apart are one mapping here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

#: Addresses of simulated x86-64 programs are lower than Linux's by this, except for those of
#: programs that are linked for fixed ones (``crates/program/src/layout.rs``).
HIGHER = 0x3000_0000_0000
LOW = 0x1000_0000_0000
#: Mappings of the kernel's own in every process. QEMU 7.2 has its own pages there.
KERNELS = ("[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]")
#: Files of shared memory.
SHMEM = ("/dev/zero (deleted)", "/memfd:", "/SYSV", "/dev/shm/", "[anon_shmem", "[shmem]")
HUGE = {
    "anonymous": ("AnonHugePages",),
    "shmem": ("ShmemPmdMapped",),
    "file": ("FilePmdMapped",),
    "hugetlb": ("Shared_Hugetlb", "Private_Hugetlb"),
}
HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) [0-9a-f]+ \S+ +(\d+) *(.*)")


@dataclass(frozen=True)
class Mapping:
    """A mapping of a process.

    Attributes
    ----------
    start, end
        Its addresses.
    kind
        ``anonymous``, ``file``, ``shmem``, ``hugetlb``, ``stack`` or ``kernel``.
    writable, shared
        Whether the program may write, and others see it.
    advice
        ``hg`` or ``nh`` (``VmFlags``), or nothing.
    huge
        Bytes of huge pages by what they are: keys of `HUGE`.
    resident
        Bytes of memory that no file on a device has.
    """

    start: int
    end: int
    kind: str
    writable: bool
    shared: bool
    advice: str = ""
    huge: tuple[int, ...] = (0,) * len(HUGE)
    resident: int = 0

    @property
    def identity(self) -> tuple[int, int, str, bool, bool, str]:
        """Identity that the other execution's mapping has, too; of the stack, only the end.

        It begins where the program has been, and QEMU's arguments and environment are others.
        """
        start = self.end if self.kind == "stack" else self.start
        return start, self.end, self.kind, self.writable, self.shared, self.advice

    def __str__(self) -> str:
        rights = f"{'w' if self.writable else '-'}{'s' if self.shared else 'p'}"
        huge = "".join(
            f", {amount >> 20} MB huge ({kind})"
            for kind, amount in zip(HUGE, self.huge, strict=True)
            if amount
        )
        advice = f" {self.advice}" if self.advice else ""
        return f"{self.start:x}-{self.end:x} {self.kind} {rights}{advice}{huge}"


@dataclass(frozen=True)
class Comparison:
    """Mappings of two executions, all processes together.

    Attributes
    ----------
    equal
        Mappings that both have, with as many huge pages.
    only_native, only_simulated
        Mappings that only one of them has.
    unlike
        Mappings that both have, with other huge pages: natively, simulated.
    native_huge, simulated_huge
        Bytes of huge pages: keys of `HUGE`.
    """

    equal: int
    only_native: tuple[Mapping, ...]
    only_simulated: tuple[Mapping, ...]
    unlike: tuple[tuple[Mapping, Mapping], ...]
    native_huge: tuple[int, ...]
    simulated_huge: tuple[int, ...]


def read_smaps(text: str) -> list[list[Mapping]]:
    """Read what ``contigua run --smaps`` or ``smaps_at_exit`` wrote: mappings of each process.

    Examples
    --------
    >>> lines = ["process 0", "600000-800000 rw-p 00000000 00:00 0", "AnonHugePages: 2048 kB"]
    >>> [[str(mapping) for mapping in process] for process in read_smaps(chr(10).join(lines))]
    [['600000-800000 anonymous wp, 2 MB huge (anonymous)']]
    """
    processes: dict[int, list[Mapping]] = {}
    found: list[Mapping] = []
    for block in re.split(r"^(?=process |[0-9a-f]+-[0-9a-f]+ )", text, flags=re.MULTILINE):
        if block.startswith("process "):
            found = processes.setdefault(int(block.split()[1]), [])
        elif head := HEAD.match(block):
            found.append(_mapping(head, block))
    return [joined(processes[number]) for number in sorted(processes)]


def _mapping(head: re.Match[str], block: str) -> Mapping:
    start, end, rights, inode, name = head.groups()
    amounts = dict(re.findall(r"^(\w+): +(\d+) kB$", block, re.MULTILINE))
    flags = re.search(r"^VmFlags:(.*)$", block, re.MULTILINE)
    marks = flags[1].split() if flags else []
    shared = rights.endswith("s")
    if "ht" in marks:
        kind = "hugetlb"
    elif name in KERNELS:
        kind = "kernel"
    elif name == "[stack]":
        kind = "stack"
    elif shared and name.startswith(SHMEM):
        kind = "shmem"
    else:
        # Private memory of a device that has none (`mmap_zero`, drivers/char/mem.c).
        is_file = (inode != "0" and name != "/dev/zero") or name == "[file]"
        kind = "file" if is_file else "anonymous"
    return Mapping(
        int(start, 16),
        int(end, 16),
        kind,
        rights[1] == "w",
        shared,
        "".join(mark for mark in ("hg", "nh") if mark in marks),
        tuple(sum(int(amounts.get(key, 0)) << 10 for key in keys) for keys in HUGE.values()),
        int(amounts.get("Rss" if kind == "shmem" else "Anonymous", 0)) << 10,
    )


def joined(mappings: Iterable[Mapping]) -> list[Mapping]:
    """Make one of neighbors that are alike."""
    found: list[Mapping] = []
    for mapping in sorted(mappings, key=lambda one: one.start):
        last = found[-1] if found else mapping
        if last.end == mapping.start and mapping.identity[2:] == last.identity[2:]:
            huge = tuple(map(sum, zip(last.huge, mapping.huge, strict=True)))
            resident = last.resident + mapping.resident
            found[-1] = replace(last, end=mapping.end, huge=huge, resident=resident)
        else:
            found.append(mapping)
    return found


def as_linux(mappings: Iterable[Mapping]) -> list[Mapping]:
    """Return simulated mappings at the addresses that Linux gives them."""
    return [
        mapping
        if mapping.start < LOW
        else replace(mapping, start=mapping.start + HIGHER, end=mapping.end + HIGHER)
        for mapping in mappings
    ]


def compare(
    native: Sequence[Sequence[Mapping]], simulated: Sequence[Sequence[Mapping]]
) -> Comparison:
    """Compare each native process with the simulated one that has most of its mappings.

    Processes that run side by side are made in another order each time.
    """
    equal = 0
    only: tuple[list[Mapping], list[Mapping]] = ([], [])
    unlike = []
    left = [_by_identity(process) for process in simulated]
    for process in native:
        kernels = [one for one in process if one.kind == "kernel"]
        theirs = _by_identity(one for one in process if one.kind != "kernel")
        best = max(left, key=lambda other: len(other.keys() & theirs.keys()), default={})
        left = [other for other in left if other is not best]
        ours = {
            identity: one
            for identity, one in best.items()
            if not any(own.start <= one.start and one.end <= own.end for own in kernels)
        }
        for identity in theirs.keys() & ours.keys():
            if theirs[identity].huge == ours[identity].huge:
                equal += 1
            else:
                unlike.append((theirs[identity], ours[identity]))
        only[0].extend(theirs[key] for key in theirs.keys() - ours.keys())
        only[1].extend(ours[key] for key in ours.keys() - theirs.keys())
    only[1].extend(one for other in left for one in other.values())
    by_start = [tuple(sorted(side, key=lambda one: one.start)) for side in only]
    return Comparison(
        equal, by_start[0], by_start[1], tuple(unlike), _huge(native), _huge(simulated)
    )


def _by_identity(
    mappings: Iterable[Mapping],
) -> dict[tuple[int, int, str, bool, bool, str], Mapping]:
    return {one.identity: one for one in mappings}


def _huge(processes: Sequence[Sequence[Mapping]]) -> tuple[int, ...]:
    sums = [0] * len(HUGE)
    for mapping in (mapping for process in processes for mapping in process):
        sums = [sum(pair) for pair in zip(sums, mapping.huge, strict=True)]
    return tuple(sums)
