"""Servers under load."""

from __future__ import annotations

import hashlib
import re
import shutil
import signal
import time
import urllib.request
from pathlib import Path

from trial import GLIBC, LIBC, Program, Trial, free_port

# With 5 KB in each element, reading ranges of lists would be all that is done.
WRITES = "set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,mset"
HUNDREDS = " ".join(f"v{i}" for i in range(100))


def redis(trial: Trial) -> None:
    """Every command of redis-benchmark; then what moves the whole data set."""
    if trial.mode is GLIBC:
        trial.environment["LD_PRELOAD"] = LIBC
    port = free_port()
    with trial.server(
        "redis-server",
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--enable-debug-command",
        "yes",
        "--dir",
        str(trial.directory),
        port=port,
    ) as server:
        for more in (["-n", "5000"], ["-n", "3000", "-d", "5000", "-r", "50000", "-t", WRITES]):
            load = trial.check(
                f"redis-benchmark {' '.join(more)}",
                "redis-benchmark",
                "-p",
                str(port),
                "-q",
                *more,
            )
            done = re.findall(
                r"^(.*?): [0-9.]+ requests per second", load.out.replace("\r", "\n"), re.MULTILINE
            )
            trial.same(f"commands with {' '.join(more)}", sorted(set(done)))
            trial.facts.tests += len(set(done))

        def command(*words: str) -> str:
            return trial.run("redis-cli", "-p", str(port), *words, preload=False).out.strip()

        # A data set that is the same each time; its digest must survive.
        command("FLUSHALL")
        lines = [f"SET key:{i} {'x' * (i * 37 % 3000)}" for i in range(20000)]
        lines += [f"HSET hash:{i % 50} field:{i} {i * i}" for i in range(20000)]
        lines += [f"ZADD sorted:{i % 20} {i * 7 % 1000} member:{i}" for i in range(10000)]
        lines += [f"RPUSH list:{i % 10} {HUNDREDS}" for i in range(300)]
        lines += [f"SADD set:{i % 10} {i} {i}a" for i in range(10000)]
        lines += [f"APPEND key:{i} {'y' * 500}" for i in range(0, 20000, 3)]
        lines += [f"DEL key:{i}" for i in range(0, 20000, 7)]
        trial.run("redis-cli", "-p", str(port), text="\n".join(lines) + "\n", preload=False)
        trial.same("digest", command("DEBUG", "DIGEST"))
        trial.same("reload", command("DEBUG", "RELOAD"))
        trial.same("digest after reload", command("DEBUG", "DIGEST"))
        command("CONFIG", "SET", "appendonly", "yes")
        wait_for(lambda: "aof_rewrite_in_progress:0" in command("INFO", "persistence"))
        trial.same("load the log", command("DEBUG", "LOADAOF"))
        trial.same("digest after the log", command("DEBUG", "DIGEST"))
        trial.same("save", command("BGSAVE"))
        wait_for(lambda: "rdb_bgsave_in_progress:0" in command("INFO", "persistence"))
        for key in ("rdb_last_bgsave_status", "aof_last_bgrewrite_status"):
            found = re.search(f"{key}:(\\w+)", command("INFO", "persistence"))
            trial.same(key, found and found[1])
        trial.same("purge", command("MEMORY", "PURGE"))
        trial.same("flush in a thread", command("FLUSHALL", "ASYNC"))
        command("SHUTDOWN", "NOSAVE")
        trial.same("redis-server ends", server.wait())


def wait_for(ready: object, seconds: float = 60) -> bool:
    """Ask until it is so."""
    assert callable(ready)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if ready():
            return True
        time.sleep(0.1)
    return False


NGINX = """
user root;
daemon off;
worker_processes 2;
pid {directory}/pid;
error_log {directory}/error.log warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    gzip on; gzip_min_length 100; gzip_types text/plain application/octet-stream;
    client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
    server {{
        listen 127.0.0.1:{port};
        root {directory}/files;
        location /proxied/ {{ proxy_pass http://127.0.0.1:{port}/; proxy_buffers 4 8k; }}
    }}
}}
"""


