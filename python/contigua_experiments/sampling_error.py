"""Sampled runs beside whole ones: how large their errors are, and whether intervals hold them.

Each program is recorded once; whole and sampled runs replay the same events. What a program's runs
found is kept in the experiment's folder until they are all there, so that an interrupted experiment
goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import NormalDist, mean
from typing import TYPE_CHECKING, Any, TypeVar

from contigua import _engine
from contigua.files import write_whole
from contigua.options import RunOptions
from contigua.programs.catalogue import write_c
from contigua.programs.databases import sqlite
from contigua.programs.execute import execute, run_whole
from contigua.programs.program import MissingProgramError, Program, workload
from contigua.reports import Report
from contigua.sampling import Sampling, matched
from contigua_experiments.base import Context, Outcome, Sheet

if TYPE_CHECKING:
    from contigua.page import Page

T = TypeVar("T")
#: Results of a program: ``whole``, cycles by design, and ``sampled``, by plan and seed.
Found = dict[str, Any]
#: A key of the files in which programs' runs are kept: so many digits of a hash.
DIGITS = 16

#: Phases: objects, text and back, a table, sorting, lookups, numbers.
JAVASCRIPT = """
const n = Number(process.argv[2]);
let seed = 1;
const random = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
const people = [];
for (let i = 0; i < n; i++)
  people.push({id: i, name: "p" + Math.floor(random() * 1e9), age: Math.floor(random() * 90)});
const back = JSON.parse(JSON.stringify(people));
const byName = new Map(back.map(one => [one.name, one]));
back.sort((a, b) => a.name < b.name ? -1 : 1);
let sum = 0;
for (let i = 0; i < 20 * n; i++) sum += byName.get(people[Math.floor(random() * n)].name).age;
const grid = new Float64Array(512 * 512);
for (let t = 0; t < n / 2000; t++)
  for (let i = 513; i < grid.length - 513; i++)
    grid[i] = (grid[i - 1] + grid[i + 1] + grid[i - 512] + grid[i + 512] + t) / 4.001;
console.log(sum, grid[100000]);
"""
#: Interpreter: a table is filled, sorted and read.
PYTHON = """
import sys
d = {}
for i in range(int(sys.argv[1])):
    d[(i * 2654435761) & 0xFFFFF] = i
print(sum(sorted(d.values())[::7]))
print(sum(len(str(one)) for one in d))
"""

NOTES = (
    "Whole and sampled runs replay the same recording. A case is a program, a seed and a design; "
    "seeds also decide where units lie.",
    "Variation: standard deviation of units' cycles over their mean.",
    "With gaps only the last instructions before each unit warm it, as beyond the first billions "
    "of a long program: what all units have too much is no part of their interval.",
)


@dataclass(frozen=True)
class Case:
    """A sampled figure beside the whole run's.

    Attributes
    ----------
    error
        By how much it is off, as a share.
    half
        Half its interval, as a share.
    """

    error: float
    half: float

    @property
    def is_inside(self) -> bool:
        """Return whether the interval holds the value; a millionth is rounding."""
        return abs(self.error) <= self.half + 1e-6


def programs(sizes: dict[str, int]) -> list[Program]:
    """Return the programs that sizes are given for, in their order."""

    def file(name: str, text: str) -> Callable[[Path], None]:
        return lambda folder: write_whole(folder / name, text)

    def lines(count: int) -> Callable[[Path], None]:
        return file("lines", "\n".join(f"{k * 2_654_435_761 % 2**32}" for k in range(count)))

    make: dict[str, Callable[[int], Program]] = {
        "gups": lambda n: Program(
            "gups, 4 threads",
            workload("gups", "--size", f"{n}MiB", "--updates", f"{n * 8000}", "--threads", "4"),
        ),
        "bfs": lambda n: Program("bfs", workload("bfs", "--scale", f"{n}", "--roots", "2")),
        "cg": lambda n: Program("cg", workload("cg", "--rows", f"{n}")),
        "kv": lambda n: Program(
            "kv, 4 threads",
            workload("kv", "--keys", f"{n}", "--operations", f"{3 * n}", "--threads", "4"),
        ),
        "stream": lambda n: Program("stream", workload("stream", "--iterations", f"{n}")),
        "sqlite3": lambda n: replace(sqlite(n, n), name="sqlite3, load and query"),
        "sort": lambda n: Program(
            "sort, 2 threads",
            ("sort", "-n", "--parallel=2", "{folder}/lines"),
            prepare=lines(n),
        ),
        "gcc": lambda n: Program(
            "gcc -O2",
            ("gcc", "-O2", "-S", "-o", "{folder}/out.s", "-x", "c", "{folder}/in.c"),
            {"gcc": "gcc"},
            prepare=lambda folder: write_c(folder, n),
        ),
        "node": lambda n: Program(
            "node",
            ("node", "{folder}/load.js", f"{n}"),
            {"node": "nodejs"},
            prepare=file("load.js", JAVASCRIPT),
        ),
        "python3": lambda n: Program(
            "python3",
            ("/usr/bin/python3", "{folder}/load.py", f"{n}"),
            {"/usr/bin/python3": "python3"},
            prepare=file("load.py", PYTHON),
        ),
    }
    return [make[name](size) for name, size in sizes.items()]


def plans(inputs: dict[str, Any]) -> dict[str, Sampling]:
    """Return how runs are sampled: for the goal, with the gaps of a long program, within a time.

    The time is so short that units of these programs are as far apart as those that two minutes
    leave a program of four billion instructions.
    """
    far = Sampling(distance=inputs["far_distance"], most=0)
    timed = Sampling.within(inputs["seconds"], len(inputs["designs"]), processors=2)
    return {"goal": Sampling.toward(inputs["goal"]), "gaps": far, "time": timed}


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run each program whole and sampled; keep what is found, and drop its recording after that."""
    context.folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Found] = {}
    notes = []
    chosen = programs(inputs["programs"])
    for index, program in enumerate(chosen):

        def progress(part: float, before: int = index) -> None:
            if context.progress is not None:
                context.progress((before + part) / len(chosen))

        try:
            found[program.name] = measure(program, inputs, context, progress)
        except MissingProgramError as error:
            notes.append(f"Left out: {error}.")
    return figures(found, inputs, notes)


