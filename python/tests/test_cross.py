"""Are combinations complete, their costs those of their structures, and their ranks fair?"""

from itertools import product

import pytest

from contigua.options import RunOptions
from contigua.presets import designs, machines
from contigua.programs.catalogue import catalogue
from contigua.programs.program import Program
from contigua_experiments import cross
from contigua_experiments.combinations import (
    AXES,
    Combination,
    CombinationError,
    combine,
    write_designs,
)
from contigua_experiments.running import Cell, run_cells

PLACEMENTS, PAGES, SCHEMES, ENVIRONMENTS = map(list, AXES)


def test_every_combination_is_a_design_or_has_a_reason(tmp_path):
    possible, senseless = combine(PLACEMENTS, PAGES, SCHEMES, ENVIRONMENTS)
    refused = [one for those in senseless.values() for one in those]
    every = {Combination(*words) for words in product(PLACEMENTS, PAGES, SCHEMES, ENVIRONMENTS)}
    assert {*possible, *refused} == every and len(possible) + len(refused) == len(every)
    paths = write_designs(possible, tmp_path)
    for one in possible:
        resolved = designs.resolve(paths[one])
        placement = one.placement.removesuffix("-hw")
        assert [*resolved["placement"]] == [placement]
        assert ("host" in resolved) == (one.environment == "virtual")
        if one.environment == "virtual":
            assert resolved["host"]["translation"] == resolved["translation"]
            assert resolved["host"]["placement"].keys() == resolved["placement"].keys()
        assert [*resolved["migration"]] == ["llc" if one.placement.endswith("-hw") else "software"]


def test_combinations_say_what_the_presets_say(tmp_path):
    same = {
        "linux 4k radix": "linux-4k",
        "linux thp radix": "linux-thp",
        "linux madvise radix": "linux-thp-madvise",
        "linux 1g radix": "hugetlb-1g",
        "illuminator thp radix": "illuminator-thp",
        "defrag-mode thp radix": "defrag-mode",
        "zone-movable thp radix": "zone-movable",
        "superpageblocks thp radix": "superpageblocks",
        "contiguitas-hw thp radix": "contiguitas-hw",
        "linux thp perforated": "perforated",
        "linux thp perforated-lazy": "perforated-lazy",
        "linux 4k colt": "colt",
        "linux 4k amd-coalescing": "amd-coalescing",
        "linux thp range": "range-tlb",
        "linux thp perforated virtual": "nested-perforated",
        "linux 4k direct-segment virtual": "nested-direct-segment",
    }
    paths = write_designs(map(Combination.read, same), tmp_path)
    for text, preset in same.items():
        assert designs.diff(paths[Combination.read(text)], preset) == [], text


def test_every_scheme_and_placement_that_is_compared_has_a_preset(tmp_path):
    possible, _ = combine(PLACEMENTS, PAGES, SCHEMES, ENVIRONMENTS)
    paths = write_designs(possible, tmp_path)

    def kinds(names):
        resolved = [designs.resolve(name) for name in names]
        return {key for one in resolved for key in (*one["translation"], *one["placement"])}

    assert kinds(paths.values()) <= kinds(designs.names())


@pytest.mark.parametrize("text", ["linux", "linux 4k radix native x", "linux 8k radix", ""])
def test_a_combination_that_is_not_on_the_axes_is_refused(text):
    with pytest.raises(CombinationError, match=r"none of|is not"):
        Combination.read(text)


