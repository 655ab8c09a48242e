"""Do commands end well under full disks, closed descriptors, limits, namespaces and signals?"""

from __future__ import annotations

import signal
from pathlib import Path

import harness
import pytest

import contigua
from contigua import RunOptions

pytestmark = pytest.mark.programs

#: A second of work in a program of two processes.
LOOP = "i=0; while [ $i -lt 1500 ]; do i=$((i+1)); done; (exit 0)"
MOMENTS = 20
SAMPLE = [
    "full disk",
    "small files",
    "all streams closed",
    "a PID namespace",
    "a user namespace without root",
]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """A trace of the loop."""
    path = tmp_path_factory.mktemp("trace") / "loop.trace"
    contigua.run(["sh", "-c", LOOP], designs=[], options=RunOptions(record=path))
    return path


def commands(trace: Path) -> dict[str, list[str]]:
    """Return the commands that are tried, by name; they write into the current folder."""
    small = ["--detail", "translation", "--memory", "128M", "--json", "report.json"]
    age = ["--memory", "128M", "--hours", "0.2", "--json", "age.json"]
    return {
        "run": harness.contigua(
            "run", *small, "--record", "loop.trace", "--", "/bin/sh", "-c", LOOP
        ),
        "replay": harness.contigua("run", *small, "--trace", trace),
        "record": harness.contigua("record", "-o", "loop.trace", "--", "/bin/sh", "-c", LOOP),
        "age": harness.contigua("age", *age, "--save", "aged.snapshot", "--png", "map.png"),
    }


COMMANDS = ["run", "replay", "record", "age"]


def possible(condition: harness.Condition) -> None:
    if condition.wrapper and not harness.can_unshare():
        pytest.skip("this user may not make namespaces")


def check(command: str, condition: str, trace: Path, folder: Path) -> None:
    wanted = harness.CONDITIONS[condition]
    possible(wanted)
    ended = harness.run(commands(trace)[command], folder, wanted)
    assert not ended.faults, f"{ended.faults}\n{ended.said}"
    if ended.status == 1 and "clos" not in condition:
        assert "contigua: " in ended.said


@pytest.mark.parametrize("condition", SAMPLE)
def test_a_run_ends_well_under(condition, trace, tmp_path):
    check("run", condition, trace, tmp_path)


def test_a_run_that_is_interrupted_leaves_nothing_behind(trace, tmp_path):
    command = harness.contigua(
        "run", "--memory", "128M", "--json", "report.json", "--", "sleep", "60"
    )
    condition = harness.CONDITIONS["nothing unusual"]
    ended = harness.run(command, tmp_path, condition, send=signal.SIGINT, after=2.0)
    assert not ended.faults, f"{ended.faults}\n{ended.said}"


@pytest.mark.long
@pytest.mark.parametrize("condition", harness.CONDITIONS)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_ends_well_under(command, condition, trace, tmp_path):
    check(command, condition, trace, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("number", harness.SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_ends_well_at_any_moment_of(command, number, trace, tmp_path):
    condition = harness.CONDITIONS["nothing unusual"]
    (tmp_path / "whole").mkdir()
    whole = harness.run(commands(trace)[command], tmp_path / "whole", condition)
    assert not whole.faults, f"{whole.faults}\n{whole.said}"
    for moment in range(MOMENTS):
        folder = tmp_path / str(moment)
        folder.mkdir()
        after = whole.seconds * moment / (MOMENTS - 1)
        ended = harness.run(commands(trace)[command], folder, condition, send=number, after=after)
        assert not ended.faults, f"after {after:.2f} s: {ended.faults}\n{ended.said}"
