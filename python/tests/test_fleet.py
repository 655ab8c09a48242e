"""Do servers of a fleet depend on nothing but seed and number, and can a fleet carry on?"""

import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import pandas as pd
import pyarrow.parquet
import pytest

import contigua
from conftest import interrupt
from contigua.ageing import flat_sample
from contigua.calibration import Factor, FleetError, calibration, draw
from contigua.fleet import FleetOptions, kept_beside, simulate, write_parquet

SMALL = FleetOptions(memory="128M", longest_hours=0.05, seed=7)
#: SMALL as arguments of the command.
ARGUMENTS = ["--memory", "128M", "--hours", "0.05", "--seed", 7]


def test_a_draw_depends_on_seed_and_number_alone():
    fleet = calibration()
    draws = [draw(fleet, 1, server) for server in range(50)]
    assert draws == [draw(fleet, 1, server) for server in reversed(range(50))][::-1]
    assert len({one.seed for one in draws}) == 50
    assert draws != [draw(fleet, 2, server) for server in range(50)]


def test_changing_one_distribution_leaves_the_other_draws_alone():
    fleet = calibration()
    other = replace(fleet, kernel=Factor(3.0, 0.0, 3.0, 3.0))
    for server in range(20):
        changed = draw(other, 1, server)
        assert changed.kernel == 3.0
        assert replace(changed, kernel=0) == replace(draw(fleet, 1, server), kernel=0)


def test_draws_follow_their_distributions():
    fleet = calibration()
    draws = [draw(fleet, 3, server) for server in range(4000)]
    hours = [one.hours for one in draws]
    assert fleet.shortest_hours <= min(hours) and max(hours) <= fleet.longest_hours
    middle = math.sqrt(fleet.shortest_hours * fleet.longest_hours)
    assert 0.46 < sum(h < middle for h in hours) / 4000 < 0.54
    counts = Counter(one.profile for one in draws)
    whole = sum(fleet.profiles.values())
    for name, weight in fleet.profiles.items():
        assert counts[name] / 4000 == pytest.approx(weight / whole, abs=0.03)
    for factor, values in (
        (fleet.load, [one.load for one in draws]),
        (fleet.kernel, [one.kernel for one in draws]),
        (fleet.files, [one.files for one in draws]),
    ):
        assert factor.least - 1e-4 <= min(values) and max(values) <= factor.most + 1e-4
        below = sum(v <= factor.median for v in values)
        assert factor.sigma == 0 or 0.46 < below / 4000 < 0.54


def test_a_row_is_the_server_that_age_makes():
    row = simulate(3, SMALL)[2]
    one = draw(calibration(), 7, 2, "128M", 0.05)
    aged = contigua.age("linux-thp", one.options())
    assert {key: row[key] for key in flat_sample(aged.final)} == flat_sample(aged.final)
    assert row["memory"] == 128 << 20 and row["hours"] == 0.05 and row["seed"] == one.seed


