"""Is everything that is fetched to build this pinned, and are its licences in the packages?"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
BUILDS = re.compile(r"\bcargo (?:\+\w+ )?(?:miri )?(?:test|bench|build|clippy|run|rustc)\b.*")


def locked():
    """Names and versions of the lock file, with the number of hashes of each."""
    found = {}
    for part in re.split(r"\n(?=\S)", LOCK.read_text()):
        if match := re.match(r"([\w.-]+)==(\S+)", part):
            found[match[1].lower().replace("_", "-")] = (match[2], part.count("--hash=sha256:"))
    return found


def test_every_python_package_is_locked_with_hashes():
    known = locked()
    assert len(known) > 50 and all(hashes for _, hashes in known.values())
    needed = subprocess.run(
        [sys.executable, ROOT / "scripts" / "dependencies"], capture_output=True, text=True
    ).stdout
    for line in needed.splitlines():
        one = Requirement(line)
        version, _ = known[one.name.lower().replace("_", "-")]
        assert one.specifier.contains(version), f"{line}: {version} is locked; run `make lock`"


def test_the_environment_is_installed_from_the_lock_file():
    assert "--require-hashes -r requirements.lock" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(
    "file",
    ["Makefile", "scripts/binary", "scripts/sanitize-malloc", "scripts/test-malloc-aarch64"],
)
def test_cargo_builds_what_the_lock_file_says(file):
    lines = BUILDS.findall((ROOT / file).read_text())
    assert lines and all("--locked" in line for line in lines), lines
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["maturin"]["locked"]


def test_licences_of_what_is_linked_are_in_the_packages():
    known = (ROOT / "packaging" / "third-party-licences.txt").read_text()
    made = subprocess.run(
        [sys.executable, ROOT / "scripts" / "licences", "--check"], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    assert "zstd-sys" in known and "Permission is hereby granted" in known
    for place in ("pyproject.toml", "scripts/deb"):
        assert "packaging/third-party-licences.txt" in (ROOT / place).read_text()


def test_only_licences_that_are_allowed_are_used():
    deny = tomllib.loads((ROOT / "deny.toml").read_text())
    assert not [name for name in deny["licenses"]["allow"] if "GPL" in name]
    assert deny["sources"] == {"unknown-registry": "deny", "unknown-git": "deny"}
    assert (
        "cargo-deny --locked --offline check licenses bans sources"
        in (ROOT / "Makefile").read_text()
    )
