"""``contigua age``: the state of a server's memory over hours of service."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from contigua.ageing import (
    AgedServer,
    AgeOptions,
    Sample,
    age_all,
    flat_sample,
    region_bytes,
    share,
    total_frames,
)
from contigua.commands.parameters import HOURS, SECONDS
from contigua.files import Outputs, check_writable, is_standard_output, write_whole
from contigua.progress import FractionLine
from contigua.terminal import Table, show

#: Rows of the table of contiguity over time.
ROWS = 10

#: The age of a server that has just booted; the engine wants a time above 0.
BOOT_HOURS = 1e-6

FILE = click.Path(path_type=Path)
DEFAULTS = AgeOptions(memory="8G")


@click.command("age")
@click.option("--memory", default=DEFAULTS.memory, show_default=True, help="Simulated memory.")
@click.option(
    "--hours",
    type=HOURS,
    default=DEFAULTS.hours,
    show_default=True,
    help="Simulated time of service, such as 90m; without a unit in hours.",
)
@click.option(
    "--profile",
    default=DEFAULTS.profile,
    show_default=True,
    help="What the server does; see `contigua profiles list`.",
)
@click.option(
    "--design",
    "--designs",
    "design_names",
    default="linux-thp",
    show_default=True,
    help="Design; several, separated by commas, age side by side with the same history.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=DEFAULTS.seed,
    show_default=True,
    help="Seed of everything random.",
)
@click.option(
    "--load",
    type=click.FloatRange(min=0),
    default=DEFAULTS.load,
    show_default=True,
    help="Scales the tenants' demand for memory.",
)
@click.option(
    "--kernel",
    type=click.FloatRange(min=0),
    default=DEFAULTS.kernel,
    show_default=True,
    help="Scales the kernel's demand for unmovable memory.",
)
@click.option(
    "--files",
    type=click.FloatRange(min=0),
    default=DEFAULTS.files,
    show_default=True,
    help="Scales the files that the tenants use.",
)
@click.option(
    "--daily/--steady",
    default=DEFAULTS.daily,
    show_default=True,
    help="Whether demand follows a day.",
)
@click.option(
    "--sample",
    "sample_seconds",
    type=SECONDS,
    help="Simulated time between samples, such as 1m; without a unit in seconds.  [default: a "
    "hundredth of the history]",
)
@click.option(
    "--gigantic-pages",
    type=click.IntRange(0, 1 << 20),
    default=DEFAULTS.gigantic_pages,
    show_default=True,
    help="1 GB pages to allocate at run time when the server has aged; how many there were is "
    "said, and the time of each.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 8),
    default=DEFAULTS.nodes,
    show_default=True,
    help="NUMA nodes that share the memory evenly, each with its own allocator and border.",
)
@click.option("--paranoid", is_flag=True, help="Check every structure as it goes; slow.")
@click.option("--snapshot", type=FILE, help="Show a saved snapshot instead of ageing a server.")
@click.option(
    "--cell",
    type=click.Choice(["block", "frame"]),
    default="block",
    show_default=True,
    help="What one cell of a map is: a block of 2 MiB or a frame of 4 KiB.",
)
@click.option("--png", type=FILE, help="Write a map of the memory.")
@click.option("--html", type=FILE, help="Write a page: maps before and after, and lines over time.")
@click.option("--json", "json_file", type=FILE, help="Write reports and samples.")
@click.option("--save", type=FILE, help="Save a snapshot of the aged server.")
def age_command(
    design_names: str,
    snapshot: Path | None,
    cell: str,
    png: Path | None,
    html: Path | None,
    json_file: Path | None,
    save: Path | None,
    **options: Any,  # noqa: ANN401 - passed on to AgeOptions
) -> None:
    """Age a server and show what becomes of its contiguous memory."""
    names = [name.strip() for name in design_names.split(",") if name.strip()]
    if not names:
        raise click.UsageError("give at least one design")
    if save is not None and len(names) > 1:
        raise click.UsageError("--save takes one design; give each a run of its own")
    if save is not None and options["nodes"] > 1:
        raise click.UsageError("--save takes one node: programs start on the memory of a node")
    for path in (png, html, json_file, save):
        if path is not None:
            check_writable(path)

    before: list[AgedServer] = []
    if snapshot is not None:
        after = [AgedServer.load(snapshot)]
    else:
        history = AgeOptions(**options)
        start = dataclasses.replace(history, hours=BOOT_HOURS)
        specs = [history.spec(name) for name in names]
        if html is not None:
            specs += [start.spec(name) for name in names]
        with FractionLine(f"ageing {_plural(len(names))}") as line:
            servers = age_all(specs, lambda _, server: server, progress=line)
        after, before = servers[: len(names)], servers[len(names) :]

    outputs = Outputs()
    with outputs.each():
        _show(after, Console(stderr=any(map(is_standard_output, (png, html, json_file, save)))))
    if json_file is not None:
        with outputs.each():
            write_whole(json_file, "[\n" + ",\n".join(one.to_json() for one in after) + "]\n")
    if save is not None:
        with outputs.each():
            after[0].save(save)
    if png is not None or html is not None:
        _draw(outputs, after, before, cell, png, html)
    sys.exit(outputs.status())


def _plural(count: int) -> str:
    return f"{count} server" + ("" if count == 1 else "s")


def _draw(
    outputs: Outputs,
    after: list[AgedServer],
    before: list[AgedServer],
    cell: str,
    png: Path | None,
    html: Path | None,
) -> None:
    # Drawing takes a second to import, which most runs can do without.
    from contigua.page import Page
    from contigua.pictures import maps_picture, time_picture
    from contigua.themes import LIGHT

    title = after[0].title
    each = "block of 2 MiB" if cell == "block" else "frame of 4 KiB"
    maps = [(one.design, one.memory_map(cell)) for one in after]
    if png is not None:
        picture = maps_picture(maps, f"{title}, one cell per {each}")
        with outputs.each():
            write_whole(png, picture(LIGHT))
    if html is None:
        return
    page = Page(title)
    page.text(
        f"Each cell is one {each} of physical memory. Neighboring addresses are neighbors on the "
        "map, which follows a Hilbert curve."
    )
    pairs = []
    for index, (name, one) in enumerate(maps):
        if before:
            pairs.append((f"{name}: at the start", before[index].memory_map(cell)))
        pairs.append((f"{name}: at the end", one))
    page.picture(
        maps_picture(pairs, "Physical memory", columns=2),
        alt="Maps of physical memory, colored by class. "
        + " ".join(f"{name}: {_counted(one.counts(), each)}." for name, one in pairs),
    )
    page.heading("Contiguity over time")
    page.picture(
        time_picture([(one.design, one.samples) for one in after], "Contiguity over time"),
        alt="Free memory, free and polluted 2 MB blocks and potential 1 GB blocks over the hours, "
        "for each design; the table below has the values at the end.",
    )
    page.heading("At the end")
    heads, rows = final_rows(after)
    page.table(heads, rows)
    with outputs.each():
        write_whole(html, page.html())


def _counted(counts: dict[str, int], each: str) -> str:
    found = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f"{found} (each a {each})"


def _hours(sample: Sample) -> str:
    return f"{sample['seconds'] / 3600:.4g}"


def sentences(server: AgedServer) -> list[str]:
    """Say how contiguous a server's memory is at the end, as `contigua-node scan` does."""
    sample = server.final
    found = []
    for size, label in (("2m", "2 MB"), ("1g", "1 GB")):
        blocks = sample["contiguity"][f"blocks_{size}"]
        if not blocks["total"]:
            found.append(f"{label}: memory has no whole block.")
            continue
        able = "none can be made"
        if blocks["potential"]:
            free = f"{blocks['free']:,}" if blocks["free"] else "none"
            able = (
                f"{free} free; compaction could bring {share(sample, size, 'potential'):.1f} % of "
                "memory into whole blocks"
            )
        polluted = f"{blocks['unmovable']:,} of {blocks['total']:,} are polluted (unmovable pages)"
        found.append(f"{label}: {able}. {polluted}.")
    for number, node in enumerate(sample.get("nodes", [])):
        blocks = node["contiguity"]["blocks_2m"]
        region = node["unmovable_region_bytes"]
        found.append(
            f"node {number}: {blocks['unmovable']:,} of {blocks['total']:,} blocks of 2 MB are "
            + "polluted"
            + ("." if region is None else f"; unmovable region of {region >> 20:,} MiB.")
        )
    gigantic = server.report.get("gigantic")
    if gigantic is not None:
        seconds = [page["nanoseconds"] / 1e9 for page in gigantic["allocated"]]
        took = f", in {', '.join(f'{one:.3g}' for one in seconds)} s" if seconds else ""
        found.append(
            f"1 GB at run time: {len(seconds)} of {gigantic['requested']:,} allocated{took}."
        )
    return found