def test_servers_with_little_free_memory_are_left_out_in_proportion():
    fleet = calibration()
    assert fleet.least_free(fleet.reference) == fleet.free_below
    assert fleet.least_free(fleet.reference // 16) == fleet.free_below / 16
    assert fleet.least_free(fleet.reference * 2) == fleet.free_below
    for row in simulate(4, SMALL):
        assert row["excluded"] == (4096 * row["free_frames"] < fleet.least_free(128 << 20))


def test_a_fleet_that_carries_on_is_a_fleet_made_in_one_go(cli, tmp_path):
    whole, parts = tmp_path / "whole.parquet", tmp_path / "parts.parquet"
    assert cli("fleet", "simulate", "--servers", 6, *ARGUMENTS, "-o", whole).returncode == 0
    for servers in (2, 4):
        ran = cli("fleet", "simulate", "--servers", servers, *ARGUMENTS, "-o", parts)
        assert ran.returncode == 0, ran.stderr
    # As an interrupted command leaves it: the last line is cut short.
    kept = kept_beside(parts)
    lines = kept.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4
    kept.write_bytes(b"".join(lines[:3]) + lines[3][:40])
    ran = cli("fleet", "simulate", "--servers", 6, *ARGUMENTS, "--jobs", 1, "-o", parts)
    assert ran.returncode == 0, ran.stderr
    assert parts.read_bytes() == whole.read_bytes()
    # A line that was cut short does not affect the others.
    *earlier, cut, fourth, fifth, last = kept.read_text().splitlines()
    assert len(earlier) == 3 and len(cut) == 40
    assert len({json.loads(line)["key"] for line in [*earlier, fourth, fifth, last]}) == 6
    names = {"whole.parquet", "parts.parquet"}
    assert {p.name for p in tmp_path.iterdir()} == names | {f"{n}.servers.jsonl" for n in names}


def test_finished_servers_are_taken_only_for_the_same_history(tmp_path):
    kept = tmp_path / "kept"
    simulate(2, SMALL, kept=kept)
    assert len(kept.read_text().splitlines()) == 2
    simulate(2, SMALL, kept=kept)
    assert len(kept.read_text().splitlines()) == 2
    simulate(2, replace(SMALL, design="contiguitas-thp"), kept=kept)
    simulate(2, replace(SMALL, seed=8), kept=kept)
    assert len(kept.read_text().splitlines()) == 6
    # What is kept is believed: a row that says otherwise shows that nothing was simulated again.
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    lines[0]["value"]["contiguity"]["free_frames"] = -1
    kept.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert -1 in [row["free_frames"] for row in simulate(2, SMALL, kept=kept)]


def test_the_file_has_one_row_per_server_and_says_where_it_comes_from(tmp_path):
    path = tmp_path / "fleet.parquet"
    for design, has_region in (("linux-thp", False), ("contiguitas-thp", True)):
        rows = simulate(3, replace(SMALL, design=design))
        write_parquet(rows, path, {"contigua.seed": "7"})
        frame = pd.read_parquet(path)
        assert list(frame["server"]) == [0, 1, 2]
        assert set(frame["design"]) == {design}
        assert frame["unmovable_region_bytes"].notna().all() == has_region
        table = pyarrow.parquet.read_table(path)
        assert table.to_pylist() == rows
        assert str(table.schema.field("unmovable_region_bytes").type) == "int64"
        assert table.schema.metadata[b"contigua.seed"] == b"7"


def test_an_interrupted_fleet_keeps_what_is_done_and_leaves_no_file(tmp_path):
    command = [sys.executable, "-m", "contigua.cli", "fleet", "simulate", "--servers", "5000"]
    command += ["--memory", "128M", "--hours", "0.05", "-o", "fleet.parquet"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=dict(os.environ), stderr=subprocess.PIPE, text=True
    )
    kept = tmp_path / "fleet.parquet.servers.jsonl"
    while process.poll() is None and not (kept.exists() and kept.stat().st_size > 0):
        time.sleep(0.05)
    errors = interrupt(process, seconds=300)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert [path.name for path in tmp_path.iterdir()] == [kept.name]
    assert kept.read_text().endswith("\n")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("[load]", "[laod]"), "unknown key laod"),
        (("shortest_hours", "shortest"), "shortest_hours is missing"),
        (("shortest_hours = ", "shortest_hours = -"), "shortest_hours must be above 0"),
        (('reference = "64GiB"', 'reference = "64"'), "reference"),
        (('free_below = "1GiB"', 'free_below = "much"'), "'much' is no size"),
        (("web = ", "web = -"), "profiles: give weights"),
        (("sigma = ", "sigma = -"), "sigma >= 0"),
        (("sigma = ", "sigam = "), "unknown key sigam"),
        (("[age]", "[age"), "line"),
    ],
)
def test_a_mistake_in_a_calibration_is_named(tmp_path, change, expected):
    text = calibration().text
    assert change[0] in text
    file = tmp_path / "fleet.toml"
    file.write_text(text.replace(*change, 1))
    if expected == "reference":
        # A number without a unit is bytes: allowed.
        assert calibration(file).reference == 64
        return
    with pytest.raises(FleetError, match=f"fleet.toml.*{expected}"):
        calibration(file)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--servers", 0], "servers"),
        (["--servers", 2, "--memory", "lots"], "no number at the start"),
        (["--servers", 2, "--design", "linux-tph"], "did you mean linux-thp"),
        (["--servers", 2, "--calibration", "/no/such/file"], "No such file"),
        (["--servers", 2, "-o", "/no/such/folder/f.parquet"], "cannot be written"),
    ],
)
def test_a_mistake_gets_one_clear_error_and_no_file(cli, tmp_path, arguments, expected):
    ran = cli("fleet", "simulate", "-o", "fleet.parquet", *arguments, cwd=tmp_path)
    assert ran.returncode != 0
    assert expected in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not list(tmp_path.iterdir())
