"""Does a run's table show what matters, in every form, and is its verdict what was measured?"""

import copy
import csv
import io
import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from conftest import ROOT
from contigua import cli
from contigua.printing import printable
from contigua.reporting.cases import arrange
from contigua.reporting.sentences import headlines, verdict
from contigua.reporting.tables import main_table, whole_table
from contigua.reports import Report
from contigua.results import Results
from contigua.schemas import current
from contigua.table import ROWS, compare, table_markdown

SEED = current(json.loads((ROOT / "fuzz" / "seeds" / "results" / "run.json").read_text())[0])


def report(design, cycles=1_000_000, *, kernel=0.1, instructions=5_000_000, **more):
    """A report of a run of one core; ``more`` has what else differs from the seed."""
    values = copy.deepcopy(SEED)
    values["config"] |= {"design_name": design, "age": more.get("age", "fresh")}
    values["complete"] = more.get("complete", True)
    values["executed"]["instructions"] = instructions
    spent = dict.fromkeys(values["time"]["breakdown"], 0) | {"kernel": round(kernel * cycles)}
    spent["data"] = cycles - spent["kernel"]
    values["time"] = {"cycles": cycles, "busy_cycles": cycles, "ipc": 1.5, "breakdown": spent}
    if "overhead" in more:
        values["time"]["translation_overhead"] = more["overhead"]
    if "active" in more:
        values["time"]["walk_active"] = round(more["active"] * cycles)
    values["translation"] |= {"walks_4k": more.get("walks", 0), "walks_2m": 0, "walks_1g": 0}
    values["memory"]["huge_page_coverage"] = more.get("coverage", 0.0)
    values["residency"]["mean_huge_page_coverage"] = more.get("mean", more.get("coverage", 0.0))
    values["residency"]["mean_resident_bytes"] = more.get("resident", 64) << 20
    for part in ("kernel", "frames"):
        values[part] |= more.get(part + "_counters", {})
    if "sample" in more:
        values["sample"] = more["sample"]
    return Report(json.dumps(values))


def sample(cycles, half, *, units=1000, quantile=2.0, seed=0, **halves):
    """Return the sampling of a run whose units take about equal shares of its cycles."""
    noise = half * units / quantile / units**0.5 if quantile else 0
    spent = [round(cycles / units + (noise if unit % 2 else -noise)) for unit in range(units)]
    parts = ("issue", "branch", "dependence", "fetch", "tlb", "walk")
    by_unit = {part: [0] * units for part in parts} | {"data": spent}
    by_unit["instructions"] = [10_000] * units
    estimates = {"cycles": half, **halves}
    return {
        "sampling": {"distance": 500_000, "offset": seed},
        "confidence": 0.95,
        "quantile": quantile,
        "units": units,
        "by_unit": by_unit,
        "estimates": {key: {"value": 0, "half_width": one} for key, one in estimates.items()},
    }


SMALL = report("linux-4k", overhead=0.4, active=0.5, walks=360_000)
HUGE = report("linux-thp", 600_000, overhead=0.02, active=0.03, coverage=0.99, walks=250)
PAIR = Results((SMALL, HUGE))


def labels(results, *, details=False):
    return [line[0] for section in compare(results, details=details).sections for line in section]


def cells(results, label):
    return next(
        line[1:]
        for section in compare(results, details=True).sections
        for line in section
        if line[0] == label
    )


# The rows.


def test_about_ten_rows_matter_and_translation_overhead_follows_cycles_and_ipc():
    assert labels(PAIR)[:5] == [
        "instructions",
        "cycles",
        "instructions per cycle",
        "translation overhead",
        "walk-active cycles",
    ]
    assert 9 <= len(labels(PAIR)) <= 13
    assert "cycles stalled on walks" not in labels(PAIR)
    whole = labels(PAIR, details=True)
    assert set(labels(PAIR)) < set(whole)
    assert whole.index("cycles stalled on walks") > whole.index("translation overhead")


def test_translation_overhead_and_walk_active_cycles_are_read_from_the_report():
    assert cells(PAIR, "translation overhead") == ("40.0 %", "2.0 %")
    assert cells(PAIR, "walk-active cycles") == ("50.0 %", "3.0 %")
    row = HUGE.summary()
    assert (row["translation_overhead"], row["walk_active_share"]) == (0.02, 0.03)