def _show(servers: list[AgedServer], console: Console) -> None:
    for server in servers:
        for sentence in sentences(server):
            # A pipe gets each in one line.
            said = f"{server.design}, {sentence}"
            console.print(said, highlight=False, soft_wrap=not console.is_terminal)
    for server in servers:
        show(console, time_table(server))
    heads, rows = final_rows(servers)
    table = Table(*heads[:1], title="At the end", title_justify="left")
    for head in heads[1:]:
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(*row)
    show(console, table)


def time_table(server: AgedServer) -> Table:
    """Make the table of contiguity over time of one server."""
    table = Table(title=f"{server.design}: contiguity over time, % of memory", title_justify="left")
    heads = ["hours", "free", "free 2 MB", "free 32 MB", "free 1 GB", "polluted 2 MB"]
    heads += ["potential 2 MB", "potential 32 MB", "potential 1 GB"]
    for head in [*heads, "unmovable region"]:
        table.add_column(head, justify="right")
    for sample in _thinned(server.samples):
        cells = [100 * sample["contiguity"]["free_frames"] / total_frames(sample)]
        cells += [share(sample, size, "free") for size in ("2m", "32m", "1g")]
        cells += [share(sample, "2m", "unmovable")]
        cells += [share(sample, size, "potential") for size in ("2m", "32m", "1g")]
        table.add_row(_hours(sample), *(f"{cell:.1f}" for cell in cells), _region(sample))
    return table


