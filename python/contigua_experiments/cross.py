"""Every placement with every page policy and translation scheme: costs beside benefits.

Each program is executed once. Speed is that of 4 KB pages of Linux, on memory of the same age and
in the same environment, over that of the combination: what remains is what the combination does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import TYPE_CHECKING, Any

from contigua.extras import needs
from contigua.files import write_whole, writing
from contigua.options import RunOptions
from contigua.programs.program import Program
from contigua.reports import Report
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.combinations import Combination, combine, write_designs
from contigua_experiments.running import Cell, Values, chosen, cycles, run_cells

if TYPE_CHECKING:
    import pandas as pd

    from contigua.page import Page

MEBIBYTE = 1 << 20
#: Speeds that agree in so many digits behind the point are equal to the front.
DIGITS = 3

#: Figures of a run that are added up over programs.
SUMS = (
    "beyond_touched_mib",
    "page_tables_mib",
    "hole_bitmaps_mib",
    "set_aside_mib",
    "page_faults",
    "pages_moved",
    "huge_pages",
)


@dataclass(frozen=True)
class Measured:
    """One program on one combination and age.

    Attributes
    ----------
    combination, age, program
        What ran.
    speed, own_speed
        Cycles of the baseline over ours: all of them, and without the kernel's work.
    bits_core, bits_llc
        Storage beyond that of the baseline's hardware: in each core, and in the whole last level.
    cost
        The bits of a core and of one slice of the last level: one stands beside each core.
    figures
        All other figures, by the name of their column.
    """

    combination: Combination
    age: str
    program: str
    speed: float
    own_speed: float
    bits_core: int
    bits_llc: int
    cost: int
    figures: dict[str, float]


@dataclass
class Ranked:
    """A combination over all programs and ages."""

    combination: Combination
    speed: float
    own_speed: float
    by_age: dict[str, float]
    own_by_age: dict[str, float]
    bits_core: int
    bits_llc: int
    cost: int
    figures: dict[str, float]
    on_front: bool = field(default=False)


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every program on every combination and age."""
    programs: list[Program] = []
    notes: list[str] = []
    for name, scale in inputs["programs"].items():
        found_here, missing = chosen([name], scale)
        programs += found_here
        notes += missing
    possible, senseless = combine(
        inputs["placements"], inputs["pages"], inputs["schemes"], inputs["environments"]
    )
    wanted = [Combination.read(text) for text in inputs["only"]] or possible
    every = list(dict.fromkeys([*(one.baseline for one in wanted), *wanted]))
    designs = write_designs(every, context.folder / "designs")
    cells = {
        Cell(path, age=age): (one, age) for age in inputs["ages"] for one, path in designs.items()
    }
    options = RunOptions(
        machine=inputs["machine"],
        memory=inputs["memory"],
        detail=inputs["detail"],
        seed=inputs["seed"],
    )
    measured: list[Measured] = []
    failed: dict[str, list[str]] = {}
    for index, program in enumerate(programs):

        def progress(part: float, before: int = index) -> None:
            if context.progress is not None:
                context.progress((before + part) / len(programs))

        failures: dict[Cell, str] = {}
        found = run_cells(
            program, list(cells), options, progress, failures=failures, kept=context.kept
        )
        measured += measure(program.name, {cells[cell]: one for cell, one in found.items()})
        for cell, why in failures.items():
            one, age = cells[cell]
            failed.setdefault(_sentence(why), []).append(f"{one.name}, {age}, {program.name}")
    if len(possible) > len(every):
        notes.append(
            f"{len(every)} of {len(possible)} combinations that make sense were run, at "
            f"{len(inputs['ages'])} ages; `--full` runs them all."
        )
    _write_data(measured, context)
    return figures(measured, [*notes, *NOTES], [*_left_out(senseless), *_failed(failed)])


NOTES = (
    "Speed is the cycles of Linux with 4 KB pages, on memory of the same age and in the same "
    "environment (native or virtual), over those of the combination: the geometric mean of "
    "programs and ages, then of each age. Own speed leaves the kernel's work out: programs here "
    "are short, and servers fault their memory in once.",
    "Bits are what the combination stores beyond the baseline's hardware, in a core and in all "
    "slices of the last level; the front sets the bits of a core and of one slice against speed.",
    "+MiB is the peak of resident memory beyond that of 4 KB pages, tables are page tables and "
    "hole bitmaps (MiB), aside is memory taken for the program and not in use (MiB): added up over "
    "programs and ages, as are faults, pages moved and huge pages (faults of 2 MB, collapses and "
    "perforations).",
    "Pages of 2 MB and 1 GB are set aside after the server has aged, as a service does that starts "
    "on a used one. In a virtual machine the host maps memory as the guest does and has no age of "
    "its own; page tables are the guest's.",
)