def test_values_of_some_columns_are_dashes_in_others_and_rows_of_none_are_left_out():
    old = report("linux-4k")
    assert cells(Results((old, HUGE)), "translation overhead") == ("-", "2.0 %")
    rows = labels(Results((old, report("linux-thp"))), details=True)
    assert "translation overhead" not in rows and "walk-active cycles" not in rows
    assert "unmovable region" not in rows
    # Nothing is read twice, and null is absent.
    assert report("linux-4k", overhead=None).summary()["translation_overhead"] is None


def test_rare_rows_are_there_where_they_are_not_zero():
    values = SMALL.values
    values["kernel"]["interprocessor_interrupts"] = 7
    several, label = Results((Report(json.dumps(values)),)), "inter-processor interrupts"
    assert label in labels(several, details=True)
    assert label not in labels(PAIR, details=True)


def test_the_title_says_how_sure_intervals_are_and_cells_have_them():
    sampled = report("a", overhead=0.4, sample=sample(1_000_000, 20_000, translation_overhead=0.01))
    found = compare(Results((sampled,)))
    assert found.title.endswith("± for 95 % confidence")
    assert cells(Results((sampled,)), "translation overhead") == ("40.0 ± 1.0 %",)
    assert cells(Results((sampled,)), "cycles") == ("1,000,000 ± 2.0 %",)


def test_a_reports_tables_have_the_same_rows():
    runs = arrange(list(PAIR))
    assert list(main_table(runs).heads[2:]) == labels(PAIR)
    assert list(whole_table(runs).heads[2:]) == labels(PAIR, details=True)


def test_every_row_is_a_key_of_the_summary():
    assert set(ROWS) <= set(SMALL.summary())


# The forms.


def test_markdown_has_every_row_and_breaks_no_table():
    odd = report("a|b\x1b")
    text = table_markdown(Results((odd, HUGE)))
    head, line, *rows = text.splitlines()
    assert r"a\|b\x1b, fresh" in head and line == "|---|---:|---:|"
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == labels(
        Results((odd, HUGE)), details=True
    )


def test_csv_has_every_key_and_the_intervals():
    sampled = report("a", sample=sample(1_000_000, 20_000.0))
    rows = list(csv.DictReader(io.StringIO(Results((sampled, HUGE)).to_csv())))
    assert set(SMALL.summary()) <= set(rows[0])
    assert [row["cycles"] for row in rows] == ["1000000", "600000"]
    assert [row["cycles_half_width"] for row in rows] == ["20000", ""]
    assert [row["translation_overhead"] for row in rows] == ["", "0.02"]
    assert "_half_width" not in PAIR.to_csv()


def test_a_notebook_shows_the_verdict_and_folds_the_details():
    html = PAIR._repr_html_()
    before, _, folded = html.partition("<details>")
    assert "<p>linux-thp is fastest" in before and "translation overhead" in before
    assert "cycles stalled on walks" in folded and "cycles stalled on walks" not in before


@pytest.fixture
def command(monkeypatch):
    """The command line, whose runs end at once with the pair of reports above."""

    def invoke(*arguments, results=PAIR):
        monkeypatch.setattr("contigua.commands.run.run", lambda *_, **__: results)
        return CliRunner().invoke(cli.cli, ["run", *map(str, arguments)])

    return invoke


def test_the_verdict_stands_above_the_table(command):
    said = command("--", "true").stderr
    assert said.index("linux-thp is fastest") < said.index("instructions per cycle")
    assert "cycles stalled on walks" not in said
    assert "cycles stalled on walks" in command("--details", "--", "true").stderr


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("markdown", table_markdown(PAIR)),
        ("csv", PAIR.to_csv()),
        ("json", PAIR.to_json()),
    ],
)
def test_standard_output_gets_only_the_requested_format(command, form, text):
    for program in (("--", "true"), ("--trace", "x.trace")):
        ran = command("--format", form, *program)
        assert (ran.stdout, ran.stderr) == (text, "")


def test_a_form_does_not_share_standard_output(command):
    ran = command("--format", "csv", "--json", "-", "--", "true")
    assert ran.exit_code == 2 and "--format csv takes standard output" in ran.output


def test_a_programs_own_output_goes_to_standard_error_then(cli):
    plain = cli("run", "--detail", "translation", "--", "echo", "hello")
    assert plain.stdout == "hello\n"
    ran = cli("run", "--detail", "translation", "--format", "json", "--", "echo", "hello")
    assert ran.returncode == 0, ran.stderr
    assert "hello" in ran.stderr
    assert [one["config"]["design_name"] for one in json.loads(ran.stdout)] == [
        "linux-4k",
        "linux-thp",
    ]


