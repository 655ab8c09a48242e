"""Are all figures of the papers accounted for, and do all experiments run whatever one does?"""

import ast
import csv
import io
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from contigua import RunOptions
from contigua.sweeps.workloads import read_workload
from contigua_experiments import EXPERIMENTS, ExperimentError, find
from contigua_experiments.base import Outcome, Result, Sheet
from contigua_experiments.catalogue import read_catalogue
from contigua_experiments.everything import Entry, Record, _ending, crashed, kept, run_everything
from contigua_experiments.fingerprint import fingerprint
from contigua_experiments.imports import imported
from contigua_experiments.numbers import printed
from contigua_experiments.reproduction import (
    UNEXPLAINED,
    Account,
    document,
    standing,
    told,
    values,
)

#: An experiment that takes a second and needs nothing.
QUICK = "subrelease-square-wave"
#: One that executes programs.
PROGRAM = "page-walks"

PACKAGES = Path(__file__).parents[1]


def definitions():
    return [find(name) for name in EXPERIMENTS]


def test_every_figure_of_the_papers_has_an_experiment_or_a_reason():
    assert read_catalogue(definitions()).gaps() == []


def test_every_experiment_repeats_a_figure_or_has_a_question_of_its_own():
    catalogue = read_catalogue(definitions())
    for one in definitions():
        assert bool(one.reproduces) != (one.name in catalogue.beyond), one.name
    assert catalogue.beyond.keys() <= set(EXPERIMENTS)


def test_a_figure_that_no_paper_has_cannot_be_repeated():
    one = replace(find(QUICK), reproduces=("004 Table 44",))
    with pytest.raises(ExperimentError, match=r"subrelease-square-wave reproduces '004 Table 44'"):
        read_catalogue([one])


def test_a_figure_without_experiment_or_reason_is_a_gap():
    gaps = read_catalogue([]).gaps()
    assert "002 Figure 4" in gaps
    # A diagram has a reason.
    assert "002 Figure 1" not in gaps


def test_finished_experiments_are_not_run_again(tmp_path):
    one = find(QUICK)
    (first,) = run_everything([one], "quick", tmp_path)
    assert first.record.status == "finished" and not first.is_old
    assert (tmp_path / QUICK / "index.html").exists()
    (second,) = run_everything([one], "quick", tmp_path)
    assert second.is_old and second.record == first.record
    assert second.result.rows() == first.result.rows()
    # Its inputs have changed.
    other = replace(one, inputs={**one.inputs, "quick": {**one.inputs["quick"], "window": 299}})
    assert kept(other, "quick", tmp_path).result is None
    # A tolerance is no input: the verdict changes, and nothing is run.
    strict = replace(one.figures[0], kind="own", paper=None, require=(0.0, 1.0))
    judged = kept(replace(one, figures=(strict, *one.figures[1:])), "quick", tmp_path)
    assert judged.result.rows()[0][-1] == "fails"
    # What was interrupted has written no record, or a broken one.
    (tmp_path / QUICK / "run.json").write_text("{")
    assert kept(one, "quick", tmp_path).record is None


