"""Requirements on the host."""

from __future__ import annotations

import platform
import shutil

#: Commands, and the Debian packages that have them.
COMMANDS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "cc": "gcc",
    "setpriv": "util-linux",
}


def missing_requirement() -> str | None:
    """Say what is missing for a virtual machine, and how to get it; ``None`` if nothing is."""
    if platform.machine() != "x86_64":
        return f"virtual machines are tested on x86_64 only, and this is {platform.machine()}"
    for command, package in COMMANDS.items():
        if shutil.which(command) is None:
            return f"{command} is missing; as root, run: apt-get install {package}"
    return None
