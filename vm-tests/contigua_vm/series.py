"""The series of ``kernel/series``: applied to the newest source, built small, and run.

A guest of it runs one script from its initramfs, says on its only serial line what happens, and
ends. It needs neither PCI nor ACPI, so that the kernel is built in a fraction of the time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from contigua_vm.building import check_configuration, missing_for_build, run_command
from contigua_vm.errors import Unavailable, VmError
from contigua_vm.guest import DEATH, ONE, PROCESSOR
from contigua_vm.initramfs import Initramfs
from contigua_vm.kernels import cache_folder, source
from contigua_vm.programs import CHECKOUT

#: The kernel that the patches are for.
VERSION = "7.3"
SERIES = CHECKOUT / "kernel" / "series"
CONFIGURATION = SERIES / "config"
#: Its program among the kernel's own tests of memory management.
SELFTEST = Path("tools/testing/selftests/mm/contiguitas.c")
#: Message of a kernel that has found a fault, and goes on.
COMPLAINT = re.compile(r"WARNING: |INFO: task")
#: First program of the guest; the script follows.
INIT = b"""#!/bin/sh
/bin/busybox mkdir -p /bin /usr/bin /sbin /usr/sbin
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev 2>/dev/null
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t debugfs debug /sys/kernel/debug
mount -t tmpfs -o size=64m tmp /tmp
mount -t tmpfs -o size=16m run /run
ulimit -n 1000000
exec >/dev/ttyS0 2>&1
echo -1000 >/proc/self/oom_score_adj
echo "@begin"
sh /script </dev/null
echo "@end $?"
sleep 1
reboot -f
"""


@dataclass(frozen=True)
class Answer:
    """Output of a guest's script, and the kernel's on the same line."""

    code: int
    text: str
    log: str

    def number(self, name: str) -> int:
        """Return the number behind ``name=`` in what the script said.

        Raises
        ------
        VmError
            When there is none.
        """
        found = re.search(rf"^{re.escape(name)}=(-?\d+)\s*$", self.text, re.MULTILINE)
        if found is None:
            raise VmError(f"the guest did not say {name}=: {self.text[-2000:]}")
        return int(found[1])


def patches() -> list[Path]:
    """Return the series' patches in their order, without the cover letter."""
    return [path for path in sorted(SERIES.glob("*.patch")) if not path.name.startswith("0000-")]


def series_tree(progress: Callable[[str], None] = lambda _: None) -> Path:
    """Return a tree of the newest source with the series applied.

    Raises
    ------
    VmError
        When the source is not available, or a patch does not apply.
    """
    archive = source(VERSION)
    tree = cache_folder() / "trees" / f"{VERSION}-series"
    pristine = tree / ".pristine"
    stamp = tree / ".unpacked-from"
    if not stamp.exists() or stamp.read_text() != archive.name:
        progress(f"unpacking {archive.name}")
        shutil.rmtree(tree, ignore_errors=True)
        shutil.rmtree(tree.with_name(f"{tree.name}-objects"), ignore_errors=True)
        tree.mkdir(parents=True)
        run_command(["tar", "-xf", str(archive), "--strip-components=1", "-C", str(tree)], tree)
        pristine.mkdir()
        stamp.write_text(archive.name)
    touched = sorted({name for path in patches() for name in _files_of(path)})
    for name in touched:
        kept = pristine / name
        if (tree / name).exists() and not kept.exists() and not (pristine / f"{name}.new").exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, kept)
        elif not (tree / name).exists():
            mark = pristine / f"{name}.new"
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
    with tempfile.TemporaryDirectory(dir=tree.parent, prefix="applying-") as folder:
        fresh = Path(folder)
        shutil.copytree(pristine, fresh, dirs_exist_ok=True)
        for path in patches():
            run_command(["patch", "-p1", "-s", "--no-backup-if-mismatch", "-i", str(path)], fresh)
        # Files that stay the same keep their times, so that little is compiled again.
        for path in fresh.rglob("*"):
            old = tree / path.relative_to(fresh)
            if path.is_dir() or path.suffix == ".new":
                continue
            if not (old.exists() and old.read_bytes() == path.read_bytes()):
                old.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, old)
                shutil.copymode(path, old)
    return tree


