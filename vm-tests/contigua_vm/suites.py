"""Suites of tests that a kernel must pass, and what became of them on the stock kernel and on the
changed one.

A test is a script of bash's on the disk of :mod:`contigua_vm.userland`. What it says about a kernel
is in the comparison: stock kernels fail tests, too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from contigua_vm.errors import VmError
from contigua_vm.guest import Guest
from contigua_vm.initramfs import Initramfs
from contigua_vm.kernels import Kernel, cache_folder
from contigua_vm.programs import build_workloads
from contigua_vm.userland import enter, run_within

PASSED, FAILED, SKIPPED, DIED = "passed", "failed", "skipped", "died"
#: Message of a kernel about a fault that need not kill it.
COMPLAINT = re.compile(
    r"WARNING:|BUG:|[Bb]ad page|Oops|general protection|Kernel panic|possible circular locking|"
    r"possible recursive locking|inconsistent lock|suspicious RCU|INFO: task|rcu: INFO|lockup|"
    r"page allocation failure|blocked for more than|corrupt"
)
#: Words of the log that differ from boot to boot.
VARYING = re.compile(r"^\[[^\]]*\] |\b(0x)?[0-9a-f]{6,}\b|\d+")
#: A line of the Test Anything Protocol.
SUBTEST = re.compile(r"^(ok|not ok) (\d+)(.*)$", re.MULTILINE)
#: Bytes of a test's output that are kept.
KEPT = 2000


@dataclass(frozen=True)
class Test:
    """One test.

    Attributes
    ----------
    name
        Unique in its suite.
    script
        For bash. The codes of the kernel's own tests: 0 is good, and 4 says that something is not
        there for it.
    limit
        Seconds of the guest's after which it has failed.
    """

    name: str
    script: str
    limit: float = 300


@dataclass(frozen=True)
class Suite:
    """Tests that share a machine's settings.

    Attributes
    ----------
    name
        What tables call it.
    tests
        In this order.
    before
        A script before the first of them.
    memory_mib, processors, numa_nodes
        Of the machine.
    is_each_alone
        Whether each has a machine of its own.
    """

    name: str
    tests: tuple[Test, ...]
    before: str = "true"
    memory_mib: int = 1024
    processors: int = 2
    numa_nodes: int = 1
    is_each_alone: bool = False


@dataclass
class Outcome:
    """Result of a suite on one kernel.

    Attributes
    ----------
    verdicts
        By test; parts that a test tells of have their own.
    said
        The end of their output.
    complaints
        Lines of the kernel's log.
    """

    verdicts: dict[str, str] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)


def run_suite(
    suite: Suite,
    kernel: Kernel,
    disk: Path,
    *,
    options: str = "",
    only: str = "",
    logs: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Run a suite on a kernel, in a new machine whenever one is lost.

    Parameters
    ----------
    suite, kernel, disk
        What, on what, with which programs.
    options
        More words for the kernel's command line.
    only
        A pattern that the names of tests match.
    logs
        A folder for the logs of machines.
    progress
        Told each verdict.

    Raises
    ------
    VmError
        When a machine does not boot.
    """
    outcome = Outcome()
    tests = [test for test in suite.tests if re.search(only, test.name)]
    boots = 0
    while tests:
        log = logs / f"{suite.name.replace(' ', '-')}-{boots}.log" if logs is not None else None
        boots += 1
        with Guest(
            kernel,
            Initramfs(programs=build_workloads()),
            memory_mib=suite.memory_mib,
            low_mib=512 if suite.numa_nodes == 1 else None,
            processors=suite.processors,
            numa_nodes=suite.numa_nodes,
            options=f"nokaslr secretmem.enable=1 {options}",
            disk=disk,
            log=log,
        ) as guest:
            enter(guest)
            said = run_within(guest, suite.before, 600)
            if said.code:
                raise VmError(f"{suite.name} cannot begin: {said.text}")
            is_well = True
            while tests and is_well:
                test = tests.pop(0)
                is_well = _run_test(guest, test, outcome)
                progress(f"{suite.name}: {test.name}: {_summary(test, outcome)}")
                is_well &= not suite.is_each_alone
            outcome.complaints += complaints(guest.kernel_log())
    return outcome


