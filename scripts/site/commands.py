"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator

import click
from schemas import spaced

from contigua.cli import cli


def page() -> str:
    """Return the page: a section for each command, with its usage, arguments and options."""
    parts = [
        "# Command line",
        "`contigua COMMAND --help` says the same. Errors are one sentence on standard error, with "
        "exit status 1; mistakes in the command itself have status 2.",
    ]
    root = click.Context(cli, info_name="contigua")
    parts += (section for context in _commands(root) for section in _sections(context))
    return "\n\n".join(parts) + "\n"


def _commands(context: click.Context) -> Iterator[click.Context]:
    """Yield a command and all below it, in order."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            inner = context.command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _commands(click.Context(inner, info_name=name, parent=context))


def _sections(context: click.Context) -> Iterator[str]:
    command = context.command
    mark = "##" if context.parent is None or context.parent.parent is None else "###"
    yield f"{mark} {context.command_path}"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {usage}\n```"
    yield spaced(command.help or "")
    if isinstance(command, click.Group):
        rows = [
            f"| [{name}](#{f'{context.command_path} {name}'.replace(' ', '-')}) "
            f"| {inner.get_short_help_str(200)} |"
            for name in command.list_commands(context)
            if (inner := command.get_command(context, name)) is not None and not inner.hidden
        ]
        yield "\n".join(["| command | |", "|---|---|", *rows])
    options = (p for p in command.params if isinstance(p, click.Option))
    yield from (_option(option, context) for option in options if not option.hidden)


def _option(option: click.Option, context: click.Context) -> str:
    """Return an option with its value, default and meaning, as its help has them."""
    record = option.get_help_record(context)
    assert record is not None  # It is not hidden.
    names, text = record
    meaning, _, facts = text.partition("  [")
    facts = facts.rstrip("]").replace("; ", " · ")
    small = f" <small>{_escaped(facts)}</small>" if facts else ""
    return f"`{names}`{small}\n:   {_escaped(meaning)}"


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
