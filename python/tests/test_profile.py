"""Profiles: programs whose costly part is known by name, and files that are none."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_report import browser_tests, hidden_parts, opened

from contigua import RunOptions, allocators, run
from contigua.allocators import SITES, AllocatorError, find_library
from contigua.attribution import METRICS, Attribution, Costs, Frame, ProfileError
from contigua.cli import cli as root
from contigua.commands.options import changed
from contigua.differences import difference
from contigua.listing import listings
from contigua.locality import PAGES, locality_rows
from contigua.pprof import pprof_of
from contigua.profile_page import page_of, perfetto, speedscope
from contigua.profile_text import cost_rows, markdown_of
from contigua.profiling import Profiled, profile
from contigua.sampling import Sampling

OPTIONS = RunOptions(memory="2GiB", detail="additive")
needs_sites = pytest.mark.skipif(
    find_library(SITES) is None,
    reason=f"{SITES} is not built (cargo build --release -p contigua-sites)",
)
FULL = replace(OPTIONS, detail="full")


def profiled(culprits: str, mode: str, options: RunOptions = OPTIONS) -> Profiled:
    return profile([culprits, mode], options=options)


@pytest.fixture(scope="module")
def culprits() -> str:
    return str(Path(__file__).parents[2] / "workloads" / "bin" / "tests" / "culprits")


@pytest.fixture(scope="module")
def hashed(culprits: str) -> Profiled:
    return profiled(culprits, "hash", replace(OPTIONS, locality=True))


def first(found: Attribution, key: str, metric: str = "walks") -> str:
    return found.by(key, metric=metric)[0][0][0]


def test_a_table_probed_beside_a_scanned_array_comes_first(hashed: Profiled) -> None:
    base = hashed.profiles[0]
    assert first(base, "function") == "read_at_random"
    assert "map_table" in first(base, "mapping")
    assert "culprits.c:" in first(base, "line")
    assert first(base, "library") == "culprits"
    stack = first(base, "stack")
    assert "main" in stack and stack.endswith("read_at_random"), stack
    text = "\n".join(hashed.sentences())
    assert "read_at_random" in text and "map_table" in text, text
    assert "linux-thp saves" in text, text


def test_rows_add_up_to_what_the_report_counts(hashed: Profiled) -> None:
    for found, report in zip(hashed.profiles, hashed.results, strict=True):
        values = report.values
        counted = values["translation"]
        walks = sum(counted[f"walks_{size}"] for size in ("4k", "2m", "1g"))
        assert found.total.walks == walks, counted
        assert found.total.faults == counted["walks_faulting"], counted
        assert found.cycles == values["time"]["cycles"]


def test_of_two_mappings_the_random_one_comes_first(culprits: str) -> None:
    base = profiled(culprits, "mappings").profiles[0]
    costs = dict(base.by("mapping"))
    table, array = (
        next(cost for (name,), cost in costs.items() if site in name)
        for site in ("map_table", "map_array")
    )
    assert table.walks > 3 * array.walks
    assert "map_table" in first(base, "mapping")


def test_of_three_sites_that_of_the_walked_list_comes_first(culprits: str) -> None:
    base = profiled(culprits, "sites").profiles[0]
    walked = {row.mapping: row.costs.walks for row in base.rows() if row.at.function == "walk_list"}
    assert "site_two" in max(walked, key=walked.__getitem__), walked


@needs_sites
@pytest.mark.parametrize("sample", [None, Sampling(distance=400_000, warm=40_000)])
def test_of_three_kinds_of_blocks_those_of_the_walked_list_come_first(
    culprits: str, sample: Sampling | None
) -> None:
    options = replace(OPTIONS, sites=True, sample=sample)
    base = profiled(culprits, "nodes", options).profiles[0]
    walks = {name: cost.walks for name, cost in base.by("function", "site", metric="walks")}
    walked = {site: count for (function, site), count in walks.items() if function == "walk_list"}
    # Blocks of all three lie between each other.
    others = sum(walked[site] for site in walked if "node_one" in site or "node_three" in site)
    assert others < 0.01 * sum(walked.values()), walked
    # While a sampled run goes forward, only the call itself is known.
    first = max(walked, key=walked.__getitem__)
    assert first.startswith("malloc by allocate"), walked
    assert ("node_two" in first) == (sample is None), walked


@needs_sites
def test_operator_new_is_asked_by_its_caller(tmp_path: Path) -> None:
    source = tmp_path / "new.cpp"
    source.write_text(
        "struct block { char bytes[1 << 20]; };\n"
        "__attribute__((noipa)) block *make() { auto made = new block; return made + 0; }\n"
        "int main() { auto made = make(); for (char &byte : made->bytes) byte = 1; }\n"
    )
    program = tmp_path / "new"
    subprocess.run(["g++", "-g", "-O1", "-o", program, source], check=True)
    options = replace(OPTIONS, detail="translation", sites=True)
    base = profile([str(program)], options=options).profiles[0]
    faults = {name: costs.faults for (name,), costs in base.by("site") if "malloc by" in name}
    name = "malloc by make (new.cpp:2)"
    assert max(faults, key=faults.__getitem__) == name, faults
    # While a sampled run goes forward, only the call itself is known, not who called the operator.
    sample = Sampling(distance=3_000_000, warm=20_000)
    sampled = profile([str(program)], options=replace(options, sample=sample)).profiles[0]
    assert name in sampled.sites, sampled.sites


@needs_sites
def test_blocks_of_every_kind_of_allocation_are_told(tmp_path: Path) -> None:
    source = tmp_path / "kinds.cpp"
    source.write_text(
        "#include <malloc.h>\n#include <stdlib.h>\n#include <new>\n"
        "struct alignas(64) wide { char bytes[1 << 20]; };\n"
        "template <class F> __attribute__((noipa)) void touch(F make) {\n"
        "    auto made = (volatile char *)make();\n"
        "    for (int i = 0; i < 1 << 20; i += 4096) made[i] = 1; }\n"
        "int main() {\n"
        "    touch([] { return new (std::nothrow) char[1 << 20]; });\n"
        "    touch([] { return new wide; });\n"
        "    touch([] { return valloc(1 << 20); });\n"
        "    touch([] { return memalign(64, 1 << 20); });\n"
        "    touch([] { return aligned_alloc(64, 1 << 20); });\n"
        "    touch([] { return calloc(2, 1 << 19); });\n"
        "    touch([] { return realloc(malloc(1), 1 << 20); });\n"
        "    touch([] { void *p; return posix_memalign(&p, 64, 1 << 20) ? nullptr : p; });\n"
        "    volatile long most = 1L << 60;\n"
        "    try { char *volatile p = new char[most]; } catch (std::bad_alloc &) { return 0; }\n"
        "    return 1; }\n"
    )
    program = tmp_path / "kinds"
    subprocess.run(["g++", "-g", "-O1", "-std=c++17", "-o", program, source], check=True)
    for malloc in ("libc", "contigua"):
        options = replace(OPTIONS, detail="translation", sites=True, malloc=malloc)
        found = profile([str(program)], options=options)
        assert found.results.exit_code == 0
        base = found.profiles[0]
        touched = [site for (site,), costs in base.by("site") if costs.faults >= 200]
        lines = {line for site in touched for line in re.findall(r"kinds.cpp:(\d+)", site)}
        assert lines >= {str(line) for line in range(9, 17)}, (malloc, touched)
        # Mappings are the program's, not those of the library that tells.
        assert not any("lib.rs" in name for name in base.mappings), base.mappings


@needs_sites
def test_a_program_that_loads_cpp_later_goes_on(tmp_path: Path) -> None:
    source = tmp_path / "later.cpp"
    source.write_text('#include <string>\nextern "C" int run() { return *new int(7); }\n')
    library = tmp_path / "later.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    script = f"import ctypes; print(ctypes.CDLL('{library}').run())"
    variables = {**os.environ, "LD_PRELOAD": str(find_library(SITES))}
    command = ["/usr/bin/python3", "-c", script]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == "7\n"


@needs_sites
def test_a_program_with_its_blocks_told_has_no_kernel_work_more(culprits: str) -> None:
    options = replace(OPTIONS, detail="translation")
    plain, told = (
        run([culprits, "nodes"], designs=["linux-4k"], options=one)[0].values
        for one in (options, replace(options, sites=True))
    )
    # The loader maps one library more.
    assert 0 < told["syscalls"]["all"] - plain["syscalls"]["all"] < 30
    more = told["executed"]["instructions"] - plain["executed"]["instructions"]
    blocks = 3 * 65536
    assert 10 * blocks < more < 60 * blocks


def test_sites_need_what_tells_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocators, "find_library", lambda _: None)
    with pytest.raises(AllocatorError, match="contigua-sites"):
        RunOptions(sites=True).preload()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--by", "site"], "only --sites tells"),
        (["--sites", "--advice", "a.toml"], "of its blocks"),
    ],
)
def test_sites_that_nobody_can_tell_are_refused(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(root, ["profile", *options, "--", "/bin/true"])
    assert refused.exit_code == 2 and said in refused.output
    assert not list(tmp_path.iterdir())


def test_of_three_threads_the_random_one_comes_first(culprits: str) -> None:
    base = profiled(culprits, "threads").profiles[0]
    by_function = dict(base.by("function", "thread"))
    reads = {key: cost.walks for key, cost in by_function.items() if key[0] == "read_at_random"}
    assert len(reads) == 1, reads
    others = [cost.walks for key, cost in by_function.items() if key[0] == "read_in_order"]
    assert min(reads.values()) > 10 * max(others)


def test_a_recursion_a_million_deep_is_bounded(culprits: str) -> None:
    base = profiled(culprits, "deep").profiles[0]
    assert max(len(row.calls) for row in base.rows()) == 128
    assert first(base, "function", "faults") == "descend"


def test_full_detail_and_sampling_name_the_same_culprit(culprits: str) -> None:
    full = profiled(culprits, "hash", FULL).profiles[0]
    assert first(full, "function", "translation_cycles") == "read_at_random"
    assert "map_table" in first(full, "mapping", "translation_cycles")
    sample = Sampling(distance=200_000, warm=50_000, detail=10_000)
    sampled = profiled(culprits, "hash", replace(FULL, sample=sample)).profiles[0]
    assert sampled.sampled and sampled.counted < sampled.instructions / 2
    assert first(sampled, "function", "translation_cycles") == "read_at_random"
    assert full.counted == full.instructions


def test_a_stripped_program_is_told_by_file_and_offset(culprits: str, tmp_path: Path) -> None:
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", stripped, culprits], check=True)
    base = profiled(str(stripped), "hash").profiles[0]
    assert first(base, "function").startswith("stripped+0x")
    assert first(base, "library") == "stripped"


NODE = shutil.which("node")
JIT = """
const table = new Float64Array(8 << 20);
function probeTable() {
  let sum = 0, x = 1;
  for (let i = 0; i < 100000; i++) {
    x = (Math.imul(x, 1664525) + 1013904223) | 0;
    sum += table[x >>> 9];
  }
  return sum;
}
for (let i = 0; i < table.length; i += 512) table[i] = i;
let total = 0;
for (let i = 0; i < 3; i++) total += probeTable();
console.log(total);
"""


@pytest.mark.skipif(NODE is None, reason="node is missing; as root, run: apt-get install nodejs")
def test_generated_code_of_node_has_its_names(tmp_path: Path) -> None:
    program = tmp_path / "table.js"
    program.write_text(JIT)
    options = replace(OPTIONS, detail="translation")
    found = profile(
        [
            str(NODE),
            "--perf-basic-prof",
            "--no-logfile-per-isolate",
            f"--logfile={tmp_path}/v8.log",
            str(program),
        ],
        designs=["linux-4k"],
        options=options,
    )
    function = first(found.profiles[0], "function")
    assert "probeTable" in function, function


def test_the_memory_that_misses_in_python_is_a_dict(tmp_path: Path) -> None:
    program = tmp_path / "dict.py"
    program.write_text(
        "table = dict.fromkeys(range(500_000))\nx = 1\n"
        "for _ in range(30_000):\n"
        "    x = (x * 1103515245 + 12345) % (1 << 31)\n"
        "    table.get(x >> 12)\n"
    )
    options = replace(OPTIONS, detail="translation")
    found = profile(["/usr/bin/python3", str(program)], designs=["linux-4k"], options=options)
    reads = [
        (name, costs.walks - costs.faults)
        for (name,), costs in found.profiles[0].by("mapping", metric="walks")
    ]
    name = max(reads, key=lambda read: read[1])[0]
    assert re.match(r"anonymous [12]\d MB", name), reads[:4]


def test_ten_thousand_mappings_of_one_maker_are_one_row(tmp_path: Path) -> None:
    source = tmp_path / "many.c"
    source.write_text(
        "#include <sys/mman.h>\n"
        "__attribute__((noipa)) static char *make(int i) {\n"
        "    char *made = mmap(0, 4096 * (2 + i % 7), 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\n"
        "    mprotect(made, 4096, PROT_NONE); made[4096] = i; return made + 4096; }\n"
        "int main(void) { static char *all[10000]; int sum = 0;\n"
        "    for (int i = 0; i < 10000; i++) all[i] = make(i);\n"
        "    for (int i = 0; i < 40000; i++) sum += *all[i * 7919 % 10000];\n"
        "    return sum == 1; }\n"
    )
    program = tmp_path / "many"
    subprocess.run(["gcc", "-g", "-O1", "-o", program, source], check=True)
    found = profile([str(program)], options=replace(OPTIONS, detail="translation"))
    base = found.profiles[0]
    assert first(base, "mapping") == ("anonymous 8 KB to 32 KB by make (many.c:3), 10,000 mappings")
    # Blocks of 2 MB are drawn, not each mapping.
    assert len(page_of(found.profiles, [])) < 2_000_000


def test_the_page_and_speedscope_have_every_cycle(hashed: Profiled) -> None:
    page = page_of(hashed.profiles, hashed.sentences())
    assert "read_at_random" in page and "http" not in page.replace("http-equiv", "")
    scope = json.loads(speedscope(hashed.profiles[0]))
    for metric, view in zip(METRICS, scope["profiles"], strict=True):
        assert sum(view["weights"]) == getattr(hashed.profiles[0].total, metric)
        assert max((frame for sample in view["samples"] for frame in sample), default=0) < len(
            scope["shared"]["frames"]
        )


def fields(message: bytes) -> list[tuple[int, int | bytes]]:
    """Take a protocol buffer apart."""
    found: list[tuple[int, int | bytes]] = []
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(message):
        field, kind = divmod(varint(), 8)
        value: int | bytes = varint()
        if kind == 2:
            assert isinstance(value, int)
            place += value
            value = message[place - value : place]
        found.append((field, value))
    return found


def numbers(packed: bytes) -> list[int]:
    """Read a list of numbers, as values of fields of their own."""
    ends = [place for place, byte in enumerate(packed) if byte < 128]
    starts = [0, *(end + 1 for end in ends)]
    return [
        sum((byte & 127) << 7 * at for at, byte in enumerate(packed[start : end + 1]))
        for start, end in zip(starts, ends, strict=False)
    ]


def test_perfetto_counts_every_walk_in_its_phase(hashed: Profiled) -> None:
    base = hashed.profiles[0]
    events = json.loads(perfetto(base, "walks"))["traceEvents"]
    counted = [event for event in events if event["ph"] == "C"]
    of_all = [event for event in counted if event["name"] == "page walks"]
    assert sum(event["args"]["all"] for event in of_all) == base.total.walks
    table = [event for event in counted if "map_table" in event["name"]]
    assert sum(event["args"]["all"] for event in table) == max(
        costs.walks for _, costs in base.by("mapping")
    )
    times = [event["ts"] for event in of_all]
    assert times == [base.phase * place / 1000 for place in range(len(times))]


def test_the_file_for_pprof_has_every_cycle_and_name(hashed: Profiled) -> None:
    base = hashed.profiles[0]
    written = pprof_of(base)
    assert written == pprof_of(base)
    parts = fields(gzip.decompress(written))
    texts = [value.decode() for field, value in parts if field == 6 and isinstance(value, bytes)]
    assert texts[0] == "" and {"read_at_random", "translation_cycles"} <= set(texts)
    samples = [dict(fields(value)) for field, value in parts if field == 2]  # type: ignore[arg-type]
    locations = {dict(fields(value))[1] for field, value in parts if field == 4}  # type: ignore[arg-type]
    sums = [0] * len(METRICS)
    for sample in samples:
        stack, values = numbers(sample[1]), numbers(sample[2])  # type: ignore[arg-type]
        assert set(stack) <= locations and len(values) == len(METRICS)
        sums = [total + value for total, value in zip(sums, values, strict=True)]
    assert sums == [getattr(base.total, metric) for metric in METRICS]


GO = shutil.which("go")


@pytest.mark.long
@pytest.mark.skipif(GO is None, reason="go is missing; as root, run: apt-get install golang-go")
def test_pprof_reads_its_file(hashed: Profiled, tmp_path: Path) -> None:
    file = tmp_path / "profile.pb.gz"
    file.write_bytes(pprof_of(hashed.profiles[0]))
    command = [str(GO), "tool", "pprof", "-top", "-sample_index=walks", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "read_at_random" in done.stdout.splitlines()[5], done.stdout


def test_the_difference_names_what_has_changed(hashed: Profiled) -> None:
    base, thp = hashed.profiles
    text = "\n".join(difference(thp, base, "walks"))
    assert "under linux-4k on skylake, now linux-thp on skylake: cycles from" in text, text
    assert "read_at_random from" in text and "(-9" in text, text
    same = difference(base, base, "walks")
    assert len(same) == 2 and same[1].endswith("as before."), same


def test_a_program_that_fails_is_said_to_be_incomplete_first(culprits: str) -> None:
    found = profile(["/bin/sh", "-c", "exit 3"], designs=["linux-4k"], options=OPTIONS)
    assert "ended with" in found.sentences()[0] and "incomplete" in found.sentences()[0]


def test_several_seeds_are_no_profile(culprits: str) -> None:
    with pytest.raises(ProfileError, match="one seed"):
        profiled(culprits, "hash", replace(OPTIONS, seeds=(1, 2)))


@browser_tests
@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_a_reader_chooses_searches_and_zooms(
    hashed: Profiled, tmp_path: Path, width: int, scheme: str
) -> None:
    file = tmp_path / "profile.html"
    file.write_text(page_of(hashed.profiles, hashed.sentences()))
    with opened(file, viewport={"width": width, "height": 900}, color_scheme=scheme) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert hidden_parts(tab) == []
        assert "read_at_random" in tab.locator("#rows tr").first.text_content()
        tab.select_option("#key", "mapping")
        assert "map_table" in tab.locator("#rows tr").first.text_content()
        tab.fill("#search", "map_array")
        assert tab.locator("#rows tr").count() == 1
        tab.locator("#flame button", has_text="read_at_random").first.click()
        assert tab.locator("#flame button").first.text_content() == "read_at_random"
        tab.locator("#flame button").first.click()
        assert tab.locator("#flame button").first.text_content() != "read_at_random"
        tab.fill("#search", "")
        tab.select_option("#key", "function")
        tab.locator("#rows button", has_text="read_at_random").click()
        costly = tab.locator("#code tr[style]")
        text = Path(__file__).parents[2] / "workloads" / "tests" / "culprits.c"
        for line in costly.all():
            _, number, code = (cell.text_content() for cell in line.locator("td").all())
            assert text.read_text().splitlines()[int(number) - 1] == code
        tab.select_option("#view", "assembly")
        assert any("%r" in line.text_content() for line in costly.all())
        assert "map_table" in tab.locator("#memory option").first.text_content()
        tab.locator("#heat").hover()
        assert "From instruction" in tab.locator("#heated").text_content()
        assert tab.locator("#curve polyline").count() == len(PAGES)
        tab.select_option("#design", "1")
        assert hidden_parts(tab) == []


def misses(found: Attribution, entries: int) -> float:
    memory = found.localities.values()
    missed = sum(one.reuse["4k"].misses(entries) for one in memory)
    return missed / sum(one.accesses for one in memory)


@pytest.mark.parametrize("entries", [16, 64, 256, 1024, 4096])
def test_miss_ratios_are_those_of_fully_associative_tlbs(
    hashed: Profiled, culprits: str, entries: int
) -> None:
    tlb = ("machine.tlb.l1d.4k", {"entries": entries, "ways": entries})
    designs, machine = changed([tlb], ["linux-4k"], "skylake")
    options = replace(OPTIONS, detail="translation", machine=machine)
    report = run([culprits, "hash"], designs=designs, options=options)[0]
    executed = report.values["executed"]
    accesses = executed["loads"] + executed["stores"]
    simulated = report.summary()["l1d_tlb_mpki"] * executed["instructions"] / 1000 / accesses
    assert misses(hashed.profiles[0], entries) == pytest.approx(simulated, abs=0.001)


def test_a_sampled_run_has_the_miss_ratios_of_the_whole(hashed: Profiled, culprits: str) -> None:
    sample = Sampling(distance=100_000)
    options = replace(FULL, sample=sample, locality=True)
    sampled = profiled(culprits, "hash", options).profiles[0]
    for entries in (16, 64, 256, 1024, 4096):
        whole = misses(hashed.profiles[0], entries)
        assert misses(sampled, entries) == pytest.approx(whole, abs=0.01)


def test_a_mapping_wants_the_smallest_page_that_larger_ones_do_not_beat(culprits: str) -> None:
    options = replace(OPTIONS, detail="translation", locality=True)
    found = profiled(culprits, "mappings", options).profiles[0]
    table, array = (
        next(one for name, one in found.localities.items() if site in name)
        for site in ("map_table", "map_array")
    )
    accesses = sum(one.accesses for one in found.localities.values())
    entries = found.tlb_entries
    assert entries == 1536
    assert (table.wanted(entries, accesses), array.wanted(entries, accesses)) == ("64k", "4k")
    assert (table.touched, table.density("2m")) == (64 << 20, 1.0)
    assert array.touched == 256 << 10
    heads, rows = locality_rows(found.localities, entries, 1)
    assert dict(zip(heads, rows[0], strict=True))["wants"] == "64 KB"
    assert not profiled(culprits, "mappings").profiles[0].localities


def test_phases_add_up_and_tell_when_a_list_is_walked(culprits: str) -> None:
    base = profiled(culprits, "sites").profiles[0]
    for key in ("function", "mapping"):
        walks = sum(cost.walks for costs in base.over_time(key).values() for cost in costs)
        assert walks == base.total.walks
    walked = [cost.walks for cost in base.over_time("function")["walk_list"]]
    built = [cost.walks for cost in base.over_time("function")["build_list"]]
    assert max(place for place, count in enumerate(built) if count) <= min(
        place for place, count in enumerate(walked) if count
    )
    _, rows = cost_rows([base], "phase", "walks", 10)
    assert rows[0][5] == "build_list" and rows[-1][5] == "walk_list"
    assert "site_two" in rows[-1][6]
    with pytest.raises(ProfileError, match="thread"):
        base.over_time("thread")


def test_markdown_has_the_sentences_and_tables_of_a_terminal(hashed: Profiled) -> None:
    said = ["fill() takes `5` | more", *hashed.sentences()]
    command = hashed.profiles[0].command
    text = markdown_of(hashed.profiles, said, ("function", "mapping"), "walks", 1)
    assert f"```\n{shlex.join(command)}\n```" in text
    assert "- fill() takes \\`5\\` \\| more" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert [line.split(" | ")[0] for line in tables] == [
        "| function",
        tables[1],
        "| read_at_random",
        "| memory",
        tables[4],
        f"| {hashed.profiles[0].by('mapping', metric='walks')[0][0][0]}",
        "| memory",
        tables[7],
        f"| {hashed.profiles[0].by('mapping', metric='walks')[0][0][0]}",
    ]
    assert [line.count("|") for line in tables] == [8] * 6 + [10] * 3


def test_listings_have_every_cycle_of_a_function(hashed: Profiled) -> None:
    base = hashed.profiles[0]
    listed = {one.function: one for one in listings(hashed.profiles)}
    one = listed["read_at_random"]
    cycles: dict[Frame, int] = defaultdict(int)
    for row in base.rows():
        cycles[row.at] += row.costs.translation_cycles
    expected = sum(at for frame, at in cycles.items() if frame.function == "read_at_random")
    for runs in (*one.source.values(), one.assembly):
        assert all(b.place > a.place for run in runs for a, b in pairwise(run))
    for lines in (chain(*one.source.values()), one.assembly):
        found = [frame for line in chain(*lines) for frame in line.frames]
        assert len(found) == len(set(found))
        assert sum(cycles[frame] for frame in found) == expected > 0


def test_code_that_is_gone_is_listed_without_text(culprits: str, tmp_path: Path) -> None:
    program = tmp_path / "culprits"
    shutil.copy(culprits, program)
    found = profiled(str(program), "hash").profiles[0]
    assert found.frames
    program.unlink()
    listed = {one.function: one for one in listings([found])}
    assert listed["read_at_random"].assembly == [] and listed["read_at_random"].source


def test_a_profile_survives_its_file(hashed: Profiled, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(hashed.profiles[0].to_json())
    found = Attribution.read(file)
    assert found.total == hashed.profiles[0].total
    assert found.by("mapping") == hashed.profiles[0].by("mapping")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 99}', '{"schema": 1}', "nonsense"])
def test_what_is_no_profile_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(text)
    with pytest.raises(ProfileError, match=r"profile\.json"):
        Attribution.read(file)


def test_costs_add_up() -> None:
    one = Costs(*range(len(METRICS)))
    assert (one + one).fault_cycles == 2 * one.fault_cycles
