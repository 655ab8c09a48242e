"""The ``contigua`` command."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.syntax import Syntax

from contigua import __version__
from contigua.commands.lazy import LazyGroup
from contigua.commands.parameters import LARGEST, Clock, Count, Duration
from contigua.entry import call
from contigua.files import (
    INTERRUPTED,
    Outputs,
    check_writable,
    is_standard_output,
    is_stream,
    standard_output_to_error,
    write_whole,
)
from contigua.presets import Collection, designs, machines, profiles
from contigua.printing import printable
from contigua.regions import INTERVAL, Regions, regions_of
from contigua.results import Results
from contigua.runner import OutputsError, RunOptions, run
from contigua.sampling import RECORDED, Sampling, recorded
from contigua.table import FORMATS, results_csv, results_markdown, results_table
from contigua.terminal import Table

PROGRAM = {"ignore_unknown_options": True, "allow_interspersed_args": False}

#: Commands whose modules import much, or much that others do not need.
ELSEWHERE = {
    "age": "contigua.commands.age:age_command",
    "experiment": "contigua.commands.experiment:experiment_commands",
    "fleet": "contigua.commands.fleet:fleet_commands",
    "header": "contigua.commands.regions:header_command",
    "query": "contigua.commands.sweep:query_command",
    "report": "contigua.commands.report:report_command",
    "setup": "contigua.commands.setup:setup_commands",
    "simpoints": "contigua.commands.regions:simpoints_command",
    "sweep": "contigua.commands.sweep:sweep_command",
}

#: Seconds between two updates of the progress line.
REFRESH = 0.25
#: Seconds of silence that need no explanation.
PATIENCE = 2.0


@click.group(cls=LazyGroup, lazy=ELSEWHERE)
@click.version_option(__version__, prog_name="contigua")
def cli() -> None:
    """Run unmodified programs on simulated servers and compare designs for contiguous memory."""


class ProgressLine:
    """One line on standard error, redrawn in place; silent when that is not a terminal."""

    def __init__(self) -> None:
        self.enabled = sys.stderr.isatty()
        self.start = time.monotonic()
        self.last = 0.0

    def __call__(self, state: list[tuple[int, int]]) -> None:
        """Draw how far the slowest design is."""
        now = time.monotonic()
        if not self.enabled or now - self.last < REFRESH:
            return
        self.last = now
        if not state:
            aged = now - self.start
            if aged >= PATIENCE:
                line = f"letting memory grow old, {aged:.0f} s"
                print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
            return
        instructions = min(done for done, _ in state)
        behind = max(waiting for _, waiting in state)
        speed = instructions / max(now - self.start, 1e-9) / 1e6
        line = (
            f"{instructions / 1e6:,.0f} M instructions, {speed:,.0f} MIPS, {behind} batches behind"
        )
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave nothing behind."""
        if self.enabled:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that `run` shares with nothing yet, kept apart to be read."""
    options = [
        click.option(
            "--machine", default="skylake", show_default=True, help="Machine to simulate."
        ),
        click.option(
            "--memory",
            help="Simulated memory, such as 8G; by default a snapshot's, or the machine's.",
        ),
        click.option(
            "--age",
            default="fresh",
            show_default=True,
            help="Histories of memory, separated by commas: fresh; scattered:P with P % of frames "
            "unmovable; partial, a random server of a fleet; full, one without free memory; "
            "PROFILE:TIME such as web:2h; snapshot:FILE.",
        ),
        click.option(
            "--designs",
            "design_names",
            default="linux-4k,linux-thp",
            show_default=True,
            help="Designs to compare, separated by commas; names or TOML files.",
        ),
        click.option(
            "--detail",
            type=click.Choice(["full", "additive", "translation"]),
            default="full",
            show_default=True,
            help="full: caches, and an instruction window in which what is independent overlaps; "
            "additive: caches, and stalls that add up, faster; translation: count translation "
            "events, no time, fastest.",
        ),
        click.option(
            "--cores",
            type=click.IntRange(1, 64),
            default=1,
            show_default=True,
            help="Cores that the program's threads run on, each with TLBs and caches of its own.",
        ),
        click.option(
            "--migrations",
            type=click.FloatRange(0),
            default=0.0,
            metavar="RATE",
            help="Move this many pages in use in a simulated second, as the design does it: by "
            "the kernel with interrupts to other cores, or by the last-level cache.",
        ),
        click.option(
            "--timeline",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Write what each core did when, for Perfetto (Chrome's trace format). With "
            "several designs, FILE.json becomes FILE.DESIGN.json for each.",
            metavar="FILE",
        ),
        click.option(
            "--holes",
            default="none",
            show_default=True,
            help="Holes in the program's memory, separated by commas: "
            "SHARE:FRACTION:PATTERN:KIND such as 0.5:0.1:dispersed:remapped; PATTERN is clustered "
            "or dispersed, KIND remapped or unallocated.",
        ),
        click.option(
            "--classify-misses",
            is_flag=True,
            help="Count data TLB misses that a direct segment would avoid (in --json).",
        ),
        click.option(
            "--seed",
            type=click.IntRange(0, LARGEST),
            default=1,
            show_default=True,
            help="Seed of everything random.",
        ),
        click.option(
            "--skip",
            type=Count(),
            default=0,
            help="Instructions to go forward over first: only the operating system goes on.",
        ),
        click.option(
            "--warmup",
            type=Count(),
            default=0,
            help="Instructions to simulate without counting.",
        ),
        click.option(
            "--instructions",
            type=Count(),
            help="Instructions to count, then stop.",
        ),
        click.option(
            "--for", "seconds", type=Duration(), help="Stop the program after, e.g., 30s."
        ),
        click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write reports."),
        click.option(
            "--format",
            "form",
            type=click.Choice(FORMATS),
            default="table",
            show_default=True,
            help="table: sentences and a table of what matters most; markdown: a table of "
            "everything; csv: a line for each design; json: the reports. All but the table go to "
            "standard output, and the program's own output to standard error.",
        ),
        click.option("--details", is_flag=True, help="Show every row of the table."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _unit_options(what: str, default: Sampling) -> list[Callable[..., Any]]:
    """Make the options that say where units lie."""
    return [
        click.option("--sample", is_flag=True, help=what),
        click.option(
            "--sample-distance",
            type=Count(),
            help="Instructions from one unit to the next; it doubles as the program goes on.  "
            f"[default: {default.distance:,}]",
        ),
        click.option(
            "--sample-warm",
            type=Count(),
            help="Instructions that warm caches and TLBs before each unit or window; as many as "
            "fit.  "
            f"[default: {default.warm:,}]",
        ),
        click.option(
            "--sample-detail",
            type=Count(),
            help=f"Instructions of each unit that count.  [default: {default.detail:,}]",
        ),
        click.option(
            "--sample-units",
            "sample_most",
            type=Count(),
            help="The most units: when there are so many, the distance doubles and every other one "
            f"is dropped; 0: all.  [default: {default.most:,}]",
        ),
    ]


def _sample_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say how a run is sampled."""
    options = [
        *_unit_options(
            "Simulate units of the program in detail and go forward between them: for "
            "programs of gigabytes. Each estimate gets a confidence interval.",
            Sampling(),
        ),
        click.option(
            "--confidence",
            type=click.FloatRange(0, 1, min_open=True, max_open=True),
            help=f"Probability with which intervals hold.  [default: {Sampling.confidence}]",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _record_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what a recording holds."""
    options = [
        *_unit_options(
            "Keep units of the program, what warms them, and what the operating system does "
            "between them: a small part of a long program. Runs of the recording are sampled.",
            RECORDED,
        ),
        click.option(
            "--skip",
            type=Count(),
            default=0,
            help="Instructions of which only what the operating system does is kept.",
        ),
        click.option(
            "--seed",
            type=click.IntRange(0, LARGEST),
            default=1,
            show_default=True,
            help="Decides where units begin.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _region_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name regions of the program."""
    options = [
        click.option(
            "--window",
            "windows",
            multiple=True,
            metavar="BEGIN:END",
            help="Simulate the program from one count of instructions to another, such as "
            "1G:1.1G, and go forward elsewhere. Repeatable: counts add up.",
        ),
        click.option(
            "--simpoints",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Estimate the whole program from these intervals, as SimPoint or `contigua "
            "simpoints` writes them.",
        ),
        click.option(
            "--weights",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Their weights.",
        ),
        click.option(
            "--interval",
            type=Count(),
            help=f"Instructions of each of their intervals.  [default: {INTERVAL:,}]",
        ),
        click.option(
            "--region",
            metavar="REGION",
            help="markers: simulate what lies between the program's markers (contigua.h, or "
            "Sniper's); function:NAME: calls of a function. The program goes forward elsewhere.",
        ),
        click.option(
            "--keep-warm",
            is_flag=True,
            help="Keep caches and TLBs warm outside of --region, which is slower.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def named_regions(options: dict[str, Any]) -> Regions | None:
    """Take the options of :func:`_region_options` out; ``None`` when no region is named."""
    taken = {key: options.pop(key) for key in ("windows", "weights", "interval", "region")}
    points, keep_warm = options.pop("simpoints"), options.pop("keep_warm")
    # Windows are warmed as units are.
    warm = None
    if (taken["windows"] or points is not None) and not options["sample"]:
        warm = options["sample_warm"]
        options["sample_warm"] = None
    return regions_of(points=points, warm=warm, keep_warm=keep_warm, **taken)


def sampling_of(options: dict[str, Any], default: Sampling) -> Sampling | None:
    """Take the options of sampling out; ``None`` when nothing is to be sampled."""
    asked = options.pop("sample")
    chosen = {
        key.removeprefix("sample_"): value
        for key in (
            "sample_distance",
            "sample_warm",
            "sample_detail",
            "sample_most",
            "confidence",
        )
        if (value := options.pop(key, None)) is not None
    }
    if not asked and chosen:
        name = next(iter(chosen))
        option = {"confidence": name, "most": "sample-units"}.get(name, f"sample-{name}")
        raise click.UsageError(f"--{option} is of sampled runs: add --sample")
    return replace(default, **chosen) if asked else None


def design_list(names: str) -> list[str]:
    """Split names at commas; one at least must be there."""
    found = [name.strip() for name in names.split(",") if name.strip()]
    if not found:
        raise click.UsageError("give at least one design")
    return found


def _malloc_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which allocator a program gets."""
    options = [
        click.option(
            "--malloc",
            default="libc",
            show_default=True,
            help="The program's allocator: libc, its C library's own; contigua; or a library's "
            "path or name, such as libjemalloc.so.2.",
        ),
        click.option(
            "--malloc-option",
            "malloc_options",
            multiple=True,
            metavar="KEY=VALUE",
            help="Tell the allocator. For contigua RELEASE_RATE, INTERVAL (0: static), "
            "CACHE_INTERVAL and others, see docs/malloc.md; for others an environment variable.",
        ),
        click.option(
            "--malloc-clock",
            type=Clock(),
            default=100,
            show_default=True,
            metavar="NS",
            help="Nanoseconds that pass for contigua's allocator with each instruction, the same "
            "in every run; system: the clock of this machine, on which simulation takes long.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@cli.command("run", context_settings=PROGRAM)
@_run_options
@_sample_options
@_region_options
@click.option("--trace", type=click.Path(path_type=Path), help="Replay this trace instead.")
@click.option(
    "--trace-format",
    type=click.Choice(["contigua", "champsim", "lackey"]),
    default="contigua",
    show_default=True,
    help="Who wrote the trace.",
)
@click.option("--record", type=click.Path(path_type=Path), help="Also record the events here.")
@_malloc_options
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def run_command(
    program: tuple[str, ...],
    trace: Path | None,
    design_names: str,
    json_file: Path | None,
    form: str,
    details: bool,
    malloc_clock: int,
    **options: Any,  # noqa: ANN401 - passed on to RunOptions
) -> None:
    """Run PROGRAM with its arguments and show which design is fastest, and why.

    Put -- before the program. Its input, output and exit status are its own; the table goes to
    standard error. Counts of instructions take the suffixes k, M and G: 10^3, 10^6, 10^9.
    """
    if bool(program) == (trace is not None):
        raise click.UsageError("give either a program after --, or --trace FILE")
    names = design_list(design_names)
    regions = named_regions(options)
    replays_ours = trace is not None and options["trace_format"] == "contigua"
    held = recorded(trace) if trace is not None and replays_ours and options["sample"] else None
    sample = sampling_of(options, held or Sampling())
    files = [
        file for file in (json_file, options["timeline"], options["record"]) if file is not None
    ]
    for file in files:
        check_writable(file)
    taken = any(map(is_standard_output, files))
    if taken and form != "table":
        raise click.UsageError(f"--format {form} takes standard output: write the other to a file")
    progress = ProgressLine()
    outputs = Outputs()
    with standard_output_to_error(form != "table"):
        results = _results(
            outputs,
            list(program) or None,
            trace=trace,
            designs=names,
            options=RunOptions(
                **options, sample=sample, regions=regions, malloc_clock=malloc_clock or None
            ),
            progress=progress,
        )
    with outputs.each():
        if form == "table":
            # A program owns standard output; a trace has no output of its own.
            _show(results, Console(stderr=taken or bool(program)), details=details)
        else:
            click.echo(_written(results, form), nl=False)
    if json_file is not None:
        with outputs.each():
            write_whole(json_file, results.to_json())
    sys.exit(outputs.status(results.exit_code))


def _results(
    outputs: Outputs,
    program: list[str] | None,
    progress: ProgressLine,
    **options: Any,  # noqa: ANN401 - passed on
) -> Results:
    """Run, and note which of the engine's own outputs are not there."""
    try:
        results = run(program, progress=progress, **options)
        progress.clear()
        return results
    except OutputsError as error:
        progress.clear()
        for why in error.failures:
            outputs.lost(why)
        return error.results


@cli.command("record", context_settings=PROGRAM)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The trace to write."
)
@click.option("--for", "seconds", type=Duration(), help="Stop the program after, e.g., 30s.")
@_record_options
@_malloc_options
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def record_command(
    program: tuple[str, ...],
    output: Path,
    malloc_clock: int,
    **options: Any,  # noqa: ANN401 - passed on to RunOptions
) -> None:
    """Record what PROGRAM does, to be replayed with `contigua run --trace`."""
    check_writable(output)
    sample = sampling_of(options, RECORDED)
    record = RunOptions(record=output, sample=sample, malloc_clock=malloc_clock or None, **options)
    results = run(list(program), designs=[], options=record)
    size = "" if is_stream(output) else f": {output.stat().st_size / 1e6:,.1f} MB"
    how = ", interrupted" if results.exit_code == INTERRUPTED else ""
    click.echo(f"{output}{size}{how}", err=True)
    sys.exit(results.exit_code)


def _show(results: Results, console: Console, *, details: bool) -> None:
    """Print the verdict and the table."""
    if not len(results):
        return
    # It needs what writes whole pages, which takes a while to import.
    from contigua.reporting.sentences import verdict

    wide = not console.is_terminal
    if wide:
        # A file or pipe is as wide as it needs to be.
        console.width = 40 + 20 * len(results)
    for line in verdict(results):
        console.print(printable(line), markup=False, highlight=False, soft_wrap=wide)
    console.print(results_table(results, details=details))


def _written(results: Results, form: str) -> str:
    if form == "json":
        return results.to_json()
    return results_csv(results) if form == "csv" else results_markdown(results)


def _preset_commands(collection: Collection) -> click.Group:
    """Make ``list``, ``show`` and ``diff`` for a kind of preset."""
    kind = collection.kind

    @click.group(f"{kind}s", help=f"List, show and compare {kind}s.")
    def group() -> None:
        pass

    @group.command("list", help=f"List the {kind}s that come with Contigua.")
    def list_command() -> None:
        table = Table(kind, "")
        for preset in collection:
            table.add_row(preset.name, preset.description)
        Console().print(table)

    @group.command("show", help=f"Show a {kind}'s file, or with --resolved every value.")
    @click.argument("name")
    @click.option("--resolved", is_flag=True, help="Fill in every default.")
    def show_command(name: str, resolved: bool) -> None:
        if resolved:
            click.echo(json.dumps(collection.resolve(name), indent=2))
            return
        text = collection.get(name).text
        console = Console()
        text = printable(text, "\n\t")
        console.print(Syntax(text, "toml") if console.is_terminal else text, markup=False)

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
        Console().print(table)

    @group.command("schema", help=f"Print the JSON schema of {kind} files, for editors.")
    def schema_command() -> None:
        click.echo(json.dumps(collection.schema(), indent=2))

    return group


cli.add_command(_preset_commands(designs))
cli.add_command(_preset_commands(machines))
cli.add_command(_preset_commands(profiles))


def main() -> None:
    """Run the command; every foreseeable error is one line on standard error."""
    sys.exit(call(cli))


if __name__ == "__main__":
    main()
