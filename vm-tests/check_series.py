#!/usr/bin/env python3
"""Check the form of ``kernel/series``: git takes each patch, each builds, and tools find nothing.

    vm-tests/check_series.py [--only-form]

checkpatch in its strict form, the compiler's W=1 and sparse on what the series touches, with
CONFIG_CONTIGUITAS and, at the end, without it. With --only-form nothing is compiled.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from contigua_vm import VmError
from contigua_vm.building import run_command
from contigua_vm.series import CONFIGURATION, patches, series_tree

#: Objects that are built after each patch.
OBJECTS = (
    *("compaction", "gup", "memory_hotplug", "migrate", "mm_init", "page_alloc", "page_reporting"),
    "vmscan",
)
#: Findings of sparse in files that are the series'; it says much of the kernel's own headers.
OURS = re.compile(r"contiguitas\w*\.[ch]:\d+:\d+: (?:warning|error)")
#: The small configuration, and what else the series touches.
MORE = (
    "CONFIG_ACPI=y\nCONFIG_MEMORY_HOTPLUG=y\nCONFIG_MEMORY_HOTREMOVE=y\nCONFIG_PAGE_REPORTING=y\n"
)


def say(text: str) -> None:
    """Tell what happens."""
    print(text, flush=True)


def check_form(tree: Path) -> list[str]:
    """Have checkpatch judge each patch."""
    problems = []
    # Who sends a patch signs it.
    command = ["perl", "scripts/checkpatch.pl", "--strict", "--terse", "--no-signoff"]
    command += ["--show-types", "--quiet"]
    for patch in patches():
        done = subprocess.run([*command, str(patch)], cwd=tree, capture_output=True, text=True)
        said = [line for line in done.stdout.splitlines() if patch.name in line]
        say(f"checkpatch {patch.name}: {len(said)} findings")
        problems += said
    return problems


def build(tree: Path, objects: Path, options: list[str]) -> str:
    """Build what the series touches and return what the compiler said."""
    names = [f"mm/{name}.o" for name in OBJECTS]
    names += [
        f"mm/{path.stem}.o" for path in (tree / "mm").glob("contiguitas.c") if "off" not in options
    ]
    if (tree / "mm/tests/contiguitas_kunit.c").exists() and "off" not in options:
        names.append("mm/tests/contiguitas_kunit.o")
    flags = [option for option in options if option != "off"]
    make = ["make", "-C", str(tree), f"O={objects}", "-s", f"-j{os.cpu_count() or 1}"]
    done = subprocess.run([*make, *flags, *names], capture_output=True, text=True)
    if done.returncode != 0:
        raise VmError(f"it does not build:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout + done.stderr


def configure(tree: Path, objects: Path, more: str) -> None:
    """Configure a folder of objects: the series' configuration, and more lines."""
    make = ["make", "-C", str(tree), f"O={objects}", "-s"]
    run_command([*make, "tinyconfig"], objects)
    with tempfile.NamedTemporaryFile("w", suffix=".config") as wanted:
        wanted.write(CONFIGURATION.read_text() + more)
        wanted.flush()
        merge = [str(tree / "scripts/kconfig/merge_config.sh"), "-O", str(objects), "-m"]
        run_command([*merge, str(objects / ".config"), wanted.name], tree)
    run_command([*make, "olddefconfig"], objects)


def check_builds(tree: Path, work: Path) -> list[str]:
    """Apply the patches one by one with git, and build after each."""
    problems = []
    pristine = tree / ".pristine"
    touched = work / "touched"
    shutil.copytree(pristine, touched)
    for mark in touched.rglob("*.new"):
        mark.unlink()
    git = ["git", "-c", "user.name=check", "-c", "user.email=check@localhost"]
    run_command([*git, "init", "-q"], touched)
    run_command([*git, "add", "-Af", "."], touched)
    run_command([*git, "commit", "-qm", "as it comes"], touched)
    objects = tree.with_name(f"{tree.name}-check")
    objects.mkdir(exist_ok=True)
    for patch in patches():
        run_command([*git, "am", "-q", str(patch)], touched)
        for path in touched.rglob("*"):
            name = path.relative_to(touched)
            if path.is_file() and name.parts[0] != ".git":
                old = tree / name
                if not old.exists() or old.read_bytes() != path.read_bytes():
                    shutil.copyfile(path, old)
        for new in ("mm/contiguitas.c", "mm/contiguitas.h", "mm/tests/contiguitas_kunit.c"):
            if not (touched / new).exists():
                (tree / new).unlink(missing_ok=True)
        configure(tree, objects, MORE)
        said = build(tree, objects, ["W=1"])
        say(f"{patch.name}: git takes it, and it builds{' with warnings' if said.strip() else ''}")
        problems += said.splitlines()
    found = [
        line for line in build(tree, objects, ["C=2", "W=1"]).splitlines() if OURS.search(line)
    ]
    say(f"sparse: {len(found)} findings in the series' files")
    problems += found
    configure(tree, objects, MORE + "# CONFIG_CONTIGUITAS is not set\n")
    said = build(tree, objects, ["W=1", "off"])
    say(f"without CONFIG_CONTIGUITAS: builds{' with warnings' if said.strip() else ''}")
    return problems + said.splitlines()


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only-form", action="store_true", help="compile nothing")
    arguments = parser.parse_args()
    try:
        tree = series_tree(say)
        problems = check_form(tree)
        if not arguments.only_form:
            with tempfile.TemporaryDirectory(prefix="contigua-series-") as name:
                problems += check_builds(tree, Path(name))
                series_tree(say)
    except VmError as error:
        print(f"check_series: {error}", file=sys.stderr)
        return 1
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
