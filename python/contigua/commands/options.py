"""Options of `contigua run` and `contigua record`, and what the engine is told of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from contigua.commands.parameters import (
    CLOCK,
    COMMAND,
    COUNT,
    COUNTS,
    DURATION,
    ERROR,
    LARGEST,
    RATE,
    SEEDS,
    SETTING,
    with_options,
)
from contigua.configs import Design, Machine
from contigua.loads import Commands
from contigua.presets import KINDS, Preset
from contigua.regions import INTERVAL, Regions, regions_of
from contigua.sampling import RECORDED, Sampling
from contigua.schemas import run_keys
from contigua.table import FORMATS


def key(name: str, flag: str = "", **more: Any) -> Callable[..., Any]:  # noqa: ANN401 - click's
    """Make the option of a key of a run: its type, range, default and help are the engine's."""
    known = run_keys()[name]
    default = known.get("default")
    settings: dict[str, Any] = {"default": default, "show_default": bool(default)}
    if known.get("type") == "boolean":
        settings = {"is_flag": True}
    elif known.get("type") == "integer":
        settings["type"] = click.IntRange(known["minimum"], known.get("maximum", LARGEST))
    elif known.get("format") == "path":
        settings["type"] = click.Path(path_type=Path)
    elif known["words"]:
        settings["type"] = click.Choice(known["words"])
    text = " ".join(known["description"].split())
    option = flag or f"--{name.replace('_', '-')}"
    return click.option(option, name, help=text, **{**settings, **more})


#: Headings of `run --help`.
PROGRAM, SERVER, SIMULATED, SAMPLING, OUTPUT = (
    "Program",
    "Server",
    "What is simulated",
    "Sampling",
    "Output",
)

#: The simulated server.
server_options = with_options(
    click.option("--machine", default="skylake", show_default=True, help="Machine to simulate."),
    key("memory"),
    key("age"),
    click.option(
        "--designs",
        "design_names",
        default="linux-4k,linux-thp",
        show_default=True,
        help="Designs to compare, separated by commas; names or TOML files.",
    ),
    click.option(
        "--set",
        "settings",
        multiple=True,
        type=SETTING,
        help="Change any key of the designs or the machine, such as "
        "design.translation.thp.enabled=madvise or machine.memory=4G (keys: `designs show`, "
        "`machines show`). Repeatable.",
    ),
    key("cores"),
    key("holes", default="none", show_default=True),
    key("migrations", type=RATE),
    group=SERVER,
)


#: Parts of the program that are simulated, and how.
simulated_options = with_options(
    key("detail"),
    key("skip", type=COUNT),
    key("warmup", type=COUNT),
    key("instructions", type=COUNT),
    key("simulated_seconds", "--for", type=DURATION),
    key("seconds", "--wall", type=DURATION),
    key("seed"),
    click.option(
        "--seeds",
        type=SEEDS,
        default=(),
        help="Simulate each design with these seeds, side by side on one execution (but see "
        "--randomize-va-space): the table has means with 95 % intervals (Student's t), JSON each "
        "report.",
    ),
    key("classify_misses"),
    group=SIMULATED,
)