def nginx(trial: Trial) -> None:
    """Files under load, compressed and through a proxy; reloads under load; a graceful end."""
    port = free_port()
    files = trial.directory / "files"
    files.mkdir()
    for name, size in (("small", 300), ("middle", 40_000), ("large", 3_000_000)):
        (files / f"{name}.txt").write_bytes(bytes(i * i % 251 for i in range(size)))
    configuration = trial.directory / "nginx.conf"
    configuration.write_text(NGINX.format(directory=trial.directory, port=port))
    base = f"http://127.0.0.1:{port}"
    with trial.server(
        "nginx", "-c", configuration, "-e", trial.directory / "error.log", port=port
    ) as server:
        for path in ("small.txt", "middle.txt", "large.txt", "proxied/middle.txt", "none"):
            for encoding in ("identity", "gzip"):
                trial.same(f"{path} {encoding}", fetch(f"{base}/{path}", encoding))
        for path in ("small.txt", "proxied/middle.txt", "large.txt"):
            load = trial.check(
                f"load on {path}",
                "ab",
                "-q",
                "-n",
                "3000" if path != "large.txt" else "200",
                "-c",
                "20",
                "-H",
                "Accept-Encoding: gzip",
                f"{base}/{path}",
                preload=False,
            )
            found = re.search(r"Failed requests: +(\d+)", load.out)
            trial.same(f"failed requests for {path}", found and found[1])
        for _ in range(3):
            server.process.send_signal(signal.SIGHUP)
            load = trial.check(
                "load across a reload",
                "wrk",
                "-d",
                "2",
                "-c",
                "20",
                f"{base}/middle.txt",
                preload=False,
            )
            trial.same("refusals across a reload", re.findall(r"Non-2xx.*", load.out))
        trial.same("nginx ends", server.stop(signal.SIGQUIT))
    alerts = [
        line
        for line in (trial.directory / "error.log").read_text().splitlines()
        if "[alert]" in line or "[emerg]" in line or "exited on signal" in line
    ]
    trial.same("alerts", [re.sub(r"^.*?\[", "[", line) for line in alerts])


def fetch(address: str, encoding: str) -> str:
    """Digest of what a server sends."""
    request = urllib.request.Request(address, headers={"Accept-Encoding": encoding})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return f"{answer.status} {hashlib.sha256(answer.read()).hexdigest()[:12]}"
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError as error:
        return type(error).__name__


def memcached(trial: Trial) -> None:
    """Sets and gets from many threads, more than its memory holds, and its own self-check."""
    port = free_port()
    with trial.server(
        "memcached",
        "-u",
        "root",
        "-l",
        "127.0.0.1",
        "-p",
        str(port),
        "-m",
        "64",
        "-t",
        "4",
        "-v",
        port=port,
    ) as server:
        at = f"--servers=127.0.0.1:{port}"
        for test in ("set", "get", "mget"):
            trial.check(
                f"memcslap {test}",
                "memcslap",
                at,
                f"--test={test}",
                "--concurrency=8",
                "--execute-number=5000",
                "--initial-load=5000",
            )
        trial.check(
            "memcaslap",
            "memcaslap",
            f"--servers=127.0.0.1:{port}",
            "-t",
            "5s",
            "-c",
            "32",
            "-T",
            "2",
            "-X",
            "4000",
            "-v",
            "0.2",
        )
        file = trial.directory / "object"
        file.write_bytes(bytes(range(256)) * 2000)
        trial.check("memccp", "memccp", at, "--set", file)
        got = trial.run("memccat", at, "--file", trial.directory / "again", "object")
        again = trial.directory / "again"
        trial.same(
            "an object of 512 KB",
            got.code == 0 and again.exists() and again.read_bytes()[:512_000] == file.read_bytes(),
        )
        capable = trial.run("memccapable", "-a", "-h", "127.0.0.1", "-p", str(port), preload=False)
        verdicts = re.findall(r"^(.+?)\s+\[(\w+)\]", capable.out + capable.err, re.MULTILINE)
        trial.facts.tests += len(verdicts)
        for name, verdict in verdicts:
            if verdict != "pass":
                trial.failed(f"memccapable {name.strip()}")
        trial.same("tests of the protocol", len(verdicts))
        trial.same("memcached ends", server.stop())


