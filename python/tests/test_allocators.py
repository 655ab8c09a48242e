"""Does a program get the allocator that was asked for, and does the server see what it does?"""

import json
import re
from pathlib import Path

import pytest

import contigua
from contigua import RunOptions
from contigua.allocators import OPTIONS, AllocatorError, find_library, preload

ROOT = Path(__file__).parents[2]
WAVES = str(ROOT / "workloads" / "bin" / "waves")
SMALL = ["--entries", "8000", "--requests", "2000", "--waves", "3"]
#: A hundred times as fast as a processor, so that the waves last some minutes.
SETTINGS = ("release-rate=1MiB", "interval=0")

needs_library = pytest.mark.skipif(
    find_library("libcontigua_malloc.so") is None,
    reason="libcontigua_malloc.so is not built (cargo build --release -p contigua-malloc)",
)


def waves(design="linux-thp-madvise", command=(WAVES, *SMALL), **options):
    options = {"detail": "translation", "memory": "512M", "malloc_clock": 500, **options}
    (report,) = contigua.run(list(command), designs=[design], options=RunOptions(**options))
    return report.values


def test_options_become_variables_of_the_allocator():
    own = preload("libc")
    assert (own.name, own.libraries, own.environment, own.clock) == (None, (), (), None)
    tuned = preload("libc", ["MALLOC_ARENA_MAX=1"])
    assert tuned.environment == (("MALLOC_ARENA_MAX", "1"),)
    assert tuned.name == "libc MALLOC_ARENA_MAX=1"


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("no-such-malloc.so", (), "no-such-malloc.so"),
        ("/no/such/malloc.so", (), "/no/such/malloc.so"),
        ("contigua", ("color=red",), "color"),
        ("contigua", ("interval",), "KEY=VALUE"),
        ("libc", ("=1",), "KEY=VALUE"),
    ],
)
def test_impossible_allocator_options_are_one_clear_line(name, options, told):
    with pytest.raises(AllocatorError) as caught:
        preload(name, options, 100)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_are_those_of_the_allocator():
    source = (ROOT / "crates" / "malloc" / "src" / "settings.rs").read_text()
    known = re.findall(r'^ +b"([A-Z_]+)" => ', source, re.MULTILINE)
    assert sorted(known) == sorted([*OPTIONS, "CLOCK"])


def test_a_trace_has_its_allocator_inside(tmp_path):
    with pytest.raises(AllocatorError, match="trace"):
        contigua.run(
            trace=tmp_path / "x", options=RunOptions(malloc="libc", malloc_options=("A=1",))
        )


def test_the_c_library_gives_no_advice():
    report = waves()
    assert report["config"]["allocator"] is None
    assert report["advice"]["huge"] == report["advice"]["dont_need"] == 0
    assert report["residency"]["mean_huge_page_coverage"] == 0


@needs_library
def test_our_allocator_asks_for_huge_pages_and_the_server_gives_them():
    report = waves(malloc="contigua")
    assert report["config"]["allocator"] == "contigua (500 ns an instruction)"
    assert report["advice"]["huge"] > 0
    assert report["residency"]["mean_huge_page_coverage"] > 0.5
    assert report["kernel"]["faults_anonymous_2m"] > 0
    residency = report["residency"]
    assert (
        len(residency["instructions"])
        == len(residency["resident_bytes"])
        == len(residency["huge_bytes"])
        > 20
    )
    assert all(
        huge <= all_
        for huge, all_ in zip(residency["huge_bytes"], residency["resident_bytes"], strict=True)
    )


@needs_library
def test_small_pages_stay_small_whatever_is_asked():
    report = waves("linux-4k", malloc="contigua")
    assert report["advice"]["huge"] > 0
    assert report["advice"]["collapsed"] == report["kernel"]["huge_page_collapses"] == 0
    assert report["memory"]["huge_page_coverage"] == 0


@needs_library
def test_the_adaptive_policy_breaks_fewer_huge_pages_than_the_static_one():
    static = waves(malloc="contigua", malloc_options=SETTINGS)
    adaptive = waves(malloc="contigua", malloc_options=("release-rate=1MiB", "interval=60s"))
    assert static["advice"]["huge_pages_broken"] > adaptive["advice"]["huge_pages_broken"]
    coverage = [each["residency"]["mean_huge_page_coverage"] for each in (static, adaptive)]
    assert coverage[0] < coverage[1]
    walks = [each["translation"]["walks_4k"] for each in (static, adaptive)]
    assert walks[0] > walks[1]


@needs_library
def test_time_is_the_programs_own_so_that_runs_are_alike():
    first, second = (waves(malloc="contigua", malloc_options=SETTINGS) for _ in range(2))
    assert first["advice"]["dont_need"] > 0
    assert first == second


@needs_library
def test_programs_that_a_program_starts_get_it_too_and_the_emulator_does_not(guest):
    script = f"exec {WAVES} --entries 100 --requests 10"
    report = waves(malloc="contigua", command=["sh", "-c", script])
    assert report["program"]["processes"] == 1
    # The shell's heap and that of the program.
    assert report["advice"]["huge"] >= 2


@needs_library
def test_the_table_names_it(cli):
    ran = cli(
        "run", "--detail", "translation", "--malloc", "contigua", "--malloc-clock", "500",
        *("--malloc-option", "statistics=exit"), "--designs", "linux-thp", "--", WAVES, *SMALL,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "validation: passed" in ran.stdout
    title = " ".join(ran.stderr.split())
    assert "malloc: contigua statistics=exit (500 ns an instruction)" in title
    # Its own figures, with the clock that the program has: no wall clock of weeks.
    nanoseconds = next(line for line in ran.stderr.splitlines() if line.startswith("nanoseconds"))
    assert 0 < int(nanoseconds.split()[1]) < 3600 * 10**9
    assert "caches of                            threads" in ran.stderr


@needs_library
def test_a_recording_has_the_allocator_that_it_was_made_with(cli, tmp_path):
    trace, report = tmp_path / "waves.trace", tmp_path / "report.json"
    ran = cli("record", "-o", trace, "--malloc", "contigua", "--", WAVES, *SMALL)
    assert ran.returncode == 0, ran.stderr
    ran = cli("run", "--trace", trace, "--detail", "translation", "--designs",
              "linux-thp-madvise", "--json", report)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    (found,) = json.loads(report.read_text())
    live = waves(memory=None, malloc="contigua", malloc_clock=100)
    assert found["advice"] == live["advice"]
    assert found["advice"]["huge"] > 0


@needs_library
def test_a_static_program_is_refused(cli):
    ran = cli("run", "--malloc", "contigua", "--", WAVES.replace("waves", "gups-static"))
    assert ran.returncode == 1
    assert "linked statically" in ran.stderr and "Traceback" not in ran.stderr


@pytest.mark.parametrize("clock", ["0", "-1", "soon", "4294967296"])
def test_a_clock_that_cannot_be_is_refused(cli, clock):
    ran = cli("run", "--malloc-clock", clock, "--", "true")
    assert ran.returncode == 2
    assert "--malloc-clock" in ran.stderr
