"""Does a record of requests know what the kernel knows?"""

from __future__ import annotations

import pytest

from contigua import requests
from contigua_vm import SUITES, VmError, kernel
from contigua_vm.requests import record

#: Share of memory that may be in use although no event had handed it out: requests for many pages
#: at once, such as a new task's stack, are in none.
UNSEEN = 0.005


@pytest.mark.parametrize("version", [version for version in SUITES if version != "5.10"])
def test_a_record_follows_the_kernel_to_its_end(version, tmp_path):
    try:
        kernel(version)
    except VmError as error:
        pytest.skip(str(error))
    file = tmp_path / "requests.xz"
    record("tables", file, version=version, memory_mib=256)
    replayed = requests.replay(file)
    assert [look.name for look in replayed.looks][:3] == ["start", "full", "shed"]
    assert replayed.looks[-1].totals["requests"] > 10_000
    for look in replayed.looks:
        assert look.unseen <= UNSEEN * replayed.managed, look.name
        assert look.ghosts <= UNSEEN * replayed.managed, look.name
        # The kernel's own count of free pages, and that of the events.
        free = look.kernel.pages.sum() + look.kernel.per_cpu
        simulated = look.simulated.pages.sum() + look.simulated.per_cpu
        assert abs(free - simulated) <= 0.02 * replayed.managed, look.name