def measure(
    program: Program, inputs: dict[str, Any], context: Context, progress: Callable[[float], None]
) -> Found:
    """Return what a program's runs found, of earlier ones, too."""
    missing = program.missing()
    if missing is not None:
        raise MissingProgramError(missing)
    options = RunOptions(machine=inputs["machine"], memory=inputs["memory"], seed=inputs["seed"])
    designs = inputs["designs"]
    seeds = range(inputs["seed"], inputs["seed"] + inputs["seeds"])
    kept = context.folder / f"{program.name.split(',')[0].replace(' ', '')}.{key(program, inputs)}"
    file, trace = kept.with_name(f"{kept.name}.json"), kept.with_name(f"{kept.name}.trace")
    found: Found = {"whole": {}, "sampled": {name: {} for name in plans(inputs)}}
    if file.exists():
        found = json.loads(file.read_text())
    steps = 1 + len(plans(inputs)) * len(seeds)

    def keep() -> None:
        write_whole(file, json.dumps(found))
        progress((1 + sum(map(len, found["sampled"].values()))) / steps)

    def replay(runs: Sequence[RunOptions]) -> list[dict[str, Any]]:
        specs = [one.spec(design, one.age, one.holes) for one in runs for design in designs]
        return [Report(text).values for text in run_whole(specs, {"trace": trace})[0]]

    if not all(len(by_seed) == len(seeds) for by_seed in found["sampled"].values()):
        if not trace.exists():
            # Another execution may not be the same to the last instruction.
            found = {"whole": {}, "sampled": {name: {} for name in plans(inputs)}}
            with tempfile.TemporaryDirectory(prefix="contigua-") as folder:
                execute(program, Path(folder), [], record=trace)
        if not found["whole"]:
            reports = replay([options])
            found["instructions"] = reports[0]["executed"]["instructions"]
            found["whole"] = {
                design: report["time"]["cycles"]
                for design, report in zip(designs, reports, strict=True)
            }
            keep()
        # As many runs at a time as fill the processors; an interrupt loses one batch.
        jobs = context.jobs or os.cpu_count() or 1
        for plan, sampling in plans(inputs).items():
            left = [seed for seed in seeds if str(seed) not in found["sampled"][plan]]
            for batch in _parts(left, max(1, 2 * jobs // len(designs))):
                reports = replay([replace(options, seed=s, sample=sampling) for s in batch])
                for seed, of_seed in zip(batch, _parts(reports, len(designs)), strict=True):
                    found["sampled"][plan][str(seed)] = estimates(of_seed, designs)
                keep()
    trace.unlink(missing_ok=True)
    return found


def _parts(values: Sequence[T], size: int) -> list[Sequence[T]]:
    return [values[begin : begin + size] for begin in range(0, len(values), size)]


def key(program: Program, inputs: dict[str, Any]) -> str:
    """Return a hash of what a program's runs depend on."""
    engine = Path(_engine.__file__ or "").read_bytes()
    command = [part.replace(str(Path(__file__).parents[2]), "") for part in program.command]
    said = {
        "command": command,
        "inputs": inputs,
        "plans": [sampling.spec(0) for sampling in plans(inputs).values()],
        "engine": hashlib.sha256(engine).hexdigest(),
        "texts": [JAVASCRIPT, PYTHON],
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:DIGITS]


def estimates(reports: Sequence[dict[str, Any]], designs: Sequence[str]) -> dict[str, Any]:
    """Return what the sampled reports of one seed say: cycles, and each over the first design's."""
    found: dict[str, Any] = {"cycles": {}, "ratio": {}, "reached": True}
    base = reports[0]
    for design, report in zip(designs, reports, strict=True):
        sample = report["sample"]
        estimate = sample["estimates"]["cycles"]
        found["cycles"][design] = [estimate["value"], estimate["half_width"]]
        found["units"] = sample["units"]
        found["quantile"] = sample["quantile"]
        goal = sample.get("goal")
        found["reached"] = found["reached"] and goal is not None and goal["reached"]
        if report is not base:
            ratio = matched(report, base)
            value = report["time"]["cycles"] / max(base["time"]["cycles"], 1)
            found["ratio"][design] = [value, None if ratio is None else ratio.half_width]
    return found


def cases(one: Found, plan: str, kind: str) -> list[Case]:
    """Return the cases of a program: ``cycles``, or ``ratio``, that to the first design's."""
    whole = one["whole"]
    first = next(iter(whole.values()))
    return [
        Case(value / true - 1, (half or 0.0) / true)
        for by_design in one["sampled"][plan].values()
        for design, (value, half) in by_design[kind].items()
        for true in [whole[design] / (first if kind == "ratio" else 1)]
    ]


def figures(found: dict[str, Found], inputs: dict[str, Any], notes: list[str]) -> Outcome:
    """Judge the cases of the goal's and the time's plan; those with gaps have a table."""

    def of(plan: str, kind: str) -> list[Case]:
        return [case for one in found.values() for case in cases(one, plan, kind)]

    cycles, ratios = of("goal", "cycles"), of("goal", "ratio")
    reached = [
        seed["reached"] for one in found.values() for seed in one["sampled"]["goal"].values()
    ]
    values = {
        "cycles": _largest(cycles),
        "speedup": _largest(ratios),
        "cycles_inside": _inside(cycles),
        "speedup_inside": _inside(ratios),
        "reached": 100 * sum(reached) / len(reached) if reached else None,
        "timed_cycles_inside": _inside(of("time", "cycles")),
        "timed_speedup_inside": _inside(of("time", "ratio")),
    }
    designs = ", ".join(inputs["designs"])
    about = f"{designs}; {inputs['seeds']} seeds"
    far = plans(inputs)["gaps"]
    sheets = [
        Sheet(
            f"Sampled for an error of {100 * inputs['goal']:g} % ({about})", *_table(found, "goal")
        ),
        Sheet(
            f"Units {far.distance / 1e6:g} million instructions apart, {far.warm / 1e6:g} million "
            f"warm each ({about})",
            *_table(found, "gaps"),
        ),
        Sheet(
            f"`--within {inputs['seconds']}` on two processors ({about})", *_table(found, "time")
        ),
    ]

    def illustrate(page: Page) -> None:
        from contigua.pictures import bars_picture

        bars = {
            "largest error": [
                _largest(cases(one, "goal", "cycles")) or 0 for one in found.values()
            ],
            "mean half interval": [_half(cases(one, "goal", "cycles")) for one in found.values()],
        }
        page.picture(
            bars_picture(list(found), bars, "Cycles of sampled runs", "%"),
            "Largest error of cycles and mean half interval, for each program.",
        )

    return Outcome(values, illustrate, notes=[*notes, *NOTES], sheets=sheets)


def _largest(of: Iterable[Case]) -> float | None:
    return max((100 * abs(case.error) for case in of), default=None)


def _inside(of: Sequence[Case]) -> float | None:
    return 100 * sum(case.is_inside for case in of) / len(of) if of else None


def _half(of: Sequence[Case]) -> float:
    return 100 * mean(case.half for case in of) if of else 0.0


def _table(found: dict[str, Found], plan: str) -> tuple[list[str], list[list[str]]]:
    heads = ["program", "instructions", "units", "variation", "cycles: largest error"]
    heads += ["mean error", "mean half interval", "inside", "speed-up: largest error"]
    heads += ["mean half interval", "inside"]
    rows = []
    for name, one in found.items():
        seeds = list(one["sampled"][plan].values())
        cycles, ratios = cases(one, plan, "cycles"), cases(one, plan, "ratio")
        rows.append(
            [
                name,
                f"{one['instructions'] / 1e6:,.0f} M",
                f"{mean(seed['units'] for seed in seeds):,.0f}",
                f"{_variation(seeds):.2f}",
                f"{_largest(cycles):.2f} %",
                f"{100 * mean(case.error for case in cycles):+.2f} %",
                f"{_half(cycles):.2f} %",
                _share(cycles),
                f"{_largest(ratios):.3f} %" if ratios else "-",
                f"{_half(ratios):.3f} %" if ratios else "-",
                _share(ratios),
            ]
        )
    return heads, rows


def _share(of: Sequence[Case]) -> str:
    return f"{sum(case.is_inside for case in of)} of {len(of)}"


def _variation(seeds: Sequence[dict[str, Any]]) -> float:
    """Return the largest of the designs' variations, the mean of seeds."""
    usual = NormalDist().inv_cdf(0.975)
    found = (
        max((half or 0.0) / value for value, half in seed["cycles"].values())
        * sqrt(seed["units"])
        / float(seed["quantile"] or usual)
        for seed in seeds
    )
    return float(mean(found))
