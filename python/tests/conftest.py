from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUESTS = ROOT / "workloads" / "bin" / "tests"


def has_namespaces() -> bool:
    """Say whether namespaces and mounts can be made here: some containers refuse them to root."""
    script = "mount -t tmpfs none /mnt && mount --bind /proc/version /proc/uptime"
    command = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script]
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def has_user_namespaces() -> bool:
    """Say whether user namespaces can be made here: Linux refuses them in a chroot."""
    try:
        return subprocess.run(["unshare", "--user", "true"], capture_output=True).returncode == 0
    except OSError:
        return False


SHMEM = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


@contextmanager
def shmem_enabled(wanted: str | None = None) -> Iterator[str]:
    """Have this computer's ``shmem_enabled`` for one test alone, changed or as it is."""
    with (Path(tempfile.gettempdir()) / "contigua-shmem-enabled.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = SHMEM.read_text().partition("[")[2].partition("]")[0]
        if wanted in (None, before):
            yield before
            return
        try:
            SHMEM.write_text(wanted)
        except OSError as error:
            pytest.skip(f"takes root, to change shmem_enabled: {error}")
        try:
            yield wanted
        finally:
            SHMEM.write_text(before)


POOL = Path("/proc/sys/vm/nr_hugepages")


@contextmanager
def hugetlb_pages(count: int) -> Iterator[None]:
    """Have at least so many free pages of HugeTLB for one test alone."""
    with (Path(tempfile.gettempdir()) / "contigua-hugetlb.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        free = int(re.findall(r"HugePages_Free: +(\d+)", Path("/proc/meminfo").read_text())[0])
        before = int(POOL.read_text())
        wanted = before + max(0, count - free)
        try:
            if wanted > before:
                POOL.write_text(str(wanted))
            if int(POOL.read_text()) < wanted:
                pytest.skip(f"takes {count} pages of HugeTLB, and memory is too fragmented")
            yield
        except PermissionError as error:
            pytest.skip(f"takes root, to set pages aside: {error}")
        finally:
            if wanted > before and os.geteuid() == 0:
                POOL.write_text(str(before))


#: For tests that attack or starve a command in namespaces of their own.
takes_namespaces = pytest.mark.skipif(
    not has_namespaces(), reason="takes root, and namespaces with mounts"
)


#: For tests that drop privileges, or mount.
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes privileges to drop them")


takes_user_namespaces = pytest.mark.skipif(
    not has_user_namespaces(), reason="takes user namespaces, which a chroot has not"
)


def interrupt(process: subprocess.Popen[str], seconds: float = 30) -> str:
    """Interrupt a process and return what it says on standard error; it does not outlive this."""
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=seconds)[1]
    finally:
        process.kill()


@pytest.fixture
def guest():
    """Path of one of the small programs under workloads/tests."""

    def path(name: str) -> str:
        return str(GUESTS / name)

    return path


@pytest.fixture
def cli():
    """Run the contigua command in a process of its own; with ``only``, in that environment."""

    def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "contigua.cli", *map(str, arguments)]
        inherited = options.pop("only", os.environ)
        environment = dict(inherited) | dict(options.pop("env", {}))
        return subprocess.run(
            command, capture_output=True, text=True, timeout=120, env=environment, **options
        )

    return run
