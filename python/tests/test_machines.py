"""Are machine files whole, and does `contigua machines measure` write one that is?"""

import json
import re
import tomllib
from itertools import pairwise

import pytest
from click.testing import CliRunner

import contigua
from contigua import machines
from contigua.cli import cli
from contigua.commands import measure as command
from contigua.measuring import Computer, Measured, MeasureError, machine_of, probes
from contigua.measuring.machine import knee
from contigua.measuring.machine import probes as wanted
from contigua.measuring.probes import Rounds, measure
from contigua.measuring.written import toml

#: Sources that may be named; "ours" is one of our choice.
SOURCES = (
    "ours", "simulated", "as ", "AMD", "Intel", "Arm", "NVIDIA", "JEDEC", "Agner Fog", "uops.info",
    "LLVM", "WikiChip", "Chips and Cheese", "AnandTech", "Molka", "Mitosis", "Barr", "Yan et al.",
    "Contiguitas", "Direct Segments", "redis.io", "measured", "costs.md", "published", "guess",
    "E5-2430",
)  # fmt: skip


def silent(text):
    """Return the values of a machine file that have no source: beside them, above, or at the head.

    A source holds until the next blank line or table.
    """
    named, found = False, []
    for line in text.splitlines():
        _, _, comment = line.partition("#")
        if not line.strip() or line.startswith("["):
            named = False
        named |= any(source in comment for source in SOURCES)
        if re.match(r"\w+ = ", line) and not named:
            found.append(line)
    return found


@pytest.mark.programs
@pytest.mark.parametrize("preset", list(machines), ids=lambda preset: preset.name)
def test_every_machine_loads_runs_and_names_its_sources(preset, guest):
    assert [line for line in silent(preset.text) if not line.startswith("description")] == []
    results = contigua.run(
        [guest("echo")], designs=["linux-4k"], options=contigua.RunOptions(machine=preset.name)
    )
    assert results.reports[0].values["time"]["cycles"] > 0


def test_a_value_without_a_source_is_noticed():
    assert silent("[a]\nb = 1\nc = 2 # Intel\n\nd = 3 # fast") == ["b = 1", "d = 3 # fast"]


NEW = ("broadwell", "cascade-lake", "neoverse-v2", "zen-3", "zen-4", "zen-5")


@pytest.mark.parametrize("name", NEW)
def test_a_machine_differs_from_its_neighbors_where_its_processor_does(name):
    values = {other: machines.resolve(other) for other in (*NEW, "skylake", "haswell-ex")}
    assert sum(one == values[name] for one in values.values()) == 1
    assert values["zen-4"]["tlb"]["l2"][0]["entries"] == 3072
    assert values["zen-3"]["tlb"]["l2"][0]["entries"] == 2048
    assert values["zen-5"]["tlb"]["l2"][0]["entries"] == 4096
    assert values["broadwell"]["core"]["page_walkers"] == 2
    assert values["haswell-ex"]["core"]["page_walkers"] == 1


CPUINFO = """vendor_id\t: {vendor}
cpu family\t: {family}
model\t\t: {model}
model name\t: A processor
stepping\t: {stepping}
flags\t\t: fpu {flags}
"""


def computer(vendor="GenuineIntel", family=6, model=85, stepping=4, flags=""):
    """A computer that has this processor."""
    return Computer.this(
        CPUINFO.format(vendor=vendor, family=family, model=model, stepping=stepping, flags=flags)
    )


@pytest.mark.parametrize(
    ("processor", "name"),
    [
        ({}, "skylake"),
        ({"stepping": 7}, "cascade-lake"),
        ({"model": 79}, "broadwell"),
        ({"model": 63}, "haswell-ex"),
        ({"model": 45}, "sandy-bridge"),
        ({"model": 143}, "sapphire-rapids"),
        ({"model": 9999}, "skylake"),
        ({"vendor": "AuthenticAMD", "family": 25, "model": 1}, "zen-3"),
        ({"vendor": "AuthenticAMD", "family": 25, "model": 17}, "zen-4"),
        ({"vendor": "AuthenticAMD", "family": 26, "model": 2}, "zen-5"),
        ({"vendor": "AuthenticAMD", "family": 23, "model": 49}, "zen-3"),
    ],
)
def test_the_base_is_the_nearest_processor(processor, name):
    assert computer(**processor).nearest == name
    assert computer(**processor).nearest in machines.names()


