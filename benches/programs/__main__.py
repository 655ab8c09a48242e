"""Run real programs under our malloc and say where they fail and glibc's malloc does not.

    check-programs [--again] [--modes NAME,NAME] [PROGRAM...]

Each program runs under glibc first, then with libcontigua_malloc.so preloaded, with caches of CPUs,
at hardening level 2, with caches of threads, servers with a background thread, too, and with huge
pages for everybody. What is found is kept in target/check-programs, so that an interrupted run goes
on where it stopped, and goes into the table of docs/malloc.md.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import browser
import confined
import languages
import servers
import suites
import tools
from trial import GLIBC, HUGE_PAGES, LIBRARY, ROOT, Facts, Mode, Program

DOCUMENT = ROOT / "docs" / "malloc.md"
RESULTS = ROOT / "target" / "check-programs"
MARKS = ("<!-- check-programs:begin -->", "<!-- check-programs:end -->")
PROGRAMS = {
    program.name: program
    for program in [
        *servers.PROGRAMS,
        *languages.PROGRAMS,
        *suites.PROGRAMS,
        *confined.PROGRAMS,
        *tools.PROGRAMS,
        *browser.PROGRAMS,
    ]
}
PR_SET_CHILD_SUBREAPER = 36


def library() -> str:
    """Return the identity of a build of the library."""
    return hashlib.sha256(LIBRARY.read_bytes()).hexdigest()[:16]


def version(program: Program) -> str:
    """The first number with a dot in what the program says of itself."""
    if not program.version:
        return ""
    done = subprocess.run(program.version, capture_output=True, text=True)
    found = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
    return found[0] if found else ""


def possible(mode: Mode) -> bool:
    return not mode.huge_pages or os.access(HUGE_PAGES, os.W_OK)


def examine(
    program: Program, wanted: list[str] | None, keep: Callable[[dict[str, object]], None]
) -> dict[str, object]:
    """Run a program in all modes; what its row says, kept after each of them."""
    print(f"{program.name}: {program.what}", flush=True)
    program.install()
    reference = program.trial(GLIBC)
    print(
        f"  glibc: {len(reference.same)} values, {reference.tests} tests, "
        f"{len(reference.failures)} failed, {reference.seconds} s",
        flush=True,
    )
    for line in reference.broken():
        print(f"  not a test: {line} under glibc's malloc", flush=True)
    columns: dict[str, object] = {}
    result: dict[str, object] = {
        "version": version(program),
        "what": program.what,
        "library": library(),
        "glibc": reference.to_json(),
        "modes": columns,
    }
    for mode in program.modes()[1:]:
        if (wanted and mode.name not in wanted) or not possible(mode):
            continue
        facts = program.trial(mode)
        beyond = facts.beyond(reference)
        once: list[str] = []
        if beyond:
            # Is it the malloc or the day? Both again; what glibc's malloc fails in one of two
            # runs is no failure of ours, and what ours fails in one of two is reported as such.
            for line in beyond:
                print(f"    at first: {line}", flush=True)
            second_reference = program.trial(GLIBC)
            unstable = set(second_reference.beyond(reference))
            reference.failures = sorted({*reference.failures, *second_reference.failures})
            second = program.trial(mode).beyond(reference)
            names = {line.partition(": ")[0] for line in unstable}
            first = [x for x in facts.beyond(reference) if x.partition(": ")[0] not in names]
            second = [x for x in second if x.partition(": ")[0] not in names]
            key = {line.partition(" instead of ")[0]: line for line in second}
            beyond = [x for x in first if x.partition(" instead of ")[0] in key]
            once = sorted({*first, *second} - set(beyond))
        columns[mode.name] = {
            "facts": facts.to_json(),
            "failures": beyond,
            "once": once,
        }
        print(
            f"  {mode.name}: {cell(columns[mode.name])}, "
            f"{facts.with_library} processes with the library, {facts.seconds} s",
            flush=True,
        )
        if facts.without_library:
            print(f"    without it: {' '.join(facts.without_library)}", flush=True)
        for line in beyond:
            print(f"    fails: {line}", flush=True)
        for line in once:
            print(f"    once: {line}", flush=True)
        keep(result)
    return result


def cell(column: object) -> str:
    """A mode's cell of the table."""
    if not isinstance(column, dict):
        return "-"
    failures, once = len(column["failures"]), len(column["once"])
    parts = [f"{failures} fail"] * bool(failures) + [f"{once} once"] * bool(once)
    return ", ".join(parts) or "same"


COLUMNS = ("per CPU", "level 2", "per thread", "background on", "background idle", "THP always")


