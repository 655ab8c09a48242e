"""A group whose subcommands are imported when they are used, so that the command starts fast."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """A group of commands that live in modules of their own.

    Parameters
    ----------
    lazy
        For each name of a subcommand, where it is: ``module:attribute``.
    arguments, options
        As :class:`click.Group` takes them.
    """

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401 - as click has it
        lazy: Mapping[str, str],
        **options: Any,  # noqa: ANN401 - as click has it
    ) -> None:
        super().__init__(*arguments, **options)
        self.lazy = dict(lazy)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in alphabetical order."""
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a subcommand, importing its module at first use."""
        if (place := self.lazy.get(cmd_name)) is None:
            return super().get_command(ctx, cmd_name)
        module, attribute = place.split(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command