def mariadb(trial: Trial) -> None:
    """Many connections, joins, and sorts; check and recover after a kill."""
    port = free_port()
    data = trial.directory / "data"
    options = [
        "--no-defaults",
        f"--datadir={data}",
        "--user=root",
        f"--socket={trial.directory}/s",
        f"--pid-file={trial.directory}/pid",
        "--innodb-buffer-pool-size=64M",
    ]
    trial.check(
        "mariadb-install-db",
        "mariadb-install-db",
        "--no-defaults",
        f"--datadir={data}",
        "--user=root",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
    )
    start = [
        "mariadbd",
        *options,
        f"--port={port}",
        "--bind-address=127.0.0.1",
        "--max-connections=200",
    ]
    at = [f"--socket={trial.directory}/s", "-uroot"]

    def query(text: str) -> str:
        done = trial.run("mariadb", *at, "-N", text=text, preload=False, seconds=120)
        return done.out + done.err

    with trial.server(*start, port=port) as server:
        trial.check(
            "mysqlslap",
            "mysqlslap",
            *at,
            "--auto-generate-sql",
            "--auto-generate-sql-load-type=mixed",
            "--concurrency=50",
            "--iterations=1",
            "--number-of-queries=6000",
            "--auto-generate-sql-add-autoincrement",
            "--number-char-cols=5",
            "--number-int-cols=5",
        )
        query(
            "create database t; use t;"
            "create table a (i int primary key auto_increment, k int, c varchar(300), key(k));"
            "insert into a (k, c) select seq % 997, repeat(char(65 + seq % 26), seq % 290)"
            " from seq_1_to_60000; create table b like a; insert into b select * from a;"
        )
        trial.same(
            "an aggregate",
            query(
                "use t; select k, count(*), md5(group_concat(c order by i)) from a group by k"
                " order by k limit 50"
            ),
        )
        trial.same(
            "a join",
            query(
                "use t; set join_buffer_size=8000000; select count(*), sum(a.i * b.k) from a join b"
                " on a.k = b.k where a.i < 20000"
            ),
        )
        trial.same(
            "a sort",
            query(
                "use t; set sort_buffer_size=30000000; select md5(group_concat(i)) from"
                " (select i from a order by c desc, i limit 3000) x"
            ),
        )
        trial.same(
            "JSON",
            query(
                "select md5(json_arrayagg(json_object('n', seq, 's', repeat('x', seq % 50))))"
                " from seq_1_to_20000"
            ),
        )
        prepare = [
            "sysbench",
            "oltp_read_write",
            f"--mysql-socket={trial.directory}/s",
            "--mysql-user=root",
            "--mysql-db=t",
            "--tables=4",
            "--table-size=5000",
        ]
        trial.check("sysbench prepare", *prepare, "prepare", preload=False)
        load = trial.check("sysbench", *prepare, "--threads=32", "--time=8", "run", preload=False)
        trial.same("sysbench's errors", re.findall(r"FATAL.*", load.out))
        trial.same("checksums", query("use t; checksum table a, b; check table a, b, sbtest1"))
        server.process.kill()
        server.wait()
    with trial.server(*start, port=port) as server:
        trial.same("checksums after a crash", query("use t; checksum table a, b; check table a, b"))
        trial.check("shutdown", "mariadb-admin", *at, "shutdown", preload=False)
        trial.same("mariadbd ends", server.wait())