def test_bits_are_those_of_the_structures(tmp_path):
    # Entries as the machine's file has them, times the bits that docs/reference/costs.md lists.
    tlb = machines.resolve("skylake")["tlb"]
    small = sum(tlb[side]["4k"]["entries"] for side in ("l1d", "l1i"))
    huge = sum(tlb[side]["2m"]["entries"] for side in ("l1d", "l1i"))
    second = tlb["l2"][0]["entries"]
    slices = machines.resolve("skylake")["cache"]["shared"]["slices"]
    expected = {
        "linux 4k radix": (0, 0),
        "contiguitas 1g radix": (0, 0),
        "linux 4k direct-segment": (3 * 52, 0),
        "linux 4k direct-segment virtual": (3 * 52, 0),
        "linux thp perforated": (10 * second, 0),
        "linux thp gtsm": (64 * (huge + second), 0),
        "linux 4k colt": (4 * second, 0),
        "linux 4k amd-coalescing": (small + second, 0),
        "linux 4k arm-contiguous": (small + second, 0),
        "linux thp range": (32 * 130, 0),
        "contiguitas-hw thp radix": (0, 16 * 90 * slices),
    }
    combinations = {Combination.read(text): bits for text, bits in expected.items()}
    every = {*combinations, *(one.baseline for one in combinations)}
    paths = write_designs(every, tmp_path)
    options = RunOptions(memory="256MiB", detail="additive")
    cells = {Cell(path): one for one, path in paths.items()}
    found = run_cells(catalogue("tiny")["gups"], list(cells), options)
    measured = cross.measure("gups", {(cells[cell], "fresh"): one for cell, one in found.items()})
    bits = {one.combination: (one.bits_core, one.bits_llc) for one in measured}
    assert {one: bits[one] for one in combinations} == combinations
    for one in measured:
        assert one.cost == one.bits_core + one.bits_llc / slices
        assert one.figures["set_aside_mib"] >= 0
    set_aside = {one.combination: one.figures["set_aside_mib"] for one in measured}
    # Three quarters of memory are taken for the segment, and the program has a few of them.
    assert 150 < set_aside[Combination.read("linux 4k direct-segment")] < 192
    assert set_aside[Combination.read("linux 4k radix")] == 0


def measured(text, age, program, speed, cost=0):
    figures = dict.fromkeys([*cross.SUMS, "walk_share", "kernel_share"], 0.5)
    one = Combination.read(text)
    return cross.Measured(one, age, program, speed, speed, cost, 0, cost, figures)


def test_ranks_are_geometric_means_of_what_ran_everywhere():
    runs = [(age, program) for age in ("fresh", "full") for program in ("a", "b")]
    every = [measured("linux 4k radix", *run, 1.0) for run in runs]
    every += [
        measured("linux thp radix", *run, speed)
        for run, speed in zip(runs, (1, 4, 1, 0.25), strict=True)
    ]
    every += [measured("linux 4k colt", *run, 1.2, cost=10) for run in runs]
    every += [measured("linux thp gtsm", *run, 1.1, cost=20) for run in runs]
    every += [measured("linux 1g radix", *run, 9.0) for run in runs[:3]]
    every += [measured("linux 4k radix virtual", *run, 1.0, cost=99) for run in runs]
    ranked = cross.rank(every)
    names = [" ".join(one.combination[1:]) for one in ranked]
    assert "1g radix native" not in names
    assert names[:2] == ["4k colt native", "thp gtsm native"]
    huge = next(one for one in ranked if one.combination == Combination.read("linux thp radix"))
    assert huge.speed == pytest.approx(1.0)
    assert huge.by_age == {"fresh": pytest.approx(2.0), "full": pytest.approx(0.5)}
    assert huge.figures["page_faults"] == 2.0 and huge.figures["walk_share"] == 0.5
    # Each environment has a front of its own.
    on_front = {" ".join(one.combination[1:]) for one in ranked if one.on_front}
    assert on_front == {"4k radix native", "thp radix native", "4k colt native", "4k radix virtual"}


def test_a_run_without_its_baseline_is_not_compared():
    values = {"time": {"cycles": 1, "busy_cycles": 1, "breakdown": {"kernel": 0}}}
    assert cross.measure("a", {(Combination.read("linux thp radix"), "fresh"): values}) == []


def test_impossible_combinations_are_named_and_the_rest_goes_on(tmp_path):
    program: Program = catalogue("tiny")["gups"]
    options = RunOptions(memory="256MiB", detail="translation")
    bad = tmp_path / "bad.toml"
    bad.write_text('description = "x"\n[translation.base]\n[memory]\nmin_free = "300MiB"\n')
    cells = [Cell("linux-4k"), Cell(str(bad)), Cell("linux-thp", memory="5MiB")]
    failures: dict[Cell, str] = {}
    found = run_cells(program, cells, options, failures=failures)
    assert {*found, *failures} == {*cells} and Cell("linux-4k") in found
    assert failures and all(failures.values())
