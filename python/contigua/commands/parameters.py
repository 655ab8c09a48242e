"""Types of options: what the text of an argument means."""

from __future__ import annotations

from typing import Any

import click

from contigua._engine import EngineError, parse_duration
from contigua.sizes import SizeError, count_of

#: Counts as the engine has them, of 64 bits.
LARGEST = 2**64 - 1


class Duration(click.ParamType[float]):
    """A time with a unit, such as ``30s``."""

    name = "duration"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Return seconds."""
        try:
            return parse_duration(str(value))
        except EngineError as error:
            self.fail(str(error), param, ctx)


class Clock(click.ParamType[int]):
    """Nanoseconds for each instruction, or ``system``."""

    name = "clock"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int:
        """Return nanoseconds; 0 for the system's clock."""
        if value == "system":
            return 0
        try:
            nanoseconds = int(value)
        except ValueError:
            nanoseconds = 0
        if not 0 < nanoseconds < 2**32:
            self.fail(f"{value!r} is neither a number of nanoseconds nor 'system'", param, ctx)
        return nanoseconds


class Count(click.ParamType[int]):
    """A number of instructions, such as ``100M``."""

    name = "count"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return what help shows for it."""
        return "N[k|M|G]"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int:
        """Return the number."""
        try:
            count = count_of(str(value))
        except SizeError as error:
            self.fail(str(error), param, ctx)
        if not 0 <= count <= LARGEST:
            self.fail(f"{value} is not in the range 0<=x<=2^64-1", param, ctx)
        return count
