"""Compilers, databases in a file, archives, version control."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from trial import ROOT, Program, Trial


def digest(file: Path) -> str:
    """Return a digest of a file's contents."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.exists() else "no file"


def large_source(structs: int) -> str:
    """A C++ file that makes a compiler work: templates, maps, strings, lambdas."""
    parts = [
        "#include <map>",
        "#include <string>",
        "#include <vector>",
        "#include <functional>",
        "template <int N> struct Tower {",
        "    static int value() { return N + Tower<N - 1>::value(); }",
        "};",
        "template <> struct Tower<0> { static int value() { return 0; } };",
    ]
    for i in range(structs):
        parts.append(
            f"struct S{i} {{ int a[{i % 17 + 1}]; double d; std::string s;"
            f" int f(int x) const {{ int r = x; for (int j = 0; j < {i % 17 + 1}; j++)"
            f" r = r * {i + 3} + a[j] % {i % 13 + 2}; return r + Tower<{i % 40}>::value(); }} }};"
        )
        if i % 60 == 0:
            parts.append(
                f"int g{i}(std::map<std::string, std::vector<S{i}>> &m,"
                f" std::function<int(int)> f) {{ int r = 0; for (auto &[k, v] : m)"
                f" for (auto &s : v) r += f(s.f(k.size())); return r; }}"
            )
    return "\n".join(parts)


def gcc(trial: Trial) -> None:
    """A large C++ file, optimized and for a debugger; link-time optimization in parallel."""
    source = trial.directory / "large.cc"
    source.write_text(large_source(1500))
    for options in (["-O2"], ["-O1", "-g"], ["-O0", "-fsanitize=undefined"]):
        target = trial.directory / "large.o"
        command = ["g++", *options, f"-fdebug-prefix-map={trial.directory}=/x"]
        trial.check(f"g++ {' '.join(options)}", *command, "-c", "large.cc", "-o", target)
        trial.same(f"object of g++ {' '.join(options)}", digest(target))
    sources = sorted((ROOT / "benches" / "malloc").glob("*.c"))[:4]
    for file in sources:
        target = trial.directory / file.stem
        trial.check(
            f"gcc {file.stem}",
            "gcc",
            "-O3",
            "-flto=2",
            "-pthread",
            "-frandom-seed=1",
            file,
            "-o",
            target,
        )
        trial.same(f"program {file.stem}", digest(target))
    broken = trial.run("g++", "-c", "-x", "c++", "-", text="int f( { return 1; }\n" * 50)
    trial.same("errors", (broken.code, broken.err.count("error:")))


def clang(trial: Trial) -> None:
    """Compile the file of gcc with clang; its analysis of a C file."""
    source = trial.directory / "large.cc"
    source.write_text(large_source(600))
    for options in (["-O2"], ["-O1", "-g"]):
        target = trial.directory / "large.o"
        command = ["clang++", *options, f"-fdebug-prefix-map={trial.directory}=/x"]
        trial.check(f"clang++ {' '.join(options)}", *command, "-c", "large.cc", "-o", target)
        trial.same(f"object of clang++ {' '.join(options)}", digest(target))
    for file in sorted((ROOT / "benches" / "malloc").glob("*.c"))[:4]:
        found = trial.check(
            f"analysis of {file.stem}",
            "clang",
            "--analyze",
            "-Xclang",
            "-analyzer-output=text",
            file,
        )
        trial.same(f"findings in {file.stem}", found.err.count("warning:"))


SQL = """
PRAGMA cache_size = 4000;
CREATE TABLE t(i INTEGER PRIMARY KEY, k INTEGER, s TEXT, b BLOB);
INSERT INTO t SELECT value, value * 7 % 1009, printf('%0*d', value % 200 + 1, value),
    zeroblob(value % 500) FROM generate_series(1, 150000);
CREATE INDEX tk ON t(k, s);
SELECT count(*), sum(length(s)), sum(length(b)) FROM t WHERE k < 500;
SELECT k, group_concat(i) FROM (SELECT k, i FROM t WHERE k % 100 = 1 ORDER BY i) GROUP BY k;
SELECT count(*) FROM t a JOIN t b ON a.k = b.k WHERE a.i < 3000;
CREATE VIRTUAL TABLE f USING fts5(x);
INSERT INTO f SELECT s || ' word' || (k % 50) FROM t WHERE i < 30000;
SELECT count(*) FROM f WHERE f MATCH 'word7';
CREATE VIRTUAL TABLE r USING rtree(id, x0, x1, y0, y1);
INSERT INTO r SELECT i, k, k + 1, i % 100, i % 100 + 2 FROM t WHERE i < 20000;
SELECT count(*) FROM r WHERE x0 > 100 AND x1 < 200 AND y0 > 10 AND y1 < 50;
WITH RECURSIVE c(n, v) AS (SELECT 1, 1 UNION ALL SELECT n + 1, (v * 31 + n) % 1000003 FROM c
    WHERE n < 100000) SELECT sum(v) FROM c;
SELECT json_group_array(json_object('i', i, 's', s)) FROM t WHERE i < 300;
DELETE FROM t WHERE i % 3 = 0;
UPDATE t SET s = s || 'x' WHERE k < 300;
VACUUM;
PRAGMA integrity_check;
SELECT avg(k) OVER (ORDER BY i ROWS 100 PRECEDING) FROM t WHERE i % 5000 = 1;
"""


def sqlite(trial: Trial) -> None:
    """Inserts, indices, joins, full text, R-trees, windows, VACUUM, in a file and in memory."""
    for database in ("file.db", ":memory:"):
        done = trial.check(f"sqlite3 {database}", "sqlite3", database, text=SQL)
        trial.same(f"answers from {database}", hashlib.sha256(done.out.encode()).hexdigest())
        trial.same(f"errors from {database}", done.err)
    dump = trial.check("dump", "sqlite3", "file.db", ".dump")
    trial.same("dump", hashlib.sha256(dump.out.encode()).hexdigest())


