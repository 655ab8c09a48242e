"""Are the regions that users name simulated, those and no others?"""

import json
import subprocess
from dataclasses import replace
from random import Random

import pytest

import contigua
from conftest import ROOT
from contigua import EngineError, RunOptions
from contigua.errors import ContiguaError
from contigua.regions import Regions, read_simpoints, region_of, window_of

GUPS = [str(ROOT / "workloads" / "bin" / "gups"), "--size", "16MiB", "--updates", "300000"]
OPTIONS = RunOptions(memory="256MiB", detail="full")
DESIGNS = ["linux-4k"]

programs = pytest.mark.programs


def run(command=None, regions=None, **options):
    chosen = replace(OPTIONS, regions=regions, **options)
    trace = None if command is not None else chosen.record
    if trace is not None:
        chosen = replace(chosen, record=None)
    return contigua.run(command, trace=trace, designs=DESIGNS, options=chosen)[0].values


def apart_from(values, *more):
    """A report without what says how it was asked for, and which events came in which batches."""
    values = dict(values)
    for key in ("config", "residency", "program", *more):
        values.pop(key, None)
    return values


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    trace = tmp_path_factory.mktemp("trace") / "gups.trace"
    whole = run(GUPS, record=trace)
    return trace, whole


# Windows.


@programs
@pytest.mark.parametrize("detail", ["full", "additive", "translation"])
def test_a_window_counts_what_skipping_to_it_counts(detail):
    regions = Regions.windows([(5_000_000, 6_000_000)], warm=0)
    window = run(GUPS, regions, detail=detail)
    skipped = run(GUPS, detail=detail, skip=5_000_000, instructions=1_000_000)
    assert window["regions"]["count"] == 1
    assert window["executed"]["instructions"] > 999_000
    assert apart_from(window, "regions") == apart_from(skipped)


@programs
def test_a_window_is_warmed():
    spans = [(15_000_000, 15_500_000)]
    cold, warm = (run(GUPS, Regions.windows(spans, warm)) for warm in (0, 4_000_000))
    assert cold["executed"] == warm["executed"]
    assert cold["kernel"]["faults_anonymous_4k"] == warm["kernel"]["faults_anonymous_4k"]
    misses = [values["cache"]["llc"]["misses"] for values in (cold, warm)]
    assert misses[1] < 0.5 * misses[0]


@programs
def test_a_window_is_the_same_again_and_in_a_trace(tmp_path):
    regions = Regions.windows([(2_000_000, 2_500_000), (5_000_000, 6_000_000)], warm=100_000)
    live, again = run(GUPS, regions), run(GUPS, regions)
    assert live == again
    assert live["regions"]["begins"][1] > 4_999_000
    recorded = run(GUPS, regions, record=tmp_path / "trace")
    assert apart_from(recorded) == apart_from(live)
    replayed = run(regions=regions, record=tmp_path / "trace")
    assert apart_from(replayed) == apart_from(live)


@programs
def test_windows_add_up(recorded):
    trace, _ = recorded
    spans = [(5_000_000, 6_000_000)]
    whole = run(regions=Regions.windows(spans, 0), record=trace)
    halves = [(5_000_000, 5_400_000), (5_400_000, 6_000_000)]
    parts = run(regions=Regions.windows(halves, 0), record=trace)
    alone = [run(regions=Regions.windows([half], 0), record=trace) for half in halves]
    assert (
        parts["regions"]["count"] == 2
        and sum(parts["regions"]["lengths"]) == (parts["executed"]["instructions"])
    )
    for part in ("executed", "kernel", "syscalls"):
        assert parts[part] == whole[part], part
    assert parts["time"]["cycles"] == pytest.approx(whole["time"]["cycles"], rel=0.01)
    assert parts["time"]["cycles"] == sum(parts["regions"]["cycles"])
    assert parts["executed"]["stores"] == sum(one["executed"]["stores"] for one in alone)
    breakdown = parts["time"]["breakdown"]
    assert sum(breakdown.values()) == pytest.approx(parts["time"]["cycles"], rel=0.01)


