"""Programs whose mappings benches/mappings.py compares."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

BIN = Path(__file__).parents[1] / "workloads" / "bin"
POSTGRES = "setpriv --reuid=postgres --regid=postgres --clear-groups"


@dataclass(frozen=True)
class Program:
    """A program to compare.

    Attributes
    ----------
    name
        Its name.
    processes
        What it does.
    command
        Its command line; ``{folder}`` is its own folder, in which it runs.
    make
        Shell commands that make its inputs.
    needs
        Commands that have to be there.
    environment
        Variables of its own.
    shmem
        ``shmem_enabled``.
    pool
        Pages of HugeTLB.
    """

    name: str
    processes: str
    command: tuple[str, ...]
    make: str = ""
    needs: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    shmem: str = "never"
    pool: int = 0


JAVA = """cat > Main.java <<'END'
public class Main {
    static class Node { Node next; long value; Node(Node n, long v) { next = n; value = v; } }
    public static void main(String[] a) throws Exception {
        Thread[] threads = new Thread[2];
        for (int t = 0; t < 2; t++) {
            threads[t] = new Thread(() -> {
                Node list = null;
                for (int i = 0; i < 200000; i++) list = new Node(i % 1000 == 0 ? null : list, i);
                System.out.println(list.value);
            });
            threads[t].start();
            threads[t].join();
        }
        System.out.println(new int[10 << 20].length);
    }
}
END
javac Main.java
"""
GO = """cat > main.go <<'END'
package main

import "fmt"

func main() {
	m := map[int][]byte{}
	for i := 0; i < 20000; i++ {
		m[i] = make([]byte, 1000+i%3000)
	}
	done := make(chan int)
	for g := 0; g < 4; g++ {
		go func() {
			s := 0
			for i := range 1000 {
				s += len(m[i])
			}
			done <- s
		}()
		fmt.Println(<-done)
	}
}
END
export GOEXPERIMENT=norandomizedheapbase64 GOCACHE=/var/tmp/contigua-go GO111MODULE=off
go build -o main main.go
"""
#: Some end at once, with all of their memory.
PYTHON = """import os
s = b"x" * (40 << 20); d = {i * 2654435761 & 0xFFFFFF: str(i) for i in range(300000)}
os._exit(len(d) < 1)
"""
NUMPY = """import numpy as n
a = n.random.default_rng(1).random((400, 400)); b = a @ a
c = n.sort(n.random.default_rng(2).integers(0, 1 << 40, 500000)); d = n.ones(6 << 20)
__import__("os")._exit(not b.sum() > c[0] * 0 + d[0])
"""
NODE = """const a = [];
for (let i = 0; i < 200000; i++) a.push({ key: 'k' + i, value: [i, i + 1] });
console.log(new Map(a.map(x => [x.key, x.value])).size, new Float64Array(4 << 20).length);
"""
SQL = """create table t(a integer primary key, b text, c int);
with recursive n(x) as (select 1 union all select x + 1 from n where x < 100000)
insert into t select x, hex(x * 7919), (x * 48271) % 2147483647 from n;
create index i on t(c); select count(*), sum(c) from t where b like '%7%';
"""
PERL = """use POSIX (); my $s = "x" x (40 << 20); my %h;
$h{$_ * 7919} = "x" x ($_ % 100) for 1 .. 200000; POSIX::_exit(keys %h < 1)
"""
#: Servers are driven by one process, which waits for their socket.
CLIENT = """/usr/bin/python3 -I -c '
import socket, time
def ask(text, lines=1):
    while True:
        try:
            s = socket.socket(socket.AF_UNIX)
            s.connect("{folder}/s")
            break
        except OSError:
            time.sleep(0.1)
    s.sendall(text)
    answer = b""
    while answer.count(b"\\n") < lines and (part := s.recv(1 << 16)):
        answer += part
