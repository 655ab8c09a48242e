"""Skipped tests are written to the file that CONTIGUA_SKIPS names, for scripts/skips to count."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest


class Skips:
    """Write a line for each skipped test or file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test."""
        if report.skipped and not hasattr(report, "wasxfail"):
            self.add(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a whole file."""
        if report.skipped:
            self.add(report)

    def add(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Append a line: the test, and what it misses."""
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        with self.path.open("a") as file:
            file.write(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}\n")


def pytest_configure(config: pytest.Config) -> None:
    """Write skips in the process that sees all of them; workers of xdist report to it."""
    # Shells start background jobs with interrupts ignored, nohup with hang-ups; what tests start
    # would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for line in (
        "long: takes more than ten seconds; part of `make test-long`, not of `make test`",
        "programs: runs programs; not part of `make check`",
    ):
        config.addinivalue_line("markers", line)
    if (path := os.environ.get("CONTIGUA_SKIPS")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skips(Path(path)), "skips")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests whose fixtures run programs."""
    for item in items:
        if isinstance(item, pytest.Function) and {"cli", "guest"} & set(item.fixturenames):
            item.add_marker("programs")
