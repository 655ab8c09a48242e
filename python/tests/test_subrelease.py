"""Is a running program's memory read rightly, and is the machine left as it was?"""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from contigua import _engine
from contigua.heap import HeapSettings, replay, square_wave
from contigua.programs.program import ProgramError
from contigua_experiments import native, redis_build
from contigua_experiments import subrelease_redis as redis
from contigua_experiments import subrelease_square_wave as square
from contigua_experiments import subrelease_sweep as sweep
from contigua_experiments.native import MB, Allocator, Sample

ROOT = Path(__file__).parents[2]


# Virtual time: exact.


def test_a_fast_square_wave_has_average_250_and_realized_0():
    inputs = {"low_mb": 500, "high_mb": 1000, "allocation_kb": 1024, "window": 60}
    found = square.wave(20, inputs).summary
    assert found["average_fragmentation"] == 250 * MB
    assert found["realized_fragmentation"] == 0
    assert found["mapped"] == 1000 * MB
    assert found["coverage"] == 1.0


def test_a_wave_alternates_and_begins_high():
    assert square_wave(1, 2, 10, 20) == [(0, 2), (5, 1), (10, 2), (15, 1), (20, 2)]


def test_subrelease_releases_nothing_at_rate_0_and_all_without_interval():
    demand = [(0.0, 100 * MB), (10.0, 40 * MB)]
    kept = replay(demand, 60, HeapSettings(0, 0.0, sizes=(MB,)))
    assert kept.samples["mapped"][-1] == 100 * MB
    given = replay(demand, 60, HeapSettings(10 * MB, 0.0, sizes=(MB,)))
    assert given.samples["mapped"][-1] == 40 * MB
    assert given.samples["seconds"] == [float(second) for second in range(61)]


def test_the_interval_keeps_what_was_used_within_it():
    demand = [(0.0, 100 * MB), (10.0, 40 * MB)]
    settings = HeapSettings(100 * MB, 30.0, cache_interval=30.0, sizes=(MB,))
    mapped = replay(demand, 60, settings).samples["mapped"]
    assert mapped[39] == 100 * MB
    assert mapped[43] == 40 * MB


def test_the_same_seed_gives_the_same_spikes_and_the_same_heap():
    spikes = [_engine.heap_spikes(10 * MB, 5 * MB, 5.0, 10.0, 100.0, 3) for _ in range(2)]
    assert spikes[0] == spikes[1] and spikes[0][0] == (0.0, 10 * MB)
    settings = HeapSettings(MB, 5.0, removal="random", seed=3)
    assert replay(spikes[0], 100, settings) == replay(spikes[1], 100, settings)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"removal": "largest"}, "known are oldest, newest and random"),
        ({"interval": -1.0}, "interval is -1 s"),
        ({"schedule": float("nan")}, "schedule is NaN s"),
        ({"sizes": (1 << 60,)}, "no allocation has"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, said):
    with pytest.raises(_engine.EngineError, match=re.escape(said)):
        replay([(0.0, MB)], 1, replace(HeapSettings(0, 0.0), **changes))


def test_neighbors_that_go_the_wrong_way_are_counted():
    assert sweep.against([[1, 2, 2, 1], [3, 4]], rising=True) == 0.25
    assert sweep.against([[1, 2, 2, 1], [3, 4]], rising=False) == 0.5
    assert sweep.against([], rising=True) == 0


# The running machine, or files in its place.


@pytest.fixture
def switch(tmp_path):
    file = tmp_path / "enabled"
    file.write_text("always [madvise] never\n")
    return file


def test_the_switch_is_put_back(switch):
    with native.huge_pages("always", switch):
        assert switch.read_text() == "always"
        # As the kernel says it.
        switch.write_text("[always] madvise never\n")
    assert switch.read_text() == "madvise\n"


@pytest.mark.parametrize("wanted", ["always", "madvise"])
def test_a_switch_that_somebody_else_moved_is_told(switch, wanted):
    with (
        pytest.raises(ProgramError, match="put on 'never' meanwhile"),
        native.huge_pages(wanted, switch),
    ):
        switch.write_text("always madvise [never]\n")


def test_the_switch_is_put_back_after_an_error(switch):
    with pytest.raises(KeyboardInterrupt), native.huge_pages("always", switch):
        raise KeyboardInterrupt
    assert switch.read_text() == "madvise\n"


