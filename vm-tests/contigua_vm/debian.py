"""Packages of Debian's, fetched with apt and unpacked, not installed.

Each fetch has an apt configuration of its own, so that the host's lists and sources stay as they
are, and signatures are checked against the archive's keys as always.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
SECURITY = "http://deb.debian.org/debian-security"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def apt_command(suites: Iterable[tuple[str, str]], work: Path) -> list[str]:
    """Return how a command of apt-get's for some suites begins, with a folder for its files.

    It believes that nothing is installed.
    """
    sources = work / "sources.list"
    sources.write_text(
        "".join(
            f"deb [signed-by={KEYS} check-valid-until=no] {base} {suite} main\n"
            for base, suite in suites
        )
    )
    for each in ("lists/partial", "archives/partial", "empty"):
        (work / each).mkdir(parents=True)
    (work / "status").touch()
    options = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": work / "empty",
        "Dir::State::Lists": work / "lists",
        "Dir::State::status": work / "status",
        "Dir::Cache": work,
        "Acquire::Languages": "none",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
    }
    return ["apt-get", *(f"-o{key}={value}" for key, value in options.items())]


def run(command: list[str], folder: Path) -> str:
    """Run a command in a folder, and return what it said.

    Raises
    ------
    OSError, subprocess.SubprocessError
        When it does not start, or fails.
    """
    done = subprocess.run(
        command, cwd=folder, check=True, capture_output=True, encoding="utf-8", timeout=600
    )
    return done.stdout
