"""Times of the targets that people wait for, measured and written into CONTRIBUTING.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from inputs import ROOT

PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- times: written by make times -->", "<!-- end of times -->"


@dataclass(frozen=True)
class Target:
    """A command, and the state that it starts from.

    Attributes
    ----------
    command
        What people type.
    state
        What exists before.
    limit
        Minutes that it may take on two cores.
    through
        What runs the command, if it is not run as it is.
    shown
        The command in the table, if it is not the one that people type.
    """

    command: list[str]
    state: str
    limit: int
    through: tuple[str, ...] = ()
    shown: str = ""

    def name(self) -> str:
        """Return what the table calls the command."""
        return self.shown or " ".join(self.command)


#: Its QEMU loads no plugins: two are built, for x86-64 and for aarch64 programs.
DEBIAN_13 = ("scripts/bare", "--suite", "trixie")

RUN = ".venv/bin/contigua run --designs colt -- workloads/bin/gups --size 4MiB --updates 10000"

TARGETS = {
    "scheme": Target(
        ["sh", "-c", "make --silent dev && " + RUN],
        "built tree, a translation scheme changed",
        1,
        shown="make dev; contigua run --designs colt",
    ),
    "check": Target(["make", "check"], "built tree, one line of crates/cache changed", 3),
    "test": Target(["make", "test"], "built tree", 8),
    "ci": Target(["bash", ".ci/run"], "built tree", 10),
    "test-fresh": Target(
        ["make", "test"], "fresh clone, bare Debian 12, no caches", 15, ("scripts/bare",)
    ),
    "ci-fresh": Target(
        ["bash", ".ci/run"], "fresh clone, bare Debian 12, no caches", 20, ("scripts/bare",)
    ),
    "demo-fresh": Target(
        ["make", "demo"], "fresh clone, bare Debian 12, no caches", 10, ("scripts/bare",)
    ),
    "demo-13": Target(["make", "demo"], "fresh clone, bare Debian 13, no caches", 20, DEBIAN_13),
    "test-13": Target(["make", "test"], "fresh clone, bare Debian 13, no caches", 30, DEBIAN_13),
}


def measure(names: list[str]) -> int:
    """Time some targets, or all; return 1 if one fails."""
    unknown = sorted(set(names) - TARGETS.keys())
    if unknown:
        print(f"times: no target {', '.join(unknown)}; {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    failed = 0
    for name in names or TARGETS:
        target = TARGETS[name]
        print(f"== {target.name()} ({target.state})", flush=True)
        with PLACES.get(name, built)() as (folder, environment):
            start = time.monotonic()
            status = subprocess.run(
                [*target.through, *target.command], cwd=folder, env=os.environ | environment
            ).returncode
            minutes = (time.monotonic() - start) / 60
        if status != 0:
            print(f"== {name} failed with status {status}; not recorded", file=sys.stderr)
            failed = 1
            continue
        print(f"== {name}: {minutes:.1f} minutes, limit {target.limit}", flush=True)
        record(name, minutes)
    return failed


Place = tuple[Path, dict[str, str]]


@contextmanager
def built() -> Iterator[Place]:
    """Yield this tree as it is."""
    yield ROOT, {}


@contextmanager
def edited() -> Iterator[Place]:
    """Yield this tree with a line more in a crate on which several others depend."""
    file = ROOT / "crates" / "cache" / "src" / "lib.rs"
    before = file.read_bytes()
    file.write_bytes(before + b"\n// A change.\n")
    try:
        yield ROOT, {}
    finally:
        file.write_bytes(before)


@contextmanager
def another_scheme() -> Iterator[Place]:
    """Yield this tree, built by ``make dev``, with a scheme whose translation does more."""
    subprocess.run(["make", "--silent", "dev"], cwd=ROOT, check=True)
    file = ROOT / "crates" / "translation" / "src" / "schemes" / "colt.rs"
    before = file.read_text()
    changed, count = re.subn(
        r"(fn translate\([^{]*\{\n)", r"\1        std::hint::black_box(0);\n", before, count=1
    )
    assert count == 1, f"{file} has no function translate"
    file.write_text(changed)
    try:
        yield ROOT, {}
    finally:
        file.write_text(before)


PLACES: dict[str, Callable[[], AbstractContextManager[Place]]] = {
    "check": edited,
    "scheme": another_scheme,
}


def measured(command: str) -> float | None:
    """Return the seconds that a command took on a built tree when it was measured."""
    found = re.search(
        rf"\| `(?:bash )?{re.escape(command)}` \| built tree.*?\| \d+ \| ([\d.]+) \|",
        PAGE.read_text(),
    )
    return 60 * float(found[1]) if found else None


def record(name: str, minutes: float) -> None:
    """Write one row of the table, and keep the others."""
    text = PAGE.read_text()
    table = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    rows = {}
    for line in table.splitlines():
        if found := re.match(r"\| `(.+?)` \| (.+?) \|", line):
            rows[found[1], found[2]] = line
    target = TARGETS[name]
    cores = len(os.sched_getaffinity(0))
    rows[target.name(), target.state] = (
        f"| `{target.name()}` | {target.state} | {target.limit} | {minutes:.1f} | "
        f"{date.today()}, {cores} cores |"
    )
    ordered = [rows[key] for one in TARGETS.values() if (key := (one.name(), one.state)) in rows]
    head = "| command | from | limit, minutes | measured, minutes | when |\n|---|---|---|---|---|\n"
    new = f"{BEGIN}\n{head}" + "\n".join(ordered) + f"\n{END}"
    PAGE.write_text(text[: text.index(BEGIN)] + new + text[text.index(END) + len(END) :])
