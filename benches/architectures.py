"""Sources on both x86-64 and aarch64, and programs of Debian's arm64, in ``contigua run``.

``architectures.py`` builds ``workloads/*.c`` for both with GCC and compares what they ask of the
TLBs of one machine; it writes the table in docs/validation.md, in minutes. Takes
`gcc-aarch64-linux-gnu`, `libc6-dev-arm64-cross` and `qemu-user`.

``architectures.py --root DIR`` runs five programs of an unpacked Debian for arm64 instead, and
writes the table in docs/how-to/study-a-program.md. This makes DIR::

    mmdebstrap --variant=extract --architectures=arm64 \\
        --include=sqlite3,python3,redis-server,gcc,libc6-dev,nodejs bookworm DIR
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from documents import replace

import contigua
from contigua import RunOptions

ROOT = Path(__file__).parents[1]
WORKLOADS = ROOT / "workloads"
#: Loader and libraries of Debian's cross compiler.
LIBRARIES = Path("/usr/aarch64-linux-gnu")
MACHINE = "neoverse-v2"
DESIGNS = ["linux-4k", "linux-thp"]
Report = dict[str, Any]
#: A quarter of a minute each, or less.
COMMANDS = [
    "gups --size 64M --updates 2000000",
    "random --size 64M --reads 1000000",
    "bfs --scale 15 --roots 4",
    "cg --rows 20000 --inner 10",
    "kv --keys 100000 --operations 200000",
    "stream --size 32M --iterations 2",
    "hashjoin --heads 500000 --rows 250000",
    "btree --keys 200000 --lookups 200000",
    "anneal --elements 100000 --moves 100000",
    "neutrons --points 50 --lookups 10000",
]


def build() -> None:
    """Build the workloads for both."""
    for more in ([], ["CC=aarch64-linux-gnu-gcc", "BIN=bin/aarch64"]):
        subprocess.run(["make", "--quiet", "-C", WORKLOADS, *more], check=True)


def run(folder: Path, command: str, root: Path | None) -> list[Report]:
    """Run a workload of a folder, and return the report of each design."""
    name, *arguments = command.split()
    options = RunOptions(machine=MACHINE, detail="translation", root=root)
    with contextlib.redirect_stdout(sys.stderr):
        results = contigua.run([str(folder / name), *arguments], designs=DESIGNS, options=options)
    if results.exit_code:
        sys.exit(f"{command}: status {results.exit_code}")
    return [report.values for report in results]


def walks(report: Report) -> int:
    """Count the page walks of data and code."""
    kinds = (report["tlb"][f"{kind}_misses"] for kind in ("load", "store", "fetch"))
    return sum(kind[f"walk_completed_{size}"] for kind in kinds for size in ("4k", "2m", "1g"))


def row(command: str) -> str:
    """Compare a workload on both."""
    both = [
        run(WORKLOADS / "bin", command, None),
        run(WORKLOADS / "bin" / "aarch64", command, LIBRARIES),
    ]
    small, huge = zip(*both, strict=True)

    def pair(value: Callable[[Report], float], form: str, reports: Iterable[Report] = small) -> str:
        return " / ".join(format(value(report), form) for report in reports)

    def per_instruction(report: Report, count: float, of: int = 1000) -> float:
        return of * count / report["executed"]["instructions"]

    cells = [
        f"`{command}`",
        pair(lambda r: r["executed"]["instructions"] / 1e6, ",.0f"),
        pair(lambda r: per_instruction(r, r["tlb"]["data"]["lookups"], 100), ".0f"),
        pair(lambda r: r["tlb"]["data"]["misses_4k"] / 1e3, ",.0f"),
        pair(lambda r: walks(r) / 1e3, ",.0f"),
        pair(lambda r: per_instruction(r, walks(r)), ".2f"),
        pair(lambda r: walks(r) / 1e3, ",.1f", huge),
    ]
    return "| " + " | ".join(cells) + " |"


def compare() -> None:
    """Compare all workloads, print and write."""
    build()
    table = [
        "| workload | instructions, M | data TLB look-ups in 100 instructions "
        "| L1 misses, thousand | page walks, thousand | in 1,000 instructions "
        "| with huge pages, thousand |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for command in COMMANDS:
        table.append(row(command))
        print(table[-1], flush=True)
    replace("architectures", "validation.md", table)


class Program(NamedTuple):
    """A program of Debian's: what runs, what it is given, and what it then says."""

    command: list[str]
    shown: str
    says: str
    input: str | None = None
    drive: Callable[[], str] | None = None