def test_a_hypervisor_is_noticed():
    assert computer(flags="hypervisor").virtual
    assert not computer().virtual


def test_spreads_are_half_of_what_lies_between_quartiles():
    assert Measured.of([1.0, 2.0, 3.0, 4.0, 5.0]) == Measured(3.0, 1 / 3, 5)
    assert Measured.of([4.0]) == Measured(4.0, 0.0, 1)


#: A processor of our own: cycles of 0.25 ns; 64 entries, then 1536; caches of 32 KiB, 1 MiB and
#: 24 MiB with 4, 14 and 50 cycles, and memory of 100 ns.
CYCLE = 0.25
MISPREDICT = 18
TLB_HIT, WALK = 9, 40


def answer(line, *, huge=True, splintered=False, coalesces=False):
    """Return the probe's answer on it, in ns for an operation."""
    words = line.split()
    option = dict(pairwise(words))

    def size(name):
        text = option.get(name, "64" if name == "--step" else "0")
        unit = {"K": 10, "M": 20}.get(text[-1])
        return int(text[:-1]) << unit if unit else int(text)

    total, step = size("--size"), size("--step")
    fixed = {
        "cycle": CYCLE, "syscall": 50, "switch": 600, "zero": 60, "copy": 90, "populate": 400,
        "loads": 10.0, "unmap": 40 if "--file" in words else 80, "fork": 20,
        "protect": 15 if total > 4096 else 300, "fault": 100_000 if "--huge" in words else 400,
    }  # fmt: skip
    if words[0] == "fork" and total == 4096:
        return 2048.0
    if words[0] == "fault" and step == 2 << 20:
        return 600.0
    if words[0] == "branches":
        # Five cycles each; every other random one is mispredicted, four cycles after its dispatch.
        return (5 + (MISPREDICT + 4 + 1) / 2 * (option["--taken"] == "128")) * CYCLE
    if words[0] != "chase":
        return fixed[words[0]]
    lines = total // step
    together = int(option.get("--together", 1))
    large = "--huge" in words and huge and not splintered and total >= 2 << 20
    page = 2 << 20 if large else (16384 if coalesces and step <= 4096 else 4096)
    pages = -(-total // max(page, step))
    touched = lines * 64
    cycles = 4 if touched <= 32 << 10 else 14 if touched <= 1 << 20 else 50
    cycles = 400 if touched > 24 << 20 else cycles
    walk = 0 if pages <= 64 else TLB_HIT if pages <= 1536 else WALK
    return (cycles + walk / together) * CYCLE


def rounds_of(machine, **processor):
    """Three rounds of all probes on it."""
    lines = {name: " ".join(probe.arguments) for name, probe in wanted(machine).items()}
    times = {name: [answer(line, **processor)] * 3 for name, line in lines.items()}
    huge = {name: 1 << 20 if "--huge" in line else 0 for name, line in lines.items()}
    return Rounds(times, huge)


def known(**other):
    """Return the kernel's description of that computer."""
    values = {"caches": {1: 32 << 10, 2: 1 << 20, 3: 22 << 20}, "thp": "madvise"}
    base = computer()
    return Computer(**{**base.__dict__, **values, "available": 16 << 30, **other})


def test_a_known_processor_is_found_out():
    found = machine_of(known(), rounds_of(known()), "sandy-bridge")
    assert found.values["clock"] == "4000MHz"
    assert found.values["core.mispredict_penalty_cycles"] == MISPREDICT
    assert found.values["cache.l1d.size"] == "32KiB"
    assert found.values["cache.l2.latency_cycles"] == 14
    assert found.values["cache.llc.latency_cycles"] in (50, 51)
    assert 100 <= int(found.values["cache.memory_latency"].removesuffix("ns")) <= 101
    assert found.values["tlb.l1d.4k.entries"] == 64
    # 4 KB only, 512 entries in the base's file.
    assert found.values["tlb.l2.0.entries"] == 1536
    assert found.values["tlb.l2.0.latency_cycles"] == TLB_HIT
    # A second-level TLB's hit, less what sixteen lines share of one.
    assert found.values["walk_cache.start_cycles"] in (WALK - TLB_HIT - 15, WALK - TLB_HIT - 14)
    assert found.values["kernel.page_fault_cycles"] == (400 - 60) * 4
    assert found.values["kernel.unmap_page_cycles"] == 160
    assert found.values["kernel.free_page_cycles"] == 160
    assert found.values["kernel.page_table_node_cycles"] == 800
    assert found.values["kernel.zero_2m_cycles"] == (100_000 - 340) * 4
    assert found.host_page == "2m"
    assert not found.coalesces
    assert not found.doubts()


def test_a_host_with_small_pages_is_noticed():
    found = machine_of(known(virtual=True), rounds_of(known(), splintered=True), "skylake")
    assert found.host_page == "4k"
    assert "cannot be measured" in found.notes["tlb.l1d.2m.entries"]
    assert "do not extend the reach" in toml(found, "today")


def test_shared_tlb_entries_are_noticed():
    assert machine_of(known(), rounds_of(known(), coalesces=True), "zen-4").coalesces


def test_a_cache_that_others_fill_concludes_nothing():
    rounds = rounds_of(known())
    rounds.times["llc"] = [90.0] * 3
    (doubt,) = machine_of(known(), rounds, "skylake").doubts()
    assert doubt == "the last-level cache, which others fill, answers as late as memory"


def test_the_last_levels_size_is_the_middle_of_what_rounds_find():
    machine = known(caches={1: 32 << 10, 2: 1 << 20, 3: 16 << 20})
    rounds = rounds_of(machine)
    found = machine_of(machine, rounds, "skylake")
    assert found.values["cache.llc.size"] == "28688KiB"  # 28 MiB, in multiples of 176 KiB
    # Others have filled it in one round, in which no size but the smallest is below the middle.
    rounds.times = {
        name: [3 * times[0], *times[1:]] if re.fullmatch(r"abreast-\d+k", name) else times
        for name, times in rounds.times.items()
    }
    found = machine_of(machine, rounds, "skylake")
    assert found.values["cache.llc.size"] == "28688KiB"  # 28 MiB, in multiples of 176 KiB
    assert found.notes["cache.llc.size"] == "what this computer has of it; the kernel says 16MiB"


def test_memory_answers_single_lines_as_late_as_measured():
    machine = known()
    rounds = rounds_of(machine)
    before = machine_of(machine, rounds, "skylake")
    rounds.times["random-2m"] = [ns + 30 for ns in rounds.times["random-2m"]]
    found = machine_of(machine, rounds, "skylake")
    latencies = [machine.measured["cache.memory_latency"].value for machine in (before, found)]
    assert latencies[1] == pytest.approx(latencies[0] + 30)
    # Misses overlap as before, and each takes longer.
    assert found.values["core.miss_registers"] >= before.values["core.miss_registers"]
    rounds.times["loads"] = [ns / 1000 for ns in rounds.times["loads"]]
    most = machine_of(machine, rounds, "skylake").values["core.miss_registers"]
    assert most == machines.resolve("skylake")["core"]["miss_registers"]


def test_without_huge_pages_the_base_has_their_values():
    machine = known(thp="never")
    assert not any("--huge" in probe.arguments for probe in wanted(machine).values())
    found = machine_of(machine, rounds_of(machine), "skylake")
    assert found.host_page is None
    assert found.values["kernel.zero_2m_cycles"] == 150_000
    assert "no 2 MB pages" in found.notes["kernel.zero_2m_cycles"]


@pytest.mark.parametrize("base", machines.names())
def test_a_measured_machine_is_a_machine_file(base, tmp_path):
    found = machine_of(known(), rounds_of(known()), base)
    file = tmp_path / "own.toml"
    file.write_text(toml(found, "2026-01-01"))
    resolved = machines.resolve(str(file))
    assert resolved["core"]["latency_cycles"]["load"] == 4
    assert resolved["kernel"]["syscall_cycles"] == 200
    own = machines.resolve(base)
    assert resolved["core"]["ports"] == own["core"]["ports"]
    assert resolved["nested"] == own["nested"]
    values = [line for line in file.read_text().splitlines() if " = " in line and line[0] != "#"]
    assert all(" # " in line for line in values)
    assert sum("measured" in line for line in values) > 15
    assert sum(f"from {base}" in line for line in values) > 30


def test_a_processors_name_cannot_add_lines():
    found = machine_of(known(name='Odd\n[core]\n"\x1b[2J'), rounds_of(known()), "skylake")
    assert tomllib.loads(toml(found, "today"))["core"]["issue_width"] == 4


def test_knees():
    assert knee([(1, 1.0), (2, 1.0), (3, 9.0)], 1.0, 9.0) == 2
    assert knee([(1, 1.0), (2, 1.0)], 1.0, 9.0) is None
    assert knee([(1, 1.0), (2, 5.0)], 9.0, 1.0) is None


def test_too_little_memory_is_refused():
    with pytest.raises(MeasureError, match="10 MiB of memory are available, 256 MiB are needed"):
        wanted(known(available=10 << 20, caches={}))


@pytest.fixture
def pretended(monkeypatch):
    """The command on that processor; what it is given varies round by round."""
    loud = {"factor": [1.0, 1.0, 1.0]}

    def rounds(*_):
        made = rounds_of(known())
        for name in ("memory", "random-2m", "loads"):
            made.times[name] = [
                value * by for value, by in zip(made.times[name], loud["factor"], strict=True)
            ]
        return made

    monkeypatch.setattr(command, "measure", rounds)
    one = known()
    monkeypatch.setattr(Computer, "this", staticmethod(lambda *_: one))
    return loud


def test_the_command_writes_the_file_and_json(pretended, tmp_path):
    file, data = tmp_path / "own.toml", tmp_path / "own.json"
    done = CliRunner().invoke(
        cli, ["machines", "measure", "-o", str(file), "--json", str(data)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    assert machines.resolve(str(file))["clock"] == "4000MHz"
    values = json.loads(data.read_text())
    assert values["schema"] == 1
    assert values["base"] == "skylake"
    assert values["measured"]["clock"] == {
        "value": 4000.0, "spread": 0.0, "repeats": 3, "unit": "MHz",
    }  # fmt: skip


def test_values_that_vary_conclude_nothing(pretended, tmp_path):
    pretended["factor"] = [1.0, 2.0, 4.0]
    file = tmp_path / "own.toml"
    done = CliRunner().invoke(cli, ["machines", "measure", "-o", str(file)])
    assert isinstance(done.exception, MeasureError)
    assert "cache.memory_latency varies by 38 %" in str(done.exception)
    assert "--force" in str(done.exception)
    assert not file.exists()
    done = CliRunner().invoke(cli, ["machines", "measure", "-o", str(file), "--force"])
    assert done.exit_code == 0
    assert "spread 38 %" in file.read_text()


def test_an_unknown_base_is_refused_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(command, "measure", lambda *_: pytest.fail("measured"))
    done = CliRunner().invoke(cli, ["machines", "measure", "--base", "skylark"])
    assert "did you mean skylake" in str(done.exception)


@pytest.mark.programs
def test_a_probe_that_fails_says_why():
    with pytest.raises(MeasureError, match="unknown measure 'nothing'"):
        measure({"a": probes.Probe.of("nothing")}, 0.0, 1)


def test_a_probe_that_is_not_built_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("contigua.measuring.probes.PROBE", tmp_path / "probe")
    with pytest.raises(MeasureError, match="is not built: make -C workloads"):
        measure({"a": probes.Probe.of("cycle")}, 0.0, 1)


@pytest.mark.programs
def test_real_probes_give_plausible_times():
    """Only orders of magnitude: this computer may be loaded."""
    made = measure({
        "cycle": probes.Probe.of("cycle --operations 20000"),
        "memory": probes.Probe.of("chase --size 16M --operations 20000"),
        "fault": probes.Probe.of("fault --size 4M"),
    }, 0.0, 2)  # fmt: skip
    assert 0.05 < made.value("cycle").value < 20
    assert made.value("cycle").value < made.value("memory").value < 10_000
    assert made.value("fault").value > 20
    assert made.value("cycle").repeats == 2
