"""Are experiments well formed, do they judge fairly, and do their statistics hold?"""

import json
import math
import os
import random
import re
from dataclasses import replace
from html import escape
from statistics import median

import pytest

from contigua.errors import ContiguaError
from contigua.kept import Kept
from contigua.options import RunOptions
from contigua.presets import designs
from contigua.programs.catalogue import catalogue
from contigua.programs.program import MissingProgramError, Program, ProgramError
from contigua_experiments import (
    EXPERIMENTS,
    Context,
    ExperimentError,
    direct_segment,
    find,
    perforated,
    run_experiment,
    running,
    sampling_error,
)
from contigua_experiments import contiguitas_confinement as confinement
from contigua_experiments import contiguitas_end_to_end as end_to_end
from contigua_experiments import contiguitas_fleet as fleet
from contigua_experiments import contiguity_demand as demand
from contigua_experiments import direct_segment_overhead as overhead
from contigua_experiments import direct_segment_scaling as scaling
from contigua_experiments import placement_effects as placements
from contigua_experiments.base import Outcome, Result
from contigua_experiments.figures import Figure, Judged
from contigua_experiments.fingerprint import unfinished
from contigua_experiments.native import SWITCH, chosen, find_library
from contigua_experiments.redis_build import find_redis
from contigua_experiments.running import Cell, run_cells, scenarios
from contigua_experiments.statistics import (
    distribution,
    line,
    median_margin,
    pearson,
    pearson_margin,
    percent,
    percent_margin,
    quantile,
)

pytestmark = pytest.mark.programs

