"""The verdict in sentences: which design is fastest, by how much, why, and what limits that.

`contigua run`, reports and notebooks begin with them. The parts of a difference add up to it, and a
difference is called none unless its whole interval lies beyond :data:`CLOSE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod, sqrt

from contigua.reporting import measures
from contigua.reporting.cases import Run, Runs, arrange
from contigua.reporting.causes import causes
from contigua.reporting.words import count, mebibytes, names, percent
from contigua.reports import MEBIBYTE, Report, aligned_shmem, shmem_enabled
from contigua.sampling import matched
from contigua.statistics import mean_margin
from contigua.table import ROWS, cut_short, with_interval

#: Runs this close to each other (a share of cycles) are called equally fast.
CLOSE = 0.005
#: Parts of a difference that are named: those of at least this share of it.
SLIGHT = 0.01
#: Designs whose mean memory differs by more than this share are told with it.
UNLIKE = 0.05
#: Translation overheads below this share of cycles are as good as none.
UNSEEN = 1e-3
#: Cases that are told one by one; of more, only what holds over all of them.
TOLD = 4
#: Reasons of points that failed that are named.
REASONS = 3
#: Parts of Linux that QEMU's user mode does not have, by keys of a report's `syscalls`.
REFUSED = {"io_uring": "io_uring", "aio": "Linux AIO (io_setup)", "userfaultfd": "userfaultfd"}
#: Fewer instructions than this are mostly those with which any program starts.
SHORT = 1_000_000


def verdict(reports: Sequence[Report]) -> list[str]:
    """Return what is said above a table: two or three sentences, and what limits them."""
    return headlines(arrange(reports), brief=True)


def headlines(runs: Runs, *, brief: bool = False) -> list[str]:
    """Return the sentences that a report begins with.

    Three for each of a few cases: which design is fastest and by how much, where that comes from,
    and how its memory is mapped. Then what holds over cases, and what limits all of it.

    Parameters
    ----------
    runs
        The runs.
    brief
        Whether only the first is wanted of several cases, and nothing that a table's title says.
    """
    cases = list(runs.cases)
    cut = sum(run.summary["complete"] is False for run in runs.all)
    each = 1 if brief and len(cases) > 1 else None
    found = [
        f"{case}: {line}" if case else line
        for case in cases[:TOLD]
        for line in _case(runs, case)[:each]
    ]
    if len(cases) > TOLD and (ages := _histories(runs)):
        found.append(f"Histories of memory: {names(ages)}.")
    if len(cases) > 1 and not cut:
        found += _over_cases(runs)
    sampled = [run.values["sample"] for run in runs.all if run.values.get("sample")]
    weighted = [sample for sample in sampled if sample.get("weights")]
    if weighted and not brief:
        found.append("Estimated from SimPoints: nothing is known of the error.")
    elif sampled and not brief:
        found.append(
            "Sampled: ± is the half-width of a "
            f"{percent(min(sample['confidence'] for sample in sampled))} confidence interval."
        )
    if several := max(len(run.seeds) for run in runs.all):
        found.append(
            f"Means of {several} seeds; ± is the half-width of a 95 % confidence interval."
        )
    found += _warming(runs.all)
    found += _goal([run for run in runs.all if (run.values.get("sample") or {}).get("goal")])
    found += _refused(runs.all)
    found += _placed_otherwise(runs.all)
    return [*incomplete(runs), *_failed(runs), *_short(runs.all), *found]


def _short(runs: Sequence[Run]) -> list[str]:
    """Say that a run is too short, before anything is said of it."""
    executed = min(int(run.summary["instructions"]) for run in runs)
    if executed >= SHORT:
        return []
    ending = "" if executed == 1 else "s"
    return [f"Too short for a verdict: only {count(executed)} instruction{ending}."]


def incomplete(runs: Runs) -> list[str]:
    """Say of runs that are incomplete how they ended, and after how many instructions."""
    said: dict[str, list[Run]] = {}
    for run in runs.all:
        if text := _end(run):
            said.setdefault(text, []).append(run)
    found = []
    for text, own in said.items():
        most = max(int(run.summary["instructions"]) for run in own)
        of = f"{len(own)} of {len(runs.all)} runs: " if len(own) < len(runs.all) else ""
        found.append(f"{of}{text}: incomplete, {count(most)} instructions were measured.")
    return found


def _end(run: Run) -> str:
    """Say how an incomplete run ended; nothing of a complete one."""
    cut = cut_short(run.values)
    if not cut:
        return ""
    ended = run.values.get("ended")
    if ended == "exit_status":
        return f"{run.program} ended with {cut}"
    if ended == "signal":
        return f"{run.program} was {cut}"
    if ended == "failure":
        return f"{run.program} was {cut} ({run.values['program']['failure']})"
    return f"{run.program} was {cut}"


def _refused(runs: Sequence[Run]) -> list[str]:
    """Name what programs asked for and QEMU's user mode does not have."""
    asked: dict[str, list[str]] = {}
    for run in runs:
        calls = run.values.get("syscalls") or {}
        wanted = [name for key, name in REFUSED.items() if calls.get(key)]
        if wanted:
            asked[run.program] = wanted
    return [
        f"{program} asked for {names(wanted)}, which QEMU refuses programs: simulated is what it "
        "did instead."
        for program, wanted in asked.items()
    ]


