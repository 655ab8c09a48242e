"""Claims of a verdict, checked against the counters of the reports that it is of.

The sentences are read again here, without the code that wrote them: every number in them must be
that of a counter, to the digits in which it is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Values = Mapping[str, Any]

SCALES = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
SIZES = {"MiB": 1.0, "GiB": 1024.0}
COUNT = r"[\d,]+(?:\.\d+)?(?: (?:thousand|million|billion|trillion))?"
SHARE = r"(?:under |over )?\d+(?:\.\d+)?(?: ± [\d.]+)? %"
TIME = r"[\d.e+]+ (?:ns|us|ms|s|min|h)\b"
SIZE = r"[\d,.]+ (?:MiB|GiB)"
NAME = r"[a-z0-9][a-z0-9-]*"


def value(text: str) -> tuple[float, float]:
    """Read a number: its value, and by how much it may be off as it is written."""
    number = re.match(r"[-+]?[\d,]+(?:\.(\d+))?(?:e[+-]?\d+)?", text)
    assert number, text
    unit = text[number.end() :].strip().split(" ")[0] if number.end() < len(text) else ""
    scale = {**SCALES, **TIMES, **SIZES, "%": 0.01}.get(unit, 1.0)
    found = float(number[0].replace(",", "")) * scale
    step = scale * 10.0 ** -len(number[1] or "")
    return found, 0.51 * step if unit not in TIMES else max(0.006 * abs(found), 0.51 * step)


def share(text: str) -> tuple[float, float]:
    """Read a share, with its interval left out; ``under`` and ``over`` are a tenth of a percent."""
    if text.startswith("under "):
        return 0.0, 0.0011
    if text.startswith("over "):
        return 1.0, 0.0011
    return value(re.sub(r" ± [\d.]+", "", text))


def near(text: str, wanted: float, read: Callable[[str], tuple[float, float]] = value) -> bool:
    """Return true if a number as written is a value."""
    found, off = read(text)
    return abs(found - wanted) <= off + 1e-9


class Claims:
    """Claims that are a counter's of some reports of one case.

    Parameters
    ----------
    reports
        A report of each design.
    seeds
        Seeds that they are means of; 0 for one.
    """

    def __init__(self, reports: Sequence[Values], seeds: int = 0) -> None:
        self.seeds = seeds
        self.runs = {report["config"]["design_name"]: report for report in reports}
        base = next((name for name in ("linux-4k", "nested-4k") if name in self.runs), None)
        self.base = base or next(iter(self.runs))

    def cycles(self, name: str) -> int:
        return int(self.runs[name]["time"]["cycles"])

    def part(self, name: str, part: str) -> float:
        """Cycles of a part of a run."""
        time = self.runs[name]["time"]
        kernel = time["breakdown"]["kernel"]
        if part == "kernel cycles":
            return float(kernel)
        translation = (time["translation_overhead"] or 0.0) * time["cycles"]
        if part == "translation overhead":
            return float(translation)
        if part == "other cycles of the program":
            return float(time["cycles"] - kernel - translation)
        return float(time["cycles"] - kernel)

    def walks(self, name: str) -> float:
        run = self.runs[name]
        walks = sum(run["translation"][f"walks_{size}"] for size in ("4k", "2m", "1g"))
        return float(1000 * walks / run["executed"]["instructions"])

    def kernel(self, name: str, key: str) -> int:
        return int(self.runs[name]["kernel"][key])

    def check(self, line: str) -> None:
        """Check every number of a line; one that no claim explains is a fault, too."""
        # A program's command is no claim.
        rest, subject = re.sub(r"^.*?(?= ended with | was )", "", line), self.base
        if match := re.match(rf"({NAME}) takes ", line):
            subject = match[1]
        for pattern, holds in self._claims(subject):
            while match := re.search(pattern, rest):
                assert holds(match), f"not what was counted: {match[0]!r} in {line!r}"
                rest = rest[: match.start()] + "#" + rest[match.end() :]
        for name in self.runs:
            rest = rest.replace(name, "")
        rest = re.sub(r"2 MB block|4 KB page|95 %|L2 TLB|per thousand", "", rest)
        assert not re.search(r"\d", rest), f"nobody counted {rest!r} in {line!r}"

    def _claims(self, subject: str) -> list[tuple[str, Callable[[re.Match[str]], bool]]]:
        runs = self.runs
        saved = self.cycles(self.base) - self.cycles(subject) if self._timed() else 0
        kernel = runs[subject]["kernel"]
        frames, scheme = runs[subject]["frames"], runs[subject]["translation_scheme"]
        seconds = 1e-6 / int(runs[self.base]["config"]["machine"]["clock"].removesuffix("MHz"))
        background = frames["background_compactions"] + frames["proactive_compactions"]
        splits = {
            "munmap": "splits_munmap",
            "mprotect": "splits_mprotect",
            "mremap": "splits_mremap",
            "madvise": "splits_madvise",
            "a fault": "splits_fault",
        }

        def change(name: str) -> float:
            return self.cycles(name) / self.cycles(self.base) - 1

        def counted(count: float) -> Callable[[re.Match[str]], bool]:
            return lambda match: near(match[1], count)

        return [
            # Which is fastest.
            (
                rf"({NAME}) is fastest: ({COUNT}) cycles, ({SHARE}) fewer than ({NAME}) "
                rf"\(({COUNT})\)",
                lambda m: (
                    near(m[2], self.cycles(m[1]))
                    and near(m[3], -change(m[1]), share)
                    and m[4] == self.base
                    and near(m[5], self.cycles(self.base))
                    and self.cycles(m[1]) == min(map(self.cycles, runs))
                ),
            ),
            (
                rf"No design is faster than ({NAME}) \(({COUNT}) cycles\)",
                lambda m: near(m[2], self.cycles(m[1])),
            ),
            (
                rf"within (?:{SHARE}) of ({NAME})'s ({COUNT}) cycles",
                lambda m: near(m[2], self.cycles(m[1])),
            ),
            (
                rf"({NAME}) takes ({COUNT}) cycles: ",
                lambda m: near(m[2], self.cycles(m[1])),
            ),
            (
                rf"({NAME}) takes ({COUNT}) cycles (fewer|more)",
                lambda m: near(m[2], abs(saved)) and (m[3] == "fewer") == (saved > 0),
            ),
            (
                rf"; ((?:{NAME})(?:(?:, | and )(?:{NAME}))*) takes? ({SHARE}) (fewer|more)",
                lambda m: all(
                    near(m[2], abs(change(name)), share) and (m[3] == "more") == (change(name) > 0)
                    for name in re.split(r", | and ", m[1])
                ),
            ),
            # Where the cycles are.
            (
                rf"(translation overhead|kernel cycles|other cycles of the program|cycles of the "
                rf"program) ([-+]{COUNT})",
                lambda m: near(m[2], self.part(subject, m[1]) - self.part(self.base, m[1])),
            ),
            (
                rf"translation overhead (up|down) from ({SHARE}) to ({SHARE}) of cycles",
                lambda m: all(
                    near(text, runs[name]["time"]["translation_overhead"], share)
                    for text, name in ((m[2], self.base), (m[3], subject))
                ),
            ),
            (
                r"L2 TLB misses (up|down) from ([\d.,]+)(?: ± [\d.]+)? to ([\d.,]+)(?: ± [\d.]+)?",
                lambda m: near(m[2], self.walks(self.base)) and near(m[3], self.walks(subject)),
            ),
            (
                rf"({SHARE}) translation overhead",
                lambda m: near(m[1], runs[subject]["time"]["translation_overhead"], share),
            ),
            (
                rf"({SHARE}) kernel cycles",
                lambda m: near(
                    m[1], self.part(subject, "kernel cycles") / self.cycles(subject), share
                ),
            ),
            (
                r"([\d.,]+) L2 TLB misses per thousand instructions",
                lambda m: near(m[1], self.walks(subject)),
            ),
            # Why.
            (
                rf"({COUNT}) huge-page faults found no free 2 MB block",
                counted(kernel["huge_page_fallbacks"]),
            ),
            (
                rf"with ({COUNT}|no) background compactions?",
                lambda m: near(m[1].replace("no", "0"), background),
            ),
            (rf"within ({TIME})(?=[;.])", lambda m: near(m[1], self.cycles(subject) * seconds)),
            (rf"({COUNT}) direct compactions", counted(frames["direct_compactions"])),
            (rf"({COUNT}) of the program's pages were moved", counted(kernel["pages_moved"])),
            (
                rf"({COUNT}) L2 TLB misses read which sub-pages",
                counted(scheme.get("bitmap_fills", 0)),
            ),
            (rf"({COUNT}) walked again", counted(scheme.get("hole_walks", 0))),
            (rf"({COUNT}) huge pages were split", counted(kernel["huge_page_splits"])),
            (
                rf"({COUNT}) by (munmap|mprotect|mremap|madvise|a fault)",
                lambda m: near(m[1], kernel[splits[m[2]]]),
            ),
            (
                rf"one access waited ({TIME}) for the kernel, the longest under ({NAME}) ({TIME})",
                lambda m: (
                    near(m[1], kernel["longest_stall_cycles"] * seconds)
                    and near(m[3], self.kernel(m[2], "longest_stall_cycles") * seconds)
                ),
            ),
            # Without times.
            (
                rf"({NAME}) walks page tables least, ([\d.,]+) times per thousand instructions; "
                rf"({NAME}) most, ([\d.,]+) times",
                lambda m: near(m[2], self.walks(m[1])) and near(m[4], self.walks(m[3])),
            ),
            # Memory.
            (
                rf"({SHARE}) of memory was free in whole 2 MB blocks",
                lambda m: (
                    near(m[1], self._free(self.base), share)
                    or any(near(m[1], self._free(name), share) for name in runs)
                ),
            ),
            (rf"\(({SHARE}) under ({NAME})\)", lambda m: near(m[1], self._free(m[2]), share)),
            (
                rf"({SHARE}) under ((?:{NAME})(?:(?:, | and )(?:{NAME}))*)(?=[;,.]| and)",
                lambda m: all(
                    near(m[1], runs[name]["residency"]["mean_huge_page_coverage"], share)
                    for name in re.split(r", | and ", m[2])
                    if name in runs
                ),
            ),
            (
                rf"mean huge-page coverage ({SHARE})",
                lambda m: near(m[1], runs[subject]["residency"]["mean_huge_page_coverage"], share),
            ),
            (
                rf"({SIZE}) under ({NAME})",
                lambda m: near(m[1], runs[m[2]]["residency"]["mean_resident_bytes"] / (1 << 20)),
            ),
            (r"Means of (\d+) seeds", lambda m: int(m[1]) == self.seeds),
            # Runs that were none.
            (
                r"ended with exit status (\d+)",
                lambda m: any(run["program"]["exit_status"] == int(m[1]) for run in runs.values()),
            ),
            (
                rf"({COUNT}) instructions were measured",
                lambda m: near(m[1], max(run["executed"]["instructions"] for run in runs.values())),
            ),
            (
                rf"only ({COUNT}) instructions",
                lambda m: near(m[1], min(run["executed"]["instructions"] for run in runs.values())),
            ),
        ]

    def _timed(self) -> bool:
        return all(run["time"] for run in self.runs.values())

    def _free(self, name: str) -> float:
        blocks = self.runs[name]["contiguity_before"]["blocks_2m"]
        return float(blocks["free"] / blocks["total"])