FIGURE = Figure(
    key="x",
    label="a figure",
    kind="compared",
    source="page 1",
    paper=(30.0, 30.0),
    tolerance=5.0,
    unit="%",
)
#: Part of a program that is small.
SMALL = {"warmup": 50_000, "instructions": 100_000}
GUPS = {
    "arguments": ["--size", "16MiB", "--updates", "100000", "--no-verify"],
    "function": "update",
    **SMALL,
}
#: Sizes at which an experiment takes a second or two.
TINY = {
    "contiguitas-fleet": {
        "servers": 8,
        "memory": "128M",
        "longest_hours": 0.05,
        "few_hours": 0.05,
    },
    "contiguitas-confinement": {
        "profiles": ["web", "cache"],
        "memory": "256M",
        "hours": 0.05,
        "region_memory": "256M",
        "day_hours": 0.2,
        "steady_hours": 0.2,
        "settle_hours": 0.05,
    },
    "contiguity-demand": {
        "memory": "64MiB",
        "compared": {
            "linux-thp": {"large": True, "needs": "blocks"},
            "pom-tlb-4k": {"large": False, "needs": "16 MB"},
        },
        "parts": {
            "gups": {
                "arguments": ["--size", "8MiB", "--updates", "5000", "--no-verify"],
                "function": "update",
                "warmup": 1000,
                "instructions": 20000,
            }
        },
    },
    "placement-effects": {
        "sizes": {
            study: {"memory": "256MiB", "hours": 0.02, "seeds": [1]}
            for study in ("builds", "zone", "full")
        }
    },
    "contiguitas-parts": {
        "servers": [
            {
                "memory": "256MiB",
                "profiles": ["mixed", "web"],
                "without_parts": ["mixed"],
                "seeds": [1, 2],
            },
            {"memory": "384MiB", "profiles": ["web"], "seeds": [1]},
        ],
        "hours": 0.1,
        "settled_hours": 0.05,
    },
    "contiguitas-large": {
        "servers": [
            {"memory": "384MiB", "profiles": ["web"], "seeds": [1, 2]},
            {
                "memory": "768MiB",
                "nodes": 2,
                "profiles": ["web"],
                "seeds": [1],
            },
        ],
        "hours": 0.1,
        "settled_hours": 0.05,
    },
    "perforated-random": {
        "memory": "256MiB",
        "size": "16MiB",
        "reads": 20000,
        "shares": [1.0],
        "fractions": [0.02, 0.1],
    },
    "perforated-apps": {
        "memory": "256MiB",
        "scale": "tiny",
        "programs": ["bfs"],
        "parts": {
            "bfs": {
                "arguments": ["--scale", "9", "--roots", "1"],
                "function": "search",
                "instructions": 10_000,
            }
        },
    },
    "perforated-virtualized": {
        "memory": "256MiB",
        "size": "16MiB",
        "reads": 20000,
        "fractions": [0.1],
    },
    "perforated-apps-virtualized": {"memory": "256MiB", "scale": "tiny", "programs": ["bfs"]},
    "perforated-fragmentation": {
        "memory": "256MiB",
        "size": "16MiB",
        "reads": 20000,
        "ages": ["scattered:1", "full"],
    },
    "perforated-breakdown": {
        "memory": "256MiB",
        "size": "16MiB",
        "reads": 20000,
        "fractions": [0.02, 0.1],
    },
    "direct-segment-overhead": {
        "memory": "4GiB",
        "scale": "tiny",
        "programs": ["bfs"],
        "parts": {
            "bfs": {
                "arguments": ["--scale", "9", "--roots", "1"],
                "function": "search",
                "instructions": 10_000,
            }
        },
    },
    "cross": {
        "memory": "256MiB",
        "programs": {"gups": "tiny"},
        "environments": ["native"],
        "only": [
            "linux thp radix",
            "linux thp perforated",
            "contiguitas thp radix",
            "contiguitas 4k direct-segment",
        ],
    },
    "direct-segment-scaling": {"updates": 5000, "sizes": ["1MiB", "4MiB"]},
    "memory-bloat": {"keys": 300, "sparse_size": "64MiB"},
    "migration-downtime": {"cores": [1, 2, 4], "migrations": 5, "warmup": 0},
    "migration-apps": {
        "memory": "512MiB",
        "cores": 2,
        "memcached": {"keys": 200, "value_bytes": 256, "requests": 400},
        "nginx": {"files": 10, "requests": 50},
    },
    "contiguitas-end-to-end": {
        "seeds": [1, 2],
        "partial_memory": "256MiB",
        "full_memory": "256MiB",
        "giant_memory": "512MiB",
        "stores": {
            name: {"keys": 200, "value_bytes": 100, "requests": 200}
            for name in ("memcached", "redis")
        },
        "parts": {
            "btree": {
                "arguments": ["--keys", "1000", "--lookups", "1000"],
                "function": "look_up",
                "instructions": 100_000,
            }
        },
    },
    "tlb-coverage": {},
    "page-walks": {"memory": "4GiB", "scale": "tiny", "programs": ["bfs"], "web": "bfs"},
    "realized-fragmentation": {"seconds": 200, "base_mb": 20, "spike_mb": 15, "seeds": 2},
    "subrelease-tradeoff": {"seconds": 200, "base_mb": 20, "spike_mb": 15},
    "subrelease-fleet": {
        "workloads": 12,
        "seconds": 400,
        "warmup": 100,
        "most_mb": 80,
        "sampled": 1,
        "server_mb": 20,
        "server_memory": "128MiB",
        "server_seconds": 60,
        "server_warmup": 10,
        "reads": 200,
    },
    "subrelease-services": {
        "demands": 2,
        "servers": 1,
        "warmup": 10,
        "seconds": {"web": 200, "storage": 100, "analytics": 100},
        "server_mb": 20,
        "server_memory": "128MiB",
        "server_seconds": 60,
        "reads": 50,
        "variants": [{"service": "web", "what": "at random", "put": {"removal": "random"}}],
    },
    "subrelease-square-wave": {"low_mb": 5, "high_mb": 10, "periods": [10, 120]},
    "subrelease-sweep": {"seconds": 200, "base_mb": 20, "spike_mb": 15},
    "heap-on-server": {
        "memory": "256MiB",
        "ages": ["fresh", "scattered:0.2", "scattered:1", "scattered:3"],
        "low_mb": 10,
        "high_mb": 30,
        "seconds": 120,
        "reads": 200,
    },
    "sampling-error": {
        "memory": "256MiB",
        "programs": {"bfs": 9},
        "seeds": 2,
        "far_distance": 400_000,
    },
    "rival-pom-tlb": {"memory": "256MiB", "parts": {"gups": GUPS}},
    "rival-spot": {"memory": "256MiB", "parts": {"gups": GUPS}},
    "rival-asap": {"memory": "256MiB", "parts": {"gups": GUPS}},
    "rival-dmt": {
        "memory": "256MiB",
        "parts": {"gups": GUPS},
        "areas": {
            "arguments": ["--size", "1GiB", "--stride", "512"],
            "memory": "256MiB",
            "design": "dmt-4k",
            "ages": ["fresh", "full"],
        },
    },
    "rival-ecpt": {
        "memory": "256MiB",
        "parts": {"gups": GUPS},
        "growth": {
            "arguments": ["--size", "1GiB", "--stride", "8"],
            "memory": "512MiB",
            "cells": {"ecpt": "ecpt-4k", "me-hpt": "me-hpt-4k"},
        },
        "begin": {
            "arguments": ["--size", "64MiB", "--stride", "8"],
            "memory": "1GiB",
            "cells": {"ecpt": "ecpt-64m", "me-hpt": "me-hpt-64m"},
        },
    },
    "rival-hdc": {
        "memory": "256MiB",
        "parts": {"gups": GUPS},
        "begin": {
            "arguments": ["--size", "64MiB", "--stride", "8"],
            "memory": "512MiB",
            "cells": {"small": "hdc-4k", "large": "hdc-64m"},
        },
    },
    "rival-mthp": {
        "memory": "256MiB",
        "parts": {"gups": GUPS},
        "keys": 300,
        "size": "16MiB",
    },
    "rival-atp-sbfp": {
        "memory": "256MiB",
        "parts": {
            "bfs": {**SMALL, "arguments": ["--scale", "10", "--roots", "1"], "function": "search"},
            "neutrons": {
                **SMALL,
                "arguments": ["--points", "30", "--lookups", "2000", "--no-verify"],
                "function": "transport",
            },
            "gups": GUPS,
        },
    },
    "rival-svnapot": {
        "memory": "256MiB",
        "cells": {
            "base": "linux-4k",
            "64k": "svnapot-64k",
            "any": "svnapot",
            "base-full": "linux-4k scattered:0.2",
            "any-full": "svnapot scattered:0.2",
        },
        "parts": {"gups": GUPS},
    },
    "rival-ingens": {
        "memory": "256MiB",
        "holes": {
            "program": "bloat",
            "arguments": ["--size", "8MiB", "--reads", "100000"],
            "designs": ["small", "linux", "conservative", "adaptive"],
        },
        "whole": {
            "program": "bloat",
            "arguments": ["--size", "8MiB", "--kept", "100", "--reads", "100000"],
            "designs": ["small", "linux", "conservative"],
        },
    },
    "rival-hawkeye": {
        "memory": "256MiB",
        "hot": {
            "program": "bloat",
            "arguments": ["--late", "--size", "8MiB", "--kept", "100", "--reads", "100000"],
            "designs": ["small", "linux-hot", "ingens-hot", "hawkeye-hot"],
        },
        "growth": {
            "program": "bloat",
            "arguments": ["--size", "8MiB", "--reads", "100000"],
            "designs": ["small", "linux", "ingens", "kept", "hawkeye"],
            "pages": 1434,
        },
        "touch": {
            "program": "bloat",
            "arguments": ["--size", "8MiB", "--kept", "100", "--reads", "1"],
            "designs": ["linux", "zeroed"],
        },
    },
    "rival-chirp": {
        "memory": "256MiB",
        "parts": {
            "gups": GUPS,
            "neutrons": {
                **SMALL,
                "arguments": ["--points", "30", "--lookups", "2000", "--no-verify"],
                "function": "transport",
            },
        },
    },
    "rival-victima": {"memory": "256MiB", "parts": {"gups": GUPS}},
    "rival-utopia": {
        "memory": "256MiB",
        "parts": {"gups": GUPS},
        "others": {"gups": GUPS},
        "servers": {**find("rival-utopia").inputs["quick"]["servers"], "memory": "256MiB"},
    },
    "rival-mosaic": {
        "memory": "256MiB",
        "cells": {
            **find("rival-mosaic").inputs["quick"]["cells"],
            **{
                f"{name}-full": f"{design} scattered:0.2"
                for name, design in {
                    "4": "mosaic",
                    "64": "mosaic-64",
                    "colt": "colt",
                    "thp": "linux-thp",
                }.items()
            },
        },
        "parts": {"gups": GUPS},
        "fills": {
            "fresh": {
                "arguments": ["--size", "124MiB", "--stride", "1"],
                "memory": "128MiB",
                "age": "fresh",
            },
            "full": {
                "arguments": ["--size", "64MiB", "--stride", "1"],
                "memory": "128MiB",
                "age": "full",
            },
        },
    },
    "rival-trident": {
        "memory": "2GiB",
        **{
            name: {
                "program": "bloat",
                "arguments": ["--size", "16MiB", "--kept", "100", "--reads", "10000"],
                "designs": designs,
            }
            for name, designs in {
                "fresh": ["linux", "trident"],
                "large": ["linux", "trident"],
                "late": ["linux", "trident"],
                "full": ["linux", "trident", "confined"],
                "partial": ["confined", "sequential", "unbiased", "unbiased-sequential"],
                "touch": ["zeroed", "sleepy"],
            }.items()
        },
    },
    "rival-ranger": {
        "memory": "2GiB",
        **{
            name: {
                "program": "bloat",
                "arguments": ["--size", "16MiB", "--kept", "100", "--reads", "10000"],
                "designs": designs,
            }
            for name, designs in {
                "fresh": ["linux", "ranger"],
                "partial": ["linux", "ranger", "splitting"],
                "full": ["linux", "ranger", "range", "ranger-range", "confined", "confined-range"],
            }.items()
        },
    },
    "subrelease-redis": {
        "entries": 2000,
        "connections": 20,
        "rounds": 2,
        "wait_seconds": 0.2,
        "sample_seconds": 0.1,
    },
}
#: Experiments whose threads, or server and client, meet at other moments in each run.
SERVED = {
    "contiguitas-end-to-end",
    "memory-bloat",
    "migration-downtime",
    "migration-apps",
    "rival-mthp",
    "subrelease-redis",
}


