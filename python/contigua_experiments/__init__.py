"""Published figures, computed again and set beside the paper's.

An experiment is a TOML file (inputs, and the paper's figures with their sources) and a module of
the same name with one function::

    def compute(inputs: dict[str, Any], context: Context) -> Outcome

To add one, write the two files and list the name here. In the TOML file ``[inputs]`` has what both
scales share and ``[quick]`` and ``[full]`` what differs; ``reproduces`` names the figures of
``papers.toml`` that it repeats (one that repeats none is listed there under ``beyond``); ``apart``
says why ``run all --quick`` leaves it out, if it does; a figure's ``differs`` says why ours is not
the paper's.
"""

from __future__ import annotations

from contigua_experiments.base import (
    Context,
    Definition,
    ExperimentError,
    Outcome,
    Result,
    Scale,
    Sheet,
    run_experiment,
)
from contigua_experiments.figures import Figure

#: Every experiment there is.
EXPERIMENTS = [
    "tlb-coverage",
    "page-walks",
    "contiguitas-fleet",
    "contiguitas-confinement",
    "contiguitas-parts",
    "contiguitas-large",
    "perforated-random",
    "perforated-apps",
    "perforated-virtualized",
    "perforated-apps-virtualized",
    "perforated-fragmentation",
    "perforated-breakdown",
    "direct-segment-overhead",
    "direct-segment-scaling",
    "memory-bloat",
    "migration-downtime",
    "migration-apps",
    "contiguitas-end-to-end",
    "subrelease-square-wave",
    "realized-fragmentation",
    "subrelease-tradeoff",
    "subrelease-fleet",
    "subrelease-services",
    "subrelease-sweep",
    "subrelease-redis",
    "heap-on-server",
    "guard-vm",
    "contiguitas-kernel",
    "kernel-fidelity",
    "sampling-error",
    "cross",
    "contiguity-demand",
    "placement-effects",
    "rival-pom-tlb",
    "rival-spot",
    "rival-asap",
    "rival-dmt",
    "rival-ecpt",
    "rival-hdc",
    "rival-mthp",
    "rival-atp-sbfp",
    "rival-svnapot",
    "rival-ingens",
    "rival-hawkeye",
    "rival-victima",
    "rival-chirp",
    "rival-trident",
    "rival-ranger",
    "rival-mosaic",
    "rival-utopia",
]

__all__ = [
    "EXPERIMENTS",
    "Context",
    "Definition",
    "ExperimentError",
    "Figure",
    "Outcome",
    "Result",
    "Scale",
    "Sheet",
    "find",
    "run_experiment",
]


def find(name: str) -> Definition:
    """Find an experiment by name.

    Raises
    ------
    ExperimentError
        When there is none; the message offers those that exist.
    """
    return Definition.read(name, EXPERIMENTS)
