"""Does a change to what a long check depends on make its result stale, and nothing else?"""

import itertools
import json
import re
import shutil
import subprocess
import sys
import tomllib
from datetime import date, timedelta
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SKIPS = ROOT / "scripts" / "skips"

#: Records every check as passed with its inputs as they are.
RECORD = """
import sys
sys.path.insert(0, "scripts/checks")
from catalogue import checks, write
kept = [one for one in checks() if one.has_result()]
write({one.name: {"inputs": one.fingerprint(), "passed": "", "seconds": 0} for one in kept})
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of what git has, in which every check has just passed."""
    copy = tmp_path_factory.mktemp("tree")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    subprocess.run([sys.executable, "-c", RECORD], cwd=copy, check=True)
    return copy


def verify(tree, *names):
    return subprocess.run(
        [sys.executable, "scripts/checks", "verify", *names],
        cwd=tree,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("file", "old", "new", "stale"),
    [
        ("crates/malloc/tests/c/stress.c", "", "int more;\n", {"sanitizers"}),
        ("kernel/src/mm/contiguitas/border.c", "", "int more;\n", {"kernel"}),
        ("vm-tests/test_guard.py", "", "MORE = 1\n", {"guests"}),
        ("crates/machine/tests/values.json", "{", '{"design new": {},', set()),
        ("crates/cache/src/migration/mod.rs", "", "const MORE: u8 = 1;\n", set()),
        (
            "crates/frames/src/policies/mod.rs",
            "policies! {\n",
            'policies! {\n    a: A, "a";\n',
            set(),
        ),
        ("crates/frames/src/policies/mod.rs", "", "const MORE: u8 = 1;\n", {"soak"}),
        ("python/contigua_experiments/subrelease_sweep.py", "", "MORE = 1\n", {"experiment"}),
        ("docs/reproduction-quick.csv", "8.0 times,-", "8.1 times,-", {"experiment"}),
        ("docs/reproduction-quick.md", "", "more\n", set()),
        ("crates/frames/src/lib.rs", "", "// A comment.\n", set()),
        ("python/contigua_experiments/page_walks.py", "", "# A comment.\n", set()),
        ("docs/glossary.md", "", "more\n", set()),
    ],
)
def test_an_input_that_changes_makes_its_checks_stale(tree, file, old, new, stale):
    path = tree / file
    before = path.read_text()
    path.write_text(before.replace(old, new, 1) if old else before + new)
    try:
        ran = verify(tree)
    finally:
        path.write_text(before)
    found = {line.split()[0].split("/")[0] for line in ran.stderr.splitlines()}
    assert stale <= found and (bool(stale) or not found), ran.stderr
    assert ran.returncode == bool(stale)
    for name in stale:
        assert f"run: make test-long CHECKS={name}" in ran.stderr


@pytest.mark.parametrize(
    ("file", "stale", "current"),
    [
        ("python/contigua/data/machines/zen-4.toml", "python", "experiment"),
        ("python/contigua/data/designs/colt.toml", "experiment/cross", "experiment/page-walks"),
        ("python/contigua/data/machines/skylake.toml", "experiment/page-walks", "soak"),
        ("crates/pageheap/src/heap/leave.rs", "experiment/subrelease-redis", "experiment/cross"),
        ("crates/qemu-plugin/src/blocks.rs", "experiment/page-walks", "experiment/tlb-coverage"),
        ("crates/py/src/lib.rs", "python", "experiment/page-walks"),
    ],
)
def test_an_experiment_depends_on_its_own_inputs_only(tree, file, stale, current):
    path = tree / file
    before = path.read_text()
    path.write_text(
        f"{before}\nconst MORE: u8 = 1;\n" if path.suffix == ".rs" else f"more=1\n{before}"
    )
    try:
        assert verify(tree, current).returncode == 0
        assert verify(tree, stale).returncode == 1
    finally:
        path.write_text(before)


