"""Do the experiments of migrations judge what runs report?"""

import pytest

from contigua_experiments import find
from contigua_experiments import migration_apps as apps
from contigua_experiments import migration_downtime as downtime
from contigua_experiments.figures import Judged
from contigua_experiments.running import Cell, hertz, throughput

pytestmark = pytest.mark.programs


def moved(cycles, *, count=2, interrupts=0, held=0, buffers=0, invalidation=200, busy=1000, llc=10):
    """A report of a run in which pages were unavailable for some cycles, one after the other."""
    unavailable = {
        "count": count,
        "total_cycles": count * cycles,
        **{f"{name}_cycles": cycles for name in downtime.QUANTILES},
        "histogram": [[cycles + 1, count]] if count else [],
    }
    machine = {"clock": "2.1GHz", "kernel": {"invalidation_cycles": invalidation}}
    served = {"llc": llc, "memory": 0}
    return {
        "config": {"machine": machine},
        "time": {"cycles": busy, "busy_cycles": busy},
        "cache": {
            "fetches": served,
            "data": served,
            "walks": served,
            "coherence": {"alias_recalls": 6, "uncached": 0},
            "dram": {"reads": 3, "writes": 3},
        },
        "migration": {
            "requested": count + held,
            "completed": count,
            "held": held,
            "buffers": buffers,
            "interprocessor_interrupts": interrupts,
            "wait_cycles": busy // 2,
            "unavailable": unavailable,
            "traffic": {"lookups": 100, "lookup_picojoules": 170, "forwarded": 4},
        },
    }


def downtimes(software, hardware, interrupts=0, dearer=2, slower=1.5, busy=1100, llc=20):
    inputs = find("migration-downtime").inputs["quick"]
    found = {
        cores: {
            ("software-migration", ""): moved(software(cores, 1), interrupts=cores, busy=busy),
            ("llc-migration", ""): moved(hardware(cores), interrupts=interrupts),
            ("llc-migration-noncacheable", ""): moved(hardware(cores), busy=busy, llc=llc),
            ("llc-migration-switch-first", ""): moved(hardware(cores)),
            downtime.NONE: moved(0, count=0),
        }
        for cores in inputs["cores"]
    }
    for cores in inputs["changed"]["cores"]:
        found[cores] |= {
            ("software-migration", "interrupts"): moved(software(cores, dearer)),
            ("llc-migration", "recalls"): moved(slower * hardware(cores)),
        }
    return downtime.figures(found, inputs)


def test_software_is_a_line_that_follows_its_interrupts_and_hardware_a_constant():
    outcome = downtimes(lambda cores, cost: 5000 + 1000 * cost * (cores - 1), lambda _: 200)
    times, costs = outcome.sheets
    assert times.rows[-1][:4] == ["64", "llc-migration-switch-first", "2", "200"]
    # 30 requests more than without migrations, for two pages; look-ups of 170 pJ.
    assert costs.rows[-2][3:6] == ["90.91", "15.0", "3.0"] and costs.rows[-2][-1] == "0.1"
    assert outcome.values == {
        "software_r2": pytest.approx(1.0),
        "software_slope": pytest.approx(1000.0),
        "software_doubled": pytest.approx(2.0),
        "hardware_slope": pytest.approx(0.0),
        "hardware_invalidations": 1.0,
        "hardware_recalls": pytest.approx(1.5),
        "hardware_interrupts": 0.0,
        "noncacheable_slope": pytest.approx(0.0),
        "noncacheable_invalidations": 1.0,
        "switch_first_slope": pytest.approx(0.0),
        "switch_first_invalidations": 1.0,
        "software_behind": 100.0,
        "noncacheable_behind": 100.0,
        "noncacheable_requests": 2.0,
    }


def test_points_off_a_line_or_not_following_their_cause_are_seen():
    curved = downtimes(
        lambda cores, _: 5000 + cores**4,
        lambda cores: 200 + 10**5 * cores,
        7,
        slower=1,
        busy=900,
        llc=9,
    ).values
    assert curved["software_r2"] < 0.9 and curved["hardware_interrupts"] == 49
    verdicts = {one.key: one for one in find("migration-downtime").figures}
    for key in ("software_doubled", "hardware_recalls", "software_behind", "noncacheable_behind"):
        assert verdicts[key].judge(curved[key]) == "fails", key
    assert verdicts["noncacheable_requests"].judge(curved["noncacheable_requests"]) == "fails"
    for way in apps.WAYS:
        for key in (f"{way}_slope", f"{way}_invalidations"):
            assert verdicts[key].judge(curved[key]) == "differs", key
    assert curved["hardware_invalidations"] == pytest.approx((200 + 10**5 * 64) / 200)
    flat = downtimes(lambda *_: 5000, lambda _: 200).values
    assert flat["software_r2"] is None


def test_one_number_of_a_machine_is_changed():
    machine = downtime.changed_machine("skylake", "interrupt_target_cycles", 2)
    assert "interrupt_target_cycles = 2000" in machine.text
    with pytest.raises(ValueError, match="no_such_key 0 times"):
        downtime.changed_machine("skylake", "no_such_key", 2)


