"""Debian's stock kernels, fetched with apt into a cache and unpacked, not installed.

Each suite has an apt configuration of its own below the cache, so that the host's lists and sources
stay as they are, and signatures are checked against the archive's keys as always.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from contigua_vm.debian import MIRROR, SECURITY, apt_command, run
from contigua_vm.errors import Unavailable, VmError

#: Kernel versions that the node tools are tested on, and the suites that have them.
SUITES = {
    "5.10": ((MIRROR, "bullseye"), (SECURITY, "bullseye-security")),
    "6.1": ((MIRROR, "bookworm"), (SECURITY, "bookworm-security")),
    "6.12": ((MIRROR, "bookworm-backports"),),
}
#: Kernels to compare with, which change with their suite.
NEWER = {
    "7.2": ((MIRROR, "trixie-backports"),),
    "7.3": ((MIRROR, "trixie-backports"),),
}


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel.

    Attributes
    ----------
    version
        ``"6.1"`` and the like.
    release
        What ``uname -r`` will say.
    image
        The file to boot.
    modules
        The folder of its modules.
    """

    version: str
    release: str
    image: Path
    modules: Path

    def module(self, name: str) -> Path:
        """Find a module's file.

        Raises
        ------
        VmError
            When the kernel has none of that name.
        """
        for file in self.modules.rglob(f"{name}.ko*"):
            return file
        raise VmError(f"Linux {self.release} has no module {name}")


def cache_folder() -> Path:
    """Return the folder of the user's cache that is ours."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "contigua" / "vm"


def kernel(version: str = "6.1") -> Kernel:
    """Return a kernel from the cache, or fetch it.

    Raises
    ------
    VmError
        When the version is not known, or its package is not available.
    """
    if version not in SUITES | NEWER:
        known = ", ".join(SUITES | NEWER)
        raise VmError(f"no suite is known for Linux {version} (there are {known})")
    folder = cache_folder() / version
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (cache_folder() / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _fetch(version, folder)
    (image,) = (folder / "boot").glob("vmlinuz-*")
    release = image.name.removeprefix("vmlinuz-")
    return Kernel(version, release, image, folder / "lib" / "modules" / release)


def source(version: str) -> Path:
    """Return the archive of a kernel's source from the cache, or fetch it (about 140 MB).

    Raises
    ------
    VmError
        When the version is not known, or its package is not available.
    """
    if version not in SUITES | NEWER:
        known = ", ".join(SUITES | NEWER)
        raise VmError(f"no suite is known for Linux {version} (there are {known})")
    folder = cache_folder() / "sources" / version
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (cache_folder() / f"source-{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as name:
                root = _unpacked(version, Path(name), folder, lambda _: f"linux-source-{version}")
                (archive,) = (root / "usr" / "src").glob("*.tar.*")
                (package,) = Path(name).glob("linux-source-*.deb")
                new = Path(name) / "new"
                new.mkdir()
                # The package's name has the version of the kernel, the archive's does not.
                archive.rename(new / f"{package.stem}{''.join(archive.suffixes[-2:])}")
                new.rename(folder)
    (archive,) = folder.iterdir()
    return archive


def _unpacked(version: str, work: Path, folder: Path, choose: Callable[[list[str]], str]) -> Path:
    """Fetch a package of a version's suites and unpack it."""
    apt = apt_command((SUITES | NEWER)[version], work)
    try:
        run([*apt, "update", "-qq"], work)
        package = choose(apt)
        run([*apt, "download", "-qq", package], work)
        (archive,) = work.glob("linux-*.deb")
        run(["dpkg-deb", "-x", str(archive), str(work / "root")], work)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise Unavailable(
            f"Debian's kernel {version} is not available: {str(said).strip()}; virtual machines "
            f"need {MIRROR} once, or what was unpacked of it at {folder}"
        ) from error
    return work / "root"


def _fetch(version: str, folder: Path) -> None:
    def choose(apt: list[str]) -> str:
        # Where a package linux-image needs others, linux-binary has the file.
        for prefix in (f"linux-binary-{version}.", f"linux-image-{version}."):
            names = run(["apt-cache", *apt[1:], "pkgnames", prefix], folder.parent)
            if names:
                return _newest(names, prefix)
        raise ValueError(f"the suite has no linux-image-{version}")

    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as name:
        root = _unpacked(version, Path(name), folder, choose)
        if (root / "usr/lib/modules").is_dir():  # where merged-/usr packages keep them
            shutil.move(root / "usr/lib", root / "lib")
        (root / "boot").mkdir(exist_ok=True)
        for image in root.glob("lib/modules/*/vmlinuz"):
            image.rename(root / "boot" / f"vmlinuz-{image.parent.name}")
        root.rename(folder)


def _newest(names: str, prefix: str) -> str:
    pattern = rf"^{re.escape(prefix)}[^ \n]*-cloud-amd64$"
    found: list[str] = re.findall(pattern, names, re.MULTILINE)
    if not found:
        raise ValueError(f"the suite has no package {prefix}*-cloud-amd64")
    return max(found, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])
