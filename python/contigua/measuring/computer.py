"""The kernel's description of this computer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from contigua.errors import ContiguaError
from contigua.sizes import size_bytes

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")

#: Machine files by CPUID family and model; the nearest core is taken where there is no file.
INTEL = {
    **dict.fromkeys((42, 45, 58, 62), "sandy-bridge"),
    **dict.fromkeys((60, 63, 69, 70), "haswell-ex"),
    **dict.fromkeys((61, 71, 79, 86), "broadwell"),
    **dict.fromkeys((106, 108, 143, 173, 174, 207), "sapphire-rapids"),
}
#: Steppings of model 85 from which on it is Cascade Lake.
CASCADE_LAKE = 5
ZEN_4 = (*range(0x10, 0x20), *range(0x60, 0x80), *range(0xA0, 0xB0))


class MeasureError(ContiguaError):
    """A computer that cannot be measured, or measurements that say too little."""


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


@dataclass(frozen=True)
class Computer:
    """A computer as it describes itself.

    Attributes
    ----------
    vendor, family, model, stepping
        As CPUID has them; the vendor is ``"ARM"`` on aarch64.
    name
        The processor's, as the vendor writes it.
    virtual
        Whether a hypervisor says that it is there.
    caches
        Bytes of the first processor's data caches, by level.
    thp
        ``"always"``, ``"madvise"`` or ``"never"``; empty without transparent huge pages.
    available
        Bytes of memory that can be used without swapping.
    """

    vendor: str
    family: int
    model: int
    stepping: int
    name: str
    virtual: bool
    caches: dict[int, int]
    thp: str
    available: int

    @staticmethod
    def this(cpuinfo: str | None = None) -> Computer:
        """Describe the computer that this runs on."""
        text = _read(Path("/proc/cpuinfo")) if cpuinfo is None else cpuinfo

        def field(name: str) -> str:
            found = re.search(rf"^{name}\s*:\s*(.*)$", text, re.MULTILINE)
            return found[1].strip() if found else ""

        def number(name: str) -> int:
            value = field(name)
            return int(value) if value.isdigit() else 0

        caches = {}
        for index in sorted(CACHES.glob("index*")):
            size, level = _read(index / "size"), _read(index / "level")
            if _read(index / "type") != "Instruction" and level.isdigit() and size:
                caches[int(level)] = size_bytes(size)
        chosen = re.search(r"\[(\w+)\]", _read(THP))
        free = re.search(r"^MemAvailable:\s*(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE)
        return Computer(
            vendor=field("vendor_id") or ("ARM" if "CPU implementer" in text else ""),
            family=number("cpu family"),
            model=number("model"),
            stepping=number("stepping"),
            name=field("model name") or "unnamed processor",
            virtual="hypervisor" in field("flags").split(),
            caches=caches,
            thp=chosen[1] if chosen else "",
            available=int(free[1]) << 10 if free else 0,
        )

    @property
    def nearest(self) -> str:
        """The machine file of the processor nearest to this one."""
        if self.vendor == "AuthenticAMD":
            if self.family > 0x19:
                return "zen-5"
            return "zen-4" if self.family == 0x19 and self.model in ZEN_4 else "zen-3"
        if self.vendor == "ARM":
            return "neoverse-v2"
        if self.model == 85:
            return "cascade-lake" if self.stepping >= CASCADE_LAKE else "skylake"
        return INTEL.get(self.model, "skylake")
