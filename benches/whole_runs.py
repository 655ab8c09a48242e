"""Measures the speed of whole runs and writes it into docs/performance.md.

Million guest instructions a second (MIPS), in wall time of the whole command. The machine is often
shared, so each figure is the median of several runs, and figures that are compared were taken in
turn. With the argument `paces` only fast-forwarding and warming are measured, with `sizes` only
what four designs take beside one by the size of a table.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from documents import replace

from contigua import _engine

ROOT = Path(__file__).parents[1]
#: Factor by which fast-forwarded programs are longer.
LONGER = 7
RUNS = int(os.environ.get("CONTIGUA_BENCH_RUNS", "3"))
#: More instructions than any run has.
ALL = str(10**15)
FOUR_DESIGNS = "linux-4k,linux-thp,linux-thp-madvise,linux-4k"

SQL = """
create table t(a integer primary key, b text, c int);
with recursive n(x) as (select 1 union all select x + 1 from n where x < ROWS)
insert into t select x, hex(x * 7919), (x * 48271) % 2147483647 from n;
create index i on t(c);
select count(*), sum(c) from t where b like '%7%';
"""
PYTHON = """
d = {}
for i in range(TURNS):
    d[(i * 2654435761) & 0xFFFFF] = i
print(sum(sorted(d.values())[::7]))
"""
C = "\n".join(
    f"int f{i}(int *a, int n) {{ int s = {i}; for (int j = 0; j < n; j++) s += a[j] * (j ^ {i});"
    f" return s > {i} ? f{max(i - 1, 0)}(a, s % 7) : s; }}"
    for i in range(30)
)


def programs(folder: Path, times: int = 1) -> dict[str, list[str]]:
    """Commands to measure, by name; their inputs go into a folder. Some can be made longer."""
    (folder / "q.sql").write_text(SQL.replace("ROWS", str(30_000 * times)))
    (folder / "p.py").write_text(PYTHON.replace("TURNS", str(150_000 * times)))
    (folder / "c.c").write_text(C)
    gups = str(ROOT / "workloads" / "bin" / "gups")
    return {
        "sqlite3": ["sqlite3", ":memory:", f".read {folder / 'q.sql'}"],
        "python3": ["/usr/bin/python3", str(folder / "p.py")],
        "gcc": ["gcc", "-O2", "-c", str(folder / "c.c"), "-o", str(folder / "c.o")],
        "gups": [gups, "--size", "256MiB", "--updates", "4000000", "--no-verify"],
    }


def alone(program: list[str], *options: str) -> float:
    """Seconds of a program under the emulator, without us."""
    emulator = [_engine.emulator(), *_engine.emulator_options(), *options]
    return timed([*emulator, shutil.which(program[0]) or program[0], *program[1:]])


def timed(command: list[str]) -> float:
    """Seconds of wall time."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def contigua(program: list[str], *options: str) -> tuple[float, int]:
    """Seconds of a run, and instructions that it executed."""
    with tempfile.NamedTemporaryFile() as report:
        command = [sys.executable, "-m", "contigua.cli", "run", "--json", report.name, *options]
        seconds = timed([*command, "--", *program])
        executed = json.loads(Path(report.name).read_text())[0]["executed"]
    return seconds, executed["instructions"]


