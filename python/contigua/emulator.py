"""A QEMU that loads plugins, built from Debian's source package into the user's cache.

Debian's own ``qemu-user`` is a static program since Debian 13, which can load nothing. The source
is fetched with apt, which checks it: the archive's keys sign the lists, and the lists have the
files' SHA-256. What was built lies in a folder of its own with QEMU's licence and a note of the
exact source and how it was configured.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from contigua.errors import ContiguaError

MIRROR = "http://deb.debian.org/debian"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: Debian 13, whose QEMU is 10.0.
SUITE = "trixie"
#: The emulator for x86-64 programs, as QEMU's build calls it.
PROGRAM = "qemu-x86_64"
#: QEMU's build system, in a version that QEMU 10.0 and 10.2 accept.
MESON = (
    "meson==1.9.0 --hash=sha256:45e51ddc41e37d961582d06e78c48e0f9039011587f3495c4d6b0781dad92357\n"
)
#: Of QEMU's configure script.
OPTIONS = (
    "--target-list=x86_64-linux-user",
    "--enable-plugins",
    "--without-default-features",
    "--disable-system",
    "--disable-tools",
    "--disable-docs",
    "--disable-install-blobs",
    "--disable-download",
)
#: Commands that a build takes, and Debian's packages that have them.
COMMANDS = {
    "apt-get": "apt",
    "dpkg-source": "dpkg-dev",
    "cc": "gcc",
    "ninja": "ninja-build",
    "pkg-config": "pkg-config",
}
#: Lines of a failed step's output that are shown.
SHOWN = 5
STEP = re.compile(r"\[(\d+)/(\d+)\]")


class EmulatorError(ContiguaError):
    """QEMU cannot be built; the message says why and what to do."""


@dataclass(frozen=True)
class Source:
    """A source package of QEMU's, unpacked with Debian's patches."""

    version: str
    folder: Path
    #: Its files as they were fetched.
    files: tuple[Path, ...]

    @property
    def upstream(self) -> str:
        """QEMU's own version, such as 10.0.13."""
        return (self.folder / "VERSION").read_text().strip()


def cache_folder() -> Path:
    """Return the folder of the user's cache that has QEMUs, one for each version."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "contigua" / "qemu"


def missing_packages() -> list[str]:
    """Return Debian's packages without which nothing can be built here."""
    missing = [package for command, package in COMMANDS.items() if shutil.which(command) is None]
    if not Path("/usr/include/stdio.h").exists():
        missing.append("libc6-dev")
    if shutil.which("pkg-config") is None or _fails(["pkg-config", "--exists", "glib-2.0"]):
        missing.append("libglib2.0-dev")
    if not KEYS.exists():
        missing.append("debian-archive-keyring")
    if _fails([sys.executable, "-c", "import ensurepip"]):
        missing.append("python3-venv")
    return missing


