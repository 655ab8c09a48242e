"""``contigua run`` and ``contigua record``: simulate a program's run, or keep what it does."""

from __future__ import annotations

import sys
from math import prod
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from contigua.commands.options import (
    OUTPUT,
    PROGRAM,
    allocator_options,
    changed,
    checkpoint_options,
    client_of,
    client_options,
    design_list,
    ends_after,
    key,
    layout_options,
    named_regions,
    output_options,
    record_options,
    region_options,
    root_option,
    sample_options,
    sampling_of,
    server_options,
    simulated_options,
)
from contigua.commands.parameters import DURATION, Grouped, with_options
from contigua.files import (
    INTERRUPTED,
    Outputs,
    check_writable,
    is_standard_output,
    is_stream,
    standard_output_to_error,
    write_whole,
)
from contigua.options import RunOptions
from contigua.printing import printable
from contigua.progress import RunLine
from contigua.reporting.sentences import verdict
from contigua.results import Results
from contigua.runner import OutputsError, run
from contigua.sampling import RECORDED, Sampling, recorded
from contigua.table import table_markdown, terminal_table
from contigua.terminal import show

#: An option that stands on the command line.
SET = click.core.ParameterSource.COMMANDLINE
#: Arguments behind the program are its own.
PASSED_ON = {"allow_interspersed_args": False}


#: Options for a trace in place of a program.
trace_options = with_options(
    click.option("--trace", type=click.Path(path_type=Path), help="Replay this trace instead."),
    key("trace_format"),
    key("mapped"),
    key("physical"),
    group=PROGRAM,
)
record_option = with_options(
    key("record"),
    group=OUTPUT,
)


@click.command("run", cls=Grouped, context_settings=PASSED_ON)
@trace_options
@root_option
@layout_options
@allocator_options
@client_options
@server_options
@simulated_options
@region_options
@sample_options
@output_options
@record_option
@checkpoint_options
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def run_command(
    program: tuple[str, ...],
    trace: Path | None,
    design_names: str,
    json_file: Path | None,
    form: str,
    details: bool,
    malloc_clock: int,
    settings: tuple[tuple[str, Any], ...],
    **options: Any,  # noqa: ANN401 - passed on to RunOptions
) -> None:
    """Run PROGRAM with its arguments and show which design is fastest, and why.

    Put -- before the program. Its input, output and exit status are its own; the table goes to
    standard error. Counts may be written as 100M, 1.5G or 1e9 (k, M, G: 10^3, 10^6, 10^9).
    """
    if bool(program) == (trace is not None):
        raise click.UsageError("give either a program after --, or --trace FILE")
    if options["physical"] == "traced" and trace is None:
        raise click.UsageError("--physical traced is for traces of drmemtrace: give --trace")
    if options["mapped"] and trace is None:
        raise click.UsageError("--mapped is for traces of other tools: give --trace")
    if trace is not None and options["root"] is not None:
        raise click.UsageError("--root is of programs: a trace needs no files")
    if options["seeds"] and click.get_current_context().get_parameter_source("seed") is SET:
        raise click.UsageError("give either --seed or --seeds")
    designs, options["machine"] = changed(settings, design_list(design_names), options["machine"])
    client = client_of(options)
    if client is not None and trace is not None:
        raise click.UsageError("--client drives a program: a trace needs none")
    regions = named_regions(options, client)
    replays_ours = trace is not None and options["trace_format"] == "contigua"
    samples = any((options["sample"], options["goal"], options["within"]))
    held = recorded(trace) if trace is not None and replays_ours and samples else None
    configurations = [designs, options["seeds"] or [1]]
    configurations += [options[axis].split(",") for axis in ("age", "holes")]
    sample = sampling_of(options, Sampling(), held, prod(map(len, configurations)))
    wanted = (json_file, options["timeline"], options["smaps"], options["record"])
    files = [file for file in wanted if file is not None]
    for file in files:
        check_writable(file)
    taken = any(map(is_standard_output, files))
    if taken and form != "table":
        raise click.UsageError(f"--format {form} takes standard output: write the other to a file")
    if sum(map(is_standard_output, files)) > 1:
        raise click.UsageError("only one output can go to standard output: write others to files")
    progress = RunLine(ends_after(options))
    outputs = Outputs()
    # The program's own output would be in the midst of ours.
    with standard_output_to_error(form != "table" or is_standard_output(json_file)):
        results = _results(
            outputs,
            list(program) or None,
            trace=trace,
            designs=designs,
            options=RunOptions(
                **options,
                sample=sample,
                regions=regions,
                client=client,
                malloc_clock=malloc_clock or None,
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
    progress: RunLine,
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


@click.command("record", context_settings=PASSED_ON)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The trace to write."
)
@key("seconds", "--wall", type=DURATION)
@record_options
@root_option
@layout_options
@allocator_options
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
    how = ""
    if results.exit_code == INTERRUPTED:
        how = ", interrupted"
    elif results.exit_code:
        how = f"; the program ended with status {results.exit_code}"
    click.echo(f"{output}{size}{how}", err=True)
    sys.exit(results.exit_code)


def _show(results: Results, console: Console, *, details: bool) -> None:
    """Print the verdict and the table."""
    if not len(results):
        return
    for line in verdict(results):
        # A file or pipe is as wide as it needs to be.
        wide = not console.is_terminal
        console.print(printable(line), markup=False, highlight=False, soft_wrap=wide)
    show(console, terminal_table(results.columns(), details=details))


def _written(results: Results, form: str) -> str:
    if form == "json":
        return results.to_json()
    return results.to_csv() if form == "csv" else table_markdown(results.columns())
