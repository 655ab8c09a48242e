"""Compile the programs of a checkout of mimalloc-bench for `foreign.py`, and say how they are run.

Sources, flags and arguments are those of its ``bench/CMakeLists.txt`` and ``bench.sh``. What its
checkout lacks (``build-bench-env.sh`` fetches some sources) or does not compile is left out.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Program:
    """How a program is compiled and run."""

    #: Below ``bench``; a name without a suffix is a list in its CMakeLists.txt.
    sources: str
    #: And redirections. $THREADS: a row for each count; $BENCH: the folder of the sources.
    arguments: str = ""
    flags: str = ""
    #: For those that run for a fixed time: what their output says, and how many million operations
    #: one of it is.
    work: tuple[str, float] | None = None


LARSON = "5 8 1000 5000 100 4141 $THREADS"
LARSON_WORK = (r"= *(\d+) operations per second", 5e-6)
PROGRAMS = {
    "cfrac": Program(
        "cfrac", "17545186520507317056371138836327483792789528", "-std=gnu89 -DNOMEMOPT=1"
    ),
    "espresso": Program("espresso", "$BENCH/espresso/largest.espresso", "-std=gnu89"),
    "barnes": Program("barnes", "< $BENCH/barnes/input"),
    "larson": Program("larson/larson.cpp", LARSON, "-DCPP=1", LARSON_WORK),
    "larson-sized": Program(
        "larson/larson.cpp", LARSON, "-DCPP=1 -DSIZED=1 -fsized-deallocation", LARSON_WORK
    ),
    "alloc-test": Program(
        "alloc-test/test_common.cpp alloc-test/allocator_tester.cpp", "$THREADS", "-DBENCH=4"
    ),
    "sh6bench": Program("shbench/sh6bench-new.c", "$THREADS", "-DBENCH=1 -DSYS_MULTI_THREAD=1"),
    "sh8bench": Program("shbench/sh8bench-new.c", "$THREADS", "-DBENCH=1 -DSYS_MULTI_THREAD=1"),
    "cache-scratch": Program("cache-scratch/cache-scratch.cpp", "$THREADS 1000 1 2000000 $THREADS"),
    "cache-thrash": Program("cache-thrash/cache-thrash.cpp", "$THREADS 1000 1 2000000 $THREADS"),
    "xmalloc-test": Program(
        "xmalloc-test/xmalloc-test.c", "-w $THREADS -t 5 -s 64", "", (r"free/sec: ([\d.]+) M", 5)
    ),
    "malloc-large": Program("malloc-large/malloc-large.cpp"),
    "mstress": Program("mstress/mstress.c", "$THREADS 50 25"),
    "mleak": Program("mleak/mleak.c", "50"),
    "rptest": Program(
        "rptest/rptest.c rptest/thread.c rptest/timer.c",
        "$THREADS 0 1 2 500 1000 100 8 16000",
        "-I$BENCH/rptest",
    ),
    "glibc-simple": Program("glibc-bench/bench-malloc-simple.c"),
    "glibc-thread": Program(
        "glibc-bench/bench-malloc-thread.c", "$THREADS", "", (r"(\d+) iterations", 1e-6)
    ),
}
#: Not compiled.
SCRIPTS = {"rbstress": ("rbstress/stress_mem.rb", "ruby $BENCH/rbstress/stress_mem.rb $THREADS")}
HELP = (
    "checkout of https://github.com/daanx/mimalloc-bench, in which "
    "`./build-bench-env.sh bench` ran; without one its programs are left out"
)


def sources(bench: Path, program: Program) -> list[Path]:
    """Return a program's source files, whether they exist or not."""
    if "." in program.sources:
        return [bench / name for name in program.sources.split()]
    text = (bench / "CMakeLists.txt").read_text()
    listed = re.search(rf"set\({program.sources}_sources([^)]*)\)", text)
    return [bench / program.sources / name for name in listed[1].split()] if listed else []


def build(bench: Path, program: Program, target: Path) -> bool:
    """Compile a program; `False` if sources are missing or it does not compile."""
    files = sources(bench, program)
    if not files or not all(file.exists() for file in files):
        return False
    plus = files[0].suffix == ".cpp"
    line = [*(["g++", "-std=c++17"] if plus else ["cc"]), "-O3", "-DNDEBUG", "-w", "-pthread"]
    line += program.flags.replace("$BENCH", str(bench)).split()
    done = subprocess.run(
        [*line, "-o", target, *files, "-lm"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"{target.name} does not compile:\n{done.stderr}", file=sys.stderr)
    return done.returncode == 0


def commands(checkout: Path | None, folder: Path) -> tuple[dict[str, str], list[str]]:
    """Compile into a folder what a checkout has; shell commands by program, and what it lacks."""
    names = [*PROGRAMS, *SCRIPTS]
    if checkout is None:
        return {}, names
    bench = checkout.resolve() / "bench"
    found = {}
    for name, program in PROGRAMS.items():
        target = folder / name
        if build(bench, program, target):
            output = f" > {name}.output" if program.work else ""
            found[name] = f"{target} {program.arguments}{output}"
    for name, (script, command) in SCRIPTS.items():
        if (bench / script).exists():
            found[name] = command
    found = {name: line.replace("$BENCH", str(bench)) for name, line in found.items()}
    return found, [name for name in names if name not in found]


def millions(row: str, folder: Path) -> float:
    """Return the million operations of the last run of a row whose time is fixed; 1 of others."""
    program = PROGRAMS.get(row.partition(",")[0])
    if program is None or program.work is None:
        return 1
    pattern, factor = program.work
    output = (folder / f"{row.partition(',')[0]}.output").read_text()
    said = re.search(pattern, output)
    if said is None:
        sys.exit(f"{row} printed no number of operations:\n{output}")
    return float(said[1]) * factor
