"""Advice of `contigua profile` beside what it saves natively; write docs/validation.md.

    benches/advice.py MACHINE [FOLDER] [PROGRAM...]

MACHINE is this computer's, which `contigua machines measure` writes. Each program is profiled for
advice in a virtual machine whose host has 4 KB pages (`--host thp`: huge ones) and has mapped all
its memory before, as one that has run for hours; then
`contigua-node apply --verify` runs it with and without the advice in turns. FOLDER keeps advice and
answers: what is there is not run again. Takes the programs, and huge pages on `madvise`.
"""

from __future__ import annotations

import argparse
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
PAIRS = 40
#: Simulated and native savings that differ by no more agree; a smaller one agrees with none, too.
WITHIN = 0.05
DESIGN = """description = "Transparent huge pages in a virtual machine: {enabled}"
[translation.thp]
enabled = "{enabled}"
[host]
populated = true
[host.translation.{host}]
"""
PERL = "my %h; $h{$_ * 7919} = $_ for 1 .. 250000; my $s = 0; $s += $h{$_ * 7919} for 1 .. 250000;"
PYTHON = """d = {i * 2654435761 & 0xFFFFFFF: i for i in range(300000)}
print(sum(d[i * 2654435761 & 0xFFFFFFF] for i in range(300000)))"""
NODE_JS = """const m = new Map();
for (let i = 0; i < 300000; i++) m.set((i * 2654435761) % 4294967296, i);
let s = 0;
for (let i = 0; i < 300000; i++) s += m.get((i * 2654435761) % 4294967296);
console.log(s);"""
LUA = """local t = {} for i = 1, 300000 do t[(i * 2654435761) % 4294967296] = i end
local s = 0 for i = 1, 300000 do s = s + t[(i * 2654435761) % 4294967296] end print(s)"""
PHP = """ini_set('memory_limit', -1);
for ($i = 0; $i < 300000; $i++) $t[($i * 2654435761) % 4294967296] = $i;
for ($s = $i = 0; $i < 300000; $i++) $s += $t[($i * 2654435761) % 4294967296]; echo $s;"""
RUBY = """h = {}; 300000.times { |i| h[i * 2654435761 & 0xFFFFFFF] = i }
s = 0; 300000.times { |i| s += h[i * 2654435761 & 0xFFFFFFF] }; puts s"""
AWK = """BEGIN { for (i = 0; i < 300000; i++) t[(i * 2654435761) % 4294967296] = i
for (i = 0; i < 300000; i++) s += t[(i * 2654435761) % 4294967296]; print s }"""
SQL = """create table t(a integer primary key, b text, c int);
with recursive n(x) as (select 1 union all select x + 1 from n where x < 60000)
insert into t select x, hex(x * 7919), (x * 48271) % 2147483647 from n;
create index i on t(c); select count(*), sum(c) from t where b like '%7%';"""


@dataclass(frozen=True)
class Program:
    """A program, what it does, and shell commands that make its inputs."""

    command: tuple[str, ...]
    does: str
    make: str = ""


