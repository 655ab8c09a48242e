"""From a profile to advice: the candidates, each tried as a run of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot
from pathlib import Path
from typing import Any

from contigua.advice import LIBRARY, Advice, Change, Item, Rejected, environment_of
from contigua.allocators import OURS, OWN, find_library
from contigua.attribution import ProfileError
from contigua.candidates import LEAST, Candidate, Candidates
from contigua.options import RunOptions
from contigua.presets import Preset
from contigua.presets import designs as design_presets
from contigua.profiling import Profiled, profile
from contigua.progress import Progress
from contigua.reporting.words import percent
from contigua.reports import Report
from contigua.runner import run
from contigua.sampling import matched
from contigua.sizes import size_text

#: Designs of a profile for advice: the program as it is, where huge pages are for who asks for
#: them; then huge pages everywhere, which tells what they can save at each mapping.
DESIGNS = ("linux-thp-madvise", "linux-thp")
#: Candidates that are run, by default.
RUNS = 4
#: Where Linux says who gets huge pages.
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True)
class Advised:
    """A profile, and the advice that follows from it.

    Attributes
    ----------
    profiled
        The profile.
    advice
        The advice.
    """

    profiled: Profiled
    advice: Advice

    def sentences(self) -> list[str]:
        """Say what helps, by how much, and what does not."""
        advice = self.advice
        found = []
        for item in advice.items:
            basis = "" if item.is_run else " by estimate"
            cost = "" if item.memory_bytes is None else f", memory {_signed(item.memory_bytes)}"
            saving = percent(item.saving, item.half_width)
            change = item.change
            found.append(f"Saves {saving}{basis}{cost}: {change.name}: {change.by_hand}.")
        if not found:
            found.append("No change of page sizes helps.")
        elif advice.saving is not None and len(advice.items) > 1:
            found.append(f"All together save {percent(advice.saving, advice.half_width)}.")
        return found + [f"Does not help: {one.name}: {one.why}." for one in advice.rejected]


def advise(
    command: Sequence[str],
    *,
    designs: Sequence[str | Preset] = DESIGNS,
    options: RunOptions | None = None,
    runs: int = RUNS,
    progress: Progress | None = None,
) -> Advised:
    """Profile a program, and try the changes that may help it.

    Parameters
    ----------
    command
        The program and its arguments.
    designs
        The first one is the server, whose huge pages are for programs that ask for them
        (``enabled = "madvise"``). The second one has them everywhere.
    options
        Options of the runs.
    runs
        Candidates that are run, the most promising first; other advice rests on an estimate.
    progress
        Is told how far a run is.

    Raises
    ------
    ProfileError
        When the designs or the options allow no advice, the library that applies it is not built,
        or the run is incomplete.
    """
    options = options or RunOptions()
    _check(designs, options)
    if runs:
        _library()
    profiled = profile(command, designs=designs, options=options, progress=progress)
    base = profiled.profiles[0]
    if base.cycles is None:
        raise ProfileError("advice needs time: use --detail additive or full")
    candidates = Candidates.of(*profiled.profiles[:2])
    trials = _Trials(command, candidates.program, designs[0], options, profiled.results[0])
    items, refused = trials.judge(candidates.promising, runs, progress)
    saving, half_width = trials.together(items, candidates.promising, progress)
    advice = Advice(
        program=candidates.program,
        command=tuple(command),
        design=base.design,
        machine=base.machine,
        cycles=base.cycles,
        items=tuple(items),
        rejected=(*refused, *candidates.rejected),
        saving=saving,
        half_width=half_width,
    )
    return Advised(profiled, advice)


def _check(designs: Sequence[str | Preset], options: RunOptions) -> None:
    if len(designs) < 2:
        raise ProfileError(f"advice compares two designs, as {','.join(DESIGNS)}")
    design = design_presets.get(designs[0])
    resolved: Any = design_presets.resolve(design)
    if resolved["translation"].get("thp", {}).get("enabled") != "madvise":
        raise ProfileError(
            "advice is for servers that give huge pages to who asks for them: the first design, "
            f'{design.name}, has no [translation.thp] with enabled = "madvise"; use {DESIGNS[0]}'
        )
    if options.malloc != OWN:
        raise ProfileError("advice tries mallocs itself: leave --malloc out")


class _Trials:
    """Runs of the program with changes, against the one without."""

    def __init__(
        self,
        command: Sequence[str],
        program: str,
        design: str | Preset,
        options: RunOptions,
        base: Report,
    ) -> None:
        self.command, self.program, self.design = command, program, design
        self.options, self.base = options, base
        #: By which share of the cycles two executions of the program as it is differ. One that
        #: draws random numbers, as Perl does for its tables, is never the same twice.
        self.repeated = 0.0

    def judge(
        self, candidates: Sequence[Candidate], runs: int, progress: Progress | None
    ) -> tuple[list[Item], list[Rejected]]:
        """Run the first candidates; take the others by their estimates."""
        items, refused = [], []
        for candidate, tried in self.tried(candidates[:runs], progress):
            if tried.saving >= LEAST and tried.saving > tried.half_width:
                items.append(tried)
            else:
                refused.append(Rejected(candidate.change.name, self._reason(tried, candidate)))
        for candidate in candidates[runs:]:
            change, estimate = candidate.change, candidate.estimate
            if change.action == "huge-pages" and estimate is not None:
                items.append(Item(change, estimate))
            elif estimate is not None:
                why = f"{change.action}: not tried; it saves {percent(estimate)} at most"
                refused.append(Rejected(change.name, why))
        items.sort(key=lambda item: -item.saving)
        return _one_malloc(items, refused), refused

    def _reason(self, tried: Item, candidate: Candidate) -> str:
        change, estimate = candidate.change, candidate.estimate
        word = "saves" if tried.saving >= 0 else "costs"
        why = f"{change.action}: a run with it {word} "
        why += percent(abs(tried.saving), tried.half_width)
        if estimate is not None:
            is_mapping = change.action == "huge-pages"
            part = "huge pages everywhere save" if is_mapping else "translation and faults cost"
            why += f", of {percent(estimate)} that {part} there"
        if change.action == "malloc-huge-pages" and (mode := _thp_mode()) != "madvise":
            why += f"; this computer's huge pages are {mode}, so glibc asks for none"
        return why

    def together(
        self, items: Sequence[Item], candidates: Sequence[Candidate], progress: Progress | None
    ) -> tuple[float | None, float]:
        """Return the saving of all changes, and half of its interval."""
        changes = [item.change for item in items]
        if not items or not all(item.is_run for item in items):
            return None, 0.0
        if len(items) == 1:
            return items[0].saving, items[0].half_width
        if _libraries(changes) > 1:
            # A run preloads one.
            return None, 0.0
        chosen = [candidate for candidate in candidates if candidate.change in changes]
        if all(candidate.advised for candidate in chosen):
            base, found = self._inside([chosen], progress)
            return _saving(base, found)
        return self._outside(chosen, progress)[1]

    def tried(
        self, candidates: Sequence[Candidate], progress: Progress | None
    ) -> list[tuple[Candidate, Item]]:
        """Run the program with each of some changes.

        Changes that do no more than give memory huge pages are tried on one execution, beside the
        program as it is: no chance of the program's parts them. Others are executions of their own.
        """
        found = []
        inside = [one for one in candidates if one.advised]
        if candidates:
            base, *reports = self._inside([[one] for one in inside], progress)
            self.repeated = abs(_saving(self.base, base)[0])
            found = [
                (candidate, _item(candidate, base, report, _saving(base, report)))
                for candidate, report in zip(inside, reports, strict=True)
            ]
        for candidate in candidates:
            if not candidate.advised:
                report, saving = self._outside([candidate], progress)
                found.append((candidate, _item(candidate, self.base, report, saving)))
        return found

    def _inside(
        self, sets: Sequence[Sequence[Candidate]], progress: Progress | None
    ) -> Sequence[Report]:
        """Run the program as it is, and with each of some sets of changes, on one execution."""
        advised = [tuple(memory for one in changes for memory in one.advised) for changes in sets]
        options = replace(self.options, advised=((), *advised))
        return run(self.command, designs=[self.design], options=options, progress=progress).reports

    def _outside(
        self, candidates: Sequence[Candidate], progress: Progress | None
    ) -> tuple[Report, tuple[float, float]]:
        """Run the program with changes as an execution of its own."""
        changes = [candidate.change for candidate in candidates]
        options = with_changes(self.options, self.program, changes)
        found = run(self.command, designs=[self.design], options=options, progress=progress)[0]
        saving, half_width = _saving(self.base, found)
        return found, (saving, max(half_width, self.repeated))


def _item(candidate: Candidate, base: Report, found: Report, saving: tuple[float, float]) -> Item:
    memory = _peak(found) - _peak(base)
    return Item(candidate.change, *saving, is_run=True, memory_bytes=memory)


def _saving(base: Report, found: Report) -> tuple[float, float]:
    """Return the share of the cycles that a change saves, and half of its interval."""
    if (ratio := matched(found.values, base.values)) is not None:
        return 1 - ratio.value, ratio.half_width
    before, after = (report.summary()["cycles"] for report in (base, found))
    halves = [report.intervals().get("cycles", 0.0) for report in (base, found)]
    return 1 - after / before, hypot(*halves) / before


def with_changes(options: RunOptions, program: str, changes: Sequence[Change]) -> RunOptions:
    """Return options of a run in which a program has changes.

    Raises
    ------
    ProfileError
        When a library is not built, or the changes exclude each other.
    """
    variables = environment_of(program, changes)
    if any(change.action == "contigua-malloc" for change in changes):
        return replace(options, malloc=OURS)
    settings = tuple(f"{name}={value}" for name, value in variables.items())
    malloc = options.malloc
    if _libraries(changes):
        malloc = _library()
    return replace(options, malloc=malloc, malloc_options=settings)


def _library() -> str:
    library = find_library(LIBRARY)
    if library is None:
        raise ProfileError(f"no {LIBRARY}: run cargo build --release -p contigua-apply")
    return str(library)


def _libraries(changes: Sequence[Change]) -> int:
    """Return the number of libraries that changes preload."""
    ours = any(change.action in ("huge-pages", "huge-code") for change in changes)
    return int(ours) + any(change.action == "contigua-malloc" for change in changes)


def _one_malloc(items: Sequence[Item], refused: list[Rejected]) -> list[Item]:
    """Keep the better one of two mallocs; items are sorted by saving."""
    mallocs = [
        item for item in items if item.change.action in ("malloc-huge-pages", "contigua-malloc")
    ]
    for item in mallocs[1:]:
        best = mallocs[0]
        saving = percent(item.saving, item.half_width)
        why = f"{item.change.action}: saves {saving}, less than {best.change.action}"
        refused.append(Rejected(item.change.name, why))
    return [item for item in items if item not in mallocs[1:]]


def _peak(report: Report) -> int:
    memory = report.values["memory"]
    return sum(memory[f"resident_{size}_bytes"] for size in ("4k", "2m", "1g"))


def _signed(size: int) -> str:
    return f"{'-' if size < 0 else '+'}{size_text(abs(size))}"


def _thp_mode() -> str:
    try:
        return THP.read_text(encoding="ascii").split("[")[1].split("]")[0]
    except (OSError, IndexError):
        return "off"
