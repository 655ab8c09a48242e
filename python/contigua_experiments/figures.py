"""A figure of an experiment, and the verdict on its value.

Each figure has a class, which its experiment's file names and which decides what can be said:

- *compared* with a number or range that a paper prints (``numbers.toml``), within a tolerance on
  both sides that was fixed before the run; the interval of ours is part of the judgment;
- *same shape*: the order or sign of a series, or a value within a factor of two;
- *own*: a property that we require, which no paper prints;
- *by construction*: an input or arithmetic, which cannot fail: a unit test's business;
- *fitted*: used to choose inputs.

Only compared figures count in the account of what is reproduced.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from contigua.errors import ContiguaError
from contigua_experiments.numbers import number

FigureClass = Literal["compared", "same shape", "own", "by construction", "fitted"]
Verdict = Literal[
    "within tolerance",
    "same shape",
    "cannot tell",
    "differs",
    "holds",
    "fails",
    "by construction",
    "fitted",
    "no data",
]

#: Verdicts, in the order in which they are told.
VERDICTS: tuple[Verdict, ...] = (
    "within tolerance",
    "same shape",
    "cannot tell",
    "differs",
    "holds",
    "fails",
    "no data",
    "by construction",
    "fitted",
)
#: A value has the paper's shape within this factor.
SHAPE_FACTOR = 2.0
#: Above this share, in percent, the factor is that of what is left to 100 %: 99.98 and 99.9 % are
#: a factor of five apart.
NEARLY_ALL = 90.0


class FigureError(ContiguaError):
    """A figure of an experiment's file is not well formed."""


@dataclass(frozen=True)
class Figure:
    """A figure of an experiment.

    Attributes
    ----------
    key
        Its name among the values that the computation returns.
    label
        What it is.
    kind
        Its class (``class`` in the file).
    paper
        Ends of the printed range; equal for one value, ``None`` where no paper prints one.
    number
        The printed number's name in ``numbers.toml``; empty where no paper prints one.
    tolerance
        How far off the printed value or range still counts as the paper's, in the unit; of
        compared and fitted figures.
    require
        Limits, of own figures and those of the same shape.
    series
        Compared figures of one series whose order has to be the paper's for "same shape".
    neutral
        What a compared figure is without the mechanism, such as 100 % of a control group: its
        shape is that of the difference.
    source
        Where the paper says so, or why we require it.
    unit
        ``"%"`` or nothing.
    decimals
        Digits shown.
    why
        Why a figure is true by construction.
    differs
        Why ours is another, where it is known; shown unless the verdict is good.
    """

    key: str
    label: str
    kind: FigureClass
    source: str
    paper: tuple[float, float] | None = None
    number: str = ""
    tolerance: float = 0.0
    require: tuple[float, float] = (-math.inf, math.inf)
    series: str = ""
    neutral: float | None = None
    unit: str = ""
    decimals: int = 1
    why: str = ""
    differs: str = ""

    @staticmethod
    def read(values: Mapping[str, Any]) -> Figure:
        """Read a ``[[figures]]`` table of an experiment's file.

        Raises
        ------
        FigureError
            When its class lacks what it needs, or has what it must not.
        NumbersError
            When no paper prints the number that it names.
        """
        rest = dict(values)
        key = rest.get("key")
        kind = rest.pop("class", None)
        needs, may = _KEYS.get(kind, (None, None)) if isinstance(kind, str) else (None, None)
        if needs is None or may is None:
            raise FigureError(f"{key}: class is {kind!r}, not one of {', '.join(_KEYS)}")
        given = rest.keys() - _COMMON
        if lacking := needs - given:
            raise FigureError(f"{key}: {kind} needs {', '.join(sorted(lacking))}")
        if extra := given - needs - may:
            raise FigureError(f"{key}: {kind} has no {', '.join(sorted(extra))}")
        low, high = rest.pop("at_least", None), rest.pop("at_most", None)
        if kind in ("own", "same shape") and low is None and high is None:
            raise FigureError(f"{key}: {kind} needs at_least or at_most")
        paper = None
        if "number" in rest:
            one = number(rest["number"])
            paper = (one.low, one.high)
        elif "paper" in rest:
            paper = (float(rest["paper"]),) * 2
        rest.pop("paper", None)
        require = (-math.inf if low is None else low, math.inf if high is None else high)
        found = Figure(kind=kind, paper=paper, require=require, **rest)
        if paper is not None and found.neutral is not None:
            apart = max(paper[0] - found.neutral, found.neutral - paper[1])
            if apart <= found.tolerance:
                raise FigureError(f"{key}: its tolerance reaches to neutral: it could not fail")
        return found

    def judge(self, ours: float | None, margin: float = 0.0) -> Verdict:
        """Judge our value, whose 95 % interval is ``margin`` to either side."""
        if self.kind in ("by construction", "fitted"):
            return self.kind
        if ours is None or math.isnan(ours):
            return "no data"
        if self.paper is not None and self.kind == "compared":
            return self._compare(ours, margin, self.paper)
        inside = self.require[0] <= ours <= self.require[1]
        if self.kind == "own":
            return "holds" if inside else "fails"
        return "same shape" if inside else "differs"

    def needs_reason(self, verdict: Verdict) -> bool:
        """Return whether a reader should be told why the verdict is not a better one."""
        if self.kind == "compared":
            return verdict != "within tolerance"
        return verdict in ("differs", "fails", "no data")

    def _compare(self, ours: float, margin: float, paper: tuple[float, float]) -> Verdict:
        slack = self.tolerance + 1e-9
        low, high = paper[0] - slack, paper[1] + slack
        if low <= ours - margin and ours + margin <= high:
            return "within tolerance"
        if ours + margin >= low and ours - margin <= high:
            # An interval that reaches over an end of the tolerance decides nothing.
            return "cannot tell" if margin > 0 else "within tolerance"
        nearest = min(max(ours, paper[0]), paper[1])
        if self.neutral is None:
            is_alike = _within_factor(ours, nearest, self.unit)
        else:
            is_alike = _within_factor(ours - self.neutral, nearest - self.neutral, "")
        return "same shape" if is_alike else "differs"

    def show(self, value: float | None) -> str:
        """Write a value with its unit."""
        if value is None:
            return "-"
        return f"{value:.{self.decimals}f}" + (f" {self.unit}" if self.unit else "")

    def show_wanted(self) -> str:
        """Write what ours is judged by: the paper's value or range, or our limits."""
        if self.paper is not None:
            low, high = self.paper
            return (
                self.show(low) if low == high else f"{low:.{self.decimals}f} to {self.show(high)}"
            )
        low, high = self.require
        if math.isinf(low):
            return "-" if math.isinf(high) else f"≤ {self.show(high)}"
        if math.isinf(high):
            return f"≥ {self.show(low)}"
        return f"{low:.{self.decimals}f} to {self.show(high)}"