PROGRAMS = {
    "python3": Program(("/usr/bin/python3", "-I", "-c", PYTHON), "a dictionary of 300,000"),
    "node": Program(("node", "-e", NODE_JS), "a map of 300,000"),
    "perl": Program(("perl", "-e", PERL), "a hash of 250,000"),
    "lua": Program(("lua5.4", "-e", LUA), "a table of 300,000"),
    "php": Program(("php", "-n", "-r", PHP), "an array of 300,000"),
    "ruby": Program(("ruby", "-e", RUBY), "a hash of 300,000"),
    "gawk": Program(("gawk", AWK), "an array of 300,000"),
    "jq": Program(
        ("jq", "-s", "map(. * 48271 % 2147483647) | sort | add", "data"),
        "200,000 numbers",
        "seq 200000 > data",
    ),
    "bzip2": Program(("bzip2", "-9", "-c", "data"), "2.1 MB", "seq 300000 > data"),
    "sqlite3": Program(("sqlite3", ":memory:", SQL), "60,000 rows, an index"),
    "zstd": Program(
        ("zstd", "-q", "-T1", "-3", "-c", "data"), "6.9 MB, level 3", "seq 1000000 > data"
    ),
    "sort": Program(
        ("sort", "--parallel=1", "-S", "1G", "data"),
        "300,000 lines",
        "seq 300000 | rev > data",
    ),
    "gcc": Program(
        ("gcc", "-O2", "-std=c11", "-S", "-o", "/dev/null", "big.c"),
        "100 functions",
        'for i in $(seq 100); do echo "int f$i(int *a, int n) { int s = $i; '
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
        run += ["--designs", ",".join(map(str, designs)), "--memory", "8G"]
        run += ["--detail", "additive", "--what-if", "3"]
        subprocess.run([*run, "--advice", to, "--", *command], check=True, stdout=sys.stderr)


def verified(command: list[str], advice: Path, to: Path) -> None:
    """Keep what native pairs answer. Status 1 is one of a change that does not save."""
    verify = [NODE, "apply", "--verify", "--pairs", str(PAIRS), advice, "--", *command]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or " pairs: " not in done.stdout:
        sys.exit(f"{done.stdout}{done.stderr}")
    to.write_text(done.stdout)


def whole(answer: Path) -> str:
    """Return what all changes of a program save together, natively."""
    found = re.search(
        r"it saves (-?[\d.]+ % \(-?[\d.]+ to -?[\d.]+\)) of the CPU time", answer.read_text()
    )
    assert found, answer
    return found[1]


def said(advice: Path) -> str:
    """Return what all changes of a program are said to save together, where that was tried."""
    saving = tomllib.loads(advice.read_text())["basis"].get("saving")
    return "" if saving is None else f" (said {100 * saving:.1f})"


def compared(name: str, advice: Path, answer: Path) -> list[list[str]]:
    """Return a row for each change of a program."""
    items = {item["name"]: item for item in tomllib.loads(advice.read_text())["advice"]}
    found = []
    for line in answer.read_text().splitlines()[1:]:
        said = re.fullmatch(
            r"(?:holds|withdrawn): (.*): saves (-?[\d.]+) % "
            r"\((-?[\d.]+) to (-?[\d.]+)\) \(expected.*",
            line,
        )
        assert said, line
        item, native, most = items[said[1]], float(said[2]) / 100, float(said[4]) / 100
        agrees = abs(native - item["saving"]) <= WITHIN and most >= 0
        expected, action = f"{100 * item['saving']:.1f}", f"`{item['action']}`: {item['name']}"
        native_words = f"{said[2]} ({said[3]} to {said[4]})"
        what = f"{name}, {PROGRAMS[name].does}"
        found.append(
            [what, action, item["rests_on"], expected, native_words, "yes" if agrees else "no"]
        )
    return found


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
    together, without = [], []
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
        if not tomllib.loads(advice.read_text())["advice"]:
            without.append(name)
            continue
        if not answer.exists():
            verified(command, advice, answer)
        together.append(f"{name} {whole(answer)}{said(advice)}")
        table["rows"] += compared(name, advice, answer)
        print(table["rows"][-1], file=sys.stderr, flush=True)
    telling = [one for one in table["rows"] if float(one[3]) >= 100 * WITHIN]
    agree, told = (
        f"{sum(one[-1] == 'yes' for one in found)} of {len(found)}"
        for found in (table["rows"], telling)
    )
    lines = [
        f"{PAIRS} pairs of each. Of savings of CPU time, {agree} agree within "
        f"{100 * WITHIN:.0f} points, and are no losses: {told} of those that are said to be as "
        f"large, the others say little. All changes together save: {', '.join(together)}.",
        "",
        *rows(table),
    ]
    if without:
        lines += ["", f"Nothing was advised for {', '.join(without)}."]
    publish("advice", "validation.md", lines, only_print=options.print)


HEADS = [
    "program",
    "advice",
    "rests on",
    "said to save, %",
    "saves natively, %",
    "within 5 points",
]


if __name__ == "__main__":
    main()
