"""Machines with a fraction of their capacities, for programs with that fraction of their memory.

Misses depend on the ratio of a program's memory to what holds it or its translations: TLBs for
data, page-walk caches below the root, caches for data. These are divided. Latencies, bandwidths and
the core stay, and so does what code has, which does not grow with the data.
"""

from __future__ import annotations

import tomllib
from typing import Any

import tomli_w

from contigua.presets import Preset, machines
from contigua.sizes import size_bytes


def scaled(machine: str | Preset, divisor: int) -> Preset:
    """Return a machine with its capacities for data divided.

    Sets shrink before ways do, and nothing has less than one entry.

    Parameters
    ----------
    machine
        A machine, or its name.
    divisor
        A power of two.

    Examples
    --------
    >>> import tomllib
    >>> machine = tomllib.loads(scaled("sandy-bridge", 8).text)
    >>> machine["tlb"]["l1d"]["1g"], machine["cache"]["llc"]["size"]
    ({'entries': 1, 'ways': 1}, '1920KiB')
    """
    whole = machines.get(machine)
    if divisor == 1:
        return whole
    values = tomllib.loads(whole.text)
    tlb, cache = values["tlb"], values["cache"]
    walk_caches = [values["walk_cache"][level] for level in ("pdpte", "pde")]
    for held in (*tlb["l1d"].values(), *tlb["l2"], *walk_caches):
        _divide(held, "entries", "ways", divisor)
    for level in ("l1d", "l2", "llc"):
        cache[level]["size"] = f"{size_bytes(cache[level]['size']) // divisor >> 10}KiB"
    if "directory_entries" in cache["shared"]:
        _divide(cache["shared"], "directory_entries", "directory_ways", divisor)
    return Preset(f"{whole.name}-{divisor}th", tomli_w.dumps(values), whole.origin)


def _divide(table: dict[str, Any], entries: str, ways: str, divisor: int) -> None:
    table[entries] = max(1, table[entries] // divisor)
    table[ways] = min(table[ways], table[entries])
