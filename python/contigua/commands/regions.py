"""``contigua simpoints`` and ``contigua header``: what finds and names regions of programs."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

import click

from contigua.commands.options import key, root_option
from contigua.commands.parameters import COUNT, DURATION
from contigua.files import INTERRUPTED, Outputs, check_writable, write_whole
from contigua.regions import INTERVAL
from contigua.simpoints import (
    block_vectors,
    check_library,
    choose,
    simpoints_text,
    weights_text,
)

#: Endings of the files.
POINTS, WEIGHTS, VECTORS = ".simpoints", ".weights", ".bb"


@click.command(
    "simpoints",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "-o",
    "--output",
    "prefix",
    required=True,
    type=click.Path(path_type=Path),
    metavar="PREFIX",
    help="Write PREFIX.simpoints and PREFIX.weights.",
)
@click.option(
    "--interval",
    type=COUNT,
    default=INTERVAL,
    help=f"Instructions of an interval.  [default: {INTERVAL:,}]",
)
@click.option(
    "--max",
    "most",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="The most intervals to choose.",
)
@click.option("--vectors", is_flag=True, help="Also write PREFIX.bb, block vectors for SimPoint.")
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=1, show_default=True, help="Of clusters."
)
@click.option("--trace", type=click.Path(path_type=Path), help="Read this trace instead.")
@key("seconds", "--wall", type=DURATION)
@root_option
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def simpoints_command(
    program: tuple[str, ...],
    prefix: Path,
    interval: int,
    most: int,
    vectors: bool,
    seed: int,
    trace: Path | None,
    seconds: float | None,
    root: Path | None,
) -> None:
    """Choose a few intervals that stand for all of PROGRAM, as SimPoint does.

    Intervals that execute the same blocks equally often are taken to be alike. What is written is
    for `contigua run --simpoints PREFIX.simpoints --weights PREFIX.weights`. Put -- before the
    program.
    """
    if bool(program) == (trace is not None):
        raise click.UsageError("give either a program after --, or --trace FILE")
    if trace is not None and root is not None:
        raise click.UsageError("--root is of programs: a trace needs no files")
    endings = (POINTS, WEIGHTS, VECTORS)[: 3 if vectors else 2]
    written = {ending: Path(f"{prefix}{ending}") for ending in endings}
    for file in written.values():
        check_writable(file)
    check_library()
    found = block_vectors(
        list(program) or None, trace=trace, interval=interval, seconds=seconds, root=root
    )
    if found.exit_code == INTERRUPTED:
        sys.exit(INTERRUPTED)
    points = choose(found, most, seed)
    outputs = Outputs()
    texts = {POINTS: simpoints_text(points), WEIGHTS: weights_text(points)}
    if vectors:
        texts[VECTORS] = "".join(found.lines())
    for ending, file in written.items():
        with outputs.each():
            write_whole(file, texts[ending])
    click.echo(
        f"{found.instructions:,} instructions, {found.whole:,} intervals of {interval:,}: "
        f"{len(points)} stand for them",
        err=True,
    )
    sys.exit(outputs.status(found.exit_code))


@click.command("header")
def header_command() -> None:
    """Print the folder of contigua.h, whose markers name a region of a C or C++ program."""
    click.echo(str(files("contigua") / "data" / "include"))