def _thinned(samples: list[Sample]) -> list[Sample]:
    last = len(samples) - 1
    rows = min(ROWS, last)
    return [samples[round(row * last / max(rows, 1))] for row in range(rows + 1)]


def _region(sample: Sample) -> str:
    region = region_bytes(sample)
    return "-" if region is None else f"{region / (1 << 20):,.0f} MiB"


def final_rows(servers: list[AgedServer]) -> tuple[list[str], list[list[str]]]:
    """Return the heads and rows of the table of final figures, one column per server."""
    finals = [server.final for server in servers]
    rows: list[list[str]] = []

    def add(label: str, cells: list[str]) -> None:
        rows.append([label, *cells])

    frames = ("free_frames", "movable_frames", "unmovable_frames", "reserved_frames")
    for name in frames:
        add(
            name.removesuffix("_frames") + " 4 KB pages",
            [f"{100 * s['contiguity'][name] / total_frames(s):.1f} %" for s in finals],
        )
    for size, label in (("2m", "2 MB"), ("32m", "32 MB"), ("1g", "1 GB")):
        for name, what in (("free",) * 2, ("potential",) * 2, ("polluted", "unmovable")):
            counts = [s["contiguity"][f"blocks_{size}"] for s in finals]
            add(f"{name} {label} blocks", [f"{c[what]:,} of {c['total']:,}" for c in counts])
    add("unmovable region", [_region(s) for s in finals])
    events = [
        {name: n for name, n in flat_sample(s).items() if name.startswith("event_")} for s in finals
    ]
    for name in events[0]:
        if any(counts.get(name) for counts in events):
            label = name.removeprefix("event_").replace("_", " ")
            add(label, [f"{counts.get(name, 0):,}" for counts in events])
    return ["", *(server.design for server in servers)], rows
