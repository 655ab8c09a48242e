"""The page size with which a hypervisor backs memory."""

from __future__ import annotations

from contigua.measuring.machine import HUGE_PAGE, KIB
from contigua.measuring.probes import Probe, measure

#: Rounds: each takes some milliseconds.
ROUNDS = 7


def host_page() -> str:
    """Find out whether a 2 MB page has one TLB entry: ``"2m"``, else ``"4k"``.

    Lines of 512 small parts of one 2 MB page fit in a first-level cache, and the parts in no
    first-level TLB. So they take longer than as many lines side by side only where TLBs hold parts.
    """
    common = "--operations 100000 --repeats 3"
    probes = {
        "apart": Probe.of(f"chase --size 2M --step 4K --huge {common}"),
        "small": Probe.of(f"chase --size 2M --step 4K {common}"),
        "dense": Probe.of(f"chase --size 32K {common}"),
    }
    found = measure(probes, 0.0, ROUNDS)
    if found.huge["apart"] < HUGE_PAGE // KIB:
        return "4k"
    apart, small, dense = (found.value(name).value for name in probes)
    return "2m" if apart - dense < 0.5 * (small - dense) else "4k"
