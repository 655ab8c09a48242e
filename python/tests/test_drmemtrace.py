"""Do traces of DynamoRIO run, and where do their threads, registers and pages end up?"""

import csv
import struct
from io import StringIO
from pathlib import Path

import pytest

import contigua
from contigua import EngineError, RunOptions

DATA = Path(__file__).parents[2] / "crates" / "program" / "tests" / "data" / "drmemtrace"
REGDEPS = 0x20200
X86_64 = 0x40
MEMORY = 0x7F0000000000


def record(kind, size, value):
    return struct.pack("<HHQ", kind, size, value)


def trace(path, instructions, *, file_type=REGDEPS):
    """Write a thread: each instruction has an encoding and the address that it loads from."""
    records = [record(25, 0, 7), record(28, 9, file_type), record(22, 4, 1), record(24, 4, 1)]
    records += [record(28, 18, 4096), record(28, 2, 10), record(28, 3, 0)]
    known = set()
    for address, encoding, load in instructions:
        if encoding and address not in known:
            known.add(address)
            records.append(record(47, len(encoding), int.from_bytes(encoding, "little")))
        records.append(record(10, 3, address))
        records.append(record(0, 8, load))
    records += [record(23, 4, 1), record(26, 0, 0)]
    path.write_bytes(b"".join(records))
    return path


def load_of(written, read):
    """A REGDEPS load that writes one register and reads another."""
    header = 1 | 1 << 4 | (1 << 1 | 1 << 6) << 10
    return struct.pack("<IBBBx", header, 8, written, read)


def test_counts_are_those_of_another_reader(cli):
    files = sorted(path for path in DATA.iterdir() if path.suffix in (".zip", ".gz"))
    told = cli("trace", "info", "--format", "csv", *files)
    assert told.returncode == 0, told.stderr
    found = {row["file"]: row for row in csv.DictReader(StringIO(told.stdout))}
    expected = list(csv.DictReader((DATA / "counts.csv").open()))
    assert len(found) == len(expected) == 5
    for row in expected:
        assert row.items() <= found[row["file"]].items()
    table = cli("trace", "info", files[0])
    assert "instructions" in table.stdout


def test_a_trace_is_found_by_itself_and_runs_in_full_detail():
    file = DATA / "drmemtrace.threadsig.872906.1041.trace.zip"
    report = contigua.run(trace=file, designs=["linux-4k"], options=RunOptions(mapped=True))[0]
    executed = report.values["executed"]
    assert executed["instructions"] == 49_493
    assert (executed["loads"], executed["stores"]) == (13_051, 7_590)
    assert 0.3 < report.summary()["ipc"] < 4
    assert report.summary()["page_faults"] == 0


def test_traces_without_encodings_need_less_detail():
    folder = DATA
    with pytest.raises(EngineError, match="--detail additive"):
        contigua.run(trace=folder, designs=["linux-4k"])
    options = RunOptions(detail="additive")
    single = DATA / "drmemtrace.tool.fib_plus.125255.3920.trace.gz"
    report = contigua.run(trace=single, designs=["linux-4k"], options=options)[0]
    assert report.values["executed"]["instructions"] == 7_502
    # Threads of one process.
    report = contigua.run(trace=folder, designs=["linux-4k"], options=options)[0]
    assert report.values["executed"]["instructions"] > 18_874 + 7_502 + 5_764
    assert report.values["program"]["threads"] == 5


def test_regdeps_loads_wait_for_the_registers_that_they_read(tmp_path):
    cycles = {}
    for name, read in (("chase", 3), ("independent", 7)):
        loads = [MEMORY + 4096 * (i * 797 % 2048) for i in range(2048)]
        file = trace(tmp_path / f"{name}.trace", [(0x1000, load_of(3, read), at) for at in loads])
        options = RunOptions(mapped=True)
        cycles[name] = contigua.run(trace=file, designs=["linux-4k"], options=options)[0].summary()[
            "cycles"
        ]
    assert cycles["chase"] > 6 * cycles["independent"]


def test_pages_lie_where_the_traced_machine_had_them(tmp_path):
    folder = tmp_path / "traced"
    folder.mkdir()
    loads = [MEMORY + 4096 * i for i in range(1024 + 8)]
    trace(folder / "x.trace", [(0x1000, load_of(3, 7), at) for at in loads])
    groups = [
        (2 << 20, [(MEMORY, 6 << 20), (MEMORY + (2 << 20), 2 << 20)]),
        (4096, [(MEMORY + (4 << 20) + 4096 * i, (64 << 20) + 8192 * i) for i in range(8)]),
    ]
    text = ""
    for size, pages in groups:
        text += f"address_mapping_group {{\n  page_size: {size:#x}\n"
        for page, frame in pages:
            text += f"  address_mapping {{\n    virtual_address: {page:#x}\n"
            text += f"    physical_address: {frame:#x}\n  }}\n"
        text += "}\n"
    options = RunOptions(physical="traced")
    with pytest.raises(EngineError, match=r"v2p\.textproto"):
        contigua.run(trace=folder, options=options)
    (folder / "v2p.textproto").write_text(text)
    designs = ["linux-4k", "linux-thp", "colt", "nested-4k"]
    for report in contigua.run(trace=folder, designs=designs, options=options):
        found = report.summary()
        assert found["resident_2m_mib"] == 4, found["design"]
        # Eight pages of data, and the one of the code, which the file does not have.
        small = 0 if found["design"] == "linux-thp" else 1
        assert found["resident_4k_mib"] == pytest.approx((8 + small) / 256, abs=1 / 256)
    placed = contigua.run(trace=folder, designs=["linux-4k"])[0].summary()
    assert placed["resident_2m_mib"] == 0
    (folder / "v2p.textproto").write_text(text.replace("0x1000", "0x3000"))
    with pytest.raises(EngineError, match=r"v2p\.textproto: line \d+: page_size is 0x3000"):
        contigua.run(trace=folder, options=options)


def test_skipped_chunks_and_traced_memory_leave_the_same_region(tmp_path):
    loads = [MEMORY + 4096 * (i % 64) for i in range(5000)]
    file = trace(tmp_path / "x.trace", [(0x1000, load_of(3, 7), at) for at in loads])
    options = RunOptions(mapped=True, skip=3000, instructions=1000)
    report = contigua.run(trace=file, designs=["linux-4k"], options=options)[0]
    assert report.values["executed"]["instructions"] == 1000
    assert report.values["executed"]["loads"] == 1000