def test_a_run_lasts_as_long_as_its_migrations():
    inputs = find("migration-downtime").inputs["full"]
    text = downtime.threads(64, inputs).command
    rounds = int(text[text.index("--rounds") + 1])
    cycles = rounds * inputs["additions"] * inputs["addition_cycles"]
    assert cycles >= inputs["migrations"] * downtime.interval(64, inputs) >= 1000 * 69_800
    assert downtime.machine_hertz("skylake") == 2.1e9


def test_times_are_drawn_as_a_distribution():
    values = moved(200)
    values["migration"]["unavailable"] |= {"count": 4, "histogram": [[201, 1], [209, 3]]}
    assert downtime.distribution(values) == ([200.0, 200.0, 208.0], [0.0, 25.0, 100.0])


def test_without_migrations_there_is_no_time():
    assert downtime.downtime(moved(1, count=0)) is None


def served(busy, requests=100, cores=4, completed=3, **moves):
    one = moved(200, count=completed, **moves)
    return {
        **one,
        "time": {"cycles": busy, "busy_cycles": busy},
        "cores": [{"cycles": busy // cores}] * cores,
        "client": {"requests": requests},
        "devices": {"wait_cycles": busy // 4},
        "requests": {"latency_cycles": dict.fromkeys(("p50", "p95", "p99", "p99_9", "most"), busy)},
    }


def test_throughput_is_that_of_a_saturated_server():
    # Four cores, each busy for a million cycles at 2.1 GHz, answer 100 requests.
    assert hertz(served(1)) == pytest.approx(2.1e9)
    assert throughput(served(4_000_000)) == pytest.approx(100 * 2.1e9 / 1e6)
    # A core whose stalls add up is one, and is not listed.
    additive = {**served(4_000_000), "cores": []}
    assert throughput(additive) == pytest.approx(100 * 2.1e9 / 4e6)
    # The engine writes the clock its way.
    other = served(1)
    other["config"]["machine"]["clock"] = "2100MHz"
    assert hertz(other) == pytest.approx(2.1e9)


def test_servers_are_compared_with_themselves_without_migrations():
    inputs = find("migration-apps").inputs["quick"]
    slow = {0: 1000, 1000: 1010, 20000: 1100}
    cells = {
        cell: (
            served(1000, buffers=2)
            if cell.design.startswith("llc")
            else served(slow[cell.migrations], held=2)
        )
        for cell in apps.moving(inputs)
    }
    pages = {Cell("linux-4k"): served(1070), Cell("linux-thp"): served(1000)}
    outcome = apps.figures({"memcached": cells | pages, "nginx": cells}, inputs, [])
    assert outcome.values == {
        **{f"printed_{name}": 100.0 for name in ("memcached", "nginx")},
        **{f"slower_{name}": 1.0 for name in ("memcached", "nginx")},
        **{f"slower_software_{name}": 1.1 for name in ("memcached", "nginx")},
        "software_behind": 100.0,
        "idle": 100.0,
        "memcached_huge": pytest.approx(7.0),
        **{f"{way}_{name}": 100.0 for way in apps.WAYS for name in ("memcached", "nginx")},
        "software_held": 100.0,
        "hardware_held": 0.0,
    }
    definition = find("migration-apps")
    verdicts = Judged(definition.figures, outcome.values).verdicts()
    assert set(verdicts) == {"within tolerance", "holds"}
    # Hardware that costs as much as software is seen in throughput and latency.
    slow = {cell: served(1100) if cell.migrations else one for cell, one in cells.items()}
    failed = apps.figures({"nginx": slow}, inputs, []).values
    judged = {one.key: one.judge(failed[one.key]) for one in definition.figures}
    assert judged["printed_nginx"] == "differs"
    for key in ("hardware_nginx", "slower_nginx", "switch_first_nginx", "software_behind"):
        assert judged[key] == "fails", key
    # Software that moves what a device holds is seen, and so is hardware that does not.
    for broken in (served(1100, buffers=2), served(1000, held=2)):
        moves = {cell: broken for cell in cells}
        failed = apps.figures({"nginx": moves}, inputs, []).values
        judged = {one.key: one.judge(failed[one.key]) for one in definition.figures}
        assert "fails" in (judged["software_held"], judged["hardware_held"])
    assert any("saturated" in note for note in outcome.notes)
    # Of busy time, how long accesses waited for moving pages and cores for the network.
    assert outcome.sheets[0].rows[0][-2:] == ["50.00", "25.00"]
    # What moved nothing cannot be behind.
    short = {
        cell: served(1000, completed=0) if cell.migrations == 1000 else one
        for cell, one in cells.items()
    }
    values = apps.figures({"nginx": short}, inputs, []).values
    assert values["software_behind"] == 100.0
    # A server that did not run has no figures.
    alone = apps.figures({"nginx": cells}, inputs, ["Left out: memcached."]).values
    assert alone["hardware_memcached"] is None and alone["slower_memcached"] is None
    assert alone["memcached_huge"] is None
