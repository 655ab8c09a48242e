"""A design, machine, placement or scheme is one file, and a line where there is a list.

A copy of the tree gets all four. What CI runs there stays green: no result turns stale, and lints
and tests that look at all schemes, placements, designs and machines find nothing missing.
"""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from test_checks import RECORD

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv" / "bin"
#: Folder of the copy, whose build stays for the next time.
FOLDER = ROOT / "target" / "extending"
DATA = "python/contigua/data"
SCHEMES = "crates/translation/src/schemes"
POLICIES = "crates/frames/src/policies"

DESIGN = """description = "A victim TLB behind a placement that was just added"

[translation.victim]
entries = 32
huge.enabled = "never"

[placement.newcomer]
"""
#: Python's tests of what comes with the package.
PYTHON_TESTS = [
    f"python/tests/test_{name}.py"
    for name in (
        *("presets", "themes", "cross", "machines", "configs", "options", "schemas", "table"),
        *("words", "circles", "docs", "everything", "plot", "explore"),
    )
]


@pytest.fixture(scope="module")
def tree():
    """A copy of what git has, whose checks have passed, and to which the four files are added."""
    copy = FOLDER / "tree"
    # Pages' commands name it; a link is not to be cleared below.
    environment = copy / ".venv"
    environment.unlink(missing_ok=True)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    names = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    for file in [file for file in copy.rglob("*") if file.is_file()]:
        if str(file.relative_to(copy)) not in names:
            file.unlink()
    for name in names:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        # With its time: what is the same is not compiled again.
        shutil.copy2(ROOT / name, copy / name)
    shutil.copytree(ROOT / "workloads" / "bin", copy / "workloads" / "bin", dirs_exist_ok=True)
    environment.symlink_to(ROOT / ".venv")
    run(copy, "git", "init", "--quiet")
    run(copy, "python3", "-c", RECORD)
    extend(copy)
    run(copy, "git", "add", "--all")
    return copy


def extend(tree):
    """Add one file each, and the lines of scheme and placement."""
    shutil.copyfile(tree / "crates/translation/examples/victim.rs", tree / SCHEMES / "victim.rs")
    guide = (tree / "docs" / "adding-a-scheme.md").read_text()
    add_line(tree / SCHEMES / "mod.rs", re.search(r"(?s)```text\n(.*?victim.*?)```", guide)[1])
    policy = (tree / POLICIES / "illuminator.rs").read_text()
    policy = policy.replace('"illuminator"', '"newcomer"')
    (tree / POLICIES / "newcomer.rs").write_text(policy)
    line = '    /// As Illuminator.\n    newcomer: Newcomer, "newcomer";\n'
    add_line(tree / POLICIES / "mod.rs", line)
    (tree / DATA / "designs" / "newcomer.toml").write_text(DESIGN)
    machine = (tree / DATA / "machines" / "skylake.toml").read_text()
    machine = re.sub(r'(?m)^description = ".*"', 'description = "Newly bought"', machine)
    (tree / DATA / "machines" / "newcomer.toml").write_text(machine)


def add_line(file, line):
    """Add a line at the end of a list."""
    text, count = re.subn(r"(?ms)^(\w+! \{\n.*?)^\}", rf"\1{line}}}", file.read_text(), count=1)
    assert count == 1, file
    file.write_text(text)


def run(tree, *command, **environment):
    """Run a command in the copy, and say how long it took."""
    start = time.monotonic()
    variables = {
        "CARGO_TARGET_DIR": str(FOLDER / "build"),
        "CONTIGUA_PLUGIN": "/dev/null",
        "PYTHONPATH": str(tree / "python"),
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    ran = subprocess.run(
        command,
        cwd=tree,
        env=os.environ | variables | environment,
        capture_output=True,
        text=True,
    )
    print(f"{time.monotonic() - start:6.0f} s  {' '.join(command)[:100]}", flush=True)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-8000:]
    return ran.stdout


@pytest.mark.long
def test_additions_make_no_check_stale(tree):
    run(tree, "python3", "scripts/checks", "verify")


@pytest.mark.long
def test_lints_pass(tree):
    changed = [f"{SCHEMES}/victim.rs", f"{SCHEMES}/mod.rs", f"{POLICIES}/newcomer.rs"]
    run(tree, "rustfmt", "--edition", "2024", "--check", *changed)
    packages = ["-p", "contigua-frames", "-p", "contigua-translation", "-p", "contigua-machine"]
    run(tree, "cargo", "clippy", "--locked", *packages, "--all-targets", "--", "-D", "warnings")
    run(tree, "scripts/words")
    run(tree, "scripts/circles")


@pytest.mark.long
@pytest.mark.parametrize("crate", ["frames", "translation", "machine"])
def test_tests_of_the_crate_pass(tree, crate):
    run(tree, "cargo-nextest", "nextest", "run", "--locked", "-p", f"contigua-{crate}")


@pytest.mark.long
def test_the_design_runs_and_tests_of_python_pass(tree):
    build = ["cargo", "build", "--locked", "--profile", "quick", "-p", "contigua-py"]
    plugin = FOLDER / "plugin.so"
    run(tree, "cargo", "build", "--locked", "--release", "-p", "contigua-qemu-plugin")
    shutil.copyfile(FOLDER / "build" / "release" / "libcontigua_qemu_plugin.so", plugin)
    run(tree, *build, CONTIGUA_PLUGIN=str(plugin))
    module = tree / "python" / "contigua" / "_engine.abi3.so"
    shutil.copyfile(FOLDER / "build" / "quick" / "lib_engine.so", module)
    program = ["workloads/bin/gups", "--size", "64MiB", "--updates", "20000"]
    named = ["--designs", "newcomer", "--machine", "newcomer", "--memory", "1GiB"]
    run(tree, "contigua", "run", *named, "--json", "run.json", "--", *program)
    (report,) = json.loads((tree / "run.json").read_text())
    assert report["config"]["design_name"] == report["config"]["machine_name"] == "newcomer"
    assert sum(report["translation_scheme"].values()) > 0
    run(tree, "python", "scripts/site/compared.py")
    run(tree, "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long", *PYTHON_TESTS)