def _placed_otherwise(runs: Sequence[Run]) -> list[str]:
    """Name designs under which Linux would place shared memory elsewhere; addresses are common."""
    said: dict[str, list[str]] = {}
    for run in runs:
        config = run.values["config"]
        there = config.get("layout", {}).get("aligned_shmem", "none")
        own = aligned_shmem(shmem_enabled(config["design"]))
        if own != there and run.values["memory"].get("shmem_bytes", 0) >= 2 * MEBIBYTE:
            what = {"none": "no", "unmounted": "unmounted", "all": "all"}[there]
            said.setdefault(what, []).append(run.design)
    return [
        f"In this execution, {what} shared memory is aligned to 2 MB; under the shmem_enabled of "
        f"{names(list(dict.fromkeys(designs)))}, Linux would place it otherwise."
        for what, designs in said.items()
    ]


def _failed(runs: Runs) -> list[str]:
    """Say how many points of sweeps failed, and why."""
    if not runs.failures:
        return []
    why: dict[str, int] = {}
    for failure in runs.failures:
        error = str(failure["error"])
        why[error] = why.get(error, 0) + 1
    ordered = sorted(why, key=lambda error: -why[error])
    named = [f"{error} ({why[error]})" if len(why) > 1 else error for error in ordered[:REASONS]]
    if len(ordered) > REASONS:
        named.append(f"{len(ordered) - REASONS} other reasons")
    points = len(runs.failures) + len(runs.all)
    return [f"{len(runs.failures)} of {points} points failed: {'; '.join(named)}."]


def _histories(runs: Runs) -> list[str]:
    """Return every history that ran, as it was typed."""
    ages = dict.fromkeys(str(run.values["config"]["age"]) for run in runs.all)
    return list(ages) if len(ages) > 1 else []


def _warming(runs: Sequence[Run]) -> list[str]:
    """Say which runs have units that longer warming changes, and what to do."""
    sampled = [run for run in runs if (run.values.get("sample") or {}).get("warming")]
    changes = [
        (run, run.values["sample"]["warming"]["cycles"]["value"])
        for run in sampled
        if run.values["sample"]["warming"]["differs"]
    ]
    found = [(run, change) for run, change in changes if abs(change) >= CLOSE]
    if not found:
        return []
    most, change = max(found, key=lambda pair: abs(pair[1]))
    sampling = most.values["sample"]["sampling"]
    way = "more" if change > 0 else "fewer"
    others = f", the most of {len(found)} runs" if len(found) > 1 else ""
    return [
        f"Units of {most.design} take {percent(abs(change))} {way} cycles after "
        f"{count(sampling['long_warm'])} instructions of warming than after "
        f"{count(sampling['warm'])}{others}; values are corrected by that, and ± holds it. "
        f"--sample-warm {sampling['long_warm']} narrows it."
    ]


def _goal(wanted: Sequence[Run]) -> list[str]:
    """Say whether the error of cycles is as small as was wanted, and if not, what makes it so."""
    if not wanted:
        return []
    # The one that needs most units, or of whose error nothing is known.
    worst = max(
        wanted,
        key=lambda run: (
            not (goal := run.values["sample"]["goal"])["reached"],
            inf if goal["half_width"] is None else goal["half_width"] / goal["error"],
        ),
    )
    goal = worst.values["sample"]["goal"]
    aim, half = f"± {100 * goal['error']:g} %", goal["half_width"]
    if goal["reached"]:
        each = "" if len(wanted) == 1 else ", or less"
        return [f"The goal of {aim} is reached: cycles have ± {100 * half:.1f} %{each}."]
    if half is None:
        return [f"The goal of {aim} is missed: too few units fit in. Simulate all of the program."]
    missed = f"The goal of {aim} is missed: cycles of {worst.design} have ± {100 * half:.1f} %."
    units = count(goal["units"])
    if goal["distance"] is None:
        return [f"{missed} {units} units would reach it: simulate all of the program."]
    return [
        f"{missed} {units} units would reach it: --sample-units 0 --sample-distance "
        f"{goal['distance']}."
    ]


