"""Run the malloc for long, with many threads and processes, and in little memory.

`benches/malloc/support/endurance.c` runs under all allocators at once. Redis, memcached and node
run under one after the other, in a cgroup that may have 256 MB: processes that the kernel kills for
want of memory are counted. Writes the table into docs/malloc.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import documents
import malloc
import peers

SHOWN = ["contigua", "level 2", "glibc", "jemalloc", "mimalloc 3"]
LEVEL_2 = {"CONTIGUA_MALLOC_HARDEN": "2"}
# Debian links redis with jemalloc; preloading the C library takes that away.
GLIBC = malloc.DEBIAN / "libc.so.6"
LIMIT = 256 << 20
# What a load may take.
SECONDS = 120
MEMORY = Path("/sys/fs/cgroup/memory")

Preloads = dict[str, dict[str, str]]


def start(program: Path, preload: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    """Start the program under an allocator."""
    return subprocess.Popen(
        [program, *arguments], env={**os.environ, **preload}, stdout=subprocess.PIPE, text=True
    )


def churn(program: Path, preloads: Preloads, minutes: int) -> dict[str, list[int]]:
    """Return resident MB after each minute, by allocator."""
    running = {
        name: start(program, preload, "churn", str(minutes)) for name, preload in preloads.items()
    }
    found = {}
    for name, process in running.items():
        output, _ = process.communicate()
        if process.returncode:
            sys.exit(f"churn under {name} ended with {process.returncode}")
        found[name] = [int(value) for value in output.split()]
        print("churn", name, *found[name], file=sys.stderr, flush=True)
    return found


def churned(values: list[int]) -> str:
    """Return the most that is resident in each third of the time."""
    third = max(len(values) // 3, 1)
    parts = [values[:third], values[third : 2 * third], values[2 * third :]]
    return " / ".join(f"{max(part)}" for part in parts if part)


def ended(program: Path, preload: dict[str, str], what: str, count: int) -> str:
    """Return how a run of threads or forks ended, and its largest resident MB."""
    process = start(program, preload, what, str(count))
    # Like wait4 of this child alone: nobody else's memory is in it.
    _, status, usage = os.wait4(process.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    print(what, code, usage.ru_maxrss >> 10, file=sys.stderr, flush=True)
    return f"{usage.ru_maxrss >> 10}" if code == 0 else f"ended with {code}"


@contextlib.contextmanager
def cgroup() -> Iterator[Path]:
    """Make a cgroup with the limit (version 1 or 2)."""
    first = MEMORY.exists()
    folder = (MEMORY if first else MEMORY.parent) / f"contigua-endurance-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(LIMIT))
        yield folder
    finally:
        # The kernel needs a moment for processes that have just ended.
        for _ in range(100):
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.1)


def killed(folder: Path) -> int:
    """Return how many processes of a cgroup the kernel killed for want of memory."""
    file = folder / "memory.oom_control"
    lines = (file if file.exists() else folder / "memory.events").read_text().splitlines()
    return int(dict(line.split() for line in lines)["oom_kill"])


def peak(process: subprocess.Popen[bytes]) -> int:
    """Return the largest resident MB so far of a process; 0 if it is gone."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) >> 10
    return 0


def redis(port: int) -> None:
    """Values of sizes that change, more than the server may keep."""
    base = ["redis-benchmark", "-p", str(port), "-q", "-P", "32", "-t"]
    for bytes_, count in ((100, 1_500_000), (1500, 300_000), (40, 2_000_000), (6000, 80_000)):
        more = ["-d", str(bytes_), "-r", str(count), "-n", str(count)]
        done = subprocess.run([*base, "set", *more], capture_output=True, timeout=SECONDS)
        if done.returncode:
            return


def memcached(port: int) -> None:
    """Values of 10 bytes to 20 KB, more than the server may keep."""
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port)) as connection,
    ):
        for number in range(120_000):
            size = 10 << number * 7919 % 12
            head = f"set key{number} 0 0 {size} noreply\r\n".encode()
            connection.sendall(head + b"x" * size + b"\r\n")
        connection.sendall(b"version\r\n")
        connection.recv(100)


