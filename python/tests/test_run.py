"""Do real programs run through the whole stack, and are the counts right?"""

import json
import os
import re
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import contigua
from conftest import interrupt
from contigua import EngineError, Machine, RunOptions, _engine
from contigua.regions import Regions

ROOT = Path(__file__).parents[2]
TRANSLATION = RunOptions(detail="translation")
#: Variables of QEMU itself, which programs do not get (crates/program/src/allocator.rs).
QEMU_ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0"}
#: The operator's command, if somebody built it.
NODES = [ROOT / "target" / profile / "contigua-node" for profile in ("debug", "release")]
NODE = next((path for path in NODES if path.exists()), None)


@pytest.fixture(scope="session")
def counter(tmp_path_factory):
    """A plugin of its own, which counts with per-instruction callbacks and nothing else."""
    plugin = tmp_path_factory.mktemp("counter") / "counter.so"
    source = Path(__file__).parent / "counter.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", plugin, source], check=True)

    def count(*command: str) -> dict[str, int]:
        # The same processor and layout of addresses as under contigua.
        emulator = ["setarch", "-R", _engine.emulator(), *_engine.emulator_options()]
        emulator += [part for name in QEMU_ALLOCATOR for part in ("-U", name)]
        ran = subprocess.run(
            [*emulator, "-plugin", plugin, *command],
            capture_output=True,
            text=True,
            check=True,
            # Python's own view of it, as the other side gets it; libraries set more behind it.
            env=dict(os.environ) | QEMU_ALLOCATOR,
        )
        found = re.findall(r"counter: (\w+) (\d+)", ran.stderr)
        return {name: int(value) for name, value in found}

    return count


@pytest.mark.parametrize(
    "command",
    [
        ["gups", "--size", "1MiB", "--updates", "20000"],
        ["gups-static", "--size", "1MiB", "--updates", "20000"],
        ["stream", "--help"],
        ["bfs", "--scale", "8", "--roots", "2"],
    ],
    ids=" ".join,
)
def test_counts_agree_with_an_independent_plugin(command, counter, cli, tmp_path):
    command = [str(ROOT / "workloads" / "bin" / command[0]), *command[1:]]
    report = tmp_path / "report.json"
    # Both with a pipe for output: the C library treats files and terminals differently.
    ran = cli("run", "--detail", "translation", "--json", report, "--", *command)
    assert ran.returncode == 0, ran.stderr
    ours = json.loads(report.read_text())[0]["executed"]
    theirs = counter(*command)
    # The other plugin leaves mappings where QEMU puts them: the loader, and in QEMU 10 routines for
    # memory and strings, take some instructions more or fewer where they work on other addresses.
    static = command[0].endswith("-static")
    most = 100 if "-B" in _engine.emulator_options() else 0 if static else 10
    for name in ("instructions", "loads", "stores"):
        assert abs(ours[name] - theirs[name]) <= most, (name, ours, theirs)


@pytest.mark.parametrize("start", [(), ("env", "-i")], ids=["at once", "by another, without"])
def test_programs_find_a_processor_that_copies_with_vectors_or_their_users_choice(
    start, cli, guest
):
    # Another program starts the second one, which knows nothing of QEMU_CPU.
    command = ["run", "--detail", "translation", "--", *start, guest("processor")]
    assert cli(*command, env={"QEMU_CPU": ""}).stdout == "processor: erms 0, fsrm 0\n"
    assert cli(*command, env={"QEMU_CPU": "max"}).stdout.startswith("processor: erms 1")


@pytest.mark.parametrize("start", [(), ("env",)], ids=["at once", "by another"])
def test_programs_do_not_get_the_settings_of_qemus_allocator_but_their_own(start, cli):
    command = ["run", "--detail", "translation", "--", *start, "env"]
    said = cli(*command, env={"MALLOC_ARENA_MAX": "3"}).stdout
    assert re.findall("^MALLOC_.*", said, re.MULTILINE) == ["MALLOC_ARENA_MAX=3"]