def git(trial: Trial) -> None:
    """Clone, gc --aggressive, fsck, log and blame of this repository."""
    trial.check(
        "clone",
        "git",
        "clone",
        "--quiet",
        "--no-hardlinks",
        "--no-local",
        f"file://{repository()}",
        "clone",
    )
    clone = trial.directory / "clone"
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
        "GIT_AUTHOR_DATE": "1700000000 +0000",
        "GIT_COMMITTER_DATE": "1700000000 +0000",
    }
    log = trial.check("log", "git", "log", "-p", "--stat", "-200", directory=clone)
    trial.same("log", hashlib.sha256(log.out.encode()).hexdigest())
    trial.check(
        "repack",
        "git",
        "-c",
        "pack.threads=2",
        "repack",
        "-adfq",
        "--depth=50",
        "--window=50",
        directory=clone,
    )
    trial.check(
        "gc --aggressive", "git", "gc", "--quiet", "--aggressive", "--prune=now", directory=clone
    )
    trial.check("fsck", "git", "fsck", "--full", "--strict", directory=clone)
    blame = trial.check("blame", "git", "blame", "-C", "-M", "Cargo.toml", directory=clone)
    trial.same("blame", hashlib.sha256(blame.out.encode()).hexdigest())
    (clone / "README.md").write_text("changed\n")
    trial.check(
        "commit", "git", "commit", "--quiet", "-am", "change", directory=clone, more=identity
    )
    trial.check("rebase", "git", "rebase", "--quiet", "HEAD~1", directory=clone, more=identity)
    grep = trial.check("grep", "git", "grep", "-nE", "fn [a-z]+_[a-z]+", directory=clone)
    trial.same("grep", hashlib.sha256(grep.out.encode()).hexdigest())


def repository() -> Path:
    """Return the folder of this repository's history (a work tree's is elsewhere)."""
    pointer = ROOT / ".git"
    if pointer.is_dir():
        return ROOT
    return Path(pointer.read_text().split()[1]).parent.parent


def archives(trial: Trial) -> None:
    """tar with gzip, bzip2, xz and zstd in threads, and back."""
    source = trial.directory / "source"
    shutil.copytree(ROOT / "crates", source, ignore=shutil.ignore_patterns("target"))
    tar = ["tar", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]
    trial.check("tar", *tar, "-cf", "a.tar", "source")
    trial.same("archive", digest(trial.directory / "a.tar"))
    for name, *command in (
        ("gzip", "-9n"),
        ("bzip2",),
        ("xz", "-3", "-T2"),
        ("zstd", "-T2", "-9", "-q"),
    ):
        trial.check(name, name, *command, "-k", "a.tar")
        packed = next(trial.directory.glob(f"a.tar.{name[:2] if name != 'zstd' else 'zst'}*"), None)
        trial.same(f"file of {name}", packed and digest(packed))
        (trial.directory / "back").mkdir(exist_ok=True)
        if packed:
            trial.check(f"{name} back", "tar", "-xf", packed, "-C", "back")
            trial.check(f"{name} compared", "diff", "-r", "source", "back/source", preload=False)


SHELL = """
declare -A a; for i in {1..30000}; do a[$((i % 5000))]+=$i; done; echo ${#a[@]} ${a[7]}
for i in {1..200}; do (echo $i; exec true) | cat | tr 1 2 | md5sum; done | sort | uniq -c | md5sum
seq 200000 | awk '{ s[$1 % 999] = s[$1 % 999] $1 } END { for (k in s) n += length(s[k]); print n }'
seq 300000 | sort -r | sed -n 's/9$/x/p' | md5sum
find /usr/share/doc -maxdepth 2 -name copyright | xargs -P 4 -n 20 grep -l GPL | wc -l
"""


def shell(trial: Trial) -> None:
    """bash, awk, sort, sed, find and xargs; many forks."""
    done = trial.check("bash", "bash", "-c", SHELL)
    trial.same("output", done.out)
    trial.same("errors", done.err)
    done = trial.check("make", "make", "-n", "-C", ROOT, "lint")
    trial.same("dry run of make", hashlib.sha256(done.out.encode()).hexdigest())


PROGRAMS = [
    Program(
        "gcc",
        "`g++` of a file of 1,500 structs three ways, `-flto=2`: identical objects",
        gcc,
        (("g++", "g++"),),
        ("g++", "--version"),
    ),
    Program(
        "clang",
        "`clang++` of such a file, `--analyze`: identical objects and findings",
        clang,
        (("clang++", "clang"),),
        ("clang", "--version"),
    ),
    Program(
        "sqlite",
        "150,000 rows, joins, FTS5, R-tree, JSON, windows, `VACUUM`, `integrity_check`, in a"
        " file and in memory",
        sqlite,
        (("sqlite3", "sqlite3"),),
        ("sqlite3", "--version"),
    ),
    Program(
        "git",
        "`clone`, `log -p`, `repack`, `gc --aggressive`, `fsck --strict`, `blame`, `rebase` of"
        " this repository",
        git,
        (("git", "git"),),
        ("git", "--version"),
    ),
    Program(
        "archives",
        "`tar`; `gzip`, `bzip2`, `xz -T2`, `zstd -T2`, and back",
        archives,
        (("zstd", "zstd"), ("xz", "xz-utils"), ("bzip2", "bzip2")),
    ),
    Program(
        "shell", "`bash`, `awk`, `sort`, `sed`, `find`, `xargs -P`, `make -n`; 1,000 forks", shell
    ),
]