def tiny(name):
    definition = find(name)
    inputs = {**definition.inputs["quick"], **TINY[name]}
    return replace(definition, inputs={"quick": inputs, "full": inputs})


def lacking_for_redis():
    """Say what the experiment on the running machine does not have here."""
    if find_redis() is None:
        return "no redis-server with the C library's malloc is built yet"
    if find_library("libcontigua_malloc.so") is None:
        return "libcontigua_malloc.so is not built (cargo build --release -p contigua-malloc)"
    if not SWITCH.exists() or (chosen() != "always" and not os.access(SWITCH, os.W_OK)):
        return "transparent huge pages cannot be switched to always here"
    return None


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiments_file_says_everything(name):
    one = find(name)
    assert one.title and one.source and one.needs and one.fitting
    assert all(one.durations[scale] for scale in ("quick", "full"))
    assert one.inputs["quick"].keys() == one.inputs["full"].keys()
    keys = [figure.key for figure in one.figures]
    assert len(keys) == len(set(keys))
    for figure in one.figures:
        assert figure.source
        if figure.kind == "compared":
            # The paper's own value is within tolerance, and a tolerance is narrower than what
            # has the same shape: something can fail.
            low, high = figure.paper
            assert figure.judge(low) == figure.judge(high) == "within tolerance"
            assert figure.judge(high + 3 * figure.tolerance + 1) != "within tolerance"
            assert figure.judge(low - 3 * figure.tolerance - 1) != "within tolerance"
            if figure.unit == "%" and low == high and 0.1 < low <= 90:
                assert figure.tolerance < low, figure.key


#: Those that boot virtual machines for minutes; vm-tests run what they are made of.
APART = {"guard-vm", "contiguitas-kernel", "kernel-fidelity"}


#: Those that take three seconds and more.
LONG = {
    "contiguitas-confinement",
    "contiguitas-end-to-end",
    "contiguitas-fleet",
    "contiguitas-parts",
    "contiguitas-large",
    "cross",
    "direct-segment-scaling",
    "heap-on-server",
    "memory-bloat",
    "migration-apps",
    "page-walks",
    "perforated-breakdown",
    "perforated-fragmentation",
    "perforated-random",
    "perforated-virtualized",
    "sampling-error",
    "subrelease-redis",
    "subrelease-services",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if name in LONG else [])
        for name in EXPERIMENTS
        if name not in APART
    ],
)
def test_an_experiment_computes_every_figure_and_writes_its_page(name, tmp_path):
    named = find(name).inputs["quick"].get("designs", [])
    # A table has designs of the experiment's own.
    absent = {*named} - set(designs.names()) if isinstance(named, list) else set()
    if absent:
        pytest.skip(f"no design is called {', '.join(sorted(absent))}")
    if name == "subrelease-redis" and (lacking := lacking_for_redis()):
        pytest.skip(lacking)
    times = 1 if name in SERVED else 2
    results = [
        run_experiment(tiny(name), "quick", Context(tmp_path / str(i))) for i in range(times)
    ]
    first = results[0]
    assert first.outcome.values.keys() == {figure.key for figure in first.definition.figures}
    written = json.loads((tmp_path / "0" / "figures.json").read_text())
    assert [f["ours"] for f in written["figures"]] == list(
        map(first.outcome.values.get, (f["key"] for f in written["figures"]))
    )
    html = (tmp_path / "0" / "index.html").read_text()
    for figure in first.definition.figures:
        assert escape(figure.label) in html
    assert all(escape(figure.kind) in html for figure in first.definition.figures)
    assert not re.search(r"https?://", html)
    assert "<img" in html and 'alt=""' not in html
    for sheet in first.outcome.sheets:
        assert escape(sheet.title) in html
        assert all(len(row) == len(sheet.heads) for row in sheet.rows)
    # The same seed gives the same figures and the same page.
    for file in ("figures.json", "index.html"):
        for again in map(str, range(1, times)):
            assert (tmp_path / "0" / file).read_bytes() == (tmp_path / again / file).read_bytes()


