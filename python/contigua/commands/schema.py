"""``contigua schema``: the JSON schemas of what Contigua writes."""

from __future__ import annotations

import json

import click

from contigua.schemas import NAMES, schema


@click.command("schema")
@click.argument("document", type=click.Choice(NAMES))
def schema_command(document: str) -> None:
    """Print the JSON schema of a DOCUMENT that Contigua writes.

    run and age: what their --json writes; attribution: what `profile --save` keeps; experiment:
    figures.json; sweep: sweep.json. Each has a number, `schema`, which grows when a key goes or
    changes its meaning.
    """
    click.echo(json.dumps(schema(document), indent=2))
