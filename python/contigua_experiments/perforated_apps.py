"""Programs under fragmentation (Perforated Page, ISCA 2020, section 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua_experiments import perforated
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.running import Cell, Values, chosen, cycles, run_cells, sized

if TYPE_CHECKING:
    from contigua.page import Page

DESIGNS = ("perforated", "gtsm", "linux-thp")


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every program in every scenario."""
    programs, notes = chosen(inputs["programs"], inputs["scale"])
    names = (inputs["ideal"], inputs["small"], *inputs["designs"])
    options = RunOptions(
        machine=inputs["machine"],
        memory=inputs["memory"],
        detail=inputs["detail"],
        seed=inputs["seed"],
    )
    found: dict[str, dict[Cell, Values]] = {}
    ideal, small, *designs = names
    for index, program in enumerate(programs):
        cells = [Cell(ideal), Cell(small)]
        cells += [Cell(design, holes) for design in designs for holes in inputs["scenarios"]]
        part = inputs.get("parts", {}).get(program.name)
        own, counted = (program, options) if part is None else sized(program.name, part, options)
        found[program.name] = run_cells(own, cells, counted, kept=context.kept)
        if context.progress is not None:
            context.progress((index + 1) / len(programs))
    return figures(found, inputs, notes)


def figures(
    found: dict[str, dict[Cell, Values]], inputs: dict[str, Any], notes: list[str]
) -> Outcome:
    """Compute performance relative to ideal, program by program."""
    ideal = Cell(inputs["ideal"])
    ours_name, *_, split_name = inputs["designs"]
    series = {
        name: {design: perforated.relative(cells, design, ideal) for design in inputs["designs"]}
        for name, cells in found.items()
    }
    moderate = inputs["moderate"]
    ours = {name: one[ours_name] for name, one in series.items()}
    split = {name: one[split_name] for name, one in series.items()}
    values: dict[str, float | None] = {
        "worst_moderate": min(
            (min(perforated.up_to(one, moderate)) for one in ours.values()), default=None
        ),
        "above_split": _share(
            ours[name][holes] >= split[name][holes] - inputs["noise"]
            for name in ours
            for holes in ours[name]
        ),
    }
    rows = []
    for name, cells in found.items():
        small = 100 * cycles(cells[ideal]) / cycles(cells[Cell(inputs["small"])])
        for holes in inputs["scenarios"]:
            told = [f"{one[holes]:.1f}" for one in series[name].values()]
            rows.append([name, holes, *told, f"{small:.1f}"])
    heads = ["program", "holes", *inputs["designs"], inputs["small"]]
    title = f"Performance relative to {inputs['ideal']} without holes, %"

    def illustrate(page: Page) -> None:
        from contigua.pictures import bars_picture

        for holes in inputs["scenarios"]:
            bars = {
                design: [series[name][design][holes] for name in series]
                for design in inputs["designs"]
            }
            page.heading(f"Holes {holes}")
            page.picture(
                bars_picture(list(series), bars, f"Holes {holes}", "% of ideal"),
                f"Performance of each program with holes {holes}, in percent of ideal.",
            )

    return Outcome(values, illustrate, notes=notes, sheets=[Sheet(title, heads, rows)])


def _share(conditions: Any) -> float | None:  # noqa: ANN401 - any iterable of truths
    held = list(conditions)
    return 100 * sum(held) / len(held) if held else None