def test_an_interrupted_comparison_goes_on_with_its_recording(tmp_path, monkeypatch):
    inputs = tiny("sampling-error").inputs["quick"]
    calls = []

    def counted(name, most=10**6):
        real = getattr(sampling_error, name)

        def call(*given, **options):
            if calls.count(name) == most:
                raise KeyboardInterrupt
            calls.append(name)
            return real(*given, **options)

        monkeypatch.setattr(sampling_error, name, call)

    counted("execute")
    # The whole run, and one of both batches of the first of three plans.
    counted("run_whole", 2)
    with pytest.raises(KeyboardInterrupt):
        sampling_error.compute(inputs, Context(tmp_path / "cut", jobs=1))
    monkeypatch.undo()
    assert calls == ["execute", "run_whole", "run_whole"]
    counted("execute")
    counted("run_whole")
    parts = []
    context = Context(tmp_path / "cut", jobs=1, progress=parts.append)
    resumed = sampling_error.compute(inputs, context)
    assert calls[3:] == ["run_whole"] * 5
    assert parts == [pytest.approx(part / 7) for part in (3, 4, 5, 6, 7)]
    # What is kept takes the place of all runs; recordings do not stay.
    again = sampling_error.compute(inputs, Context(tmp_path / "cut", jobs=1))
    assert calls[8:] == [] and not list((tmp_path / "cut").glob("*.trace"))
    whole = sampling_error.compute(inputs, Context(tmp_path / "whole", jobs=4))
    assert resumed.values == again.values == whole.values
    assert resumed.sheets == again.sheets == whole.sheets
    # Other inputs have nothing to do with it.
    other = sampling_error.compute(inputs | {"seed": 2}, Context(tmp_path / "cut", jobs=1))
    assert other.sheets != whole.sheets


def demand_runs(inputs, cycles):
    """Found runs of one program whose cycles are a function of the place."""
    return {"gups": {at: cycles(at) for at in demand.places_of(inputs)}}


def test_what_is_left_of_a_gain_is_that_over_the_gain_on_fresh_memory():
    inputs = tiny("contiguity-demand").inputs["quick"] | {"seeds": [1, 2]}

    def cycles(at):
        if at.design == demand.BASE:
            return 2000 if at.age == demand.FRESH else 4000
        # Twice as fast; under Linux a quarter of that on old memory, the other design all of it.
        base = 2000 if at.age == demand.FRESH else 4000
        is_lost = at.design == "linux-thp" and at.age != demand.FRESH and at.placement == "linux"
        return base / (1.25 if is_lost else 2)

    found = demand_runs(inputs, cycles)
    outcome = demand.figures(found, inputs, {})
    assert outcome.values == {
        "linux_small": pytest.approx(100),
        "linux_large": pytest.approx(25),
        **{f"{one}_more": pytest.approx(75) for one in inputs["placements"][1:]},
        "contiguitas_large": pytest.approx(100),
    }
    (sheet,) = outcome.sheets
    assert sheet.rows[0][2:] == ["100.0 ± 0.0", "25.0 ± 0.0", *["100.0 ± 0.0"] * 3]
    # Nothing is left of what was no gain, and a design that did not run everywhere has none.
    even = demand_runs(inputs, lambda _: 1000)
    assert set(demand.figures(even, inputs, {}).values.values()) == {None}
    gone = demand.Place("linux-thp", "linux", "full", 1)
    del found["gups"][gone]
    assert demand.gain(found, gone) is None
    notes = demand.figures(found, inputs, {gone: "no memory; at all"}).notes
    assert "Did not run: linux-thp (linux, full, 1): no memory." in notes


def effects(as_others=None):
    """Verdicts of servers, some of whose measures are those of others."""
    definition = find("placement-effects")
    inputs = definition.inputs["quick"]
    measures = dict.fromkeys(placements.COLUMNS, 0.0)
    linux = measures | {"huge": 700, "fallbacks": 300, "tainted": 50.0, "unmovable": 10.0}
    servers = {
        ("builds", "linux"): linux,
        ("builds", "defrag-mode"): measures | {"huge": 945, "fallbacks": 75},
        ("zone", "linux"): linux,
        ("zone", "2 %"): measures | {"potential": 98.0, "failures": 9, "free": 50.0},
        ("zone", "5 %"): measures | {"potential": 97.0, "failures": 2},
        ("zone", "20 %"): measures,
        ("full", "linux"): linux,
        ("full", "superpageblocks"): linux | {"tainted": 12.0},
        ("full", "no reserve"): linux | {"tainted": 40.0},
        ("full", "half the kernel's memory"): linux | {"tainted": 6.0},
    }
    servers |= {at: servers[other] for at, other in (as_others or {}).items()}
    found = {
        placements.Place(*at, seed): one
        for at, one in servers.items()
        for seed in inputs["sizes"][at[0]]["seeds"]
    }
    outcome = placements.figures(found, inputs)
    judged = Result(definition, "quick", inputs, outcome).judged()
    return {figure.key: verdict for figure, verdict in judged}


BAD = {"differs", "fails"}


def test_effects_of_placements_are_those_of_their_sources():
    assert not BAD & set(effects().values())


