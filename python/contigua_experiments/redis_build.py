"""A redis-server that allocates through the C library's interface.

Debian's is linked with jemalloc, which no other allocator can take the place of. So it is built
once from the distribution's source package and kept in the user's cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from contigua.programs.program import MissingProgramError, ProgramError, find_program

#: Programs that the build needs, and their packages.
TOOLS = {"apt-get": "apt", "make": "make", "cc": "gcc"}
#: Distributions whose source packages are known to do, and the keys of their archives.
KEYS = {
    "Debian": Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    "Ubuntu": Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
}


def cache_folder() -> Path:
    """Return the folder of the user's cache that is ours."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "contigua"


def uses_c_library(server: str | Path) -> bool:
    """Return whether a redis-server allocates through the C library's interface."""
    try:
        said = subprocess.run(
            [server, "--version"], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return "malloc=libc" in said.stdout


def cached_redis() -> Path:
    """Return where our own redis-server is once it is built."""
    return cache_folder() / "redis-libc" / "redis-server"


def find_redis() -> Path | None:
    """Return a redis-server for any allocator that need not be built."""
    if uses_c_library(cached_redis()):
        return cached_redis()
    installed = find_program("redis-server")
    return Path(installed) if installed is not None and uses_c_library(installed) else None


def redis_server() -> Path:
    """Return a redis-server for any allocator: the cache's, the system's, or a new one.

    Raises
    ------
    MissingProgramError
        When there is none; the message says why and what to do.
    """
    there = find_redis()
    if there is not None:
        return there
    cached = cached_redis()
    try:
        with tempfile.TemporaryDirectory(prefix="contigua-redis-") as folder:
            build(Path(folder), cached)
    except (OSError, subprocess.SubprocessError, ProgramError) as error:
        raise MissingProgramError(
            f"no redis-server with the C library's malloc: {_reason(error)}; build one with "
            f"`make MALLOC=libc` and put it at {cached}"
        ) from error
    return cached


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = str(error.stderr or "").strip().splitlines()
        return f"{Path(error.cmd[0]).name}: {lines[-1] if lines else f'status {error.returncode}'}"
    return str(error)


def build(folder: Path, target: Path) -> None:
    """Build redis-server from the distribution's source package, in a folder of its own."""
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise MissingProgramError(f"{tool} is not installed (Debian package {package})")
    archive = fetch_source(folder)
    _run(["tar", "-xf", str(archive), "--strip-components=1"], _made(folder / "redis"))
    make = ["make", f"-j{os.cpu_count() or 1}", "MALLOC=libc", "USE_SYSTEMD=no", "BUILD_TLS=no"]
    _run([*make, "OPTIMIZATION=-O2", "redis-server"], folder / "redis")
    built = folder / "redis" / "src" / "redis-server"
    if not uses_c_library(built):
        raise ProgramError("what was built does not use the C library's malloc")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all, also when two build at a time.
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copy(built, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def fetch_source(folder: Path) -> Path:
    """Fetch redis's source archive with an apt configuration that is thrown away."""
    apt = apt_in(folder)
    (folder / "parts" / "source.sources").write_text(source_list(_configured()))
    _run([*apt, "update"], folder)
    _run([*apt, "source", "--download-only", "redis"], folder)
    archives = sorted(folder.glob("redis_*.orig.tar.*"))
    archives = [one for one in archives if not one.name.endswith(".asc")]
    if not archives:
        raise ProgramError("apt-get fetched no source of redis")
    return archives[0]


def apt_in(folder: Path) -> list[str]:
    """Return an apt-get command line that reads the system's configuration and changes nothing."""
    for name in ("parts", "lists/partial", "cache/archives/partial"):
        _made(folder / name)
    options = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": folder / "parts",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    parts = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
    return ["apt-get", "-q", *parts]


def _configured() -> list[tuple[str, str, str]]:
    """Return the distribution's archives that the system knows: origin, address, release."""
    wanted = "$(ORIGIN)|$(COMPONENT)|$(REPO_URI)|$(RELEASE)"
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", wanted, "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    rows = [line.split("|") for line in said.stdout.splitlines()]
    known = [
        (origin, address, release)
        for origin, component, address, release in (row for row in rows if len(row) == 4)
        if origin in KEYS and component in ("main", "universe")
    ]
    return list(dict.fromkeys(known))


def source_list(archives: list[tuple[str, str, str]]) -> str:
    """Return the file that makes apt look for sources in these archives.

    Raises
    ------
    ProgramError
        When there are none.
    """
    if not archives:
        raise ProgramError("apt knows no archive of Debian or Ubuntu")
    blocks = []
    for origin, address, release in archives:
        lines = ["Types: deb-src", f"URIs: {address}", f"Suites: {release}"]
        lines.append("Components: main" + (" universe" if origin == "Ubuntu" else ""))
        if KEYS[origin].exists():
            lines.append(f"Signed-By: {KEYS[origin]}")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=1200)
