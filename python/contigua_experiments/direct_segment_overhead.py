"""Cycles lost to data TLB misses (Direct Segments, ISCA 2013, Tables 1 to 5, Figures 1 and 4).

Two estimates stand beside each other: the segment simulated, and the paper's linear model, which
takes the share of 4 KB pages' misses that fall into the primary region as avoided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contigua.options import RunOptions
from contigua_experiments import direct_segment
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.running import (
    Cell,
    Values,
    chosen,
    data_walk_share,
    inside_share,
    run_cells,
    sized,
)
from contigua_experiments.scaled import scaled

if TYPE_CHECKING:
    from contigua.page import Page


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every program with every size of page, and with a segment."""
    parts = inputs["parts"]
    whole = [name for name in inputs["programs"] if name not in parts]
    found_whole, notes = chosen(whole, inputs["scale"])
    options = RunOptions(
        machine=inputs["machine"],
        memory=inputs["memory"],
        detail="full",
        classify_misses=True,
        seed=inputs["seed"],
    )
    machines = [scaled(inputs["machine"], divisor) for divisor in inputs["divisors"]]
    cells = [Cell(design, machine=one) for one in machines for design in inputs["designs"]]
    found: list[dict[str, dict[str, Values]]] = [{} for _ in machines]
    programs = {program.name: (program, options) for program in found_whole}
    for name in [name for name in inputs["programs"] if name in parts]:
        program, own = sized(name, parts[name], options)
        missing = program.missing()
        if missing is None:
            programs[name] = program, own
        else:
            notes.append(f"Left out: {missing}.")
    names = [name for name in inputs["programs"] if name in programs]
    for index, name in enumerate(names):
        program, own = programs[name]
        own_cells = cells if name in parts else cells[: len(inputs["designs"])]
        reports = run_cells(program, own_cells, own, kept=context.kept)
        for cell, values in reports.items():
            assert cell.machine is not None
            by = found[machines.index(cell.machine)].setdefault(name, {})
            by[cell.design] = values
        if context.progress is not None:
            context.progress((index + 1) / len(names))
    return figures(found, inputs, notes)


def linear_model(values: Values) -> float:
    """Return the paper's estimate of what is left with a segment, in percent (section 5.2)."""
    return data_walk_share(values) * (1 - inside_share(values))


def figures(
    machines: list[dict[str, dict[str, Values]]], inputs: dict[str, Any], notes: list[str]
) -> Outcome:
    """Compute the tables and judge the claims, by the first of the machines."""
    found = machines[0]
    small, huge, giant, segment = inputs["designs"]
    shares = {
        name: {design: data_walk_share(values) for design, values in by.items()}
        for name, by in found.items()
    }
    model = {name: linear_model(by[small]) for name, by in found.items()}
    inside = {name: 100 * inside_share(by[small]) for name, by in found.items()}
    values: dict[str, float | None] = {
        "worst_segment": max((one[segment] for one in shares.values()), default=None),
        "worst_model": max(model.values(), default=None),
        "least_inside": min(inside.values(), default=None),
        "model_above_simulated": _percent(
            model[name] >= shares[name][segment] - inputs["model_tolerance"] for name in shares
        ),
    }
    plain = {name: by[small] for name, by in found.items()}
    machine, agreeing = direct_segment.machine_table(inputs["machine"])
    settled = [direct_segment.settled_share(one) for one in plain.values()]
    values["machine"] = agreeing
    values["settled"] = min((share for share in settled if share is not None), default=None)
    for name in COMPARED:
        one, own = shares.get(name), plain.get(name)
        for key, design in zip(("small", "huge", "giant"), inputs["designs"], strict=False):
            values[f"{key}_{name}"] = None if one is None else one[design]
        values[f"code_{name}"] = None if own is None else direct_segment.code_walk_share(own)
        values[f"writable_{name}"] = None if own is None else direct_segment.writable_share(own)
        values[f"inside_{name}"] = inside.get(name)
    gradient = shares.get("cg")
    values["cg_giant_over_huge"] = (
        None if gradient is None else gradient[giant] / max(gradient[huge], 1e-6)
    )
    rows = [
        [
            name,
            *(f"{shares[name][design]:.3f}" for design in inputs["designs"]),
            f"{model[name]:.3f}",
            f"{inside[name]:.2f}",
            f"{_footprint(found[name][small]):.0f}",
        ]
        for name in shares
    ]
    heads = ["program", *(f"{design}, %" for design in inputs["designs"])]
    heads += ["linear model, %", "misses inside, %", "memory, MiB"]
    title = "Share of walk-active cycles for data"
    paper = Sheet(
        "The same in the paper (Tables 4 and 5), %",
        ["program", "4 KB", "2 MB", "1 GB", "linear model", "misses inside"],
        PAPER,
    )
    notes = [
        *notes,
        *outside_notes(inside),
        footprint_note(found),
        "gups and bfs are the paper's GUPS and graph500, kv its memcached without the network.",
    ]

    def illustrate(page: Page) -> None:
        from contigua.pictures import bars_picture

        bars = {design: [one[design] for one in shares.values()] for design in inputs["designs"]}
        page.heading("Figure 4")
        page.picture(
            bars_picture(list(shares), bars, title, "% of cycles"),
            "Share of walk-active cycles for data: falls with page size, near 0 with a segment.",
        )
        direct_segment.allocation_picture(page, plain)

    sheets = [
        machine,
        direct_segment.workload_table(plain),
        direct_segment.protection_table(plain),
        Sheet(title, heads, rows),
        *divided(machines, inputs),
        paper,
    ]
    return Outcome(values, illustrate, notes=notes, sheets=sheets)