def postgres(trial: Trial) -> None:
    """pgbench, parallel queries, just-in-time compilation, and a fast end."""
    home = Path(next(iter(sorted(Path("/usr/lib/postgresql").iterdir(), reverse=True)))) / "bin"
    port = free_port()
    data = trial.directory / "data"
    trial.environment["PGDATABASE"] = "postgres"
    # It refuses to run as root.
    shutil.chown(trial.directory, "postgres", "postgres")
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    trial.check(
        "initdb",
        *as_user,
        home / "initdb",
        "-D",
        data,
        "-U",
        "postgres",
        "-A",
        "trust",
        "--no-sync",
        "-E",
        "UTF8",
    )
    at = ["-h", "127.0.0.1", "-p", str(port), "-U", "postgres"]

    def query(text: str) -> str:
        done = trial.run("psql", *at, "-X", "-A", "-t", text=text, preload=False, seconds=120)
        return done.out + done.err

    with trial.server(
        *as_user,
        home / "postgres",
        "-D",
        data,
        "-p",
        str(port),
        "-k",
        trial.directory,
        "-F",
        "-c",
        "max_connections=60",
        port=port,
    ) as server:
        wait_for(lambda: query("select 1").strip() == "1")
        trial.check("pgbench -i", home / "pgbench", *at, "-i", "-s", "5", "-q")
        load = trial.check("pgbench", home / "pgbench", *at, "-c", "30", "-j", "2", "-T", "8")
        found = re.search(r"failed transactions: (\d+)", load.out)
        trial.same("failed transactions", found and found[1])
        trial.check(
            "pgbench prepared", home / "pgbench", *at, "-c", "10", "-T", "4", "-S", "-M", "prepared"
        )
        query(
            "create table a as select i, i % 997 k, repeat(chr(65 + i % 26), i % 290) c"
            " from generate_series(1, 200000) i; create index on a (k); analyze a;"
        )
        parallel = (
            "set parallel_setup_cost=0; set parallel_tuple_cost=0;"
            "set min_parallel_table_scan_size=0; set work_mem='64MB';"
        )
        trial.same(
            "a parallel aggregate",
            query(
                parallel + "select md5(string_agg(x::text, ',' order by k)) from"
                " (select k, count(*), sum(length(c)) from a group by k) x"
            ),
        )
        trial.same(
            "a join",
            query(
                parallel + "select count(*), sum(a.i::bigint * b.k) from a join a b on a.k = b.k"
                " where a.i < 20000"
            ),
        )
        trial.same(
            "compiled",
            query(
                "set jit=on; set jit_above_cost=0; set jit_inline_above_cost=0;"
                "set jit_optimize_above_cost=0;"
                "select sum(i * 2 + length(c)) from a where k % 3 = 1"
            ),
        )
        trial.same(
            "JSON",
            query(
                "select md5(jsonb_agg(jsonb_build_object('n', i, 's', c))::text)"
                " from (select * from a order by i limit 20000) x"
            ),
        )
        trial.same("an error is an error", query("select 1/0; select repeat('x', 2000000000);"))
        trial.same("postgres ends", server.stop(signal.SIGINT))


PROGRAMS = [
    Program(
        "redis",
        "`redis-benchmark` of all commands, small and 5 KB; `DEBUG DIGEST` before and after"
        " `DEBUG RELOAD` and `DEBUG LOADAOF`; `BGSAVE`, `MEMORY PURGE`, `FLUSHALL ASYNC`",
        redis,
        (("redis-server", "redis-server"), ("redis-benchmark", "redis-tools")),
        ("redis-server", "--version"),
        server=True,
    ),
    Program(
        "nginx",
        "three files, plain, compressed and through its proxy, under `ab`; three reloads"
        " under `wrk`; graceful end",
        nginx,
        (("nginx", "nginx"), ("ab", "apache2-utils"), ("wrk", "wrk")),
        ("nginx", "-v"),
        server=True,
    ),
    Program(
        "memcached",
        "`memcslap`, `memcaslap` beyond its memory, `memccapable`'s protocol tests",
        memcached,
        (("memcached", "memcached"), ("memcslap", "libmemcached-tools")),
        ("memcached", "-V"),
        server=True,
    ),
    Program(
        "mariadb",
        "`mysqlslap` with 50 connections, `sysbench oltp_read_write` with 32; joins, sorts,"
        " JSON; checksums after a crash",
        mariadb,
        (("mariadbd", "mariadb-server"), ("mysqlslap", "mariadb-client"), ("sysbench", "sysbench")),
        ("mariadbd", "--version"),
        server=True,
    ),
    Program(
        "postgres",
        "`pgbench` with 30 connections; parallel, joined and compiled queries, JSON",
        postgres,
        (("/usr/lib/postgresql", "postgresql"),),
        ("psql", "--version"),
        server=True,
    ),
]
