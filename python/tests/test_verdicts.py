"""Is every number of a verdict a counter's, and does every sort of run say what it should?

A file of ``verdicts/`` has the options of a run, and the verdict with a `#` for each number:
another execution of a program has other numbers, and makes the same claims. The numbers are
compared with the reports (``claims.py``). ``CONTIGUA_WRITE_VERDICTS=1`` writes the files anew.
"""

import json
import os
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from claims import Claims

import contigua
from conftest import ROOT
from contigua import Design, RunOptions
from contigua.reporting.cases import arrange
from contigua.reporting.sentences import verdict
from contigua.results import Results

pytestmark = pytest.mark.programs

FILES = sorted((ROOT / "python" / "tests" / "verdicts").glob("*.txt"))
#: A program's environment lies at the top of its stack: one of kilobytes moves the stack by a page,
#: and claims that are close to a threshold come and go.
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(Path.home())} | {
    name: value
    for name, value in os.environ.items()
    if name.startswith("CONTIGUA_") or name == "XDG_CACHE_HOME"
}


#: A number of a verdict. Intervals are not counters, and which digits a share
#: needs depends on its size.
NUMBER = (
    r"(?:(?:under|over) )?(?<![\w-])[-+]?\d[\d,.]*(?<![,.])(?:e[+-]\d+)?"
    r"(?: (?:thousand|million|billion|trillion))?(?: (?:ns|us|ms|s|min|MiB|GiB)\b)?(?: ± [\d.]+)?"
)


def masked(line):
    return re.sub(NUMBER, "#", line)


def claims_of(results, lines):
    """Check the lines of each case; those over several cases have no counters of their own."""
    cases = arrange(list(results)).cases
    for line in lines:
        case = next((name for name in cases if name and line.startswith(f"{name}: ")), "")
        if len(cases) > 1 and not case:
            continue
        runs = cases[case]
        Claims([run.values for run in runs], len(runs[0].seeds)).check(
            line.removeprefix(f"{case}: ")
        )


def test_there_are_twenty():
    assert len(FILES) >= 20


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_number_of_a_verdict_is_a_counters(file, cli, tmp_path):
    command, _, expected = file.read_text().partition("\n")
    written = tmp_path / "run.json"
    arguments = shlex.split(command.removeprefix("$ contigua run "))
    ran = cli("run", "--json", written, *arguments, cwd=ROOT, only=ENVIRONMENT)
    if written.exists():
        results = Results.from_json(written.read_text())
        lines = verdict(results)
        claims_of(results, lines)
    else:
        lines = [line for line in ran.stderr.splitlines() if line.startswith("contigua: ")]
    # What is shown is what was checked.
    assert all(line in ran.stderr + ran.stdout for line in lines)
    text = "".join(f"{masked(line)}\n" for line in lines)
    if os.environ.get("CONTIGUA_WRITE_VERDICTS"):
        file.write_text(f"{command}\n{text}")
    assert text == expected


def test_a_number_that_nobody_counted_is_noticed(cli, tmp_path):
    written = tmp_path / "run.json"
    ran = cli(
        "run", "--json", written, "--memory", "256M", "--", ROOT / "workloads/bin/tests/splits"
    )
    assert ran.returncode == 0, ran.stderr
    results = Results.from_json(written.read_text())
    kernel = results[1].values["kernel"]
    # As many as the program makes; the C library's start splits none.
    assert [kernel[f"splits_{call}"] for call in ("mprotect", "munmap", "madvise")] == [16, 8, 4]
    assert kernel["huge_page_splits"] == 28 + kernel["splits_mremap"] + kernel["splits_fault"]
    # Zeroing 2 MB takes longer than zeroing 4 KB.
    assert kernel["longest_stall_cycles"] > results[0].values["kernel"]["longest_stall_cycles"] > 0
    lines = verdict(results)
    claims_of(results, lines)
    for part, key in (("kernel", "splits_mprotect"), ("kernel", "huge_page_splits")):
        values = json.loads(written.read_text())
        values[1][part][key] += 7
        with pytest.raises(AssertionError, match="not what was counted"):
            claims_of(Results.from_json(json.dumps(values)), lines)
    with pytest.raises(AssertionError, match="nobody counted"):
        claims_of(results, ["linux-thp has 17 of something."])


def test_memory_that_khugepaged_fills_again_is_told_as_it_was_over_time(guest):
    fast = Design("linux-thp").with_({"translation.thp.scan_interval": "3ms"})
    options = RunOptions(memory="256MiB", detail="additive")
    results = contigua.run([guest("refill")], designs=["linux-4k", fast], options=options)
    lines = verdict(results)
    claims_of(results, lines)
    huge = results[1].values
    # 32 MB were given back page by page; some of it was filled again.
    assert huge["kernel"]["splits_madvise"] >= 15
    assert huge["kernel"]["huge_page_collapses"] > 0
    course = huge["residency"]
    mean = course["mean_huge_page_coverage"]
    columns = ("instructions", "resident_bytes", "huge_bytes")
    points = list(zip(*(course[name] for name in columns), strict=True))
    parts = [(now[0] - before[0], now) for before, now in pairwise(points)]
    resident, filled = (sum(part * now[place] for part, now in parts) for place in (1, 2))
    assert mean == pytest.approx(filled / resident, rel=0.02)
    # That of one instant would be another one.
    assert abs(mean - points[-1][2] / points[-1][1]) > 0.05
    assert abs(mean - huge["memory"]["huge_page_coverage"]) > 0.05
    assert any(line.startswith("Mean memory is") for line in lines)


def test_a_heap_that_waits_for_compaction_says_so(cli, guest, tmp_path):
    written = tmp_path / "run.json"
    options = ("--memory", "256M", "--age", "full", "--details", "--json", written)
    ran = cli("run", *options, "--", guest("stall"))
    assert ran.returncode == 0, ran.stderr
    results = Results.from_json(written.read_text())
    assert results[1].values["frames"]["direct_compactions"] > 0
    said = next(line for line in verdict(results) if line.startswith("linux-thp takes"))
    assert "direct compaction" in said and "one access waited" in said
    for row in ("direct compactions", "longest stall of an access"):
        assert f"│ {row} " in ran.stderr
