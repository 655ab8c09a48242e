"""The commands in the documentation: found, run, and their output written under them.

Before each block `console` stands a comment, `<!-- run -->` or `<!-- not run: WHY -->`. In it, what
follows a command's `$ ` line up to the next one is its output; a here-document belongs to its
command. A block `python` under `<!-- run -->` is a program of its own. The blocks of a page run one
after another in one folder, which looks like the repository's top.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Files of the repository that a page's folder shares.
SHARED = ["workloads", "crates", "examples", "target", ".venv", "docs"]
#: Variables that commands see: a program's stack begins behind them, and results differ with
#: its addresses.
KEPT = ["HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME", "CARGO_HOME", "RUSTUP_HOME"]
#: The longest that a command may take, in seconds.
LIMIT = 300

BLOCK = re.compile(
    r"(?:^<!-- (?P<verdict>run|not run: [^\n]+) -->\n)?"
    r"^```(?P<kind>console|python)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
HEREDOC = re.compile(r"<<'?(\w+)'?")


@dataclass
class Command:
    """One command and the output that the page shows under it."""

    text: str
    output: str = ""


@dataclass
class Block:
    """A block of commands.

    Attributes
    ----------
    kind
        ``console`` or ``python``.
    verdict
        ``run``, ``not run: WHY``, or nothing, which a test allows for Python only.
    span
        Where its body lies in the page.
    """

    kind: str
    verdict: str | None
    span: tuple[int, int]
    commands: list[Command] = field(default_factory=list)

    def render(self) -> str:
        """Return the body with the outputs as they are now."""
        if self.kind == "python":
            return self.commands[0].text
        return "".join(f"$ {command.text}\n{command.output}" for command in self.commands)


def blocks(text: str) -> Iterator[Block]:
    """Yield a page's blocks of commands."""
    for match in BLOCK.finditer(text):
        block = Block(match["kind"], match["verdict"], match.span("body"))
        if block.kind == "python":
            block.commands = [Command(match["body"])]
        else:
            block.commands = list(_commands(match["body"]))
        yield block


def _commands(body: str) -> Iterator[Command]:
    command: Command | None = None
    end: str | None = None
    for line in body.splitlines():
        if command is not None and end is not None:
            command.text += f"\n{line}"
            if line == end:
                end = None
        elif line.startswith("$ "):
            if command is not None:
                yield command
            command = Command(line.removeprefix("$ "))
            found = HEREDOC.search(line)
            end = found[1] if found else None
        elif command is not None:
            command.output += f"{line}\n"
    if command is not None:
        yield command


#: A line of progress (``contigua.progress``), which depends on the time that a command takes.
PROGRESS = re.compile(r"contigua: (.* MIPS(, about .* left)?|ageing memory, \d+ s)$")


class Failed(Exception):
    """A command of the documentation that does not work."""


def run_page(text: str, report: Callable[[Command, str], None]) -> None:
    """Run the commands of a page's blocks that are marked so.

    Parameters
    ----------
    text
        The page.
    report
        Called with each command and what it printed, outputs and errors in one.

    Raises
    ------
    Failed
        When a command ends with another status than 0.
    """
    with tempfile.TemporaryDirectory(prefix="contigua-docs-") as name:
        folder = Path(name)
        for shared in SHARED:
            if (ROOT / shared).exists():
                (folder / shared).symlink_to(ROOT / shared)
        for block in blocks(text):
            if block.verdict == "run":
                for command in block.commands:
                    report(command, _run(block.kind, command.text, folder))


def _run(kind: str, text: str, folder: Path) -> str:
    shell = ["bash", "-euo", "pipefail", "-c", text]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", text] if kind == "python" else shell,
        cwd=folder,
        env=kept | {"PATH": path, "COLUMNS": "100", "TERM": "dumb"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
    )
    if done.returncode != 0:
        raise Failed(f"$ {text}\n{done.stdout}\n(exit status {done.returncode})")
    # On a slow machine a run tells its progress every half minute.
    lines = (line for line in done.stdout.splitlines() if not PROGRESS.match(line))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def rewritten(text: str) -> str:
    """Run a page, and return it with each output that it shows as it is now."""
    outputs: dict[str, str] = {}
    run_page(text, lambda command, output: outputs.__setitem__(command.text, output))
    found = list(blocks(text))
    for block in reversed(found):
        if block.verdict == "run" and block.kind == "console":
            for command in block.commands:
                if command.output:
                    command.output = outputs[command.text]
            start, end = block.span
            text = text[:start] + block.render() + text[end:]
    return text
