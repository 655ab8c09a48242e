"""Run unmodified programs on simulated servers and compare designs for contiguous memory.

``run`` is the whole API in one function::

    import contigua

    results = contigua.run(["sqlite3", ":memory:", "select 1"], designs=["linux-4k", "linux-thp"])
    print(results.to_pandas())
"""

from contigua._engine import VERSION as __version__
from contigua._engine import EngineError
from contigua.presets import Preset, PresetError, designs, machines
from contigua.results import Report, Results
from contigua.runner import RunOptions, run

__all__ = [
    "EngineError",
    "Preset",
    "PresetError",
    "Report",
    "Results",
    "RunOptions",
    "__version__",
    "designs",
    "machines",
    "run",
]
