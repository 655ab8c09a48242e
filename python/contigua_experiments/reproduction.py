"""Accounts of all experiments, which a run of all writes: a page, and a table of values beside it.

That of the full scale (``docs/reproduction.md``) begins with the numbers that the papers print: how
many are compared, and how they fared. That of the quick scale (``docs/reproduction-quick.md``) is a
smoke test: it has values, which checks compare with, and claims nothing.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from contigua import _engine
from contigua_experiments.base import Definition, Outcome, Result, Scale, Sheet
from contigua_experiments.catalogue import Catalogue
from contigua_experiments.everything import Entry
from contigua_experiments.figures import VERDICTS, Figure, Verdict
from contigua_experiments.numbers import Number, printed

#: Accounts in ``docs/``, without the ending.
ACCOUNTS: dict[Scale, str] = {"quick": "reproduction-quick", "full": "reproduction"}
#: Class of rows that have no verdict: values of an experiment's tables.
VALUE = "value"
#: Between a cell's value and half of its interval.
MARGIN = " ± "
#: Reason of a figure that is off, where its experiment's file gives none.
UNEXPLAINED = "not examined yet"


def told(entry: Entry) -> str:
    """Say in a few words how an experiment ended and how its figures fared."""
    if entry.result is not None:
        counts = entry.result.verdicts()
        fared = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        return fared or "nothing that can fail"
    if entry.record is not None:
        return f"{entry.record.status}: {entry.record.reason}"
    return f"left out: {entry.definition.apart}" if entry.definition.apart else "not run"


@dataclass(frozen=True)
class Account:
    """Account of the numbers that the papers print.

    Attributes
    ----------
    verdicts
        The verdict on each printed number that is compared; the worst where several figures
        compare with it.
    fitted
        Numbers that inputs were fitted to.
    waiting
        Numbers that figures of experiments that have not run compare with.
    missing
        Numbers that nothing compares with.
    """

    verdicts: dict[str, Verdict]
    fitted: list[Number]
    waiting: list[Number]
    missing: list[Number]

    @staticmethod
    def of(entries: Sequence[Entry]) -> Account:
        """Count the numbers of ``numbers.toml``."""
        verdicts: dict[str, Verdict] = {}
        fitted, waiting = set(), set()
        for entry in entries:
            figures = entry.definition.figures
            fitted |= {one.number for one in figures if one.kind == "fitted"}
            if entry.result is None:
                waiting |= {one.number for one in figures if one.kind == "compared"}
                continue
            for figure, verdict in entry.result.judged():
                if figure.kind == "compared" and verdict != "no data":
                    worst = verdicts.get(figure.number, verdict)
                    verdicts[figure.number] = max(worst, verdict, key=VERDICTS.index)
        rest = [one for one in printed().values() if one.name not in verdicts]
        return Account(
            verdicts,
            [one for one in rest if one.name in fitted],
            [one for one in rest if one.name in waiting],
            [one for one in rest if one.name not in fitted | waiting],
        )

    def sentence(self) -> str:
        """Say how many numbers the papers print, are compared, and are within tolerance."""
        total, compared = len(printed()), len(self.verdicts)
        counts = {one: list(self.verdicts.values()).count(one) for one in VERDICTS}
        within = counts.pop("within tolerance")
        rest = ", ".join(f"{count} {one}" for one, count in counts.items() if count)
        return (
            f"The papers print {total} numbers as results: {compared} are compared, "
            f"{within} of these within tolerance"
            + (f" ({rest})" if rest else "")
            + (
                f"; {len(self.waiting)} wait for experiments that have not run"
                if self.waiting
                else ""
            )
            + f"; {len(self.fitted)} were fitted to, {len(self.missing)} nothing compares with."
        )


@dataclass(frozen=True)
class Standing(Result):
    """Figures of an account that stands; their verdicts are those that it has.

    Its values are rounded: a verdict on them might be another one.
    """

    known: tuple[Verdict, ...]

    def judged(self) -> list[tuple[Figure, Verdict]]:
        """Return each figure with its verdict."""
        return list(zip(self.definition.figures, self.known, strict=True))


def standing(definition: Definition, scale: Scale, table: str) -> Entry:
    """Return what an account's table says of an experiment that was not run.

    Parameters
    ----------
    definition, scale
        The experiment.
    table
        The account's CSV. Where its figures are not those of the experiment's file, it says
        nothing.
    """
    every = csv.DictReader(io.StringIO(table))
    own = [row for row in every if row["experiment"] == definition.name]
    rows = [row for row in own if row["class"] != VALUE]
    figures = definition.figures
    told = [(row["figure"], row["class"], row["paper or limit"]) for row in rows]
    if not rows or told != [(one.label, one.kind, one.show_wanted()) for one in figures]:
        return Entry(definition, None, None, True)
    values = {one.key: _value(row["ours"]) for one, row in zip(figures, rows, strict=True)}
    found = {one.key: _value(row["±"]) for one, row in zip(figures, rows, strict=True)}
    margins = {key: margin for key, margin in found.items() if margin is not None}
    outcome = Outcome(values, lambda _: None, margins, sheets=_sheets(own))
    verdicts = tuple(one for row in rows for one in VERDICTS if one == row["verdict"])
    result = Standing(definition, scale, definition.inputs[scale], outcome, verdicts)
    return Entry(definition, None, result, True)


def _value(shown: str) -> float | None:
    return None if shown == "-" else float(shown.split()[0])


def document(entries: Sequence[Entry], catalogue: Catalogue, scale: Scale) -> str:
    """Write the account in Markdown.

    Parameters
    ----------
    entries
        How each experiment ended, or that it did not run.
    catalogue
        The papers' figures and tables.
    scale
        At which the experiments ran.
    """
    # At full scale, most experiments run for hours: an account may be of some of them.
    idle = [one for one in entries if scale == "full" and one.record is None and one.result is None]
    lines = _smoke(entries) if scale == "quick" else _claims(entries)
    lines += ["", *_experiments([one for one in entries if one not in idle], catalogue), ""]
    if idle:
        table = ACCOUNTS["quick"]
        names = ", ".join(one.definition.name for one in idle)
        lines += [f"Not run at full scale ([quick values]({table}.md)): {names}.", ""]
    lines += _quick_tables(entries) if scale == "quick" else _full_tables(entries, catalogue)
    return "\n".join(lines) + "\n"


def _smoke(entries: Sequence[Entry]) -> list[str]:
    """Return the beginning of the page of quick runs."""
    ran = sum(one.result is not None for one in entries)
    table = ACCOUNTS["quick"]
    return [
        "# Experiments at the quick scale",
        "",
        f"A smoke test of {ran} experiments, which makes no claims: programs have megabytes where "
        f"the papers' have gigabytes. [Reproduction]({ACCOUNTS['full']}.md) says what was found at "
        "full scale.",
        "",
        f"Written by `make experiments` (`contigua experiment run all --quick --write FILE`), "
        f"version {_engine.VERSION}; manual changes are lost. "
        f"[{table}.csv]({table}.csv) has every figure, and *values* of tables; a check runs some "
        "of them again for each commit.",
    ]


def _claims(entries: Sequence[Entry]) -> list[str]:
    """Return the beginning of the page of full runs."""
    table = ACCOUNTS["full"]
    return [
        "# Reproduction",
        "",
        Account.of(entries).sentence(),
        "",
        "Written by `make experiments SCALE=full` "
        f"(`contigua experiment run all --full --write FILE`), version {_engine.VERSION}, "
        "scale full; manual changes are lost. "
        "Only *compared* figures count above: a number that a paper prints, a tolerance fixed "
        "before the run, and our interval, which must lie within it (*cannot tell* where it "
        "reaches over an end). *Same shape*: within a factor of two (of the difference from what "
        "is without the mechanism, where the file says that), or the order of a series. "
        "*Own* figures are what we require; *by construction* are inputs and arithmetic, which "
        "cannot fail; *fitted* ones chose inputs. "
        f"[{table}.csv]({table}.csv) has every figure: the paper's value or our limits, "
        "ours, interval, tolerance, class, verdict, reason and source; and *values* of tables.",
    ]


def _experiments(entries: Sequence[Entry], catalogue: Catalogue) -> list[str]:
    """Return the table of experiments: what each reproduces, and how its figures fared."""
    repeats: dict[str, dict[str, list[str]]] = {}
    for item in catalogue.items:
        for name in item.experiments:
            repeats.setdefault(name, {}).setdefault(item.paper, []).append(item.number)
    return _table(
        ["experiment", "reproduces", "what it shows", "verdicts"],
        [
            [
                entry.definition.name,
                "; ".join(
                    f"{paper}: {', '.join(numbers)}"
                    for paper, numbers in repeats.get(entry.definition.name, {}).items()
                )
                or "no paper",
                catalogue.beyond.get(entry.definition.name, entry.definition.title),
                told(entry),
            ]
            for entry in entries
        ],
    )


#: Columns of tables of figures.
COLUMNS = ["experiment", "figure", "paper or limit", "ours", "verdict", "reason"]


def _quick_tables(entries: Sequence[Entry]) -> list[str]:
    """Return the table of what is off at the quick scale."""
    off = [row for row in _figures(entries) if row["verdict"] in ("differs", "fails", "no data")]
    cells = [[row[column] for column in COLUMNS] for row in off]
    return ["## Off at this scale", "", *_table(COLUMNS, cells)]


def _full_tables(entries: Sequence[Entry], catalogue: Catalogue) -> list[str]:
    """Return printed numbers with ours, other claims that fail, and what nothing compares with."""
    account = Account.of(entries)
    rows = list(_figures(entries))
    compared = [row for row in rows if row["class"] == "compared"]
    others = [row for row in rows if row["class"] != "compared"]
    failing = [row for row in others if row["verdict"] in ("differs", "fails", "no data")]
    lines = []
    for title, chosen in (
        ("Printed numbers, compared", compared),
        ("Other claims that fail", failing),
    ):
        cells = [[row[column] for column in COLUMNS] for row in chosen]
        lines += [f"## {title}", "", *_table(COLUMNS, cells), ""]
    lines += _rest(account)
    lines += ["## Fitted inputs", ""]
    lines += [
        f"- *{entry.definition.name}*: {' '.join(entry.definition.fitting.split())}"
        for entry in entries
        if entry.result is not None and not entry.definition.fitting.startswith("nothing")
    ]
    absent: dict[str, list[str]] = {}
    for item in catalogue.items:
        if not item.experiments:
            absent.setdefault(item.paper, []).append(f"{item.number} ({item.shows}; {item.why})")
    lines += ["", "## Figures without an experiment", ""]
    return lines + [f"- {paper}: {', '.join(told)}." for paper, told in absent.items()]


def _rest(account: Account) -> list[str]:
    """Return the numbers without a comparison: none yet, none at all, and what was fitted to."""
    waiting = []
    if account.waiting:
        waiting = ["## Printed numbers whose experiments have not run", ""]
        waiting += [*_numbers(account.waiting), ""]
    return [
        *waiting,
        "## Printed numbers that nothing compares with",
        "",
        *_numbers(account.missing),
        "",
        "Fitted to: " + "; ".join(one.name for one in account.fitted) + ".",
        "",
    ]


def values(entries: Sequence[Entry]) -> str:
    """Write every figure of the experiments that have run, and values of tables, as CSV."""
    text = io.StringIO()
    heads = ["experiment", *Result.HEADS, "reason", "source"]
    writer = csv.DictWriter(text, heads, lineterminator="\n")
    writer.writeheader()
    for entry in entries:
        writer.writerows(_figures([entry]))
        writer.writerows(_kept(entry))
    return text.getvalue()


def _kept(entry: Entry) -> Iterator[dict[str, str]]:
    """Yield a row for each value that the account has of an experiment's tables."""
    for sheet in entry.result.outcome.sheets if entry.result else ():
        places = [place for place, head in enumerate(sheet.heads) if head in sheet.kept]
        for row, place in product(sheet.rows, places):
            ours, _, margin = row[place].partition(MARGIN)
            yield {
                **dict.fromkeys(Result.HEADS, "-"),
                "experiment": entry.definition.name,
                "figure": f"{row[0]}: {sheet.heads[place]}",
                "ours": ours,
                "±": margin or "-",
                "class": VALUE,
                "source": sheet.title,
            }