ASK'
wait $!
"""
REDIS = (
    "redis-server --enable-debug-command yes --port 0 --unixsocket {folder}/s --save '' "
    "--dir {folder} &\n"
    + CLIENT.replace(
        "ASK", 'ask(b"debug populate 100000 key 100\\r\\n"); ask(b"shutdown nosave\\r\\n")'
    )
)
#: The server alone, killed before it detaches its shared memory. As several processes it ends with
#: a segmentation fault under QEMU 7.2 (benches/databases.py).
POSTGRES_RUN = f"""{POSTGRES} /usr/lib/postgresql/*/bin/postgres --single -D {{folder}}/db \\
    -c shared_buffers=64MB -c huge_pages=on postgres <<END > /dev/null
create table t as select x, x * 2 y from generate_series(1, 100000) x
select sum(a.y) from t a join t b on a.x = b.y
copy (select 1) to program 'kill -9 \\$PPID'
END
true
"""
NGINX = """mkdir -p logs files; head -c 300000 /dev/zero > files/a
cat > nginx.conf <<'END'
daemon off; worker_processes 2; pid {folder}/pid; error_log stderr; user root;
events { worker_connections 64; }
http { access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/c;
  server { listen unix:{folder}/s; root {folder}/files; } }
END
"""
MEMCACHED = "memcached -u root -s {folder}/s -m 128 -t 2 -L -A || true &\n" + CLIENT.replace(
    "ASK",
    'sets = (b"set key%d 0 0 1000 noreply\\r\\n%s\\r\\n" % (i, b"x" * 1000) for i in '
    'range(20000))\nask(b"".join(sets) + b"version\\r\\n"); ask(b"shutdown\\r\\n")',
)
NGINX_RUN = "nginx -p {folder} -c {folder}/nginx.conf -e stderr &\n" + CLIENT.replace(
    "ASK",
    'import os, signal; ask(b"GET /a HTTP/1.0\\r\\n\\r\\n", 10)\n'
    'os.kill(int(open("{folder}/pid").read()), signal.SIGQUIT)',
)
GIT = """export GIT_AUTHOR_DATE=@1700000000+0000 GIT_COMMITTER_DATE=@1700000000+0000
git init -q repository; cd repository; git config user.email a@b; git config user.name a
for i in $(seq 20); do seq $i 2000 > file$i; git add .; git commit -qm $i; done
"""

ALL = [
    Program(
        "python3",
        "a dictionary of 300,000 strings, 40 MB of bytes",
        ("/usr/bin/python3", "-I", "-c", PYTHON),
        needs=("/usr/bin/python3",),
    ),
    Program(
        "NumPy",
        "matrix product, sorting",
        (str(BIN.parents[1] / ".venv/bin/python"), "-c", NUMPY),
        environment={"OPENBLAS_NUM_THREADS": "2"},
    ),
    Program("Node.js", "objects, a map, typed arrays", ("node", "-e", NODE), needs=("node",)),
    Program(
        "JVM, serial GC",
        "lists, two threads",
        ("java", "-XX:+UseSerialGC", "-Xmx256m", "-cp", "{folder}", "Main"),
        JAVA,
        ("java", "javac"),
    ),
    Program(
        "JVM, G1",
        "the same program",
        ("java", "-Xmx256m", "-cp", "{folder}", "Main"),
        JAVA,
        ("java", "javac"),
    ),
    Program(
        "Go",
        "a map, goroutines",
        ("{folder}/main",),
        GO,
        ("go",),
        {"GOMAXPROCS": "1", "GOGC": "off"},
    ),
    Program("Redis", "100,000 keys", ("sh", "-c", REDIS), "", ("redis-server", "python3")),
    Program(
        "PostgreSQL",
        "`--single`, `huge_pages=on`, a table, a join",
        ("sh", "-c", POSTGRES_RUN),
        "chown postgres . && "
        f"{POSTGRES} /usr/lib/postgresql/*/bin/initdb -D db --auth=trust --no-sync",
        ("pg_ctlcluster",),
        pool=80,
    ),
    Program(
        "nginx",
        "a master, two workers",
        ("sh", "-c", NGINX_RUN),
        NGINX.replace("{folder}", "$PWD").replace("'END'", "END"),
        ("nginx", "python3"),
    ),
    Program(
        "memcached",
        "`-L`, 20,000 values, 2 threads",
        ("sh", "-c", MEMCACHED),
        "",
        ("memcached", "python3"),
    ),
    Program("perl", "a hash of 200,000, a string of 40 MB", ("perl", "-e", PERL), needs=("perl",)),
    Program("sqlite3", "a table in memory", ("sqlite3", ":memory:", SQL), needs=("sqlite3",)),
    Program(
        "gcc -O2",
        "driver, cc1, as, ld",
        ("gcc", "-O2", "-std=c11", "-pthread", str(BIN.parent / "kv.c"), "-o", "kv", "-lm"),
        needs=("gcc",),
    ),
    Program(
        "git gc",
        "delta compression",
        ("git", "-C", "repository", "-c", "pack.threads=1", "gc", "-q"),
        GIT,
        ("git",),
    ),
    Program(
        "xz -T2",
        "two threads",
        ("xz", "-T2", "-k", "-1", "--block-size=1MiB", "data"),
        "seq 600000 > data",
        ("xz",),
    ),
    Program(
        "zstd -T2",
        "two threads",
        ("zstd", "-q", "-T2", "-3", "data"),
        "seq 1000000 > data",
        ("zstd",),
    ),
    Program(
        "sort",
        "two threads",
        ("sort", "--parallel=2", "-S", "200M", "data"),
        "seq 200000 | rev > data",
    ),
    Program(
        "bash",
        "sub-shells and pipes",
        (
            "bash",
            "-c",
            "for i in $(seq 20); do (echo $i | cat | tr 1 2 > /dev/null); done; x=$(seq 20000); "
            "for i in $x; do a[i]=$i; done; echo ${#a[@]}",
        ),
    ),
    Program(
        "Ruby",
        "a hash of 200,000",
        ("ruby", "-e", "h = {}; 200_000.times { |i| h[i] = i.to_s }; puts h.size"),
        needs=("ruby",),
    ),
    Program(
        "PHP",
        "an array of 200,000",
        ("php", "-n", "-r", 'for ($i = 0; $i < 200000; $i++) $a[$i] = "k$i"; echo count($a);'),
        needs=("php",),
    ),
    Program(
        "Lua",
        "a table of 300,000, a string of 40 MB",
        (
            "lua5.4",
            "-e",
            "s = string.rep('x', 40 << 20) t = {} "
            "for i = 1, 300000 do t[i] = tostring(i) end os.exit(0)",
        ),
        needs=("lua5.4",),
    ),
    Program(
        "Tcl",
        "an array of 100,000",
        ("tclsh", "script"),
        "echo 'for {set i 0} {$i < 100000} {incr i} {set a($i) k$i}; puts [array size a]' > script",
        ("tclsh",),
    ),
    Program(
        "gawk",
        "an array of 300,000",
        ("gawk", "BEGIN { for (i = 0; i < 300000; i++) a[i] = i; print length(a) }"),
        needs=("gawk",),
    ),
    Program(
        "kv",
        "2 threads, 100,000 keys",
        (str(BIN / "kv"), "--keys", "100000", "--operations", "20000", "--threads", "2"),
    ),
    Program(
        "gups", "a table of 64 MB", (str(BIN / "gups"), "--size", "64M", "--updates", "100000")
    ),
    Program(
        "gups, static",
        "a fixed address",
        (str(BIN / "gups-static"), "--size", "64M", "--updates", "100000"),
    ),
    Program(
        "shared memory",
        "memfd, five processes, `shmem_enabled=always`",
        (str(BIN / "tests" / "shared"), "memfd", "16", "4"),
        shmem="always",
    ),
    Program(
        "shared memory, placed",
        "memfd, System V, `/dev/shm`, `/dev/zero`, `mremap`, `shmem_enabled=always`",
        (str(BIN / "tests" / "addresses"), "shared"),
        shmem="always",
    ),
    Program(
        "HugeTLB",
        "`MAP_HUGETLB`, memfd, System V",
        (str(BIN / "tests" / "addresses"), "hugetlb"),
        pool=8,
    ),
]
PROGRAMS = {program.name: program for program in ALL}

