"""Measures this computer, runs `contigua validate` on it, and writes the section in
docs/validation.md with its plot.

Half an hour; what is in contigua-results/ already is not run again (`--again` measures anew, and
`--stored` runs nothing).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any

from documents import replace

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "contigua-results" / "validate"
PICTURE = ROOT / "docs" / "pictures" / "validation.png"
#: Speed-ups above this are gains.
GAIN = 1.05
#: Shown parts of a measurement, by the key of the machine file.
SHOWN = {
    "clock": "clock",
    "cache.l2.latency_cycles": "L2",
    "cache.llc.latency_cycles": "last-level cache",
    "cache.llc.size": "last-level cache",
    "cache.memory_latency": "memory",
    "tlb.l1d.4k.entries": "L1 data TLB",
    "tlb.l2.0.entries": "L2 TLB",
    "tlb.l2.0.latency_cycles": "L2 TLB",
    "walk_cache.start_cycles": "a walk, beside its references",
    "walk in memory, 4k pages": "a walk over a large footprint, 4 KB pages",
    "walk in memory, 2m pages": "a walk over a large footprint, 2 MB pages",
    "core.miss_registers": "misses of independent loads at a time",
    "core.mispredict_penalty_cycles": "a misprediction, behind its branch",
    "kernel.page_fault_cycles": "page fault",
    "kernel.zero_2m_cycles": "zeroing 2 MB",
    "kernel.unmap_page_cycles": "munmap, a page",
    "kernel.protect_page_cycles": "mprotect, a page",
}


def contigua(*arguments: str) -> int:
    """Run a command of ours."""
    return subprocess.run([sys.executable, "-m", "contigua.cli", *arguments], cwd=ROOT).returncode


def machine_table(values: dict[str, Any]) -> list[str]:
    """Lines of the table of measurements, two in a row."""
    cells, repeats = [], set()
    for key, what in SHOWN.items():
        if (one := values["measured"].get(key)) is not None:
            shown = f"{one['value']:,.0f}" if one["value"] >= 20 else f"{one['value']:.2g}"
            cells.append(f"{what} | {shown} {one['unit']} | {100 * one['spread']:.0f} %")
            repeats.add(one["repeats"])
    half = (len(cells) + 1) // 2
    rounds = " to ".join(str(count) for count in sorted({min(repeats), max(repeats)}))
    return [
        f"| what, {rounds} rounds | measured | spread | what | measured | spread |",
        "|---|--:|--:|---|--:|--:|",
        *(
            f"| {left} | {right} |"
            for left, right in zip_longest(cells[:half], cells[half:], fillvalue="| |")
        ),
    ]


def program_table(values: dict[str, Any]) -> list[str]:
    """Lines of the table of programs."""
    lines = [
        "| program | speed-up with 2 MB pages, measured | predicted | error | CPU time, 4 KB, "
        "measured | predicted | error | 2 MB, measured | predicted | error |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in values["programs"]:
        cells = [one["name"] + ("" if one["concludes"] else " (varies)")]
        for size in ("speedup", "small", "huge"):
            unit = "" if size == "speedup" else " s"
            measured, predicted = one["native"][size]["value"], one["predicted"][size]
            cells += [f"{measured:.3f}{unit}", f"{predicted:.3f}{unit}"]
            cells.append(f"{100 * (predicted / measured - 1):+.0f} %")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def gaining(programs: list[dict[str, Any]]) -> str:
    """Say the error of the speed-up of programs that have one: others are easily predicted."""
    errors = [
        abs(one["predicted"]["speedup"] / one["native"]["speedup"]["value"] - 1)
        for one in programs
        if one["concludes"] and one["native"]["speedup"]["value"] > GAIN
    ]
    if not errors:
        return ""
    return (
        f"{len(errors)} programs gain more than {100 * (GAIN - 1):.0f} %: theirs is "
        f"{100 * median(errors):.1f} % median."
    )


def section(machine: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """Lines of the section."""
    computer, total, wanted = machine["computer"], values["summary"], values["targets"]
    kind = "a virtual machine on " if computer["virtual"] else ""
    pages = {
        "4k": "TLBs hold 4 KB parts of 2 MB pages: the host backs memory with small pages, so 2 MB "
        "pages shorten walks and do not extend reach.",
        "2m": "2 MB pages have TLB entries of their own.",
        None: "",
    }[values["host_page"]]
    lines = [
        f"Computer: {kind}{computer['name']} (family {computer['family']}, model "
        f"{computer['model']}); what is not measured is `{machine['base']}`'s. {pages}",
        "",
        *machine_table(machine),
        "",
    ]
    if total is not None:
        errors = {key: 100 * total[key] for key in total if key not in ("programs", "unsure")}
        lines += [
            f"{total['programs']} programs conclude, {total['unsure']} vary too much. Error of the "
            f"speed-up: {errors['speedup_median']:.1f} % median, {errors['speedup_worst']:.0f} % "
            f"worst (wanted: {100 * wanted['speedup_median']:.0f} % and "
            f"{100 * wanted['speedup_worst']:.0f} %); of CPU time: {errors['time_median']:.0f} % "
            f"median, {errors['time_worst']:.0f} % worst (wanted: {100 * wanted['time']:.0f} %). "
            + gaining(values["programs"]),
            "",
        ]
    return [
        *lines,
        *program_table(values),
        "",
        "![Predicted against measured](pictures/validation.png)",
    ]


def main() -> None:
    """Measure, validate, and write the section."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    own, data = FOLDER / "own.toml", FOLDER / "own-measured.json"
    anew = "--again" in sys.argv or not (own.exists() and data.exists())
    if anew and contigua("machines", "measure", "-o", str(own), "--json", str(data)):
        sys.exit(1)
    # It ends with 1 where a program failed: what is there is written all the same.
    more = ["--stored"] if "--stored" in sys.argv else []
    status = contigua("validate", "--machine", str(own), "-o", str(FOLDER), *more)
    values = json.loads((FOLDER / "validation.json").read_text())
    replace("validate", "validation.md", section(json.loads(data.read_text()), values))
    shutil.copyfile(FOLDER / "validation.png", PICTURE)
    sys.exit(status)


if __name__ == "__main__":
    main()