@pytest.mark.parametrize(
    ("place", "other", "fail"),
    [
        (("builds", "defrag-mode"), ("builds", "linux"), {"fallbacks_saved", "huge_more"}),
        (
            ("zone", "2 %"),
            ("zone", "20 %"),
            {"zone_kept", "zone_failures", "zone_free", "zone_order"},
        ),
        (("zone", "20 %"), ("zone", "5 %"), {"zone_order", "zone_safe"}),
        (
            ("full", "superpageblocks"),
            ("full", "linux"),
            {"tainted", "tainted_needed", "tainted_of_linux", "tainted_of_unreserved"},
        ),
        (("full", "half the kernel's memory"), ("full", "superpageblocks"), {"tainted_less"}),
    ],
)
def test_a_placement_that_does_nothing_has_no_effect(place, other, fail):
    verdicts = effects(as_others={place: other})
    assert {key for key, verdict in verdicts.items() if verdict in BAD} == fail


def test_designs_without_memory_are_found_and_the_others_run(tmp_path):
    options = RunOptions(memory="64MiB", detail="additive")
    designs_of = {"a": None, "b": "1MiB", "c": None}
    cells = {
        demand.Place(name, "linux", "fresh", 1): Cell("linux-thp", memory=memory)
        for name, memory in designs_of.items()
    }
    failed = {}
    found = demand.run_together(
        catalogue("tiny")["gups"], cells, options, Context(tmp_path), failed
    )
    assert [at.design for at in found] == ["a", "c"]
    assert [at.design for at in failed] == ["b"]


def test_a_computation_goes_on_with_the_programs_that_have_finished(tmp_path, monkeypatch):
    executed = []
    real = running.execute
    monkeypatch.setattr(
        running,
        "execute",
        lambda *given, **kw: executed.append(given[0].name) or real(*given, **kw),
    )
    program, options = catalogue("tiny")["gups"], RunOptions(memory="64MiB", detail="translation")
    whole, none = Cell("linux-4k"), Cell("linux-4k", memory="1MiB")

    def run(program):
        with Kept(tmp_path / "kept") as kept:
            failures = {}
            found = run_cells(program, [none, whole], options, failures=failures, kept=kept)
            return found, failures

    first = run(program)
    assert list(first[0]) == [whole] and list(first[1]) == [none]
    assert run(program) == first and executed == ["gups"]
    run(replace(program, name="again"))
    assert executed == ["gups", "again"]


def test_parts_stay_until_all_has_finished_and_those_of_other_inputs_go(tmp_path):
    one = tiny("memory-bloat")
    other = replace(one, inputs={"quick": one.inputs["quick"] | {"keys": 1}})
    with pytest.raises(KeyboardInterrupt), unfinished(one, "quick", tmp_path) as kept:
        kept.add("part", 1)
        raise KeyboardInterrupt
    with unfinished(one, "quick", tmp_path) as kept:
        assert kept.values == {"part": 1}
    assert not list(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt), unfinished(one, "quick", tmp_path) as kept:
        kept.add("part", 1)
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), unfinished(other, "quick", tmp_path) as kept:
        assert not kept.values and not list(tmp_path.iterdir())
        raise KeyboardInterrupt


def test_a_comparison_of_samples_counts_what_is_outside():
    inputs = tiny("sampling-error").inputs["quick"]

    def seed(cycles, ratio):
        return {
            "cycles": {"linux-4k": [cycles, 3.0], "linux-thp": [60.0, 0.5]},
            "ratio": {"linux-thp": ratio},
            "units": 100,
            "quantile": 2.0,
            "reached": cycles < 104,
        }

    whole = {"linux-4k": 100, "linux-thp": 60}
    seeds = {"1": seed(102.0, [0.6, 0.0]), "2": seed(104.0, [0.603, None])}
    sampled = dict.fromkeys(("goal", "gaps", "time"), seeds)
    one = {"whole": whole, "instructions": 1_000_000, "sampled": sampled}
    found = sampling_error.figures({"one": one}, inputs, [])
    assert found.values == pytest.approx(
        {
            "cycles": 4.0,
            "speedup": 0.5,
            "cycles_inside": 75.0,
            "speedup_inside": 50.0,
            "reached": 50.0,
            "timed_cycles_inside": 75.0,
            "timed_speedup_inside": 50.0,
        }
    )
    row = dict(zip(found.sheets[0].heads[:8], found.sheets[0].rows[0], strict=False))
    assert row["mean error"] == "+1.50 %" and row["inside"] == "3 of 4"
    # Half of 2 times the variation over the root of 100 is what 3 of 102 cycles are.
    assert row["variation"] == f"{(3 / 102 + 3 / 104) / 2 * 10 / 2:.2f}"


@pytest.mark.parametrize(
    ("paper", "ours", "margin", "verdict"),
    [
        (30.0, 30.0, 0.0, "within tolerance"),
        (30.0, 35.0, 0.0, "within tolerance"),
        (30.0, 25.0, 0.0, "within tolerance"),
        (30.0, 35.1, 0.0, "same shape"),
        (30.0, 15.0, 0.0, "same shape"),
        (30.0, 14.9, 0.0, "differs"),
        (30.0, 60.1, 0.0, "differs"),
        (30.0, -30.0, 0.0, "differs"),
        (30.0, None, 0.0, "no data"),
        (30.0, float("nan"), 0.0, "no data"),
        # Intervals within, over an end, wider than the tolerance, and far off.
        (30.0, 32.0, 3.0, "within tolerance"),
        (30.0, 33.0, 3.0, "cannot tell"),
        (30.0, 37.0, 3.0, "cannot tell"),
        (30.0, 30.0, 6.0, "cannot tell"),
        (30.0, 45.0, 3.0, "same shape"),
        (30.0, 90.0, 20.0, "differs"),
        # Nothing is within a factor of two of zero.
        (0.0, 5.0, 0.0, "within tolerance"),
        (0.0, 5.1, 0.0, "differs"),
        # Of shares above 90 %, what is left to 100 % counts.
        (99.9, 94.0, 0.0, "differs"),
        (92.0, 85.0, 0.0, "same shape"),
    ],
)
def test_a_verdict_follows_from_tolerance_interval_and_factor(paper, ours, margin, verdict):
    assert replace(FIGURE, paper=(paper, paper)).judge(ours, margin) == verdict


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(63.0, "within tolerance"), (75.0, "same shape"), (100.0, "differs"), (130.0, "differs")],
)
def test_what_is_relative_to_a_control_group_differs_where_nothing_does(ours, verdict):
    one = replace(FIGURE, paper=(60.0, 60.0), tolerance=5.0, neutral=100.0, unit="%")
    assert one.judge(ours) == verdict