@programs
def test_the_program_ends_behind_the_last_window(recorded):
    values = run(GUPS, Regions.windows([(1_000_000, 1_100_000)]))
    assert values["ended"] == "instructions" and values["complete"]


@programs
def test_a_window_behind_the_end_is_an_error(recorded):
    regions = Regions.windows([(1_000_000, 1_100_000), (10**12, 10**12 + 5000)])
    for command, trace in ((GUPS, None), (None, recorded[0])):
        with pytest.raises(EngineError) as raised:
            run(command, regions, record=trace)
        assert "1000000000000:1000000005000 lies behind the program's end" in str(raised.value)
        assert "it executed " in str(raised.value)


# SimPoints.


def points_file(folder, points, weights):
    (folder / "p.simpoints").write_text(points)
    (folder / "p.weights").write_text(weights)
    return folder / "p.simpoints", folder / "p.weights"


@programs
def test_all_intervals_estimate_what_a_whole_run_counts(recorded, tmp_path):
    trace, whole = recorded
    instructions = whole["executed"]["instructions"]
    interval = 500_000
    count = instructions // interval
    points = "".join(f"{number} {number}\n" for number in range(count))
    weights = "".join(f"{1 / count:.6f} {number}\n" for number in range(count))
    regions = Regions.simpoints(*points_file(tmp_path, points, weights), interval, warm=interval)
    values = run(regions=regions, record=trace)
    assert values["executed"]["instructions"] == instructions
    sample = values["sample"]
    assert sample["units"] == count and len(sample["weights"]) == count
    assert sample["quantile"] is None
    assert values["time"]["cycles"] == pytest.approx(whole["time"]["cycles"], rel=0.03)
    overheads = [one["time"]["translation_overhead"] for one in (values, whole)]
    assert overheads[0] == pytest.approx(overheads[1], abs=0.02)
    # Counts of hardware are of the points alone, and not of what warmed them.
    for part, key in (("translation", "walks_4k"), ("executed", "stores")):
        assert values[part][key] == pytest.approx(whole[part][key], rel=0.03), key
    for part in ("kernel", "memory", "syscalls"):
        assert values[part] == whole[part], part


@programs
def test_weights_say_what_each_point_stands_for(recorded, tmp_path):
    trace, _ = recorded
    interval = 500_000

    def estimate(first, second):
        files = points_file(tmp_path, "2 0\n25 7\n", f"{first} 0\n{second} 7\n")
        regions = Regions.simpoints(*files, interval, warm=0)
        return run(regions=regions, record=trace)

    one, other, both = estimate(1, 0), estimate(0, 1), estimate(0.25, 0.75)

    def program(values):
        return values["time"]["cycles"] - values["time"]["breakdown"]["kernel"]

    expected = 0.25 * program(one) + 0.75 * program(other)
    assert program(one) != pytest.approx(program(other), rel=0.05)
    # The clock goes on by what points took, which moves the kernel's background a little.
    assert program(both) == pytest.approx(expected, rel=0.02)
    walks = [values["translation"]["walks_4k"] for values in (one, other, both)]
    assert walks[2] == pytest.approx(0.25 * walks[0] + 0.75 * walks[1], rel=0.01)