@dataclass(frozen=True)
class Difference:
    """How a run's cycles compare with those of another run.

    Attributes
    ----------
    run
        The run.
    change
        The share of the other's cycles that it takes more; negative if it is faster.
    margin
        Half the interval of that; 0 unless sampled, infinite where nothing is known of it.
    """

    run: Run
    change: float
    margin: float

    @staticmethod
    def of(run: Run, base: Run) -> Difference:
        """Compare two runs that have times."""
        change = (run.cycles or 0) / max(base.cycles or 0, 1) - 1
        if run.seeds and base.seeds and run is not base:
            return Difference(run, change, _seed_margin(run, base))
        samples = [one.values.get("sample") for one in (run, base)]
        # Designs meet the same SimPoints; of what these leave open nothing is known.
        sampled = [
            one
            for one, sample in zip((run, base), samples, strict=True)
            if sample and not sample.get("weights")
        ]
        if run is base or not sampled:
            return Difference(run, change, 0.0)
        if (ratio := matched(run.values, base.values)) is not None:
            return Difference(run, change, ratio.half_width)
        halves = [one.intervals.get("cycles", inf) for one in sampled]
        return Difference(run, change, sum(halves) / max(base.cycles or 0, 1))

    @property
    def is_none(self) -> bool:
        """Return true if both are equally fast, as far as is known."""
        return abs(self.change) < CLOSE + self.margin

    @property
    def speed(self) -> float:
        """How many times as fast as the other the run is."""
        return 1 / max(1 + self.change, 1e-9)

    @property
    def size(self) -> str:
        """How large it is, with its interval."""
        return percent(abs(self.change), self.margin)

    @property
    def said(self) -> str:
        """Return the difference in cycles, in words; empty where there is none."""
        if self.is_none:
            return ""
        return f"{self.size} {'more' if self.change > 0 else 'fewer'}"


def _seed_margin(run: Run, base: Run) -> float:
    """Return half of the interval of a difference over seeds, each compared with its own."""
    cycles = [
        {one.values["config"]["seed"]: one.values["time"]["cycles"] for one in each.seeds}
        for each in (run, base)
    ]
    shared = [seed for seed in cycles[0] if seed in cycles[1]]
    changes = [cycles[0][seed] / max(cycles[1][seed], 1) - 1 for seed in shared]
    margin = mean_margin(changes) if len(changes) > 1 else None
    return inf if margin is None else margin


def _case(runs: Runs, case: str) -> list[str]:
    members = runs.cases[case]
    if len(members) == 1:
        return [_alone(members[0])]
    if not all(run.cycles is not None for run in members):
        return [_fewest_walks(members), *_memory(members)]
    base = runs.baseline(case)
    ordered = sorted((Difference.of(run, base) for run in members), key=lambda one: one.change)
    if limit := _incomparable(ordered):
        return [limit, *_memory(members)]
    return [_fastest(ordered, base), *_why(ordered, base), *_memory(members)]


def _incomparable(members: Sequence[Difference]) -> str:
    """Say why the cycles of a case do not compare; nothing where they do."""
    executed = [int(one.run.summary["instructions"]) for one in members]
    low, high = min(executed), max(executed)
    if high - low > CLOSE * high:
        return (
            f"The cycles of these runs do not compare: they executed between {count(low)} and "
            f"{count(high)} instructions."
        )
    if any(one.margin == inf for one in members):
        return "Too few units were sampled to compare designs; lower --sample-distance."
    return ""


def _alone(run: Run) -> str:
    found = run.summary
    if run.cycles is None:
        return (
            f"{run.design} walks page tables {found['l2_tlb_mpki']:.2f} times per thousand "
            "instructions."
        )
    return (
        f"{run.design} takes {count(run.cycles)} cycles: {_costs(run)}; mean huge-page "
        f"coverage {percent(found['mean_huge_page_coverage'])}."
    )


def _costs(run: Run) -> str:
    """Say what translation and the kernel cost a run."""
    misses = run.summary["l2_tlb_mpki"]
    return f"{names(measures.costs(run))}, {misses:.2f} L2 TLB misses per thousand instructions"


