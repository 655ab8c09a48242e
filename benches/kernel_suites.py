"""Run suites of tests on the stock kernel and on the one with Contiguitas; write docs/kernel.md.

    benches/kernel_suites.py [SUITES...] [--fresh]

What has run on the very same kernels is not run again, unless --fresh. Suites that are not named
stay out of the table.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from documents import replace, rows

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "vm-tests"))

from contigua_vm import VmError
from contigua_vm.building import built_kernel
from contigua_vm.catalogue import SUITES
from contigua_vm.suites import Comparison, compare, kept_outcome
from contigua_vm.userland import userland

HEADS = [
    *("suite", "tests", "passed on both", "not for this machine", "failed on both"),
    *("only on stock", "only on the changed one", "warnings of the changed one alone"),
]


def say(text: str) -> None:
    print(text, flush=True)


def run(name: str, is_fresh: bool) -> Comparison:
    disk = userland(progress=say)
    outcomes = []
    for is_changed in (False, True):
        kernel = built_kernel("6.1", is_changed=is_changed, progress=say)
        options = "contiguitas=on" if is_changed else ""
        say(f"{name} on Linux {kernel.release}, {options or 'as it comes'}")
        suite = SUITES[name]
        outcomes.append(
            kept_outcome(suite, kernel, disk, options=options, is_fresh=is_fresh, progress=say)
        )
    return compare(*outcomes)


def lines(found: dict[str, Comparison]) -> list[str]:
    table, notes = [], []
    for name, one in found.items():
        groups = (
            *(one.both_passed, one.skipped, one.both_failed),
            *(one.only_stock_failed, one.only_changed_failed),
        )
        counts = [len(group) for group in groups]
        table.append([SUITES[name].name, *map(str, [sum(counts), *counts, len(one.complaints)])])
        for what, group in (
            ("failed on both", one.both_failed),
            ("failed on the stock kernel only", one.only_stock_failed),
            ("failed on the changed kernel only", one.only_changed_failed),
            ("said by the changed kernel only", one.complaints),
        ):
            if group:
                notes.append(f"{SUITES[name].name}, {what}: {', '.join(group)}.")
    return [*rows({"heads": HEADS, "rows": table}), "", *notes]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--fresh", action="store_true", help="run again what has run")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.suites if name not in SUITES]
    if unknown:
        parser.error(f"no suite {', '.join(unknown)}; there are {', '.join(SUITES)}")
    try:
        found = {name: run(name, arguments.fresh) for name in arguments.suites or SUITES}
    except VmError as error:
        print(f"kernel_suites: {error}", file=sys.stderr)
        return 1
    replace("kernel-suites", "kernel.md", lines(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
