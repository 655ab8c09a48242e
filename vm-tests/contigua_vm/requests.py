"""A record of all requests to a kernel's page allocator while memory ages."""

from __future__ import annotations

import lzma
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from contigua_vm.errors import VmError
from contigua_vm.guest import Guest
from contigua_vm.initramfs import Initramfs
from contigua_vm.kernels import kernel
from contigua_vm.programs import build_workloads
from contigua_vm.scatter import Scatter

#: Memory that a scenario leaves free, and kernel memory that it takes, in percent of memory.
LEAVES, TAKES = 24, 16
#: Rounds in which that comes; half of it goes again at the end.
ROUNDS = 4
#: MiB of it in a second of the guest's.
RATE = 20
#: Room for a record, in bytes; it takes what is used.
SHARED = 256 << 20


def commands(kind: str, memory_mib: int) -> list[tuple[str, Sequence[str]]]:
    """Return a scenario: names of looks at memory, and what happens before each."""
    free = memory_mib * LEAVES // 100
    part = max(memory_mib * TAKES // 100 // ROUNDS, 1)
    trades = [
        (f"round{turn}", [f"trade {kind} {part} {'stays' if turn % 2 else 'goes'} {RATE}"])
        for turn in range(1, ROUNDS + 1)
    ]
    return [
        ("full", [f"fill {free // 2}"]),
        ("shed", [f"shed {free // 2}"]),
        *trades,
        ("dropped", ["drop goes"]),
        ("cleared", ["clear"]),
    ]


def record(
    kind: str,
    target: Path,
    *,
    version: str = "6.12",
    memory_mib: int = 1024,
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Record a scenario into an xz file.

    Parameters
    ----------
    kind
        Which kernel memory is asked for: ``tables``, ``pipes``, ``sockets``, ``files`` or ``mix``.
    target
        The file.
    version
        Which of Debian's kernels.
    memory_mib
        Memory of the guest.
    progress
        Told what happens.

    Raises
    ------
    VmError
        When the guest dies, or events were lost.
    """
    programs = build_workloads()
    with tempfile.TemporaryDirectory(prefix="contigua-requests-") as folder:
        stream = Path(folder) / "stream"
        with stream.open("wb") as file:
            file.truncate(SHARED)
        with Guest(
            kernel(version),
            Initramfs(programs=programs),
            memory_mib=memory_mib,
            options="nokaslr",
            shared=stream,
        ) as guest:
            recorder = Recorder(guest)
            scatter = Scatter(guest)
            progress(recorder.do("start"))
            for name, steps in commands(kind, memory_mib):
                for step in steps:
                    progress(scatter.do(step))
                progress(recorder.do(f"mark {name}"))
            progress(recorder.do("stop"))
            guest.assert_well()
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}")
        with stream.open("rb") as raw, lzma.open(part, "wb") as packed:
            length = int.from_bytes(raw.read(8), "little")
            packed.write(raw.read(length))
        part.rename(target)


class Recorder:
    """``workloads/requests.c`` at work in a guest that has it as a program."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        guest.check(
            "mkfifo /run/requests /run/requested; requests <>/run/requests 1<>/run/requested "
            "2>/run/requests.log &"
        )

    def do(self, command: str) -> str:
        """Have it do one thing, and wait.

        Raises
        ------
        VmError
            When it fails; events that were lost are such a case.
        """
        said = self._guest.run(
            f"echo '{command}' >/run/requests && head -n 1 /run/requested", 600
        ).text.strip()
        if not said.startswith("ok"):
            raise VmError(f"the recorder of requests: {command}: {said}")
        return said