def main() -> None:
    """Measure, print, and write the table."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = folder / "plain.so"
        source = ROOT / "benches" / "count_only.c"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", plain, source], check=True)
        for label, program in programs(folder).items():
            kinds: dict[str, list[float]] = {}
            instructions = 0
            for _ in range(RUNS):
                # gcc starts other programs, which a plugin that is not followed never sees.
                if label != "gcc":
                    seconds = alone(program, "-plugin", str(plain))
                    kinds.setdefault("count", []).append(seconds)
                    trace = ["record", "-o", str(folder / "t.trace")]
                    command = [sys.executable, "-m", "contigua.cli", *trace, "--", *program]
                    kinds.setdefault("record", []).append(timed(command))
                for kind, options in {
                    "forward": ["--detail", "translation", "--designs", "linux-4k", "--skip", ALL],
                    "translation": ["--detail", "translation", "--designs", "linux-4k"],
                    "additive": ["--detail", "additive", "--designs", "linux-4k"],
                    "four": ["--detail", "additive", "--designs", FOUR_DESIGNS],
                    "full": ["--designs", "linux-4k"],
                }.items():
                    seconds, counted = contigua(program, *options)
                    instructions = max(instructions, counted)
                    kinds.setdefault(kind, []).append(seconds)
            medians = {kind: statistics.median(times) for kind, times in kinds.items()}
            mips = {kind: instructions / seconds / 1e6 for kind, seconds in medians.items()}
            row = [label, f"{instructions / 1e6:,.0f} M"]
            columns = ["count", "forward", "record", "translation", "additive", "four", "full"]
            row += [f"{mips[kind]:.0f}" if kind in mips else "-" for kind in columns]
            row.append(f"{medians['four'] / medians['additive']:.2f}")
            rows.append(row)
            print(*row, flush=True)
        several = cores(folder)
    write(rows, several)


def paces() -> list[str]:
    """Measure fast-forwarding and warming, each on all of a program; return the table."""
    whole = ["--sample", "--sample-distance", ALL]
    # Seed 0 begins the first unit with the program, any other one late in the first distance.
    kinds = {
        "forward": [*whole, "--designs", "linux-4k"],
        "warm": [*whole, "--seed", "0", "--sample-warm", ALL, "--designs", "linux-4k"],
        "four": [*whole, "--seed", "0", "--sample-warm", ALL, "--designs", FOUR_DESIGNS],
    }
    rows = []
    with tempfile.TemporaryDirectory() as short, tempfile.TemporaryDirectory() as long:
        bfs = [str(ROOT / "workloads" / "bin" / "bfs"), "--scale"]
        shorter = {"bfs": [*bfs, "15"], **programs(Path(short))}
        # Long enough that Python's start does not count.
        longer = {"bfs": [*bfs, "18"], **programs(Path(long), LONGER)}
        for label in ["bfs", "sqlite3", "python3", "gcc"]:
            speeds: dict[str, list[float]] = {}
            for _ in range(RUNS):
                seconds, length = contigua(longer[label], *kinds["forward"])
                speeds.setdefault("forward", []).append(length / seconds)
                if label != "gcc":
                    speeds.setdefault("alone", []).append(length / alone(longer[label]))
                for kind in ["warm", "four"]:
                    seconds, counted = contigua(shorter[label], *kinds[kind])
                    speeds.setdefault(kind, []).append(counted / seconds)
            best = {kind: statistics.median(values) for kind, values in speeds.items()}
            row = [label, f"{length / 1e6:,.0f} M", f"{counted / 1e6:,.0f} M"]
            columns = ["alone", "forward", "warm", "four"]
            row += [f"{best[kind] / 1e6:.0f}" if kind in best else "-" for kind in columns]
            row.append(f"{best['warm'] / best['four']:.2f}")
            rows.append(row)
            print(*row, flush=True)
    header = ["program", "fast-forward over", "warming", "QEMU alone", "fast-forward"]
    header += ["warming, one design", "warming, four designs", "time of four / time of one"]
    return [
        f"{taken().capitalize()}, full detail; load average {os.getloadavg()[2]:.0f}.",
        "",
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def sizes() -> list[str]:
    """Measure what four designs take beside one, by the size of the table of gups."""
    found = []
    for mebibytes, updates in ((1, 8_000_000), (16, 6_000_000), (256, 4_000_000)):
        program = [str(ROOT / "workloads" / "bin" / "gups"), "--size", f"{mebibytes}MiB"]
        program += ["--updates", str(updates), "--no-verify"]
        ratios = []
        for _ in range(RUNS):
            pair = [
                contigua(program, "--detail", "additive", "--designs", designs)[0]
                for designs in ("linux-4k", FOUR_DESIGNS)
            ]
            ratios.append(pair[1] / pair[0])
        found.append(f"{statistics.median(ratios):.2f} with {mebibytes} MiB")
    return [f"gups, additive, time of four designs / time of one: {', '.join(found)} ({taken()})."]


def taken() -> str:
    """Say how many runs a value is of."""
    return "one run each" if RUNS == 1 else f"medians of {RUNS} runs"


def cores(folder: Path) -> list[str]:
    """Measure eight simulated cores, and what a table of migrations costs that is never used."""
    program = [str(ROOT / "workloads" / "bin" / "gups"), "--size", "32MiB"]
    program += ["--updates", "2000000", "--threads", "8", "--no-verify"]
    trace = str(folder / "threads.trace")
    timed([sys.executable, "-m", "contigua.cli", "record", "-o", trace, "--", *program])
    seconds, instructions = [], 0
    for _ in range(RUNS):
        one, instructions = contigua(program, "--cores", "8", "--designs", "linux-4k")
        seconds.append(one)
    speed = instructions / statistics.median(seconds) / 1e6
    ratios = []
    for _ in range(2 * RUNS + 1):
        pair = []
        for design in ("software-migration", "llc-migration"):
            command = [sys.executable, "-m", "contigua.cli", "run", "--cores", "8"]
            command += ["--designs", design, "--trace", trace]
            pair.append(timed(command))
        ratios.append(pair[1] / pair[0])
    return [
        f"Eight simulated cores, `gups` with eight threads: {speed:.0f} million guest instructions "
        "a second in sum, the program itself included. "
        f"A migration table that is never used, {len(ratios)} replays in pairs: "
        f"{statistics.median(ratios):.3f} of the time without (from {min(ratios):.3f} to "
        f"{max(ratios):.3f}).",
    ]


def write(rows: list[list[str]], several: list[str]) -> None:
    """Replace the generated part of docs/performance.md."""
    models = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    qemu = subprocess.run(
        [_engine.emulator(), "--version"], capture_output=True, text=True, check=True
    )
    header = [
        "program",
        "instructions",
        "only counting",
        "fast-forward",
        "recording",
        "translation, one design",
    ]
    header += ["additive, one design", "additive, four designs", "full, one design"]
    header += ["additive: time of four / time of one"]
    lines = [
        f"{os.cpu_count()} processors, {models[0]}, Linux {platform.release()}, "
        f"{qemu.stdout.splitlines()[0]}; {taken()}.",
        "",
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        *several,
    ]
    replace("whole-runs", "performance.md", lines)


if __name__ == "__main__":
    only = sys.argv[1:]
    if not only:
        main()
    if only in ([], ["paces"]):
        replace("paces", "performance.md", paces())
    if only in ([], ["sizes"]):
        replace("sizes", "performance.md", sizes())
