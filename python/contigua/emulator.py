"""A QEMU that loads plugins: carried by the wheel, or built from Debian's source package.

Debian's own ``qemu-user`` is a static program since Debian 13, which can load nothing. The source
is fetched with apt, which checks it: the archive's keys sign the lists, and the lists have the
files' SHA-256. What was built lies in a folder of its own with QEMU's licence and a note of the
exact source and how it was configured.

A build for a wheel is *portable*: it takes nothing but the C library from where it runs, and the
source of all that is linked into it is kept, to be published beside the wheel.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shlex
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
#: Architectures whose programs can be run.
ARCHITECTURES = ("x86_64", "aarch64")
#: The emulator for x86-64 programs, as QEMU's build calls it; others are called alike.
PROGRAM = "qemu-x86_64"
#: QEMU's build system, in a version that QEMU 10.0 and 10.2 accept.
MESON = (
    "meson==1.9.0 --hash=sha256:45e51ddc41e37d961582d06e78c48e0f9039011587f3495c4d6b0781dad92357\n"
)
#: Of QEMU's configure script, beside what is to be emulated.
OPTIONS = (
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
#: glib's functions that the plugin asks for, which must be found in a portable build.
EXPORTED = ("g_byte_array_new", "g_byte_array_free")
PORTABLE_OPTIONS = (
    "--extra-ldflags="
    + " ".join(f"-Wl,-u,{name} -Wl,--export-dynamic-symbol={name}" for name in EXPORTED),
)
#: Libraries that a portable build is linked with, in the linker's order, and their packages. QEMU's
#: user mode uses no regular expressions, for which glib needs another library; zlib has the
#: checksums of aarch64.
LIBRARIES = {"gmodule-2.0": "libglib2.0-dev", "glib-2.0": "libglib2.0-dev", "z": "zlib1g-dev"}
#: Debian's names of architectures, by those of their compilers.
DEBIAN = {"aarch64-linux-gnu": "arm64", "x86_64-linux-gnu": "amd64"}
#: Packages that QEMU looks up with pkg-config.
MODULES = ("glib-2.0", "gmodule-no-export-2.0", "zlib")
#: Names the QEMU that an architecture's programs run with; the engine reads it, too.
VARIABLES = {"x86_64": "CONTIGUA_QEMU", "aarch64": "CONTIGUA_QEMU_AARCH64"}
#: Has the QEMUs of a wheel, in a folder of their version; other installations have none.
CARRIED = Path(__file__).parent / "carried"
#: Beside a portable build: the source of all of it.
SOURCES = "sources"
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


def portable_folder(host: str = platform.machine()) -> Path:
    """Return the folder of the user's cache that has QEMUs for wheels; runs do not look there.

    Parameters
    ----------
    host
        The processor that they are to run on.
    """
    name = "carried" if host == platform.machine() else f"carried-{host}"
    return cache_folder().with_name(name)


def use_carried() -> None:
    """Let programs run with the wheel's QEMUs, unless the user chose one or built a newer one."""
    for architecture, variable in VARIABLES.items():
        if os.environ.get(variable):
            continue
        carried = _builds(CARRIED, architecture)
        if carried and max(carried) > max(_builds(cache_folder(), architecture), default=()):
            os.environ[variable] = str(carried[max(carried)])


def _builds(folder: Path, architecture: str) -> dict[tuple[int, ...], Path]:
    """Return the QEMUs of a folder that may be started, by their versions."""
    found = {}
    try:
        for program in folder.glob(f"*/qemu-{architecture}"):
            numbers = program.parent.name.split(".")
            if all(number.isdecimal() for number in numbers) and os.access(program, os.X_OK):
                found[tuple(map(int, numbers))] = program
    except OSError:  # what cannot be read has none
        return {}
    return found


def _tools(host: str) -> str:
    """Return what the names of a host's compiler and its tools begin with."""
    return "" if host == platform.machine() else f"{host}-linux-gnu-"


def missing_packages(host: str = platform.machine()) -> list[str]:
    """Return Debian's packages without which nothing can be built here for a host."""
    missing = [package for command, package in COMMANDS.items() if shutil.which(command) is None]
    if not Path("/usr/include/stdio.h").exists():
        missing.append("libc6-dev")
    tools = _tools(host)
    # Another processor's has a file of its own; `_static_libraries` asks for it.
    if not tools and _fails(["pkg-config", "--exists", "glib-2.0"]):
        missing.append("libglib2.0-dev")
    if not KEYS.exists():
        missing.append("debian-archive-keyring")
    if _fails([sys.executable, "-c", "import ensurepip"]):
        missing.append("python3-venv")
    if tools and shutil.which(f"{tools}gcc") is None:
        missing.append(f"gcc-{tools.removesuffix('-')}")
    return missing


