"""Redis, SQLite and MariaDB, filled and then read at random."""

from __future__ import annotations

import threading
from pathlib import Path

from contigua.programs.clients import call, free_port, succeeds, wait_for
from contigua.programs.program import Loaded, Program


def redis_command(port: int) -> tuple[str, ...]:
    """Return redis-server's command line: everything in memory."""
    quiet = ("--save", "", "--appendonly", "no", "--dir", "{folder}")
    return ("redis-server", "--port", str(port), *quiet)


def redis(keys: int, value_bytes: int, requests: int) -> Program:
    """Return redis-server, filled by one client with values of a size, then read at random."""
    port = free_port()

    def drive(_: Path, stopped: threading.Event, loaded: Loaded) -> None:
        cli = ("redis-cli", "-p", str(port))
        wait_for(lambda: succeeds(*cli, "ping"), stopped)
        bench: tuple[str, ...] = (
            "redis-benchmark",
            "-p",
            str(port),
            "-q",
            "-d",
            str(value_bytes),
            "-P",
            "4",
        )
        bench += ("-r", str(keys), "-c", "4")
        try:
            call(*bench, "-t", "set", "-n", str(keys * 2))
            with loaded():
                call(*bench, "-t", "get", "-n", str(requests))
        finally:
            # It ends without an answer.
            succeeds(*cli, "shutdown", "nosave")

    needs = {"redis-server": "redis-server", "redis-benchmark": "redis-tools"}
    return Program("redis", redis_command(port), needs, drive)


def sqlite(rows: int, lookups: int) -> Program:
    """Return sqlite3 with a table in memory, filled and then looked up at random."""
    statement = (
        "create table t(k integer primary key, v text); "
        f"with recursive c(x) as (select 1 union all select x + 1 from c where x < {rows}) "
        "insert into t select (x * 2654435761) % 4294967296, hex(x * x) || hex(x) from c; "
        f"with recursive c(x) as (select 1 union all select x + 1 from c where x < {lookups}) "
        "select count(v) from c join t on t.k = (((c.x * 7919) % "
        f"{rows}) * 2654435761) % 4294967296;"
    )
    return Program("sqlite3", ("sqlite3", ":memory:", statement), {"sqlite3": "sqlite3"})


def mariadb(rows: int, queries: int) -> Program:
    """Return MariaDB's server with a table, looked up at random through one connection."""

    def prepare(folder: Path) -> None:
        call(
            "mariadb-install-db",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--user=root",
            f"--datadir={folder}/data",
        )

    def drive(folder: Path, stopped: threading.Event, loaded: Loaded) -> None:
        client = ("mariadb", "-u", "root", f"--socket={folder}/socket")
        wait_for(lambda: succeeds(*client, "-e", "select 1"), stopped)
        fill = (
            "create database d; use d; create table t(k int primary key, v varchar(200)) "
            f"engine=memory; insert into t select seq, repeat(md5(seq), 6) from seq_1_to_{rows};"
        )
        looked = "".join(
            f"select v from d.t where k = {(number * 7919 * 7919) % rows + 1};\n"
            for number in range(queries)
        )
        try:
            call(*client, text=fill)
            with loaded():
                call(*client, text=looked)
        finally:
            succeeds("mariadb-admin", "-u", "root", f"--socket={folder}/socket", "shutdown")

    command: tuple[str, ...] = (
        "mariadbd",
        "--no-defaults",
        "--user=root",
        "--datadir={folder}/data",
    )
    command += ("--socket={folder}/socket", "--skip-networking", "--pid-file={folder}/pid")
    # InnoDB does not get past its start under QEMU 7.2's user mode: tables are in memory.
    command += ("--skip-innodb", "--default-storage-engine=MEMORY", "--performance-schema=OFF")
    command += ("--max-heap-table-size=4G",)
    needs = {"mariadbd": "mariadb-server", "mariadb": "mariadb-client"}
    return Program("mariadb", command, needs, drive, prepare)