@programs
def test_files_made_by_us_and_by_hand_give_the_same_region(cli, tmp_path):
    made = cli(
        "simpoints", "-o", tmp_path / "gups", "--interval", "500k", "--max", 4, "--vectors",
        "--", *GUPS,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    again = cli("simpoints", "-o", tmp_path / "two", "--interval", "500k", "--max", 4, "--", *GUPS)
    assert again.returncode == 0
    for ending in ("simpoints", "weights"):
        one, two = (tmp_path / f"{name}.{ending}" for name in ("gups", "two"))
        assert one.read_text() == two.read_text()
    found = read_simpoints(tmp_path / "gups.simpoints", tmp_path / "gups.weights")
    assert 2 <= len(found) <= 4
    # By hand: in another order, with other clusters, and blanks.
    points = "\n".join(f" {number}  {9 - at} " for at, (number, _) in enumerate(found[::-1]))
    weights = "".join(f"{weight} {9 - at}\n\n" for at, (_, weight) in enumerate(found[::-1]))
    by_hand = points_file(tmp_path, points, weights)
    ours = (tmp_path / "gups.simpoints", tmp_path / "gups.weights")
    reports = [run(GUPS, Regions.simpoints(*files, 500_000, 200_000)) for files in (ours, by_hand)]
    assert reports[0]["sample"] == reports[1]["sample"]
    assert reports[0]["time"] == reports[1]["time"]


@programs
def test_simpoints_estimate_the_whole_program(recorded, tmp_path):
    from contigua.simpoints import block_vectors, choose, simpoints_text, weights_text

    trace, whole = recorded
    points = choose(block_vectors(trace=trace, interval=500_000), most=6)
    files = points_file(tmp_path, simpoints_text(points), weights_text(points))
    values = run(regions=Regions.simpoints(*files, 500_000, warm=20_000_000), record=trace)
    assert values["time"]["cycles"] == pytest.approx(whole["time"]["cycles"], rel=0.05)


@programs
def test_block_vectors_count_every_instruction(tmp_path):
    from contigua.simpoints import block_vectors

    # Programs see their environment, which tests change.
    trace = tmp_path / "trace"
    whole = run(GUPS, record=trace, detail="translation")
    live, stored = (
        block_vectors(command, trace=file, interval=500_000)
        for command, file in ((GUPS, None), (None, trace))
    )
    assert live.instructions == stored.instructions == whole["executed"]["instructions"]
    assert list(live.lines()) == list(stored.lines())
    sums = [
        int(live.counts[begin:end].sum())
        for begin, end in zip(live.begins[:-1], live.begins[1:], strict=True)
    ]
    assert len(sums) == live.whole + 1 and sum(sums) == live.instructions
    # Whole blocks only.
    assert all(abs(count - 500_000) < 512 for count in sums[:-1])
    line = next(live.lines())
    assert line.startswith("T:1:") and line.endswith(" \n")


def test_phases_of_a_made_up_program_are_found():
    import numpy as np

    from contigua.simpoints import Vectors, choose

    # Two phases, of which the second is three times as long; noise in a few blocks.
    rows, blocks, counts = [0], [], []
    for interval in range(40):
        base = 0 if interval % 4 == 0 else 50
        blocks += range(base, base + 20)
        counts += [40 + (interval * 7 + block) % 3 for block in range(20)]
        rows.append(len(blocks))
    vectors = Vectors(
        np.array(rows, np.uint64), np.array(blocks, np.uint32), np.array(counts, np.uint64),
        interval=800, instructions=32_000, exit_code=0,
    )  # fmt: skip
    points = choose(vectors, most=8)
    weight_of_first = sum(point.weight for point in points if point.interval % 4 == 0)
    assert weight_of_first == pytest.approx(0.25)
    assert sum(point.weight for point in points) == pytest.approx(1)
    assert choose(vectors, most=8) == points


@programs
def test_without_the_library_it_is_said_what_to_install(cli, tmp_path):
    (tmp_path / "sklearn.py").write_text("raise ImportError('not here')")
    made = cli("simpoints", "-o", tmp_path / "p", "--", "true", env={"PYTHONPATH": str(tmp_path)})
    assert made.returncode != 0 and "pip install 'contigua[simpoints]'" in made.stderr
    assert "Traceback" not in made.stderr and not list(tmp_path.glob("p.*"))


@programs
def test_an_interval_is_longer_than_blocks(cli, tmp_path):
    made = cli("simpoints", "-o", tmp_path / "p", "--interval", "500", "--", "true")
    assert made.returncode != 0 and "at least 1000 instructions, not 500" in made.stderr


@programs
def test_a_program_shorter_than_an_interval_is_said(cli, tmp_path):
    made = cli("simpoints", "-o", tmp_path / "p", "--interval", "10G", "--", "true")
    assert made.returncode != 0 and "fewer than an interval has (10,000,000,000)" in made.stderr
    assert "Traceback" not in made.stderr


@pytest.mark.parametrize(
    ("points", "weights", "said"),
    [
        ("", "1 0\n", "p.simpoints: empty; lines of INTERVAL CLUSTER are needed"),
        ("5 0\n", "\n", "p.weights: empty; lines of WEIGHT CLUSTER are needed"),
        ("five 0\n", "1 0\n", "p.simpoints: line 1 is not INTERVAL CLUSTER"),
        ("5 0 7\n", "1 0\n", "p.simpoints: line 1 is not INTERVAL CLUSTER"),
        ("5 0\n-3 1\n", "1 0\n", "p.simpoints: line 2 is not INTERVAL CLUSTER"),
        ("5 0\n", "nan 0\n", "p.weights: line 1 is not WEIGHT CLUSTER"),
        ("5 0\n", ". 0\n", "p.weights: line 1 is not WEIGHT CLUSTER"),
        ("5 0\n", "-1 0\n", "p.weights: line 1 is not WEIGHT CLUSTER"),
        ("5 0\n6 0\n", "1 0\n", "p.simpoints: line 2: cluster 0 is there twice"),
        ("5 0\n5 1\n", "0.5 0\n0.5 1\n", "p.simpoints: interval 5 is there twice"),
        ("5 0\n", "0.5 0\n0.5 1\n", "p.simpoints: cluster 1 of"),
        ("5 0\n6 1\n", "1 0\n", "p.weights: cluster 1 of"),
        ("5 0\n6 1\n", "0.3 0\n0.3 1\n", "p.weights: weights add up to 0.6, not to 1"),
        ("5 0\n", "1.5 0\n", "p.weights: the weight 1.5 is no share"),
        ("5 0\n", "1e99 0\n", "p.weights: the weight 1e+99 is no share"),
        ("5 0\n", "1e999 0\n", "p.weights: the weight inf is no share"),
        ("99999999999999999999 0\n", "1 0\n", "p.simpoints: line 1 is not INTERVAL CLUSTER"),
        ("999999999999999999 0\n", "1 0\n", "interval of 10000000 instructions is out of range"),
    ],
)
def test_bad_files_are_said(points, weights, said, tmp_path):
    files = points_file(tmp_path, points, weights)
    with pytest.raises(ContiguaError) as raised:
        Regions.simpoints(*files)
    assert said in str(raised.value)


def test_files_that_are_none_are_said(tmp_path, cli):
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)))
    files = points_file(tmp_path, "5 0\n", "1 0\n")
    for bad, said in ((binary, "no UTF-8"), (tmp_path / "none", "No such file"), (tmp_path, "dir")):
        ran = cli("run", "--simpoints", bad, "--weights", files[1], "--", "true")
        assert ran.returncode != 0 and said in ran.stderr and "Traceback" not in ran.stderr
        ran = cli("run", "--simpoints", files[0], "--weights", bad, "--", "true")
        assert ran.returncode != 0 and said in ran.stderr and "Traceback" not in ran.stderr


