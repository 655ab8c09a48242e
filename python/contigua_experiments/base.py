"""Structure of an experiment: inputs, computation, and figures with verdicts (:mod:`.figures`)."""

from __future__ import annotations

import difflib
import importlib
import json
import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from contigua import _engine
from contigua.errors import ContiguaError
from contigua.files import FileError, write_whole
from contigua.kept import Kept
from contigua.schemas import EXPERIMENT
from contigua_experiments.breaks import Break
from contigua_experiments.figures import VERDICTS, Figure, FigureClass, Judged, Verdict

if TYPE_CHECKING:
    from contigua.page import Page

Scale = Literal["quick", "full"]


class ExperimentError(ContiguaError):
    """An experiment that does not exist, or whose file is not well formed."""


@dataclass(frozen=True)
class Definition:
    """An experiment's file.

    Attributes
    ----------
    name
        What the command calls it.
    title, source, needs
        For people: what it shows, which paper, what it needs beside time.
    durations
        How long each scale takes.
    inputs
        What the computation is given at each scale.
    figures
        Its figures, each with the class that decides its verdict.
    fitting
        What was fitted to what, and how.
    reproduces
        The figures and tables that it repeats, as ``papers.toml`` calls them.
    apart
        Why ``run all --quick`` leaves it out unless it is named; empty for what it runs.
    breaks
        The ways to take its mechanism out, and the figures that must notice.
    """

    name: str
    title: str
    source: str
    needs: str
    fitting: str
    durations: dict[str, str]
    inputs: dict[str, dict[str, Any]]
    figures: tuple[Figure, ...]
    reproduces: tuple[str, ...] = ()
    apart: str = ""
    breaks: tuple[Break, ...] = ()

    @staticmethod
    def read(name: str, known: Sequence[str]) -> Definition:
        """Read an experiment's file from the package."""
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ExperimentError(
                f"no experiment is called {name!r}{hint} (there are {', '.join(known)})"
            )
        file = resources.files("contigua_experiments") / f"{name.replace('-', '_')}.toml"
        try:
            values = tomllib.loads(file.read_text())
            figures = tuple(Figure.read(one) for one in values["figures"])
            shared = values.get("inputs", {})
            scales = {scale: {**shared, **values[scale]} for scale in ("quick", "full")}
            return Definition(
                name=name,
                title=values["title"],
                source=values["source"],
                needs=values["needs"],
                fitting=values["fitting"],
                durations={scale: str(each.pop("duration")) for scale, each in scales.items()},
                inputs=scales,
                figures=figures,
                reproduces=tuple(values.get("reproduces", ())),
                apart=values.get("apart", ""),
                breaks=tuple(Break.read(one) for one in values.get("breaks", ())),
            )
        except (ContiguaError, OSError, ValueError, KeyError, TypeError) as error:
            raise ExperimentError(f"{file.name}: {error}") from error


@dataclass(frozen=True)
class Context:
    """Context of a computation beside its inputs.

    Attributes
    ----------
    folder
        Where it may keep files.
    jobs
        Servers at a time; by default one for each processor.
    progress
        To be called with the part that is done, 0 to 1.
    kept
        Has the parts that an interrupted computation finished, and takes those of this one.
    """

    folder: Path
    jobs: int | None = None
    progress: Callable[[float], None] | None = None
    kept: Kept = field(default_factory=Kept)


