"""Writes docs/reference/designs-compared.md: designs by gain, contiguity, storage and kernel.

What was measured is what the account of the full scale has, or else that of the quick one; storage
is what the simulator counts; compared.toml has facts in words.
"""

from __future__ import annotations

import csv
import json
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from contigua.options import RunOptions
from contigua.presets import designs
from contigua.programs.execute import run_whole
from contigua_experiments import find
from contigua_experiments.reproduction import ACCOUNTS, VALUE

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "designs-compared.md"
FACTS = Path(__file__).with_name("compared.toml")
DEMAND = "contiguity-demand"
MACHINE = "skylake"
#: A program of one instruction: storage is the same whatever runs.
TRACE = "I  00400000,3\n L 00800000,8\n"
#: Designs that run at a time.
TOGETHER = 8
#: Parts of a design whose file does not name one.
DEFAULTS = {"translation": "base", "placement": "linux"}
#: Kinds of designs: their titles, and the designs whose storage theirs is compared with.
TABLES = {
    "translation": ("Translation", "linux-4k"),
    "nested": ("Translation in virtual machines", "nested-4k"),
    "placement": ("Placement and migration", "linux-4k"),
}
INTRODUCTION = """# Designs compared

Written by `make reference`; manual changes are lost.

- **Gain**: speed over that of Linux with 4 KB pages on memory of the same age, in percent, on fresh
  memory and on aged servers by placement (`contigua experiment run {demand}`, {scale} scale; -: not
  in it).
- **Effect, contiguity**: results of other experiments, [below](#results) with what they are, and
  what designs ask of memory by their sources.
- **Bits**: storage in the processor beyond conventional hardware, for each core (`{machine}`;
  [widths](costs.md#hardware)); less where a design has no page-walk caches.
- **Operating system**: what it does that Linux does not."""

Facts = dict[str, Any]


class Design(NamedTuple):
    """A design: its name, its kind, and the facts of its parts, its own ones first."""

    name: str
    kind: str
    facts: list[Facts]

    def fact(self, key: str) -> str:
        """Return what its parts say; that they ask nothing only where all do."""
        told = dict.fromkeys(str(part[key]) for part in self.facts if key in part)
        more = [one for one in told if not one.startswith("nothing")]
        return "; ".join(more) or max(told, key=len, default="-")

    def figures(self, key: str) -> list[tuple[str, str]]:
        """Return the figures that it names."""
        return [(name, figure) for name, figure in self.facts[0].get(key, ())]


class Stored:
    """Values of the accounts, and the figures that were asked for."""

    def __init__(self) -> None:
        self.asked: dict[tuple[str, str], list[str]] = {}
        self.rows: dict[tuple[str, str], tuple[str, dict[str, str]]] = {}
        self.scale, self.servers = "no", list[str]()
        # What a later one has counts.
        for scale, account in ACCOUNTS.items():
            with (ROOT / "docs" / f"{account}.csv").open(newline="") as lines:
                rows = list(csv.DictReader(lines))
            self.rows |= {(row["experiment"], row["figure"]): (scale, row) for row in rows}
            values = [row for row in rows if (row["experiment"], row["class"]) == (DEMAND, VALUE)]
            if values:
                heads = [row["figure"].partition(": ")[2] for row in values]
                self.scale, self.servers = scale, list(dict.fromkeys(heads))

    def told(self, experiment: str, key: str) -> str:
        """Return what an experiment found of one of its figures."""
        figure = next(one for one in find(experiment).figures if one.key == key)
        scale, row = self.rows.get((experiment, figure.label), ("-", {}))
        ours, verdict = row.get("ours", "not run"), row.get("verdict", "-")
        wanted = figure.show_wanted()
        self.asked[experiment, key] = [figure.label, wanted, ours, verdict, scale]
        return f"{ours} (*{experiment}* {key})"

    def gain(self, design: str, server: str) -> str:
        """Return what contiguity-demand found of a design."""
        scale, row = self.rows.get((DEMAND, f"{design}: {server}"), ("", {}))
        if scale != self.scale:
            return "-"
        return row["ours"] + (f" ± {row['±']}" if row["±"] != "-" else "")