_COMMON = {"key", "label", "source", "unit", "decimals", "differs"}
#: Keys that each class needs, and those that it may have.
_KEYS: dict[str, tuple[set[str], set[str]]] = {
    "compared": ({"number", "tolerance"}, {"series", "neutral"}),
    "same shape": (set(), {"at_least", "at_most"}),
    "own": (set(), {"at_least", "at_most"}),
    "by construction": ({"why"}, set()),
    "fitted": ({"tolerance"}, {"number", "paper"}),
}


def _within_factor(ours: float, paper: float, unit: str) -> bool:
    if unit == "%" and NEARLY_ALL < paper <= 100.0:
        ours, paper = 100.0 - ours, 100.0 - paper
    if paper == 0 or ours == 0 or (ours > 0) != (paper > 0):
        return False
    return 1 / SHAPE_FACTOR <= ours / paper <= SHAPE_FACTOR


@dataclass(frozen=True)
class Judged:
    """Figures with their values and verdicts, in the order of the experiment's file."""

    figures: Sequence[Figure]
    values: Mapping[str, float | None]
    margins: Mapping[str, float] = field(default_factory=dict)

    def verdicts(self) -> list[Verdict]:
        """Return a verdict for each figure.

        A figure of a series has the same shape only where all values of the series are in the
        paper's order.
        """
        found = []
        for figure in self.figures:
            one = figure.judge(self.values.get(figure.key), self.margins.get(figure.key, 0.0))
            if one == "same shape" and figure.series and not self._in_order(figure.series):
                one = "differs"
            found.append(one)
        return found

    def _in_order(self, series: str) -> bool:
        pairs = [
            (one.paper[0], ours)
            for one in self.figures
            if one.series == series
            and one.paper is not None
            and (ours := self.values.get(one.key)) is not None
        ]
        pairs.sort()
        return all(
            before[1] <= after[1] or before[0] == after[0]
            for before, after in itertools.pairwise(pairs)
        )
