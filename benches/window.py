"""Size of a core's window behind a load that misses, measured on this computer.

Beside it, what the machine file has that benches/validate.py has measured. Writes the section in
docs/validation.md. A minute.
"""

from __future__ import annotations

import subprocess
import tempfile
import tomllib
from pathlib import Path
from statistics import median

from documents import replace
from own_machine import MACHINE

ROUNDS = 5
#: Held resources, the program's word for each, and the key of the machine file's `core`.
KINDS = (
    ("operations without a result", "operations", "window"),
    ("results in general registers", "results", "general_registers"),
    ("a constant and a `mul`, in three of these", "products", "general_registers"),
    ("results in vector registers", "vectors", "vector_registers"),
    ("loads", "loads", "load_buffer"),
    ("stores", "stores", "store_buffer"),
)
#: Operations that take more than one of them.
REGISTERS = {"products": 3}


def main() -> None:
    """Measure, print and write."""
    core = tomllib.loads(MACHINE.read_text())["core"]
    rows = ["| held behind a load | measured | range | machine file |", "|---|--:|--:|--:|"]
    with tempfile.TemporaryDirectory() as name:
        program = Path(name) / "window"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-O2", "-Wall", "-o", program, source], check=True)
        for what, kind, key in KINDS:
            found = [int(subprocess.check_output([program, kind])) for _ in range(ROUNDS)]
            cells = f"{median(found):.0f} | {min(found)} to {max(found)}"
            held = core[key] // REGISTERS.get(kind, 1)
            rows.append(f"| {what} | {cells} | {held} |")
            print(rows[-1], flush=True)
    replace("window", "validation.md", rows)


if __name__ == "__main__":
    main()