def test_a_printed_range_is_met_anywhere_in_it():
    figure = replace(FIGURE, paper=(2.0, 9.0), tolerance=0.0, unit="")
    assert [figure.judge(ours) for ours in (2.0, 5.0, 9.0)] == ["within tolerance"] * 3
    assert [figure.judge(ours) for ours in (1.9, 17.0, 0.5)] == ["same shape"] * 2 + ["differs"]


@pytest.mark.parametrize(
    ("kind", "ours", "verdict"),
    [
        ("own", 3.0, "holds"),
        ("own", 3.1, "fails"),
        ("same shape", 3.0, "same shape"),
        ("same shape", 3.1, "differs"),
        ("by construction", 99.0, "by construction"),
        ("fitted", 99.0, "fitted"),
    ],
)
def test_only_classes_that_can_fail_have_verdicts(kind, ours, verdict):
    figure = replace(FIGURE, kind=kind, paper=None, require=(1.0, 3.0))
    assert figure.judge(ours) == verdict
    assert figure.judge(None) == ("no data" if kind in ("own", "same shape") else verdict)


def test_a_series_out_of_order_has_not_the_papers_shape():
    series = [
        replace(FIGURE, key=key, paper=(paper, paper), tolerance=0.1, series="4 KB")
        for key, paper in (("a", 10.0), ("b", 20.0), ("c", 30.0))
    ]
    ordered = Judged(series, {"a": 8.0, "b": 15.0, "c": 25.0})
    assert ordered.verdicts() == ["same shape"] * 3
    swapped = Judged(series, {"a": 16.0, "b": 15.0, "c": 25.0})
    assert swapped.verdicts() == ["differs"] * 3
    # What is within tolerance is so whatever the others are.
    assert Judged(series, {"a": 10.0, "b": 39.0, "c": 25.0}).verdicts()[0] == "within tolerance"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"class": "compared", "number": "004 Table 4: GUPS, 4 KB"}, "x: compared needs tolerance"),
        ({"class": "own", "tolerance": 3}, "x: own has no tolerance"),
        (
            {
                "class": "compared",
                "number": "002 Table 1: cycles in minor faults, experiment",
                "tolerance": 0.2,
                "neutral": 3.56,
            },
            "x: its tolerance reaches to neutral",
        ),
        ({"class": "own"}, "x: own needs at_least or at_most"),
        ({"class": "predicted"}, "x: class is 'predicted', not one of compared"),
        ({}, "x: class is None"),
        (
            {"class": "compared", "number": "004 Table 44: GUPS", "tolerance": 1},
            "no number '004 Table 44: GUPS'",
        ),
    ],
)
def test_a_figure_that_is_not_well_formed_is_refused(table, message):
    with pytest.raises(ContiguaError, match=re.escape(message)):
        Figure.read({"key": "x", "label": "x", "source": "page 1", **table})


def test_fitted_figures_and_what_cannot_fail_are_no_results():
    definition = replace(
        find("contiguitas-fleet"),
        figures=(
            replace(FIGURE, key="fit", kind="fitted"),
            replace(FIGURE, key="sure", kind="by construction"),
            replace(FIGURE, key="met"),
            replace(FIGURE, key="missed"),
            replace(FIGURE, key="vague"),
            replace(FIGURE, key="required", kind="own", paper=None, require=(1.0, 2.0)),
        ),
    )
    values = {"fit": 30.0, "sure": 1.0, "met": 31.0, "missed": 90.0, "vague": 30.0, "required": 3.0}
    outcome = Outcome(values, lambda page: None, {"fit": 20.0, "vague": 20.0, "met": 2.0})
    summary = Result(definition, "quick", {}, outcome).summary()
    assert "Compared with printed numbers: 1 within tolerance, 1 cannot tell, 1 differs." in summary
    assert "Other claims: 1 fails." in summary


def test_a_distribution_rises_from_nothing_to_all():
    x, y = distribution([3.0, 1.0, 1.0, 2.0])
    assert x == [1.0, 1.0, 1.0, 2.0, 3.0]
    assert y == [0.0, 25.0, 50.0, 75.0, 100.0]


def test_quantiles_lie_between_the_values():
    assert [quantile([4.0, 1.0, 3.0, 2.0], part) for part in (0, 0.5, 1)] == [1.0, 2.5, 4.0]
    assert quantile([7.0], 0.3) == 7.0


def test_correlation_is_the_textbooks():
    assert pearson([1, 2, 3, 4], [2, 4, 6, 8]) == pytest.approx(1.0)
    assert pearson([1, 2, 3, 4], [8, 6, 4, 2]) == pytest.approx(-1.0)
    # Anscombe's first set.
    x = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
    y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
    assert pearson(x, y) == pytest.approx(0.81642, abs=1e-5)
    assert pearson([1, 1, 1], [1, 2, 3]) is None
    assert pearson([1, 2], [1, 2]) is None


def test_a_line_is_the_textbooks():
    assert line([1, 2, 3], [5, 7, 9]) == (2.0, 3.0, pytest.approx(1.0))
    # Anscombe's first set again.
    x = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
    y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
    assert line(x, y) == pytest.approx((0.5001, 3.0001, 0.6665), abs=1e-4)
    assert line([1, 2], [1, 2]) is None


