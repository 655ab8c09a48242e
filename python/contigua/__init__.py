"""Run unmodified programs on simulated servers and compare designs for contiguous memory.

``run`` compares designs on a program::

    import contigua

    results = contigua.run(["sqlite3", ":memory:", "select 1"], designs=["linux-4k", "linux-thp"])
    print(results.to_pandas())

``profile`` says which code and which memory cause the cost::

    for line in contigua.profile(["sqlite3", ":memory:", "select 1"]).sentences():
        print(line)

``age`` shows what hours of service do to a server's memory::

    server = contigua.age("contiguitas-thp", contigua.AgeOptions(memory="4G", hours=1))
    print(server.samples_frame())

``sweep`` runs every combination of designs, programs, ages, seeds and any parameter::

    swept = contigua.sweep("holes.toml")
    print(swept.summary())
"""

from typing import TYPE_CHECKING

from contigua._engine import VERSION as __version__
from contigua._engine import EngineError
from contigua.ageing import AgedServer, AgeOptions, MemoryMap, age
from contigua.attribution import Attribution, Costs, ProfileError
from contigua.configs import Age, ConfigError, Design, Machine
from contigua.emulator import use_carried
from contigua.errors import ContiguaError
from contigua.options import RunOptions
from contigua.presets import Preset, PresetError, designs, machines, profiles
from contigua.profiling import Profiled, profile
from contigua.reports import Report
from contigua.results import Results
from contigua.runner import run
from contigua.traces import Trace, TraceInfo

if TYPE_CHECKING:
    from contigua.sweeps import QueryError, Sweep, SweepError, query, read_results, sweep

__all__ = [
    "Age",
    "AgeOptions",
    "AgedServer",
    "Attribution",
    "ConfigError",
    "ContiguaError",
    "Costs",
    "Design",
    "EngineError",
    "Machine",
    "MemoryMap",
    "Preset",
    "PresetError",
    "ProfileError",
    "Profiled",
    "QueryError",
    "Report",
    "Results",
    "RunOptions",
    "Sweep",
    "SweepError",
    "Trace",
    "TraceInfo",
    "__version__",
    "age",
    "designs",
    "machines",
    "profile",
    "profiles",
    "query",
    "read_results",
    "run",
    "sweep",
]

use_carried()
del use_carried


def __getattr__(name: str) -> object:
    # What is not here yet is a sweep's: they import much, and few commands need them.
    if name in __all__:
        from contigua import sweeps

        return getattr(sweeps, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
