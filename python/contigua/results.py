"""The reports of all designs that ran on one program, in the shapes that people work with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contigua import columns
from contigua.extras import needs
from contigua.reading import integer, real
from contigua.reporting.cases import Replicas, by_seed
from contigua.reports import Report, ResultsError, checking, reports_json, summary_type
from contigua.table import table_html, table_text

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from contigua.reporting.writing import Written

#: Columns of the short table of many reports, besides those that tell them apart.
SHORT = ("cycles", "ipc", "translation_overhead", "l2_tlb_mpki", "huge_page_coverage")

#: More reports than this are shown as a data frame, not side by side.
SIDE_BY_SIDE = 12


@dataclass(frozen=True)
class Results(Sequence[Report]):
    """The reports of all designs that ran on one program, or of all points of a sweep.

    Attributes
    ----------
    reports
        One for each design, in the order in which they were asked for.
    exit_code
        The program's own exit status, also of a trace that says it; 130 after an interrupt, 1 where
        the program was not observed to its end.
    axes
        For a sweep: what each report's point is, by the names of the sweep's axes. Empty otherwise.
    failures
        For a sweep: what each point that failed is on every axis, with ``error``, why.
    """

    reports: tuple[Report, ...]
    exit_code: int = 0
    axes: tuple[Mapping[str, Any], ...] = ()
    failures: tuple[Mapping[str, Any], ...] = ()

    @staticmethod
    def from_json(text: str) -> Results:
        """Read what :meth:`to_json` wrote, byte for byte.

        Raises
        ------
        ResultsError
            When the text is no array of reports, or they are of another version.

        Examples
        --------
        >>> len(Results.from_json("[]"))
        0
        """
        at, reports = 0, []
        decoder = json.JSONDecoder(parse_int=integer, parse_float=real, parse_constant=real)
        text = text.strip()
        if not text.startswith("["):
            raise ResultsError("no array of reports, as `contigua run --json` writes them")
        if not text.endswith("]"):
            raise ResultsError("damaged: the end is missing")
        inner = text[1:-1].strip()
        while at < len(inner):
            try:
                value, end = decoder.raw_decode(inner, at)
            except (ValueError, RecursionError) as error:
                raise ResultsError(f"damaged: {error}") from error
            if not isinstance(value, dict) or "config" not in value:
                raise ResultsError("holds something that is no report of `contigua run`")
            reports.append(Report(inner[at:end] + "\n"))
            at = end
            while at < len(inner) and inner[at] in ", \t\r\n":
                at += 1
        found = Results(tuple(reports))
        with checking(found):
            for report in found:
                # Half of a character is no text.
                json.dumps(report.values, ensure_ascii=False).encode()
                for key, value in report.summary().items():
                    if not columns.fits(value, summary_type(key)):
                        raise ValueError(f"{key} is {value!r}")
        return found

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - as Sequence has it
        return self.reports[index]

    def __len__(self) -> int:
        return len(self.reports)

    def __iter__(self) -> Iterator[Report]:
        return iter(self.reports)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each report: the sweep's axes, then :meth:`Report.summary`."""
        axes = self.axes or ({},) * len(self.reports)
        return [
            {**point, **{key: v for key, v in report.summary().items() if key not in point}}
            for point, report in zip(axes, self.reports, strict=True)
        ]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for each report; the columns are those of :meth:`rows`."""
        # Half a second to import, which most runs can do without.
        with needs("reports"):
            import pandas as pd

        return pd.DataFrame(self.rows())

    def to_arrow(self, *, reports: bool = False, intervals: bool = False) -> pa.Table:
        """Return the same rows as an Arrow table, with types that do not depend on the values.

        Parameters
        ----------
        reports
            Whether a column ``report`` has each whole report as JSON.
        intervals
            Whether columns ``KEY_half_width`` have :meth:`Report.intervals`, where there are any.
        """
        return columns.table(*self._columns(reports=reports, intervals=intervals))

    def to_csv(self) -> str:
        """Return a line for each report: every key of its summary, half of every interval."""
        return columns.csv_text(*self._columns(intervals=True))

    def _columns(
        self, *, reports: bool = False, intervals: bool = False
    ) -> tuple[list[dict[str, Any]], dict[str, columns.Kind]]:
        """Return the rows of :meth:`to_arrow`, and the kinds of columns that are known."""
        rows = self.rows()
        if intervals:
            halves = [report.intervals() for report in self.reports]
            rows = [
                {**row, **{f"{key}_half_width": half for key, half in own.items()}}
                for row, own in zip(rows, halves, strict=True)
            ]
        if reports:
            rows = [
                {**row, "report": report.json}
                for row, report in zip(rows, self.reports, strict=True)
            ]
        axes = {key for point in self.axes for key in point}
        known = {key: summary_type(key) for row in rows for key in row if key not in axes}
        return rows, known | ({"report": "text"} if reports else {})

    def to_json(self) -> str:
        """Return all reports as one JSON array, the same bytes for the same run."""
        return reports_json(self.reports)

    def report(
        self, path: str | Path, *, formats: Sequence[str] = ("html",), title: str | None = None
    ) -> Written:
        """Write a page that shows the runs side by side, or its plots and numbers as files.

        Parameters
        ----------
        path
            The page; with other formats than ``"html"`` a folder, which is made.
        formats
            Some of ``"html"``, ``"png"``, ``"svg"`` and ``"csv"``.
        title
            The page's title; by default the programs and designs.

        Returns
        -------
        Written
            ``files``, and ``headlines``: what matters, in sentences.

        Raises
        ------
        ReportError
            When there is no run, or no such format.
        FileError
            When a file cannot be written.
        """
        # What draws takes a while to import.
        from contigua.reporting.writing import Input, write_report

        return write_report(
            [Input("", self.reports, self.axes, self.failures)], Path(path), formats, title
        )

    def columns(self) -> list[Report | Replicas]:
        """Return what a table has a column of: each report, or the means of several seeds."""
        return by_seed(self.reports)

    def __str__(self) -> str:
        """Return a short table: what the command prints, or a line for each point of a sweep."""
        if not self.reports:
            return "no runs"
        if self.axes or len(self.columns()) > SIDE_BY_SIDE:
            shown = [*(self.axes[0] if self.axes else ("design", "age")), *SHORT]
            return str(self.to_pandas()[shown].to_string(max_rows=20))
        return table_text(self.columns())

    def _repr_html_(self) -> str:
        if self.axes or len(self.columns()) > SIDE_BY_SIDE or not self.reports:
            return str(self.to_pandas().to_html(max_rows=20, border=0))
        from contigua.reporting.sentences import verdict

        said = "".join(f"<p>{escape(sentence)}</p>" for sentence in verdict(self))
        return said + table_html(self.columns())
