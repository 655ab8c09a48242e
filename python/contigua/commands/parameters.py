"""Types of options: what the text of an argument means."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable
from math import isclose, nan
from typing import Any, Generic, TypeVar

import click

from contigua._engine import EngineError
from contigua.errors import ContiguaError
from contigua.sampling import GOALS
from contigua.sizes import SizeError, count_of, seconds_of

#: Counts as the engine has them, of 64 bits.
LARGEST = 2**64 - 1

T = TypeVar("T")


class Text(click.ParamType[T], Generic[T]):
    """An option whose text a function reads; what it refuses is an error that names the option.

    Parameters
    ----------
    name
        What the option takes, in a word.
    metavar
        What help shows for it.
    read
        Reads the text; raises a :class:`ContiguaError` with a sentence.
    """

    def __init__(self, name: str, metavar: str, read: Callable[[str], T]) -> None:
        self.name = name
        self.metavar = metavar
        self.read = read

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return what help shows for it."""
        return self.metavar

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> T:
        """Return what the text says; a default is what it is."""
        if not isinstance(value, str):
            known: T = value
            return known
        try:
            return self.read(value)
        except (EngineError, ContiguaError) as error:
            self.fail(str(error), param, ctx)


def _count(text: str) -> int:
    count = count_of(text)
    if not 0 <= count <= LARGEST:
        raise SizeError(f"{text} is not in the range 0<=x<=2^64-1")
    return count


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(_count, text.split(",")))


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = float(count_of(text))
    if not 0 <= rate < float("inf"):
        raise SizeError(f"{text} is not in the range x>=0")
    return rate


def _hours(text: str) -> float:
    hours = seconds_of(text, "h") / 3600
    if hours == 0:
        raise SizeError(f"{text} is not in the range x>0")
    return hours


def _seconds(text: str) -> float:
    seconds = seconds_of(text)
    if seconds == 0:
        raise SizeError(f"{text} is not in the range x>0")
    return seconds


def _clock(text: str) -> int:
    if text == "system":
        return 0
    try:
        nanoseconds = 1e9 * seconds_of(text, "ns")
    except SizeError as error:
        raise SizeError(f"{error}, or 'system'") from error
    whole = round(nanoseconds)
    # 500 ns are not a whole number of nanoseconds in floating point.
    if not isclose(nanoseconds, whole, rel_tol=1e-9) or not 0 < whole < 2**32:
        raise SizeError(f"{text} is not a whole number of nanoseconds from 1ns to 4294967295ns")
    return whole


def _error(text: str) -> float:
    least, most = GOALS
    number = text.strip()
    try:
        share = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        share = nan
    if not least <= share <= most:
        raise SizeError(
            f"{text!r} is no error between {100 * least:g}% and {100 * most:g}%, such as 2%"
        )
    return share


#: Instructions and other counts, such as ``100M`` or ``1e9``.
COUNT = Text("count", "N[k|M|G]", _count)
#: Counts, separated by commas.
COUNTS = Text("counts", "N[k|M|G][,N...]", _counts)
#: Events in a second, such as ``1k`` or ``0.5``.
RATE = Text("rate", "RATE", _rate)
#: A time, such as ``5`` (seconds) or ``2m``, in seconds.
DURATION = Text("duration", "TIME", seconds_of)
#: Seconds; they cannot be zero.
SECONDS = Text("duration", "SECONDS", _seconds)
#: A time, such as ``2`` (hours) or ``90m``, in hours.
HOURS = Text("hours", "HOURS", _hours)
#: A time for each instruction, such as ``2`` (nanoseconds) or ``1us``, in nanoseconds; 0, written
#: ``system``, for the system's clock.
CLOCK = Text("clock", "TIME", _clock)
#: An error that is wanted, such as ``2%``, as a share.
ERROR = Text("error", "N%", _error)


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    kind, _, inner = key.strip().partition(".")
    if not equals or kind not in ("design", "machine") or not inner:
        raise SizeError(f"{text!r}: write design.KEY=VALUE or machine.KEY=VALUE")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        # Text needs no quotation marks.
        return key.strip(), value.strip()


def _command(text: str) -> tuple[str, ...]:
    try:
        parts = tuple(shlex.split(text))
    except ValueError as error:
        raise SizeError(f"{text!r} is no command: {error}") from error
    if not parts:
        raise SizeError("a command is empty")
    return parts


def _seeds(text: str) -> tuple[int, ...]:
    seeds = _counts(text)
    if len(set(seeds)) < len(seeds) or len(seeds) < 2:
        raise SizeError(f"{text!r}: give two seeds at least, each once")
    return seeds


#: A key of a design or machine, and its value.
SETTING = Text("setting", "KEY=VALUE", _setting)
#: A command with its arguments, as a shell splits it.
COMMAND = Text("command", "CMD", _command)
#: Seeds, separated by commas.
SEEDS = Text("seeds", "N,N[,N...]", _seeds)


def with_options(
    *options: Callable[..., Any], group: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a command with options, in the order in which help shows them.

    Parameters
    ----------
    options
        The options.
    group
        The heading below which help of a :class:`Grouped` command shows them.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
            if group:
                command.__dict__["__click_params__"][-1].group = group
        return command

    return decorate


class Grouped(click.Command):
    """A command whose help has its options below headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group, in the order of their first options."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            is_option = isinstance(param, click.Option)
            if is_option and (record := param.get_help_record(ctx)) is not None:
                groups.setdefault(getattr(param, "group", "Other"), []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)