def build(
    suite: str = SUITE,
    package_version: str | None = None,
    progress: Callable[[str, float], None] = lambda *_: None,
    portable: Path | None = None,
    architecture: str = ARCHITECTURES[0],
    host: str = platform.machine(),
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
    portable
        A folder to build a portable one in, rather than in the cache.
    architecture
        One of :data:`ARCHITECTURES`: of the programs that it is to run.
    host
        The processor that it is to run on; another one takes a cross compiler.

    Raises
    ------
    EmulatorError
        When something is missing, cannot be fetched, or does not build.
    """
    if missing := missing_packages(host):
        packages = " ".join(missing)
        raise EmulatorError(f"building QEMU takes more; as root, run: apt-get install {packages}")
    cache = portable or cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache), tempfile.TemporaryDirectory(dir=cache, prefix="build-") as work:
        log = cache / "build.log"
        with log.open("wb") as output:
            steps = _Steps(Path(work), log, output.fileno())
            progress(f"fetching QEMU's source from Debian {suite}", 0.0)
            source = _fetch(steps, suite, package_version)
            progress(f"configuring QEMU {source.upstream}", 0.0)
            libraries = _fetch_libraries(steps) if portable else ()
            options = _options(architecture, _tools(host))
            folder = _configure(steps, source, options, _tools(host), portable is not None)
            label = f"building QEMU {source.upstream}"
            progress(label, 0.0)
            name = f"qemu-{architecture}"
            steps.run(["ninja", "-C", str(folder), name], lambda done: progress(label, done))
        program = folder / name
        _check(program)
        return _install(program, source, cache, libraries, _tools(host))


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


def _apt(steps: _Steps, *origins: str) -> list[str]:
    """Read the lists of some origins' source packages, and return the command that uses them."""
    sources = steps.work / "sources.list"
    sources.write_text("".join(f"deb-src [signed-by={KEYS}] {each} main\n" for each in origins))
    for each in ("lists/partial", "archives/partial", "empty"):
        (steps.work / each).mkdir(parents=True, exist_ok=True)
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
    return apt


def _fetch_libraries(steps: _Steps) -> tuple[Path, ...]:
    """Fetch the source of the libraries that are linked in, in the versions of this computer."""
    suite = _said(["sh", "-c", ". /etc/os-release && echo $VERSION_CODENAME"])
    apt = _apt(steps, f"{MIRROR} {suite}", f"{MIRROR}-security {suite}-security")
    names = "${source:Package}=${source:Version}\n"
    for package in sorted(set(LIBRARIES.values())):
        source = _said(["dpkg-query", "-W", "-f", names, package]).splitlines()[0]
        steps.run([*apt, "source", "--download-only", "--only-source", source])
    return tuple(sorted(path for path in steps.work.glob("*_*.*") if "qemu" not in path.name))


def _static_libraries(steps: _Steps, tools: str) -> Path:
    """Make a folder in which pkg-config finds static libraries only."""
    compiler = f"{tools}gcc" if tools else "cc"
    triplet = tools.removesuffix("-")
    ask = ["env", f"PKG_CONFIG_LIBDIR=/usr/lib/{triplet}/pkgconfig"] if tools else []
    ask.append("pkg-config")
    folder = steps.work / "static"
    folder.mkdir()
    for library, package in LIBRARIES.items():
        archive = Path(_said([compiler, f"-print-file-name=lib{library}.a"]))
        if not archive.is_absolute():
            package += f":{DEBIAN[triplet]}" if tools else ""
            raise EmulatorError(
                f"lib{library}.a is missing; as root, run: apt-get install {package}"
            )
        (folder / archive.name).symlink_to(archive)
    linked = " ".join(f"-l{library}" for library in LIBRARIES)
    for module in MODULES:
        (folder / f"{module}.pc").write_text(
            f"Name: {module}\nDescription: static\n"
            f"Version: {_said([*ask, '--modversion', module])}\n"
            f"Cflags: {_said([*ask, '--cflags', module])}\n"
            f"Libs: -L{folder} {linked} -lm -pthread\n"
        )
    return folder


def _fetch(steps: _Steps, suite: str, package_version: str | None) -> Source:
    apt = _apt(steps, f"{MIRROR} {suite}")
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


def _options(architecture: str, tools: str) -> list[str]:
    """Return what QEMU's configure script is told for programs of an architecture."""
    cross = [f"--cross-prefix={tools}"] if tools else []
    return [f"--target-list={architecture}-linux-user", *cross, *OPTIONS]


def _configure(
    steps: _Steps, source: Source, options: list[str], tools: str, is_portable: bool
) -> Path:
    environment = steps.work / "venv"
    python = environment / "bin" / "python"
    steps.run([sys.executable, "-m", "venv", str(environment)])
    requirements = steps.work / "requirements.txt"
    requirements.write_text(MESON)
    install = ["-m", "pip", "install", "--disable-pip-version-check", "--require-hashes", "-r"]
    steps.run([str(python), *install, str(requirements)])
    folder = source.folder / "build"
    folder.mkdir(exist_ok=True)
    configure = [str(source.folder / "configure"), *options, f"--python={python}"]
    settings = []
    if is_portable:
        # For another processor nothing else: this one's libraries would be found.
        where = "PKG_CONFIG_LIBDIR" if tools else "PKG_CONFIG_PATH"
        settings = [f"{where}={_static_libraries(steps, tools)}", "PKG_CONFIG=pkg-config"]
        configure += PORTABLE_OPTIONS
    # It configures the folder that it is in.
    steps.run(["env", "-C", str(folder), *settings, *configure])
    return folder


def _check(program: Path) -> None:
    # It may be for another processor, and not start here.
    if "qemu_plugin_register_vcpu_init_cb" not in _said(["readelf", "-sW", str(program)]):
        raise EmulatorError("the QEMU that was built loads no plugins; build another version")


def _install(
    program: Path,
    source: Source,
    cache: Path,
    libraries: tuple[Path, ...] = (),
    tools: str = "",
) -> Path:
    """Move what was built to its place, whole or not at all, beside others of its version."""
    place = cache / source.upstream
    with tempfile.TemporaryDirectory(dir=cache, prefix="new-") as folder:
        new = Path(folder) / "new"
        new.mkdir()
        for other in place.glob("qemu-*"):
            if other.name != program.name:
                shutil.copy(other, new / other.name)
                note = place / _note(other.name)
                shutil.copy(note, new / note.name)
        shutil.copy(program, new / program.name)
        for licence in ("COPYING", "COPYING.LIB", "LICENSE"):
            shutil.copy(source.folder / licence, new / licence)
        shutil.copytree(source.folder / "debian" / "patches", new / "patches")
        (new / _note(program.name)).write_text(_provenance(program.name, source, libraries, tools))
        if libraries:
            for package in set(LIBRARIES.values()):
                shutil.copy(f"/usr/share/doc/{package}/copyright", new / f"{package}.copyright")
            (new / SOURCES).mkdir()
            for path in (*source.files, *libraries):
                shutil.copy(path, new / SOURCES / path.name)
        # Where that fails, the program is larger, but as good.
        _fails([f"{tools}strip", str(new / program.name)])
        if place.exists():
            place.rename(Path(folder) / "old")
        new.rename(place)
    return place / program.name


def _note(program: str) -> str:
    """Name the file that says where an emulator comes from."""
    return "SOURCE" if program == PROGRAM else f"SOURCE.{program}"


def _provenance(program: str, source: Source, libraries: tuple[Path, ...], tools: str) -> str:
    architecture = program.removeprefix("qemu-")
    options = _options(architecture, tools)
    linked = ""
    if libraries:
        options += PORTABLE_OPTIONS
        linked = (
            "\nLinked with glib (LGPL-2.1-or-later) and zlib (Zlib), whose terms are in "
            "*.copyright. Their\nsource, Debian's packages:\n"
            f"{_hashes(libraries)}\n"
            "All these files are published beside the wheel that carries this program.\n"
        )
    return (
        f"QEMU {source.upstream}, user mode for {architecture} programs, with plugins.\n"
        "Licence: GPL-2.0-only and others compatible with it; see COPYING and LICENSE.\n\n"
        f"Source: Debian's package qemu {source.version}, {MIRROR}/pool/main/q/qemu/\n"
        "Files and their SHA-256, as the archive's signed lists have them:\n"
        f"{_hashes(source.files)}\n\n"
        "Patches: those of the package, in patches/, in the order of patches/series; no others.\n"
        f"Configured with: {shlex.join(options)}\n{linked}"
    )


def _hashes(files: tuple[Path, ...]) -> str:
    return "\n".join(
        f"  {hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files
    )


def _said(command: list[str]) -> str:
    """Return what a command prints.

    Raises
    ------
    EmulatorError
        When it fails.
    """
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise EmulatorError(f"building QEMU: {shlex.join(command)} failed") from error
    return ran.stdout.strip()


def _fails(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode != 0
    except OSError:
        return True
