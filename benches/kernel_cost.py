"""Measure what Contiguitas costs where memory is plenty, and write the tables into docs/kernel.md.

    benches/kernel_cost.py [SERIES]

Builds the kernels where they are not in the cache (`make kernel`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from documents import replace, rows

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "vm-tests"))

from contigua_vm import VmError
from contigua_vm.building import built_kernel
from contigua_vm.cost import Cost, measure

KINDS = {
    "0": "4 KB, again and again",
    "0_batch": "1,024 of 4 KB, then their frees",
    "0_bulk": "256 of 4 KB in one call, then their frees",
    "2": "16 KB, again and again",
    "2_batch": "512 of 16 KB, then their frees",
    "4": "four of 64 KB, then their frees",
    "9": "eight of 2 MB, then their frees",
}
OPERATIONS = {
    "fault": "touch 1 MiB of new memory page by page, and unmap it",
    "process": "fork, exit and wait",
    "pipe": "make a pipe, fill it, close it",
    "file": "write 1 MiB into a file of a tmpfs, and remove it",
}


def table(
    head: str, what: dict[str, str], of: Callable[[Cost], dict[str, float]], costs: list[Cost]
) -> list[str]:
    """Return a table with a line for each operation."""
    lines = []
    for name, text in what.items():
        stock, off, on = (of(cost)[name] for cost in costs)
        line = [text, f"{stock:,.0f}"]
        line += [f"{each:,.0f} ({100 * (each / stock - 1):+.1f} %)" for each in (off, on)]
        lines.append(line)
    return rows({"heads": [head, "stock", "disabled", "enabled"], "rows": lines})


def both(unmovable: str, movable: str) -> str:
    """Join two rows of tables that have the same first cell."""
    (what, *left), (_, *right) = (row[2:-2].split(" | ") for row in (unmovable, movable))
    cells = (f"{one} / {other}" for one, other in zip(left, right, strict=True))
    return f"| {' | '.join([what, *cells])} |"


def lines(costs: list[Cost]) -> list[str]:
    """Return the table as Markdown, of the stock kernel, of ours, and of ours with a border."""
    sides = [
        table(
            "allocation and free: unmovable / movable; operation",
            {f"{side}_{kind}": text for kind, text in KINDS.items()},
            lambda cost: cost.allocations,
            costs,
        )
        for side in ("unmovable", "movable")
    ]
    return [
        *sides[0][:2],
        *(both(*pair) for pair in zip(*(side[2:] for side in sides), strict=True)),
        *table("", OPERATIONS, lambda cost: cost.operations, costs)[2:],
    ]


def main() -> None:
    """Run the command."""
    series = sys.argv[1] if len(sys.argv) > 1 else "6.1"
    try:
        plain, changed = (
            built_kernel(series, is_changed=is_changed, progress=print)
            for is_changed in (False, True)
        )
        costs = [measure(plain), measure(changed), measure(changed, "contiguitas=on")]
    except VmError as error:
        sys.exit(f"kernel_cost: {error}")
    replace("kernel-cost", "kernel.md", lines(costs))


if __name__ == "__main__":
    main()