def read(facts: Facts) -> Iterator[Design]:
    """Yield all designs that come with Contigua."""
    needs = {name: one["needs"] for name, one in find(DEMAND).inputs["quick"]["compared"].items()}
    for kind in ("translation", "placement", "migration", "design"):
        for part in facts[kind].values():
            if "demand" in part:
                part["needs"] = needs[part["demand"]]
    for preset in designs:
        text = tomllib.loads(preset.text)
        host = {"host": text["host"]["translation"]} if "host" in text else {}
        named = DEFAULTS | {
            kind: next(iter(text[kind])) for kind in (*DEFAULTS, "migration") if kind in text
        }
        parts = [facts[kind].get(name, {}) for kind, name in named.items()]
        parts += [facts["translation"].get(name, {}) for one in host.values() for name in one]
        own = facts["design"].get(preset.name, {})
        parts = [own, *({k: v for k, v in part.items() if k not in own} for part in parts)]
        moves = {"migration", "ranger"} & text.keys()
        is_placement = named["placement"] != DEFAULTS["placement"] or bool(moves)
        kind = "nested" if host else "placement" if is_placement else "translation"
        yield Design(preset.name, kind, parts)


def storage(names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return what a report has of each design's storage."""
    options = RunOptions(machine=MACHINE, detail="translation", memory="4GiB")
    found: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        trace.write_text(TRACE)
        for start in range(0, len(names), TOGETHER):
            batch = names[start : start + TOGETHER]
            specs = [options.spec(name, options.age, "none") for name in batch]
            reports, _ = run_whole(specs, {"trace": trace, "trace_format": "lackey"})
            found |= {n: json.loads(one)["hardware"] for n, one in zip(batch, reports, strict=True)}
    return found


def page() -> str:
    """Return the page."""
    facts = tomllib.loads(FACTS.read_text())
    stored = Stored()
    every = list(read(facts))
    bits = storage([one.name for one in every])
    lines = [INTRODUCTION.format(demand=DEMAND, scale=stored.scale, machine=MACHINE)]
    for kind, (title, base) in TABLES.items():
        # Programs of contiguity-demand are in no virtual machine, and its placements are columns.
        servers = stored.servers if kind == "translation" else []
        rows = []
        for one in every:
            if one.kind == kind:
                measured = [stored.told(*figure) for figure in one.figures("measured")]
                rows.append(
                    [
                        f"`{one.name}`",
                        *(stored.gain(one.name, server) for server in servers),
                        "; ".join(stored.told(*each) for each in one.figures("effects")) or "-",
                        "; ".join([one.fact("needs"), *measured]),
                        more_bits(bits[one.name], bits[base]),
                        one.fact("system"),
                    ]
                )
        gains = [f"gain, {server}" for server in servers]
        heads = ["design", *gains, "effect", "contiguity", "bits", "operating system"]
        lines += ["", f"## {title}", "", *table(heads, rows)]
    heads = ["design", "contiguity", "operating system"]
    absent = [[one["name"], one["needs"], one["system"]] for one in facts["absent"]]
    lines += ["", "## Not in the simulator", "", *table(heads, absent)]
    heads = ["result", "what it is", "paper or limit", "ours", "verdict", "scale"]
    asked = [[f"*{name}* {key}", *of] for (name, key), of in sorted(stored.asked.items())]
    lines += ["", "## Results", "", *table(heads, asked)]
    return "\n".join(lines) + "\n"


def more_bits(bits: dict[str, int], base: dict[str, int]) -> str:
    """Return the storage beyond a base's, and that of a slice of the last-level cache."""
    keys = ("first_level_tlb_bits", "translation_bits", "register_bits")
    more = f"{sum(bits[key] - base[key] for key in keys):,}"
    slices = bits["migration_bits_per_slice"]
    return f"{more}; {slices:,} in a slice of the last level" if slices else more


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table in Markdown."""
    return [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]


if __name__ == "__main__":
    PAGE.write_text(page())
