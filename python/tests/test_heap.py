"""Does a heap on a simulated server live as its settings and its server say?"""

import pytest

from contigua import EngineError, PresetError, RunOptions
from contigua.heap import HeapSettings, Server, on_server, replay, square_wave

MB = 1 << 20
DEMAND = square_wave(10 * MB, 30 * MB, 20, 120)
STATIC = HeapSettings(release_rate=64 * MB, interval=0, sizes=(8192, 40960), removal="random")


def live(settings=STATIC, design="linux-thp-madvise", age="fresh", memory="128M"):
    server = Server(design, age, RunOptions(memory=memory, detail="additive"))
    return on_server(DEMAND, 120, settings, server, warmup=20, reads=300)


def test_on_an_empty_server_the_heap_does_what_it_does_in_virtual_time():
    found, alone = live(), replay(DEMAND, 120, STATIC, warmup=20)
    for name in ("used", "mapped", "average_fragmentation", "realized_fragmentation"):
        assert found.summary[name] == pytest.approx(alone.summary[name])
    assert found.summary["believed_coverage"] == pytest.approx(alone.summary["coverage"])
    # What the heap maps is resident, but for what the kernel's background pass fills up again.
    assert alone.summary["mapped"] <= found.summary["resident"] < 1.1 * alone.summary["mapped"]
    assert found.samples["seconds"] == alone.samples["seconds"]
    assert found.free_2m_blocks_before == found.blocks_2m == 64


def test_with_small_pages_everything_walks_and_belief_is_vain():
    found = live(design="linux-4k").summary
    assert found["coverage"] == 0
    assert found["faults_2m"] == found["collapsed"] == 0
    huge = live(HeapSettings(release_rate=0, interval=0)).summary
    assert huge["coverage"] == 1
    assert huge["walks_per_read"] < 0.01 < found["walks_per_read"]
    assert huge["walk_cycles_per_read"] < found["walk_cycles_per_read"]


def test_counts_agree_with_each_other():
    found = live().summary
    assert found["broken"] > 0 and found["given_back"] > 0
    # What is given back comes back in small pages, or whole.
    back = found["faults_4k"] * 4096 + found["faults_2m"] * 2 * MB
    filled = (found["collapsed"] + found["collapsed_in_background"]) * 2 * MB
    assert back > 0.5 * found["given_back"] - filled
    assert found["kernel_cycles"] > found["faults_4k"] * 100


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (Server(options=RunOptions(memory="16M", detail="additive")), "ran out of its 16MiB"),
        (Server(age="stone"), "unknown age"),
    ],
)
def test_a_server_that_cannot_be_is_one_clear_line(server, told):
    with pytest.raises(EngineError) as caught:
        on_server(DEMAND, 10, STATIC, server)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_design_that_does_not_exist_is_named():
    with pytest.raises(PresetError, match="linux-thq"):
        on_server(DEMAND, 10, STATIC, Server("linux-thq"))
