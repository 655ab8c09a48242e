"""Machine file from probes, based on the file of the nearest processor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from contigua.measuring.computer import Computer, MeasureError
from contigua.measuring.probes import Measured, Probe, Rounds
from contigua.presets import flatten, machines
from contigua.sizes import size_bytes

KIB = 1 << 10
MIB = 1 << 20
PAGE = 4 * KIB
HUGE_PAGE = 2 * MIB
LINE = 64

#: Spreads above this say nothing.
LOUD = 0.25
#: A last-level cache that takes this share of memory's latency holds other programs' lines.
CROWDED = 0.5
#: A size within this share of the base machine's is taken to be that.
NEAR = 0.25
#: Pages of a batch of munmap, mprotect and fork, as in Mitosis, Table 5.
BATCH = 2048
#: Pages whose lines are chased to find first-level TLBs, and second-level ones.
L1_PAGES = (16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 128, 160)
L2_PAGES = (512, 768, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 6144)
#: More branches than predictors learn by heart, each time others.
BRANCHES = "--size 4M --operations 200000 --repeats 5"
#: KiB that are chased to find the first-level cache.
L1_KIB = (16, 24, 32, 40, 48, 64, 80, 96, 128, 160)

#: Values without which the file would say little of this computer.
NEEDED = (
    "clock",
    "core.latency_cycles.load",
    "cache.l2.latency_cycles",
    "cache.llc.latency_cycles",
    "cache.memory_latency",
    "tlb.l2.0.latency_cycles",
    "kernel.page_fault_cycles",
)


def probes(computer: Computer) -> dict[str, Probe]:
    """Return what is measured on a computer.

    Raises
    ------
    MeasureError
        When it has too little memory.
    """
    l2 = computer.caches.get(2, MIB)
    last = max(computer.caches.values(), default=32 * MIB)
    memory = min(max(4 * last, 128 * MIB), 512 * MIB)
    if computer.available < 2 * memory:
        raise MeasureError(
            f"{computer.available >> 20} MiB of memory are available, {2 * memory >> 20} MiB are "
            "needed; end other programs"
        )
    # MADV_HUGEPAGE is an error without transparent huge pages.
    huge = "--huge" if computer.thp in ("always", "madvise") else ""
    short, long = "--operations 100000 --repeats 3", "--operations 60000 --repeats 3"
    # As often as programs: what others keep of the last level depends on that.
    abreast = f"chase --parallel --together 16 {huge} --operations 240000 --repeats 3"
    found = {
        "cycle": "cycle --operations 200000 --repeats 3",
        "never": f"branches --taken 0 {BRANCHES}",
        "always": f"branches --taken 256 {BRANCHES}",
        "either": f"branches --taken 128 {BRANCHES}",
        "syscall": "syscall --operations 20000 --repeats 3",
        "switch": "switch --operations 2000 --repeats 3",
        "zero": "zero --operations 5000 --repeats 3",
        "copy": "copy --operations 5000 --repeats 3",
        "fault": f"fault --size {BATCH * 4}K --repeats 3",
        "node": "fault --size 512M --step 2M --repeats 3",
        "populate": f"populate --size {BATCH * 4}K --repeats 3",
        "unmap": f"unmap --size {BATCH * 4}K --repeats 3",
        "unmap-file": f"unmap --size {BATCH * 4}K --file --repeats 3",
        "protect": f"protect --size {BATCH * 4}K --repeats 3",
        "protect-one": "protect --size 4K --repeats 15",
        "fork": f"fork --size {BATCH * 4}K --repeats 3",
        "fork-one": "fork --size 4K --repeats 5",
        # Fewer pages than any first-level TLB has entries.
        "l2": f"chase --size 192K {short}",
        "llc": f"chase --size {3 * l2} --together 16 {huge} {short}",
        "memory": f"chase --size {memory} --together 16 {huge} {long}",
        "memory-4k": f"chase --size {memory} --together 16 {long}",
        "abreast-llc": f"{abreast} --size {3 * l2}",
        "abreast-memory": f"{abreast} --size {memory}",
        "random-4k": f"chase --size {memory} {long}",
        "random-2m": f"chase --size {memory} {huge} {long}",
        "loads": f"loads --size {memory} {huge} --operations 100000 --repeats 3",
    }
    if huge:
        found["fault-2m"] = "fault --size 32M --huge --repeats 3"
        found["lines-2m"] = f"chase --size 2M --step 4K --huge {short}"
        found["walk-2m"] = f"chase --size {4 * L2_PAGES[-1]}K --step 4K --huge {short}"
        for pages in L1_PAGES:
            found[f"l1-2m-{pages}"] = f"chase --size {2 * pages}M --step 2M --huge {short}"
    for kib in L1_KIB:
        found[f"l1-{kib}k"] = f"chase --size {kib}K {short}"
    for size in _llc_sizes(l2, memory):
        found[f"abreast-{size // KIB}k"] = f"{abreast} --size {size}"
    for pages in (*L1_PAGES, *L2_PAGES):
        found[f"pages-{pages}"] = f"chase --size {4 * pages}K --step 4K {short}"
        if pages % 64 == 0:
            # More pages than a first-level TLB may hold: sixteen lines share a translation.
            together = "--together 16" if LINE * pages > 48 * PAGE else ""
            found[f"dense-{pages}"] = f"chase --size {LINE * pages} {together} {short}"
    for step in (1, 4):
        found[f"apart-{step}"] = f"chase --size {4 * step * 128}K --step {4 * step}K {short}"
    return {name: Probe.of(line) for name, line in found.items()}


def _llc_sizes(l2: int, memory: int) -> list[int]:
    """Return sizes from the L2's to that of memory, two to an octave."""
    sizes, size = [], 2 * l2
    while size < memory:
        sizes += [size, size * 3 // 2]
        size *= 2
    return [size for size in sizes if size < memory]


@dataclass
class Machine:
    """A machine file in the making.

    Attributes
    ----------
    computer
        What it is of.
    base
        The machine whose values stand where nothing was measured.
    values
        All values, by dotted key; those of the base that were measured are replaced.
    measured
        What was measured, by the key that has it, or by a name of its own.
    notes
        What is said beside a key.
    host_page
        The page size with which TLBs see the memory behind a 2 MB page: ``"2m"``, or ``"4k"``
        where a hypervisor backs it with small pages; ``None`` when it was not measured.
    coalesces
        Whether contiguous 4 KB pages were found to share TLB entries.
    """

    computer: Computer
    base: str
    values: dict[str, Any]
    measured: dict[str, Measured] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    host_page: str | None = None
    coalesces: bool = False

    def doubts(self) -> list[str]:
        """Say which needed values conclude nothing: they vary, or others fill the cache."""
        found = [
            f"{key} varies by {100 * one.spread:.0f} %"
            for key in NEEDED
            if (one := self.measured.get(key)) is not None and one.spread > LOUD
        ]
        last = self.measured["cache.llc.latency_cycles"].value
        memory = self.measured["cache.memory_latency"].value * clock_ghz(self)
        if last > CROWDED * memory:
            found.append("the last-level cache, which others fill, answers as late as memory")
        return found

    def put(self, key: str, measured: Measured, unit: str, write: Callable[[float], Any]) -> None:
        """Set a key to what was measured."""
        if key not in self.values:
            raise KeyError(key)
        self.values[key] = write(measured.value)
        self.check(key, measured, unit)

    def check(self, key: str, measured: Measured, unit: str) -> None:
        """Keep a value that the file has no key for, or keeps the base's."""
        self.measured[key] = measured
        self.units[key] = unit


def _passing(
    points: list[tuple[int, float]], middle: float
) -> tuple[tuple[int, float], tuple[int, float]] | None:
    """Return the points between which the latency passes the middle of two levels."""
    return next((both for both in pairwise(points) if both[1][1] > middle), None)


def knee(points: list[tuple[int, float]], low: float, high: float) -> int | None:
    """Return the largest size before the latency passes the middle of two levels.

    Examples
    --------
    >>> knee([(32, 1.0), (48, 1.1), (64, 3.0)], 1.0, 4.0)
    48
    >>> knee([(32, 1.0), (48, 1.1)], 1.0, 4.0) is None
    True
    """
    found = _passing(points, (low + high) / 2) if high > low else None
    return found and found[0][0]


def crossing(points: list[tuple[int, float]], low: float, high: float) -> float | None:
    """Return the size at which the latency passes the middle of two levels.

    Examples
    --------
    >>> crossing([(32, 1.0), (48, 2.0), (64, 4.0)], 1.0, 5.0)
    56.0
    >>> crossing([(32, 1.0), (48, 1.1)], 1.0, 4.0) is None
    True
    """
    middle = (low + high) / 2
    found = _passing(points, middle) if high > low else None
    if found is None:
        return None
    (size, before), (next_size, after) = found
    share = max(middle - before, 0) / (after - min(before, middle))
    return size + share * (next_size - size)


def machine_of(computer: Computer, rounds: Rounds, base: str) -> Machine:
    """Say what was measured in the words of a machine file."""
    resolved = machines.resolve(base)
    levels = {str(index): level for index, level in enumerate(resolved["tlb"]["l2"])}
    machine = Machine(computer, base, flatten(resolved | {"tlb": resolved["tlb"] | {"l2": levels}}))
    machine.values["description"] = f"{computer.name}, measured; the rest is {base}"
    clock = rounds.value("cycle", of=lambda ns: 1000 / ns)
    machine.put("clock", clock, "MHz", lambda mhz: f"{round(mhz)}MHz")
    _branches(machine, rounds)
    _caches(machine, rounds, resolved)
    _translation(machine, rounds, resolved)
    _kernel(machine, rounds)
    return machine


def _cycles(ns: float, cycle: float) -> float:
    return ns / cycle


def _branches(machine: Machine, rounds: Rounds) -> None:
    """Set the penalty: every other random branch is mispredicted, which waits for a load."""

    def penalty(either: float, never: float, always: float, load: float, cycle: float) -> float:
        return (2 * (either - (never + always) / 2) - load) / cycle - 1

    measured = rounds.value("either", "never", "always", "l1-16k", "cycle", of=penalty)
    put = machine.put
    put("core.mispredict_penalty_cycles", measured, "cycles", lambda value: max(round(value), 1))


def _caches(machine: Machine, rounds: Rounds, resolved: dict[str, Any]) -> None:
    put = machine.put
    l1 = rounds.value("l1-16k", "cycle", of=_cycles)
    put("core.latency_cycles.load", l1, "cycles", round)
    put("cache.l1d.latency_cycles", l1, "cycles", round)
    l2 = rounds.value("l2", "cycle", of=_cycles)
    put("cache.l2.latency_cycles", l2, "cycles", round)
    llc = rounds.value("llc", "cycle", of=_cycles)
    put("cache.llc.latency_cycles", llc, "cycles", round)
    memory = rounds.value("memory")
    put("cache.memory_latency", memory, "ns", lambda ns: f"{round(ns)}ns")
    points = [(kib * KIB, rounds.value(f"l1-{kib}k", "cycle", of=_cycles)) for kib in L1_KIB]
    _size(machine, "cache.l1d", points, l1.value, l2.value, machine.computer.caches.get(1))
    sizes = _llc_sizes(machine.computer.caches.get(2, MIB), 1 << 40)
    names = {size: name for size in sizes if (name := f"abreast-{size // KIB}k") in rounds.times}
    if (second := machine.computer.caches.get(2)) is not None:
        ways = _ways(second, resolved["cache"]["l2"]["ways"])
        machine.values |= {"cache.l2.size": _bytes(second), "cache.l2.ways": ways}
        machine.notes["cache.l2.size"] = "as the kernel says"
    _last(machine, rounds, names)


def clock_ghz(machine: Machine) -> float:
    """Return cycles in a nanosecond."""
    return machine.measured["clock"].value / 1000


def _bytes(size: int) -> str:
    return f"{size // MIB}MiB" if size % MIB == 0 else f"{size // KIB}KiB"


def _ways(size: int, wanted: int) -> int:
    """Return a number of ways near the wanted one with which sets are a power of two."""
    lines = size // LINE
    odd = lines // (lines & -lines)
    fitting = [odd << shift for shift in range(12) if lines % (odd << shift) == 0]
    return min(fitting, key=lambda ways: abs(ways - wanted))


def _size(
    machine: Machine,
    key: str,
    points: list[tuple[int, Measured]],
    low: float,
    high: float,
    reported: int | None,
) -> None:
    found = knee([(size, one.value) for size, one in points], low, high)
    if found is None and reported is None:
        return
    repeats = points[0][1].repeats
    spread = max(one.spread for size, one in points if found is None or size <= found)
    size = found or reported or 0
    if found is None:
        machine.notes[f"{key}.size"] = "as the kernel says; no knee was found"
    elif reported is not None and abs(found / reported - 1) <= NEAR:
        size = reported
        machine.check(f"{key}.size", Measured(found / KIB, spread, repeats), "KiB")
    else:
        machine.check(f"{key}.size", Measured(found / KIB, spread, repeats), "KiB")
        if reported is not None:
            machine.notes[f"{key}.size"] = f"the kernel says {_bytes(reported)}"
    machine.values[f"{key}.size"] = _bytes(size)
    machine.values[f"{key}.ways"] = _ways(size, machine.values[f"{key}.ways"])


def _last(machine: Machine, rounds: Rounds, names: dict[int, str]) -> None:
    """Set the last level's size, by sets: with fewer ways, more lines would meet in a set.

    What others leave of it changes from round to round, so each round says its own size.
    """
    reported = machine.computer.caches.get(3)
    whole = size_bytes(machine.values["cache.llc.size"])
    ways = machine.values["cache.llc.ways"]
    levels = zip(rounds.times["abreast-llc"], rounds.times["abreast-memory"], strict=True)
    found = [
        crossing([(size, rounds.times[name][turn]) for size, name in names.items()], low, high)
        for turn, (low, high) in enumerate(levels)
    ]
    sizes = [size / KIB for size in found if size is not None]
    if 2 * len(sizes) <= len(found):
        machine.notes["cache.llc.size"] = f"{machine.base}'s; no knee was found"
        return
    measured = Measured.of(sizes)
    machine.check("cache.llc.size", measured, "KiB")
    # Whole kilobytes, and as many sets in each slice.
    unit = ways * machine.values["cache.shared.slices"] * KIB
    units = min(max(round(measured.value * KIB / unit), 1), 4 * whole // unit)
    machine.values["cache.llc.size"] = _bytes(units * unit)
    told = f"the kernel says {_bytes(reported)}" if reported else "the kernel does not say"
    machine.notes["cache.llc.size"] = f"what this computer has of it; {told}"


def _translation(machine: Machine, rounds: Rounds, resolved: dict[str, Any]) -> None:
    base = resolved["tlb"]

    def pages(count: int) -> Measured:
        return rounds.value(f"pages-{count}", "cycle", of=_cycles)

    def beyond(count: int) -> Measured:
        """Cycles of translation: lines of as many pages, less as many lines side by side."""
        names = f"pages-{count}", f"dense-{count}", "cycle"
        return rounds.value(*names, of=lambda apart, dense, cycle: (apart - dense) / cycle)

    hit = beyond(512)
    machine.put("tlb.l2.0.latency_cycles", hit, "cycles", lambda cycles: max(round(cycles), 1))
    l1 = [(count, pages(count).value) for count in L1_PAGES]
    low = pages(16).value
    first = knee(l1, low, low + hit.value)
    _entries(machine, "tlb.l1d.4k", first, base["l1d"]["4k"], pages(16))
    l2 = [(count, beyond(count).value) for count in L2_PAGES]
    second = knee(l2, hit.value, l2[-1][1])
    _entries(machine, "tlb.l2.0", second, base["l2"][0], hit)
    last = L2_PAGES[-1]
    machine.check("walk, 4 KB pages", beyond(last), "cycles")
    for size in ("4k", "2m"):
        memory = "memory" if size == "2m" else "memory-4k"
        walks = f"random-{size}", memory, "cycle"
        # Sixteen lines of a page share its walk.
        cost = rounds.value(*walks, of=lambda one, all_, cycle: (one - all_) * 16 / 15 / cycle)
        machine.check(f"walk in memory, {size} pages", cost, "cycles")
    if rounds.huge.get("loads", 0) >= HUGE_PAGE // KIB:
        # Walkers and what lies behind the caches may allow fewer than the core has registers for.
        most = machine.values["core.miss_registers"]
        overlap = rounds.value("random-2m", "loads", of=lambda one, all_: one / all_)
        machine.put(
            "core.miss_registers", overlap, "", lambda value: min(max(round(value), 1), most)
        )
    many, few = pages_apart(rounds, 1), pages_apart(rounds, 4)
    l1_reach = first or base["l1d"]["4k"]["entries"]
    if l1_reach < 128:
        machine.coalesces = many - low < 0.5 * hit.value < few - low
    _huge(machine, rounds, hit, base)
    # Where TLBs hold small parts of 2 MB pages, the host's entries for these lie side by side.
    # Those of 4 KB pages do not: the guest's memory is in pieces.
    apart = "walk-2m" if machine.host_page == "4k" else f"pages-{last}"
    _start(machine, rounds, apart, f"dense-{last}")
    if machine.host_page is not None:
        _random_reads(machine, rounds, f"dense-{last}")


def _random_reads(machine: Machine, rounds: Rounds, dense: str) -> None:
    """Set the latency of memory: of single lines, which find another row open.

    Lines of one page share a row. Pages of 2 MB need no walks, or those that ``walk-2m`` has.
    """
    walks = ("walk-2m", dense) if machine.host_page == "4k" else (dense, dense)
    names = "random-2m", *walks
    latency = rounds.value(*names, of=lambda line, apart, near: line - (apart - near))
    machine.put("cache.memory_latency", latency, "ns", lambda ns: f"{round(ns)}ns")


def _start(machine: Machine, rounds: Rounds, walks: str, dense: str) -> None:
    """Set what a walk takes beside one reference, which the L2 cache answers."""
    others = machine.values["tlb.l2.0.latency_cycles"] + machine.values["cache.l2.latency_cycles"]
    if machine.host_page == "4k":
        # The guest's own entry, of which there are few.
        others += machine.values["cache.l1d.latency_cycles"]
    names = walks, dense, "cycle"
    walk = rounds.value(*names, of=lambda apart, near, cycle: (apart - near) / cycle - others)
    machine.values["walk_cache.start_cycles"] = max(round(walk.value), 0)
    machine.check("walk_cache.start_cycles", walk, "cycles")


def pages_apart(rounds: Rounds, step: int) -> float:
    """Cycles of a load from one of 128 pages, each so many pages after the one before."""
    return rounds.value(f"apart-{step}", "cycle", of=_cycles).value


def _huge(machine: Machine, rounds: Rounds, hit: Measured, base: dict[str, Any]) -> None:
    # Of 2 MB pages the kernel may have given none.
    if rounds.huge.get("lines-2m", 0) < HUGE_PAGE // KIB:
        machine.notes["tlb.l1d.2m.entries"] = f"{machine.base}'s: the kernel gave no 2 MB pages"
        return
    names = "lines-2m", "dense-512", "cycle"
    inside = rounds.value(*names, of=lambda apart, dense, cycle: (apart - dense) / cycle)
    machine.check("512 small parts of one 2 MB page, beyond their lines", inside, "cycles")
    machine.host_page = "2m" if inside.value < 0.5 * hit.value else "4k"
    points = [(count, rounds.value(f"l1-2m-{count}", "cycle", of=_cycles)) for count in L1_PAGES]
    low = points[0][1].value
    if machine.host_page == "4k":
        machine.notes["tlb.l1d.2m.entries"] = (
            f"{machine.base}'s: TLBs hold 4 KB parts of 2 MB pages here, so their entries for 2 MB "
            "cannot be measured"
        )
        return
    found = knee([(count, one.value) for count, one in points], low, low + hit.value)
    _entries(machine, "tlb.l1d.2m", found, base["l1d"]["2m"], points[0][1])


def _entries(
    machine: Machine, key: str, found: int | None, base: dict[str, Any], like: Measured
) -> None:
    if found is None:
        machine.notes[f"{key}.entries"] = f"{machine.base}'s: no knee was found"
        return
    machine.check(f"{key}.entries", Measured(found, like.spread, like.repeats), "entries")
    if abs(found / base["entries"] - 1) <= NEAR:
        machine.notes[f"{key}.entries"] = f"within a step of {machine.base}'s, which is kept"
        return
    full = base["ways"] == base["entries"]
    machine.values[f"{key}.entries"] = found
    machine.values[f"{key}.ways"] = found if full else _ways(found * LINE, base["ways"])


def _kernel(machine: Machine, rounds: Rounds) -> None:
    def put(key: str, *names: str, of: Callable[..., float], least: int = 0) -> None:
        def cycles(*values: float) -> float:
            *times, cycle = values
            return of(*times) / cycle

        measured = rounds.value(*names, "cycle", of=cycles)
        machine.put(f"kernel.{key}", measured, "cycles", lambda value: max(round(value), least))

    put("syscall_cycles", "syscall", of=float)
    put("zero_4k_cycles", "zero", of=float)
    put("copy_4k_cycles", "copy", of=float)
    put("page_fault_cycles", "fault", "zero", of=lambda fault, zero: fault - zero)
    put("page_table_node_cycles", "node", "fault", of=lambda node, fault: node - fault)
    put("unmap_page_cycles", "unmap-file", of=float)
    put("free_page_cycles", "unmap", "unmap-file", of=lambda all_, kept: all_ - kept)
    put("protect_page_cycles", "protect", of=float)
    put(
        "vma_cycles",
        "protect-one",
        "protect",
        "syscall",
        of=lambda one, page, call: one - page - call,  # with the flush of the TLB
    )
    put("fork_page_cycles", "fork", "fork-one", of=lambda all_, one: all_ - one / BATCH)
    put(
        "context_switch_cycles",
        "switch",
        "syscall",
        of=lambda turn, call: turn - 2 * call,
    )
    if rounds.huge.get("fault-2m", 0) >= HUGE_PAGE // KIB:
        put(
            "zero_2m_cycles",
            "fault-2m",
            "fault",
            "zero",
            of=lambda huge, fault, zero: huge - fault + zero,
        )
    else:
        machine.notes["kernel.zero_2m_cycles"] = f"{machine.base}'s: no 2 MB pages were given"