def test_failing_and_impossible_experiments_do_not_stop_the_others(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    unknown = replace(find(QUICK), name="no-such")
    entries = list(run_everything([unknown, find("memory-bloat"), find(QUICK)], "quick", tmp_path))
    assert [one.record.status for one in entries] == ["failed", "impossible", "finished"]
    assert "no experiment is called 'no-such'" in entries[0].record.reason
    assert "redis-server is not installed (Debian package" in entries[1].record.reason
    assert crashed(entries) == entries[:1]
    # They are tried again the next time.
    assert kept(find("memory-bloat"), "quick", tmp_path).result is None
    assert (
        "redis-server" in json.loads((tmp_path / "memory-bloat" / "run.json").read_text())["reason"]
    )


def test_a_process_that_is_killed_is_a_failure_with_its_signal():
    assert _ending(-9, "") == ("failed", "ended by SIGKILL")
    assert _ending(1, "") == ("failed", "ended with status 1")
    assert _ending(0, "anything") == ("finished", "")


def test_a_fingerprint_covers_the_code_that_a_module_imports():
    modules = imported("contigua_experiments.subrelease_redis", PACKAGES)
    assert {"contigua_experiments.native", "contigua_experiments.base", "contigua.files"} <= set(
        modules
    )
    assert "contigua_experiments.contiguitas_fleet" not in modules
    # Docstrings decide no figure.
    assert "Adaptive Subrelease, figures 4 and 5" not in ast.dump(
        imported("contigua_experiments.subrelease_square_wave", PACKAGES)[
            "contigua_experiments.subrelease_square_wave"
        ]
    )
    one = find(QUICK)
    assert fingerprint(one, "quick") == fingerprint(one, "quick") != fingerprint(one, "full")


def test_what_programs_did_on_another_processor_is_not_used_again(monkeypatch):
    def known():
        workload = read_workload("one", {"command": ["true"]}, Path())
        hashed = [fingerprint(find(name), "quick") for name in (PROGRAM, QUICK)]
        return *hashed, workload.key(RunOptions())

    monkeypatch.delenv("QEMU_CPU", raising=False)
    experiment, without_program, recording = known()
    monkeypatch.setenv("QEMU_CPU", "max")
    assert known()[0] != experiment
    assert known()[1] == without_program
    assert known()[2] != recording


#: Numbers that papers print, compared with by figures of :func:`entry`.
NUMBERS = {"met": "004 Table 4: GUPS, 4 KB", "off": "004 Table 4: GUPS, 2 MB"}
NUMBERS["new"] = "004 Table 4: GUPS, 1 GB"


def entry(**values):
    one = find(QUICK)
    compared = replace(one.figures[0], kind="compared", paper=(1.0, 1.0), tolerance=0.1, why="")
    figures = tuple(
        replace(
            compared, key=key, label=key, number=name, differs="of | it" if key == "off" else ""
        )
        for key, name in NUMBERS.items()
    )
    sure = replace(compared, key="sure", label="sure", kind="by construction", why="arithmetic")
    one = replace(one, figures=(*figures, sure))
    outcome = Outcome(
        {"met": 1.0, "off": 9.0, "new": 1.5, "sure": 1.0, **values}, lambda page: None
    )
    return Entry(one, Record("finished", "", "", 1.0, 1.0), Result(one, "full", {}, outcome), False)


def test_the_account_counts_printed_numbers_and_names_the_rest():
    others = [Entry(find(name), None, None, True) for name in EXPERIMENTS if name != QUICK]
    text = document([entry(), *others], read_catalogue(definitions()), "full")
    total = len(printed())
    first = text.splitlines()[2]
    assert first.startswith(
        f"The papers print {total} numbers as results: 3 are compared, 1 of these within "
        "tolerance (1 same shape, 1 differs); "
    )
    account = Account.of([entry(), *others])
    fitted, waiting = len(account.fitted), len(account.waiting)
    assert f"{waiting} wait for experiments that have not run; {fitted} were fitted to, " in first
    assert f"{total - 3 - fitted - waiting} nothing compares with" in first
    wanted = {f.number for one in others for f in one.definition.figures if f.kind == "compared"}
    assert {one.name for one in account.waiting} == wanted - set(NUMBERS.values())
    assert re.search(r"\| off \|.*\| differs \| of \\\| it \|", text)
    assert re.search(r"\| new \|.*\| same shape \|", text)
    waiting, missing = text.split("## Printed numbers whose experiments have not run")[1].split(
        "## Printed numbers that nothing compares with"
    )
    assert "- 004 Table 4: graph500, 4 KB;" in waiting and "GUPS, 4 KB" not in waiting + missing
    # Every figure of the papers is named, and each experiment, whether or not it has run.
    idle = text.split("Not run at full scale")[1]
    for item in read_catalogue(definitions()).items:
        where = rf"{re.escape(item.paper)}: [^|\n]*{re.escape(item.number)}\b"
        assert item.experiments or re.search(where, text), item
        assert all(name in idle for name in item.experiments if name != QUICK)
    assert told(entry()) == "1 within tolerance, 1 same shape, 1 differs"
    apart = replace(find(QUICK), apart="it takes an hour")
    assert told(Entry(apart, None, None, True)) == "left out: it takes an hour"
    assert text == document([entry(), *others], read_catalogue(definitions()), "full")


def test_a_quick_account_claims_nothing_about_papers():
    others = [Entry(find(name), None, None, True) for name in EXPERIMENTS if name != QUICK]
    text = document([entry(), *others], read_catalogue(definitions()), "quick")
    assert "which makes no claims" in text and "numbers as results" not in text
    assert "Printed numbers" not in text
    # What is off at this scale is told all the same, with its reason.
    assert re.search(r"\| off \|.*\| differs \| of \\\| it \|", text)
    assert not re.search(r"\| met \|", text)
    for item in read_catalogue(definitions()).items:
        where = rf"{re.escape(item.paper)}: [^|\n]*{re.escape(item.number)}\b"
        assert not item.experiments or re.search(where, text), item
    one = entry().result
    smoke = "A smoke test: no claim about a paper"
    assert smoke in replace(one, scale="quick").summary() and smoke not in one.summary()


def test_a_number_is_within_tolerance_only_if_all_that_compare_with_it_are():
    one = entry()
    twice = tuple(replace(figure, number=NUMBERS["met"]) for figure in one.definition.figures)
    definition = replace(one.definition, figures=twice)
    account = Account.of([replace(one, result=replace(one.result, definition=definition))])
    assert account.verdicts == {NUMBERS["met"]: "differs"}


def test_every_number_that_a_figure_names_is_printed_once():
    kinds = {"compared", "same shape", "own", "by construction", "fitted"}
    for one in definitions():
        assert {figure.kind for figure in one.figures} <= kinds
    names = [f.number for one in definitions() for f in one.figures if f.kind == "compared"]
    assert set(names) <= printed().keys()
    # What inputs were fitted to is compared by nothing.
    fitted = {f.number for one in definitions() for f in one.figures if f.kind == "fitted"}
    assert not fitted & set(names)


def test_the_table_of_values_has_every_figure():
    rows = list(csv.DictReader(io.StringIO(values([entry()]))))
    assert [row["figure"] for row in rows] == ["met", "off", "new", "sure"]
    assert [row["verdict"] for row in rows] == [
        "within tolerance",
        "differs",
        "same shape",
        "by construction",
    ]
    assert [row["reason"] for row in rows] == ["", "of | it", UNEXPLAINED, "arithmetic"]
    assert all(row["source"] and row["experiment"] == QUICK for row in rows)


def test_an_account_keeps_what_it_says_of_experiments_that_were_not_run():
    # Rounded to 9.0, it would be another value.
    ran = entry(off=9.04, new=None)
    table = values([ran])
    kept = standing(ran.definition, "quick", table.replace("differs", "cannot tell"))
    assert kept.is_old and kept.record is None
    assert values([kept]) == table.replace("differs", "cannot tell")
    assert Account.of([kept]).verdicts[NUMBERS["off"]] == "cannot tell"
    catalogue = read_catalogue(definitions())
    for scale in ("quick", "full"):
        assert document([standing(ran.definition, scale, table)], catalogue, scale) == document(
            [ran], catalogue, scale
        )
    # What the experiment's file says otherwise today is not known.
    assert standing(find(QUICK), "quick", table).result is None
    assert standing(ran.definition, "quick", "").result is None


def test_an_account_has_values_of_tables_and_keeps_them():
    heads = ["design", "needs", "fresh", "full"]
    cells = [["a", "runs", "1.0 ± 0.2", "does not run"], ["b", "blocks", "-0.1", "3.0"]]
    ran = entry()
    outcome = replace(ran.result.outcome, sheets=[Sheet("Gain, %", heads, cells, heads[2:])])
    ran = replace(ran, result=replace(ran.result, outcome=outcome))
    table = values([ran])
    rows = [row for row in csv.DictReader(io.StringIO(table)) if row["class"] == "value"]
    assert [(row["figure"], row["ours"], row["±"]) for row in rows] == [
        ("a: fresh", "1.0", "0.2"),
        ("a: full", "does not run", "-"),
        ("b: fresh", "-0.1", "-"),
        ("b: full", "3.0", "-"),
    ]
    kept = standing(ran.definition, "quick", table)
    assert values([kept]) == table
    assert kept.result.verdicts() == ran.result.verdicts()


def test_one_command_runs_and_accounts_for_all_experiments(cli, tmp_path):
    def run_all(*options):
        return cli("experiment", "run", "all", "--only", QUICK, *options, cwd=tmp_path)

    ran = run_all("--write", "account.md")
    assert ran.returncode == 0, ran.stderr
    assert f"{QUICK}: 2 holds" in ran.stderr and "2 holds" in ran.stdout
    assert "A smoke test: claims about papers take --full." in ran.stdout
    text = (tmp_path / "account.md").read_text()
    assert "average fragmentation, short period" in (tmp_path / "account.csv").read_text()
    again = run_all("--write", "account.md")
    assert "(kept)" in again.stderr
    assert (tmp_path / "account.md").read_text() == text
    assert "(kept)" not in run_all("--again").stderr


def children(pid):
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def test_an_experiment_ends_with_the_command_that_runs_it(tmp_path):
    command = [sys.executable, "-m", "contigua.cli", "experiment", "run", "all"]
    command += ["--only", "contiguitas-fleet"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as running:
        while not children(running.pid):
            assert running.poll() is None
            time.sleep(0.05)
        (one,) = children(running.pid)
        running.terminate()
        said = running.stderr.read()
        assert running.wait() != 0
    assert "Traceback" not in said
    # Wherever the signal met it.
    end = time.monotonic() + 60
    while Path(f"/proc/{one}").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert not (tmp_path / "contigua-results/all-quick/contiguitas-fleet/run.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("all", "--only", "contiguitas-flete"), "did you mean contiguitas-fleet"),
        (("all", "--write", "/no/such/folder/account.md"), "/no/such/folder/account.md"),
        ((QUICK, "--again"), "belong to `run all`"),
    ],
)
def test_impossible_requests_are_refused_before_any_experiment_runs(cli, tmp_path, arguments, said):
    ran = cli("experiment", "run", *arguments, cwd=tmp_path)
    assert ran.returncode != 0
    assert said in ran.stderr and "Traceback" not in ran.stderr
    assert not list(tmp_path.iterdir())


def test_the_list_has_the_figures_of_the_papers(cli):
    ran = cli("experiment", "list", "--figures")
    assert ran.returncode == 0, ran.stderr
    for item in read_catalogue(definitions()).items:
        assert item.shows in ran.stdout and (item.why or item.experiments[0]) in ran.stdout