def test_intervals_cover_what_they_promise():
    chance = random.Random(1)
    trials, n = 400, 60
    covered = {"share": 0, "median": 0, "correlation": 0}
    for _ in range(trials):
        flags = [chance.random() < 0.3 for _ in range(n)]
        covered["share"] += abs(percent(flags) - 30) <= percent_margin(flags) * 1.1
        values = [chance.gauss() for _ in range(n)]
        covered["median"] += abs(median(values)) <= 1.3 * median_margin(values)
        # Not by being wider than it must: the median's standard error is 1.25 / sqrt(n).
        assert median_margin(values) < 4 * 1.25 / math.sqrt(n)
        r = pearson([chance.gauss() for _ in range(n)], values)
        covered["correlation"] += abs(r) <= pearson_margin(r, n)
    assert all(0.9 < count / trials <= 1 for count in covered.values()), covered


def test_the_borders_turns_are_counted():
    assert confinement.reversals([1, 2, 3, 3, 4]) == 0
    assert confinement.reversals([4, 3, 3, 1]) == 0
    assert confinement.reversals([1, 2, 2, 1, 2]) == 2
    assert confinement.reversals([1]) == 0


def sample(region, potential_1g, unmovable=10):
    blocks = {"total": 2048, "free": 0, "potential": 0, "unmovable": unmovable}
    contiguity = {
        "free_frames": 0,
        "movable_frames": 1 << 20,
        "unmovable_frames": 0,
        "reserved_frames": 0,
        "blocks_2m": blocks,
        "blocks_1g": {**blocks, "total": 4, "potential": potential_1g},
    }
    return {"contiguity": contiguity, "unmovable_region_bytes": region, "seconds": 0.0}


def test_potential_is_measured_against_the_movable_region():
    # 4 GiB of memory with a border at 128 MiB: three aligned blocks of 1 GiB lie behind it.
    assert confinement.of_movable_region(sample(128 << 20, 3), "1g") == 100.0
    assert confinement.of_movable_region(sample(128 << 20, 2), "1g") == pytest.approx(200 / 3)
    assert confinement.of_movable_region(sample(1024 << 20, 3), "1g") == 100.0
    assert confinement.of_movable_region(sample(1026 << 20, 2), "1g") == 100.0
    assert confinement.of_movable_region(sample(3074 << 20, 0), "1g") is None
    assert confinement.least([None, 3.0, 2.0]) == 2.0
    assert confinement.least([None]) is None


def test_unmovable_blocks_outside_the_region_are_noticed():
    assert confinement.blocks_outside(sample(20 << 20, 3)) == 0
    assert confinement.blocks_outside(sample(18 << 20, 3)) == 1


def test_the_sources_of_unmovable_pages_add_up():
    row = {
        "unmovable_frames": 100,
        "class_network_buffer": 73,
        "class_slab": 12,
        "class_file_system": 6,
        "class_page_table": 5,
    }
    mix = fleet.source_mix([row, row])
    assert mix == {
        "source_network": 73.0,
        "source_slab": 12.0,
        "source_files_tables": 11.0,
        "source_other": 4.0,
    }
    assert math.isclose(sum(mix.values()), 100)
    assert set(fleet.source_mix([{**row, "unmovable_frames": 0}]).values()) == {None}


def test_free_contiguity_is_a_share_of_free_memory():
    row = {"free_frames": 1024, "blocks_2m_free": 1}
    assert fleet.free_contiguity(row, "2m") == 50.0


def test_the_list_says_what_there_is(cli):
    ran = cli("experiment", "list")
    assert ran.returncode == 0, ran.stderr
    for name in EXPERIMENTS:
        assert name in ran.stdout and find(name).title in ran.stdout


@pytest.mark.parametrize(
    "arguments",
    [["run", "contiguitas-flete"], ["contiguitas-flete"], ["contiguitas-flete", "--full"]],
)
def test_an_unknown_experiment_offers_the_nearest(cli, tmp_path, arguments):
    ran = cli("experiment", *arguments, cwd=tmp_path)
    assert ran.returncode == 1
    assert "did you mean contiguitas-fleet" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_one_clear_error(cli):
    ran = cli("experiment", "contiguitas-fleet", "-o", "/proc/no/such")
    assert ran.returncode == 1
    assert "/proc/no/such" in ran.stderr and "Traceback" not in ran.stderr


def test_a_name_outside_the_registry_is_refused():
    with pytest.raises(ExperimentError, match=f"there are {EXPERIMENTS[0]}"):
        find("../../etc/passwd")


def report(cycles=1000, walk=100, **values):
    return {
        "time": {"cycles": cycles},
        "translation": {"data_walk_cycles": walk},
        "classified": {"data_walks": 200, "inside": 150},
        **values,
    }


def residency(memory, eligible):
    """A report of a run of a thousand instructions, a hundred from one point to the next."""
    return {
        "executed": {"instructions": 1000},
        "residency": {
            "instructions": list(range(100, 100 * len(memory) + 100, 100)),
            "resident_bytes": memory,
            "eligible_bytes": eligible,
        },
    }


def test_the_table_of_the_machine_compares_sizes():
    sheet, same = direct_segment.machine_table("sandy-bridge")
    assert same == 100
    assert ["l1d TLB, 1g", "4 entries, 4 ways", "4 entries, 4 ways"] in sheet.rows
    # Skylake's first level has the same arrays but one, and a larger second level.
    assert direct_segment.machine_table("skylake")[1] == pytest.approx(100 * 4 / 6)


def test_writable_memory_is_the_mean_over_the_run():
    assert direct_segment.writable_share(residency([100, 200, 0], [50, 150, 0])) == pytest.approx(
        62.5
    )
    assert direct_segment.writable_share(residency([100], [])) is None


def test_memory_has_settled_from_nine_tenths_of_the_peak_on():
    assert direct_segment.settled_share(residency([10, 50, 89, 90, 100], [])) == pytest.approx(60)
    assert direct_segment.settled_share(residency([100, 10, 20], [])) == pytest.approx(90)
    assert direct_segment.settled_share(residency([100], [])) is None


