"""Redis under varying demand, real huge pages (Adaptive Subrelease, section 5.1, figure 9)."""

from __future__ import annotations

import random
import resource
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from contigua.programs.clients import wait_for
from contigua.programs.program import MissingProgramError, ProgramError
from contigua_experiments.base import Context, Outcome, Sheet
from contigua_experiments.native import MB, Allocator, Sample, Sampler, huge_pages
from contigua_experiments.redis_build import redis_server

if TYPE_CHECKING:
    from contigua.page import Page

#: Seconds that an answer may take.
ANSWER = 60.0
#: Files that a process has open beside its connections.
FILES = 200
#: Entries of the paper's batches; memory is shown as if there were so many.
ENTRIES = 200_000
ORDERS = ("as added", "random")
#: Ours: as it comes; with whole free huge pages kept for Δ, too, against step 1 of the paper's
#: section 4; and without Δ.
ADAPTIVE, CACHE, STATIC = "contigua", "contigua, with a cache", "contigua, static"


@dataclass(frozen=True)
class Run:
    """Result of one allocator with one order of removal.

    Attributes
    ----------
    samples
        From the first addition to the last removal.
    operations
        Entries added and removed per second while that was done.
    """

    samples: Sequence[Sample]
    operations: float

    @property
    def coverage(self) -> float:
        """Mean share of anonymous memory in huge pages, in percent."""
        return fmean(one.coverage for one in self.samples)

    @property
    def rss(self) -> float:
        """Mean resident memory in megabytes."""
        return fmean(one.rss for one in self.samples) / MB

    @property
    def minor_faults(self) -> int:
        """Minor faults in all."""
        return self.samples[-1].minor_faults - self.samples[0].minor_faults

    def heap(self, name: str) -> float | None:
        """Return the mean of one of our allocator's figures, in megabytes if it is in bytes."""
        values = [one.heap[name] for one in self.samples if name in one.heap]
        return fmean(values) / MB if values else None

    def last(self, name: str) -> int | None:
        """Return one of our allocator's figures at the end."""
        return self.samples[-1].heap.get(name)


