"""Verdicts of a comparison of two kernels, without a machine."""

from __future__ import annotations

import pytest

from contigua_vm.catalogue import SUITES
from contigua_vm.suites import DIED, FAILED, PASSED, SKIPPED, Outcome, compare, complaints

pytestmark = pytest.mark.short


def test_only_what_the_stock_kernel_passes_counts_against_the_changed_one():
    stock = Outcome({"a": PASSED, "b": FAILED, "c": FAILED, "d": SKIPPED, "e": PASSED})
    changed = Outcome({"a": PASSED, "b": PASSED, "c": DIED, "d": PASSED, "e": DIED})
    found = compare(stock, changed)
    assert found.both_passed == ["a"]
    assert found.only_stock_failed == ["b"]
    assert found.both_failed == ["c"]
    assert found.skipped == ["d"]
    assert found.only_changed_failed == ["e"]


def test_a_part_that_is_missing_has_failed():
    stock = Outcome({"whole 1": PASSED, "whole 2": PASSED})
    changed = Outcome({"whole 1": PASSED, "whole": DIED})
    assert compare(stock, changed).only_changed_failed == ["whole 2", "whole"]


def test_complaints_are_the_same_at_other_addresses_and_times():
    stock = Outcome(complaints=complaints("[  1.5] WARNING: at 0xffff8881 in x+0x12\nfine"))
    changed = Outcome(complaints=complaints("[  7.2] WARNING: at 0xffff9999 in x+0x12"))
    assert len(stock.complaints) == 1
    assert compare(stock, changed).complaints == []
    assert compare(Outcome(), changed).complaints != []


def test_names_of_tests_are_unique():
    for suite in SUITES.values():
        names = [test.name for test in suite.tests]
        assert len(set(names)) == len(names)
