"""Memcached, redis and nginx, and clients that load them until enough requests are answered.

A client is one thread with several connections. It sends a batch of requests on each, then reads
the answers, and so keeps every worker of the server busy without being faster than the server.
Each answer is compared with what it must be, byte by byte.
"""

from __future__ import annotations

import grp
import os
import pwd
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from contigua.programs.clients import HOST, free_port, wait_for
from contigua.programs.databases import redis_command
from contigua.programs.program import Client, Loaded, Program, ProgramError

#: Seconds that an answer may take: the server waits for the slowest simulated configuration.
ANSWER = 600.0
#: Requests sent on a connection before their answers are read.
DEPTH = 16
#: Exponent of the popularity of keys and files (YCSB, SoCC 2010, section 4.1).
SKEW = 0.99


class Connection:
    """A connection to a server whose answers are known beforehand."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=ANSWER)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = self.socket.makefile("rb")

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.socket.close()

    def send(self, request: bytes) -> None:
        """Send a batch of requests."""
        self.socket.sendall(request)

    def expect(self, answer: bytes) -> None:
        """Read as many bytes as an answer has, and compare.

        Raises
        ------
        ProgramError
            When the server says something else.
        """
        at = 0
        while at < len(answer):
            # As much as has come: what is wrong may be shorter than what was to come.
            part = self.stream.read1(min(len(answer) - at, 1 << 16))
            if not part:
                raise ProgramError("the server closed a connection")
            if answer[at : at + len(part)] != part:
                raise ProgramError(
                    f"the server answered {part[:80]!r} instead of {answer[at : at + 80]!r}"
                )
            at += len(part)

    def line(self) -> bytes:
        """Read a line of an answer."""
        return self.stream.readline()


def speaks(port: int, request: bytes, answer: bytes) -> bool:
    """Return whether a server answers a request with something that begins so."""
    try:
        with Connection(port) as one:
            one.send(request)
            return one.line().startswith(answer)
    except OSError:
        return False


def popular(count: int, generator: random.Random) -> Callable[[], int]:
    """Return a source of numbers below ``count``, as popular as in Zipf's law, in random order."""
    numbers = list(range(count))
    generator.shuffle(numbers)
    weights = list(accumulate((rank + 1) ** -SKEW for rank in range(count)))

    def batches() -> Iterator[int]:
        while True:
            yield from generator.choices(numbers, cum_weights=weights, k=1024)

    return batches().__next__


# Stores: memcached and redis.


class Protocol(NamedTuple):
    """Requests to a store, each with its answer.

    Attributes
    ----------
    hello
        A request of a server that is up.
    store, fetch
        Take a key and its value.
    shutdown
        Has no answer.
    """

    hello: tuple[bytes, bytes]
    store: Callable[[bytes, bytes], tuple[bytes, bytes]]
    fetch: Callable[[bytes, bytes], tuple[bytes, bytes]]
    shutdown: bytes


#: protocol.txt of memcached.
TEXT = Protocol(
    (b"version\r\n", b"VERSION"),
    lambda key, value: (b"set %b 0 0 %d\r\n%b\r\n" % (key, len(value), value), b"STORED\r\n"),
    lambda key, value: (
        b"get %b\r\n" % key,
        b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (key, len(value), value),
    ),
    b"shutdown\r\n",
)


def resp(*words: bytes) -> bytes:
    """Return a command in redis' protocol."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


RESP = Protocol(
    (resp(b"PING"), b"+PONG"),
    lambda key, value: (resp(b"SET", key, value), b"+OK\r\n"),
    lambda key, value: (resp(b"GET", key), b"$%d\r\n%b\r\n" % (len(value), value)),
    resp(b"SHUTDOWN", b"NOSAVE"),
)


@dataclass(frozen=True)
class Load:
    """Load of a store: it is filled, then asked at random, nine reads to a write, by Zipf's law.

    Attributes
    ----------
    keys, value_bytes
        What it holds.
    requests
        How often it is asked.
    connections
        Each has keys of its own, so that each answer is certain.
    """

    keys: int
    value_bytes: int
    requests: int
    connections: int = 8


def memcached(load: Load, *, threads: int = 4, memory_mib: int = 256) -> Program:
    """Return memcached under a load.

    With ``-L`` it takes all its memory at once, aligned, and advises huge pages. Without, it takes
    1 MB at a time, of which no fault can make a huge page.
    """
    port = free_port()
    command: tuple[str, ...] = ("memcached", "-A", "-u", "root", "-U", "0", "-l", HOST)
    command += ("-p", str(port), "-t", str(threads), "-m", str(memory_mib), "-L")
    return Program("memcached", command, {"memcached": "memcached"}, store(TEXT, port, load))


def redis_store(load: Load) -> Program:
    """Return redis under a load of memcached's kind."""
    port = free_port()
    needs = {"redis-server": "redis-server"}
    return Program("redis", redis_command(port), needs, store(RESP, port, load))


def store(protocol: Protocol, port: int, load: Load) -> Client:
    """Return the client of a store; what is measured is how it is asked, not how it is filled."""

    def drive(_: Path, stopped: threading.Event, loaded: Loaded) -> int:
        wait_for(lambda: speaks(port, *protocol.hello), stopped)
        try:
            return _load_store(protocol, port, load, loaded)
        finally:
            # It ends without an answer.
            with suppress(OSError, ProgramError), Connection(port) as one:
                one.send(protocol.shutdown)
                one.line()

    return drive


