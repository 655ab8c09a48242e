"""Failures of a kernel with Contiguitas that the stock kernel has not: make test-kernel-full.

Both are built from the same source with the same configuration. Hours of emulation: each test says
its verdict on the terminal.
"""

from __future__ import annotations

import pytest

from contigua_vm.building import built_kernel
from contigua_vm.catalogue import SUITES
from contigua_vm.suites import compare, kept_outcome
from contigua_vm.userland import userland


@pytest.mark.parametrize("name", SUITES)
def test_contiguitas_fails_no_test_that_the_stock_kernel_passes(name, capfd):
    def say(text):
        with capfd.disabled():
            print(f"\n  {text}", end="", flush=True)

    disk = userland(progress=say)
    outcomes = []
    for is_changed in (False, True):
        kernel = built_kernel("6.1", is_changed=is_changed, progress=say)
        say(f"Linux {kernel.release} {'with Contiguitas' if is_changed else 'as it comes'}")
        outcomes.append(
            kept_outcome(
                SUITES[name],
                kernel,
                disk,
                options="contiguitas=on" if is_changed else "",
                is_fresh=is_changed,
                progress=say,
            )
        )
    found = compare(*outcomes)
    assert not found.only_changed_failed, {
        test: outcomes[1].said.get(test) for test in found.only_changed_failed
    }
    assert not found.complaints
    # A suite in which nothing runs would say nothing.
    assert found.both_passed