@pytest.mark.parametrize(
    ("run", "stale", "current"),
    [
        ("design colt full", {"cross"}, {"page-walks", "subrelease-sweep"}),
        ("machine sandy-bridge", {"direct-segment-overhead"}, {"cross", "tlb-coverage"}),
        ("heap contiguitas-thp", {"heap-on-server", "subrelease-sweep"}, {"page-walks"}),
        ("ageing linux-thp ci", {"contiguitas-fleet", "cross"}, {"page-walks"}),
        ("cores llc", {"migration-downtime"}, {"page-walks", "cross"}),
    ],
)
def test_an_experiment_depends_on_the_golden_values_of_what_it_names(tree, run, stale, current):
    path = tree / "crates/machine/tests/values.json"
    before = path.read_text()
    known = json.loads(before)
    known[run]["all_numbers"] = "0"
    path.write_text(json.dumps(known))
    try:
        ran = verify(tree, "experiment")
    finally:
        path.write_text(before)
    found = {line.split()[0].removeprefix("experiment/") for line in ran.stderr.splitlines()}
    assert stale <= found and not current & found


def test_what_a_source_means_is_kept_until_it_or_the_rules_change(tree, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = tmp_path / "contigua" / "checks"
    assert verify(tree).returncode == 0
    first = {file.name: file.read_bytes() for file in kept.iterdir()}
    assert verify(tree).returncode == 0
    assert {file.name for file in kept.iterdir()} == first.keys()
    rules = tree / "python" / "contigua_experiments" / "imports.py"
    before = rules.read_text()
    rules.write_text(f"{before}# Other rules.\n")
    try:
        assert verify(tree).returncode == 0
    finally:
        rules.write_text(before)
    # All were found again, and are the same.
    again = [file.read_bytes() for file in kept.iterdir() if file.name not in first]
    assert sorted(again) == sorted(first.values())


def test_a_design_that_comes_along_makes_nothing_stale(tree):
    files = [
        tree / f"python/contigua/data/{kind}s/newcomer.toml"
        for kind in ("design", "machine", "profile")
    ]
    try:
        for file in files:
            file.write_text('description = "New."\n')
        assert verify(tree).returncode == 0
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def test_an_experiment_on_a_design_without_golden_values_is_an_error(tree):
    values = tree / "crates/machine/tests/values.json"
    before = values.read_text()
    kept = {run: one for run, one in json.loads(before).items() if " colt " not in run}
    values.write_text(json.dumps(kept))
    try:
        ran = verify(tree, "experiment/cross")
    finally:
        values.write_text(before)
    assert ran.returncode == 2 and "values:design colt: " in ran.stderr


def test_a_design_that_another_is_based_on_is_an_input(tree):
    file = tree / "python/contigua/data/designs/colt.toml"
    base = tree / "python/contigua/data/designs/newcomer.toml"
    before = file.read_text()
    try:
        base.write_text('description = "New."\n')
        file.write_text(f'base = "newcomer"\n{before}')
        subprocess.run([sys.executable, "-c", RECORD], cwd=tree, check=True)
        base.write_text('description = "Changed."\n')
        assert verify(tree, "experiment/cross").returncode == 1
        assert verify(tree, "experiment/page-walks").returncode == 0
    finally:
        file.write_text(before)
        base.unlink(missing_ok=True)
        subprocess.run([sys.executable, "-c", RECORD], cwd=tree, check=True)


DRAWN = "sh -c 'sed s/87.6/{value}/ docs/reproduction-quick.csv >{{folder}}/reproduction-quick.csv'"


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("heap-on-server", "87.60", 1),
        ("heap-on-server", "87.6", 0),
        ("page-walks", "88.0", 0),
        ("page-walks", "98.0", 1),
    ],
)
def test_figures_that_are_computed_again_are_the_stored_ones(tree, name, value, status):
    catalogue, passed = tree / "checks" / "catalogue.toml", tree / "checks" / "passed.json"
    stored = tree / "docs" / "reproduction-quick.csv"
    before = {path: path.read_text() for path in (catalogue, passed, stored)}
    known = json.loads(before[passed])
    names = {f"experiment/{name}"}
    passed.write_text(json.dumps({key: one for key, one in known.items() if key in names}))
    catalogue.write_text(
        re.sub(r'(?m)^drawn = ".*"', f'drawn = "{DRAWN.format(value=value)}"', before[catalogue])
    )
    row = rf'(?m)^({name},(?:"[^"]*"|[^,"]*),[^,]*),[-0-9.]+'
    stored.write_text(re.sub(row, r"\1,87.6", before[stored]))
    try:
        for arguments in (["init", "-q"], ["-c", "user.name=A", "-c", "user.email=a@b", "commit"]):
            more = ["--allow-empty", "-qm", "one"] if "commit" in arguments else []
            subprocess.run(["git", *arguments, *more], cwd=tree, check=True)
        ran = subprocess.run(
            [sys.executable, "scripts/checks", "drawn"], cwd=tree, capture_output=True, text=True
        )
    finally:
        for path, text in before.items():
            path.write_text(text)
        shutil.rmtree(tree / ".git", ignore_errors=True)
    assert f"HEAD draws experiment/{name}" in ran.stdout
    assert ran.returncode == status, ran.stderr
    assert ("in docs/reproduction-quick.csv, and now" in ran.stderr) == bool(status)


