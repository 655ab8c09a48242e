"""A long check that runs again although it is current: one for each commit, by its hash."""

from __future__ import annotations

import csv
import hashlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from catalogue import CatalogueError, Check
from inputs import ROOT

#: Seconds that a check may have taken when it passed: CI has 20 minutes, and needs most of them.
LIMIT = 120
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def draw(every: list[Check], known: dict[str, dict[str, Any]], commit: str) -> Check:
    """Return the check that a commit draws: those that are quick enough are equally likely.

    Raises
    ------
    CatalogueError
        When git does not know the commit, or no check is quick enough.
    """
    done = subprocess.run(
        ["git", "rev-parse", "--verify", f"{commit}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise CatalogueError(f"git knows no commit {commit!r}: {done.stderr.strip()}")
    quick = sorted(
        (
            one
            for one in every
            if one.gate == "long" and not one.undrawn and seconds(known, one) <= LIMIT
        ),
        key=lambda one: one.name,
    )
    if not quick:
        raise CatalogueError(f"no check is known to take at most {LIMIT} s; make test-long")
    number = int(hashlib.sha256(done.stdout.strip().encode()).hexdigest(), 16)
    return quick[number % len(quick)]


def seconds(known: dict[str, dict[str, Any]], check: Check) -> float:
    """Return how long a check took when it passed; without end where that is not known."""
    return float(known.get(check.name, {}).get("seconds", "inf"))


def repeat(check: Check) -> int:
    """Run a check and compare its figures with the stored ones; return 1 if it fails."""
    with tempfile.TemporaryDirectory(prefix="contigua-drawn-") as folder:
        command = (check.drawn or check.command).format(folder=folder)
        print(f"== {check.name}: {command}", flush=True)
        start = time.monotonic()
        status = subprocess.run(shlex.split(command), cwd=ROOT, check=False).returncode
        took = time.monotonic() - start
        if status != 0:
            print(f"checks: {check.name} failed with status {status}", file=sys.stderr)
            return 1
        different = [
            line for one in check.outputs for line in differences(check, one, Path(folder))
        ]
    for line in different:
        print(f"checks: {check.name}: {line}", file=sys.stderr)
    print(f"checks: {check.name} ran again in {took:.0f} s; {len(different)} figures differ")
    return 1 if different else 0


def differences(check: Check, output: str, folder: Path) -> Iterator[str]:
    """Yield how the rows of a CSV file differ from those that the check wrote into a folder.

    Values agree within the check's tolerance: that share of the stored one, or as much of a unit.
    Without a tolerance all that is printed is equal.
    """
    file, _, name = output.partition("#")
    if not (name and file.endswith(".csv")):
        return
    stored, fresh = (_rows(path, name) for path in (ROOT / file, folder / Path(file).name))
    for label in stored.keys() | fresh.keys():
        before, now = stored.get(label, {}), fresh.get(label, {})
        if check.tolerance:
            agree = _near(before.get("ours", ""), now.get("ours", ""), check.tolerance)
        else:
            agree = before == now
        if not agree:
            shown = [", ".join(one.values()) or "nothing" for one in (before, now)]
            yield f"{label!r} is {shown[0]} in {file}, and now {shown[1]}"


def _rows(file: Path, name: str) -> dict[str, dict[str, str]]:
    with file.open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["experiment"] == name]
    # Verdicts follow from what an experiment's file says today; values of tables have no tolerance.
    rows = [row for row in rows if row.get("class") != "value"]
    return {row["figure"]: {key: row[key] for key in ("ours", "±")} for row in rows}


def _near(before: str, now: str, tolerance: float) -> bool:
    """Compare two values with their unit.

    Examples
    --------
    >>> _near("2.00 x", "2.19 x", 0.1), _near("50.0 %", "44.9 %", 0.1), _near("-", "-", 0.1)
    (True, False, True)
    """
    first, second = (NUMBER.match(text) for text in (before, now))
    if first is None or second is None:
        return before == now
    value, other = (float(one[0].replace(",", "")) for one in (first, second))
    same_unit = before[first.end() :] == now[second.end() :]
    return same_unit and abs(value - other) <= tolerance * max(abs(value), 1.0) + 1e-9
