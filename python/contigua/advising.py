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
from contigua.settings import SETTINGS, Setting, Tried
from contigua.sizes import size_text

#: Designs of a profile for advice: the program as it is, where huge pages are for who asks for
#: them; then huge pages everywhere, which tells what they can save at each mapping.
DESIGNS = ("linux-thp-madvise", "linux-thp")
#: Candidates that are run, by default.
RUNS = 4
#: The age of memory of which nothing was ever allocated.
FRESH = "fresh"
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
            what = f"{saving}{basis}{_on_fresh(item)}{cost}"
            found.append(f"Saves {what}: {change.name}: {change.by_hand}.")
        if not found:
            found.append("No change of page sizes helps.")
        elif advice.saving is not None and len(advice.items) > 1:
            found.append(f"All together save {percent(advice.saving, advice.half_width)}.")
        for tried in advice.settings:
            saving = percent(tried.saving, tried.half_width)
            what = f"{saving}{_on_fresh(tried)}, memory {_signed(tried.memory_bytes)}"
            setting = tried.setting
            found.append(f"On the server, {setting.name} save {what}: {setting.by_hand}.")
        return found + [f"Does not help: {one.name}: {one.why}." for one in advice.rejected]


def advise(
    command: Sequence[str],
    *,
    designs: Sequence[str | Preset] = DESIGNS,
    options: RunOptions | None = None,
    runs: int = RUNS,
    settings: Sequence[Setting] = SETTINGS,
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
    settings
        Settings of the whole server that are tried.
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
    helpful, unhelpful = trials.settings(settings, progress) if settings else ([], [])
    advice = Advice(
        program=candidates.program,
        command=tuple(command),
        design=base.design,
        machine=base.machine,
        cycles=base.cycles,
        items=tuple(items),
        rejected=(*refused, *unhelpful, *candidates.rejected),
        settings=tuple(helpful),
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
        self.is_used = str(options.age) != FRESH
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
        why += percent(abs(tried.saving), tried.half_width) + _on_fresh(tried)
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
            base, found = self._inside(self.options, [chosen], progress)
            return _saving(base, found)
        return self._outside(self.options, self.base, chosen, progress)[1]

    def settings(
        self, settings: Sequence[Setting], progress: Progress | None
    ) -> tuple[list[Tried], list[Rejected]]:
        """Run the program on servers with other settings, all on one execution."""
        found = self._settings(settings, self.options, progress)
        if self.is_used:
            fresh = self._settings(settings, replace(self.options, age=FRESH), progress)
            found = [
                (replace(tried, fresh=(other.saving, other.half_width)), because)
                for (tried, because), (other, _) in zip(found, fresh, strict=True)
            ]
        helps, refused = [], []
        for tried, because in found:
            if tried.saving >= LEAST and tried.saving > tried.half_width:
                helps.append(tried)
                continue
            word = "save" if tried.saving >= 0 else "cost"
            saving = percent(abs(tried.saving), tried.half_width) + _on_fresh(tried)
            why = f"they {word} {saving}: {because}, memory {_signed(tried.memory_bytes)}"
            refused.append(Rejected(tried.setting.name, why))
        return sorted(helps, key=lambda tried: -tried.saving), refused

    def _settings(
        self, settings: Sequence[Setting], options: RunOptions, progress: Progress | None
    ) -> list[tuple[Tried, str]]:
        """Return each setting with what becomes of page walks and page faults."""
        design = design_presets.get(self.design)
        designs = [design, *(setting.of(design) for setting in settings)]
        results = run(self.command, designs=designs, options=options, progress=progress)
        base, *reports = results.reports
        return [
            (
                Tried(setting, *_saving(base, found), _peak(found) - _peak(base)),
                _instead(base, found),
            )
            for setting, found in zip(settings, reports, strict=True)
        ]

    def tried(
        self, candidates: Sequence[Candidate], progress: Progress | None
    ) -> list[tuple[Candidate, Item]]:
        """Run the program with each of some changes.

        Changes that do no more than give memory huge pages are tried on one execution, beside the
        program as it is: no chance of the program's parts them. Others are executions of their own.
        """
        if not candidates:
            return []
        items = self._tried(self.options, candidates, progress)
        if self.is_used:
            options = replace(self.options, age=FRESH)
            fresh = self._tried(options, candidates, progress)
            items = [
                replace(item, fresh=(other.saving, other.half_width))
                for item, other in zip(items, fresh, strict=True)
            ]
        return list(zip(candidates, items, strict=True))

    def _tried(
        self, options: RunOptions, candidates: Sequence[Candidate], progress: Progress | None
    ) -> list[Item]:
        sets = [[one] for one in candidates if one.advised]
        base, *reports = self._inside(options, sets, progress)
        if options is self.options:
            self.repeated = abs(_saving(self.base, base)[0])
        inside = iter(reports)
        found = []
        for candidate in candidates:
            if candidate.advised:
                report = next(inside)
                saving = _saving(base, report)
            else:
                report, saving = self._outside(options, base, [candidate], progress)
            found.append(_item(candidate, base, report, saving))
        return found

    def _inside(
        self,
        options: RunOptions,
        sets: Sequence[Sequence[Candidate]],
        progress: Progress | None,
    ) -> Sequence[Report]:
        """Run the program as it is, and with each of some sets of changes, on one execution."""
        advised = [tuple(memory for one in changes for memory in one.advised) for changes in sets]
        options = replace(options, advised=((), *advised))
        return run(self.command, designs=[self.design], options=options, progress=progress).reports

    def _outside(
        self,
        options: RunOptions,
        base: Report,
        candidates: Sequence[Candidate],
        progress: Progress | None,
    ) -> tuple[Report, tuple[float, float]]:
        """Run the program with changes as an execution of its own."""
        changes = [candidate.change for candidate in candidates]
        options = with_changes(options, self.program, changes)
        found = run(self.command, designs=[self.design], options=options, progress=progress)[0]
        saving, half_width = _saving(base, found)
        return found, (saving, max(half_width, self.repeated))


def _item(candidate: Candidate, base: Report, found: Report, saving: tuple[float, float]) -> Item:
    memory = _peak(found) - _peak(base)
    return Item(candidate.change, *saving, is_run=True, memory_bytes=memory)


def _on_fresh(item: Item | Tried) -> str:
    return "" if item.fresh is None else f" ({percent(*item.fresh)} on fresh memory)"


def _instead(base: Report, found: Report) -> str:
    """Say what becomes of page walks and page faults."""
    parts = []
    before, after = base.summary(), found.summary()
    for name, keys in {
        "page walks": ("walks_4k", "walks_2m"),
        "page faults": ("page_faults",),
    }.items():
        was, now = (sum(values[key] for key in keys) for values in (before, after))
        change = now / max(was, 1) - 1
        if abs(change) < LEAST:
            parts.append(f"as many {name}")
        else:
            parts.append(f"{percent(abs(change))} {'more' if change > 0 else 'fewer'} {name}")
    return ", ".join(parts)


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