def test_a_run_tells_writable_memory_where_misses_are_classified():
    options = RunOptions(memory="256MiB", detail="translation")
    program = catalogue("tiny")["gups"]
    (plain,) = run_cells(program, [Cell("linux-4k")], options).values()
    assert plain["residency"]["eligible_bytes"] == []
    classified = replace(options, classify_misses=True)
    (told,) = run_cells(program, [Cell("linux-4k")], classified).values()
    memory = told["residency"]
    assert memory["resident_bytes"] == plain["residency"]["resident_bytes"]
    assert len(memory["eligible_bytes"]) == len(memory["resident_bytes"]) > 1
    pairs = list(zip(memory["eligible_bytes"], memory["resident_bytes"], strict=True))
    assert all(0 < inside < whole for inside, whole in pairs)
    # Its table has a mebibyte; code and constants are files' memory.
    assert pairs[-1][0] >= 1 << 20


def test_the_linear_model_is_that_of_the_paper():
    # 10 % of cycles with 4 KB pages, three quarters of whose misses a segment takes.
    assert overhead.linear_model(report()) == pytest.approx(2.5)
    # Tables 4 and 5 give what mechanisms D5 lists, to rounding.
    for _, small, _, _, model, inside in overhead.PAPER:
        assert float(small) * (1 - float(inside) / 100) == pytest.approx(float(model), abs=6e-4)


def test_a_gain_is_what_is_done_more_in_the_same_time():
    inputs = find("contiguitas-end-to-end").inputs["quick"]
    sizes = ("resident_4k", "resident_2m", "resident_1g", "perforated", "segment")
    memory = {f"{size}_bytes": 1 << 20 for size in sizes} | {"huge_page_coverage": 0.5}
    times = {"partial": (1050, 1000), "full": (1100, 1000), end_to_end.GIANT: (1075, 1000)}
    cells = [end_to_end.pairs(inputs, seed) for seed in inputs["seeds"]]
    by = {
        cell: report(time, memory=memory)
        for one in cells
        for kind, pair in one.items()
        for cell, time in zip(pair, times[kind], strict=True)
    }
    assert list(by) == end_to_end.cells(inputs)
    # At full scale, 2 MB pages on a full server are compared with 4 KB and with 1 GB.
    assert len(end_to_end.cells(find("contiguitas-end-to-end").inputs["full"])) == 5 * 3
    outcome = end_to_end.figures({"bfs": by}, inputs, [])
    assert outcome.values == {
        "partial_least": pytest.approx(5.0),
        "partial_most": pytest.approx(5.0),
        "full_least": pytest.approx(10.0),
        "full_most": pytest.approx(10.0),
        "giant_most": pytest.approx(7.5),
    }
    assert set(outcome.margins.values()) == {0.0}
    # A seed that differs widens the interval, and the program with the largest mean is the most.
    slow = dict(by)
    slow[cells[0]["partial"][0]] = report(1200, memory=memory)
    outcome = end_to_end.figures({"bfs": by, "cg": slow}, inputs, [])
    assert outcome.values["partial_most"] == pytest.approx((20 + 5 + 5) / 3)
    assert outcome.values["partial_least"] == pytest.approx(5.0)
    assert outcome.margins["partial_most"] > 10 and outcome.margins["partial_least"] == 0


def test_what_lies_outside_the_primary_region_has_each_programs_own_reason():
    assert overhead.outside_notes({"gups": 99.9, "mariadb": 92.4}) == []
    little, files = overhead.outside_notes({"sqlite3": 29.9, "mariadb": 43.9})
    assert "little data" in little
    assert "43.9 %" in files and "files' mappings" in files and "reserves" in files
    assert "small" not in files and "little" not in files
    # Nothing is made up for a program that nobody looked at.
    (other,) = overhead.outside_notes({"other": 10.0})
    assert "has not been examined" in other


def test_an_inflection_is_where_misses_begin():
    sizes, shares = [1, 2, 4, 8], [0.0, 0.2, 0.6, 5.0]
    assert scaling.inflection(sizes, shares, 0.5) == 4
    assert scaling.inflection(sizes, shares, 9.0) is None


def test_series_are_compared_scenario_by_scenario():
    few, many = "1:0.02:dispersed:remapped", "1:0.25:dispersed:remapped"
    other = "1:0.25:clustered:remapped"
    ours = {few: 97.0, many: 90.0, other: 95.0}
    assert perforated.up_to(ours, 0.1) == [97.0]
    assert perforated.beats(ours, {few: 96.0, many: 91.0, other: 94.0}) == pytest.approx(200 / 3)
    assert perforated.rises(ours) == 0
    assert perforated.rises({few: 90.0, many: 91.5}) == pytest.approx(1.5)
    found = {Cell("a"): report(900), Cell("b", few): report(1000)}
    assert perforated.relative(found, "b", Cell("a")) == {few: pytest.approx(90.0)}


def test_scenarios_are_written_as_the_engine_reads_them():
    assert scenarios([0.5], [1 / 512, 0.1], ["clustered"], "remapped") == [
        "0.5:0.001953125:clustered:remapped",
        "0.5:0.1:clustered:remapped",
    ]


def test_a_program_that_is_not_there_is_named_with_its_package():
    program = Program("x", ("no-such-program",), {"no-such-program": "no-such-package"})
    with pytest.raises(ProgramError, match=r"no-such-program is not installed .*no-such-package"):
        run_cells(program, [Cell("linux-4k")], RunOptions())


def test_without_qemu_the_guard_cannot_be_tried_here(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingProgramError, match=r"no virtual machines here: .*qemu|x86_64 only"):
        run_experiment(find("guard-vm"), "quick", Context(tmp_path))


def test_a_program_that_fails_says_why():
    program = Program("cat", ("cat", "/no/such/file"))
    with pytest.raises(ProgramError, match=r"cat ended with status 1: .*No such file"):
        run_cells(program, [Cell("linux-4k")], RunOptions())
