"""``contigua completion`` and the manual page: what shells and ``man`` are told of the command.

Both are made from the commands themselves. A wheel has them where shells and ``man`` look for them
(``scripts/wheel``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
from click.shell_completion import get_completion_class

#: Folders of shells' completions, below ``share``.
PLACES = {
    "bash": "bash-completion/completions/contigua",
    "zsh": "zsh/site-functions/_contigua",
    "fish": "fish/vendor_completions.d/contigua.fish",
}
MANUAL = "man/man1/contigua.1"


def completion(shell: str) -> str:
    """Return the script that tells a shell how to complete ``contigua``."""
    kind = get_completion_class(shell)
    assert kind is not None
    found = kind(click.Group(), {}, "contigua", "_CONTIGUA_COMPLETE")
    text = found.source_template % found.source_vars()
    if shell == "zsh":
        # What is loaded from a folder is called once as it loads; the next time it would do nothing
        # but register itself.
        call = '_contigua_completion "$@"\n'
        assert text.count(call) == 1
        text = text.replace(call, f"compdef _contigua_completion contigua\n    {call}")
    return text.strip() + "\n"


@click.command("completion")
@click.argument("shell", type=click.Choice(list(PLACES)))
def completion_command(shell: str) -> None:
    """Print the script with which SHELL completes `contigua`.

    A wheel has it in its share folder already. Elsewhere: bash: eval "$(contigua completion bash)"
    in ~/.bashrc; zsh: the same in ~/.zshrc; fish: contigua completion fish >
    ~/.config/fish/completions/contigua.fish
    """
    click.echo(completion(shell), nl=False)


def share_files(root: click.Group, version: str) -> dict[str, str]:
    """Return what a package puts into ``share``: completions and the manual page, by path."""
    scripts = {place: completion(shell) for shell, place in PLACES.items()}
    return {**scripts, MANUAL: man_page(root, version)}


def man_page(root: click.Group, version: str) -> str:
    """Return the manual page of a command and of all its subcommands, for ``man``."""
    lines = [
        f'.TH CONTIGUA 1 "" "contigua {version}" "User Commands"',
        ".SH NAME",
        f"contigua \\- {_plain(root.get_short_help_str(1000)).rstrip('.')}",
        ".SH SYNOPSIS",
        ".B contigua",
        "COMMAND [OPTIONS] [ARGUMENTS]",
        ".SH DESCRIPTION",
        *_paragraphs(root.help or ""),
        ".SH COMMANDS",
    ]
    for path, command in _leaves(root, ("contigua",)):
        ctx = click.Context(command, info_name=" ".join(path))
        ctx.help_option_names = []
        usage = " ".join((*path, *command.collect_usage_pieces(ctx)))
        lines += [f'.SS "{_plain(usage)}"', *_paragraphs(command.help or "")]
        for param in command.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                names, text = record
                lines += [".TP", f".B {_plain(names)}", *_lines(text)]
    lines += [
        ".SH EXIT STATUS",
        "Of run, record and simpoints: the program's own. 1: something failed, or an output could",
        "not be written; 2: the command line is wrong; 126: the program cannot be executed; 127:",
        "there is no such program; 130: interrupted.",
        ".SH ENVIRONMENT",
        ".TP",
        ".B NO_COLOR",
        "If set, no colors.",
        ".TP",
        ".B CONTIGUA_QEMU",
        "The QEMU that runs x86-64 programs.",
        ".TP",
        ".B CONTIGUA_QEMU_AARCH64",
        "The QEMU that runs aarch64 programs.",
    ]
    return "\n".join(lines) + "\n"


def _leaves(
    group: click.Group, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if isinstance(command, click.Group):
            yield from _leaves(command, (*path, name))
        elif command is not None and not command.hidden:
            yield (*path, name), command


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        yield ".PP"
        yield from _lines(paragraph)


def _lines(text: str) -> Iterator[str]:
    yield from (_plain(line.strip()) for line in text.strip().splitlines())


def _plain(text: str) -> str:
    """Escape text for roff: backslashes, dashes that people copy, and dots that begin a line."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{text}" if text.startswith((".", "'")) else text
