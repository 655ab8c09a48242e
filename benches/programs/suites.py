"""Test suites of others: every test has a verdict of its own."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from trial import GLIBC, LIBC, Program, Trial, source

PYTHON = "/usr/bin/python3"
TESTS = Path("/usr/lib/python3.11/test")
# What needs a screen, a network or a compiler's build tree, or does not end on a machine without
# virtual sockets, with any malloc.
LEFT_OUT = {"test_idle", "test_tools", "test_socket", "test_ensurepip", "test_venv", "test_gdb"}
# What waits more than it works runs beside the rest.
SLOW = {
    "test_asyncio",
    "test_concurrent_futures",
    "test_multiprocessing_fork",
    "test_multiprocessing_forkserver",
    "test_multiprocessing_spawn",
    "test_signal",
    "test_ssl",
    "test_io",
    "test_imaplib",
    "test_subprocess",
    "test_xmlrpc",
    "test_logging",
    "test_largefile",
}
PARTS = 3


def cpython(trial: Trial, part: int) -> None:
    """A part of CPython's own tests, with every object from malloc."""
    names = sorted(
        path.stem
        for path in TESTS.glob("test_*")
        if path.suffix == ".py" or (path / "__init__.py").exists()
    )
    rest = [name for name in names if name not in LEFT_OUT | SLOW]
    chosen = sorted(SLOW & set(names)) if part == PARTS else rest[part::PARTS]
    report = trial.directory / "report.xml"
    more = {"PYTHONMALLOC": "malloc", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [PYTHON, "-m", "test", "-j", "4", "--timeout", "400", "--junit-xml", str(report)]
    done = trial.run(*command, *chosen, more=more, seconds=1500)
    if not report.exists():
        trial.same("a report", done.err[-300:])
        return
    files = set()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = case.get("name", "")
        # The name of a subtest may hold addresses and times.
        name = re.sub(r"0x[0-9a-f]+|\d{4,}", "N", name)
        files.add(".".join(name.split(".")[:2]))
        trial.facts.tests += 1
        if case.find("failure") is not None or case.find("error") is not None:
            trial.failed(name)
    for line in re.findall(r"^(test_\w+) (?:failed|crashed|timed out).*", done.out, re.MULTILINE):
        trial.failed(line)
    for line in re.findall(r"\] (test_\w+) (?:failed|crashed|timed out)", done.out):
        trial.failed(line)
    trial.same("test files", len(files) > len(chosen) / 2)


def redis_suite(trial: Trial) -> None:
    """Redis' own unit and integration tests of its data types, with the server of Debian."""
    if trial.mode is GLIBC:
        trial.environment["LD_PRELOAD"] = LIBC
    tree = trial.directory / "redis"
    shutil.copytree(source("redis"), tree)
    for name in (
        "redis-server",
        "redis-cli",
        "redis-benchmark",
        "redis-check-rdb",
        "redis-check-aof",
    ):
        found = shutil.which(name)
        if found:
            (tree / "src" / name).symlink_to(found)
    (tree / "src" / "redis-sentinel").symlink_to(tree / "src" / "redis-server")
    suites = [
        *(
            f"unit/type/{name}"
            for name in (
                "string",
                "incr",
                "list",
                "list-2",
                "list-3",
                "set",
                "zset",
                "hash",
                "stream",
                "stream-cgroups",
            )
        ),
        *(
            f"unit/{name}"
            for name in (
                "sort",
                "expire",
                "multi",
                "scan",
                "dump",
                "bitops",
                "bitfield",
                "hyperloglog",
                "geo",
                "pubsub",
                "scripting",
                "functions",
                "keyrange",
                "introspection",
                "info",
                "quit",
                "protocol",
                "keyspace",
                "aofrw",
                "querybuf",
                "client-eviction",
                "maxmemory",
                "obuf-limits",
                "lazyfree",
                "slowlog",
                "auth",
                "acl",
                "other",
                "tracking",
                "violations",
                "memefficiency",
                "limits",
                "printver",
                "latency-monitor",
                "networking",
                "replybufsize",
                "shutdown",
                "tls",
                "oom-score-adj",
            )
        ),
        *(
            f"integration/{name}"
            for name in (
                "rdb",
                "aof",
                "corrupt-dump",
                "convert-zipmap-hash-on-load",
                "convert-ziplist-hash-on-load",
                "convert-ziplist-zset-on-load",
                "logging",
                "psync2-reg",
                "block-repl",
                "replication-4",
                "dismiss-mem",
                "redis-cli",
                "redis-benchmark",
            )
        ),
    ]
    chosen = [name for name in suites if (tree / "tests" / f"{name}.tcl").exists()]
    command = [
        "tclsh",
        "tests/test_helper.tcl",
        "--clients",
        "6",
        "--timeout",
        "600",
        "--no-latency",
        "--tags",
        "-needs:debug-malloc -defrag -large-memory",
    ]
    for name in chosen:
        command += ["--single", name]
    done = trial.run(*command, directory=tree, seconds=1500)
    text = re.sub(r"\x1b\[[0-9;]*m", "", done.out)
    verdicts = re.findall(r"^\[(ok|err|exception)\]: (.*)$", text, re.MULTILINE)
    trial.facts.tests += len(verdicts)
    for verdict, name in verdicts:
        if verdict != "ok":
            trial.failed(re.sub(r"\(\d+ ms\)| in tests/.*|0x[0-9a-f]+", "", name).strip()[:120])
    trial.same(
        "it ends", "All tests passed" in text or "test(s) failed" in text or "The End" in text
    )


PROGRAMS = [
    *(
        Program(
            f"cpython-{part + 1}",
            "its own tests, "
            + (
                "those of processes, threads, sockets and files"
                if part == PARTS
                else f"the {('first', 'second', 'third')[part]} third of the rest"
            )
            + ", `PYTHONMALLOC=malloc`",
            lambda trial, part=part: cpython(trial, part),  # type: ignore[misc]
            ((str(TESTS / "test_gc.py"), "libpython3.11-testsuite"),),
            (PYTHON, "--version"),
            suite=True,
        )
        for part in range(PARTS + 1)
    ),
    Program(
        "redis-suite",
        "its own tests of types, commands, scripts, persistence and replication",
        redis_suite,
        (
            ("redis-server", "redis-server"),
            ("redis-benchmark", "redis-tools"),
            ("tclsh", "tcl"),
            ("dpkg-source", "dpkg-dev"),
        ),
        ("redis-server", "--version"),
        suite=True,
    ),
]
