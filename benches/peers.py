"""Build allocators that Debian 12 does not have, from the sources that their Rust crates carry.

They are in ``target/peers``; what is there already is not built again.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "target" / "peers"
CRATES = {"libmimalloc-sys": "0.1.49", "snmalloc-sys": "0.7.6"}
COMMON = ["-O3", "-DNDEBUG", "-w", "-fPIC", "-shared", "-pthread", "-fno-builtin-malloc"]
COMMON += ["-ftls-model=initial-exec"]
MIMALLOC = FOLDER / "sources" / "libmimalloc-sys" / "c_src" / "mimalloc" / "v3"
SNMALLOC = FOLDER / "sources" / "snmalloc-sys" / "upstream" / "src"
# How the crates' own builds and the projects' CMake files compile them for preloading.
COMMANDS: dict[str, list[str | Path]] = {
    "mimalloc 3": [
        *("cc", *COMMON, "-fvisibility=hidden", "-DMI_SHARED_LIB", "-DMI_SHARED_LIB_EXPORT"),
        *("-DMI_MALLOC_OVERRIDE", "-I", MIMALLOC / "include", MIMALLOC / "src" / "static.c"),
    ],
    "snmalloc": [
        *("g++", *COMMON, "-std=c++20", "-mcx16", "-DSNMALLOC_USE_WAIT_ON_ADDRESS=1"),
        *("-I", SNMALLOC, SNMALLOC / "snmalloc" / "override" / "malloc.cc"),
        *(SNMALLOC / "snmalloc" / "override" / "new.cc", "-latomic"),
    ],
}
# The same with the projects' own checks, as they name them.
HARDENED = {"mimalloc 3": "-DMI_SECURE=4", "snmalloc": "-DSNMALLOC_CHECK_CLIENT"}


def sources() -> None:
    """Put the crates' sources into their folder."""
    folder = FOLDER / "sources"
    if all((folder / crate / "Cargo.toml").exists() for crate in CRATES):
        return
    with tempfile.TemporaryDirectory() as name:
        crate = Path(name)
        (crate / "src").mkdir()
        (crate / "src" / "lib.rs").touch()
        wanted = "\n".join(f'{name} = "={version}"' for name, version in CRATES.items())
        head = '[package]\nname = "peers"\nversion = "0.0.0"\n[dependencies]\n'
        (crate / "Cargo.toml").write_text(f"{head}{wanted}\n")
        command = ["cargo", "vendor", "--quiet", str(folder)]
        subprocess.run(command, cwd=crate, check=True, stdout=subprocess.DEVNULL)


def built(hardened: bool = False) -> dict[str, Path]:
    """Build what is missing; libraries to preload, by name."""
    ending, said = ("-hardened", ", hardened") if hardened else ("", "")
    libraries = {name: FOLDER / f"lib{name.replace(' ', '')}{ending}.so" for name in COMMANDS}
    for name, library in libraries.items():
        if library.exists():
            continue
        FOLDER.mkdir(parents=True, exist_ok=True)
        print(f"building {name}{said}", file=sys.stderr)
        sources()
        part = library.with_suffix(".part")
        more = [HARDENED[name]] if hardened else []
        subprocess.run([*COMMANDS[name], *more, "-o", part], check=True)
        part.rename(library)
    return {f"{name}{said}": library for name, library in libraries.items()}


if __name__ == "__main__":
    for name, library in {**built(), **built(hardened=True)}.items():
        print(f"{name}: {library}")