def stored_value(key: int, version: int, size: int) -> bytes:
    """Return what a version of a key holds."""
    word = b"%08x%08x" % (key, version)
    return (word * (size // len(word) + 1))[:size]


def _load_store(protocol: Protocol, port: int, load: Load, loaded: Loaded) -> int:
    """Fill a store, ask it, and return how many requests it answered."""
    versions = [0] * load.keys
    shares = [range(number, load.keys, load.connections) for number in range(load.connections)]
    shares = [share for share in shares if share]
    generator = random.Random(1)
    chosen = [popular(len(share), generator) for share in shares]

    def put(key: int) -> tuple[bytes, bytes]:
        return protocol.store(b"key:%d" % key, stored_value(key, versions[key], load.value_bytes))

    def ask(number: int) -> tuple[bytes, bytes]:
        key = shares[number][chosen[number]()]
        if generator.random() < 0.1:
            versions[key] += 1
            return put(key)
        return protocol.fetch(b"key:%d" % key, stored_value(key, versions[key], load.value_bytes))

    def exchange(pool: list[Connection], batches: list[list[tuple[bytes, bytes]]]) -> int:
        for one, batch in zip(pool, batches, strict=False):
            one.send(b"".join(request for request, _ in batch))
        for one, batch in zip(pool, batches, strict=False):
            one.expect(b"".join(answer for _, answer in batch))
        return sum(map(len, batches))

    answered = 0
    with ExitStack() as stack:
        pool = [stack.enter_context(Connection(port)) for _ in shares]
        for start in range(0, len(shares[0]), DEPTH):
            parts = (share[start : start + DEPTH] for share in shares)
            answered += exchange(pool, [[put(key) for key in part] for part in parts])
        asked = 0
        with loaded():
            while asked < load.requests:
                each = min(DEPTH, -(-(load.requests - asked) // len(pool)))
                asked += exchange(
                    pool, [[ask(number) for _ in range(each)] for number in range(len(pool))]
                )
    return answered + asked


# nginx.

#: As Debian's nginx.conf has it, with nothing outside a folder of its own.
NGINX = """
daemon off;
user {user};
worker_processes {workers};
pid {folder}/pid;
error_log stderr;
events {{ worker_connections 256; }}
http {{
    sendfile on;
    tcp_nopush on;
    types_hash_max_size 2048;
    access_log off;
    gzip off;
    default_type application/octet-stream;
    keepalive_requests 1000000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen {host}:{port} reuseport;
        root {folder}/files;
    }}
}}
"""
#: Sizes of files, in bytes, and how often each occurs among 100 (SPECweb99's classes, with 35 %
#: below 1 KB, 50 % below 10 KB, 14 % below 100 KB and 1 % below 1 MB).
FILE_SIZES = ((500, 35), (5_000, 50), (50_000, 14), (500_000, 1))


def nginx(files: int, requests: int, *, workers: int = 4, connections: int = 16) -> Program:
    """Return nginx, which serves files of mixed sizes over connections that stay open."""
    port = free_port()

    def prepare(folder: Path) -> None:
        (folder / "files").mkdir()
        for number in range(files):
            (folder / "files" / f"{number}.bin").write_bytes(file_contents(number))
        # Workers of a server that root starts would not be allowed into the folder.
        user = f"{pwd.getpwuid(os.getuid()).pw_name} {grp.getgrgid(os.getgid()).gr_name}"
        text = NGINX.format(folder=folder, host=HOST, port=port, workers=workers, user=user)
        (folder / "nginx.conf").write_text(text)

    def drive(folder: Path, stopped: threading.Event, loaded: Loaded) -> int:
        request = b"GET /0.bin HTTP/1.0\r\n\r\n"
        wait_for(lambda: speaks(port, request, b"HTTP/1.1 200"), stopped)
        try:
            with loaded():
                return _load_nginx(port, files, requests, connections)
        finally:
            # The server's own process, not one that has taken its number since.
            if not stopped.is_set():
                os.kill(int((folder / "pid").read_text()), signal.SIGQUIT)

    command = ("nginx", "-p", "{folder}", "-c", "{folder}/nginx.conf", "-e", "stderr")
    return Program("nginx", command, {"nginx": "nginx"}, drive, prepare)


def file_contents(number: int) -> bytes:
    """Return what a file holds."""
    # Every hundred files in a row have the mix.
    classes = [size for size, share in FILE_SIZES for _ in range(share)]
    size = classes[number * 37 % 100]
    word = b"file %08d. " % number
    return (word * (size // len(word) + 1))[:size]


def _load_nginx(port: int, files: int, requests: int, connections: int) -> int:
    """Ask for files, and return how many came."""
    contents = [file_contents(number) for number in range(files)]
    choose = popular(files, random.Random(1))
    answered = 0
    with ExitStack() as stack:
        pool = [stack.enter_context(Connection(port)) for _ in range(connections)]
        while answered < requests:
            each = min(DEPTH, -(-(requests - answered) // connections))
            batches = [[choose() for _ in range(each)] for _ in pool]
            for one, batch in zip(pool, batches, strict=True):
                one.send(
                    b"".join(
                        b"GET /%d.bin HTTP/1.1\r\nHost: localhost\r\n\r\n" % number
                        for number in batch
                    )
                )
            for one, batch in zip(pool, batches, strict=True):
                for number in batch:
                    _expect_file(one, contents[number])
            answered += connections * each
    return answered


def _expect_file(one: Connection, contents: bytes) -> None:
    status = one.line()
    if not status.startswith(b"HTTP/1.1 200"):
        raise ProgramError(f"the server answered {status[:80]!r} instead of a file")
    length = None
    while (line := one.line()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    if length != len(contents):
        raise ProgramError(f"the server announced {length} bytes of a file of {len(contents)}")
    one.expect(contents)