def test_designs_see_the_same_execution(guest):
    results = contigua.run([guest("memory")], designs=["linux-4k", "linux-thp"])
    small, huge = (report.values for report in results)
    assert small["executed"] == huge["executed"]
    assert small["program"] == huge["program"]
    assert small["memory"]["resident_2m_bytes"] == 0
    assert huge["kernel"]["faults_anonymous_2m"] > 0


def test_the_pages_that_a_program_touches_are_the_pages_that_are_faulted_in(guest):
    results = contigua.run([guest("memory")], designs=["linux-4k"], options=TRANSLATION)
    faults = results[0].values["kernel"]
    # The program says that it touches 2512 new pages; loader and C library touch some more.
    assert 2512 <= faults["faults_anonymous_4k"] + faults["faults_copy_on_write"] <= 2512 + 150
    assert faults["unexplained_accesses"] == 0


def test_scattered_memory_has_no_huge_pages_to_give(guest):
    options = RunOptions(age="fresh,scattered:2")
    fresh, scattered = contigua.run([guest("memory")], designs=["linux-thp"], options=options)
    assert fresh.values["kernel"]["huge_page_fallbacks"] == 0
    assert scattered.values["kernel"]["huge_page_fallbacks"] > 0
    assert scattered.values["memory"]["resident_2m_bytes"] == 0


@pytest.mark.parametrize("name", ["threads", "forks", "execs", "signals"])
def test_processes_threads_and_signals_are_followed(name, guest):
    results = contigua.run([guest(name)], designs=["linux-4k"], options=TRANSLATION)
    assert results.exit_code == 0
    program = results[0].values["program"]
    if name == "threads":
        assert program["threads"] == 9
    if name == "forks":
        assert program["processes"] == 15
    if name == "execs":
        assert program["processes"] >= 4


def test_a_run_that_was_recorded_replays_to_the_same_report(tmp_path, guest):
    trace = tmp_path / "memory.trace"
    options = RunOptions(record=trace)
    names = ["linux-4k", "linux-thp"]
    live = contigua.run([guest("memory")], designs=names, options=options)
    replayed = [contigua.run(trace=trace, designs=names).to_json() for _ in range(2)]
    assert replayed == [live.to_json()] * 2


def test_two_executions_of_a_program_agree(tmp_path):
    command = [str(ROOT / "workloads/bin/bfs"), "--scale", "9", "--roots", "1"]
    first, second = (contigua.run(command, designs=["linux-thp"]).to_json() for _ in range(2))
    assert first == second


def test_many_threads_replay_in_the_order_in_which_they_ran(tmp_path, guest):
    trace = tmp_path / "threads.trace"
    live = contigua.run([guest("threads")], designs=["linux-4k"], options=RunOptions(record=trace))
    assert contigua.run(trace=trace, designs=["linux-4k"]).to_json() == live.to_json()


def test_a_region_of_interest_is_counted_and_nothing_else():
    command = [str(ROOT / "workloads/bin/gups"), "--size", "1MiB", "--updates", "50000"]
    options = RunOptions(skip=100_000, warmup=50_000, instructions=200_000)
    report = contigua.run(command, designs=["linux-4k"], options=options)[0].values
    # Whole blocks: at most one block short.
    assert 200_000 - 512 <= report["executed"]["instructions"] <= 200_000
    assert report["program"]["limited"]


def test_input_output_and_exit_status_are_the_programs_own(cli, guest):
    echo = cli("run", "--", guest("echo"), input="line\n")
    assert echo.stdout == "line\n"
    assert "instructions" in echo.stderr
    assert cli("run", "--", guest("exit_status"), "--exit", 3).returncode == 3
    assert cli("run", "--", guest("exit_status"), "--signal", 15).returncode == 128 + 15


