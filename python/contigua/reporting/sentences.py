"""What matters, in plain words with figures: who is fastest, by how much, and why."""

from __future__ import annotations

from collections.abc import Sequence

from contigua.reporting import measures
from contigua.reporting.cases import Run, Runs
from contigua.reporting.words import count, names, percent
from contigua.sampling import matched

#: Runs this close to each other (a share of cycles) are called equally fast.
CLOSE = 0.005
#: Parts of a difference that are named: those of at least this share of it.
NOTEWORTHY = 0.1
#: Cases that are told one by one; of more, only what holds over all of them.
TOLD = 4
#: Names of the parts of cycles within a sentence.
PARTS = {
    "base": "are executing instructions",
    "memory": "are waits for caches and memory",
    "translation": "are address translation",
    "kernel": "are the kernel's work",
}


def headlines(runs: Runs) -> list[str]:
    """Return the sentences that a report begins with.

    At most three for each of a few cases: who is fastest and by how much, where that comes from,
    and what memory was like. They are computed from the reports and nothing else.
    """
    cases = list(runs.cases)
    found = [
        f"{case}: {line}" if case else line for case in cases[:TOLD] for line in _case(runs, case)
    ]
    if len(cases) > 1:
        found += _over_cases(runs)
    sampled = [run.values["sample"] for run in runs.all if run.values.get("sample")]
    if sampled:
        found.append(
            "Sampled: what follows ± is half of an interval that holds the value with a "
            f"probability of {percent(min(sample['confidence'] for sample in sampled))}."
        )
    cut = sum(run.summary["complete"] is False for run in runs.all)
    if cut:
        found.insert(0, f"{cut} of {len(runs.all)} runs were interrupted, and are incomplete.")
    return found


def _case(runs: Runs, case: str) -> list[str]:
    members = runs.cases[case]
    if len({run.design for run in members}) == 1 and len(members) == 1:
        return [_alone(members[0])]
    if not all(run.cycles is not None for run in members):
        return [_fewest_walks(members), _memory(members)]
    ordered = sorted(members, key=lambda run: run.cycles or 0)
    best, base = ordered[0], runs.baseline(case)
    return [_fastest(ordered, base), _why(best, base, ordered), _memory(members)]


def _alone(run: Run) -> str:
    found = run.summary
    if run.cycles is None:
        return (
            f"{run.design} walks page tables {found['l2_tlb_mpki']:.2f} times per thousand "
            "instructions."
        )
    return (
        f"{run.design} takes {count(run.cycles)} cycles, {percent(found['walk_share'])} of them in "
        f"page walks and {percent(found['kernel_share'])} in the kernel."
    )


def _fewest_walks(members: Sequence[Run]) -> str:
    ordered = sorted(members, key=lambda run: float(run.summary["l2_tlb_mpki"]))
    best, worst = ordered[0], ordered[-1]
    low, high = (run.summary["l2_tlb_mpki"] for run in (best, worst))
    if low == high:
        return f"All designs walk page tables equally often, {low:.2f} times per thousand " + (
            "instructions."
        )
    return (
        f"{best.design} walks page tables least, {low:.2f} times per thousand instructions; "
        f"{worst.design} most, {high:.2f} times. Times were not simulated."
    )


def _fastest(ordered: Sequence[Run], base: Run) -> str:
    best = ordered[0]
    cycles, before = best.cycles or 0, base.cycles or 0
    beside = [run.design for run in ordered[1:] if _is_close(run, best)]
    if best is base or _is_close(best, base):
        if len(beside) == len(ordered) - 1:
            within = max(CLOSE, *(_margin(run, best) for run in ordered))
            return (
                f"All designs are equally fast, within {percent(within)}: {count(cycles)} cycles."
            )
        return (
            f"No design is faster than {base.design} ({count(before)} cycles); "
            f"{ordered[-1].design} takes {_against(ordered[-1], base)}."
        )
    text = (
        f"{best.design} is fastest: {count(cycles)} cycles, {_against(best, base)} than "
        f"{base.design} ({count(before)})"
    )
    others = [run for run in ordered[1:] if run is not base and run.design not in beside]
    if beside:
        text += f"; {names(beside)} {'are' if len(beside) > 1 else 'is'} as fast"
    if others:
        alike: dict[str, list[str]] = {}
        for run in others:
            alike.setdefault(_against(run, base), []).append(run.design)
        text += "; " + "; ".join(
            f"{names(designs)} {'takes' if len(designs) == 1 else 'take'} {how}"
            for how, designs in alike.items()
        )
    return text + "."


def _margin(run: Run, base: Run) -> float:
    """Half the interval of a run's cycles relative to another's; 0 where neither is sampled."""
    ratio = None if run is base else matched(run.values, base.values)
    return 0.0 if ratio is None else ratio.half_width