def allocators(rate: int, interval: int) -> list[Allocator]:
    """Return ours with and without the adaptive policy, and the others in their own settings."""
    ours = {"CONTIGUA_MALLOC_BACKGROUND": "on", "CONTIGUA_MALLOC_RELEASE_RATE": str(rate)}
    library = "libcontigua_malloc.so"
    adaptive = {**ours, "CONTIGUA_MALLOC_INTERVAL": f"{interval}s"}
    return [
        Allocator(ADAPTIVE, library, adaptive),
        Allocator(CACHE, library, {**adaptive, "CONTIGUA_MALLOC_CACHE_INTERVAL": f"{interval}s"}),
        Allocator(STATIC, library, {**ours, "CONTIGUA_MALLOC_INTERVAL": "0"}),
        Allocator("glibc"),
        Allocator("tcmalloc", "libtcmalloc_minimal.so.4"),
        Allocator("mimalloc", "libmimalloc.so.2"),
        Allocator("jemalloc", "libjemalloc.so.2"),
        Allocator(
            "jemalloc, huge pages",
            "libjemalloc.so.2",
            {"MALLOC_CONF": "hpa:true,background_thread:true,metadata_thp:auto"},
        ),
    ]


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Run redis under every allocator that is there, with both orders of removal."""
    known = allocators(inputs["release_rate"], inputs["interval"])
    if known[0].missing():
        raise MissingProgramError(
            f"{known[0].library} is not built (cargo build --release -p contigua-malloc)"
        )
    here = [one for one in known if not one.missing()]
    runs: dict[tuple[str, str], Run] = {}
    server = redis_server()
    with huge_pages("always"), _more_files(inputs["connections"] + FILES):
        for one in here:
            for order in ORDERS:
                runs[one.name, order] = run_redis(server, one, order, inputs)
                if context.progress is not None:
                    context.progress(len(runs) / len(here) / len(ORDERS))
    return figures(runs, [one.name for one in known if one.missing()], inputs)


@contextmanager
def _more_files(wanted: int) -> Iterator[None]:
    """Allow this process and the server so many open files, for a time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise MissingProgramError(f"{wanted} open files are needed and {hard} allowed (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def run_redis(server: Path, allocator: Allocator, order: str, inputs: dict[str, Any]) -> Run:
    """Run the protocol once.

    Raises
    ------
    ProgramError
        When redis ends or answers wrongly.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="contigua-")))
        log = stack.enter_context((folder / "log").open("wb"))
        address = folder / "socket"
        command = [str(server), "--port", "0", "--unixsocket", str(address), "--save", ""]
        command += ["--appendonly", "no", "--dir", str(folder)]
        command += ["--maxclients", str(inputs["connections"] + 10)]
        # Redis asks the kernel for no huge pages unless it is told not to.
        command += ["--disable-thp", "no"]
        # It must not outlive us, however we end.
        if guard := shutil.which("setpriv"):
            command = [guard, "--pdeathsig", "KILL", *command]
        process = stack.enter_context(
            subprocess.Popen(command, env=allocator.variables(), stdout=log, stderr=log)
        )
        stack.callback(process.kill)
        try:
            _wait(process, address)
            pool = [stack.enter_context(_connect(address)) for _ in range(inputs["connections"])]
            return _drive(process.pid, pool, order, inputs)
        except OSError as error:
            said = (folder / "log").read_text(errors="replace").strip().splitlines()
            last = f" ({said[-1]})" if said else ""
            raise ProgramError(f"redis under {allocator.name}: {error}{last}") from error


def _wait(process: subprocess.Popen[bytes], address: Path) -> None:
    def answers() -> bool:
        if process.poll() is not None:
            raise OSError(f"redis ended with status {process.returncode}")
        return address.exists()

    wait_for(answers, threading.Event())


def _connect(address: Path) -> socket.socket:
    one = socket.socket(socket.AF_UNIX)
    # With a timeout this would not wait for room in the server's queue.
    one.connect(str(address))
    one.settimeout(ANSWER)
    return one


def _drive(pid: int, pool: list[socket.socket], order: str, inputs: dict[str, Any]) -> Run:
    entries, size = inputs["entries"], inputs["value_bytes"]
    generator = random.Random(inputs["seed"])
    exchange(pool, inputs["depth"], (add("base", n, size) for n in range(entries)), b"+OK\r\n")
    busy = 0.0
    with Sampler(pid, inputs["sample_seconds"]) as sampler:
        for number in range(inputs["rounds"]):
            name = f"round{number}"
            added = list(range(entries))
            start = time.monotonic()
            exchange(pool, inputs["depth"], (add(name, n, size) for n in added), b"+OK\r\n")
            busy += time.monotonic() - start
            time.sleep(inputs["wait_seconds"])
            if order == "random":
                generator.shuffle(added)
            start = time.monotonic()
            exchange(pool, inputs["depth"], (remove(name, n) for n in added), b":1\r\n")
            busy += time.monotonic() - start
    if not sampler.samples:
        raise OSError("its memory cannot be read")
    return Run(sampler.samples, 2 * entries * inputs["rounds"] / busy)


def add(name: str, number: int, size: int) -> bytes:
    """Return the request that adds an entry."""
    key = b"%s:%08d" % (name.encode(), number)
    return b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, size, b"x" * size)


def remove(name: str, number: int) -> bytes:
    """Return the request that removes it."""
    key = b"%s:%08d" % (name.encode(), number)
    return b"*2\r\n$3\r\nDEL\r\n$%d\r\n%s\r\n" % (len(key), key)


def exchange(
    pool: Sequence[socket.socket], depth: int, requests: Iterator[bytes], answer: bytes
) -> None:
    """Send requests over all connections, ``depth`` on each at a time, and check the answers.

    Raises
    ------
    OSError
        When an answer is another one, or does not come.
    """
    while True:
        counts = []
        for one in pool:
            batch = [request for _, request in zip(range(depth), requests, strict=False)]
            if not batch:
                break
            one.sendall(b"".join(batch))
            counts.append(len(batch))
        if not counts:
            return
        for one, count in zip(pool, counts, strict=False):
            expected = answer * count
            said = one.recv(len(expected))
            while said and len(said) < len(expected):
                more = one.recv(len(expected) - len(said))
                if not more:
                    break
                said += more
            if said != expected:
                raise OSError(f"redis answered {said[:60]!r}")


def figures(
    runs: dict[tuple[str, str], Run], missing: Sequence[str], inputs: dict[str, Any]
) -> Outcome:
    """Compare ours with the paper and with the others."""
    scale = ENTRIES / inputs["entries"]
    values: dict[str, float | None] = {}
    for order in ORDERS:
        key = order.replace(" ", "_")
        ours, static = runs[ADAPTIVE, order], runs[STATIC, order]
        values |= {
            f"coverage_{key}": ours.coverage,
            f"static_{key}": static.coverage,
            f"gain_{key}": ours.coverage - static.coverage,
            f"rss_{key}": scale * ours.rss,
            f"realized_{key}": _scaled(ours.heap("realized_fragmentation"), scale),
            f"better_{key}": float(
                sum(
                    other.coverage > ours.coverage and other.rss < ours.rss
                    for (name, its), other in runs.items()
                    if its == order and name not in (ADAPTIVE, CACHE, STATIC)
                )
            ),
        }
    values["partly"] = between(runs[STATIC, "random"].samples)
    notes = [
        f"{inputs['rounds']} rounds of {inputs['entries']} entries of {inputs['value_bytes']} "
        f"bytes over {inputs['connections']} connections, {inputs['depth']} requests on each at a "
        f"time, {inputs['wait_seconds']:g} s of waiting, "
        f"{inputs['release_rate'] / 1e6:g} MB/s, Δ = {inputs['interval']} s.",
        "Coverage is AnonHugePages of Anonymous and RSS all that is resident, as the kernel counts "
        "them in smaps_rollup, averaged from the first addition to the last removal. Transparent "
        "huge pages were on 'always'. The other allocators have their own defaults for giving "
        "memory back; static is ours with Δ = 0, and with a cache ours with whole free huge pages "
        "kept for Δ, too.",
    ]
    if scale != 1:
        notes.append(
            f"Scaled down: entries, waiting and Δ are 1/{scale:g} of the paper's 200,000, 5 s and "
            f"60 s, and rounds {inputs['rounds']} of 10. The rate stays, since both memory and "
            f"time shrink. Memory is shown times {scale:g}. Memory is given back once a second, "
            "about as long as entries are away here: what Δ gains shows at full scale only."
        )
    if missing:
        notes.append(f"Not installed: {', '.join(missing)}.")
    heads = ["allocator", "removal", "coverage %", "RSS MB", "minor faults", "operations/s"]
    rows = [
        [
            name,
            order,
            f"{run.coverage:.1f}",
            f"{scale * run.rss:.0f}",
            f"{run.minor_faults}",
            f"{run.operations:.0f}",
        ]
        for (name, order), run in runs.items()
    ]
    sheets = [Sheet("Means over the run", heads, rows), _heap_sheet(runs, scale)]
    return Outcome(values, _pictures(runs), notes=notes, sheets=sheets)


def between(samples: Sequence[Sample]) -> float | None:
    """Return what of all free memory lies on huge pages that are in use in part, in percent."""
    free = sum(one.heap.get("heap_free_mapped", 0) for one in samples)
    whole = sum(one.heap.get("heap_cached", 0) for one in samples)
    return 100 * (free - whole) / free if free else None


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _heap_sheet(runs: dict[tuple[str, str], Run], scale: float) -> Sheet:
    """Return what our allocator says of itself."""
    means = {
        "used MB": "heap_used",
        "mapped MB": "heap_mapped",
        "free MB": "heap_free_mapped",
        "in free spans MB": "central_free",
        "average frag. MB": "average_fragmentation",
        "realized frag. MB": "realized_fragmentation",
    }
    ends = {
        "broken": ("broken_total", 1),
        "skipped MB": ("skipped", MB),
        "correct MB": ("skipped_correct", MB),
        "whole MB": ("released_whole", MB),
        "pieces MB": ("released_broken", MB),
    }
    rows = []
    for (name, order), run in runs.items():
        if not any(one.heap for one in run.samples):
            continue
        row = [f"{(run.heap(key) or 0) * scale:.1f}" for key in means.values()]
        row += [f"{(run.last(key) or 0) * scale / unit:.0f}" for key, unit in ends.values()]
        rows.append([name, order, *row])
    title = "What the allocator says: means, then numbers at the end"
    return Sheet(title, ["allocator", "removal", *means, *ends], rows)


def _pictures(runs: dict[tuple[str, str], Run]) -> Callable[[Page], None]:
    def illustrate(page: Page) -> None:
        from contigua.pictures import lines_picture

        panels: list[tuple[str, Callable[[Sample], float]]] = [
            ("memory in huge pages, %", lambda one: one.coverage),
            ("resident, MB", lambda one: one.rss / MB),
        ]
        _over_time(page, runs[STATIC, "random"].samples)
        for order in ORDERS:
            charts = [
                (
                    label,
                    {
                        name: ([s.seconds for s in run.samples], [up(s) for s in run.samples])
                        for (name, its), run in runs.items()
                        if its == order
                    },
                )
                for label, up in panels
            ]
            page.heading(f"Entries removed {order}")
            page.picture(
                lines_picture(charts, f"Redis, entries removed {order}", "seconds"),
                f"Share of memory in huge pages, and resident memory, of redis over time under "
                f"each allocator, with entries removed {order}.",
            )

    return illustrate


def _over_time(page: Page, samples: Sequence[Sample]) -> None:
    """Draw figure 2: what is used, and what is free on huge pages that are in use in part."""
    from contigua.pictures import lines_picture

    curves: dict[str, Callable[[dict[str, int]], int]] = {
        "used": lambda heap: heap.get("heap_used", 0),
        "free between used": lambda heap: (
            heap.get("heap_free_mapped", 0) - heap.get("heap_cached", 0)
        ),
        "free in whole huge pages": lambda heap: heap.get("heap_cached", 0),
    }
    seconds = [one.seconds for one in samples]
    drawn = {
        label: (seconds, [of(one.heap) / MB for one in samples]) for label, of in curves.items()
    }
    page.heading("Figure 2")
    page.picture(
        lines_picture([("MB", drawn)], "Memory of redis over time", "seconds"),
        "Memory that redis's heap uses, and free memory on huge pages that are in use in part or "
        "not at all, over time, with the static policy and entries removed at random.",
    )