@pytest.mark.parametrize(
    ("status", "presets", "problem"),
    [
        ("finished", ["designs/hugetlb-2m.toml", "machines/skylake.toml"], ""),
        (
            "finished",
            ["designs/colt.toml"],
            "it reads python/contigua/data/designs/colt.toml: add",
        ),
        ("impossible", [], "impossible: no memcached"),
    ],
)
def test_stale_experiments_are_run_without_the_others(tree, status, presets, problem):
    files = ("python/contigua_experiments/page_walks.py", "docs/reproduction-quick.csv")
    catalogue, passed = tree / "checks" / "catalogue.toml", tree / "checks" / "passed.json"
    before = {
        path: path.read_text() for path in (*(tree / one for one in files), catalogue, passed)
    }
    command = "sh -c 'sed -i s/reproduced/differs/ docs/reproduction-quick.csv'"
    text = before[catalogue].replace('command = "make experiments"', f'command = "{command}"')
    catalogue.write_text(text)
    found = tree / "contigua-results" / "all-quick" / "page-walks"
    found.mkdir(parents=True, exist_ok=True)
    record = {"status": status, "seconds": 12.5, "reason": "no memcached"}
    (found / "run.json").write_text(json.dumps(record))
    (found / "presets.json").write_text(json.dumps(presets))
    try:
        subprocess.run([sys.executable, "-c", RECORD], cwd=tree, check=True)
        (tree / files[0]).write_text(before[tree / files[0]] + "MORE = 1\n")
        run = [sys.executable, "scripts/checks", "renew", "experiment"]
        ran = subprocess.run(run, cwd=tree, capture_output=True, text=True)
        assert f"== experiment/page-walks: {command} EXPERIMENTS=page-walks\n" in ran.stdout
        assert f"== experiment/page-walks: {problem}" in ran.stderr or not problem
        assert verify(tree, "experiment").returncode == bool(problem)
        took = json.loads(passed.read_text())["experiment/page-walks"]["seconds"]
        assert took == (0 if problem else 12.5)
    finally:
        for path, text in before.items():
            path.write_text(text)


def test_a_check_that_has_never_passed_is_not_current(tree):
    passed = tree / "checks" / "passed.json"
    before = passed.read_text()
    known = json.loads(before)
    del known["soak"]
    passed.write_text(json.dumps(known))
    try:
        ran = verify(tree, "soak")
    finally:
        passed.write_text(before)
    assert ran.returncode == 1 and "soak is never passed" in ran.stderr


def test_an_unknown_check_is_named(tree):
    ran = verify(tree, "sok")
    assert ran.returncode == 2
    assert "no check is called sok; there are breaks, changed, " in ran.stderr