def listed(rows: list[tuple[str, str, list[str]]]) -> list[str]:
    """Lines of Markdown: programs with their counts, by what their modes gave."""
    by_cells: dict[str, list[str]] = {}
    for title, count, cells in rows:
        said = ", ".join(
            f"{column} {found}"
            for column, found in zip(COLUMNS, cells, strict=True)
            if found != "-"
        )
        by_cells.setdefault(said, []).append(f"{title} ({count})")
    lines = []
    for said, titles in by_cells.items():
        lines += textwrap.wrap(f"**{said}**: {'; '.join(titles)}.", 118, break_on_hyphens=False)
    return lines


def table(results: dict[str, dict[str, object]]) -> list[str]:
    """Lines of Markdown."""
    rows = []
    notes: list[str] = []
    anyway = []
    for name, result in results.items():
        reference = Facts(**result["glibc"])  # type: ignore[arg-type]
        modes = result["modes"]
        assert isinstance(modes, dict)
        cells = [cell(modes.get(column)) for column in COLUMNS]
        count = f"{len(reference.same)}" + (f", {reference.tests}" if reference.tests else "")
        rows.append((f"{name} {result['version']}".strip(), count, cells))
        for mode, column in modes.items():
            notes += [f"- {name}, {mode}: {line}" for line in column["failures"]]
            notes += [f"- {name}, {mode}, in one of two runs: {line}" for line in column["once"]]
        if reference.failures:
            anyway.append(f"{name} {len(reference.failures)}")
    if anyway:
        notes.append(
            "- Tests that fail under glibc's malloc as well (as root, without a network): "
            f"{', '.join(anyway)}."
        )
    return listed(rows) + (["", *notes] if notes else [])


def saved() -> dict[str, dict[str, object]]:
    """Results that are kept, in the order of the programs."""
    found = {}
    for name in PROGRAMS:
        file = RESULTS / f"{name}.json"
        if file.exists():
            found[name] = json.loads(file.read_text())
    return found


def write(results: dict[str, dict[str, object]]) -> None:
    text = DOCUMENT.read_text()
    before, rest = text.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    DOCUMENT.write_text("\n".join([before + MARKS[0], *table(results), MARKS[1] + after]))


def main() -> None:
    """Check programs and write the table."""
    parser = argparse.ArgumentParser(
        prog="check-programs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=" ".join(PROGRAMS))
    parser.add_argument("--again", action="store_true", help="also what this build passed before")
    parser.add_argument(
        "--modes", help="only these, separated by commas; the rest of the row stays as it was"
    )
    parser.add_argument("--list", action="store_true", help="say what there is and end")
    options = parser.parse_args()
    if options.list:
        for program in PROGRAMS.values():
            print(f"{program.name:14} {program.what}")
        return
    unknown = [name for name in options.programs if name not in PROGRAMS]
    if unknown:
        sys.exit(f"no program {unknown[0]}; there are {' '.join(PROGRAMS)}")
    if not LIBRARY.exists():
        sys.exit(f"no {LIBRARY}; run: cargo build --release -p contigua-malloc")
    # A termination unwinds, so that servers end and the machine's settings are put back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Started in the background, this process ignores interrupts, and its children would, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Daemons stay visible to the watcher.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    RESULTS.mkdir(parents=True, exist_ok=True)
    before = saved()
    failed = []
    for name in options.programs or PROGRAMS:
        known = before.get(name)
        old = known["modes"] if known and known["library"] == library() else {}
        assert isinstance(old, dict)
        wanted = options.modes.split(",") if options.modes else None
        if old and not (wanted or options.again or options.programs):
            wanted = [m.name for m in PROGRAMS[name].modes()[1:] if m.name not in old]
            if not any(possible(m) for m in PROGRAMS[name].modes() if m.name in wanted):
                print(f"{name}: was run with this build")
                continue

        def keep(result: dict[str, object], name: str = name, old: dict[str, object] = old) -> None:
            modes = result["modes"]
            assert isinstance(modes, dict)
            text = json.dumps({**result, "modes": {**old, **modes}}, indent=1)
            (RESULTS / f"{name}.json").write_text(text)
            write(saved())

        result = examine(PROGRAMS[name], wanted, keep)
        modes = result["modes"]
        assert isinstance(modes, dict)
        if Facts(**result["glibc"]).broken():  # type: ignore[arg-type]
            failed.append(f"{name} (does not work under glibc's malloc)")
        failed += [f"{name} ({mode})" for mode, column in modes.items() if column["failures"]]
    print("\n".join(table(saved())))
    if failed:
        sys.exit("failures: " + ", ".join(failed))


if __name__ == "__main__":
    main()
