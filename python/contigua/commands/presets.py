"""``contigua designs``, ``machines`` and ``profiles``: what comes with the package."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.syntax import Syntax

from contigua.commands.lazy import LazyGroup
from contigua.presets import Collection, designs, machines, profiles
from contigua.printing import printable
from contigua.terminal import Table


def _print(table: Table) -> None:
    """Print a table of texts, which wrap on a terminal only."""
    console = Console()
    if not console.is_terminal:
        console.width = 10_000
    console.print(table)


def _preset_commands(collection: Collection, **more: str) -> click.Group:
    """Make ``list``, ``show`` and ``diff`` for presets, beside commands elsewhere."""
    kind = collection.kind

    @click.group(f"{kind}s", cls=LazyGroup, lazy=more, help=f"List, show and compare {kind}s.")
    def group() -> None:
        pass

    @group.command("list", help=f"List the {kind}s that come with Contigua.")
    def list_command() -> None:
        table = Table(kind, "")
        for preset in collection:
            table.add_row(preset.name, preset.description)
        _print(table)

    @group.command("show", help=f"Show a {kind}'s file, or with --resolved every value.")
    @click.argument("name")
    @click.option("--resolved", is_flag=True, help="Fill in every default.")
    def show_command(name: str, resolved: bool) -> None:
        if resolved:
            click.echo(json.dumps(collection.resolve(name), indent=2))
            return
        text = printable(collection.get(name).text, "\n\t")
        console = Console()
        if console.is_terminal:
            console.print(Syntax(text, "toml"))
        else:
            # A file to start from: no line may wrap.
            click.echo(text, nl=not text.endswith("\n"))

    @group.command("diff", help=f"Show the only things that differ between two {kind}s.")
    @click.argument("first")
    @click.argument("second")
    def diff_command(first: str, second: str) -> None:
        differences = collection.diff(first, second)
        if not differences:
            click.echo(f"{first} and {second} are the same.")
            return
        table = Table("", first, second)
        for key, left, right in differences:
            table.add_row(key, *("-" if v is None else json.dumps(v) for v in (left, right)))
        _print(table)

    @group.command("schema", help=f"Print the JSON schema of {kind} files, for editors.")
    def schema_command() -> None:
        click.echo(json.dumps(collection.schema(), indent=2))

    return group


designs_commands = _preset_commands(designs)
machines_commands = _preset_commands(machines, measure="contigua.commands.measure:measure_command")
profiles_commands = _preset_commands(profiles)