def _sheets(own: Sequence[dict[str, str]]) -> list[Sheet]:
    """Return the columns of an experiment's tables that the account has."""
    titles: dict[str, dict[str, dict[str, str]]] = {}
    for row in own:
        if row["class"] == VALUE:
            name, _, head = row["figure"].partition(": ")
            cell = row["ours"] + (MARGIN + row["±"]) * (row["±"] != "-")
            titles.setdefault(row["source"], {}).setdefault(name, {})[head] = cell
    return [
        Sheet(title, ["", *heads], [[name, *cells.values()] for name, cells in rows.items()], heads)
        for title, rows in titles.items()
        for heads in [list(next(iter(rows.values())))]
    ]


def _figures(entries: Sequence[Entry]) -> Iterator[dict[str, str]]:
    for entry in entries:
        if entry.result is None:
            continue
        reasons = dict(entry.result.reasons())
        for (figure, verdict), row in zip(entry.result.judged(), entry.result.rows(), strict=True):
            named = dict(zip(Result.HEADS, row, strict=True))
            off = figure.needs_reason(verdict)
            named["reason"] = reasons.get(figure.label, UNEXPLAINED) if off else figure.why
            yield {"experiment": entry.definition.name, **named, "source": figure.source}


def _numbers(missing: Sequence[Number]) -> list[str]:
    """Return a line for each paper's place that has numbers which nothing compares with."""
    places: dict[tuple[str, str], list[str]] = {}
    for one in missing:
        where, _, what = one.name.partition(": ")
        places.setdefault((where, one.why), []).append(what)
    return [
        f"- {where}: {'; '.join(what)}" + (f" ({why})" if why else "") + "."
        for (where, why), what in places.items()
    ]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table whose cells cannot break it."""
    return [
        "| " + " | ".join(heads) + " |",
        "|" + "---|" * len(heads),
        *(
            "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) + " |"
            for row in rows
        ),
    ]