@pytest.mark.parametrize(
    ("variables", "status"), [({}, 0), ({"CI": "true"}, 1)], ids=["at home", "in CI"]
)
def test_a_skip_is_an_error_where_everything_is_installed(tmp_path, variables, status):
    file = tmp_path / "skipped"
    file.write_text("test_a: no compiler\n")
    ran = subprocess.run([SKIPS, file], capture_output=True, text=True, env=variables)
    assert ran.returncode == status
    assert "skipped: test_a: no compiler" in ran.stdout
    assert "tests skipped: 1, of which 1 should run here" in ran.stdout


def test_every_crate_with_tests_is_run():
    makefile = (ROOT / "Makefile").read_text()
    excluded = set(re.findall(r"--exclude (\S+)", makefile))
    assert excluded == {"contigua-qemu-plugin", "contigua-py"}


def test_every_crate_has_planted_faults_whose_places_are_found():
    faults = tomllib.loads((ROOT / "checks" / "faults.toml").read_text())["fault"]
    crates = {file.parent.name for file in (ROOT / "crates").glob("*/Cargo.toml")}
    assert {fault["file"].split("/")[1] for fault in faults} == crates
    found = {(f["file"], f["old"]): (ROOT / f["file"]).read_text().count(f["old"]) for f in faults}
    assert set(found.values()) == {1}, [place for place, count in found.items() if count != 1]


def test_every_target_that_checks_something_is_in_the_catalogue():
    """Those that others run are named with them."""
    makefile = (ROOT / "Makefile").read_text()
    within = {"test-rust", "test-python", "test-guests", "test-programs", "test-workloads"}
    runs_checks = {"test-long", "test-release", "verify-checks", "verify-release", "checks"}
    names = (
        r"^((?:test|check|verify|fuzz|miri|mutants|properties|soak|hazards|long)[\w-]*)\b.*:(?!=)"
    )
    targets = {name for line in re.findall(names, makefile, re.M) for name in line.split()}
    listed = (ROOT / "checks" / "catalogue.toml").read_text()
    commands = set(re.findall(r'^command = "make ([\w-]+)"', listed, re.M))
    assert targets - within - runs_checks <= commands


def test_checks_before_a_release_do_not_fail_ci(tree):
    passed = tree / "checks" / "passed.json"
    before = passed.read_text()
    known = {name: one for name, one in json.loads(before).items() if name != "miri"}
    passed.write_text(json.dumps(known))
    try:
        assert verify(tree).returncode == 0
        ran = verify(tree, "--release")
    finally:
        passed.write_text(before)
    assert ran.returncode == 1 and "miri is never passed" in ran.stderr


def test_the_list_has_every_check_with_its_gate(tree):
    ran = subprocess.run(
        [sys.executable, "scripts/checks", "list"], cwd=tree, capture_output=True, text=True
    )
    gates = [line.split()[1] for line in ran.stdout.splitlines()]
    assert [gate for gate, _ in itertools.groupby(gates)] == ["commit", "CI", "long", "release"]


def test_a_stale_check_is_due_within_days_of_its_last_pass(tree):
    passed = tree / "checks" / "passed.json"
    before = passed.read_text()
    known = json.loads(before)

    def soak(day, *options):
        known["soak"] = {"inputs": "others", "passed": str(day), "seconds": 1.0}
        passed.write_text(json.dumps(known))
        return verify(tree, "soak", *options)

    today = date.today()
    try:
        due = soak(today - timedelta(days=7), "--grace", "7")
        late = soak(today - timedelta(days=8), "--grace", "7")
        strict = soak(today)
        del known["soak"]
        passed.write_text(json.dumps(known))
        never = verify(tree, "soak", "--grace", "7")
    finally:
        passed.write_text(before)
    assert due.returncode == 0 and "due within 7 days" in due.stderr
    assert late.returncode == strict.returncode == never.returncode == 1
    assert "1 overdue" in late.stdout and "soak is never passed" in never.stderr