NODE = """
const kept = [];
let sum = 0;
for (let i = 0; i < 150000; i++) {
    const size = 1000 + (i * 7919) % 70000;
    kept[i % 2500] = Buffer.alloc(size, i % 256);
    if (i % 50 === 0) sum += JSON.parse(JSON.stringify(Array(1000).fill({ i }))).length;
}
if (sum !== 3000000) process.exit(1);
"""
SERVERS = {
    "redis, `maxmemory` 100 MB": (
        [
            *("redis-server", "--port", "PORT", "--save", "", "--loglevel", "warning"),
            *("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"),
        ],
        redis,
    ),
    "memcached `-m 180`": (
        ["memcached", "-u", "root", "-l", "127.0.0.1", "-p", "PORT", "-m", "180", "-t", "4"],
        memcached,
    ),
    "node, 90 MB of buffers": (["node", "--max-old-space-size=64", "-e", NODE], None),
}


def free_port() -> int:
    """Return a port that nobody listens to."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def limited(name: str, preload: dict[str, str], directory: Path) -> str:
    """Return the largest resident MB of a program in the cgroup, or how it ended."""
    command, load = SERVERS[name]
    port = free_port()
    line = [str(port) if word == "PORT" else word for word in command]
    with cgroup() as folder:
        enter = f'echo $$ > "{folder}/cgroup.procs" && exec env "$@"'
        variables = [f"{key}={value}" for key, value in preload.items()]
        process = subprocess.Popen(
            ["sh", "-c", enter, "sh", *variables, *line], cwd=directory, stdout=subprocess.DEVNULL
        )
        most, slow = 0, False
        if load:
            while process.poll() is None:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.05)
            try:
                load(port)
            except subprocess.TimeoutExpired:
                slow = True
            most = peak(process)
            alive = process.poll() is None
            process.kill()
            process.wait()
            code = 0 if alive else process.returncode
        else:
            end = time.monotonic() + SECONDS
            while process.poll() is None and not slow:
                most = max(most, peak(process))
                slow = time.monotonic() > end
                time.sleep(0.1)
            process.kill()
            code = 0 if slow else process.wait()
        process.wait()
        kills = killed(folder)
    print(name, most, code, kills, file=sys.stderr, flush=True)
    if kills or code:
        return f"{kills} killed" if kills else f"ended with {code}"
    # At the limit, the kernel takes back the program's own pages, which it reads again and again.
    return f"{most}, no end in {SECONDS} s" if slow else f"{most}"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=30, help="of churn; 0: none")
    parser.add_argument("--threads", type=int, default=5000)
    parser.add_argument("--forks", type=int, default=1000)
    parser.add_argument("--allocators", nargs="+", default=SHOWN)
    parser.add_argument("--library", type=Path, help="our library")
    parser.add_argument("--print", action="store_true", help="write nothing, print the table")
    options = parser.parse_args()
    libraries = {**malloc.ALLOCATORS, **peers.built()}
    ours = options.library or libraries["contigua"]
    libraries |= {"contigua": ours, "level 2": ours, "glibc": GLIBC}
    preloads = {
        name: {"LD_PRELOAD": str(libraries[name])} | (LEVEL_2 if name == "level 2" else {})
        for name in options.allocators
        if (library := libraries[name]) is not None and library.exists()
    }
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "endurance"
        source = malloc.SOURCES / "support" / "endurance.c"
        command = ["cc", "-O2", "-fno-builtin-malloc", "-pthread", "-o", str(program), str(source)]
        subprocess.run(command, check=True)
        rows = []
        if options.minutes:
            values = churn(program, preloads, options.minutes)
            what = f"churn, {options.minutes} minutes, by third"
            rows += [[what, *map(churned, values.values())]]
        rows += [
            *(
                [f"{count:,} {what}", *(ended(program, p, what, count) for p in preloads.values())]
                for what, count in (("threads", options.threads), ("forks", options.forks))
            ),
            *(
                [name, *(limited(name, preload, Path(directory)) for preload in preloads.values())]
                for name in SERVERS
            ),
        ]
    about = (
        f"Largest resident MB, or how it ended, on {os.cpu_count()} CPUs; transparent huge pages "
        f"`{malloc.huge_pages()}`. Servers may have {LIMIT >> 20} MB (cgroup)."
    )
    table = {"heads": ["", *preloads], "rows": rows}
    lines = [*textwrap.wrap(about, 118), "", *documents.rows(table)]
    documents.publish("endurance", "malloc.md", lines, only_print=options.print)


if __name__ == "__main__":
    main()