@dataclass(frozen=True)
class Sheet:
    """A table that is printed and stands on the page: a title, heads, and rows of text.

    The account of all experiments has the columns ``kept``, too.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    kept: Sequence[str] = ()


@dataclass(frozen=True)
class Outcome:
    """Result of a computation.

    Attributes
    ----------
    values
        Our value for each figure's key; ``None`` where there is nothing to compute it from.
    margins
        Half of the 95 % interval around a value that comes from a sample of servers.
    illustrate
        Adds pictures and tables to the page.
    notes
        What a reader should know.
    sheets
        Tables beside that of the figures.
    """

    values: dict[str, float | None]
    illustrate: Callable[[Page], None]
    margins: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    sheets: list[Sheet] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    """An experiment that has run."""

    definition: Definition
    scale: Scale
    inputs: dict[str, Any]
    outcome: Outcome

    HEADS = ("figure", "paper or limit", "ours", "±", "tolerance", "class", "verdict")

    def judged(self) -> list[tuple[Figure, Verdict]]:
        """Return each figure with its verdict."""
        outcome, figures = self.outcome, self.definition.figures
        verdicts = Judged(figures, outcome.values, outcome.margins).verdicts()
        return list(zip(figures, verdicts, strict=True))

    def rows(self) -> list[list[str]]:
        """Return one row of text for each figure, as :attr:`HEADS` names the columns."""
        return [
            [
                figure.label,
                figure.show_wanted(),
                figure.show(self.outcome.values.get(figure.key)),
                figure.show(self.outcome.margins.get(figure.key)),
                figure.show(figure.tolerance) if figure.kind in ("compared", "fitted") else "-",
                figure.kind,
                verdict,
            ]
            for figure, verdict in self.judged()
        ]

    def reasons(self) -> list[tuple[str, str]]:
        """Return the label of each figure that is off, and why, where it is known."""
        return [
            (figure.label, figure.differs)
            for figure, verdict in self.judged()
            if figure.differs and figure.needs_reason(verdict)
        ]

    def verdicts(self, kind: FigureClass | None = None) -> dict[Verdict, int]:
        """Count the verdicts that can fail, of all classes or of one."""
        counts: dict[Verdict, int] = {}
        for figure, verdict in self.judged():
            if figure.kind not in ("by construction", "fitted") and kind in (None, figure.kind):
                counts[verdict] = counts.get(verdict, 0) + 1
        return {verdict: counts[verdict] for verdict in VERDICTS if verdict in counts}

    def summary(self) -> str:
        """Say in sentences how the figures fared."""
        compared = self.verdicts("compared")
        others = {key: n for key, n in self.verdicts().items() if n != compared.get(key, 0)}
        others = {key: n - compared.get(key, 0) for key, n in others.items()}
        told = "No figure here is compared with a printed number. "
        if compared:
            told = f"Compared with printed numbers: {_counted(compared)}. "
            if self.scale == "quick":
                told = "A smoke test: no claim about a paper, which takes --full. " + told
        if others:
            told += f"Other claims: {_counted(others)}. "
        if "cannot tell" in compared:
            told += "Where it cannot tell, the interval reaches over an end of the tolerance. "
        return told + "Figures that are fitted or true by construction are no results."

    def to_json(self) -> str:
        """Return everything as JSON, the same bytes for the same inputs."""
        figures = [
            {
                "key": figure.key,
                "label": figure.label,
                "class": figure.kind,
                "number": figure.number or None,
                "paper": list(figure.paper) if figure.paper else None,
                "ours": self.outcome.values.get(figure.key),
                "margin": self.outcome.margins.get(figure.key),
                "tolerance": figure.tolerance if figure.number else None,
                "at_least": _finite(figure.require[0]),
                "at_most": _finite(figure.require[1]),
                "unit": figure.unit,
                "why": figure.why,
                "differs": figure.differs,
                "verdict": verdict,
                "source": figure.source,
            }
            for figure, verdict in self.judged()
        ]
        whole = {
            "schema": EXPERIMENT,
            "experiment": self.definition.name,
            "scale": self.scale,
            "version": _engine.VERSION,
            "inputs": self.inputs,
            "figures": figures,
            "notes": self.outcome.notes,
            "tables": [
                {
                    "title": sheet.title,
                    "heads": list(sheet.heads),
                    "rows": list(sheet.rows),
                    "kept": list(sheet.kept),
                }
                for sheet in self.outcome.sheets
            ],
        }
        return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"

    def html(self) -> str:
        """Return everything as a page."""
        from contigua.page import Page

        page = Page(self.definition.title)
        page.text(f"Source: {self.definition.source}. {self.summary()}")
        sources = [figure.source for figure in self.definition.figures]
        page.table(
            [*self.HEADS, "source"],
            [[*row, source] for row, source in zip(self.rows(), sources, strict=True)],
        )
        for label, why in self.reasons():
            page.text(f"Why {label!r} is off: {why}")
        page.text(f"What was fitted: {self.definition.fitting}")
        for note in self.outcome.notes:
            page.text(note)
        for sheet in self.outcome.sheets:
            page.heading(sheet.title)
            page.table(sheet.heads, sheet.rows)
        self.outcome.illustrate(page)
        page.heading("Inputs")
        page.table(
            ["input", "value"],
            [
                ["version", _engine.VERSION],
                ["scale", self.scale],
                *([key, json.dumps(value)] for key, value in self.inputs.items()),
            ],
        )
        return page.html()


def _counted(counts: dict[Verdict, int]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def run_experiment(definition: Definition, scale: Scale, context: Context) -> Result:
    """Run an experiment and write ``index.html`` and ``figures.json`` into its folder.

    Raises
    ------
    FileError
        When the folder cannot be made or written to.
    """
    result = compute(definition, scale, context)
    for name, contents in files_of(result).items():
        write_whole(context.folder / name, contents())
    return result


def files_of(result: Result) -> dict[str, Callable[[], str]]:
    """Return what is written of a result: names, and what makes the contents."""
    return {"figures.json": result.to_json, "index.html": result.html}


def compute(definition: Definition, scale: Scale, context: Context) -> Result:
    """Run an experiment in its folder, which is made.

    Raises
    ------
    FileError
        When the folder cannot be made.
    """
    try:
        context.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{context.folder}: {error.strerror}") from error
    module = importlib.import_module(f"contigua_experiments.{definition.name.replace('-', '_')}")
    inputs = definition.inputs[scale]
    outcome: Outcome = module.compute(inputs, context)
    return Result(definition, scale, inputs, outcome)