def measure(program: str, found: Mapping[tuple[Combination, str], Values]) -> list[Measured]:
    """Set each run of a program beside its baseline; one whose baseline failed is left out."""
    measured = []
    for (one, age), values in found.items():
        base = found.get((one.baseline, age))
        if base is None:
            continue
        figures = _figures(values)
        figures["beyond_touched_mib"] = figures["resident_mib"] - _figures(base)["resident_mib"]
        core, slice_, llc = (a - b for a, b in zip(_bits(values), _bits(base), strict=True))
        speed = cycles(base) / max(cycles(values), 1.0)
        own = _own_cycles(base) / max(_own_cycles(values), 1.0)
        measured.append(Measured(one, age, program, speed, own, core, llc, core + slice_, figures))
    return measured


def _own_cycles(values: Values) -> float:
    """Return the cycles in which cores did something else than the kernel's work."""
    time = values["time"]
    return float(time["busy_cycles"]) - float(time["breakdown"]["kernel"])


def _figures(values: Values) -> dict[str, float]:
    summary = Report(json.dumps(values)).summary()
    memory, kernel = values["memory"], values["kernel"]
    figures = {
        name: float(summary[name])
        for name in ("walk_share", "kernel_share", "resident_mib", "huge_page_coverage")
    }
    figures |= {name: float(summary[name]) for name in ("page_faults", "pages_moved")}
    figures["huge_pages"] = float(
        kernel["faults_anonymous_2m"] + kernel["huge_page_collapses"] + kernel["perforations"]
    )
    for name in ("page_tables", "hole_bitmaps", "set_aside"):
        figures[f"{name}_mib"] = memory[f"{name}_bytes"] / MEBIBYTE
    return figures


def _bits(values: Values) -> tuple[int, int, int]:
    """Return the bits of a core, of a slice of the last level, and of all its slices."""
    hardware = values["hardware"]
    core = ("first_level_tlb_bits", "translation_bits", "register_bits")
    one = int(hardware["migration_bits_per_slice"])
    return sum(int(hardware[name]) for name in core), one, one * int(hardware["slices"])


def rank(measured: Sequence[Measured]) -> list[Ranked]:
    """Rank combinations by the geometric mean of their speeds, and find each environment's front.

    Only combinations that ran everywhere are compared.
    """
    runs = {(one.age, one.program) for one in measured}
    by: dict[Combination, list[Measured]] = {}
    for one in measured:
        by.setdefault(one.combination, []).append(one)
    ranked = []
    for combination, own in by.items():
        if {(one.age, one.program) for one in own} != runs:
            continue
        ages = list(dict.fromkeys(one.age for one in own))
        by_age = {age: [one for one in own if one.age == age] for age in ages}
        figures = {name: sum(one.figures[name] for one in own) for name in SUMS}
        for name in ("walk_share", "kernel_share"):
            figures[name] = mean(one.figures[name] for one in own)
        core, llc = own[0].bits_core, own[0].bits_llc
        ranked.append(
            Ranked(
                combination,
                geometric(one.speed for one in own),
                geometric(one.own_speed for one in own),
                {age: geometric(one.speed for one in those) for age, those in by_age.items()},
                {age: geometric(one.own_speed for one in those) for age, those in by_age.items()},
                core,
                llc,
                own[0].cost,
                figures,
            )
        )
    for environment in {one.combination.environment for one in ranked}:
        rivals = [one for one in ranked if one.combination.environment == environment]
        marks = front([(one.cost, round(one.speed, DIGITS)) for one in rivals])
        for rival, mark in zip(rivals, marks, strict=True):
            rival.on_front = mark
    return sorted(ranked, key=lambda one: (-one.speed, one.cost, one.combination))


def front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Say which of some points (cost, benefit) no other one is as good as at less, or better than.

    Examples
    --------
    >>> front([(0, 1.0), (0, 1.2), (10, 1.2), (10, 1.5), (20, 1.4)])
    [False, True, False, True, False]
    """
    return [
        not any((c <= cost and b >= benefit) and (c < cost or b > benefit) for c, b in points)
        for cost, benefit in points
    ]


def geometric(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    return math.exp(mean(math.log(max(value, 1e-9)) for value in values))


def figures(measured: Sequence[Measured], notes: list[str], more: list[Sheet]) -> Outcome:
    """Rank the combinations and compute what papers let expect of them."""
    ranked = rank(measured)
    ages = list(dict.fromkeys(one.age for one in measured))
    speeds = {
        (one.combination, age): speed for one in ranked for age, speed in one.own_by_age.items()
    }
    walks: dict[tuple[Combination, str], list[float]] = {}
    for one in measured:
        walks.setdefault((one.combination, one.age), []).append(100 * one.figures["walk_share"])
    fresh, old = ages[0], ages[-1]

    def speed(text: str, age: str) -> float | None:
        return speeds.get((Combination.read(text), age))

    def kept(text: str) -> float | None:
        """Return the share of huge pages' gain on fresh memory that is left on old memory."""
        young, aged = speed("linux thp radix", fresh), speed(text, old)
        if young is None or aged is None or young <= 1:
            return None
        return 100 * (aged - 1) / (young - 1)

    def over(ours: str, theirs: str, age: str) -> float | None:
        first, second = speed(ours, age), speed(theirs, age)
        return None if first is None or second is None else first / second

    values: dict[str, float | None] = {
        "linux_kept": kept("linux thp radix"),
        "contiguitas_kept": kept("contiguitas thp radix"),
        "perforated_over_split": over("linux thp perforated", "linux thp radix", old),
        "segment_walks": max(
            (
                share
                for age in ages
                for share in walks.get((Combination.read("contiguitas 4k direct-segment"), age), [])
            ),
            default=None,
        ),
    }
    sheets = [_table(ranked, ages), *more]

    def illustrate(page: Page) -> None:
        from contigua.pictures import front_picture

        for environment in dict.fromkeys(one.combination.environment for one in ranked):
            own = [one for one in ranked if one.combination.environment == environment]
            best = [one for one in own if one.on_front]
            page.heading(f"Pareto front, {environment}")
            page.picture(
                front_picture(
                    _charts(own, ages), f"Speed against bits of hardware, {environment}", "bits"
                ),
                "Speed of each combination against the bits it adds to a core; on the front are "
                + ", ".join(_short(one) for one in best)
                + ".",
                "Large and named: no combination is as fast for fewer bits.",
            )

    return Outcome(values, illustrate, notes=notes, sheets=sheets)