def test_arbitrary_files_are_read_or_said(tmp_path):
    random = Random(1)
    alphabet = b"0123456789. \n\te-+x\xff"
    for _ in range(300):
        made = [
            bytes(random.choice(alphabet) for _ in range(random.randrange(30))) for _ in range(2)
        ]
        files = [tmp_path / name for name in ("p.simpoints", "p.weights")]
        for file, text in zip(files, made, strict=True):
            file.write_bytes(text)
        try:
            found = read_simpoints(*files)
        except ContiguaError:
            continue
        assert found and abs(sum(weight for _, weight in found) - 1) <= 0.01


def test_what_simpoint_writes_is_read(tmp_path):
    files = points_file(tmp_path, "37 0\n4 2\n", "0.25 0\n7.5e-1 2\n")
    assert read_simpoints(*files) == [(4, 0.75), (37, 0.25)]
    assert Regions.simpoints(*files, 1000).spans == ((4000, 5000), (37_000, 38_000))


# What users write.


@pytest.mark.parametrize(
    "text", ["", "5", "a:b", "5:", ":5", "5:5", "6:5", "-1:5", "0:1e30", "1:2:3"]
)
def test_a_malformed_window_is_refused(text):
    with pytest.raises(ContiguaError, match="window"):
        window_of(text)


