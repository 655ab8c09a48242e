"""Advice of `contigua profile` beside what it saves natively; write docs/validation.md.

    benches/advice.py MACHINE [FOLDER] [PROGRAM...]

MACHINE is this computer's, which `contigua machines measure` writes. Each program is profiled for
advice, sampled, in a virtual machine whose host has 4 KB pages (`--host thp`: huge ones); then
`contigua-node apply --verify` runs it with and without the advice in turns. FOLDER keeps advice and
answers: what is there is not run again. Takes the programs, and huge pages on `madvise`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from documents import publish, rows

ROOT = Path(__file__).resolve().parents[1]
NODE = ROOT / "target" / "release" / "contigua-node"
ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
#: Pairs of native executions.
PAIRS = 15
#: Simulated and native savings that differ by no more agree.
WITHIN = 0.05
DESIGN = """description = "Transparent huge pages in a virtual machine: {enabled}"
[translation.thp]
enabled = "{enabled}"
[host.translation.{host}]
"""
PERL = "my %h; $h{$_ * 7919} = $_ for 1 .. 900000; my $s = 0; $s += $h{$_ * 7919} for 1 .. 900000;"
PYTHON = """d = {i * 2654435761 & 0xFFFFFFF: i for i in range(1500000)}
print(sum(d[i * 2654435761 & 0xFFFFFFF] for i in range(1500000)))"""
NODE_JS = """const m = new Map();
for (let i = 0; i < 1500000; i++) m.set((i * 2654435761) % 4294967296, i);
let s = 0;
for (let i = 0; i < 1500000; i++) s += m.get((i * 2654435761) % 4294967296);
console.log(s);"""
LUA = """local t = {} for i = 1, 1500000 do t[(i * 2654435761) % 4294967296] = i end
local s = 0 for i = 1, 1500000 do s = s + t[(i * 2654435761) % 4294967296] end print(s)"""
PHP = """ini_set('memory_limit', -1);
for ($i = 0; $i < 1500000; $i++) $t[($i * 2654435761) % 4294967296] = $i;
for ($s = $i = 0; $i < 1500000; $i++) $s += $t[($i * 2654435761) % 4294967296]; echo $s;"""
SQL = """create table t(a integer primary key, b text, c int);
with recursive n(x) as (select 1 union all select x + 1 from n where x < 400000)
insert into t select x, hex(x * 7919), (x * 48271) % 2147483647 from n;
create index i on t(c); select count(*), sum(c) from t where b like '%7%';"""


@dataclass(frozen=True)
class Program:
    """A program, what it does, and shell commands that make its inputs."""

    command: tuple[str, ...]
    does: str
    make: str = ""


PROGRAMS = {
    "python3": Program(("/usr/bin/python3", "-I", "-c", PYTHON), "a dictionary of 1.5 million"),
    "node": Program(("node", "-e", NODE_JS), "a map of 1.5 million"),
    "perl": Program(("perl", "-e", PERL), "a hash of 900,000"),
    "lua": Program(("lua5.4", "-e", LUA), "a table of 1.5 million"),
    "php": Program(("php", "-n", "-r", PHP), "an array of 1.5 million"),
    "sqlite3": Program(("sqlite3", ":memory:", SQL), "400,000 rows, an index"),
    "xz": Program(("xz", "-9", "-T1", "-k", "-c", "data"), "40 MB", "seq 5500000 > data"),
    "zstd": Program(
        ("zstd", "-q", "-T1", "-12", "-c", "data"), "70 MB, level 12", "seq 9000000 > data"
    ),
    "sort": Program(
        ("sort", "--parallel=1", "-S", "1G", "data"),
        "1.5 million lines",
        "seq 1500000 | rev > data",
    ),
    "gcc": Program(
        ("gcc", "-O2", "-std=c11", "-S", "-o", "/dev/null", "big.c"),
        "2,500 functions",
        'for i in $(seq 2500); do echo "int f$i(int *a, int n) { int s = $i; '
        'for (int i = 0; i < n; i++) s += a[i] * (s ^ i); return s; }"; done > big.c',
    ),
}


def advised(command: list[str], options: argparse.Namespace, to: Path) -> None:
    """Profile a program, and write the advice."""
    with tempfile.TemporaryDirectory() as name:
        designs = []
        for enabled in ("madvise", "always"):
            designs.append(Path(name) / f"{enabled}.toml")
            designs[-1].write_text(DESIGN.format(enabled=enabled, host=options.host))
        run = [sys.executable, "-m", "contigua.cli", "profile", "--machine", str(options.machine)]
        run += [
            "--designs",
            ",".join(map(str, designs)),
            "--memory",
            "8G",
            "--within",
            "30s",
            "--what-if",
            "2",
        ]
        subprocess.run([*run, "--advice", to, "--", *command], check=True, stdout=sys.stderr)


def verified(command: list[str], advice: Path, to: Path) -> None:
    """Keep what native pairs answer. Status 1 is one of a change that does not save."""
    verify = [NODE, "apply", "--verify", "--pairs", str(PAIRS), advice, "--", *command]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or " pairs: " not in done.stdout:
        sys.exit(f"{done.stdout}{done.stderr}")
    to.write_text(done.stdout)


def row(name: str, advice: Path, answer: Path) -> list[str]:
    """Return a program's row."""
    found = tomllib.loads(advice.read_text())
    changes = ", ".join(f"`{item['action']}`" for item in found["advice"])
    said = found["basis"]
    expected = f"{100 * said['saving']:.1f} ± {100 * said['half_width']:.1f}"
    match = re.search(r"it saves (-?[\d.]+) % ± ([\d.]+)", answer.read_text())
    assert match, answer
    native = float(match[1]) / 100
    agrees = "yes" if abs(native - said["saving"]) <= WITHIN else "no"
    return [name, PROGRAMS[name].does, changes, expected, f"{match[1]} ± {match[2]}", agrees]


