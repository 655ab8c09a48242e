"""``contigua setup``: what runs need that a package cannot bring."""

from __future__ import annotations

import sys

import click

from contigua._engine import EngineError, emulator
from contigua.emulator import ARCHITECTURES, SUITE, build, cache_folder
from contigua.printing import printable
from contigua.progress import FractionLine


@click.group("setup")
def setup_commands() -> None:
    """Build QEMU."""


class Steps:
    """Prints each step once, and how far it is."""

    def __init__(self) -> None:
        self.label = ""
        self.line = FractionLine("")

    def __call__(self, label: str, fraction: float) -> None:
        """Show a step's state."""
        if label != self.label:
            self.line.clear()
            print(label, file=sys.stderr, flush=True)
            self.label, self.line = label, FractionLine(label)
        self.line(fraction)


@setup_commands.command("qemu")
@click.option(
    "--architecture",
    type=click.Choice(ARCHITECTURES),
    default=ARCHITECTURES[0],
    show_default=True,
    help="Of the programs that it runs.",
)
@click.option(
    "--suite",
    default=SUITE,
    show_default=True,
    metavar="NAME",
    help="The release of Debian's whose source package is built.",
)
@click.option(
    "--package-version",
    metavar="VERSION",
    help="The source package's version.  [default: the suite's newest]",
)
@click.option(
    "--if-needed", is_flag=True, help="Build only if no QEMU that loads plugins is found."
)
def qemu_command(
    architecture: str, suite: str, package_version: str | None, if_needed: bool
) -> None:
    """Build a QEMU that loads plugins, for hosts that have none.

    It takes a few minutes, 500 MB of disk for that time, Debian's package archive and PyPI, but no
    root. The newest version in ~/.cache/contigua/qemu is what `contigua run` takes, unless
    CONTIGUA_QEMU (for aarch64 programs CONTIGUA_QEMU_AARCH64) names another QEMU; licence and exact
    source lie beside the program.
    """
    if if_needed:
        try:
            emulator(architecture)
            return
        except EngineError as error:
            print(f"{printable(str(error))}", file=sys.stderr)
    steps = Steps()
    try:
        program = build(suite, package_version, steps, architecture=architecture)
    finally:
        steps.line.clear()
    print(f"built {program}")
    used = emulator(architecture)
    if used != str(program):
        print(f"programs run with {used}, which comes first ({cache_folder()})")