@pytest.mark.parametrize("text", ["", "marker", "function", "function:", "roi"])
def test_a_malformed_region_is_refused(text):
    with pytest.raises(ContiguaError, match="write markers, or function:NAME"):
        region_of(text)


@programs
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--window", "5:6"], "the window 5:6 needs at least 1000 instructions"),
        (["--window", "0:9k", "--window", "8k:20k"], "0:9000 and 8000:20000 overlap"),
        (["--window", "0:9k", "--sample"], "--sample cannot be combined with regions"),
        (["--window", "0:9k", "--skip", "5"], "--skip cannot be combined with regions"),
        (["--window", "0:9k", "--cores", "2"], "--cores cannot be combined with regions"),
        (["--window", "0:9k", "--region", "markers"], "give --window or --region, not both"),
        (["--window", "0:9k", "--keep-warm"], "--keep-warm goes with --region"),
        (["--weights", "w"], "--weights goes with --simpoints"),
        (["--interval", "5k"], "--interval goes with --simpoints"),
        (["--simpoints", "p"], "--simpoints needs the weights, too"),
        (["--region", "roi"], "'roi' is no region"),
        (["--region", "markers", "--sample-warm", "5"], "--sample-warm is of sampled runs"),
    ],
)
def test_options_that_do_not_go_together_are_said(arguments, said, cli):
    ran = cli("run", *arguments, "--", "true")
    assert ran.returncode != 0 and said in ran.stderr, ran.stderr
    assert "Traceback" not in ran.stderr


@programs
def test_the_table_says_what_was_simulated(cli, tmp_path):
    ran = cli("run", "--window", "1M:1.2M", "--window", "2M:2.1M", "--memory", "256M",
              "--json", tmp_path / "r.json", "--", *GUPS)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "regions" in ran.stderr and "is fastest" in ran.stderr
    report = json.loads((tmp_path / "r.json").read_text())[0]
    assert report["regions"]["count"] == 2
    files = points_file(tmp_path, "2 0\n4 1\n", "0.5 0\n0.5 1\n")
    ran = cli("run", "--simpoints", files[0], "--weights", files[1], "--interval", "500k",
              "--memory", "256M", "--", *GUPS)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "estimated from SimPoints" in ran.stderr and "±" not in ran.stderr
    assert "is fastest" in ran.stderr


# Markers and functions, of programs made here.

