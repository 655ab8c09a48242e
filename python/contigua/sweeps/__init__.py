"""Sweeps: many runs of one table of designs, machines, programs, ages, seeds and parameters.

``store`` keeps what is finished; ``spec`` turns a specification into points, ``workloads`` records
their programs; ``tasks`` is what runs on workers, ``cluster`` gets it there; ``running`` puts these
together, ``api`` is the interface and ``sql`` answers questions.
"""

from contigua.sweeps.api import Sweep, sweep
from contigua.sweeps.running import Listener, Options, Progress, look, run_sweep
from contigua.sweeps.spec import make_plan
from contigua.sweeps.sql import QueryError, query
from contigua.sweeps.store import Record, Store, SweepError, read_results

__all__ = [
    "Listener",
    "Options",
    "Progress",
    "QueryError",
    "Record",
    "Store",
    "Sweep",
    "SweepError",
    "look",
    "make_plan",
    "query",
    "read_results",
    "run_sweep",
    "sweep",
]