def test_the_switch_is_left_alone_where_it_is_right(switch):
    with native.huge_pages("madvise", switch):
        switch.chmod(0o444)
    assert switch.read_text() == "always [madvise] never\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_switch_is_put_back_when_we_are_killed(switch, number):
    code = (
        "import sys, time; from pathlib import Path; from contigua_experiments import native\n"
        "with native.huge_pages('always', Path(sys.argv[1])):\n"
        "    print('ready', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(switch)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        assert switch.read_text() == "always"
        process.send_signal(number)
        process.wait()
    end = time.monotonic() + 20
    while switch.read_text() != "madvise\n" and time.monotonic() < end:
        time.sleep(0.05)
    assert switch.read_text() == "madvise\n"


def test_a_switch_that_may_not_be_set_is_one_clear_message(switch, monkeypatch):
    monkeypatch.setattr(native.os, "access", lambda *_: False)
    with (
        pytest.raises(ProgramError, match=r"must be on 'always'; as root: echo always >"),
        native.huge_pages("always", switch),
    ):
        pass
    with pytest.raises(ProgramError, match="no transparent huge pages"):
        native.chosen(switch.with_name("nothing"))


def test_a_process_is_sampled_as_the_kernel_counts():
    block = bytearray(64 * MB)
    block[::4096] = b"x" * len(block[::4096])
    one = native.sample(os.getpid(), 1.5)
    assert one.seconds == 1.5 and one.heap == {}
    assert 64 * MB <= one.anonymous <= one.rss
    assert 0 <= one.coverage <= 100 and one.minor_faults > 0
    del block


def test_sampling_ends_with_the_process():
    with (
        subprocess.Popen(["sleep", "0.3"]) as process,
        native.Sampler(process.pid, 0.05) as sampler,
    ):
        process.wait()
    assert sampler.samples
    times = [one.seconds for one in sampler.samples]
    assert times == sorted(times)


def test_the_figures_of_the_shared_page_are_the_allocators():
    layout = (ROOT / "crates/telemetry/src/lib.rs").read_text()
    listed = layout[layout.rindex("\npage! {") :]
    names = tuple(re.findall(r"^    (\w+): \w+ \w+,$", listed, re.MULTILINE))
    assert names == native.HEAP_FIGURES
    assert re.search(r"VERSION: u32 = 1;", layout)


def test_a_shared_page_is_read_and_one_that_is_unknown_is_not():
    count = len(native.HEAP_FIGURES)
    words = b"".join(number.to_bytes(8, "little") for number in range(count))
    page = native.HEAD.pack(b"CONTIGUA", 1, count, 2) + words
    assert native.parse_heap(page) == dict(zip(native.HEAP_FIGURES, range(count), strict=True))
    assert native.parse_heap(native.HEAD.pack(b"CONTIGUA", 2, count, 2) + words) == {}
    assert native.parse_heap(native.HEAD.pack(b"ELSEWISE", 1, count, 2) + words) == {}


@pytest.mark.skipif(
    native.find_library("libcontigua_malloc.so") is None,
    reason="libcontigua_malloc.so is not built (cargo build --release -p contigua-malloc)",
)
def test_a_running_program_shows_its_heap():
    code = "x = [bytes(5000) for _ in range(10000)]; import time; time.sleep(30)"
    ours = Allocator("ours", "libcontigua_malloc.so", {"CONTIGUA_MALLOC_BACKGROUND": "on"})
    with subprocess.Popen([sys.executable, "-c", code], env=ours.variables()) as process:
        try:
            end = time.monotonic() + 20
            heap = {}
            while heap.get("heap_used", 0) < 50_000_000 and time.monotonic() < end:
                time.sleep(0.1)
                heap = native.heap_figures(process.pid)
        finally:
            process.kill()
    assert 50_000_000 <= heap["heap_used"] <= heap["heap_mapped"]


def test_an_allocators_environment_is_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("LD_PRELOAD", "/nowhere")
    monkeypatch.setenv("CONTIGUA_MALLOC_LIMIT", "1")
    plain = Allocator("glibc").variables()
    assert "LD_PRELOAD" not in plain and "CONTIGUA_MALLOC_LIMIT" not in plain
    (tmp_path / "libx.so").touch()
    assert native.find_library("libx.so", tmp_path) == tmp_path / "libx.so"
    assert native.find_library("libnobody-has-this.so") is None
    assert Allocator("none", "libnobody-has-this.so").missing()


# Redis.


def test_requests_are_what_redis_reads():
    assert redis.add("a", 7, 3) == (b"*3\r\n$3\r\nSET\r\n$10\r\na:00000007\r\n$3\r\nxxx\r\n")
    assert redis.remove("a", 7) == b"*2\r\n$3\r\nDEL\r\n$10\r\na:00000007\r\n"


def _answering(server, answer):
    def run():
        data = b""
        while more := server.recv(65536):
            data += more
            server.sendall(answer * data.count(b"DEL"))
            data = data[data.rfind(b"DEL") + 3 :]

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_all_requests_are_sent_and_wrong_answers_found():
    pairs = [socket.socketpair() for _ in range(3)]
    for _, server in pairs:
        _answering(server, b":1\r\n")
    pool = [client for client, _ in pairs]
    redis.exchange(pool, 2, (redis.remove("a", n) for n in range(11)), b":1\r\n")
    with pytest.raises(OSError, match=r"redis answered b':1"):
        redis.exchange(pool, 2, iter([redis.remove("a", 0)]), b":0\r\n")
    for pair in pairs:
        for end in pair:
            end.close()


def _sample(seconds, rss, huge, heap=None):
    return Sample(seconds, rss * MB, 100 * MB, huge * MB, int(100 * seconds), heap or {})


def test_figures_compare_ours_with_the_others():
    inputs = {
        "entries": 50000,
        "value_bytes": 1024,
        "rounds": 1,
        "connections": 1,
        "depth": 1,
        "wait_seconds": 1.0,
        "release_rate": 10_000_000,
        "interval": 15,
    }
    heap = {"realized_fragmentation": MB, "heap_used": 3 * MB, "skipped": 5 * MB}
    runs = {}
    for order in redis.ORDERS:
        runs[redis.ADAPTIVE, order] = redis.Run(
            [_sample(0, 100, 90, heap), _sample(1, 110, 96, heap)], 1000.0
        )
        runs[redis.STATIC, order] = redis.Run([_sample(0, 100, 60), _sample(1, 100, 70)], 900.0)
        runs["glibc", order] = redis.Run([_sample(0, 90, 99), _sample(1, 90, 99)], 900.0)
    outcome = redis.figures(runs, ["mimalloc"], inputs)
    assert outcome.values["coverage_random"] == 93.0
    assert outcome.values["gain_random"] == 28.0
    # Memory is shown for the paper's number of entries.
    assert outcome.values["rss_random"] == 4 * 105.0
    assert outcome.values["realized_random"] == 4.0
    assert outcome.values["better_random"] == 1.0
    assert any("mimalloc" in note for note in outcome.notes)
    assert any("Scaled down" in note for note in outcome.notes)
    means, said = outcome.sheets
    assert means.rows[0] == ["contigua", "as added", "93.0", "420", "100", "1000"]
    assert [row[0] for row in said.rows] == ["contigua", "contigua"]


def test_sources_are_looked_for_where_binaries_are():
    text = redis_build.source_list(
        [("Debian", "http://deb.debian.org/debian/", "bookworm"), ("Ubuntu", "http://u/", "noble")]
    )
    debian, ubuntu = text.split("\n\n")
    assert debian.startswith(
        "Types: deb-src\nURIs: http://deb.debian.org/debian/\nSuites: bookworm\nComponents: main"
    )
    assert "Components: main universe" in ubuntu
    with pytest.raises(ProgramError, match="no archive"):
        redis_build.source_list([])


def test_a_redis_that_cannot_be_had_is_one_clear_message(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(redis_build, "find_program", lambda _: None)
    monkeypatch.setattr(redis_build.shutil, "which", lambda _: None)
    with pytest.raises(ProgramError, match=r"apt-get is not installed.*make MALLOC=libc") as raised:
        redis_build.redis_server()
    assert "\n" not in str(raised.value)
    assert list(tmp_path.rglob("redis-server")) == []


def test_a_redis_of_the_system_is_used_if_it_can_be(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    server = tmp_path / "redis-server"
    server.write_text("#!/bin/sh\necho Redis server v=7 malloc=libc bits=64\n")
    server.chmod(0o755)
    monkeypatch.setattr(redis_build, "find_program", lambda _: str(server))
    assert redis_build.redis_server() == server
    server.write_text("#!/bin/sh\necho Redis server v=7 malloc=jemalloc-5.3.0 bits=64\n")
    assert not redis_build.uses_c_library(server)