def test_an_endless_program_ends_when_told(cli, guest, tmp_path):
    report = tmp_path / "report.json"
    ran = cli("run", "--wall", "500ms", "--json", report, "--", guest("forever"))
    assert ran.returncode == 0, ran.stderr
    assert json.loads(report.read_text())[0]["executed"]["instructions"] > 100_000


def test_an_interrupt_leaves_a_report_that_says_so(guest, tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "contigua.cli", "run", "--json", str(report), "--"]
    process = subprocess.Popen(
        [*command, guest("forever")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.readline()
    time.sleep(0.3)
    errors = interrupt(process)
    assert process.returncode == 130, errors
    (written,) = json.loads(report.read_text())[:1]
    assert written["executed"]["instructions"] > 100_000
    assert (written["complete"], written["ended"]) == (False, "interrupted")


def test_code_of_the_emulator_calls_the_plugin_directly(guest):
    command = [sys.executable, "-m", "contigua.cli", "run", "--skip", "1000G", "--"]
    process = subprocess.Popen(
        [*command, guest("forever")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.readline()
    children = Path(f"/proc/{process.pid}/task").glob("*/children")
    (emulator,) = " ".join(file.read_text() for file in children).split()
    mappings = Path(f"/proc/{emulator}/maps").read_text().splitlines()
    interrupt(process)

    def executed(name):
        found = [line.split()[0] for line in mappings if re.search(name, line)]
        return [int(address, 16) for address in "-".join(found).split("-")]

    code, plugin = executed("rwxp"), executed("r-xp.*contigua-qemu-plugin")
    # Calls that reach further go through a word of memory.
    assert max(code + plugin) - min(code + plugin) < 2**31


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "--", "/no/such/program"], "no such program"),
        (["run", "--", __file__], "not an executable program"),
        (["run", "--designs", "linux-5k", "--", "true"], "did you mean linux-4k"),
        (["run", "--memory", "lots", "--", "true"], "no number at the start"),
        (["run", "--memory", "1M", "--", "true"], "at least 16MiB"),
        (["run", "--age", "old", "--", "true"], "unknown age"),
        (["run", "--trace", __file__], "not a"),
        (["run", "--trace", "/no/such/trace"], "No such file"),
        (["run", "--json", "/no/such/folder/x", "--", "true"], "cannot be written"),
        (["record", "-o", "/no/such/folder/x", "--", "true"], "No such file"),
    ],
)
def test_a_mistake_gets_one_clear_error(cli, arguments, expected):
    ran = cli(*arguments)
    assert ran.returncode != 0
    assert expected in ran.stderr
    assert "Traceback" not in ran.stderr and "panicked" not in ran.stderr


def test_without_qemu_the_error_says_what_to_run(cli):
    ran = cli("run", "--", "true", env={"CONTIGUA_QEMU": "/no/such/qemu"})
    assert ran.returncode == 1
    assert "CONTIGUA_QEMU=/no/such/qemu: no such program" in ran.stderr
    assert "run `contigua setup qemu`" in ran.stderr


def test_too_little_memory_is_an_error_that_says_so(guest):
    with pytest.raises(EngineError, match="give it more with --memory"):
        command = [str(ROOT / "workloads/bin/gups"), "--size", "64MiB", "--updates", "100000"]
        contigua.run(command, designs=["linux-4k"], options=RunOptions(memory="32MiB"))


