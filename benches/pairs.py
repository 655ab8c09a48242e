"""The engine's speed beside that of an earlier commit: replays of the same programs in turns.

``benches/pairs.py COMMIT [LEVEL...]`` builds that commit's engine below ``target/pairs`` (minutes,
once), records four programs with each engine and replays the recordings in turns, once a round with
each. Writes a table for each level in docs/performance.md. Fifty minutes
(``CONTIGUA_BENCH_RUNS=7``: half an hour; ``translation`` alone: ten minutes).
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

from documents import replace
from whole_runs import ROOT, programs, timed

ROUNDS = int(os.environ.get("CONTIGUA_BENCH_RUNS", "11"))
LEVELS = ("translation", "additive", "full")
#: Of medians that are drawn anew, how many lie on either side of the interval.
OUTSIDE = 0.025


def output(*command: str) -> str:
    """Return what a command printed."""
    return subprocess.check_output(command, cwd=ROOT, text=True).strip()


def built(commit: str) -> Path:
    """Return the Python that has a commit's engine; what that imports is this environment's."""
    folder = ROOT / "target" / "pairs" / commit
    python = folder / "venv" / "bin" / "python"
    if (folder / "built").exists():
        return python
    tree = folder / "tree"
    if not tree.exists():
        subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, tree], check=True)
        subprocess.run(["git", "checkout", "--quiet", commit], cwd=tree, check=True)
    venv.create(folder / "venv")
    maturin = Path(sys.executable).with_name("maturin")
    environment = os.environ | {"VIRTUAL_ENV": str(folder / "venv")}
    wheel = [maturin, "build", "--quiet", "--release", "--out", folder / "wheel"]
    subprocess.run(wheel, cwd=tree, env=environment, check=True)
    (found,) = (folder / "wheel").glob("*.whl")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    subprocess.run([*install, found], check=True)
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    # Behind its own, of which only the engine is one; before, pip would take this tree's for it.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (folder / "built").touch()
    return python


def command(python: str | Path, *words: str) -> list[str]:
    """Return a command of the engine that a Python has."""
    return [str(python), "-m", "contigua.cli", *words]


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, from medians of ratios drawn anew."""
    draw = random.Random(0)
    drawn = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return drawn[int(OUTSIDE * len(drawn))], drawn[-1 - int(OUTSIDE * len(drawn))]


def main() -> None:
    """Build, measure, print and write."""
    levels = tuple(sys.argv[2:]) or LEVELS
    if len(sys.argv) < 2 or not set(levels) <= set(LEVELS):
        sys.exit(f"usage: benches/pairs.py COMMIT [{' '.join(LEVELS)}]")
    base = output("git", "rev-parse", "--short", "--verify", f"{sys.argv[1]}^{{commit}}")
    pythons = [built(base), Path(sys.executable)]
    # The earlier engine was installed with its modules compiled; this tree's must be kept, too.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    found: dict[str, list[str]] = {level: [] for level in levels}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for label, program in programs(folder).items():
            traces = [folder / f"{turn}.trace" for turn in range(2)]
            for python, trace in zip(pythons, traces, strict=True):
                timed(command(python, "record", "-o", str(trace), "--", *program))
            for level in levels:
                options = ["--designs", "linux-4k", "--detail", level]
                both = [
                    command(python, "run", *options, "--trace", str(trace))
                    for python, trace in zip(pythons, traces, strict=True)
                ]
                ratios = []
                for turn in range(ROUNDS):
                    # Who is first changes, too.
                    order = (0, 1) if turn % 2 else (1, 0)
                    seconds = {which: timed(both[which]) for which in order}
                    ratios.append(seconds[1] / seconds[0])
                low, high = interval(ratios)
                ratio = f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"
                found[level].append(f"| {label} | {ratio} |")
                print(level, found[level][-1], flush=True)
            for trace in traces:
                trace.unlink()
    date = output("git", "show", "-s", "--format=%cs", base)
    for level, rows in found.items():
        title = f"`--detail {level}`: time over that of {base} ({date})"
        head = f"| program | {title}, median of {ROUNDS} pairs with its 95 % interval |"
        replace(f"pairs-{level}", "performance.md", [head, "|---|---|", *rows])


if __name__ == "__main__":
    main()