THREADS = "arenas of threads, whose order and lengths depend on time, as natively"
#: Reasons for what differs, by program.
DIFFERS = {
    "NumPy": "two pages of the 512 KB that OpenBLAS unmaps when its threads have met by spinning: "
    "the other thread's last accesses come later in the stream of events (none with "
    "`OPENBLAS_NUM_THREADS=1`)",
    "Node.js": THREADS,
    "JVM, serial GC": f"{THREADS}; a compiler's thread, which one of five native executions has, "
    "too; a buffer of 1.4 MB that C1's thread takes from the heap in 15 of 20 native executions "
    "(`-Xlog:gc+tlab=trace`; with `-Xint` in none, natively and simulated)",
    "JVM, G1": THREADS,
    "Go": "memory that threads take from the heap at another time, as natively",
    "PostgreSQL": "the stack of a child that is being made (`posix_spawn`), as natively",
    "xz -T2": "which thread maps its memory first depends on time, as natively (in two of eight "
    "executions)",
    "Ruby": "28 KB less in the heap: QEMU does not pass `AT_MINSIGSTKSZ` (`LD_SHOW_AUXV=1 ruby "
    "-v`), from which Ruby takes the size of its signal stack",
    "memcached": THREADS,
    "sort": "an arena of its second thread, if it allocates while the first one does, as natively",
    "kv": THREADS,
}
