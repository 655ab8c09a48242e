"""PostgreSQL and MariaDB with InnoDB under load in ``contigua run``, on one QEMU or several.

``databases.py [QEMU...]`` writes the table in docs/how-to/study-a-program.md; by default the QEMU
that ``contigua`` finds. Takes root (PostgreSQL runs as its user), Debian's packages `postgresql`
and `mariadb-server`, and minutes.

Databases are made outside of the simulation. Servers start, answer, and end inside.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from documents import replace

from contigua._engine import emulator
from contigua.emulator import VARIABLE

#: Seconds after which a server hangs.
LIMIT = 1200
CLIENTS = 4
AS_POSTGRES = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]


class Database(NamedTuple):
    """A server with its load: how its data are made, what runs simulated, and what that prints."""

    name: str
    load: str
    make: Callable[[Path], None]
    program: Callable[[Path], list[str]]
    says: str


def _quietly(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[0]}: {done.stdout}{done.stderr}")


def _postgres_programs() -> Path:
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not versions:
        sys.exit("databases.py needs PostgreSQL: apt-get install postgresql")
    return versions[-1]


def _make_postgres(folder: Path) -> None:
    shutil.chown(folder, "postgres", "postgres")
    initdb = _postgres_programs() / "initdb"
    _quietly(*AS_POSTGRES, initdb, "-D", folder / "db", "--auth=trust", "--no-sync")


def _run_postgres(folder: Path) -> list[str]:
    programs = _postgres_programs()
    options = f"-k {folder} -c listen_addresses='' -c shared_buffers=256MB"
    control = f"{programs}/pg_ctl -D {folder}/db -w -t {LIMIT}"
    bench = f"{programs}/pgbench -h {folder} postgres"
    script = f"""set -e
        {control} -l {folder}/log -o "{options}" start
        {bench} -i -q
        {bench} -n -c {CLIENTS} -t 100
        {control} -m fast stop"""
    return [*AS_POSTGRES, "sh", "-c", script]


#: MariaDB reserves 8 TB of addresses by default, for which QEMU 7.2 fills the computer's memory.
INNODB = ["--no-defaults", "--user=root", "--innodb-buffer-pool-size-max=256M"]


def _make_mariadb(folder: Path) -> None:
    method = "--auth-root-authentication-method=normal"
    _quietly("mariadb-install-db", *INNODB, f"--datadir={folder}/db", method, "--skip-test-db")


def _run_mariadb(folder: Path) -> list[str]:
    at = f"--no-defaults --socket={folder}/socket"
    server = f"--datadir={folder}/db --socket={folder}/socket --pid-file={folder}/pid"
    script = f"""set -e
        mariadbd {" ".join(INNODB)} {server} --skip-networking \\
            --innodb-buffer-pool-size=256M 2>{folder}/log &
        until mariadb-admin {at} ping >/dev/null 2>&1; do kill -0 $!; sleep 1; done
        mysqlslap {at} --auto-generate-sql --auto-generate-sql-load-type=mixed --engine=innodb \\
            --concurrency={CLIENTS} --number-of-queries=400
        mariadb-admin {at} shutdown
        wait $!"""
    return ["sh", "-c", script]


DATABASES = [
    Database(
        "PostgreSQL",
        f"`pgbench`, {CLIENTS} clients, 400 transactions",
        _make_postgres,
        _run_postgres,
        "transactions actually processed: 400/400",
    ),
    Database(
        "MariaDB, InnoDB",
        f"`mysqlslap`, {CLIENTS} clients, 400 queries",
        _make_mariadb,
        _run_mariadb,
        "Average number of queries per client: 100",
    ),
]


def row(database: Database, qemu: str) -> str:
    """Run a database on a QEMU and return its row."""
    version = subprocess.run([qemu, "--version"], capture_output=True, text=True, check=True).stdout
    (number,) = re.findall(r"version (\S+)", version.splitlines()[0])
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        # The server's user reads it, too.
        copy = shutil.copy(qemu, folder / "qemu")
        data = folder / "data"
        data.mkdir()
        database.make(data)
        command = [sys.executable, "-m", "contigua.cli", "run", "--designs", "linux-4k,linux-thp"]
        command += ["--memory", "4G", "--detail", "translation", "--json", f"{folder}/report.json"]
        done = subprocess.run(
            [*command, "--", *database.program(data)],
            env=os.environ | {VARIABLE: str(copy)},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        output = done.stdout + done.stderr
        log = data / "log"
        output += log.read_text(errors="replace") if log.exists() else ""
        if done.returncode == 0 and database.says in output:
            first = json.loads((folder / "report.json").read_text())[0]
            end = f"{first['executed']['instructions'] / 1e6:,.0f} M instructions"
        elif "uncaught target signal 11" in output:
            end = "a segmentation fault of QEMU's"
        else:
            sys.exit(output)
    return f"| {database.name} | {database.load} | {number} | {end} |"


def main() -> None:
    """Run all, print and write."""
    qemus = sys.argv[1:] or [emulator()]
    rows = []
    for database in DATABASES:
        for qemu in qemus:
            rows.append(row(database, qemu))
            print(rows[-1], flush=True)
    head = ["| server | load | QEMU | ran |", "|---|---|---|--:|"]
    replace("databases", "how-to/study-a-program.md", [*head, *rows])


if __name__ == "__main__":
    main()
