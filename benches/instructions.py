"""Costs of branches and operations, measured on this computer and simulated.

The machine file is the one that benches/validate.py has measured. Writes the section in
docs/validation.md. A minute.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from documents import replace
from own_machine import gigahertz, simulated_cycles

ROUNDS = 40
#: Of some 40 us each.
MANY_ROUNDS = 20_000
#: Lengths of two simulated runs: their difference counts.
SIMULATED = (2, 6)
STEPS = 100_000
#: Addresses that differ in a higher bit are far.
NEAR, FAR = "36", "37"
#: Offsets at which blocks of eleven bytes begin in a line of code, or reach into the next one.
WITHIN, ACROSS = "32", "58"
#: Number of set bits of 256 random ones: the branch is predicted, or mispredicted every other time.
NEVER, ALWAYS, HALF = "0", "256", "128"
#: Kilobytes that are read at random: they fit into the first level, or into the second.
READ = (8, 64, 256)
#: Steps of the loops.
OPERATIONS = {
    "four shifts by a constant": "shifts",
    "four `sete`": "selects",
    "two of each": "both",
    "four `movq` from vector to general registers": "transfers",
    "four `comisd`": "compares",
    "`movq` to a vector register and back, dependent": "there",
    "`cvtsi2sd` and `cvttsd2si`, dependent": "converts",
    "two `cvtsi2sd`": "apart",
    "eight additions": "wide",
    "an addition and three copies of registers, dependent": "copies",
    "four multiplications, and shifts of their results": "multiplies",
    "a bit of an edge of `bfs`": "draw",
}


def main() -> None:
    """Measure, print and write."""
    clock = gigahertz()
    with tempfile.TemporaryDirectory() as name:
        program = Path(name) / "instructions"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-O2", "-Wall", "-o", program, source], check=True)

        def measured(kind: str, number: str) -> float:
            command = [str(program), kind, number, str(ROUNDS)]
            return float(subprocess.check_output(command, text=True).split()[0]) * clock

        def simulated(kind: str, number: str) -> float:
            command = [str(program), kind, number]
            cycles = simulated_cycles(command, SIMULATED, "linux-4k")
            return cycles / (SIMULATED[1] - SIMULATED[0]) / STEPS

        lines = []
        for what, kind, number in (
            ("a jump through a register, and back by another one", "jump", NEAR),
            ("the same between addresses that differ in bit 37", "jump", FAR),
            ("a call through a register, and its return", "call", NEAR),
            ("the same between addresses that differ in bit 37", "call", FAR),
        ):
            # The loop's own branch takes a cycle.
            cells = [f"{of(kind, number) - 1:.1f}" for of in (measured, simulated)]
            lines.append(f"| {what} | {' | '.join(cells)} |")
        for what, number in (
            ("a block of two additions and a jump within 64 bytes", WITHIN),
            ("the same across the border of two lines", ACROSS),
        ):
            cells = [f"{of('blocks', number):.1f}" for of in (measured, simulated)]
            lines.append(f"| {what} | {' | '.join(cells)} |")
        cells = []
        for of in (measured, simulated):
            even = (of("random", NEVER) + of("random", ALWAYS)) / 2
            cells.append(f"{2 * (of('random', HALF) - even):.1f}")
        lines.append(f"| a branch on random bits, a misprediction | {' | '.join(cells)} |")
        for what, kind in OPERATIONS.items():
            cells = [f"{of(kind, '0'):.1f}" for of in (measured, simulated)]
            lines.append(f"| {what} | {' | '.join(cells)} |")
        for kilobytes in READ:
            cells = [f"{of('reads', str(kilobytes)):.1f}" for of in (measured, simulated)]
            lines.append(f"| a random read of {kilobytes} KB | {' | '.join(cells)} |")
        command = [str(program), "wide", "0", str(MANY_ROUNDS)]
        slow = float(subprocess.check_output(command, text=True).split()[1])
    print("\n".join(lines))
    head = ["| cycles of | measured | simulated |", "|---|--:|--:|"]
    said = (
        f"Measured: the fastest of {ROUNDS} rounds. Of {MANY_ROUNDS:,} rounds of eight additions, "
        f"{100 * slow:.0f} % took half as long again."
    )
    replace("instructions", "validation.md", [*head, *lines, "", said])


if __name__ == "__main__":
    main()
