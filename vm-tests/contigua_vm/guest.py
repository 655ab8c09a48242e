"""A running guest: boot, commands with their exit codes, hot-plugged memory, the kernel's log."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import re
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from contigua_vm.errors import GuestDied, VmError
from contigua_vm.initramfs import Initramfs
from contigua_vm.kernels import Kernel

#: Seconds that a boot may take; three to ten are usual.
BOOT = 300.0
#: Seconds beyond a command's own limit until its answer must have come.
GRACE = 900.0
#: Seconds between looks at the log of a guest that does not answer.
LOOK = 5.0
#: Message of newer kernels when a request has waited for a minute and more.
STALL = re.compile(r"page allocation stall for (?:[6-9]\d|\d{3,}) secs: order:\d+")
#: QEMU 7.2 emulates cmpxchg16b with wrong flags, of which kernels die sooner or later. Where a
#: processor is not said to be fast at copying bytes (erms), kernels clear and copy pages by words,
#: in an eighth of the steps that QEMU emulates. With fsrm and without erms, Linux 6.1 hangs in its
#: boot (QEMU 10.0 has fsrm, 7.2 has not).
PROCESSOR = "max,cx16=off,erms=off,fsrm=off"
#: One processor's time is counted in instructions, so that it does not matter how busy the host is;
#: when it only waits, the clock goes on to the end of that.
ONE = ("-accel", "tcg", "-icount", "shift=2,sleep=off")
#: Without counting: QEMU 7.2 lets each of several counted processors run until the next timer is
#: due, and one that spins until another has done something waits forever, as kernels do that start
#: their second.
MANY = ("-accel", "tcg,thread=multi")
#: Message of a kernel that has crashed.
DEATH = re.compile(r"Kernel panic|BUG: |Oops: |general protection fault|soft lockup")


@dataclass(frozen=True)
class Answer:
    """Output of a command in the guest.

    Attributes
    ----------
    code
        Its exit code; 137 if its time was up.
    output
        Standard output and standard error.
    """

    code: int
    output: bytes

    @property
    def text(self) -> str:
        """The output as text."""
        return self.output.decode(errors="replace")


class Guest:
    """A virtual machine, used in a ``with`` statement.

    Parameters
    ----------
    kernel
        What to boot.
    initramfs
        Its files.
    memory_mib
        Memory at boot in MiB.
    options
        More words for the kernel's command line, such as ``movablecore=1G``.
    processors
        How many. Several run at the same time, on as many of the host's, and by its clock.
    hotplug_mib
        How much memory may be plugged in later.
    low_mib
        How much of it lies below 4 GiB; by default what QEMU chooses.
    numa_nodes
        Nodes that share memory and processors evenly.
    log
        Where the kernel's log is kept; by default beside the sockets, gone at the end.
    shared
        A file that is memory of the guest's as well, on a PCI device (ivshmem). Its size is a power
        of two.
    disk
        An image whose content is ``/dev/pmem0``, on persistent memory (NVDIMM), where reading is
        copying. What the guest writes is gone at the end.

    Raises
    ------
    VmError
        When the machine does not start or does not answer.
    """

    def __init__(
        self,
        kernel: Kernel,
        initramfs: Initramfs,
        *,
        memory_mib: int = 1024,
        options: str = "",
        processors: int = 1,
        hotplug_mib: int = 0,
        low_mib: int | None = None,
        numa_nodes: int = 1,
        log: Path | None = None,
        shared: Path | None = None,
        disk: Path | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="contigua-vm-")
        folder = Path(self._folder.name)
        self.log = log or folder / "console.log"
        self._numbers = itertools.count(1)
        self._received = b""
        self._dimms = 0
        archive = folder / "initramfs"
        archive.write_bytes(initramfs.build())
        # Emulation costs by the instruction, and neither mitigations nor a second clearing of pages
        # change where memory lies.
        words = "console=ttyS0 panic=-1 oops=panic psi=1 quiet loglevel=6 "
        words += f"mitigations=off init_on_alloc=0 {options}"
        machine = "q35" if low_mib is None else f"q35,max-ram-below-4g={low_mib}M"
        memory = f"{memory_mib}M"
        disk_mib = disk.stat().st_size >> 20 if disk is not None else 0
        if hotplug_mib or disk_mib:
            memory += f",slots=32,maxmem={memory_mib + hotplug_mib + disk_mib}M"
        command = [
            # However this process ends, the machine ends with it.
            *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"),
            *(MANY if processors > 1 else ONE),
            *("-machine", machine, "-cpu", PROCESSOR),
            *("-nodefaults", "-display", "none", "-no-reboot", "-smp", str(processors)),
            *("-m", memory, "-kernel", str(kernel.image), "-initrd", str(archive)),
            *("-append", words, "-serial", f"file:{self.log}"),
            *("-chardev", f"socket,id=agent,path={folder / 'agent'},server=on,wait=off"),
            # On PCI, whose interrupts are levels: a busy host loses edges, and the line hangs.
            *("-device", "pci-serial,chardev=agent"),
            *("-qmp", f"unix:{folder / 'qmp'},server=on,wait=off"),
        ]
        if shared is not None:
            size = shared.stat().st_size
            backend = f"memory-backend-file,id=shared,share=on,mem-path={shared},size={size}"
            command += ["-object", backend, "-device", "ivshmem-plain,memdev=shared"]
        if disk is not None:
            command[command.index("-machine") + 1] += ",nvdimm=on"
            backend = f"memory-backend-file,id=disk,share=off,mem-path={disk},size={disk_mib}M"
            command += ["-object", backend, "-device", "nvdimm,memdev=disk"]
        for node in range(numa_nodes if numa_nodes > 1 else 0):
            share = memory_mib // numa_nodes
            command += ["-object", f"memory-backend-ram,id=ram{node},size={share}M"]
            command += ["-numa", f"node,nodeid={node},memdev=ram{node}"]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError as error:
            self._folder.cleanup()
            raise VmError(f"qemu-system-x86_64 does not start: {error}") from error
        try:
            started = time.monotonic()
            self._agent = self._connect(folder / "agent")
            self._qmp = self._connect(folder / "qmp")
            self._command("qmp_capabilities")
            self._wait_for(b"@ready\n", BOOT, "the boot")
            #: Seconds from QEMU's start to the first command.
            self.boot_seconds = time.monotonic() - started
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Switch the machine off."""
        self._process.kill()
        self._process.wait()
        for each in ("_agent", "_qmp"):
            if hasattr(self, each):
                getattr(self, each).close()
        self._folder.cleanup()

    def run(self, script: str, limit: float = 60) -> Answer:
        """Run a shell script in the guest and wait for it.

        Parameters
        ----------
        script
            What to run; a background process lives on if its output goes elsewhere.
        limit
            Seconds after which it is killed.

        Raises
        ------
        VmError
            When the guest no longer answers.
        """
        number = next(self._numbers)
        line = f"{number} {limit:.0f} {base64.b64encode(script.encode()).decode()}\n"
        self._agent.sendall(line.encode())
        end = f"@end {number}\n".encode()
        whole = self._wait_for(end, limit + GRACE, script)
        found = re.search(rb"@begin %d (\d+)\n(.*)\Z" % number, whole, re.DOTALL)
        if found is None:
            raise VmError(f"no answer to {script!r} in {whole!r}")
        packed = base64.b64decode(found[2])
        return Answer(int(found[1]), gzip.decompress(packed) if packed else b"")

    def check(self, script: str, limit: float = 60) -> str:
        """Run a shell script that must succeed, and return what it said.

        Raises
        ------
        VmError
            When it fails.
        """
        answer = self.run(script, limit)
        if answer.code != 0:
            raise VmError(f"{script!r} ended with {answer.code}: {answer.text}")
        return answer.text

    def wait(self, condition: str, limit: float = 60) -> None:
        """Wait until a shell's condition holds, by the guest's clock.

        Raises
        ------
        VmError
            When it does not within a limit of seconds.
        """
        self.check(f"until {condition}; do sleep 0.1; done", limit)

    def read(self, path: str) -> bytes:
        """Return a file of the guest."""
        answer = self.run(f"cat {path}")
        if answer.code != 0:
            raise VmError(f"{path}: {answer.text}")
        return answer.output

    def plug(self, mib: int) -> None:
        """Plug in memory, as a DIMM would be; the guest sees new memory blocks."""
        name = f"dimm{self._dimms}"
        self._dimms += 1
        self._command(
            "object-add", {"qom-type": "memory-backend-ram", "id": name, "size": mib << 20}
        )
        self._command("device_add", {"driver": "pc-dimm", "id": f"{name}-device", "memdev": name})

    def kernel_log(self) -> str:
        """Return what the kernel has said on its console."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def assert_well(self) -> None:
        """Raise :class:`GuestDied` if the kernel reported a fault of its own."""
        found = DEATH.search(self.kernel_log())
        if found is not None:
            raise GuestDied(self._tail(f"the kernel said {found[0]!r}"))

    def _tail(self, what: str) -> str:
        last = "\n".join(self.kernel_log().splitlines()[-40:])
        return f"{what}; the end of its log:\n{last}"

    def _connect(self, path: Path) -> socket.socket:
        deadline = time.monotonic() + 20
        line = socket.socket(socket.AF_UNIX)
        while True:
            try:
                line.connect(str(path))
                return line
            except OSError as error:
                if self._process.poll() is not None:
                    assert self._process.stdout is not None
                    said = self._process.stdout.read().decode(errors="replace")
                    raise VmError(f"QEMU ended at once: {said}") from error
                if time.monotonic() > deadline:
                    raise VmError(f"QEMU does not open {path.name}: {error}") from error
                time.sleep(0.02)

    def _wait_for(self, end: bytes, seconds: float, what: str) -> bytes:
        deadline = time.monotonic() + seconds
        while end not in self._received:
            self._agent.settimeout(min(max(deadline - time.monotonic(), 0.01), LOOK))
            try:
                part = self._agent.recv(1 << 16)
            except ConnectionResetError:
                part = b""
            except TimeoutError:
                self.assert_well()
                stall = STALL.search(self.kernel_log())
                if stall is not None:
                    raise VmError(
                        f"the kernel keeps a request waiting ({stall[0]}) during {what!r}"
                    ) from None
                if time.monotonic() < deadline:
                    continue
                said = self._received[-200:]
                raise VmError(
                    self._tail(f"no answer within {seconds:.0f} s to {what!r}, only {said!r}")
                ) from None
            if not part:
                raise GuestDied(self._tail(f"the guest died during {what!r}"))
            self._received += part
        head, self._received = self._received.split(end, 1)
        return head

    def _command(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        request = {"execute": name, "arguments": arguments or {}}
        self._qmp.sendall(json.dumps(request).encode() + b"\n")
        self._qmp.settimeout(20)
        received = b""
        while True:
            received += self._qmp.recv(1 << 16)
            lines = received.split(b"\n")
            received = lines.pop()
            for line in lines:
                message = json.loads(line)
                if "error" in message:
                    raise VmError(f"QEMU refuses {name}: {message['error']['desc']}")
                if "return" in message:
                    return
