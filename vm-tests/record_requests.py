#!/usr/bin/env python3
"""Record the requests to a kernel's page allocator while memory ages.

    vm-tests/record_requests.py [FILE [SCENARIO [KERNEL [MEMORY]]]]

writes an xz file that ``contigua.requests.replay`` reads: by default the one that the tests have,
python/tests/recorded/requests.xz, of ``tables`` on Linux 6.12 with 160 MiB.
"""

from __future__ import annotations

import sys
from pathlib import Path

from contigua_vm.programs import CHECKOUT
from contigua_vm.requests import record

DEFAULTS = [str(CHECKOUT / "python/tests/recorded/requests.xz"), "tables", "6.12", "160"]
given = sys.argv[1:]
file, scenario, version, memory = [*given, *DEFAULTS[len(given) :]]
record(
    scenario,
    Path(file),
    version=version,
    memory_mib=int(memory),
    progress=lambda said: print(said, flush=True),
)
