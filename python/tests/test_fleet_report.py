"""Does a report on real servers say what their snapshots say, and survive bad ones?"""

import json
import math
import random

import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from test_report import browser_tests, hidden_parts, opened

from contigua.cli import cli
from contigua.fleet_report import distribution, figures, pearson, read_fleet, row, sources
from contigua.snapshots import Problem, Snapshot, SnapshotError, read_snapshot

GIGABYTE = 1 << 18


def report(seed=0, *, free=GIGABYTE * 8, free_2m=100, polluted_2m=1000, hours=5.0):
    """Return a report as contigua-node writes it, as far as fleets read it."""
    blocks = [(16 * GIGABYTE) >> order for order in (9, 10, 13, 18)]

    def bounds(value):
        return {"certain": value, "possible": value + 1}

    sizes = [
        {
            "blocks": count,
            "free_blocks": bounds(free_2m if size == 0 else 0),
            "free_share_of_free": bounds(0.25 / (size + 1)),
            "unmovable_blocks": {"certain": min(count, polluted_2m), "possible": 0},
            "potential_blocks": bounds(count // 2),
        }
        for size, count in enumerate(blocks)
    ]
    movable = ["free", "anonymous", "page_cache", "thp", "hugetlb"]
    kernel = ["slab", "page_table", "kernel", "unexplained", "poisoned"]
    classes = dict.fromkeys([*movable, *kernel, "reserved", "offline", "hole", "unread"], 0)
    classes |= {"free": free, "slab": 3000, "page_table": 1000, "anonymous": 16 * GIGABYTE - free}
    unmovable = {"free_frames": free, "movable_frames": 12 * GIGABYTE - free}
    return {
        "machine": {
            "host": f"host{seed}",
            "kernel": "6.1.0",
            "unix_seconds": 1,
            "uptime_seconds": hours * 3600,
            "memory_bytes": 16 << 30,
        },
        "frames": {
            "classes": classes,
            "pins_held": None,
            "outcome": {"problem_count": 0},
            "sizes": sizes,
            "contiguity": {
                "certain": unmovable | {"unmovable_frames": 4 * GIGABYTE},
                "possible": unmovable | {"unmovable_frames": 3 * GIGABYTE},
            },
        },
    }


def xxh64(data):
    """Return the checksum of zstd frames (XXH64 with seed 0), as its specification has it."""
    p1, p2, p3, p4, p5 = (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
    mask = (1 << 64) - 1

    def left(value, bits):
        return ((value << bits) | (value >> (64 - bits))) & mask

    def stir(lane, word):
        return left((lane + word * p2) & mask, 31) * p1 & mask

    def word(at, size):
        return int.from_bytes(data[at : at + size], "little")

    at, length = 0, len(data)
    if length >= 32:
        lanes = [(p1 + p2) & mask, p2, 0, -p1 & mask]
        while at + 32 <= length:
            lanes = [stir(lane, word(at + 8 * i, 8)) for i, lane in enumerate(lanes)]
            at += 32
        value = sum(map(left, lanes, (1, 7, 12, 18))) & mask
        for lane in lanes:
            value = ((value ^ stir(0, lane)) * p1 + p4) & mask
    else:
        value = p5
    value = (value + length) & mask
    while at + 8 <= length:
        value = (left(value ^ stir(0, word(at, 8)), 27) * p1 + p4) & mask
        at += 8
    if at + 4 <= length:
        value = (left(value ^ (word(at, 4) * p1 & mask), 23) * p2 + p3) & mask
        at += 4
    while at < length:
        value = left(value ^ (data[at] * p5 & mask), 11) * p1 & mask
        at += 1
    value = (value ^ (value >> 33)) * p2 & mask
    value = (value ^ (value >> 29)) * p3 & mask
    return value ^ (value >> 32)


def frame(data):
    """Return a zstd frame with a checksum, which holds the data as it is."""
    # A window of 1 MB; blocks of at most 128 kB, the last one marked.
    parts = [b"\x28\xb5\x2f\xfd\x04\x50"]
    blocks = [data[at : at + (1 << 17)] for at in range(0, len(data), 1 << 17)]
    for number, block in enumerate(blocks, 1):
        parts.append((len(block) << 3 | (number == len(blocks))).to_bytes(3, "little") + block)
    parts.append((xxh64(data) & 0xFFFFFFFF).to_bytes(4, "little"))
    return b"".join(parts)


def packed(report, *, version=1, runs=b"\x81\x02\x10", tail=b""):
    header = {"format": "contigua-live-memory", "version": version, "classes": ["free"]}
    text = json.dumps(header).encode() + b"\n" + runs + b"\0" + json.dumps(report).encode() + b"\n"
    return frame(text + tail)


@pytest.fixture
def folder(tmp_path):
    """Return a directory of good and bad snapshots."""
    for seed in range(20):
        one = report(seed, free_2m=seed // 10, polluted_2m=400 + 200 * seed, hours=1 + seed)
        place = tmp_path / f"rack{seed % 2}" / f"{seed}.snapshot"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(packed(one))
    whole = packed(report())
    (tmp_path / "cut.snapshot").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "readme.txt").write_text("these are our servers")
    (tmp_path / "new.snapshot").write_bytes(packed(report(), version=2))
    (tmp_path / "old.snapshot").write_bytes(packed(report(), version=0))
    (tmp_path / "user.snapshot").write_bytes(packed(report() | {"frames": None}))
    (tmp_path / "lacking.snapshot").write_bytes(packed({"machine": {}, "frames": {}}))
    (tmp_path / "more.snapshot").write_bytes(packed(report(), tail=b"more"))
    (tmp_path / "x.snapshot.77.part").write_bytes(b"half")
    return tmp_path


def test_good_snapshots_are_read_and_bad_ones_counted(folder):
    fleet = read_fleet([folder])
    assert len(fleet.rows) == 20
    assert fleet.skipped == {
        Problem.DAMAGED: 5,
        Problem.NEWER: 1,
        Problem.OLDER: 1,
        Problem.WITHOUT_FRAMES: 1,
    }
    assert any("new.snapshot: format 2" in name for name in fleet.named)


def test_figures_are_those_of_the_paper(folder):
    rows = read_fleet([folder]).rows
    table = {name.strip(): here for name, here, _ in figures(rows)}
    # Ten of twenty have none for certain; with what may be free, all have one.
    assert table["without one free 2 MB block"] == "0.0 % to 50.0 %"
    assert table["unmovable 4 KB pages, median"] == "18.8 % to 25.0 %"
    assert float(table["correlation of uptime and free 2 MB blocks"]) > 0.8
    assert sources(rows) == {"slab": 75.0, "page tables": 25.0}


def test_servers_without_free_memory_are_left_out_of_free_contiguity(folder):
    full = folder / "full.snapshot"
    full.write_bytes(packed(report(99, free=GIGABYTE - 1, free_2m=0)))
    table = dict(cells[:2] for cells in figures(read_fleet([folder]).rows))
    assert table["servers with less than 1 GB free, left out of free contiguity"] == "1 of 21"
    assert table["without one free 2 MB block"] == "0.0 % to 50.0 %"


def test_the_command_writes_a_page_and_a_table(folder, tmp_path):
    page, table = tmp_path / "out.html", tmp_path / "out.parquet"
    command = ["fleet", "report", str(folder / "rack0"), str(folder / "rack1")]
    result = CliRunner().invoke(cli, [*command, "-o", str(page), "--parquet", str(table)])
    assert result.exit_code == 0, result.output
    html = page.read_text()
    assert "20 snapshots of 20 hosts" in html and html.count("data:image/png") == 10
    assert "http://" not in html and "https://" not in html
    read = pyarrow.parquet.read_table(table)
    assert read.num_rows == 20
    assert read.column("host").to_pylist()[0] == "host0"
    assert math.isclose(read.column("unmovable_share_2m_certain").to_pylist()[0], 400 / 8192)


@browser_tests
@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_is_whole_on_any_screen(folder, tmp_path, width):
    page = tmp_path / "page.html"
    result = CliRunner().invoke(cli, ["fleet", "report", str(folder), "-o", str(page)])
    assert result.exit_code == 0, result.output
    with opened(page, viewport={"width": width, "height": 800}) as tab:
        assert hidden_parts(tab) == []


def test_the_command_says_what_it_passes_over(folder, tmp_path):
    page = tmp_path / "out.html"
    result = CliRunner().invoke(cli, ["fleet", "report", str(folder), "-o", str(page)])
    assert result.exit_code == 0
    assert "1 files passed over: from a newer version" in result.output
    assert "5 files were passed over: damaged" in page.read_text()
    bad = str(folder / "readme.txt")
    result = CliRunner().invoke(cli, ["fleet", "report", bad, "-o", str(page)])
    assert result.exit_code == 1 and "no snapshot could be read" in result.output


def test_no_bytes_do_worse_than_be_counted(tmp_path):
    source = random.Random(5)
    whole = packed(report())
    path = tmp_path / "a.snapshot"
    before = row(Snapshot(path, report()))
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[source.randrange(len(whole))] ^= source.randrange(1, 256)
        path.write_bytes(damaged)
        try:
            assert row(read_snapshot(path)) == before
        except SnapshotError as error:
            assert error.problem in (Problem.DAMAGED, Problem.NEWER, Problem.OLDER)


def test_a_frame_without_a_checksum_is_not_believed(tmp_path):
    path = tmp_path / "a.snapshot"
    text = json.dumps(report()).encode()
    path.write_bytes(bytes(pyarrow.compress(text, codec="zstd")))
    with pytest.raises(SnapshotError, match="checksum"):
        read_snapshot(path)


def test_a_file_that_cannot_be_opened_is_unreadable(tmp_path):
    with pytest.raises(SnapshotError) as caught:
        read_snapshot(tmp_path / "none.snapshot")
    assert caught.value.problem is Problem.UNREADABLE


def test_correlations_and_distributions_are_what_they_should_be():
    assert pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert pearson([1, 2, 3], [6, 4, 2]) == pytest.approx(-1)
    assert pearson([1, 1, 1], [1, 2, 3]) is None and pearson([1], [1]) is None
    x, y = distribution([0.5, 0.0, 1.0])
    assert x == [0, 0, 50, 100, 100] and y[-1] == 100 and y == sorted(y)
    x, y = distribution([i / 10_000 for i in range(10_000)])
    assert len(x) < 500 and abs(y[len(y) // 2] - 50) < 1