def divided(machines: list[dict[str, dict[str, Values]]], inputs: dict[str, Any]) -> list[Sheet]:
    """Return the shares of sized programs on machines with capacities divided as footprints are."""
    return [
        Sheet(
            f"Share of walk-active cycles for data with 1/{divisor} of the machine's capacities",
            ["program", *(f"{design}, %" for design in inputs["designs"])],
            [
                [name, *(f"{data_walk_share(by[design]):.3f}" for design in inputs["designs"])]
                for name, by in found.items()
            ],
        )
        for divisor, found in zip(inputs["divisors"][1:], machines[1:], strict=True)
    ]


def footprint_note(found: dict[str, dict[str, Values]]) -> str:
    """Say how footprints relate to the paper's."""
    most = max((_footprint(values) for by in found.values() for values in by.values()), default=0)
    return (
        f"Footprints are {most / 1024:.1f} GiB at most, where the paper's are 60 to 96 GB: page "
        "tables lie in the caches more often, and large pages reach over more of the data."
    )


def outside_notes(inside: dict[str, float]) -> list[str]:
    """Say why programs have more misses outside the primary region than any of the paper's."""
    return [
        f"{name}: {share:.1f} % of the misses are inside. "
        + OUTSIDE.get(name, "What the others read has not been examined.")
        for name, share in inside.items()
        if share < LEAST_INSIDE
    ]


#: MySQL's share of misses inside, in percent (Table 5): all other programs of the paper have more.
LEAST_INSIDE = 92.40

#: Why a program has many misses outside, as measured (4 KB pages, sandy-bridge).
OUTSIDE = {
    "sqlite3": (
        "It has little data: with 5,000 rows it has 522 misses in all, 29.9 % of them inside; the "
        "share rises with the data, to 96.6 % with 50,000 rows and 99.6 % with 500,000."
    ),
    "mariadb": (
        "A statement walks through constants, parser tables and tables of virtual functions that "
        "the executable maps from its own file, and no segment holds files' mappings: 63 % of the "
        "misses are inside with 10 MB of tables, 71 % with 1.4 GB. With the segment more is left "
        "than the linear model has: InnoDB reserves its buffer pool without access and maps it "
        "writable in its place later, and the C library does so with arenas and stacks of threads, "
        "when they are outside of the region already. The linear model counts these as inside. "
        "With 1.4 GB of tables a segment leaves 4.2 % of the cycles; with a library that maps the "
        "pool writable at once, and one arena (benches/segment_causes.py), 1.5 %, where the linear "
        "model has 1.8."
    ),
}

#: Programs that stand for the paper's, whose shares with 4 KB pages are set beside ours.
COMPARED = ("gups", "bfs", "bt", "cg", "kv", "mariadb")

#: Tables 4 and 5, and what the linear model makes of them (mechanisms D5).
PAPER = [
    ["graph500", "51.1", "9.9", "1.5", "0.005", "99.99"],
    ["memcached", "10.3", "6.4", "4.1", "0.001", "99.99"],
    ["MySQL", "6.0", "4.9", "4.3", "0.456", "92.40"],
    ["NPB:BT", "5.1", "1.2", "0.06", "0.003", "99.95"],
    ["NPB:CG", "30.2", "1.4", "7.1", "0.006", "99.98"],
    ["GUPS", "83.1", "53.2", "18.3", "0.008", "99.99"],
]


def _footprint(values: Values) -> float:
    from contigua_experiments.running import resident

    return resident(values) / (1 << 20)


def _percent(conditions: Any) -> float | None:  # noqa: ANN401 - any iterable of truths
    held = list(conditions)
    return 100 * sum(held) / len(held) if held else None
