"""L2 TLB replacement by control-flow signatures (Mirbagher-Ajorpaz et al., CHiRP, MICRO 2020)."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Any

from contigua_experiments import rivals
from contigua_experiments.base import Context, Outcome

if TYPE_CHECKING:
    from contigua.page import Page

NAME = "chirp"


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every program with signatures, and with the least recently used entry replaced."""
    found = rivals.compare(inputs, context)
    others = {program: by for program, by in found.items() if program != "gups"}
    random = found["gups"]
    values: dict[str, float | None] = {
        "misses": 100 - mean(rivals.left(others, rivals.walks, NAME, "base")),
        "gain": rivals.gain(others, NAME, "base"),
        "random": rivals.share(rivals.walks(random[NAME]), rivals.walks(random["base"])),
    }
    columns = {
        "misses of the L2 TLB": rivals.walks,
        "dead evicted": lambda values: rivals.counter(values, "chirp_dead_evicted"),
        "unused evicted": lambda values: rivals.counter(values, "chirp_unused_evicted"),
        "first uses": lambda values: rivals.counter(values, "chirp_first_uses"),
        "of dead entries": lambda values: rivals.counter(values, "chirp_dead_used"),
        "walk cycles": rivals.walk_cycles,
        "cycles": lambda values: float(values["time"]["cycles"]),
    }

    def illustrate(page: Page) -> None:
        rivals.picture(page, found, "Misses of the L2 TLB", "misses", rivals.walks)

    return Outcome(values, illustrate, sheets=[rivals.sheet(found, columns)])
