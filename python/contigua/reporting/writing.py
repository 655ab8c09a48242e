"""Reports as files: what the command, :meth:`contigua.Results.report` and the demo call."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contigua.errors import ContiguaError
from contigua.files import check_writable, write_whole
from contigua.reporting.cases import Runs, arrange
from contigua.reporting.document import page_of
from contigua.reporting.export import export
from contigua.reporting.sentences import headlines
from contigua.reports import Report, checking, reports_json

#: Formats of a report; all but the first as files in a folder.
FORMATS = ("html", "png", "svg", "csv")
#: The page's name in such a folder.
PAGE = "report.html"


class ReportError(ContiguaError):
    """Results that no report can be made of."""


@dataclass(frozen=True)
class Input:
    """Reports, and where they come from.

    Attributes
    ----------
    name
        Name of the file or folder; empty for results that never were in one.
    reports
        The reports.
    axes
        For a sweep: each report's point, by the names of the sweep's axes. Empty otherwise.
    failures
        For a sweep: the axes of each point that failed, with ``error``, why.
    """

    name: str
    reports: Sequence[Report]
    axes: Sequence[Mapping[str, Any]] = ()
    failures: Sequence[Mapping[str, Any]] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of the reports, as :meth:`contigua.Results.to_json` writes them."""
        return hashlib.sha256(reports_json(self.reports).encode()).hexdigest()


@dataclass(frozen=True)
class Written:
    """Files of a report.

    Attributes
    ----------
    files
        The files; the page first, where there is one.
    headlines
        The sentences that the page begins with.
    """

    files: tuple[Path, ...]
    headlines: tuple[str, ...]


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
    with checking([report for one in inputs for report in one.reports]):
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
    ResultsError
        When a report lacks something, or has it in another form.
    """
    with checking([report for one in inputs for report in one.reports]):
        return headlines(_runs(inputs))


def _runs(inputs: Sequence[Input]) -> Runs:
    reports: list[Report] = []
    points: list[Mapping[str, Any]] = []
    for one in inputs:
        reports += one.reports
        points += one.axes or ({},) * len(one.reports)
    if not reports:
        raise ReportError("no run to report on")
    failures = tuple(failure for one in inputs for failure in one.failures)
    return replace(arrange(reports, points), failures=failures)
