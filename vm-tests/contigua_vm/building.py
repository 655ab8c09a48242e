"""Kernels that are built here: Debian's source with ``kernel/config``, changed by ``kernel/place``
or as it comes.

What is built is kept in the cache under a name that says what went into it: the source package, our
files, and the configuration. Beside each kernel lie the modules of ``vm-tests/modules``.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from contigua_vm.errors import Unavailable, VmError
from contigua_vm.kernels import Kernel, cache_folder, source
from contigua_vm.programs import CHECKOUT

KERNEL = CHECKOUT / "kernel"
MODULES = CHECKOUT / "vm-tests" / "modules"
#: Commands that a build needs, and the Debian packages that have them.
COMMANDS = {"make": "make", "gcc": "gcc", "flex": "flex", "bison": "bison", "bc": "bc"}
#: Headers that it needs.
HEADERS = {"/usr/include/libelf.h": "libelf-dev", "/usr/include/openssl/opensslv.h": "libssl-dev"}
#: Kernels that are kept besides the newest of each kind.
KEPT = 2


def missing_for_build() -> str | None:
    """Say what is missing for a build, and how to get it; ``None`` if nothing is."""
    packages = [package for command, package in COMMANDS.items() if shutil.which(command) is None]
    packages += [package for header, package in HEADERS.items() if not Path(header).exists()]
    if not packages:
        return None
    return f"to build kernels, as root, run: apt-get install {' '.join(packages)}"


def built_kernel(
    version: str,
    *,
    is_changed: bool,
    is_debug: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Kernel:
    """Return a kernel from the cache, or build it, which takes minutes.

    Parameters
    ----------
    version
        Of Debian's source: ``"6.1"`` and the like.
    is_changed
        With Contiguitas, or as it comes, with the same configuration.
    is_debug
        With ``kernel/config.debug``, whose checks are slow.
    progress
        Told what happens.

    Raises
    ------
    VmError
        When the source is not available, does not match, or does not build.
    """
    archive = source(version)
    configuration = _configuration(is_changed=is_changed, is_debug=is_debug)
    kind = f"{version}-{'contiguitas' if is_changed else 'plain'}{'-debug' if is_debug else ''}"
    digest = hashlib.sha256(f"{archive.name}\n{configuration}".encode())
    for path in sorted(MODULES.iterdir()):
        digest.update(path.read_bytes())
    if is_changed:
        for path in [KERNEL / "place", *sorted((KERNEL / "src").rglob("*"))]:
            if path.is_file() and path.suffix != ".rst" and path.name != "LICENSE":
                digest.update(path.read_bytes())
    folder = cache_folder() / "built" / kind / digest.hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (cache_folder() / f"build-{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _build(version, archive, configuration, folder, is_changed, progress)
    (image,) = folder.glob("vmlinuz-*")
    return Kernel(kind, image.name.removeprefix("vmlinuz-"), image, folder)


def is_built(version: str) -> bool:
    """Say whether some kernel of a version with Contiguitas is in the cache."""
    return any((cache_folder() / "built" / f"{version}-contiguitas").glob("*/vmlinuz-*"))


def _configuration(*, is_changed: bool, is_debug: bool) -> str:
    parts = [(KERNEL / "config").read_text()]
    if is_debug:
        parts.append((KERNEL / "config.debug").read_text())
    if is_changed:
        parts.append("CONFIG_CONTIGUITAS=y\n")
    return "".join(parts)


def _build(
    version: str,
    archive: Path,
    configuration: str,
    folder: Path,
    is_changed: bool,
    progress: Callable[[str], None],
) -> None:
    missing = missing_for_build()
    if missing is not None:
        raise Unavailable(missing)
    # One tree for all kinds of a version: what they share is not compiled again.
    tree = cache_folder() / "trees" / version
    _unpack(archive, tree, is_changed, progress)
    objects = tree.with_name(f"{tree.name}-objects")
    objects.mkdir(exist_ok=True)
    progress(f"configuring Linux {version}")
    with tempfile.NamedTemporaryFile("w", suffix=".config") as wanted:
        wanted.write(configuration)
        wanted.flush()
        make = ["make", "-C", str(tree), f"O={objects}", "-s"]
        run_command([*make, "tinyconfig"], objects)
        merge = [str(tree / "scripts/kconfig/merge_config.sh"), "-O", str(objects), "-m"]
        run_command([*merge, str(objects / ".config"), wanted.name], tree)
        run_command([*make, "olddefconfig"], objects)
    check_configuration(configuration, (objects / ".config").read_text())
    progress(f"building Linux {version}, minutes")
    run_command([*make, f"-j{os.cpu_count() or 1}", "bzImage", "modules"], objects)
    release = run_command([*make, "-s", "--no-print-directory", "kernelrelease"], objects).strip()
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as name:
        new = Path(name) / "kernel"
        new.mkdir()
        shutil.copy(objects / "arch/x86/boot/bzImage", new / f"vmlinuz-{release}")
        shutil.copy(objects / ".config", new / f"config-{release}")
        # Now: the next kernel has the same tree, and other structures in it.
        modules = shutil.copytree(MODULES, Path(name) / "modules")
        run_command([*make, f"M={modules}", "modules"], objects)
        for module in modules.glob("*.ko"):
            shutil.copy(module, new)
        new.rename(folder)
    older = sorted(folder.parent.glob("*/vmlinuz-*"), key=lambda path: path.stat().st_mtime)
    for image in older[: -KEPT - 1]:
        shutil.rmtree(image.parent)


def _unpack(archive: Path, tree: Path, is_changed: bool, progress: Callable[[str], None]) -> None:
    """Unpack a source into a tree, and place our files; files that stay the same keep their times,
    so that little is compiled again."""
    stamp = tree / ".unpacked-from"
    if not stamp.exists() or stamp.read_text() != archive.name:
        progress(f"unpacking {archive.name}")
        shutil.rmtree(tree, ignore_errors=True)
        shutil.rmtree(tree.with_name(f"{tree.name}-objects"), ignore_errors=True)
        tree.mkdir(parents=True)
        run_command(["tar", "-xf", str(archive), "--strip-components=1", "-C", str(tree)], tree)
        shutil.copytree(tree / "mm", tree / ".mm")
        stamp.write_text(archive.name)
    with tempfile.TemporaryDirectory(dir=tree.parent, prefix="placing-") as name:
        fresh = Path(name)
        shutil.copytree(tree / ".mm", fresh / "mm")
        if is_changed:
            run_command([str(KERNEL / "place"), str(fresh)], fresh)
        for path in fresh.rglob("*"):
            old = tree / path.relative_to(fresh)
            if path.is_file() and not (old.exists() and old.read_bytes() == path.read_bytes()):
                old.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, old)


def check_configuration(configuration: str, got: str) -> None:
    """Check that a kernel's configuration has what was asked of it.

    Raises
    ------
    VmError
        When it lacks a line.
    """
    lines = set(got.splitlines())
    lost = [
        line
        for line in configuration.splitlines()
        if line.startswith("CONFIG_") and line not in lines
    ]
    if lost:
        raise VmError(
            f"the kernel's configuration does not take {', '.join(lost)}: kernel/config needs what "
            "they depend on"
        )


def run_command(command: list[str], folder: Path) -> str:
    """Run a command in a folder, and return what it said.

    Raises
    ------
    VmError
        When it does not start, or fails; with the end of what it said.
    """
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, encoding="utf-8", errors="replace"
        )
    except OSError as error:
        raise VmError(f"{command[0]} does not start: {error}") from error
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
        raise VmError(f"{' '.join(command)} ended with {done.returncode}:\n{said}")
    return done.stdout