#: Files that are written.
output_options = with_options(
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
    click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write reports."),
    key("timeline", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE"),
    key("smaps", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE"),
    group=OUTPUT,
)


def _unit_options(what: str, default: Sampling) -> list[Callable[..., Any]]:
    """Make the options that say where units lie."""
    return [
        click.option("--sample", is_flag=True, help=what),
        click.option(
            "--sample-distance",
            type=COUNT,
            help="So many instructions have one unit among them, at a random place, at first; the "
            f"distance doubles as the program goes on.  [default: {default.distance:,}]",
        ),
        click.option(
            "--sample-warm",
            type=COUNT,
            help="Instructions that warm caches and TLBs before each unit or window; as many as "
            "fit.  "
            f"[default: {default.warm:,}]",
        ),
        click.option(
            "--sample-detail",
            type=COUNT,
            help=f"Instructions of each unit that count.  [default: {default.detail:,}]",
        ),
        click.option(
            "--sample-units",
            "sample_most",
            type=COUNT,
            help="The most units: when there are so many, one of each two neighbors is dropped "
            f"and the distance doubles; 0: keep all.  [default: {default.most:,}]",
        ),
    ]


#: How a run is sampled.
sample_options = with_options(
    *_unit_options(
        "Simulate units of the program in detail and fast-forward between them: for "
        "programs of gigabytes. Each estimate gets a confidence interval.",
        Sampling(),
    ),
    click.option(
        "--sample-error",
        "goal",
        type=ERROR,
        help="Sample for this error of cycles, such as 2%: half of their interval. The number "
        "of units follows; where they vary more than was planned for, what would reach it is "
        "said. Implies --sample.",
    ),
    click.option(
        "--within",
        type=DURATION,
        help="Sample as many units as take about this time, such as 2m, on this computer: half of "
        "it is the program's own. Warming is short, and one of 16 units is simulated again after "
        "16 times as much, which corrects estimates. Implies --sample.",
    ),
    click.option(
        "--confidence",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        help=f"Probability with which intervals hold.  [default: {Sampling.confidence}]",
    ),
    group=SAMPLING,
)


#: Content of a recording.
record_options = with_options(
    *_unit_options(
        "Keep units of the program, what warms them, and what the operating system does "
        "between them: a small part of a long program. Runs of the recording are sampled.",
        RECORDED,
    ),
    key("skip", type=COUNT),
    key("seed"),
)


#: Regions of the program.
region_options = with_options(
    click.option(
        "--window",
        "windows",
        multiple=True,
        metavar="BEGIN:END",
        help="Simulate the program from one count of instructions to another, such as "
        "1G:1.1G, and fast-forward elsewhere. Repeatable: counts add up.",
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
        type=COUNT,
        help=f"Instructions of each of their intervals.  [default: {INTERVAL:,}]",
    ),
    click.option(
        "--region",
        metavar="REGION",
        help="markers: simulate what lies between the program's markers (contigua.h, or "
        "Sniper's); function:NAME: calls of a function. The program fast-forwards elsewhere.",
    ),
    click.option(
        "--keep-warm",
        is_flag=True,
        help="Keep caches and TLBs warm outside of --region, which is slower.",
    ),
    group=SIMULATED,
)


#: Driver of a server.
client_options = with_options(
    click.option(
        "--client",
        multiple=True,
        type=COMMAND,
        help="PROGRAM is a server: measure what it does while this command loads it. Needs --stop. "
        "Repeatable.",
    ),
    click.option(
        "--ready",
        multiple=True,
        type=COMMAND,
        help="A command that succeeds as soon as the server answers; the client waits for it.",
    ),
    click.option(
        "--stop", multiple=True, type=COMMAND, help="A command that ends the server afterwards."
    ),
    group=PROGRAM,
)


#: Saving a replay's servers, and going on from them.
checkpoint_options = with_options(
    click.option(
        "--checkpoint",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Save the simulated servers of a replay in folders of DIR, at --checkpoint-at.",
    ),
    click.option(
        "--checkpoint-at",
        type=COUNTS,
        default=(),
        help="Counts of instructions since the start of the recording, separated by commas.",
    ),
    click.option(
        "--from",
        "resume",
        type=click.Path(path_type=Path),
        metavar="DIR/N",
        help="Go on from what --checkpoint DIR saved at N, with the same options. The reports "
        "equal those of a run from the start.",
    ),
    group=OUTPUT,
)


#: Choice of the program's addresses.
layout_options = with_options(
    key("linux"),
    key("randomize_va_space"),
    key("shmem_enabled"),
    group=PROGRAM,
)


#: Where the program's files are.
root_option = with_options(
    key("root", metavar="DIR"),
    group=PROGRAM,
)


#: The program's allocator.
allocator_options = with_options(
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
        type=CLOCK,
        default=100,
        show_default=True,
        help="Time that passes for contigua's allocator with each instruction, the same in every "
        "run, such as 1us; without a unit in nanoseconds. system: the clock of this machine, on "
        "which simulation takes long.",
    ),
    group=PROGRAM,
)


def client_of(options: dict[str, Any]) -> Commands | None:
    """Take the options of :data:`client_options` out; ``None`` when there is no client."""
    client, ready, stop = (options.pop(key) for key in ("client", "ready", "stop"))
    if client and not stop:
        raise click.UsageError("--client needs --stop, the command that ends the server after it")
    if not client and (ready or stop):
        raise click.UsageError("--ready and --stop are of servers: add --client")
    return Commands(client, stop, ready) if client else None


def named_regions(options: dict[str, Any], client: Commands | None = None) -> Regions | None:
    """Take the options of :data:`region_options` out; ``None`` when no region is named."""
    taken = {key: options.pop(key) for key in ("windows", "weights", "interval", "region")}
    points, keep_warm = options.pop("simpoints"), options.pop("keep_warm")
    # Windows are warmed as units are.
    warm = None
    if (taken["windows"] or points is not None) and not options["sample"]:
        warm = options["sample_warm"]
        options["sample_warm"] = None
    loaded = client is not None
    return regions_of(points=points, warm=warm, keep_warm=keep_warm, is_loaded=loaded, **taken)


def sampling_of(
    options: dict[str, Any],
    default: Sampling,
    held: Sampling | None = None,
    runs: int = 1,
) -> Sampling | None:
    """Take the options of sampling out; ``None`` when nothing is to be sampled.

    What a recording holds of its program (``held``) goes before what is usual, or reaches a goal.
    So many ``runs`` share the time that is given.

    Raises
    ------
    TimeError
        When too little time is given.
    """
    goal, seconds = options.pop("goal", None), options.pop("within", None)
    if goal is not None and seconds is not None:
        raise click.UsageError("give either --sample-error or --within")
    asked = options.pop("sample") or goal is not None or seconds is not None
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
    if not asked:
        return None
    if seconds is not None:
        if "most" in chosen:
            raise click.UsageError("give either --sample-units or --within, which chooses them")
        plan = Sampling.within(seconds, runs, len(os.sched_getaffinity(0)))
        if held is not None:
            plan = replace(held, most=min(plan.most, held.most or plan.most))
        return replace(plan, **chosen)
    if goal is None:
        return replace(held or default, **chosen)
    fixed = {key: chosen[key] for key in ("confidence", "detail") if key in chosen}
    return replace(held or Sampling.toward(goal, **fixed), goal=goal, **chosen)


def design_list(names: str) -> list[str]:
    """Split names at commas; one at least must be there."""
    found = [name.strip() for name in names.split(",") if name.strip()]
    if not found:
        raise click.UsageError("give at least one design")
    return found


def changed(
    settings: Sequence[tuple[str, Any]], designs: Sequence[str], machine: str
) -> tuple[list[str | Preset], str | Preset]:
    """Return the designs and the machine with what ``--set`` says.

    A key of a scheme or a policy, such as ``translation.thp.enabled``, goes to the designs that
    have that one.

    Raises
    ------
    ConfigError, EngineError
        When there is no such key, or it cannot have the value.
    UsageError
        When no design has what the key is of.
    """
    values: dict[str, dict[str, Any]] = {"design": {}, "machine": {}}
    for key, value in settings:
        kind, _, inner = key.partition(".")
        values[kind][inner] = value
    own: dict[str, dict[str, Any]] = {name: {} for name in designs}
    for key, value in values["design"].items():
        having = [name for name in designs if _has(Design(name), key)]
        if not having:
            table = ".".join(key.split(".")[:2])
            raise click.UsageError(
                f"--set design.{key}: none of {', '.join(designs)} has {table}; "
                "name others with --designs"
            )
        for name in having:
            own[name][key] = value
    return (
        [Design(name).with_(own[name]) if own[name] else name for name in designs],
        Machine(machine).with_(values["machine"]) if values["machine"] else machine,
    )


def _has(design: Design, key: str) -> bool:
    """Return whether a key is not one of another scheme's or policy's table."""
    parts = key.split(".")
    is_inside = len(parts) > 2 and parts[0] in KINDS
    return not is_inside or parts[1] in (design.resolve().get(parts[0]) or {})


def ends_after(options: dict[str, Any]) -> tuple[int | None, float | None]:
    """Return after how many instructions and seconds a run ends at the latest, where known."""
    counted = options["instructions"]
    return counted and options["skip"] + options["warmup"] + counted, options["seconds"]
