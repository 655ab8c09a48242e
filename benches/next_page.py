"""Pages that are read in order, beside pages in any order: do prefetchers go on in the next page?

Measured on this computer and simulated on the machine file that benches/validate.py has measured;
writes the section in docs/validation.md. A minute.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from documents import replace
from own_machine import gigahertz, simulated_cycles

MEGABYTES = 64
ROUNDS = 15
#: Lengths of two simulated runs: their difference counts.
SIMULATED = (1, 3)
SCHEMES = {"small": "base", "huge": "thp"}


def simulated(program: Path, folder: Path, size: str, order: str) -> float:
    """Return the cycles of a page."""
    design = folder / f"{size}.toml"
    thp = 'enabled = "madvise"\n' if size == "huge" else ""
    scheme = f"[translation.{SCHEMES[size]}]\n{thp}[host.translation.base]\n"
    design.write_text(f'description = "{size} pages"\n{scheme}')
    command = [str(program), str(MEGABYTES), size, order]
    cycles = simulated_cycles(command, SIMULATED, str(design))
    pages = (SIMULATED[1] - SIMULATED[0]) * MEGABYTES * 256
    return cycles / pages


def main() -> None:
    """Measure, print and write."""
    clock = gigahertz()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "next_page"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-O2", "-Wall", "-o", program, source], check=True)
        for size, words in (("small", "4 KB"), ("huge", "2 MB")):
            cells = []
            for order in ("order", "any"):
                command = [str(program), str(MEGABYTES), size, order, str(ROUNDS)]
                ns = float(subprocess.check_output(command, text=True).split()[0])
                cells += [f"{ns:.0f}", f"{simulated(program, folder, size, order) / clock:.0f}"]
            rows.append(f"| {words} | {' | '.join(cells)} |")
            print(rows[-1], flush=True)
    head = [
        "| pages | ns a page in order, measured | simulated | in any order, measured | simulated |",
        "|---|--:|--:|--:|--:|",
    ]
    replace("next-page", "validation.md", [*head, *rows])


if __name__ == "__main__":
    main()
