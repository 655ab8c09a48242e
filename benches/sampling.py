"""Compares sampled runs with whole ones and writes the table in docs/validation.md.

Each program runs once in full detail under two designs, then sampled with several seeds, of which
each begins its units elsewhere. The program itself does the same each time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pages import replace
from whole_runs import PYTHON, SQL

from contigua.sampling import Sampling, matched

ROOT = Path(__file__).parents[1]
SEEDS = range(1, 1 + int(os.environ.get("CONTIGUA_BENCH_SEEDS", "5")))
DESIGNS = "linux-4k,linux-thp"


#: Further options of a sampled run, by the program's name.
OPTIONS = {"bfs, 2^16 vertices, 16 M apart": ["--sample-distance", "16000000"]}


def programs(folder: Path) -> dict[str, list[str]]:
    """Commands to measure, by name; their inputs go into a folder."""
    (folder / "q.sql").write_text(SQL.replace("30000", "60000"))
    (folder / "p.py").write_text(PYTHON.replace("150000", "300000"))
    lines = (f"{number * 2_654_435_761 % 2**32}" for number in range(400_000))
    (folder / "lines").write_text("\n".join(lines))
    own = ROOT / "workloads" / "bin"
    bfs = [str(own / "bfs"), "--scale", "16", "--roots", "2"]
    return {
        "gups, 256 MB": [str(own / "gups"), "--size", "256MiB", "--updates", "2000000"],
        **{name: bfs for name in ["bfs, 2^16 vertices", *OPTIONS]},
        "random, 256 MB": [str(own / "random"), "--size", "256MiB", "--reads", "5000000"],
        "cg, 20,000 rows": [str(own / "cg"), "--rows", "20000"],
        "kv, 100,000 keys": [str(own / "kv"), "--keys", "100000", "--operations", "300000"],
        "stream, 96 MB": [str(own / "stream"), "--iterations", "3"],
        "waves, 20,000 entries": [str(own / "waves")],
        "sort, 400,000 lines": ["sort", "-n", str(folder / "lines")],
        "sqlite3": ["sqlite3", ":memory:", f".read {folder / 'q.sql'}"],
        "python3": ["/usr/bin/python3", str(folder / "p.py")],
    }


def run(program: list[str], *options: str) -> list[dict[str, Any]]:
    """Reports of a run."""
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, "-m", "contigua.cli", "run", "--json", file.name]
        command += ["--designs", DESIGNS, "--memory", "4G", *options, "--", *program]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        reports: list[dict[str, Any]] = json.loads(Path(file.name).read_text())
        return reports


def main() -> None:
    """Measure, print, and write the table."""
    rows, inside, pairs_inside, all_of_them = [], 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for name, program in programs(Path(folder)).items():
            whole = run(program)
            true = [report["time"]["cycles"] for report in whole]
            true_ratio = true[1] / true[0]
            errors, widths, ratio_errors, units = [], [], [], 0
            for seed in SEEDS:
                reports = run(program, "--sample", "--seed", str(seed), *OPTIONS.get(name, []))
                for report, cycles in zip(reports, true, strict=True):
                    estimate = report["sample"]["estimates"]["cycles"]
                    errors.append(estimate["value"] / cycles - 1)
                    widths.append(estimate["half_width"] / cycles)
                    inside += abs(errors[-1]) <= widths[-1]
                ratio = matched(reports[1], reports[0])
                assert ratio is not None, f"{name}: too few units"
                ratio_errors.append(ratio.value - true_ratio)
                pairs_inside += abs(ratio_errors[-1]) <= ratio.half_width
                units = ratio.units
                all_of_them += 1
            instructions = whole[0]["executed"]["instructions"]
            rows.append(
                f"| {name} | {instructions / 1e6:,.0f} M | {units} | "
                f"{100 * max(map(abs, errors)):.1f} % | "
                f"{100 * sum(widths) / len(widths):.1f} % | {100 * (1 - true_ratio):.1f} % | "
                f"{100 * max(map(abs, ratio_errors)):.2f} points |"
            )
            print(rows[-1], flush=True)
            # After each: a run that is ended early has a table of what it measured.
            replace("validation.md", "sampling", table(rows, (inside, pairs_inside, all_of_them)))


def table(rows: list[str], counts: tuple[int, int, int]) -> list[str]:
    """Lines of the table; how many estimates and comparisons were inside, of how many pairs."""
    sampling = Sampling()
    inside, pairs_inside, pairs = counts
    return [
        f"Two designs ({DESIGNS}), {len(SEEDS)} seeds; units of {sampling.detail:,} instructions "
        f"after up to {sampling.warm:,} that warm, {sampling.distance:,} apart. "
        f"{inside} of {2 * pairs} estimates of cycles lie inside their interval of "
        f"{100 * sampling.confidence:.0f} %, and "
        f"{pairs_inside} of {pairs} comparisons of designs inside theirs.",
        "",
        "| program | instructions | units | largest error of cycles | "
        "mean half interval | saved by huge pages | largest error of that |",
        "|---|--:|--:|--:|--:|--:|--:|",
        *rows,
    ]


if __name__ == "__main__":
    main()