def built_series(progress: Callable[[str], None] = lambda _: None) -> Path:
    """Return the image of a kernel with the series from the cache, or build it.

    Raises
    ------
    VmError
        When the source is not available, a patch does not apply, or it does not build.
    """
    missing = missing_for_build()
    if missing is not None:
        raise Unavailable(missing)
    configuration = CONFIGURATION.read_text()
    digest = hashlib.sha256(f"{source(VERSION).name}\n{configuration}".encode())
    for path in patches():
        digest.update(path.read_bytes())
    folder = cache_folder() / "built" / f"{VERSION}-series" / digest.hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (cache_folder() / f"build-{VERSION}-series.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            tree = series_tree(progress)
            objects = tree.with_name(f"{tree.name}-objects")
            objects.mkdir(exist_ok=True)
            make = ["make", "-C", str(tree), f"O={objects}", "-s"]
            progress(f"configuring Linux {VERSION}")
            run_command([*make, "tinyconfig"], objects)
            merge = [str(tree / "scripts/kconfig/merge_config.sh"), "-O", str(objects), "-m"]
            run_command([*merge, str(objects / ".config"), str(CONFIGURATION)], tree)
            run_command([*make, "olddefconfig"], objects)
            check_configuration(configuration, (objects / ".config").read_text())
            progress(f"building Linux {VERSION} with the series, minutes")
            run_command([*make, f"-j{os.cpu_count() or 1}", "bzImage"], objects)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as name:
                new = Path(name) / "kernel"
                new.mkdir()
                shutil.copy(objects / "arch/x86/boot/bzImage", new / "vmlinuz")
                _build_selftest(tree, new / "selftest")
                new.rename(folder)
            for old in folder.parent.iterdir():
                if old != folder and old.is_dir():
                    shutil.rmtree(old)
    return folder / "vmlinuz"


def run_guest(
    image: Path,
    script: str,
    *,
    programs: dict[str, Path] | None = None,
    options: str = "contiguitas=on",
    memory_mib: int = 512,
    processors: int = 1,
    seconds: float = 900,
) -> Answer:
    """Boot the kernel, run a shell script in it, and return what came of it.

    Raises
    ------
    VmError
        When the kernel reports a fault of its own, or the script does not end.
    """
    files = Initramfs(programs={"selftest": image.parent / "selftest", **(programs or {})})
    files.files = {"init": INIT, "script": script.encode()}
    with tempfile.TemporaryDirectory(prefix="contigua-vm-") as name:
        archive = Path(name) / "initramfs"
        archive.write_bytes(files.build())
        words = "console=ttyS0 panic=-1 oops=panic psi=1 quiet loglevel=6 mitigations=off "
        words += f"nokaslr {options}"
        command = ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"]
        command += list(ONE) if processors == 1 else ["-accel", "tcg,thread=multi"]
        command += ["-machine", "pc", "-cpu", PROCESSOR, "-nodefaults", "-display", "none"]
        command += ["-no-reboot", "-smp", str(processors), "-m", f"{memory_mib}M"]
        command += ["-kernel", str(image), "-initrd", str(archive), "-append", words]
        command += ["-serial", "stdio"]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds
            )
        except subprocess.TimeoutExpired as error:
            said = (error.stdout or b"").decode(errors="replace")
            raise VmError(f"the guest had no end in {seconds:.0f} s: {said[-4000:]}") from error
    log = done.stdout.decode(errors="replace").replace("\r", "")
    found = DEATH.search(log) or COMPLAINT.search(log)
    if found is not None:
        raise VmError(f"the kernel said {found[0]!r}:\n{log[found.start() :][:4000]}")
    whole = re.search(r"@begin\n(.*)@end (\d+)", log, re.DOTALL)
    if whole is None:
        raise VmError(f"the guest died: {log[-4000:]}")
    return Answer(int(whole[2]), whole[1], log)


def _files_of(patch: Path) -> list[str]:
    return re.findall(r"^diff --git a/(\S+) b/", patch.read_text(), re.MULTILINE)


def _build_selftest(tree: Path, program: Path) -> None:
    """Build the series' program of the kernel's tests, alone: with a header in the place of those
    that need the kernel's headers installed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = (tree / SELFTEST).read_text()
        (folder / "contiguitas.c").write_text(text)
        (folder / "vm_util.h").write_text(
            "#define FORCE_READ(x) (*(const volatile typeof(x) *)&(x))\n"
        )
        shutil.copy(tree / "tools/testing/selftests/kselftest.h", folder)
        command = ["cc", "-static", "-O2", "-Wall", "-I", str(folder), "-o", str(program)]
        run_command([*command, "contiguitas.c"], folder)