def _change(run: Run, base: Run) -> float:
    return (run.cycles or 0) / max(base.cycles or 0, 1) - 1


def _is_close(run: Run, base: Run) -> bool:
    """Whether two runs are equally fast, as far as is known."""
    return abs(_change(run, base)) < max(CLOSE, _margin(run, base))


def _against(run: Run, base: Run) -> str:
    change, margin = _change(run, base), _margin(run, base)
    if _is_close(run, base):
        return "as many"
    share = percent(abs(change))
    if margin:
        share = f"{100 * abs(change):.1f} ± {100 * margin:.1f} %"
    return f"{share} {'more' if change > 0 else 'fewer'}"


def _why(best: Run, base: Run, ordered: Sequence[Run]) -> str:
    """Say which parts of the cycles a difference comes from."""
    faster = best is not base and (best.cycles or 0) < (base.cycles or 0) * (1 - CLOSE)
    other = best if faster else ordered[-1]
    ours, theirs = measures.cycles(other), measures.cycles(base)
    saved = sum(theirs.values()) - sum(ours.values())
    if other is base or not abs(saved) > CLOSE * sum(theirs.values()):
        share = base.summary["walk_share"] or 0.0
        return (
            f"Page walks take {percent(share)} of {base.design}'s cycles: no more than that can be "
            "gained from translation."
        )
    parts = sorted(
        ((theirs[name] - ours[name], name) for name in theirs), key=lambda part: -abs(part[0])
    )
    # A part that goes the other way is told as such; the shares add up to the whole either way.
    told = [
        f"{'' if part * saved > 0 else 'minus '}{percent(abs(part / saved))} {PARTS[name]}"
        for part, name in parts
        if abs(part) >= NOTEWORTHY * abs(saved)
    ]
    walks = (
        f"{base.summary['l2_tlb_mpki']:.2f} page walks per thousand instructions became "
        f"{other.summary['l2_tlb_mpki']:.2f}"
    )
    verb = "saves" if saved > 0 else "adds"
    return f"Of the {count(abs(saved))} cycles that {other.design} {verb}, {names(told)}; {walks}."


def _memory(members: Sequence[Run]) -> str:
    """Say what memory was like, and what the designs made of it."""
    free: dict[float, list[str]] = {}
    for run in members:
        share = measures.contiguity(run, "before", "2 MB")["free"] / 100
        free.setdefault(round(share, 3), []).append(run.design)
    commonest = max(free, key=lambda share: len(free[share]))
    text = f"{percent(commonest)} of memory lay in free 2 MB blocks before the program"
    for share, designs in free.items():
        if share != commonest:
            text += f" ({percent(share)} under {names(designs)})"
    covered: dict[str, list[str]] = {}
    for run in sorted(members, key=lambda run: -run.summary["huge_page_coverage"]):
        said = percent(run.summary["huge_page_coverage"])
        covered.setdefault(said, []).append(run.design)
    shares = names([f"{said} under {names(found)}" for said, found in covered.items()])
    return (
        f"{text}; pages larger than 4 KB, or a segment, hold this much of the program's: {shares}."
    )


def _over_cases(runs: Runs) -> list[str]:
    """Say what holds over cases: what one change does to each design, and the mean speed-up."""
    if not runs.timed:
        return []
    found = []
    cases = list(runs.cases)
    if len(runs.axes) == 1 and runs.axes[0] != "program" and len(cases) == 2:
        first, last = cases
        changes = []
        for design in runs.designs:
            ends = [
                [run.cycles for run in runs.cases[case] if run.design == design]
                for case in (first, last)
            ]
            if all(len(end) == 1 for end in ends) and ends[0][0]:
                changes.append((design, (ends[1][0] or 0) / ends[0][0] - 1))
        if changes:
            said = [f"{design} {change:+.1%}".replace("%", " %") for design, change in changes]
            found.append(f"Cycles from {first} to {last}: {names(said)}.")
    if len(cases) > TOLD and len(runs.designs) > 1:
        means = {}
        for design in runs.designs:
            ratios = [runs.speedup(run) for run in runs.all if run.design == design]
            product = 1.0
            for ratio in ratios:
                product *= (ratio or 1.0) ** (1 / len(ratios))
            means[design] = product
        best = max(means, key=lambda design: means[design])
        base = runs.baseline(cases[0]).design
        ranked = sorted(means.items(), key=lambda item: -item[1])
        listed = names([f"{design} {mean:.3f}" for design, mean in ranked])
        found.append(
            f"Over {len(cases)} cases {best} is fastest in the geometric mean; speed relative to "
            f"{base}: {listed}."
        )
    return found