def test_a_form_that_cannot_be_written_makes_the_exit_status_1():
    line = 'exec "$@" >/dev/full'
    run = ["run", "--detail", "translation", "--format", "csv", "--", "true"]
    command = ["sh", "-c", line, "sh", sys.executable, "-m", "contigua.cli", *run]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)
    assert (ran.returncode, ran.stderr) == (
        1,
        "contigua: standard output: No space left on device\n",
    )


# The sentences.


def test_three_sentences_say_which_design_is_fastest_and_why():
    assert verdict(PAIR) == [
        "linux-thp is fastest: 600.0 thousand cycles, 40 % fewer than linux-4k (1.0 million).",
        "linux-thp takes 400.0 thousand cycles fewer: translation overhead -388.0 thousand, kernel "
        "cycles -40.0 thousand, other cycles of the program +28.0 thousand; translation overhead "
        "down from 40.0 % to 2.0 % of cycles, L2 TLB misses down from 72.00 to 0.05 per thousand "
        "instructions.",
        "Mean huge-page coverage is 99 % under linux-thp and 0 % under linux-4k; at the start, "
        "100 % of memory was free in whole 2 MB blocks.",
    ]


def test_every_design_that_differs_is_explained_by_what_was_counted():
    failed = {"huge_page_fallbacks": 60, "huge_page_splits": 64, "pages_moved": 12}
    failed |= {"splits_mprotect": 60, "splits_fault": 4, "longest_stall_cycles": 3_150_000}
    slow = report(
        "slow",
        1_300_000,
        kernel=0.3,
        overhead=0.3,
        kernel_counters=failed,
        frames_counters={"direct_compactions": 7},
    )
    fast, alike = report("fast", 800_000, overhead=0.3), report("alike", 1_001_000, overhead=0.4)
    said = verdict(Results((SMALL, slow, fast, alike)))
    explained = {line.split()[0]: line for line in said[1:-1]}
    assert list(explained) == ["fast", "slow"]
    # What is said of a design is what its counters have, and nothing of the others.
    assert explained["slow"].endswith(
        "; 60 huge-page faults found no free 2 MB block, with no background compaction within "
        "619 us; 7 direct compactions; 12 of the program's pages were moved; 64 huge pages were "
        "split (60 by mprotect and 4 by a fault); one access waited 1.5 ms for the kernel, the "
        "longest under linux-4k 0 s."
    )
    assert explained["slow"].startswith("slow takes 300.0 thousand cycles more: kernel cycles +290")
    assert "huge-page faults" not in explained["fast"]
    counted = {"background_compactions": 2, "proactive_compactions": 1}
    late = report("slow", 1_300_000, kernel_counters=failed, frames_counters=counted)
    assert (
        "block, with 3 background compactions within 619 us;" in verdict(Results((SMALL, late)))[1]
    )


def test_no_part_of_a_difference_is_a_share_of_it():
    for cycles, kernel, overhead in (
        (1_010_000, 0.6, 0.1),
        (990_000, 0.01, 0.9),
        (5_000, 0.9, 0.1),
    ):
        one = report("linux-thp", cycles, kernel=kernel, overhead=overhead)
        line = verdict(Results((SMALL, one)))[1].split(";")[0]
        assert "%" not in line and "minus" not in line


def test_a_perforated_design_that_loses_says_what_holes_cost():
    slow = report("perforated", 1_200_000, overhead=0.5, coverage=0.97)
    values = slow.values
    values["translation_scheme"] = {"bitmap_fills": 284_000, "hole_walks": 117_000}
    said = verdict(Results((SMALL, Report(json.dumps(values)))))[1]
    assert said.endswith(
        "; 284.0 thousand L2 TLB misses read which sub-pages of a perforated page are holes; 117.0 "
        "thousand walked again for a 4 KB page in a hole."
    )
    assert cells(Results((SMALL, Report(json.dumps(values)))), "holes looked up") == (
        "0",
        "117,000",
    )


def test_simulated_time_stands_beside_the_time_between_scans():
    huge = HUGE.values
    huge["config"]["design"] = {"translation": {"thp": {"scan_interval": "10s"}}}
    small = SMALL.values
    small["config"]["design"] = {"translation": {"base": {}}}
    both = Results((Report(json.dumps(small)), Report(json.dumps(huge))))
    # A million cycles at 2,100 MHz.
    assert cells(both, "simulated time") == ("476 us", "286 us")
    assert cells(both, "khugepaged's scan interval") == ("-", "10 s")
    # Next to each other, in the short table, too.
    for details in (False, True):
        rows = labels(both, details=details)
        time = rows.index("simulated time")
        assert rows[time + 1] == "khugepaged's scan interval"
    # linux-4k has no khugepaged.
    base = labels(Results((Report(json.dumps(small)),)))
    assert "simulated time" in base and "khugepaged's scan interval" not in base


