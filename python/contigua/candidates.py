"""Changes that may help a program, from a profile of it with and without huge pages everywhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from contigua.advice import Change, Rejected, Rule
from contigua.allocators import LIBRARY as MALLOC
from contigua.allocators import find_library
from contigua.attribution import HUGE_BYTES, Attribution, ProfileError
from contigua.mapped import Call, Mapped, MappedMemory, build_id_of
from contigua.reporting.words import percent
from contigua.run_spec import AdvisedMemorySpec
from contigua.sizes import size_text

#: A smaller saving is no advice.
LEAST = 0.005
#: Mappings of one size and origin that get advice of their own where these have nearly all of the
#: saving; otherwise each of them gets it.
MOST_OF_A_KIND = 4
NEARLY_ALL = 0.9
#: Mappings that are said not to be helped, the largest ones.
MOST_REJECTED = 10
#: Names of what is no single mapping.
MALLOC_MEMORY = "memory of malloc"


@dataclass(frozen=True)
class Candidate:
    """A change, and the share of the cycles that it may save.

    Attributes
    ----------
    change
        The change.
    estimate
        What huge pages everywhere save at its memory; ``None`` where nothing tells.
    advised
        The memory of this execution that gets huge pages; empty where the change does more.
    """

    change: Change
    estimate: float | None
    advised: tuple[AdvisedMemorySpec, ...] = ()


@dataclass(frozen=True)
class Candidates:
    """Changes that may help a program, and memory that nothing helps.

    Attributes
    ----------
    program
        The file that is executed: of all programs of the run, the one that costs most.
    promising
        What may help, the largest estimate first.
    rejected
        What cannot.
    """

    program: str
    promising: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]

    @staticmethod
    def of(base: Attribution, thp: Attribution) -> Candidates:
        """Find them.

        Parameters
        ----------
        base, thp
            Profiles of one execution: as the program is, and with huge pages everywhere.

        Raises
        ------
        ProfileError
            When no program of the run is known.
        """
        found = _Search(base, thp)
        found.mappings()
        found.malloc()
        found.code()
        promising = sorted(found.promising, key=found.order)
        return Candidates(found.program, tuple(promising), tuple(found.refused()))


class _Search:
    def __init__(self, base: Attribution, thp: Attribution) -> None:
        self.cycles = base.cycles or 1
        memory, after = MappedMemory(base).mappings, MappedMemory(thp).mappings
        costs: dict[str, float] = defaultdict(float)
        for mapped in memory:
            if mapped.program is not None:
                costs[mapped.program] += base.cycles_of(mapped.costs)
        if not costs:
            raise ProfileError("the run tells of no program: advice is for live runs")
        self.program = max(costs, key=costs.__getitem__)
        #: Mappings of the program, with the shares of the cycles that huge pages may save at each.
        self.memory = []
        for mapped, other in zip(memory, after, strict=True):
            if mapped.program != self.program:
                continue
            saved = base.cycles_of(mapped.costs)
            # A heap that grows by less than a huge page gets none, even where all memory may have
            # them: all of its costs are at stake.
            if mapped.kind != "heap":
                saved -= thp.cycles_of(other.costs)
            self.memory.append((mapped, saved / self.cycles))
        self.base = base
        #: Without a loader nothing can be preloaded.
        self.is_static = not any(
            Path(mapped.name).name.startswith("ld-") for mapped, _ in self.memory
        )
        self.promising: list[Candidate] = []
        self.small: list[tuple[int, Rejected]] = []
        self.malloc_estimate = sum(
            saved for mapped, saved in self.memory if self.is_of_malloc(mapped)
        )

    def is_of_malloc(self, mapped: Mapped) -> bool:
        """Return whether malloc has, or may have, a mapping.

        A static program's malloc cannot be told from its own code; of what a sampled run
        fast-forwards, nobody is known to have made it.
        """
        is_unknown = self.is_static or len(mapped.calls) < 2
        return mapped.is_of_malloc or (mapped.kind == "anonymous" and is_unknown)

    def may_be_replaced(self, mapped: Mapped) -> bool:
        """Return whether a library may see the call that made a mapping."""
        is_unknown = mapped.kind == "anonymous" and len(mapped.calls) < 2
        return not self.is_static and (bool(mapped.callers) or is_unknown)

    def order(self, candidate: Candidate) -> float:
        """Key of a sort by estimate; Contigua's malloc right behind the C library's."""
        return -(self.malloc_estimate if candidate.estimate is None else candidate.estimate)

    def mappings(self) -> None:
        """Look at mappings that the program makes itself, by size and origin."""
        groups: dict[tuple[int, tuple[Call, ...]], list[tuple[Mapped, float]]] = defaultdict(list)
        for mapped, saved in self.memory:
            if self.may_be_replaced(mapped):
                groups[mapped.bytes, _identified(mapped.callers)].append((mapped, saved))
        for (size, callers), members in groups.items():
            for candidate in self._of_group(size, callers, members):
                self._judge(candidate, members)

    def _of_group(
        self, size: int, callers: tuple[Call, ...], members: Sequence[tuple[Mapped, float]]
    ) -> Iterator[Candidate]:
        total = sum(saved for _, saved in members)
        chosen = sorted(members, key=lambda member: -member[1])[:MOST_OF_A_KIND]
        processes = {mapped.process for mapped, _ in members}
        rest = total - sum(saved for _, saved in chosen)
        is_most = rest <= (1 - NEARLY_ALL) * max(total, 0.0)
        alike = [
            mapped
            for mapped, _ in self.memory
            if mapped.bytes == size
            and self.may_be_replaced(mapped)
            and _identified(mapped.callers)[: len(callers)] == callers
        ]
        if not is_most or size < HUGE_BYTES or len(processes) > 1:
            name = members[0][0].name
            if len(members) > 1:
                kind = f"{len(members)} mappings of {size_text(size)}"
                name = f"each of {kind}: {name.split(' #')[0]}"
            rule = Rule(size, 0, len(alike), callers)
            advised = tuple(mapped.advised for mapped in alike)
            yield Candidate(Change(name, "huge-pages", rule), total, advised)
            return
        for mapped, saved in chosen:
            place = next(place for place, one in enumerate(alike) if one is mapped)
            rule = Rule(size, place + 1, len(alike), callers)
            change = Change(mapped.name, "huge-pages", rule)
            yield Candidate(change, saved, (mapped.advised,))

    def _judge(self, candidate: Candidate, members: Sequence[tuple[Mapped, float]]) -> None:
        estimate, size = candidate.estimate or 0.0, members[0][0].bytes
        cost = sum(self.base.cycles_of(mapped.costs) for mapped, _ in members) / self.cycles
        if size < HUGE_BYTES and max(estimate, cost) >= LEAST:
            why = f"it costs {percent(cost)} of the cycles, and is smaller than a huge page"
        elif size >= HUGE_BYTES and estimate < LEAST:
            walks = sum(mapped.costs.walks for mapped, _ in members)
            share = walks / max(self.base.total.walks, 1)
            why = f"it causes {percent(share)} of the page walks, and huge pages {_would(estimate)}"
        else:
            if estimate >= LEAST:
                self.promising.append(candidate)
            return
        self.small.append((size, Rejected(candidate.change.name, why)))

    def malloc(self) -> None:
        """Look at the memory of the C library's malloc."""
        of_malloc = [mapped for mapped, _ in self.memory if self.is_of_malloc(mapped)]
        estimate = self.malloc_estimate
        if estimate >= LEAST:
            change = Change(MALLOC_MEMORY, "malloc-huge-pages")
            # glibc asks for no huge pages where a block has none.
            large = [one for one in of_malloc if one.kind == "heap" or one.bytes >= HUGE_BYTES]
            advised = tuple(mapped.advised for mapped in large)
            self.promising.append(Candidate(change, estimate, advised))
            if not self.is_static and find_library(MALLOC) is not None:
                self.promising.append(Candidate(Change(MALLOC_MEMORY, "contigua-malloc"), None))
        elif of_malloc:
            size = sum(mapped.bytes for mapped in of_malloc)
            why = f"for its {size_text(size)}, huge pages {_would(estimate)}"
            self.small.append((size, Rejected(MALLOC_MEMORY, why)))

    def code(self) -> None:
        """Look at all else, of which only the program's code can be moved."""
        others: dict[str, float] = defaultdict(float)
        for mapped, saved in self.memory:
            if mapped.name == self.program:
                # No design gives huge pages to files: all of the costs are at stake.
                others[mapped.name] += self.base.cycles_of(mapped.costs) / self.cycles
            elif not self.is_of_malloc(mapped) and not self.may_be_replaced(mapped):
                others[mapped.name] += saved
        for name, estimate in others.items():
            if estimate < LEAST:
                continue
            if name == self.program and not self.is_static:
                self.promising.append(Candidate(Change(f"code of {name}", "huge-code"), estimate))
            else:
                why = f"huge pages {_would(estimate)}, but nothing gives them to it"
                if self.is_static:
                    why += ": the program is statically linked, so that nothing can be preloaded"
                self.small.append((HUGE_BYTES, Rejected(name, why)))

    def refused(self) -> list[Rejected]:
        """Return what cannot help, the largest first."""
        by_size = sorted(self.small, key=lambda pair: -pair[0])
        return [rejected for _, rejected in by_size[:MOST_REJECTED]]


def _would(estimate: float) -> str:
    if abs(estimate) < 0.0005:
        return "would save nothing"
    return f"would {'save' if estimate > 0 else 'cost'} {percent(abs(estimate))}"


def _identified(callers: tuple[Call, ...]) -> tuple[Call, ...]:
    """Return the callers up to the first one whose file has no build id."""
    kept = []
    for call in callers:
        if not build_id_of(call.file or ""):
            break
        kept.append(call)
    return tuple(kept)