SQL = """create table t(a integer primary key, b text);
with recursive c(x) as (select 1 union all select x+1 from c where x<20000)
insert into t select x, hex(x*7919) from c;
create index i on t(b); select count(*) from t where b like '3%';"""
PYTHON = "import json, platform; print(platform.machine(), len(json.dumps(list(range(10000)))))"
NODE = "let s = 0; for (let i = 0; i < 1e5; i++) s += i % 7; console.log(process.arch, s)"
PORT = 7789
REQUESTS = 500


def drive_redis() -> str:
    """Set and get values as a client does, end the server, and say what it answered."""
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", PORT)) as client:
            stream = client.makefile("rwb")
            for i in range(REQUESTS):
                stream.write(b"SET key:%d %d\r\nGET key:%d\r\n" % (i, i * i, i))
                stream.flush()
                answers = [stream.readline() for _ in range(3)]
                if answers != [b"+OK\r\n", b"$%d\r\n" % len(str(i * i)), b"%d\r\n" % (i * i)]:
                    return f"answered {answers}"
            stream.write(b"SHUTDOWN NOSAVE\r\n")
            stream.flush()
            return f"{REQUESTS} right answers"
        time.sleep(0.1)
    return "no answer"


def programs(root: Path, folder: Path) -> dict[str, Program]:
    """Return the five programs."""
    source, built = folder / "hello.c", folder / "hello"
    source.write_text('#include <stdio.h>\nint main(void) { puts("hello"); }\n')
    # It asks for its parts by calls that QEMU does not lead into the root.
    compiler = [f"{root}/usr/bin/gcc", f"--sysroot={root}"]
    server = ["redis-server", "--port", str(PORT), "--save", ""]
    return {
        "sqlite3": Program(["sqlite3", ":memory:"], "20,000 rows, an index", "20000", input=SQL),
        "python3": Program(["python3", "-c", PYTHON], "JSON of 10,000 numbers", "aarch64 58890"),
        "redis": Program(
            server, f"{REQUESTS} sets and gets", f"{REQUESTS} right answers", drive=drive_redis
        ),
        "gcc": Program(
            [*compiler, "-O2", "-o", str(built), str(source)], "compile and link a file", ""
        ),
        "node": Program(["node", "-e", NODE], "a loop of 100,000 rounds", "arm64 299995"),
    }


def debian_row(name: str, program: Program, root: Path, report: Path) -> str:
    """Run a program of Debian's and return its row."""
    command = [sys.executable, "-m", "contigua.cli", "run", "--root", str(root)]
    command += ["--machine", MACHINE, "--designs", ",".join(DESIGNS), "--detail", "translation"]
    process = subprocess.Popen(
        [*command, "--json", str(report), "--", *program.command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ,
    )
    driven = program.drive() if program.drive is not None else ""
    said = driven + process.communicate(program.input)[0]
    if process.returncode or program.says not in said:
        sys.exit(f"{name}: status {process.returncode}\n{said}")
    first = json.loads(report.read_text())[0]
    cells = [
        name,
        program.shown,
        f"{first['executed']['instructions'] / 1e6:,.0f} M",
        str(first["program"]["processes"]),
        str(first["program"]["threads"]),
        f"{1000 * walks(first) / first['executed']['instructions']:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def debian(root: Path) -> None:
    """Run the programs of a root, print and write."""
    table = [
        "| program | does | instructions | processes | threads "
        "| page walks in 1,000 instructions |",
        "|---|---|--:|--:|--:|--:|",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for program, what in programs(root, folder).items():
            table.append(debian_row(program, what, root, folder / "report.json"))
            print(table[-1], flush=True)
        said = subprocess.run(
            ["qemu-aarch64", "-L", root, folder / "hello"], capture_output=True, text=True
        )
        if said.stdout != "hello\n":
            sys.exit(f"what gcc made does not run: {said.stdout}{said.stderr}")
    replace("debian-arm64", "how-to/study-a-program.md", table)


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, metavar="DIR", help="an unpacked Debian for arm64")
    arguments = parser.parse_args()
    if arguments.root is None:
        compare()
    else:
        debian(arguments.root.resolve())


if __name__ == "__main__":
    main()