def test_a_trace_with_any_byte_changed_is_refused(tmp_path, guest):
    trace = tmp_path / "echo.trace"
    contigua.run(
        [guest("exit_status"), "--exit", "0"], designs=[], options=RunOptions(record=trace)
    )
    whole = trace.read_bytes()
    damaged = tmp_path / "damaged.trace"
    for at in [*range(0, len(whole), max(1, len(whole) // 40)), len(whole) - 1]:
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(EngineError):
            contigua.run(trace=damaged, designs=["linux-4k"], options=TRANSLATION)
        damaged.write_bytes(whole[:at])
        with pytest.raises(EngineError):
            contigua.run(trace=damaged, designs=["linux-4k"], options=TRANSLATION)


def test_traces_of_other_tools_are_read(tmp_path):
    lackey = tmp_path / "lackey.txt"
    lines = ["==1== Lackey, an example Valgrind tool"]
    lines += [
        f"I  {0x400000 + 4 * (i % 8):08x},4\n L {0x1000000 + 4096 * i:x},8" for i in range(100)
    ]
    lackey.write_text("\n".join(lines) + "\n")
    champsim = tmp_path / "trace.champsim"
    record = struct.Struct("<QBB2B4B2Q4Q")
    champsim.write_bytes(
        b"".join(
            record.pack(0x400000 + 4 * (i % 8), 0, 0, *[0] * 6, 0, 0, 0x1000000 + 4096 * i, 0, 0, 0)
            for i in range(100)
        )
    )
    for trace, kind in ((lackey, "lackey"), (champsim, "champsim")):
        options = RunOptions(trace_format=kind, detail="translation")
        report = contigua.run(trace=trace, designs=["linux-4k"], options=options)[0].values
        assert report["executed"]["instructions"] == 100
        assert report["executed"]["loads"] == 100
        # One page of code and a hundred of data.
        assert report["kernel"]["faults_anonymous_4k"] == 101
    options = RunOptions(trace_format="lackey")
    with pytest.raises(EngineError, match=r"lackey\.txt: .*--detail additive"):
        contigua.run(trace=lackey, options=options)
    lackey.write_text("I  zzz,4\n")
    with pytest.raises(EngineError, match="line 1"):
        contigua.run(trace=lackey, options=replace(options, detail="additive"))


CHAMPSIM = struct.Struct("<QBB2B4B2Q4Q")


def champsim(path, loads, *, chases):
    """Write a loop that loads from these addresses, each known by the load before or not."""
    register = 3 if chases else 7
    with path.open("wb") as file:
        for address in loads:
            file.write(
                CHAMPSIM.pack(0x400000, 0, 0, 3, 0, register, 0, 0, 0, 0, 0, address, 0, 0, 0)
            )
            file.write(CHAMPSIM.pack(0x400004, 1, 1, 26, 0, 26, 25, 0, 0, 0, 0, 0, 0, 0, 0))
    return path


@pytest.mark.parametrize(("function", "chases"), [("chase", True), ("visit", False)])
def test_a_champsim_trace_takes_as_long_as_its_program(tmp_path, guest, function, chases):
    # What workloads/tests/chase.c does.
    pages = [page * 2531 % 4096 for page in range(4096)]
    loads = [0x7F0000000000 + 4 * (page * 1024 + page * 97 % 1024) for page in pages]
    trace = champsim(tmp_path / "loop.champsim", loads, chases=chases)
    options = RunOptions(trace_format="champsim", mapped=True)
    traced = contigua.run(trace=trace, designs=["linux-4k"], options=options)[0]
    command = [guest("chase"), str(int(chases))]
    run = contigua.run(
        command, designs=["linux-4k"], options=RunOptions(regions=Regions.function(function))
    )[0]
    assert traced.summary()["cycles"] == pytest.approx(run.summary()["cycles"], rel=0.1)
    assert (traced.summary()["cycles"] > 150 * len(loads)) == chases
    assert traced.summary()["page_faults"] == 0


def test_memory_of_a_trace_can_be_mapped_before(tmp_path, guest):
    trace = champsim(
        tmp_path / "pages.champsim", [0x10000000 + 4096 * i for i in range(600)], chases=0
    )
    options = RunOptions(trace_format="champsim", detail="additive")
    run = {
        mapped: contigua.run(trace=trace, options=replace(options, mapped=mapped))
        for mapped in (False, True)
    }
    assert run[False][0].summary()["page_faults"] == 601
    for report in run[True]:
        assert report.summary()["page_faults"] == 0
        assert report.summary()["kernel_share"] == 0
    small, huge = run[True]
    assert small.summary()["resident_4k_mib"] == pytest.approx(601 / 256)
    assert huge.summary()["resident_2m_mib"] >= 2
    with pytest.raises(EngineError, match="--mapped is for traces of other tools"):
        contigua.run([guest("memory")], options=RunOptions(detail="translation", mapped=True))


def test_addresses_that_page_tables_do_not_hold_are_refused(tmp_path):
    trace = champsim(tmp_path / "high.champsim", [0x7F0000000000, 0x10_7F0000000000], chases=0)
    options = RunOptions(trace_format="champsim", detail="translation")
    with pytest.raises(EngineError, match=r"record 3: the address 0x107f0000000000 .* 48 bits"):
        contigua.run(trace=trace, options=options)
    five = Machine("skylake").with_({"page_table_levels": 5}, name="five")
    results = contigua.run(
        trace=trace, designs=["linux-4k"], options=replace(options, machine=five)
    )
    assert results[0].summary()["page_faults"] == 3


def test_results_become_a_data_frame(guest):
    frame = contigua.run([guest("memory")], options=TRANSLATION).to_pandas()
    assert list(frame["design"]) == ["linux-4k", "linux-thp"]
    assert (frame["instructions"] > 0).all()


def test_a_program_finds_the_memory_that_its_servers_history_left():
    options = RunOptions(age="fresh,partial,full", memory="512M", detail="translation")
    results = contigua.run(["/bin/true"], designs=["linux-thp", "contiguitas-thp"], options=options)
    found = {(r["age"], r["design"]): r for r in results.to_pandas().to_dict("records")}
    assert found["fresh", "linux-thp"]["free_2m_blocks_before"] == 256
    assert found["full", "linux-thp"]["free_2m_blocks_before"] == 0
    for age in ("partial", "full"):
        linux, confined = found[age, "linux-thp"], found[age, "contiguitas-thp"]
        polluted = "unmovable_2m_blocks_after"
        assert linux[polluted] > confined[polluted] > 0
        assert confined["unmovable_region_mib"] >= 2 * confined[polluted]
        assert linux["unmovable_region_mib"] != linux["unmovable_region_mib"]  # none


def test_a_program_starts_on_a_saved_server(tmp_path):
    snapshot = tmp_path / "web.snapshot"
    aged = contigua.age(options=contigua.AgeOptions(memory="512M", hours=0.1))
    aged.save(snapshot)
    options = RunOptions(age=f"snapshot:{snapshot}", detail="translation")
    (report,) = contigua.run(["/bin/true"], designs=["linux-thp"], options=options)
    before = report.values["contiguity_before"]
    assert before == aged.final["contiguity"]
    with pytest.raises(contigua.EngineError, match="use --memory 512MiB"):
        contigua.run(["/bin/true"], options=replace(options, memory="1G"))


@pytest.mark.skipif(
    NODE is None, reason="contigua-node is not built (cargo build -p contigua-node)"
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at frames")
def test_a_program_starts_on_a_real_server(tmp_path):
    file = tmp_path / "real.snapshot"
    scanned = subprocess.run(
        [NODE, "scan", "--json", "--snapshot", file], capture_output=True, text=True, check=True
    )
    seen = json.loads(scanned.stdout)["frames"]["contiguity"]
    options = RunOptions(age=f"snapshot:{file}", detail="translation")
    (report,) = contigua.run(["/bin/true"], designs=["linux-thp"], options=options)
    before = report.values["contiguity_before"]
    # Flags leave open what some frames are: a scan has bounds, and a simulated server decides.
    for size in ("blocks_2m", "blocks_32m", "blocks_1g"):
        for kind in ("total", "free", "unmovable"):
            low, high = sorted(reading[size][kind] for reading in seen.values())
            assert low <= before[size][kind] <= high, (size, kind)
