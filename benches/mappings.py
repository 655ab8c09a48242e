"""Compare mappings and huge pages of programs with the native kernel's; write docs/validation.md.

    benches/mappings.py [FOLDER] [PROGRAM...]

Each program runs natively, twice, and simulated, with the same settings of transparent huge pages
and HugeTLB, and without khugepaged. At the end of each of its processes, the kernel's mappings
(`/proc/PID/smaps`, `workloads/tests/smaps_at_exit.c`) and the simulated ones (`contigua run
--smaps`) are kept. FOLDER has them: what is there is not run again.

Takes root, Linux 6.13 or newer, and the programs; those that are missing are named. The computer's
settings are changed while a program runs natively, then they are as before.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from documents import publish, rows
from mapped_programs import DIFFERS, PROGRAMS, Program

from contigua.validation.mappings import (
    HUGE,
    Comparison,
    Mapping,
    as_linux,
    compare,
    read_smaps,
)

ROOT = Path(__file__).parents[1]
AT_EXIT = ROOT / "workloads" / "bin" / "tests" / "smaps_at_exit"
THP = Path("/sys/kernel/mm/transparent_hugepage")
POOL = Path("/proc/sys/vm/nr_hugepages")
#: Seconds after which a program hangs, natively and simulated.
LIMITS = (60, 900)
#: Milliseconds for which khugepaged sleeps: longer than any program runs.
ASLEEP = "86400000"
#: Differing mappings that are shown of a program.
SHOWN = 6
#: Environment of both executions.
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "LC_ALL": "C",
    "PERL_HASH_SEED": "0",
    "PYTHONHASHSEED": "0",
}
DESIGN = """description = "Linux with transparent huge pages, without khugepaged"
[translation.thp]
enabled = "always"
shmem_enabled = "{shmem}"
scan_interval = "24h"
"""


@contextmanager
def settings(program: Program, *, thp: bool) -> Iterator[None]:
    """Change the computer's settings for as long as a program runs."""
    wanted: dict[Path, str] = {}
    if thp:
        wanted[THP / "shmem_enabled"] = program.shmem
        wanted[THP / "enabled"] = "always"
        wanted[THP / "khugepaged/scan_sleep_millisecs"] = ASLEEP
    if program.pool:
        wanted[POOL] = str(program.pool)
    before = {}
    for file in wanted:
        text = file.read_text().strip()
        before[file] = text.partition("[")[2].partition("]")[0] or text

    def restore(*_: object) -> None:
        for file, value in before.items():
            file.write_text(value)

    def interrupted(number: int, _: object) -> None:
        restore()
        sys.exit(128 + number)

    handlers = {one: signal.signal(one, interrupted) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        for file, value in wanted.items():
            file.write_text(value)
        if thp:
            # khugepaged takes a step at once, and another one whenever the first process comes that
            # it may work for: this is one, so the program is not.
            held = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            held.write(bytes(8 << 20))
            time.sleep(0.5)
        yield
    finally:
        restore()
        for one, handler in handlers.items():
            signal.signal(one, handler)


@contextmanager
def made(program: Program) -> Iterator[tuple[Path, list[str]]]:
    """Make a program's inputs; its folder has the same name each time."""
    folder = Path("/var/tmp/contigua-mappings")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o755)
    try:
        environment = ENVIRONMENT | {"HOME": str(folder)}
        if program.make:
            command = ["sh", "-ec", program.make]
            subprocess.run(
                command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL
            )
        yield folder, [part.replace("{folder}", str(folder)) for part in program.command]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def execute(program: Program, command: list[str], folder: Path, limit: int) -> None:
    """Run a command in a program's folder."""
    # Shells add PWD.
    places = {"HOME": str(folder), "PWD": str(folder)}
    environment = ENVIRONMENT | places | program.environment
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{program.name}: status {done.returncode}\n{done.stdout}{done.stderr}")


def natively(program: Program, to: Path) -> None:
    """Keep a native execution's mappings."""
    with made(program) as (folder, command), settings(program, thp=True):
        execute(program, [str(AT_EXIT), str(to), *command], folder, LIMITS[0])


