"""TLB prefetching (Vavouliotis and others, ATP with SBFP, ISCA 2021)."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Any

from contigua_experiments import rivals
from contigua_experiments.base import Context, Outcome

if TYPE_CHECKING:
    from contigua.page import Page
    from contigua_experiments.running import Values

NAME = "atp-sbfp"
#: Programs as those whose results the abstract has: graphs and XSBench.
BIG = ("bfs", "neutrons")


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run every program with and without prefetching."""
    found = rivals.compare(inputs, context)
    big = {program: by for program, by in found.items() if program in BIG}
    random = found["gups"]
    values: dict[str, float | None] = {
        "walks": mean(rivals.left(big, rivals.walks, NAME, "base")),
        "random": rivals.share(prefetched(random[NAME]), rivals.walks(random[NAME])),
        "references": 100 - mean(rivals.left(big, references, NAME, "base")),
        "gain": rivals.gain(big, NAME, "base"),
        "limit": rivals.gain(big, "perfect", "base"),
    }
    columns = {
        "walks": rivals.walks,
        "prefetch walks": prefetched,
        "hits in the queue": lambda values: rivals.counter(values, "atp_hits"),
        "of free entries": lambda values: rivals.counter(values, "atp_free_hits"),
        "reads": references,
        "cycles": lambda values: float(values["time"]["cycles"]),
    }

    def illustrate(page: Page) -> None:
        rivals.picture(page, found, "Page walks", "walks", rivals.walks)

    return Outcome(values, illustrate, sheets=[rivals.sheet(found, columns)])


def prefetched(values: Values) -> int:
    """Return walks of prefetches."""
    return rivals.counter(values, "atp_prefetch_walks")


def references(values: Values) -> float:
    """Return reads of page-table entries by walks of both kinds."""
    own = int(values["translation"]["references"])
    return float(own + rivals.counter(values, "atp_prefetch_references"))
