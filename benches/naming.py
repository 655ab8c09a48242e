"""Share of page walks' cycles whose function and memory a profile names; write docs/validation.md.

    benches/naming.py [PROGRAM...]

Runs what is installed of a few large programs. Debug information counts where it is installed
(`libc6-dbg`).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from documents import publish, rows

from contigua import RunOptions
from contigua.profiling import profile

ROOT = Path(__file__).resolve().parents[1]
SQL = """create table t(a integer primary key, b text, c int);
with recursive n(x) as (select 1 union all select x + 1 from n where x < 20000)
insert into t select x, hex(x * 7919), (x * 48271) % 2147483647 from n;
create index i on t(c); select count(*), sum(c) from t where b like '%7%';"""
NODE = "const m = new Map(); for (let i = 0; i < 100000; i++) m.set((i * 7919) % 100003, i);"
REDIS = """redis-server --port 0 --unixsocket sock --save '' --daemonize no > /dev/null &
until redis-cli -s sock ping > /dev/null 2>&1; do sleep 0.1; done
redis-cli -s sock debug populate 100000 key 100 > /dev/null
redis-cli -s sock shutdown nosave; wait"""
JAVA = """public class M {
    public static void main(String[] a) {
        var m = new java.util.HashMap<Integer, Integer>();
        for (int i = 0; i < 200000; i++) m.put(i * 7919, i);
    }
}"""
PROGRAMS: dict[str, tuple[str, ...]] = {
    # A build with symbols, where there is one; Debian's is stripped.
    "CPython": (
        str(Path(sys.executable).resolve()),
        "-I",
        "-c",
        "d = {str(i): i for i in range(100000)}",
    ),
    "gcc": ("gcc", "-O2", "-S", "-o", "/dev/null", str(ROOT / "workloads/tests/culprits.c")),
    "java": ("java", "-XX:+UseSerialGC", "M.java"),
    "node": ("node", "--perf-basic-prof", "-e", NODE),
    "redis": ("sh", "-ec", REDIS),
    "sqlite3": ("sqlite3", ":memory:", SQL),
}
HEADS = ["program", "function has a name, %", "memory has a name, %", "both, %"]
#: A function without a name is told by where it begins.
UNNAMED = re.compile(r"\+0x[0-9a-f]+$")


def shares(command: tuple[str, ...]) -> list[str]:
    """Return shares of the cycles of walks, in percent: by function, by memory, by both."""
    options = RunOptions(memory="8GiB", detail="additive")
    found = profile(command, designs=["linux-4k"], options=options).profiles[0]
    named = known = both = 0
    for (function, mapping), costs in found.by("function", "mapping"):
        is_named, is_known = UNNAMED.search(function) is None, mapping != "[unknown]"
        named += costs.translation_cycles * is_named
        known += costs.translation_cycles * is_known
        both += costs.translation_cycles * (is_named and is_known)
    total = max(found.total.translation_cycles, 1)
    return [f"{100 * part / total:.1f}" for part in (named, known, both)]


def main() -> None:
    """Profile each program, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("programs", nargs="*", help="by default all")
    parser.add_argument("--print", action="store_true", help="write nothing, print the table")
    options = parser.parse_args()
    table: dict[str, Any] = {"heads": HEADS, "rows": []}
    with tempfile.TemporaryDirectory(prefix="contigua-naming-") as folder:
        os.chdir(folder)
        Path("M.java").write_text(JAVA)
        for name in options.programs or PROGRAMS:
            if shutil.which(PROGRAMS[name][0]) is None:
                print(f"{name} is not there", file=sys.stderr)
                continue
            print(name, file=sys.stderr, flush=True)
            table["rows"].append([name, *shares(PROGRAMS[name])])
    publish("naming", "validation.md", rows(table), only_print=options.print)


if __name__ == "__main__":
    main()
