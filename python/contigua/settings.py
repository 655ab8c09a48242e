"""Settings of a whole server that may help a program: larger pages for all, or set aside."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import Any

import tomli_w

from contigua.presets import Preset, laid_over

#: Where Linux is told of transparent huge pages (Documentation/admin-guide/mm/transhuge.rst).
THP = "/sys/kernel/mm/transparent_hugepage"
#: Folios below 2 MB that Linux can be told to make of anonymous memory, in KB.
FOLIOS = (16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Setting:
    """A setting of a server.

    Attributes
    ----------
    name
        Name of the setting.
    by_hand
        How an operator sets it.
    keys
        Tables of a design that say the same to the simulator.
    """

    name: str
    by_hand: str
    keys: dict[str, Any] = field(hash=False)

    def of(self, design: Preset) -> Preset:
        """Return a design with the setting.

        Examples
        --------
        >>> from contigua.presets import designs
        >>> print(SETTINGS[0].of(designs.get("linux-thp-madvise")).text.splitlines()[-1])
        enabled = "always"
        """
        text = tomli_w.dumps(laid_over(tomllib.loads(design.text), self.keys))
        return Preset(f"{design.name} with {self.name}", text, design.origin)


def _folios(*sizes: int) -> dict[str, Any]:
    return {"translation": {"thp": {"sizes": {f"{size}kB": "always" for size in sizes}}}}


def _reserved(page: str) -> dict[str, Any]:
    return {"translation": {"hugetlb": {"page": page}}}


#: Settings that advice tries. HugeTLB pages take all private anonymous memory, as with
#: libhugetlbfs.
SETTINGS = (
    Setting(
        "huge pages for all programs",
        f"echo always > {THP}/enabled",
        {"translation": {"thp": {"enabled": "always"}}},
    ),
    Setting(
        "folios of 64 KB for all programs",
        f"echo always > {THP}/hugepages-64kB/enabled (Linux 6.8 or later)",
        _folios(64),
    ),
    Setting(
        "folios of 16 KB to 1 MB for all programs",
        f"echo always > {THP}/hugepages-SIZE/enabled, with each SIZE from 16kB to 1024kB "
        "(Linux 6.8 or later)",
        _folios(*FOLIOS),
    ),
    Setting(
        "HugeTLB pages of 2 MB for all of its private memory",
        "sysctl vm.nr_hugepages=N at boot; MAP_HUGETLB with mmap, and for glibc's malloc "
        "GLIBC_TUNABLES=glibc.malloc.hugetlb=2",
        _reserved("2m"),
    ),
    Setting(
        "HugeTLB pages of 1 GB for all of its private memory",
        "hugepagesz=1G hugepages=N on the kernel's command line; MAP_HUGETLB | MAP_HUGE_1GB with "
        "mmap",
        _reserved("1g"),
    ),
)


@dataclass(frozen=True)
class Tried:
    """A setting that was tried.

    Attributes
    ----------
    setting
        The setting.
    saving, half_width
        Its saving, as a share of the cycles, and half of its 95 % interval; 0 for complete runs.
    memory_bytes
        Memory that it costs the program at the peak.
    fresh
        Saving on fresh memory and half of its interval, where the server's is not.
    """

    setting: Setting
    saving: float
    half_width: float
    memory_bytes: int
    fresh: tuple[float, float] | None = None

    def values(self) -> dict[str, Any]:
        """Return what the file of advice has of it."""
        return {
            "name": self.setting.name,
            "saving": self.saving,
            "half_width": self.half_width,
            **fresh_values(self.fresh),
            "memory_bytes": self.memory_bytes,
            "by_hand": self.setting.by_hand,
        }


def fresh_values(fresh: tuple[float, float] | None) -> dict[str, float]:
    """Return what the file of advice has of a saving on fresh memory."""
    return dict(zip(("fresh_saving", "fresh_half_width"), fresh or (), strict=False))
