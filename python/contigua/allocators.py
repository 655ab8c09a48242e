"""Which malloc a program gets: its C library's, ours, or any other that is a library."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from contigua.errors import ContiguaError
from contigua.reading import open_file

if TYPE_CHECKING:
    from contigua.run_spec import ExecutionSpec

#: Where a checkout builds the allocator; an installed package has it where the linker looks.
BUILT = Path(__file__).parents[2] / "target" / "release"
#: Names of our allocator and of the C library's.
OURS, OWN = "contigua", "libc"
#: Ours, as a file.
LIBRARY = "libcontigua_malloc.so"
#: Library that tells of blocks, and of the code that asked for them.
SITES = "libcontigua_sites.so"
#: Settings of ours: each is a variable ``CONTIGUA_MALLOC_...`` (docs/malloc.md). Its clock is
#: an option of the run.
OPTIONS = (
    "BACKGROUND",
    "CACHE",
    "CACHE_INTERVAL",
    "DECAY",
    "DUMP",
    "GUARDED",
    "HARDEN",
    "INTERVAL",
    "LIMIT",
    "PER_CPU",
    "PRIMARY",
    "PROFILE",
    "PROFILE_RATE",
    "RELEASE_RATE",
    "SOFT_LIMIT",
    "STATISTICS",
    "TELEMETRY",
)


class AllocatorError(ContiguaError):
    """An allocator does not exist, or cannot be told what it was told."""


@dataclass(frozen=True)
class Preload:
    """The environment with which a program uses an allocator.

    Attributes
    ----------
    name
        What reports call it: the allocator and its settings; ``None`` for the C library's own.
    libraries
        Libraries that are loaded before the program's.
    environment
        Variables that configure it.
    clock
        Nanoseconds of its time for each instruction; ``None`` for the system's clock.
    """

    name: str | None = None
    libraries: tuple[Path, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    clock: int | None = None

    def spec(self) -> ExecutionSpec:
        """Return what the engine is told of it."""
        return {
            "preload": self.libraries,
            "environment": dict(self.environment),
            "clock": self.clock,
        }


def preload(name: str, options: Sequence[str] = (), clock: int | None = None) -> Preload:
    """Say how a program is given an allocator.

    Parameters
    ----------
    name
        ``"libc"``, ``"contigua"``, or a library: its path, or its name if the linker knows it.
    options
        ``KEY=VALUE``. For ours, keys of :data:`OPTIONS` in any case, with ``-`` or ``_``; for
        others, environment variables.
    clock
        Nanoseconds for each instruction on the clock of ours; ``None`` for the system's.

    Raises
    ------
    AllocatorError
        When there is no such library, or an option is not understood.
    """
    pairs = [_pair(option) for option in options]
    shown = " ".join([name, *options]) if name != OWN or options else None
    if name == OWN:
        return Preload(shown, (), tuple(pairs))
    if name != OURS:
        return Preload(shown, (_library(name),), tuple(pairs))
    variables = [(f"CONTIGUA_MALLOC_{_known(key)}", value) for key, value in pairs]
    if clock is not None:
        if clock <= 0:
            raise AllocatorError(f"the allocator's clock must go on, by more than {clock} ns")
        variables.append(("CONTIGUA_MALLOC_CLOCK", "program"))
        shown = f"{shown} ({clock} ns an instruction)"
    return Preload(shown, (_library(LIBRARY),), tuple(variables), clock)


def with_sites(allocator: Preload) -> Preload:
    """Return an allocator whose blocks are told with the code that asked for them.

    Raises
    ------
    AllocatorError
        When the library that tells is not built.
    """
    library = find_library(SITES)
    if library is None:
        raise AllocatorError(f"no {SITES}: run cargo build --release -p contigua-sites")
    return replace(allocator, libraries=(library, *allocator.libraries))


def _pair(option: str) -> tuple[str, str]:
    key, is_there, value = option.partition("=")
    if not is_there or not key:
        raise AllocatorError(f"malloc option {option!r}: write KEY=VALUE")
    return key, value


def _known(key: str) -> str:
    found = key.upper().replace("-", "_")
    if found not in OPTIONS:
        raise AllocatorError(f"malloc option {key!r}: known are {', '.join(OPTIONS)}")
    return found


def _library(name: str) -> Path:
    found = Path(name) if "/" in name else find_library(name)
    if found is None or not found.is_file():
        hint = "cargo build --release -p contigua-malloc" if name == LIBRARY else "give its path"
        raise AllocatorError(f"malloc {name!r}: no such library here ({hint})")
    with open_file(found) as file:
        head = file.read(18)
    # An ELF file whose type is ET_DYN.
    if head[:4] != b"\x7fELF" or head[16:] != b"\x03\x00":
        raise AllocatorError(f"malloc {name!r}: no shared library (give the path of one)")
    return found.resolve()


def find_library(name: str, built: Path = BUILT) -> Path | None:
    """Return a shared library's path: from the checkout, else where the linker finds it."""
    if (built / name).exists():
        return built / name
    try:
        known = subprocess.run(
            ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    native = "x86-64" if struct.calcsize("P") == 8 and os.uname().machine == "x86_64" else ""
    for line in known.splitlines():
        found = re.match(rf"\s*{re.escape(name)} \(([^)]*)\) => (\S+)", line)
        if found is not None and native in found[1]:
            return Path(found[2])
    return None
