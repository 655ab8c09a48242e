"""The programs that guests run: the node tools and the workloads, both linked statically."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from contigua_vm.errors import VmError
from contigua_vm.kernels import cache_folder

CHECKOUT = Path(__file__).resolve().parents[2]
WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"
TARGET = "x86_64-unknown-linux-musl"
#: Target of binaries with glibc inside: it needs no compiler that tests do not need already.
GUEST = ("x86_64-unknown-linux-gnu", "-C target-feature=+crt-static")


def build_workloads() -> dict[str, Path]:
    """Build the C programs of ``workloads/`` into the cache and return them by name.

    Raises
    ------
    VmError
        When one does not compile.
    """
    folder = cache_folder() / "workloads"
    folder.mkdir(parents=True, exist_ok=True)
    programs = {}
    for source in sorted(WORKLOADS.glob("*.c")):
        # By content: several checkouts share the cache.
        digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
        program = folder / f"{source.stem}-{digest}"
        if not program.exists():
            new = folder / f".{program.name}-{os.getpid()}"
            command = ["cc", "-static", "-O2", "-Wall", "-Wextra", "-o", str(new), str(source)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise VmError(f"{source.name} does not compile: {done.stderr}")
            new.rename(program)
        programs[source.stem] = program
    return programs


def node_binary() -> Path:
    """Return ``contigua-node`` as a static binary: that of ``make node`` where it is up to date,
    else one that is built now, in a profile that compiles fast.

    Raises
    ------
    VmError
        When it cannot be built; the message says why.
    """
    released = CHECKOUT / "target" / TARGET / "release" / "contigua-node"
    if released.exists() and released.stat().st_mtime >= _last_change():
        return released
    target, flags = GUEST
    folder = CHECKOUT / "target" / "guest"
    command = ["cargo", "build", "--quiet", "--locked", "--profile", "guest", "-p", "contigua-node"]
    command += ["--target", target, "--target-dir", str(folder)]
    environment = os.environ | {"RUSTFLAGS": flags}
    try:
        done = subprocess.run(
            command, cwd=CHECKOUT, capture_output=True, text=True, env=environment
        )
    except OSError as error:
        raise VmError(f"cargo does not start: {error}") from error
    if done.returncode != 0:
        last = "\n".join(done.stderr.splitlines()[-5:])
        raise VmError(f"contigua-node does not build for guests: {last}")
    return folder / target / "guest" / "contigua-node"


def _last_change() -> float:
    sources = [CHECKOUT / "Cargo.toml", CHECKOUT / "Cargo.lock"]
    for pattern in ("*/src/**/*.rs", "*/build.rs", "*/Cargo.toml"):
        sources += (CHECKOUT / "crates").glob(pattern)
    return max(source.stat().st_mtime for source in sources)
