"""The programs that several experiments run, at several scales."""

from __future__ import annotations

import sys
from pathlib import Path

from contigua.programs.databases import mariadb, redis, sqlite
from contigua.programs.program import Program, workload
from contigua.programs.servers import Load, memcached, nginx
from contigua.programs.tpcc import Company

PYTHON = (
    "import random; random.seed(1); "
    "d = {{random.randrange(1 << 40): str(i) for i in range({n})}}; "
    "k = list(d); print(sum(len(d[random.choice(k)]) for _ in range({n})))"
)


def catalogue(scale: str) -> dict[str, Program]:
    """Return every program by name: tiny for tests, brief for many cells, small, or large."""

    def pick(small: int, big: int, *, brief: int | None = None) -> int:
        return big if scale == "large" else brief if scale == "brief" and brief else small

    size = {"tiny": "1MiB", "brief": "64MiB", "small": "64MiB", "large": "512MiB"}[scale]
    graph = {"tiny": "9", "brief": "12", "small": "15", "large": "20"}[scale]
    programs = [
        Program(
            "gups",
            (
                *workload(
                    "gups",
                    "--size",
                    size,
                    "--updates",
                    str(pick(1_500_000, 20_000_000, brief=500_000)),
                ),
                "--no-verify",
            ),
        ),
        Program("bfs", workload("bfs", "--scale", graph, "--roots", str(pick(1, 4)))),
        Program(
            "cg",
            (
                *workload("cg", "--rows", str(pick(15_000, 600_000))),
                *("--outer", "8", "--inner", "10"),
            ),
        ),
        Program(
            "kv",
            (
                *workload("kv", "--keys", str(pick(60_000, 1_000_000))),
                *("--operations", str(pick(200_000, 5_000_000))),
            ),
        ),
        {
            "tiny": memcached(Load(500, 256, 1_000)),
            "brief": memcached(Load(15_000, 1024, 10_000)),
            "small": memcached(Load(60_000, 1024, 60_000)),
            "large": memcached(Load(1_000_000, 1024, 2_000_000), memory_mib=2048),
        }[scale],
        {
            "tiny": nginx(20, 200),
            "brief": nginx(400, 5_000),
            "small": nginx(400, 20_000),
            "large": nginx(4_000, 500_000),
        }[scale],
        redis(pick(2_000, 20_000, brief=1_000), 16384, pick(4_000, 50_000, brief=1_500)),
        sqlite(pick(5_000, 500_000, brief=2_500), pick(5_000, 500_000, brief=2_500)),
        mariadb(Company(pick(1, 16), pick(10, 1)), pick(96, 2_000)),
        Program(
            "xz",
            (
                "xz",
                "--format=raw",
                "--stdout",
                "--threads=1",
                f"--lzma2=dict={pick(8, 64)}MiB",
                "/usr/bin/bash",
            ),
            {"xz": "xz-utils"},
        ),
        Program(
            "gcc",
            ("gcc", "-O2", "-S", "-o", "{folder}/out.s", "-x", "c", "{folder}/in.c"),
            {"gcc": "gcc"},
            prepare=lambda folder: write_c(folder, pick(3, 500)),
        ),
        Program(
            "python", (sys.executable, "-c", PYTHON.format(n=pick(20_000, 1_000_000, brief=4_000)))
        ),
    ]
    return {program.name: program for program in programs}


def write_c(folder: Path, functions: int) -> None:
    """Write a C program whose functions are large enough to keep a compiler busy."""
    text = "".join(
        f"int f{i}(int a, int b) {{ int s = {i}; "
        + " ".join(
            f"for (int j = a; j < b; j += {k + 1}) s ^= (s << {k % 7}) + j * {k};"
            for k in range(12)
        )
        + " return s; }\n"
        for i in range(functions)
    )
    (folder / "in.c").write_text(text)