def kept_outcome(
    suite: Suite,
    kernel: Kernel,
    disk: Path,
    *,
    options: str = "",
    is_fresh: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Return what became of a suite when it last ran on this very kernel, or run it.

    Parameters
    ----------
    suite, kernel, disk, options, progress
        As for :func:`run_suite`.
    is_fresh
        Run it in any case.

    Raises
    ------
    VmError
        When a machine does not boot.
    """
    # A kernel's folder is named for all that went into it.
    of = f"{suite}\n{kernel.image.parent}\n{disk.name}\n{options}"
    name = f"{suite.name.replace(' ', '-')}-{hashlib.sha256(of.encode()).hexdigest()[:16]}"
    folder = cache_folder() / "suites" / name
    verdicts = folder / "outcome.json"
    if is_fresh or not verdicts.exists():
        folder.mkdir(parents=True, exist_ok=True)
        outcome = run_suite(suite, kernel, disk, options=options, logs=folder, progress=progress)
        verdicts.write_text(json.dumps(asdict(outcome), indent=1))
    return Outcome(**json.loads(verdicts.read_text()))


def complaints(log: str) -> list[str]:
    """Return the lines of a kernel's log that tell of a fault."""
    return [line for line in log.splitlines() if COMPLAINT.search(line)]


def kinds(lines: Iterable[str]) -> set[str]:
    """Return complaints without what differs from boot to boot."""
    return {VARYING.sub("", line).strip() for line in lines}


def _verdict(outcome: Outcome, name: str) -> str:
    """Return a test's verdict; of one that told of its parts there is none."""
    has_parts = any(other.startswith(f"{name} ") for other in outcome.verdicts)
    return outcome.verdicts.get(name, PASSED if has_parts else FAILED)


def _run_test(guest: Guest, test: Test, outcome: Outcome) -> bool:
    """Run one, and say whether the machine may be used for the next."""
    try:
        answer = run_within(guest, test.script, test.limit)
        guest.assert_well()
    except VmError as error:
        outcome.verdicts[test.name] = DIED
        outcome.said[test.name] = str(error)[-KEPT:]
        return False
    parts = SUBTEST.findall(answer.text)
    for how, number, rest in parts:
        verdict = FAILED if how == "not ok" else SKIPPED if "# SKIP" in rest else PASSED
        outcome.verdicts[f"{test.name} {number}"] = verdict
    failed_parts = [part for part in parts if part[0] == "not ok"]
    whole = {0: PASSED, 4: SKIPPED}.get(answer.code, FAILED)
    # A test that tells of its parts fails with them.
    if not parts or (whole == FAILED and not failed_parts):
        outcome.verdicts[test.name] = whole
    if answer.text:
        outcome.said[test.name] = f"[{answer.code}] {answer.text[-KEPT:]}"
    # Of a test whose time was up something may still run.
    return answer.code != 137


def _summary(test: Test, outcome: Outcome) -> str:
    if test.name in outcome.verdicts:
        said = outcome.said.get(test.name, "").strip().splitlines()
        return f"{outcome.verdicts[test.name]}{': ' + said[-1] if said else ''}"
    parts = [
        verdict for name, verdict in outcome.verdicts.items() if name.startswith(f"{test.name} ")
    ]
    return f"{parts.count(PASSED)} of {len(parts)} parts passed"


@dataclass(frozen=True)
class Comparison:
    """Verdicts on two kernels.

    Attributes
    ----------
    both_passed, both_failed, only_stock_failed, only_changed_failed, skipped
        Names of tests; skipped on either, and failed on none.
    complaints
        What only the changed kernel's log says.
    """

    both_passed: list[str]
    both_failed: list[str]
    only_stock_failed: list[str]
    only_changed_failed: list[str]
    skipped: list[str]
    complaints: list[str]


def compare(stock: Outcome, changed: Outcome) -> Comparison:
    """Compare what became of a suite on both kernels; a part that one lacks died with its whole."""
    found = Comparison([], [], [], [], [], sorted(kinds(changed.complaints)))
    for name in dict.fromkeys([*stock.verdicts, *changed.verdicts]):
        left, right = (_verdict(outcome, name) for outcome in (stock, changed))
        has_failed = [verdict in {FAILED, DIED} for verdict in (left, right)]
        if all(has_failed):
            found.both_failed.append(name)
        elif has_failed[0]:
            found.only_stock_failed.append(name)
        elif has_failed[1]:
            found.only_changed_failed.append(name)
        elif SKIPPED in (left, right):
            found.skipped.append(name)
        else:
            found.both_passed.append(name)
    for known in kinds(stock.complaints) & set(found.complaints):
        found.complaints.remove(known)
    return found
