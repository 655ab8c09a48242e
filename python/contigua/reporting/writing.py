"""Reports as files: what the command, :meth:`contigua.Results.report` and the demo call."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contigua.errors import ContiguaError
from contigua.files import check_writable, write_whole
from contigua.reporting.cases import Runs, arrange
from contigua.reporting.document import page_of
from contigua.reporting.export import export
from contigua.reporting.sentences import headlines
from contigua.results import Results
from contigua.sweeps import read_results

#: What a report can be written as; all but the first as files in a folder.
FORMATS = ("html", "png", "svg", "csv")
#: The page's name in such a folder.
PAGE = "report.html"


class ReportError(ContiguaError):
    """Results that no report can be made of."""


@dataclass(frozen=True)
class Input:
    """Results, and where they come from.

    Attributes
    ----------
    name
        Name of the file or folder; empty for results that never were in one.
    results
        The results.
    """

    name: str
    results: Results

    @property
    def digest(self) -> str:
        """SHA-256 of the reports, as :meth:`contigua.Results.to_json` writes them."""
        return hashlib.sha256(self.results.to_json().encode()).hexdigest()


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes
    ----------
    files
        The files; the page first, where there is one.
    headlines
        The sentences that the page begins with.
    """

    files: tuple[Path, ...]
    headlines: tuple[str, ...]


def read_inputs(paths: Sequence[Path]) -> list[Input]:
    """Read files of ``contigua run --json`` and folders of sweeps.

    Raises
    ------
    ReportError
        When one has no finished run.
    SweepError, ResultsError, FileError
        When one cannot be read.
    """
    inputs = []
    for path in paths:
        results = read_results(path)
        if not len(results):
            raise ReportError(f"{path}: has no finished run to report on; run a design first")
        # A folder such as `.` has a name only when it is resolved.
        inputs.append(Input(path.resolve().name, results))
    return inputs


def write_report(
    inputs: Sequence[Input],
    output: Path,
    formats: Sequence[str] = ("html",),
    title: str | None = None,
) -> Written:
    """Write a report.

    Parameters
    ----------
    inputs
        What ran.
    output
        The page, if HTML is all that is wanted; otherwise a folder, which is made.
    formats
        Some of :data:`FORMATS`.
    title
        The page's title.

    Raises
    ------
    FileError
        When a file cannot be written.
    ReportError
        When there is no run, or no such format.
    ResultsError
        When a report lacks something, or has it in another form.
    """
    if unknown := sorted(set(formats) - set(FORMATS)):
        raise ReportError(f"no format {', '.join(unknown)}; there are {', '.join(FORMATS)}")
    with Results(tuple(report for one in inputs for report in one.results)).checking():
        return _write(inputs, output, formats, title)


def _write(
    inputs: Sequence[Input], output: Path, formats: Sequence[str], title: str | None
) -> Written:
    runs = _runs(inputs)
    alone = list(formats) == ["html"]
    if alone:
        check_writable(output)
    files: list[Path] = []
    if not alone:
        files += export(runs, output, formats)
    if "html" in formats:
        page = output if alone else output / PAGE
        named = [(one.name, one.digest) for one in inputs if one.name]
        write_whole(page, page_of(runs, title=title, inputs=named))
        files.insert(0, page)
    return Written(tuple(files), tuple(headlines(runs)))


def told(inputs: Sequence[Input]) -> list[str]:
    """Return what matters, in sentences.

    Raises
    ------
    ReportError
        When there is no run.
    """
    return headlines(_runs(inputs))


def _runs(inputs: Sequence[Input]) -> Runs:
    reports, points = [], []
    for one in inputs:
        reports += list(one.results)
        points += list(one.results.axes or ({},) * len(one.results))
    if not reports:
        raise ReportError("no run to report on")
    return arrange(reports, points)