SOURCE = r"""
#include <contigua.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* About 4 instructions a step. */
__attribute__((noinline)) long spin(long steps)
{
    long sum = 0;
    for (long i = 0; i < steps; i++)
        __asm__ volatile("add %1, %0" : "+r"(sum) : "r"(i));
    return sum;
}

/* Recursive: its outermost call is what counts. */
__attribute__((noinline)) long work(long depth)
{
    long sum = spin(50000);
    if (depth > 0)
        sum += work(depth - 1);
    __asm__ volatile("" : "+r"(sum));
    return sum;
}

__attribute__((noinline)) long other(long steps) { return spin(steps) + 1; }

static void *thread(void *argument)
{
    (void)argument;
    work(3);
    return NULL;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    char *memory = malloc(1 << 20);
    memset(memory, 1, 1 << 20);
    if (!strcmp(mode, "exec"))
        return execl(argv[2], argv[2], argv[3], (char *)NULL);
    if (!strcmp(mode, "fork")) {
        contigua_region_begin();
        if (fork() == 0) {
            spin(100000);
            _exit(0);
        }
        spin(100000);
        sleep(1);
        contigua_region_end();
        return 0;
    }
    other(300000);
    if (!strcmp(mode, "markers")) {
        contigua_region_begin();
        work(3);
        contigua_region_end();
        other(200000);
        contigua_region_end();
        contigua_region_begin();
        contigua_region_begin();
        work(0);
        contigua_region_end();
    } else if (!strcmp(mode, "threads")) {
        pthread_t all[2];
        for (int i = 0; i < 2; i++)
            pthread_create(&all[i], NULL, thread, NULL);
        for (int i = 0; i < 2; i++)
            pthread_join(all[i], NULL);
    } else if (!strcmp(mode, "leave")) {
        work(1);
        exit(3);
    } else {
        work(3);
        other(100000);
        work(0);
    }
    other(100000);
    printf("done\n");
    return 0;
}
"""

#: As Sniper's sim_api.h has it.
SNIPER = r"""
#define SimMagic0(cmd) ({ unsigned long _cmd = (cmd), _res; \
    __asm__ __volatile__("mov %1, %%rax\n\txchg %%bx, %%bx\n" : "=a"(_res) : "g"(_cmd)); _res; })
static long spin(long steps) {
    long sum = 0;
    for (volatile long i = 0; i < steps; i++) sum += i;
    return sum;
}
int main(void) {
    spin(20000);
    SimMagic0(7);
    SimMagic0(1);
    spin(20000);
    SimMagic0(2);
    spin(20000);
    SimMagic0(0);
    spin(20000);
    SimMagic0(0);
    return 0;
}
"""

HEADERS = ROOT / "python" / "contigua" / "data" / "include"
#: Instructions of spin(50000), of which work(n) has n + 1.
SPIN = 50_000 * 4
KINDS = {"pie": ["-fPIE", "-pie"], "static": ["-static", "-no-pie"], "fixed": ["-no-pie"]}


def compiled(folder, name, source, *flags):
    code = folder / f"{name}.c"
    code.write_text(source)
    # Libraries come behind what needs them.
    files = [str(code), "-o", str(folder / name), *flags]
    subprocess.run(["gcc", "-O2", "-pthread", f"-I{HEADERS}", *files], check=True)
    return str(folder / name)