def test_coverage_is_that_over_time_and_memory_is_told_where_it_differs():
    refilled = report("linux-thp", 600_000, coverage=0.98, mean=0.31, resident=192)
    said = verdict(Results((SMALL, refilled)))
    assert "Mean huge-page coverage is 31 % under linux-thp" in said[-2]
    assert said[-1] == "Mean memory is 64.0 MiB under linux-4k and 192.0 MiB under linux-thp."
    near = report("linux-thp", 600_000, resident=67)
    assert not any("Mean memory" in line for line in verdict(Results((SMALL, near))))


def test_parts_of_a_difference_add_up_to_it():
    slow = report("linux-thp", 1_200_000, kernel=0.4, overhead=0.3)
    base = report("linux-4k", 1_000_000, kernel=0.1, overhead=0.4)
    said = verdict(Results((base, slow)))[1]
    # Kernel: 480 against 100 thousand; translation: 360 against 400; the rest: 360 against 500.
    assert (
        "200.0 thousand cycles more: kernel cycles +380.0 thousand, translation overhead -40.0 "
        "thousand, other cycles of the program -140.0 thousand"
    ) in said


def test_what_is_left_of_a_difference_is_named_only_beyond_the_error_of_its_parts():
    # Translation: 388 thousand; kernel: 40; so 28 are left, beside 10 (1 % of a million) or 40.
    for half, named in ((0.01, True), (0.04, False)):
        base, huge = (
            report(
                design, cycles, overhead=share, sample=sample(cycles, 10, translation_overhead=of)
            )
            for design, cycles, share, of in (
                ("linux-4k", 1_000_000, 0.4, half),
                ("linux-thp", 600_000, 0.02, 0.0),
            )
        )
        said = verdict(Results((base, huge)))[1]
        assert ("other cycles of the program +28.0 thousand" in said) == named, said


def test_without_translation_overhead_nothing_is_said_of_what_translation_costs():
    results = Results((report("linux-4k", kernel=0.2), report("linux-thp", 600_000, kernel=0.1)))
    said = " ".join(verdict(results))
    assert "cycles of the program -260.0 thousand, kernel cycles -140.0 thousand" in said
    assert "overhead" not in said and "page walks take" not in said.lower()


def test_no_difference_is_called_one():
    for cycles in (1_000_000, 996_000, 1_004_000):
        found = verdict(Results((SMALL, report("linux-thp", cycles, overhead=0.4))))
        assert found[0] == (
            "All designs are equally fast: within 0.5 % of linux-4k's 1.0 million cycles."
        )
        assert found[1].startswith("linux-4k's cycles: 40 % translation overhead and 10 % kernel")


def test_every_design_is_told_where_none_is_faster():
    slower = [report("a", 1_100_000), report("b", 1_100_000), report("c", 1_001_000)]
    assert verdict(Results((report("linux-4k"), *slower)))[0] == (
        "No design is faster than linux-4k (1.0 million cycles); c is no faster; "
        "a and b take 10 % more."
    )


def test_a_difference_is_told_with_its_interval_and_not_within_it():
    base = report("linux-4k", sample=sample(1_000_000, 20_000))
    fast = report("linux-thp", 700_000, sample=sample(700_000, 14_000))
    said = verdict(Results((base, fast)))[0]
    # Of 1000 units of 10,000 instructions, of which 5 million count.
    assert "30.0 ± " in said and " % fewer than linux-4k" in said
    near = report("linux-thp", 990_000, sample=sample(990_000, 500_000, seed=1))
    said = verdict(Results((base, near)))[0]
    assert "equally fast: within 52 %" in said


def test_a_translation_overhead_within_its_interval_explains_nothing():
    wide = {"translation_overhead": 0.3}
    base = report("linux-4k", overhead=0.4, sample=sample(1_000_000, 1000, **wide))
    fast = report("linux-thp", 700_000, overhead=0.2, sample=sample(700_000, 1000, **wide))
    said = verdict(Results((base, fast)))[1]
    assert "translation overhead" not in said and "cycles of the program" in said


