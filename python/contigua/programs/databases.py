"""Redis and SQLite, filled and then read at random; MariaDB under the transactions of TPC-C."""

from __future__ import annotations

import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from contigua.programs.clients import answer, call, free_port, succeeds, wait_for
from contigua.programs.program import Loaded, Program, find_program
from contigua.programs.tpcc import Company, Terminal


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


#: Connections of MariaDB's clients.
TERMINALS = 8
#: Seconds in which MariaDB may read its tables into memory.
READ_TIMEOUT = 1800.0


def mariadb(company: Company, transactions: int, *, before: int = 0) -> Program:
    """Return MariaDB's server with InnoDB, which holds all tables of TPC-C in memory.

    Parameters
    ----------
    company
        Size of the tables, which are made natively.
    transactions
        Transactions that the server is loaded with; each terminal has the same number of them.
    before
        Transactions that come before, likewise, which are not part of the load.
    """
    server: tuple[str, ...] = ("mariadbd", "--no-defaults", "--user=root")
    server += ("--datadir={folder}/data", "--socket={folder}/socket", "--pid-file={folder}/pid")
    server += ("--skip-networking", "--innodb-lock-wait-timeout=3600")
    server += (
        f"--innodb-buffer-pool-size={company.pool_mib}M",
        "--innodb-flush-log-at-trx-commit=2",
    )
    # What is in memory when a server ends is read when the next one begins.
    server += ("--innodb-buffer-pool-dump-pct=100",)
    # By default later releases reserve 8 TiB of addresses, with which QEMU 7.2 does not get ahead.
    server += (f"--loose-innodb-buffer-pool-size-max={company.pool_mib}M",)
    server += ("--innodb-use-native-aio=0",)

    def client(folder: Path, *more: str) -> tuple[str, ...]:
        return ("mariadb", "-u", "root", f"--socket={folder}/socket", *more)

    def end(folder: Path) -> None:
        succeeds("mariadb-admin", "-u", "root", f"--socket={folder}/socket", "shutdown")

    def prepare(folder: Path) -> None:
        at = f"--datadir={folder}/data"
        root = ("--auth-root-authentication-method=normal", "--skip-test-db", "--user=root")
        call("mariadb-install-db", *root, at)
        command = [part.replace("{folder}", str(folder)) for part in server]
        command[0] = find_program(command[0]) or command[0]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, stdout=quiet, stderr=quiet) as process:
            try:
                wait_for(
                    lambda: (
                        process.poll() is not None or succeeds(*client(folder, "-e", "select 1"))
                    ),
                    threading.Event(),
                )
                call(*client(folder, "-e", "create database tpcc"))
                for text in company.tables():
                    call(*client(folder, "tpcc"), text=text)
            finally:
                end(folder)

    def drive(folder: Path, stopped: threading.Event, loaded: Loaded) -> None:
        status = "show status like 'innodb_buffer_pool_load_status'"

        def is_read() -> bool:
            return "completed" in answer(*client(folder, "-e", status))

        terminals = [Terminal(company, number) for number in range(TERMINALS)]

        def ask(count: int) -> None:
            def one(terminal: Terminal) -> None:
                call(*client(folder, "tpcc"), text=terminal.transactions(count // TERMINALS))

            with ThreadPoolExecutor(TERMINALS) as together:
                list(together.map(one, terminals))

        try:
            wait_for(is_read, stopped, READ_TIMEOUT)
            ask(before)
            with loaded():
                ask(transactions)
        finally:
            end(folder)

    needs = {"mariadbd": "mariadb-server", "mariadb": "mariadb-client"}
    return Program("mariadb", server, needs, drive, prepare)
