from __future__ import annotations

import os
import signal
import subprocess
import sys
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
