"""The guard on stock kernels in virtual machines, beside the same kernels without it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contigua.experiments.base import Context, Outcome, Sheet
from contigua.experiments.running import ProgramError

if TYPE_CHECKING:
    from contigua.page import Page

#: Where the harness is in a source checkout.
HARNESS = Path(__file__).resolve().parents[3] / "vm-tests"


def harness() -> tuple[Any, Any]:
    """Return the harness of the virtual machines and its scenario.

    Raises
    ------
    ProgramError
        When it is not there, or the host lacks something; the message says what.
    """
    if not (HARNESS / "contigua_vm").is_dir():
        raise ProgramError(
            f"the virtual machines' harness is not at {HARNESS}; run this from a source checkout "
            "(pip install -e .)"
        )
    if str(HARNESS) not in sys.path:
        sys.path.insert(0, str(HARNESS))
    machines = importlib.import_module("contigua_vm")
    missing = machines.missing_requirement()
    if missing is not None:
        raise ProgramError(f"no virtual machines here: {missing}")
    return machines, importlib.import_module("contigua_vm.scenario")


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run the scenario on each kernel, without the guard and with it."""
    machines, scenario = harness()
    kernels = inputs["kernels"]
    demand = {key: inputs[key] for key in ("resident_mib", "burst_mib", "rate_mib")}
    pairs = []
    notes = []
    for index, version in enumerate(kernels):
        runs = []
        for is_guarded in (False, True):
            try:
                runs.append(scenario.live(is_guarded, version=version, **demand))
            except machines.VmError as error:
                raise ProgramError(f"Linux {version}: {error}") from error
            if context.progress is not None:
                context.progress((index + len(runs) / 2) / len(kernels))
        without, guarded = runs
        pairs.append((without, guarded))
        restored = "every" if guarded.restored else "not every"
        notes.append(
            f"Linux {guarded.kernel}: at the end, guard release brought {restored} block back."
        )
    return Outcome(
        values=figures(pairs),
        illustrate=lambda page: _illustrate(page, pairs),
        notes=notes,
        sheets=[table(pairs)],
    )


def figures(pairs: list[tuple[Any, Any]]) -> dict[str, float | None]:
    """Return the worst of all kernels for each figure."""

    def gain(without: Any, guarded: Any) -> float:  # noqa: ANN401 (the harness is imported late)
        more: float = guarded.huge_pages / max(without.huge_pages, 1) - 1
        return 100.0 * more

    return {
        "gigantic_without": max(without.gigantic_pages for without, _ in pairs),
        "gigantic_with": min(guarded.gigantic_pages for _, guarded in pairs),
        "huge_gain": min(gain(*pair) for pair in pairs),
        "unmovable_without": min(without.unmovable_blocks for without, _ in pairs),
        "unmovable_with": max(guarded.unmovable_blocks for _, guarded in pairs),
        "in_movable": max(guarded.unmovable_in_movable for _, guarded in pairs),
        "moved_up": min(guarded.moved_up for _, guarded in pairs),
        "moved_down": min(guarded.moved_down for _, guarded in pairs),
    }


def table(pairs: list[tuple[Any, Any]]) -> Sheet:
    """Return both runs' figures of each kernel in one table."""
    rows = []
    for pair in pairs:
        for name, run in zip(("without", "with"), pair, strict=True):
            has_guard = name == "with"
            rows.append(
                [
                    run.kernel,
                    name,
                    f"{run.huge_pages} of {run.memory_mib // 2}",
                    str(run.gigantic_pages),
                    f"{run.unmovable_mib:.0f} MiB",
                    f"{run.unmovable_blocks:.1f} %",
                    str(run.unmovable_in_movable) if has_guard else "-",
                    f"{run.moved_up} / {run.moved_down}" if has_guard else "-",
                    f"{run.given_up} / {run.refused}" if has_guard else "-",
                ]
            )
    heads = [
        *("kernel", "guard", "2 MB pages", "1 GB pages", "unmovable", "blocks with it"),
        *("frames in Movable", "blocks up / down", "given up / refused"),
    ]
    return Sheet("Both runs", heads, rows)


def _illustrate(page: Page, pairs: list[tuple[Any, Any]]) -> None:
    from contigua.pictures import bars_picture

    bars: dict[str, list[float]] = {"without": [], "with the guard": []}
    for pair in pairs:
        for values, run in zip(bars.values(), pair, strict=True):
            values.append(run.unmovable_blocks)
    kernels = [without.kernel for without, _ in pairs]
    page.picture(
        bars_picture(kernels, bars, "Blocks of 2 MB with unmovable memory", "%"),
        "For each kernel, blocks with unmovable memory without the guard and with it",
    )
    for _, guarded in pairs:
        page.heading(f"What the guard said on Linux {guarded.kernel}")
        for line in guarded.log.splitlines():
            page.text(line)