def _fewest_walks(members: Sequence[Run]) -> str:
    ordered = sorted(members, key=lambda run: float(run.summary["l2_tlb_mpki"]))
    best, worst = ordered[0], ordered[-1]
    low, high = (f"{run.summary['l2_tlb_mpki']:.2f}" for run in (best, worst))
    if low == high:
        return (
            f"All designs walk page tables equally often, {low} times per thousand instructions. "
            "Times were not simulated."
        )
    return (
        f"{best.design} walks page tables least, {low} times per thousand instructions; "
        f"{worst.design} most, {high} times. Times were not simulated."
    )


def _fastest(ordered: Sequence[Difference], base: Run) -> str:
    best, before = ordered[0], count(base.cycles or 0)
    if all(one.is_none for one in ordered):
        within = CLOSE + max(one.margin for one in ordered)
        return (
            f"All designs are equally fast: within {percent(within)} of {base.design}'s {before} "
            "cycles."
        )
    others = [one for one in ordered if one.run is not base]
    if best.is_none:
        text = f"No design is faster than {base.design} ({before} cycles)"
    else:
        text = (
            f"{best.run.design} is fastest: {count(best.run.cycles or 0)} cycles, {best.said} than "
            f"{base.design} ({before})"
        )
        others = [one for one in others if one is not best]
        if beside := [
            one for one in others if not one.is_none and Difference.of(one.run, best.run).is_none
        ]:
            found = names([one.run.design for one in beside])
            text += f"; {found} {'are' if len(beside) > 1 else 'is'} as fast"
            others = [one for one in others if one not in beside]
    alike: dict[str, list[str]] = {}
    for one in others:
        alike.setdefault(one.said, []).append(one.run.design)
    for said, designs in alike.items():
        single = len(designs) == 1
        if said:
            text += f"; {names(designs)} {'takes' if single else 'take'} {said}"
        else:
            text += f"; {names(designs)} {'is' if single else 'are'} no faster"
    return text + "."


def _why(ordered: Sequence[Difference], base: Run) -> list[str]:
    """Say where the cycles are that each design which differs saves or adds, and what shows why."""
    differing = [one.run for one in ordered if one.run is not base and not one.is_none]
    if not differing:
        return [f"{base.design}'s cycles: {_costs(base)}."]
    return [_difference(run, base) for run in differing]


def _difference(run: Run, base: Run) -> str:
    """Say of what the difference between two runs is made, in cycles that add up to it.

    Parts that are a small share of it, or smaller than their own error, are left out.
    """
    saved = (base.cycles or 0) - (run.cycles or 0)
    parts = sorted(_parts(run, base).items(), key=lambda part: -part[1] * saved)
    told = [
        f"{name} {'-' if part > 0 else '+'}{count(abs(part))}"
        for name, part in parts
        if abs(part) >= SLIGHT * abs(saved)
    ]
    why = "".join(f"; {cause}" for cause in causes(run, base))
    return (
        f"{run.design} takes {count(abs(saved))} cycles {'fewer' if saved > 0 else 'more'}: "
        f"{', '.join(told)}{_trends(run, base)}{why}."
    )


def _parts(run: Run, base: Run) -> dict[str, float]:
    """Return the cycles that a run saves by what they were spent on.

    The translation overhead is apart where it was measured and differs by more than its intervals;
    what then is left is a part only if it exceeds these intervals.
    """

    def lost(key: str) -> float:
        before, after = (float(one.summary[key]) * (one.cycles or 0) for one in (base, run))
        return before - after

    total, kernel = (base.cycles or 0) - (run.cycles or 0), lost("kernel_share")
    key = "translation_overhead"
    if all(one.summary[key] is not None for one in (run, base)):
        translation = lost(key)
        error = sum(one.intervals.get(key, 0.0) * (one.cycles or 0) for one in (run, base))
        if abs(translation) > error:
            parts = {"translation overhead": translation, "kernel cycles": kernel}
            other = total - translation - kernel
            return parts | ({"other cycles of the program": other} if abs(other) > error else {})
    return {"kernel cycles": kernel, "cycles of the program": total - kernel}


