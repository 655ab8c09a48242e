"""Does a recorded kernel's life replay, and are distances what they should be?"""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest

from contigua import requests
from contigua._engine import EngineError
from contigua_experiments.kernel_fidelity import figures, tables

#: Written by vm-tests/record_requests.py.
RECORD = Path(__file__).parent / "recorded" / "requests.xz"


@pytest.fixture(scope="module")
def replayed():
    return requests.replay(RECORD)


def test_the_simulation_begins_as_the_kernel(replayed):
    start = replayed.looks[0]
    assert start.kernel.pageblocks == start.simulated.pageblocks
    assert start.kernel.polluted == start.simulated.polluted
    assert np.array_equal(start.kernel.unmovable, start.simulated.unmovable)
    assert start.distance().orders < 0.1


def test_the_simulation_stays_close_to_the_kernel(replayed):
    assert len(replayed.looks) == 9
    for look in replayed.looks:
        assert look.totals["refused"] <= look.totals["requests"] // 1000
        assert look.unseen <= replayed.managed // 200
        free = look.kernel.pages.sum() + look.kernel.per_cpu
        simulated = look.simulated.pages.sum() + look.simulated.per_cpu
        assert abs(free - simulated) <= replayed.managed // 50


def test_contiguitas_keeps_what_is_unmovable_below_its_border():
    replayed = requests.replay(RECORD, "contiguitas-thp")
    assert replayed.placement == "contiguitas"
    for look in replayed.looks:
        polluted = np.flatnonzero(look.simulated.unmovable)
        assert polluted.max() < sum(look.simulated.pageblocks) - look.simulated.pageblocks[1]


def test_the_experiment_has_all_its_figures(replayed):
    replays = {"linux-4k": replayed, "contiguitas-thp": requests.replay(RECORD, "contiguitas-thp")}
    values = figures([("a record", replays)])
    assert set(values) == {"orders", "polluted", "unmovable", "contiguitas", "unseen"}
    assert all(value is not None and value >= 0 for value in values.values())
    for sheet in tables("a record", replays):
        assert sheet.rows
        assert all(len(row) == len(sheet.heads) for row in sheet.rows)


def test_the_same_distribution_is_no_distance_away():
    assert requests.shift([1, 2, 3], [10, 20, 30]) == pytest.approx(0)
    assert requests.variation([1, 2, 3], [10, 20, 30]) == pytest.approx(0)
    assert requests.shift([0, 0], [0, 0]) == 0


def test_pages_that_are_orders_off_are_as_far_away():
    far = [1, *[0] * 9, 0]
    for order in range(11):
        theirs = [0] * 11
        theirs[order] = 7
        assert requests.shift(far, theirs) == pytest.approx(order)
        assert requests.shift(theirs, far) == pytest.approx(order)
    assert requests.shift([1, 1, 0], [1, 0, 1]) == pytest.approx(0.5)
    assert requests.shift([1, 1, 0], [0, 0, 0]) == 2
    assert requests.variation([1, 1], [1, 0]) == pytest.approx(0.5)
    assert requests.variation([1, 1], [0, 0]) == 1


def test_a_file_that_is_no_record_of_requests_is_refused(tmp_path):
    file = tmp_path / "record.xz"
    with pytest.raises(requests.RecordError, match=r"record\.xz"):
        requests.replay(file)
    file.write_bytes(b"something else")
    with pytest.raises(requests.RecordError, match=r"record\.xz"):
        requests.replay(file)
    file.write_bytes(RECORD.read_bytes()[:-100])
    with pytest.raises(requests.RecordError, match=r"record\.xz"):
        requests.replay(file)
    file.write_bytes(lzma.compress(b"x" * 100))
    with pytest.raises(EngineError, match="not a record of requests"):
        requests.replay(file)
    whole = lzma.decompress(RECORD.read_bytes())
    file.write_bytes(lzma.compress(whole[: len(whole) // 2], preset=0))
    with pytest.raises(EngineError, match=r"cut short|missing"):
        requests.replay(file)