def build(
    suite: str = SUITE,
    package_version: str | None = None,
    progress: Callable[[str, float], None] = lambda *_: None,
) -> Path:
    """Build QEMU's user mode with plugins, and return the program in the cache.

    Parameters
    ----------
    suite
        The release of Debian's whose source package is taken.
    package_version
        The package's version, if it is not to be the suite's newest.
    progress
        Told each step, and how much of it is done (0 to 1).

    Raises
    ------
    EmulatorError
        When something is missing, cannot be fetched, or does not build.
    """
    if missing := missing_packages():
        packages = " ".join(missing)
        raise EmulatorError(f"building QEMU takes more; as root, run: apt-get install {packages}")
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache), tempfile.TemporaryDirectory(dir=cache, prefix="build-") as work:
        log = cache / "build.log"
        with log.open("wb") as output:
            steps = _Steps(Path(work), log, output.fileno())
            progress(f"fetching QEMU's source from Debian {suite}", 0.0)
            source = _fetch(steps, suite, package_version)
            progress(f"configuring QEMU {source.upstream}", 0.0)
            folder = _configure(steps, source)
            label = f"building QEMU {source.upstream}"
            progress(label, 0.0)
            steps.run(["ninja", "-C", str(folder), PROGRAM], lambda done: progress(label, done))
        program = folder / PROGRAM
        _check(program)
        return _install(program, source, cache)


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class _Steps:
    """Runs the commands of a build, whose output goes into a log."""

    work: Path
    log: Path
    output: int

    def run(self, command: list[str], progress: Callable[[float], None] = lambda _: None) -> None:
        """Run a command in the work folder.

        Raises
        ------
        EmulatorError
            When it does not start, or fails.
        """
        try:
            process = subprocess.Popen(
                command,
                cwd=self.work,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise EmulatorError(f"{command[0]}: {error.strerror}") from error
        last: list[str] = []
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                os.write(self.output, line)
                text = line.decode(errors="replace").strip()
                last = [*last[1 - SHOWN :], text] if text else last
                if found := STEP.match(text):
                    progress(int(found[1]) / int(found[2]))
        if process.returncode != 0:
            said = "\n".join(last)
            raise EmulatorError(
                f"building QEMU: {Path(command[0]).name} failed; all it said is in {self.log}, "
                f"and at last:\n{said}"
            )


def _fetch(steps: _Steps, suite: str, package_version: str | None) -> Source:
    sources = steps.work / "sources.list"
    sources.write_text(f"deb-src [signed-by={KEYS}] {MIRROR} {suite} main\n")
    for each in ("lists/partial", "archives/partial", "empty"):
        (steps.work / each).mkdir(parents=True)
    options = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": steps.work / "empty",
        "Dir::State::Lists": steps.work / "lists",
        "Dir::Cache": steps.work,
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "",
    }
    apt = ["apt-get", "-q", *(f"-o{key}={value}" for key, value in options.items())]
    steps.run([*apt, "update", "--error-on=any"])
    package = "qemu" if package_version is None else f"qemu={package_version}"
    steps.run([*apt, "source", "--only-source", package])
    described = list(steps.work.glob("qemu_*.dsc"))
    unpacked = [path.parent for path in steps.work.glob("qemu-*/VERSION")]
    if len(described) != 1 or len(unpacked) != 1:
        raise EmulatorError(f"no source package of QEMU in {suite} of {MIRROR}")
    found = re.search(r"^Version: (\S+)$", described[0].read_text(), re.MULTILINE)
    return Source(
        version=found[1] if found else described[0].stem,
        folder=unpacked[0],
        files=tuple(sorted(path for path in steps.work.glob("qemu_*") if path.is_file())),
    )


def _configure(steps: _Steps, source: Source) -> Path:
    environment = steps.work / "venv"
    python = environment / "bin" / "python"
    steps.run([sys.executable, "-m", "venv", str(environment)])
    requirements = steps.work / "requirements.txt"
    requirements.write_text(MESON)
    install = ["-m", "pip", "install", "--disable-pip-version-check", "--require-hashes", "-r"]
    steps.run([str(python), *install, str(requirements)])
    folder = source.folder / "build"
    folder.mkdir(exist_ok=True)
    configure = [str(source.folder / "configure"), *OPTIONS, f"--python={python}"]
    # It configures the folder that it is in.
    steps.run(["env", "-C", str(folder), *configure])
    return folder


def _check(program: Path) -> None:
    ran = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    if not any(line.startswith("-plugin") for line in ran.stdout.splitlines()):
        raise EmulatorError("the QEMU that was built loads no plugins; build another version")


def _install(program: Path, source: Source, cache: Path) -> Path:
    """Move what was built to its place, whole or not at all."""
    place = cache / source.upstream
    with tempfile.TemporaryDirectory(dir=cache, prefix="new-") as folder:
        new = Path(folder) / "new"
        new.mkdir()
        shutil.copy(program, new / PROGRAM)
        for licence in ("COPYING", "COPYING.LIB", "LICENSE"):
            shutil.copy(source.folder / licence, new / licence)
        shutil.copytree(source.folder / "debian" / "patches", new / "patches")
        (new / "SOURCE").write_text(_provenance(source))
        # Where that fails, the program is larger, but as good.
        _fails(["strip", str(new / PROGRAM)])
        if place.exists():
            place.rename(Path(folder) / "old")
        new.rename(place)
    return place / PROGRAM


def _provenance(source: Source) -> str:
    files = "\n".join(
        f"  {hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in source.files
    )
    return (
        f"QEMU {source.upstream}, user mode for x86-64 programs, with plugins.\n"
        "Licence: GPL-2.0-only and others compatible with it; see COPYING and LICENSE.\n\n"
        f"Source: Debian's package qemu {source.version}, {MIRROR}/pool/main/q/qemu/\n"
        f"Files and their SHA-256, as the archive's signed lists have them:\n{files}\n\n"
        "Patches: those of the package, in patches/, in the order of patches/series; no others.\n"
        f"Configured with: {' '.join(OPTIONS)}\n"
    )


def _fails(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode != 0
    except OSError:
        return True