def _trends(run: Run, base: Run) -> str:
    """Say how a run's translation differs from another's; nothing where it does not."""
    said = []
    for key, name, unit in (
        ("translation_overhead", "translation overhead", "of cycles"),
        ("l2_tlb_mpki", "L2 TLB misses", "per thousand instructions"),
    ):
        values = [one.summary[key] for one in (base, run)]
        halves = [one.intervals.get(key) for one in (base, run)]
        before, after = map(with_interval, (ROWS[key],) * 2, values, halves)
        if None in values or before == after:
            continue
        # Rounded up or down from next to nothing: no difference that anybody sees.
        if key == "translation_overhead" and max(values) < UNSEEN:
            continue
        if abs(values[1] - values[0]) > sum(half or 0 for half in halves):
            way = "down" if values[1] < values[0] else "up"
            said.append(f"{name} {way} from {before} to {after} {unit}")
    return f"; {', '.join(said)}" if said else ""


def _memory(members: Sequence[Run]) -> list[str]:
    """Say what the designs made of memory over time, and what it was like before."""
    covered: dict[str, list[str]] = {}
    for run in sorted(members, key=lambda run: -run.summary["mean_huge_page_coverage"]):
        said = percent(run.summary["mean_huge_page_coverage"])
        covered.setdefault(said, []).append(run.design)
    shares = names([f"{said} under {names(found)}" for said, found in covered.items()])
    free: dict[str, list[str]] = {}
    for run in members:
        share = measures.contiguity(run, "before", "2 MB")["free"] / 100
        free.setdefault(percent(share) if share else "no", []).append(run.design)
    commonest = max(free, key=lambda said: len(free[said]))
    start = "no memory" if commonest == "no" else f"{commonest} of memory"
    text = (
        f"Mean huge-page coverage is {shares}; at the start, {start} was free in whole 2 MB blocks"
    )
    for said, designs in free.items():
        if said != commonest:
            text += f" ({'none' if said == 'no' else said} under {names(designs)})"
    return [f"{text}.", *_resident(members)]


def _resident(members: Sequence[Run]) -> list[str]:
    """Name the designs' memory where it differs."""
    means = {run.design: float(run.summary["mean_resident_mib"]) for run in members}
    if max(means.values()) <= (1 + UNLIKE) * min(means.values()):
        return []
    ordered = sorted(means, key=lambda design: means[design])
    listed = names([f"{mebibytes(means[design])} under {design}" for design in ordered])
    return [f"Mean memory is {listed}."]


def _over_cases(runs: Runs) -> list[str]:
    """Say what holds over cases: what one change does to each design, and the mean speed-up."""
    if not runs.timed:
        return []
    cases = list(runs.cases)
    if len(cases) == 2 and len(runs.axes) == 1 and runs.axes[0] != "program":
        return _changes(runs, *cases)
    return _means(runs, cases) if len(cases) > TOLD and len(runs.designs) > 1 else []


def _changes(runs: Runs, first: str, last: str) -> list[str]:
    """Say how the cycles of each design change from one case to another."""
    said = []
    for design in runs.designs:
        ends = [[run for run in runs.cases[case] if run.design == design] for case in (first, last)]
        if not all(len(end) == 1 for end in ends):
            continue
        found = Difference.of(ends[1][0], ends[0][0])
        if found.margin < inf:
            sign = "+" if found.change > 0 else "-"
            said.append(f"{design} {'unchanged' if found.is_none else sign + found.size}")
    return [f"Cycles from {first} to {last}: {names(said)}."] if said else []


def _means(runs: Runs, cases: Sequence[str]) -> list[str]:
    """Say which designs that ran in every case are fastest over all of them."""
    speeds: dict[str, float] = {}
    margin = 0.0
    for design in runs.designs:
        own = [run for run in runs.all if run.design == design]
        if {run.case for run in own} != set(cases):
            continue
        found = [Difference.of(run, runs.baseline(run.case)) for run in own]
        speeds[design] = prod(one.speed ** (1 / len(found)) for one in found)
        margin = max(margin, sqrt(sum(one.margin**2 for one in found)) / len(found))
    base = runs.baseline(cases[0]).design
    if base not in speeds or len(speeds) < 2 or margin == inf:
        return []
    ranked = sorted(speeds, key=lambda design: -speeds[design])
    close = CLOSE + margin
    if speeds[ranked[0]] < speeds[base] + close:
        text = f"no design is faster than {base}"
    else:
        best = [design for design in ranked if speeds[design] > speeds[ranked[0]] - close]
        text = f"{names(best)} {'are' if len(best) > 1 else 'is'} fastest"
    listed = names([f"{design} {speeds[design]:.3f}" for design in ranked])
    return [
        f"Over {len(cases)} cases {text} in the geometric mean; speed relative to {base}: {listed}."
    ]