def main() -> None:
    """Profile, verify, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("machine", type=Path, help="this computer's machine file")
    parser.add_argument("folder", nargs="?", type=Path, help="keeps what was run")
    parser.add_argument("programs", nargs="*", help="by default all")
    parser.add_argument("--host", choices=("base", "thp"), default="base", help="pages of the host")
    parser.add_argument("--print", action="store_true", help="write nothing, print the table")
    options = parser.parse_args()
    options.machine = options.machine.resolve()
    if "[madvise]" not in ENABLED.read_text():
        sys.exit(f"{ENABLED} is not `madvise`")
    if not NODE.exists():
        sys.exit(f"{NODE} is not there: run `cargo build --release -p contigua-node`")
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="contigua-advice-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    table: dict[str, Any] = {"heads": HEADS, "rows": []}
    without = []
    for name in options.programs or PROGRAMS:
        program = PROGRAMS[name]
        path = shutil.which(program.command[0])
        if path is None:
            print(f"{name} is not there", file=sys.stderr)
            continue
        command = [path, *program.command[1:]]
        place = folder / f"{name}.inputs"
        if not place.exists():
            place.mkdir()
            subprocess.run(["sh", "-ec", program.make or "true"], cwd=place, check=True)
        os.chdir(place)
        advice, answer = folder / f"{name}.toml", folder / f"{name}.txt"
        print(name, file=sys.stderr, flush=True)
        if not advice.exists():
            advised(command, options, advice)
        if "[[advice]]" not in advice.read_text():
            without.append(name)
            continue
        if not answer.exists():
            verified(command, advice, answer)
        table["rows"].append(row(name, advice, answer))
        print(json.dumps(table["rows"][-1], ensure_ascii=False), file=sys.stderr, flush=True)
    agree = sum(one[-1] == "yes" for one in table["rows"])
    lines = [
        f"{PAIRS} pairs of each; {agree} of {len(table['rows'])} savings of CPU time agree within "
        f"{100 * WITHIN:.0f} points.",
        "",
        *rows(table),
    ]
    if without:
        lines += ["", f"Nothing was advised for {', '.join(without)}."]
    publish("advice", "validation.md", lines, only_print=options.print)


HEADS = [
    "program",
    "what it does",
    "advice",
    "said to save, %",
    "saves natively, %",
    "within 5 points",
]


if __name__ == "__main__":
    main()
