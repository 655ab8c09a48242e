"""The root file system of a boot: an archive in the kernel's ``newc`` cpio format."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from contigua_vm.errors import VmError

#: First program of the guest.
INIT = Path(__file__).with_name("init.sh")
FOLDER, FILE, LINK, DEVICE = 0o040755, 0o100755, 0o120777, 0o020600


@dataclass
class Initramfs:
    """Files for a guest, by their path in it.

    Attributes
    ----------
    programs
        Static binaries and scripts, put into ``/bin``.
    files
        Any other files.
    modules
        Kernel modules, loaded in this order at boot.
    """

    programs: dict[str, Path] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    modules: list[Path] = field(default_factory=list)

    def build(self) -> bytes:
        """Return the archive.

        Raises
        ------
        VmError
            When a file cannot be read.
        """
        archive = _Archive()
        for folder in ("bin", "dev", "proc", "sys", "tmp", "run", "etc", "modules"):
            archive.add(folder, FOLDER)
        archive.add("dev/console", DEVICE, device=(5, 1))
        archive.add("dev/null", DEVICE, device=(1, 3))
        try:
            busybox = shutil.which("busybox")
            if busybox is None:
                raise VmError("busybox is missing; as root, run: apt-get install busybox-static")
            archive.add("bin/busybox", FILE, Path(busybox).read_bytes())
            archive.add("bin/sh", LINK, b"busybox")
            archive.add("init", FILE, INIT.read_bytes())
            for name, path in self.programs.items():
                archive.add(f"bin/{name}", FILE, path.read_bytes())
            for number, path in enumerate(self.modules):
                archive.add(f"modules/{number:02}-{path.name}", FILE, path.read_bytes())
        except OSError as error:
            raise VmError(f"{error.filename}: {error.strerror}") from error
        for name, content in self.files.items():
            archive.add(name.lstrip("/"), FILE, content)
        return archive.finish()


class _Archive:
    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._count = 0

    def add(
        self, name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)
    ) -> None:
        self._count += 1
        fields = (
            *(self._count, mode, 0, 0, 2 if mode == FOLDER else 1, 0, len(content)),
            *(0, 0, *device, len(name) + 1, 0),
        )
        head = b"070701" + "".join(f"{value:08x}" for value in fields).encode()
        head += name.encode() + b"\0"
        self._parts += [_padded(head), _padded(content)]

    def finish(self) -> bytes:
        self.add("TRAILER!!!", 0)
        return b"".join(self._parts)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