def simulated(program: Program, to: Path) -> None:
    """Keep a simulated execution's mappings. The program reads that huge pages are on."""
    with (
        made(program) as (folder, command),
        settings(program, thp=False),
        tempfile.TemporaryDirectory() as name,
    ):
        design, enabled = Path(name) / "thp.toml", Path(name) / "enabled"
        design.write_text(DESIGN.format(shmem=program.shmem))
        enabled.write_text("[always] madvise never\n")
        run = [sys.executable, "-m", "contigua.cli", "run", "--designs", str(design)]
        run += ["--detail", "translation", "--memory", "16G", "--smaps", str(to), "--", *command]
        script = f'mount --bind {enabled} {THP}/enabled && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", script, "sh", *run]
        execute(program, command, folder, LIMITS[1])


def kept(program: Program, folder: Path) -> tuple[list[list[list[Mapping]]], list[list[Mapping]]]:
    """Return native executions' mappings and the simulated one's, which are made if need be."""
    files = [folder / f"{program.name}.{which}" for which in ("native", "again", "simulated")]
    for file in files:
        if not file.exists():
            print(f"{program.name}: {file.suffix[1:]}", file=sys.stderr, flush=True)
            part = file.with_suffix(".part")
            (simulated if file.suffix == ".simulated" else natively)(program, part)
            part.rename(file)
    native, again, ours = (read_smaps(file.read_text(errors="replace")) for file in files)
    return [native, again], [as_linux(process) for process in ours]


def megabytes(amounts: tuple[int, ...]) -> str:
    """Return huge pages by kind."""
    said = [f"{amount >> 20} {kind}" for kind, amount in zip(HUGE, amounts, strict=True) if amount]
    return ", ".join(said) or "0"


def row(program: Program, found: Comparison, noise: Comparison) -> list[str]:
    """Return a program's row."""
    compared = found.equal + len(found.unlike) + len(found.only_native)
    differs = found.only_native or found.only_simulated or found.unlike
    unsteady = len(noise.only_native) + len(noise.unlike)
    return [
        program.name,
        str(program.processes),
        f"{found.equal} of {compared}",
        str(len(found.only_simulated)),
        megabytes(found.native_huge),
        megabytes(found.simulated_huge),
        str(unsteady) if unsteady else "",
        DIFFERS.get(program.name, "") if differs else "",
    ]


def show(program: Program, found: Comparison) -> None:
    """Print what differs."""
    for what, mappings in (
        ("only natively", found.only_native),
        ("only simulated", found.only_simulated),
    ):
        for mapping in mappings[:SHOWN]:
            print(f"  {program.name}: {what}: {mapping}", file=sys.stderr)
    for native, ours in found.unlike[:SHOWN]:
        print(f"  {program.name}: natively {native}; simulated {ours}", file=sys.stderr)


def main() -> None:
    """Run what is not there yet, print what differs, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="keeps what was run")
    parser.add_argument("programs", nargs="*", help="by default all")
    parser.add_argument("--print", action="store_true", help="write nothing, print the table")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="contigua-mappings-"))
    folder.mkdir(parents=True, exist_ok=True)
    table: dict[str, Any] = {"heads": HEADS, "rows": []}
    summary = {"mappings": 0, "equal": 0, "programs": 0, "whole": 0}
    missing = []
    for name in options.programs or PROGRAMS:
        program = PROGRAMS[name]
        if not all(map(shutil.which, program.needs)):
            missing.append(name)
            continue
        (native, again), ours = kept(program, folder)
        found, noise = compare(native, ours), compare(native, again)
        show(program, found)
        table["rows"].append(row(program, found, noise))
        of = found.equal + len(found.unlike) + len(found.only_native)
        summary["mappings"] += of
        summary["equal"] += found.equal
        summary["programs"] += 1
        summary["whole"] += found.equal == of and not found.only_simulated
    print(json.dumps(summary | {"missing": missing}), file=sys.stderr)
    lines = [
        f"Linux {platform.release().partition('-')[0]}; transparent huge pages `always`, addresses "
        f"not randomized, khugepaged asleep in both. {summary['equal']:,} of "
        f"{summary['mappings']:,} mappings of {summary['programs']} programs are equal with their "
        f"huge pages; {summary['whole']} programs are equal in all.",
        "",
        *rows(table),
    ]
    publish("mappings", "validation.md", lines, only_print=options.print)


HEADS = [
    "program",
    "what it does",
    "mappings equal",
    "only simulated",
    "huge pages natively, MB",
    "simulated, MB",
    "unlike natively, too",
    "what differs, and why",
]


if __name__ == "__main__":
    main()
