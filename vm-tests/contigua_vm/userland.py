"""A disk with Debian's programs and the kernel's own tests of its memory management, for guests.

Packages are unpacked, not installed, and the image is made without mounting anything. It stays in
the cache under a name that says what went into it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from contigua_vm.debian import MIRROR, SECURITY, apt_command, run
from contigua_vm.errors import VmError
from contigua_vm.guest import Answer, Guest
from contigua_vm.kernels import cache_folder, source

SUITE = ((MIRROR, "bookworm"), (SECURITY, "bookworm-security"))
#: The suite has no package of the Linux Test Project.
PACKAGES = (
    *("bash", "coreutils", "dash", "findutils", "gawk", "grep", "mount", "procps", "psmisc", "sed"),
    *("gcc", "libc6-dev", "make"),
    *("libcap-dev", "libnuma-dev"),
    *("apache2-utils", "libmemcached-tools", "memcached", "nginx-light", "stress-ng"),
)
#: Files that maintainers' scripts would have made, and some for the tests.
FILES = {
    "etc/passwd": "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost guest\n",
    "etc/hostname": "guest\n",
}
LINKS = {"bin/sh": "dash", "usr/bin/awk": "gawk", "usr/bin/cc": "gcc"}
FOLDERS = ("dev", "host", "proc", "run", "sys", "tmp", "root", "var/log/nginx", "var/lib/nginx")
#: Folder of the kernel's tests in the image.
SELFTESTS = "/selftests"
#: Of its source: the tests, and what they include.
SELFTEST_SOURCES = ("tools/testing/selftests", "mm", "lib", "include")
#: Room for files, and what the image's size is a multiple of, as memory that QEMU plugs in.
ROOM_MIB, ALIGNED_MIB = 768, 128


def missing_for_userland() -> str | None:
    """Say what is missing to make the disk, and how to get it; ``None`` if nothing is."""
    commands = {"dpkg-deb": "dpkg", "tar": "tar", "gcc": "gcc", "mke2fs": "e2fsprogs"}
    packages = [package for command, package in commands.items() if _which(command) is None]
    if not packages:
        return None
    return f"for a disk with programs, as root, run: apt-get install {' '.join(packages)}"


def userland(version: str = "6.1", progress: Callable[[str], None] = lambda _: None) -> Path:
    """Return the image from the cache, or make it (about 90 MB of packages).

    Parameters
    ----------
    version
        Of the kernel whose tests are in it.
    progress
        Told what happens.

    Raises
    ------
    VmError
        When a package is not available, or a command is missing or fails.
    """
    archive = source(version)
    parts = (archive.name, SUITE, PACKAGES, FILES, LINKS, FOLDERS, SELFTEST_SOURCES, ROOM_MIB)
    name = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    image = cache_folder() / "userland" / f"{name}.ext4"
    image.parent.mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "userland.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not image.exists():
            missing = missing_for_userland()
            if missing is not None:
                raise VmError(missing)
            with tempfile.TemporaryDirectory(dir=image.parent, prefix="making-") as work:
                try:
                    _make(archive, image, Path(work), progress)
                except (OSError, subprocess.SubprocessError) as error:
                    said = getattr(error, "stderr", None) or str(error)
                    raise VmError(f"no disk with programs: {str(said).strip()}") from error
            for old in image.parent.glob("*.ext4"):
                if old != image:
                    old.unlink()
    return image


def enter(guest: Guest) -> None:
    """Mount the disk, and what its programs expect, in a guest that has it.

    Raises
    ------
    VmError
        When the kernel cannot.
    """
    guest.check(
        "mkdir /userland; mount -t ext4 /dev/pmem0 /userland; cd /userland; "
        "for each in dev proc sys run; do mount --bind /$each $each; done; "
        "mount --bind /bin host; mount -t devpts pts dev/pts; mkdir -p dev/shm; "
        "mount -t tmpfs shm dev/shm; mount -t debugfs debug sys/kernel/debug; "
        "mount --bind /sys/fs/cgroup sys/fs/cgroup; hostname guest"
    )


def run_within(guest: Guest, script: str, limit: float = 60) -> Answer:
    """Run a script of bash's on the disk, as :meth:`Guest.run` does; the guest's own programs are
    in ``/host``.

    Raises
    ------
    VmError
        When the guest no longer answers.
    """
    path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
    return guest.run(f"{path} exec chroot /userland /bin/bash -c {shlex.quote(script)}", limit)


def _make(archive: Path, image: Path, work: Path, progress: Callable[[str], None]) -> None:
    root = work / "root"
    for folder in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64"):
        (root / folder).mkdir(parents=True)
        (root / folder.removeprefix("usr/")).symlink_to(folder)
    progress("fetching and unpacking Debian's packages")
    apt = apt_command(SUITE, work)
    run([*apt, "update", "-qq"], work)
    run([*apt, "install", "--download-only", "--yes", "-qq", *PACKAGES], work)
    for package in sorted((work / "archives").glob("*.deb")):
        unpack = f"dpkg-deb --fsys-tarfile {shlex.quote(str(package))} | "
        # Where /bin and the like are links, they stay.
        run(["bash", "-o", "pipefail", "-c", unpack + "tar -x --keep-directory-symlink"], root)
    for name in FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (root / name).write_text(text)
    for name, target in LINKS.items():
        link = root / name
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    progress("building the kernel's tests")
    _build_selftests(archive, work, root)
    for useless in ("usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / useless, ignore_errors=True)
    progress("making the image")
    used_mib = int(run(["du", "-sm", str(root)], work).split()[0])
    size_mib = -(-(used_mib * 5 // 4 + ROOM_MIB) // ALIGNED_MIB) * ALIGNED_MIB
    new = work / "image"
    with new.open("wb") as file:
        file.truncate(size_mib << 20)
    make = [str(_which("mke2fs")), "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0"]
    run([*make, "-E", "root_owner=0:0", "-d", str(root), str(new)], work)
    new.rename(image)


def _build_selftests(archive: Path, work: Path, root: Path) -> None:
    """Build the tests that build, with the headers and libraries of the image."""
    tree = work / "linux"
    tree.mkdir()
    wanted = [f"*/{path}" for path in SELFTEST_SOURCES]
    unpack = ["tar", "-xf", str(archive), "--strip-components=1", "--wildcards", "-C", str(tree)]
    run([*unpack, *wanted], work)
    selftests = tree / "tools" / "testing" / "selftests"
    (folder,) = (path for path in (selftests / "vm", selftests / "mm") if path.is_dir())
    target = root / SELFTESTS.lstrip("/")
    target.mkdir()
    shared = ["vm_util.c"] if (folder / "vm_util.c").exists() else []
    for file in sorted(folder.glob("*.c")):
        if file.name in shared:
            continue
        command = ["gcc", f"--sysroot={root}", "-O2", "-w", "-no-pie", "-mxsave", "-pthread"]
        command += ["-I", str(tree), "-o", str(target / file.stem), file.name, *shared]
        # What does not build is missing in the image, and the suite says so.
        subprocess.run([*command, "-lrt", "-lcap", "-lnuma"], cwd=folder, capture_output=True)
    for script in folder.glob("*.sh"):
        shutil.copy(script, target)


def _which(command: str) -> str | None:
    path = os.environ.get("PATH", os.defpath)
    return shutil.which(command, path=f"{path}:/usr/sbin:/sbin")
