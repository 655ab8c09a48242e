"""``contigua profile``: which code, which memory and which threads cause the cost."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from contigua.advising import DESIGNS, RUNS, advise
from contigua.attribution import METRICS, Attribution
from contigua.commands.options import (
    OUTPUT,
    allocator_options,
    changed,
    design_list,
    ends_after,
    layout_options,
    root_option,
    sample_options,
    sampling_of,
    server_options,
    simulated_options,
)
from contigua.commands.parameters import Grouped, with_options
from contigua.differences import difference
from contigua.files import Outputs, check_writable, is_standard_output, write_whole
from contigua.locality import locality_rows
from contigua.options import RunOptions, file_of
from contigua.pprof import pprof_of
from contigua.printing import printable
from contigua.profile_page import GROUPS, page_of, perfetto, speedscope
from contigua.profile_text import cost_rows, markdown_of
from contigua.profiling import profile
from contigua.progress import RunLine
from contigua.sampling import Sampling
from contigua.settings import SETTINGS
from contigua.terminal import Table, show

shown_options = with_options(
    click.option(
        "--by",
        "keys",
        type=click.Choice([*GROUPS, "instruction", "phase"]),
        multiple=True,
        default=("function", "mapping"),
        show_default="function, mapping; with --sites also site",
        help="What each table is by; may be repeated.",
    ),
    click.option(
        "--metric",
        type=click.Choice(METRICS),
        default="translation_cycles",
        show_default=True,
        help="What tables are sorted by.",
    ),
    click.option(
        "--locality",
        is_flag=True,
        help="Count reuse distances of data accesses, too: which size of page each mapping wants, "
        "and misses of TLBs of any size.",
    ),
    click.option(
        "--sites",
        is_flag=True,
        help="Tell which code asked malloc for the memory (--by site): a library that tells of "
        "each block is loaded before the program's.",
    ),
    click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="Rows."),
    click.option(
        "--html",
        type=click.Path(path_type=Path),
        help="Write one page with tables and flame graph.",
    ),
    click.option(
        "--speedscope",
        "speedscope_file",
        type=click.Path(path_type=Path),
        help="Write the first design's profile for https://www.speedscope.app.",
    ),
    click.option(
        "--perfetto",
        "perfetto_file",
        type=click.Path(path_type=Path),
        help="Write the first design's --metric over time for https://ui.perfetto.dev.",
    ),
    click.option(
        "--pprof",
        "pprof_file",
        type=click.Path(path_type=Path),
        help="Write the first design's profile for `go tool pprof`.",
    ),
    click.option(
        "--markdown",
        "markdown_file",
        type=click.Path(path_type=Path),
        help="Write sentences and tables as Markdown, for a bug report.",
    ),
    click.option(
        "--against",
        type=click.Path(path_type=Path),
        help="Compare the first design with an earlier profile, which --save has written.",
    ),
    click.option(
        "--advice",
        "advice_file",
        type=click.Path(path_type=Path),
        help="Write what helps, for `contigua-node apply`. Of --designs, the first is the server "
        "(enabled = madvise), the second has huge pages everywhere.",
    ),
    click.option(
        "--what-if",
        type=click.IntRange(0),
        default=RUNS,
        show_default=True,
        help="With --advice: run the program with each of the N most promising changes.",
    ),
    click.option(
        "--settings/--no-settings",
        "with_settings",
        default=True,
        show_default=True,
        help="With --advice: also run the program under settings of the whole server, such as huge "
        "pages for all programs.",
    ),
    click.option(
        "--save",
        type=click.Path(path_type=Path),
        help="Keep the profile as JSON, a file for each design (`contigua.Attribution.read`).",
    ),
    group=OUTPUT,
)


@click.command("profile", cls=Grouped, context_settings={"allow_interspersed_args": False})
@root_option
@layout_options
@allocator_options
@server_options
@simulated_options
@sample_options
@shown_options
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def profile_command(
    program: tuple[str, ...],
    design_names: str,
    keys: tuple[str, ...],
    metric: str,
    top: int,
    html: Path | None,
    speedscope_file: Path | None,
    save: Path | None,
    pprof_file: Path | None,
    perfetto_file: Path | None,
    markdown_file: Path | None,
    against: Path | None,
    advice_file: Path | None,
    what_if: int,
    with_settings: bool,
    malloc_clock: int,
    settings: tuple[tuple[str, Any], ...],
    **options: Any,  # noqa: ANN401 - passed on to RunOptions
) -> None:
    """Run PROGRAM and show which code and which memory cause TLB misses, faults and cache misses.

    The first of --designs is explained; of each other one is said what it saves, and where. Build
    with -g for source lines. Put -- before the program.
    """
    source = click.get_current_context().get_parameter_source("design_names")
    if advice_file is not None and source is click.core.ParameterSource.DEFAULT:
        design_names = ",".join(DESIGNS)
    designs, options["machine"] = changed(settings, design_list(design_names), options["machine"])
    wanted = (html, speedscope_file, perfetto_file, save, pprof_file, markdown_file, advice_file)
    files = [file for file in wanted if file is not None]
    for file in files:
        check_writable(file)
    if sum(map(is_standard_output, files)) > 1:
        raise click.UsageError("only one output can go to standard output: write others to files")
    before = None if against is None else Attribution.read(against)
    if "site" in keys and not options["sites"]:
        raise click.UsageError("--by site: only --sites tells of the code that asked for memory")
    if options["sites"] and advice_file is not None:
        raise click.UsageError(
            "--sites: advice compares runs of the program itself, without what tells of its blocks"
        )
    if options["sites"] and click.get_current_context().get_parameter_source("keys") is (
        click.core.ParameterSource.DEFAULT
    ):
        keys = (*keys, "site")
    sample = sampling_of(options, Sampling(), None, len(designs))
    progress = RunLine(ends_after(options))
    run_options = RunOptions(**options, sample=sample, malloc_clock=malloc_clock or None)
    advised = None
    if advice_file is None:
        profiled = profile(list(program), designs=designs, options=run_options, progress=progress)
    else:
        advised = advise(
            list(program),
            designs=designs,
            options=run_options,
            runs=what_if,
            settings=SETTINGS if with_settings else (),
            progress=progress,
        )
        profiled = advised.profiled
    progress.clear()
    outputs = Outputs()
    console = Console(stderr=True)
    said = profiled.sentences()
    if before is not None:
        said += difference(profiled.profiles[0], before, metric)
    if advised is not None:
        said += advised.sentences()
    with outputs.each():
        _show(said, profiled.profiles, console, keys, metric, top)
    if html is not None:
        with outputs.each():
            write_whole(html, page_of(profiled.profiles, said))
    if speedscope_file is not None:
        with outputs.each():
            write_whole(speedscope_file, speedscope(profiled.profiles[0]))
    if perfetto_file is not None:
        with outputs.each():
            write_whole(perfetto_file, perfetto(profiled.profiles[0], metric))
    if pprof_file is not None:
        with outputs.each():
            write_whole(pprof_file, pprof_of(profiled.profiles[0]))
    if markdown_file is not None:
        text = markdown_of(profiled.profiles, said, keys, metric, top)
        with outputs.each():
            write_whole(markdown_file, text)
    if advised is not None and advice_file is not None:
        with outputs.each():
            write_whole(advice_file, advised.advice.to_toml())
    if save is not None:
        for found in profiled.profiles:
            several = len(profiled.profiles) > 1
            with outputs.each():
                write_whole(file_of(save, [found.design]) if several else save, found.to_json())
    sys.exit(outputs.status(profiled.results.exit_code))


def _show(
    said: Sequence[str],
    profiles: tuple[Attribution, ...],
    console: Console,
    keys: tuple[str, ...],
    metric: str,
    top: int,
) -> None:
    wide = not console.is_terminal
    for line in said:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=wide)
    for key in keys:
        show(console, _table(*cost_rows(profiles, key, metric, top)))
    first = profiles[0]
    if first.localities:
        show(console, _table(*locality_rows(first.localities, first.tlb_entries, top)))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(heads[0])
    for head in heads[1:]:
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(*row)
    return table
