"""Are the services sound, as far as systemd can tell without starting them?"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).parents[2] / "packaging" / "systemd").glob("*.service"))
#: Exposure by ``systemd-analyze security``, in tenths; 0 is none, and below 45 it says "OK". What
#: is left is root's sight of memory: that is what they are for.
MOST_EXPOSED = {"contigua-node.service": 22, "contigua-node-guard.service": 20}

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd-analyze is missing; as root, run: apt-get install systemd",
)


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True, timeout=60
    )


def test_every_unit_is_known_here():
    assert {unit.name for unit in UNITS} == set(MOST_EXPOSED)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_a_unit(unit, tmp_path):
    # It looks for the program, which a test host does not have; any other stands for it.
    text = unit.read_text()
    assert "/usr/bin/contigua-node " in text
    copy = tmp_path / unit.name
    copy.write_text(text.replace("/usr/bin/contigua-node ", "/usr/bin/env "))
    verified = analyze("verify", "--man=no", "--recursive-errors=no", copy)
    said = verified.stdout + verified.stderr
    # Not a failure for systemd, but a line of ours that has no effect.
    assert "Unknown" not in said, said
    assert verified.returncode == 0, said


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_no_more_exposed_than_it_must_be(unit):
    secured = analyze("security", "--offline=yes", f"--threshold={MOST_EXPOSED[unit.name]}", unit)
    assert secured.returncode == 0, secured.stdout.splitlines()[-1] + secured.stderr
