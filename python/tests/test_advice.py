"""Advice: does it name the right memory, and does it hold in the lab and natively?"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from test_schemas import strict

from conftest import ROOT
from contigua import RunOptions, advising
from contigua.advice import LIBRARY, RULES, Change, Item, Rule, rules_of
from contigua.advising import Advised, with_changes
from contigua.allocators import find_library
from contigua.attribution import ProfileError
from contigua.results import Results
from contigua.runner import run
from contigua.sampling import Sampling
from contigua.settings import SETTINGS

OPTIONS = RunOptions(memory="2GiB", detail="additive")
NODES = [ROOT / "target" / profile / "contigua-node" for profile in ("debug", "release")]
NODE = next((node for node in NODES if node.is_file()), None)
CULPRITS = str(ROOT / "workloads" / "bin" / "tests" / "culprits")
BUILT = find_library(LIBRARY)
pytestmark = pytest.mark.skipif(
    BUILT is None, reason=f"{LIBRARY} is not built (cargo build --release -p contigua-apply)"
)
needs_node = pytest.mark.skipif(
    NODE is None, reason="contigua-node is not built (cargo build -p contigua-node)"
)


#: Settings of the server are tried where a test is about them.
advise = partial(advising.advise, settings=())


@pytest.fixture(scope="module")
def mappings() -> Advised:
    return advise([CULPRITS, "mappings"], options=OPTIONS, settings=SETTINGS)


def test_of_two_mappings_of_one_size_the_random_one_is_advised(mappings: Advised) -> None:
    (item,) = mappings.advice.items
    assert "map_table" in item.change.name and item.is_run, item
    assert item.change.rule is not None and item.change.rule.bytes == 64 << 20
    assert [call.frame.function for call in item.change.rule.callers[:2]] == [
        "map_memory",
        "map_table",
    ]
    (refused,) = (one for one in mappings.advice.rejected if "map_array" in one.name)
    assert "page walks" in refused.why
    text = "\n".join(mappings.sentences())
    assert "MADV_HUGEPAGE" in text and "Does not help: anonymous 64 MB by map_memory" in text, text


def test_the_predicted_saving_is_the_difference_of_two_complete_runs(mappings: Advised) -> None:
    advice = mappings.advice
    (item,) = advice.items
    command = [CULPRITS, "mappings"]
    design = "linux-thp-madvise"
    changed = with_changes(OPTIONS, advice.program, [item.change])
    before, after = (
        run(command, designs=[design], options=options)[0] for options in (OPTIONS, changed)
    )
    # The environment of an execution moves its stack.
    assert before.values["time"]["cycles"] == pytest.approx(advice.cycles, rel=1e-3)
    saved = 1 - after.values["time"]["cycles"] / before.values["time"]["cycles"]
    # The trial is the server's doing, and has nothing of the library's own start.
    assert item.saving == pytest.approx(saved, abs=2e-3)
    assert advice.saving == item.saving > 0.1
    # The simulated kernel was asked for huge pages, and gave them to this mapping only.
    assert after.values["advice"]["huge"] == 1
    assert after.values["memory"]["resident_2m_bytes"] == 64 << 20
    assert before.values["memory"]["resident_2m_bytes"] == 0
    assert item.memory_bytes is not None and abs(item.memory_bytes) < 1 << 20


def test_settings_of_the_server_are_designs_on_one_execution(mappings: Advised) -> None:
    found = {tried.setting.name: tried for tried in mappings.advice.settings}
    # The profile's second design has huge pages everywhere, too.
    before, everywhere = (report.values for report in mappings.profiled.results)
    saved = 1 - everywhere["time"]["cycles"] / before["time"]["cycles"]
    thp = found["huge pages for all programs"]
    assert thp.saving == pytest.approx(saved, abs=1e-3)
    assert thp.memory_bytes == pytest.approx(
        sum(
            sign * values["memory"][f"resident_{size}_bytes"]
            for sign, values in ((1, everywhere), (-1, before))
            for size in ("4k", "2m", "1g")
        ),
        abs=1 << 20,
    )
    # 2 GB have no room for a 1 GB page beside the kernel's; one of 2 MB has the reach of THP.
    assert found["HugeTLB pages of 2 MB for all of its private memory"].saving > 0.1
    # This processor's TLBs have no entries of 64 KB: what folios save are faults.
    text = "\n".join(mappings.sentences())
    assert "On the server, huge pages for all programs save" in text, text


def test_on_used_memory_the_savings_of_fresh_memory_are_told(mappings: Advised) -> None:
    (fresh,) = mappings.advice.items
    assert fresh.fresh is None
    # One block of 2 MB in sixty is whole: half of what the table needs.
    options = replace(OPTIONS, age="scattered:0.8")
    advised = advise([CULPRITS, "mappings"], options=options, settings=SETTINGS[:1])
    (item,) = advised.advice.items
    assert item.fresh is not None and item.fresh[0] > item.saving > 0
    assert item.fresh[0] == pytest.approx(fresh.saving, abs=1e-2)
    assert "on fresh memory" in advised.sentences()[0]
    # Compaction that finds nothing takes what the others save.
    why = {one.name: one.why for one in advised.advice.rejected}
    assert "on fresh memory" in why["huge pages for all programs"]
    form = json.loads((ROOT / "docs" / "reference" / "node-advice.schema.json").read_text())
    values = tomllib.loads(advised.advice.to_toml())
    jsonschema.Draft202012Validator(strict(form)).validate(values)


def test_a_missing_library_is_told_before_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advising, "find_library", lambda _: None)
    monkeypatch.setattr(advising, "profile", lambda *_, **__: pytest.fail("the program ran"))
    with pytest.raises(ProfileError, match=f"no {LIBRARY}"):
        advise([CULPRITS, "mappings"], options=OPTIONS)


def test_the_file_has_the_form_of_its_schema(mappings: Advised) -> None:
    form = json.loads((ROOT / "docs" / "reference" / "node-advice.schema.json").read_text())
    values = tomllib.loads(mappings.advice.to_toml())
    jsonschema.Draft202012Validator(strict(form)).validate(values)
    notes = subprocess.run(["readelf", "-n", CULPRITS], capture_output=True, text=True, check=True)
    assert f"Build ID: {values['program']['build_id']}\n" in notes.stdout


@needs_node
def test_natively_the_random_mapping_alone_gets_huge_pages(
    mappings: Advised, tmp_path: Path
) -> None:
    if "[madvise]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("transparent huge pages are not for those who ask (madvise)")
    assert BUILT is not None
    file = tmp_path / "advice.toml"
    file.write_text(mappings.advice.to_toml())
    huge = {}
    for command in ([NODE, "apply", "--libraries", BUILT.parent, file, "--"], []):
        done = subprocess.run(
            [*command, CULPRITS, "mappings", "pages"], capture_output=True, text=True, check=True
        )
        assert done.stderr == "", done.stderr
        found = dict(re.findall(r"(\w+): (\d+) kB of huge pages", done.stdout))
        huge[bool(command)] = {name: int(value) for name, value in found.items()}
    assert huge[True] == {"random": 64 << 10, "ordered": 0}
    assert huge[False] == {"random": 0, "ordered": 0}


@needs_node
def test_the_lab_and_contigua_node_give_the_library_one_text(
    mappings: Advised, tmp_path: Path
) -> None:
    assert BUILT is not None
    program = "/usr/bin/env"
    items = (*mappings.advice.items, Item(Change("code", "huge-code"), 0.1))
    file = tmp_path / "advice.toml"
    file.write_text(replace(mappings.advice, program=program, items=items).to_toml())
    command = [NODE, "apply", "--libraries", BUILT.parent, file, "--", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    rules = rules_of(program, [item.change for item in items])
    assert rules is not None and "+" in rules, "no rule with callers"
    assert variables[RULES] == rules


def test_each_of_many_small_mappings_is_no_advice() -> None:
    advised = advise([CULPRITS, "many"], options=OPTIONS, runs=0)
    assert advised.advice.items == ()
    (refused,) = (one for one in advised.advice.rejected if "64 mappings" in one.name)
    assert "smaller than a huge page" in refused.why


def test_memory_of_malloc_is_for_its_own_settings() -> None:
    advised = advise([CULPRITS, "malloc"], options=OPTIONS)
    (item,) = advised.advice.items
    assert item.change.action in ("malloc-huge-pages", "contigua-malloc"), item
    assert item.saving > 0.1 and item.is_run


def test_sampled_trials_save_what_complete_ones_do(mappings: Advised) -> None:
    sample = Sampling(distance=100_000, warm=500_000)
    sampled = advise([CULPRITS, "mappings"], options=replace(OPTIONS, sample=sample), runs=1)
    (item,), (whole,) = sampled.advice.items, mappings.advice.items
    assert item.change == whole.change
    # Units are those of the same instructions: their own variation is no error of the saving.
    assert 0 < item.half_width < 0.03
    assert item.saving == pytest.approx(whole.saving, abs=item.half_width + 0.005)


PERL = [
    *("perl", "-e"),
    "my %h; $h{$_ * 7919} = $_ for 1 .. 60000; my $s = 0; $s += $h{$_ * 7919} for 1 .. 60000;",
]


# Perl's tables have another order in each execution: trials are parts of one.
@pytest.mark.parametrize("sample", [None, Sampling(distance=100_000, warm=500_000)])
def test_a_heap_that_grows_in_small_steps_gets_huge_pages_from_malloc(
    sample: Sampling | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    executions = []

    def kept(*args: Any, **options: Any) -> Results:
        executions.append(run(*args, **options))
        return executions[-1]

    monkeypatch.setattr(advising, "run", kept)
    # Huge pages for all memory reach no heap whose steps are smaller.
    advised = advise(PERL, options=replace(OPTIONS, sample=sample), runs=1)
    assert advised.profiled.results[1].values["memory"]["resident_2m_bytes"] == 0
    (item,) = advised.advice.items
    assert (item.change.action, item.is_run) == ("malloc-huge-pages", True)
    assert item.saving > item.half_width
    ((base, changed),) = executions
    assert base.values["executed"]["instructions"] == changed.values["executed"]["instructions"]


def test_a_heap_grows_in_the_steps_of_a_malloc_with_huge_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PERL_HASH_SEED", "0")
    changed = with_changes(OPTIONS, "perl", [Change("malloc", "malloc-huge-pages")])
    heap = replace(OPTIONS, advised=((), ({"process": 0},)))
    base, given = run(PERL, designs=["linux-thp-madvise"], options=heap)
    asked = run(PERL, designs=["linux-thp-madvise"], options=changed)[0]
    found = [one.values["memory"]["resident_2m_bytes"] for one in (base, given, asked)]
    assert found[0] == 0 < found[1] == found[2]
    parts = [one.values["time"]["breakdown"] for one in (base, given, asked)]
    costs = [part["tlb"] + part["walk"] + part["kernel"] for part in parts]
    # The variable moves the program's stack and, with it, which of its pages share sets.
    assert costs[1] == pytest.approx(costs[2], rel=0.15) and costs[1] < 0.8 * costs[0]


def test_a_trial_of_its_own_is_as_certain_as_two_executions_are_alike() -> None:
    (line,) = (
        one for one in advise(PERL, options=OPTIONS, runs=2).sentences() if "contigua" in one
    )
    assert " ± " in line, line


def test_what_is_not_run_is_an_estimate() -> None:
    advised = advise([CULPRITS, "hash"], options=OPTIONS, runs=0)
    items = advised.advice.items
    assert "map_table" in items[0].change.name and not any(item.is_run for item in items)
    assert advised.advice.saving is None and "by estimate" in advised.sentences()[0]
    # What is at stake is no estimate of what a change saves.
    assert all(item.change.action == "huge-pages" for item in items)


@pytest.mark.parametrize(
    ("designs", "options", "said"),
    [
        (["linux-4k", "linux-thp"], OPTIONS, "enabled = "),
        (["linux-thp-madvise"], OPTIONS, "two designs"),
        (["linux-thp-madvise", "linux-thp"], replace(OPTIONS, malloc="contigua"), "--malloc"),
        (["linux-thp-madvise", "linux-thp"], replace(OPTIONS, detail="translation"), "time"),
    ],
)
def test_what_allows_no_advice_is_refused(
    designs: list[str], options: RunOptions, said: str
) -> None:
    with pytest.raises(ProfileError, match=said):
        advise(["/bin/true"], designs=designs, options=options)


@needs_node
def test_a_static_program_has_no_advice_that_needs_a_loader(tmp_path: Path) -> None:
    static = ROOT / "workloads" / "bin" / "gups-static"
    command = [str(static), "--size", "8M", "--updates", "100000"]
    advised = advise(command, options=OPTIONS)
    (item,) = advised.advice.items
    assert item.change.action == "malloc-huge-pages", item
    file = tmp_path / "advice.toml"
    file.write_text(advised.advice.to_toml())
    done = subprocess.run(
        [str(NODE), "apply", file, "--", *command], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_rules_have_the_form_of_the_library() -> None:
    changes = [Change("a", "huge-pages", Rule(8 << 20, 1, 2)), Change("code", "huge-code")]
    text = rules_of(os.path.realpath("/proc/self/exe"), changes)
    assert text is not None and re.fullmatch(r"1;[0-9a-f]+;;m:8388608:1:;c", text), text
    assert rules_of("/nowhere", changes[1:]) == "1;=2f6e6f7768657265;;c"
    assert rules_of("/nowhere", [Change("m", "malloc-huge-pages")]) is None