@pytest.fixture(scope="module")
def guests(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guests")
    found = {kind: compiled(folder, kind, SOURCE, *flags) for kind, flags in KINDS.items()}
    found["sniper"] = compiled(folder, "sniper", SNIPER, "-std=gnu11")
    found["sniper-O0"] = compiled(folder, "sniper0", SNIPER, "-std=gnu11", "-O0")
    return found


def lengths(values):
    return values["regions"]["lengths"]


def region(command, regions, **options):
    return run(command, regions, detail=options.pop("detail", "translation"), **options)


def is_spins(instructions, spins):
    return spins * SPIN * 0.7 < instructions < spins * SPIN * 1.3


@programs
@pytest.mark.parametrize("kind", list(KINDS))
def test_markers_name_a_region(kind, guests, tmp_path):
    command = [guests[kind], "markers"]
    trace = tmp_path / "t"
    live = region(command, Regions.markers(), detail="full")
    assert live["regions"]["count"] == 2
    assert all(map(is_spins, lengths(live), (4, 1))), lengths(live)
    assert live == region(command, Regions.markers(), detail="full")
    # Everything is told when it is recorded; the region is the same, and so it is in the recording.
    recorded = region(command, Regions.markers(), detail="full", record=trace)
    assert apart_from(recorded) == apart_from(live)
    replayed = region(None, Regions.markers(), detail="full", record=trace)
    assert apart_from(replayed) == apart_from(live)


@programs
def test_a_region_that_is_named_by_markers_is_a_window(guests):
    command = [guests["static"], "markers"]
    named = region(command, Regions.markers(), detail="full")
    begins, sizes = named["regions"]["begins"], lengths(named)
    spans = [(begin, begin + size) for begin, size in zip(begins, sizes, strict=True)]
    window = region(command, Regions.windows(spans, warm=0), detail="full")
    # The program ends behind the last window, and goes on behind the last marker.
    behind = ("ended", "memory", "contiguity_after")
    assert apart_from(window, *behind) == apart_from(named, *behind)


@programs
@pytest.mark.parametrize("kind", ["sniper", "sniper-O0"])
def test_markers_of_snipers_are_understood(kind, guests):
    values = region([guests[kind]], Regions.markers())
    assert values["regions"]["count"] == 2
    one, two = lengths(values)
    assert one == pytest.approx(two, rel=0.01) and one > 60_000


@programs
def test_outside_of_a_region_caches_can_be_kept_warm(guests):
    command = [guests["pie"], "markers"]
    cold, warm = (
        region(command, Regions.markers(keep_warm=keep), detail="full") for keep in (False, True)
    )
    assert lengths(cold) == lengths(warm)
    misses = [values["tlb"]["instruction"]["misses_4k"] for values in (cold, warm)]
    assert misses[1] < misses[0]


@programs
def test_instructions_limit_what_a_region_counts(guests):
    values = region([guests["pie"], "markers"], Regions.markers(), instructions=50_000)
    assert values["ended"] == "instructions"
    assert 49_000 < values["executed"]["instructions"] <= 50_000


@programs
@pytest.mark.parametrize("kind", list(KINDS))
def test_calls_of_a_function_are_a_region(kind, guests):
    command = [guests[kind], "calls"]
    live = region(command, Regions.function("work"), detail="full")
    assert live["regions"]["count"] == 2
    assert all(map(is_spins, lengths(live), (4, 1))), lengths(live)
    assert live == region(command, Regions.function("work"), detail="full")
    # Called by both, and by others: each call by itself.
    spins = region(command, Regions.function("spin"))
    assert spins["regions"]["count"] == 8
    others = region(command, Regions.function("other"))
    assert others["regions"]["count"] == 3 and is_spins(lengths(others)[0], 6)


@programs
def test_a_recording_keeps_where_a_function_was_called(guests, tmp_path):
    command = [guests["pie"], "calls"]
    trace = tmp_path / "t"
    live = region(command, Regions.function("work"), detail="full")
    recorded = region(command, Regions.function("work"), detail="full", record=trace)
    assert apart_from(recorded) == apart_from(live)
    replayed = region(None, Regions.markers(), detail="full", record=trace)
    assert apart_from(replayed) == apart_from(live)
    with pytest.raises(EngineError, match="calls of work are found while a program runs"):
        region(None, Regions.function("work"), record=trace)


@programs
def test_programs_that_are_executed_later_have_regions(guests):
    command = [guests["pie"], "exec", guests["static"]]
    marked = region([*command, "markers"], Regions.markers())
    assert all(map(is_spins, lengths(marked), (4, 1)))
    # The file says which program is meant.
    name = f"work@{guests['static']}"
    called = region([*command, "calls"], Regions.function(name))
    assert all(map(is_spins, lengths(called), (4, 1)))
    script = ["sh", "-c", f"{guests['pie']} calls; true"]
    called = region(script, Regions.function(f"work@{guests['pie']}"))
    assert all(map(is_spins, lengths(called), (4, 1)))


@programs
def test_a_function_of_a_library_is_a_region(guests, tmp_path):
    library = tmp_path / "libwork.so"
    code = 'long spin(long n){long s=0;for(long i=0;i<n;i++)__asm__ volatile("":"+r"(s));return s;}'
    (tmp_path / "w.c").write_text(code)
    subprocess.run(
        ["gcc", "-O2", "-shared", "-fPIC", str(tmp_path / "w.c"), "-o", str(library)], check=True
    )
    main = "long spin(long); int main(void){spin(1000);spin(60000);return 0;}"
    program = compiled(tmp_path, "main", main, str(library), "-Wl,-z,lazy")
    values = region([program], Regions.function(f"spin@{library}"))
    assert values["regions"]["count"] == 2 and 150_000 < lengths(values)[1] < 500_000


@programs
def test_threads_share_a_region(guests):
    values = region([guests["pie"], "threads"], Regions.function("work"))
    # They follow each other within some thousand instructions.
    assert values["regions"]["count"] >= 1
    assert 4 * SPIN < values["executed"]["instructions"] < 9 * SPIN


@programs
def test_a_region_holds_for_forked_processes(guests):
    values = region([guests["pie"], "fork"], Regions.markers())
    assert values["regions"]["count"] == 1
    assert values["program"]["processes"] == 2
    assert 600_000 < values["executed"]["instructions"] < 1_200_000


@programs
def test_a_call_that_never_returns_ends_with_the_program(guests):
    values = region([guests["pie"], "leave"], Regions.function("main"))
    assert values["regions"]["count"] == 1 and values["executed"]["instructions"] > 8 * SPIN


@programs
def test_a_function_that_cannot_be_a_region_is_refused(guests, tmp_path, cli):
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", str(stripped), guests["static"]], check=True)
    wrong = compiled(
        tmp_path, "wrong", 'int main(void){__asm__ volatile("nop;nop;nop;nop;nop;xchg %bx,%bx");}'
    )
    for command, name, said in (
        ([guests["pie"], "calls"], "function:works", "no function works; near it are work"),
        ([guests["pie"], "calls"], "function:zzz", "pie: no function zzz"),
        ([str(stripped)], "function:work", "no names of functions: it was stripped"),
        ([guests["pie"], "calls"], "function:work@/etc/passwd", "passwd: no ELF file"),
        ([guests["pie"], "calls"], f"function:work@{tmp_path}", "a directory"),
        ([guests["pie"], "calls"], "function:thread", "no region began"),
        (["true"], "markers", "no region began"),
        ([wrong], "markers", "has a command that cannot be read"),
    ):
        ran = cli("run", "--region", name, "--detail", "translation", "--", *command)
        assert ran.returncode != 0 and said in ran.stderr, (name, ran.stderr)
        assert "Traceback" not in ran.stderr and "panicked" not in ran.stderr


def works(compiler):
    try:
        return subprocess.run([compiler, "--version"], capture_output=True).returncode == 0
    except OSError:
        return False


COMPILERS = ["gcc -std=c11", "gcc -std=gnu99 -O0", "g++", *filter(works, ("clang", "clang++"))]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_header_compiles_and_does_nothing_natively(compiler, cli, tmp_path):
    command, *flags = compiler.split()
    folder = cli("header").stdout.strip()
    source = tmp_path / ("m.cpp" if command.endswith("++") else "m.c")
    source.write_text(
        "#include <contigua.h>\nint main(void) { int x = 3; contigua_region_begin(); x -= 3; "
        "contigua_region_end(); contigua_region_begin(); contigua_region_end(); return x; }\n"
    )
    warnings = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run(
        [command, *flags, *warnings, f"-I{folder}", str(source), "-o", str(tmp_path / "m")],
        check=True,
    )
    assert subprocess.run([str(tmp_path / "m")]).returncode == 0
