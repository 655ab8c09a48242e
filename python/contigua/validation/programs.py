"""Default programs: the project's workloads, and programs of Debian's.

Each takes some hundred million instructions at most, because each is simulated in full. Half of
them use more memory than TLBs reach with 4 KB pages.
"""

from __future__ import annotations

import os
import random
import sys
from functools import partial
from pathlib import Path

from contigua.programs.program import Program, workload

#: The interpreter itself: what is on the path may be a script that looks for one.
PYTHON = os.path.realpath(sys.executable)
#: The text that some programs read.
TEXT_FILE = "{folder}/text"

DICTIONARY = """
d = {}
for i in range(40000):
    d[i * 2654435761 % 1000003] = str(i)
print(sum(len(v) for v in d.values()))
"""
HASHES = 'my %h; $h{$_ * 2654435761 % 1000003} .= "x$_" for 1..40000; print scalar(keys %h), "\\n"'
ROWS = """
create table t(a integer primary key, b integer, c text);
insert into t select value, value * 7919 % 100003, hex(value) from generate_series(1, 15000);
create index i on t(b);
select count(*), sum(t.a) from t join t as u on t.b = u.b;
"""


def _text(folder: Path, size: int) -> None:
    """Write so many bytes of words, by a fixed seed."""
    chance = random.Random(1)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(5000)]
    lines = []
    written = 0
    while written < size:
        lines.append(" ".join(chance.choices(words, k=8)))
        written += len(lines[-1]) + 1
    (folder / "text").write_text("\n".join(lines) + "\n")


def _system(name: str, package: str, *command: str, size: int = 2 << 20) -> Program:
    """Make a program of Debian's, with a text where it reads one."""
    reads = TEXT_FILE in command
    return Program(
        name,
        command,
        needs={command[0]: package},
        prepare=partial(_text, size=size) if reads else None,
    )


WHOLE: tuple[Program, ...] = (
    Program("gups, 32 MB", workload("gups", "--size", "32MiB", "--updates", "1000000")),
    Program(
        "gups, 128 MB",
        workload("gups", "--size", "128MiB", "--updates", "2000000", "--no-verify"),
    ),
    Program("random, 16 MB", workload("random", "--size", "16MiB", "--reads", "2500000")),
    Program("random, 64 MB", workload("random", "--size", "64MiB", "--reads", "2500000")),
    Program("random, 256 MB", workload("random", "--size", "256MiB", "--reads", "2500000")),
    Program("stream, 3 x 8 MB", workload("stream", "--size", "8MiB", "--iterations", "4")),
    Program("stream, 3 x 24 MB", workload("stream", "--size", "24MiB", "--iterations", "1")),
    Program("bfs, 2^13 vertices", workload("bfs", "--scale", "13", "--roots", "2")),
    Program(
        "bfs, 2^15 vertices",
        workload("bfs", "--scale", "15", "--edge-factor", "4", "--roots", "1"),
    ),
    Program("cg, 4,000 rows", workload("cg", "--rows", "4000", "--outer", "8", "--inner", "10")),
    Program("cg, 40,000 rows", workload("cg", "--rows", "40000", "--outer", "8", "--inner", "10")),
    Program("kv, 20,000 keys", workload("kv", "--keys", "20000", "--operations", "40000")),
    Program("kv, 80,000 keys", workload("kv", "--keys", "80000", "--operations", "10000")),
    Program("sparse, 8 GB", workload("sparse", "--size", "8GiB", "--stride", "100")),
    Program(
        "waves, 6,000 entries",
        workload("waves", "--entries", "6000", "--waves", "2", "--requests", "5000"),
    ),
    Program(
        "probe, pages of 24 MB",
        workload(
            *("probe", "chase", "--size", "24M", "--step", "4K", "--huge"),
            *("--operations", "1000000", "--repeats", "3"),
        ),
    ),
    Program(
        "probe, lines of 32 MB",
        workload("probe", "chase", "--size", "32M", "--huge", "--operations", "300000"),
    ),
    _system("sort, 2 MB", "coreutils", "sort", "-S", "64M", "--parallel=1", TEXT_FILE),
    _system("xz, 256 KB", "xz-utils", "xz", "-0", "-T1", "-c", TEXT_FILE, size=1 << 18),
    _system("gzip, 1 MB", "gzip", "gzip", "-1", "-c", TEXT_FILE, size=1 << 20),
    _system("sqlite3", "sqlite3", "sqlite3", ":memory:", ROWS),
    _system("python3", "python3", PYTHON, "-S", "-E", "-c", DICTIONARY),
    _system("perl", "perl", "perl", "-e", HASHES),
    _system("wc, 2 MB", "coreutils", "wc", TEXT_FILE),
    _system("tac, 8 MB", "coreutils", "tac", TEXT_FILE, size=8 << 20),
)

#: Five that end soon.
QUICK: tuple[Program, ...] = (
    Program("gups, 64 MB", workload("gups", "--size", "64MiB", "--updates", "500000")),
    Program("random, 64 MB", workload("random", "--size", "64MiB", "--reads", "1000000")),
    Program("stream, 3 x 8 MB", workload("stream", "--size", "8MiB", "--iterations", "1")),
    Program("kv, 50,000 keys", workload("kv", "--keys", "50000", "--operations", "50000")),
    _system("gzip, 1 MB", "gzip", "gzip", "-1", "-c", TEXT_FILE, size=1 << 20),
)