def _charts(own: Sequence[Ranked], ages: Sequence[str]) -> list[tuple[str, list[Any]]]:
    """Make a chart of all ages together, and of each."""
    from contigua.pictures import Point

    views = [("all ages", [one.speed for one in own])]
    views.append(("own, all ages", [one.own_speed for one in own]))
    views += [(age, [one.by_age[age] for one in own]) for age in ages]
    charts = []
    for name, exact in views:
        speeds = [round(speed, DIGITS) for speed in exact]
        marks = front([(one.cost, speed) for one, speed in zip(own, speeds, strict=True)])
        points = []
        named: set[tuple[float, float]] = set()
        for one, speed, mark in zip(own, speeds, marks, strict=True):
            # Those that are equal in both are one point, with the first one's name.
            place = (one.cost, speed)
            label = "" if place in named else _short(one)
            named |= {place} if mark else set()
            points.append(Point(label, one.combination.placement, one.cost, speed, mark))
        charts.append((f"speed over 4 KB pages: {name}", points))
    return charts


def _short(one: Ranked) -> str:
    placement, pages, scheme, _ = one.combination
    return f"{placement} {pages}" + ("" if scheme == "radix" else f" {scheme}")


def _table(ranked: Sequence[Ranked], ages: Sequence[str]) -> Sheet:
    heads = ["combination", "speed", *ages, "own", "front", "walk %", "kernel %", "bits/core"]
    heads += ["bits/LLC", "+MiB", "tables", "aside", "faults", "moved", "huge"]
    rows = []
    for one in ranked:
        figures = one.figures
        row = [" ".join(one.combination), f"{one.speed:.3f}"]
        row += [f"{one.by_age[age]:.3f}" for age in ages]
        row += [f"{one.own_speed:.3f}", "yes" if one.on_front else ""]
        row += [f"{100 * figures[name]:.1f}" for name in ("walk_share", "kernel_share")]
        row += [f"{one.bits_core:,}", f"{one.bits_llc:,}", f"{figures['beyond_touched_mib']:.0f}"]
        row += [f"{figures['page_tables_mib'] + figures['hole_bitmaps_mib']:.1f}"]
        row += [f"{figures['set_aside_mib']:.0f}", f"{figures['page_faults'] / 1000:.1f}k"]
        row += [f"{figures['pages_moved'] / 1000:.1f}k", f"{figures['huge_pages']:.0f}"]
        rows.append(row)
    return Sheet("Combinations, ranked by speed over all programs and ages", heads, rows)


def _left_out(senseless: Mapping[str, Sequence[Combination]]) -> list[Sheet]:
    rows = [
        [
            reason,
            str(len(those)),
            ", ".join(sorted({f"{one.pages} {one.scheme}" for one in those})),
        ]
        for reason, those in senseless.items()
    ]
    heads = ["why", "combinations", "pages and scheme"]
    return [Sheet("Left out because they make no sense", heads, rows)] if rows else []


def _failed(failed: Mapping[str, Sequence[str]]) -> list[Sheet]:
    rows = [[why, ", ".join(those)] for why, those in failed.items()]
    title = "Could not be simulated, and are not ranked"
    return [Sheet(title, ["why", "combinations"], rows)] if rows else []


def _sentence(error: str) -> str:
    return " ".join(error.split())


def data_frame(measured: Iterable[Measured]) -> pd.DataFrame:
    """Return one row for each program, combination and age."""
    with needs("reports"):
        import pandas as pd

    return pd.DataFrame(
        [
            {
                **one.combination._asdict(),
                "age": one.age,
                "program": one.program,
                "speed": one.speed,
                "own_speed": one.own_speed,
                "bits_core": one.bits_core,
                "bits_llc": one.bits_llc,
                "cost": one.cost,
                **one.figures,
            }
            for one in measured
        ]
    )


def _write_data(measured: Sequence[Measured], context: Context) -> None:
    frame = data_frame(measured)
    write_whole(context.folder / "cross.csv", frame.to_csv(index=False))
    with writing(context.folder / "cross.parquet") as file:
        frame.to_parquet(file, index=False)