def test_a_single_unit_gives_no_verdict():
    alone = sample(1_000_000, None, units=1, quantile=None)
    base, fast = report("linux-4k", sample=alone), report("linux-thp", 500_000, sample=alone)
    said = verdict(Results((base, fast)))
    assert said[0] == "Too few units were sampled to compare designs; lower --sample-distance."
    assert not any("fastest" in line or "saves" in line for line in said)


def test_runs_of_different_lengths_do_not_compare():
    cut = report("linux-thp", 500_000, instructions=2_000_000, complete=False)
    said = verdict(Results((SMALL, cut)))
    assert said[0] == (
        "1 of 2 runs: true was interrupted: incomplete, 2.0 million instructions were measured."
    )
    assert said[1].startswith("The cycles of these runs do not compare: they executed between 2.0")
    assert not any("fastest" in line or "saves" in line for line in said)
    # Nor do cases.
    said = verdict(Results((SMALL, report("linux-4k", 500_000, age="full", complete=False))))
    assert not any("Cycles from" in line for line in said)


def test_a_short_run_says_so():
    short = Results(tuple(report(name, instructions=999_000) for name in ("linux-4k", "linux-thp")))
    assert verdict(short)[0] == "Too short for a verdict: only 999.0 thousand instructions."
    assert not any("Too short" in line for line in verdict(PAIR))


def test_of_several_cases_a_table_says_which_design_is_fastest_in_each():
    aged = [report("linux-4k", 1_002_000, age="full"), report("linux-thp", 900_000, age="full")]
    results = Results((SMALL, HUGE, *aged))
    said = verdict(results)
    assert [line.split(":")[0] for line in said] == ["fresh", "full", "Cycles from fresh to full"]
    assert said[-1].endswith("linux-4k unchanged and linux-thp +50 %.")
    assert len(headlines(arrange(list(results)))) == 7


def test_over_many_cases_the_mean_is_told_of_designs_that_ran_in_all():
    ages = [f"scattered:{share}" for share in range(5)]
    base = [report("linux-4k", age=age) for age in ages]
    fast = [report("fast", 800_000, age=age) for age in ages]
    alike = [report("alike", 801_000, age=age) for age in ages]
    once = report("once", 100_000, age=ages[0])
    said = verdict(Results((*base, *fast, *alike, once)))[-1]
    assert said == (
        "Over 5 cases fast and alike are fastest in the geometric mean; speed relative to "
        "linux-4k: fast 1.250, alike 1.248 and linux-4k 1.000."
    )
    even = [report("even", 999_000, age=age) for age in ages]
    assert "no design is faster than linux-4k" in verdict(Results((*base, *even)))[-1]


def test_one_design_alone_says_what_it_costs():
    (said,) = verdict(Results((SMALL,)))
    assert said == (
        "linux-4k takes 1.0 million cycles: 40 % translation overhead and 10 % kernel cycles, "
        "72.00 L2 TLB misses per thousand instructions; mean huge-page coverage 0 %."
    )


def test_names_of_designs_do_not_speak_to_the_terminal(command):
    odd = report("x\x1b[2J[/x]", 500_000)
    ran = command("--", "true", results=Results((SMALL, odd)))
    assert "\x1b" not in ran.stderr
    assert ran.stderr.startswith(printable("x\x1b[2J[/x] is fastest"))


def test_runs_without_a_cycle_are_no_error():
    empty = report("linux-4k", 0, kernel=0)
    for other in (report("linux-thp", 0, kernel=0), report("linux-thp")):
        assert len(verdict(Results((empty, other)))) == 3


def test_misses_have_the_names_and_sums_of_perf():
    values = copy.deepcopy(SEED)
    walks = {"walk_active": 70, "walk_pending": 90}
    values["cores"] = [{"walks": dict.fromkeys(("loads", "stores", "fetches"), walks)}] * 2
    found = {"stlb_hit": 5, "walk_completed_4k": 4, "walk_completed_2m": 3, "walk_completed_1g": 2}
    values["tlb"] |= {"load_misses": found, "store_misses": found, "fetch_misses": found}
    summary = Report(json.dumps(values)).summary()
    for event in ("dtlb_load_misses", "dtlb_store_misses", "itlb_misses"):
        assert summary[f"{event}.stlb_hit"] == 5
        assert summary[f"{event}.walk_completed"] == 9
        assert summary[f"{event}.walk_active"] == 140
        assert summary[f"{event}.walk_pending"] == 180
    # Reports of older engines have none.
    assert Report(json.dumps(SEED)).summary()["itlb_misses.walk_active"] is None
