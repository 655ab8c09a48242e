"""Fixtures of the tests in virtual machines."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from contigua_vm import VmError, kernel, missing_requirement
from contigua_vm.programs import build_workloads, node_binary

FOLDER = Path(__file__).parent


def pytest_configure(config):
    config.addinivalue_line("markers", "short: takes seconds; part of `make test`")


@pytest.fixture(scope="session", autouse=True)
def machines():
    missing = missing_requirement()
    if missing is not None:
        pytest.skip(f"no virtual machines here: {missing}")


@pytest.fixture(scope="session")
def linux():
    """Debian 12's stock kernel."""
    try:
        return kernel("6.1")
    except VmError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def workloads():
    return build_workloads()


@pytest.fixture(scope="session")
def node():
    try:
        return node_binary()
    except (VmError, subprocess.SubprocessError) as error:
        pytest.skip(str(error))
