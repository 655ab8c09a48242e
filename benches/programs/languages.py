"""Language runtimes with programs of our own."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tools import digest
from trial import DATA, ROOT, Program, Trial


def node(trial: Trial) -> None:
    """Objects, worker threads, zlib, crypto, WebAssembly, HTTP; npm; a compiler written for it."""
    done = trial.check("node", "node", "--expose-gc", DATA / "work.js")
    trial.same("output", done.out)
    cache = {
        "npm_config_cache": str(trial.directory / "cache"),
        "npm_config_update_notifier": "false",
    }
    trial.check("npm init", "npm", "init", "-y", more=cache)
    trial.check(
        "npm install", "npm", "install", "--no-audit", "--no-fund", "typescript@5.4.5", more=cache
    )
    (trial.directory / "a.ts").write_text(
        "\n".join(
            f"interface I{i} {{ a: number; b: Array<{'I' + str(i - 1) if i else 'string'}> }}\n"
            f"export const f{i} = (x: I{i}): number => x.b.length + x.a;"
            for i in range(500)
        )
    )
    trial.check(
        "tsc", "node", "node_modules/typescript/bin/tsc", "--strict", "--target", "es2020", "a.ts"
    )
    trial.same("what tsc wrote", digest(trial.directory / "a.js"))


def java(trial: Trial) -> None:
    """javac; threads, direct buffers, deflation, under each collector."""
    shutil.copy(DATA / "Work.java", trial.directory)
    trial.check("javac", "javac", "-Xlint:none", "Work.java")
    for collector in ("G1", "Parallel", "Serial", "Z", "Shenandoah"):
        done = trial.check(
            f"java {collector}",
            "java",
            f"-XX:+Use{collector}GC",
            "-Xmx384m",
            "-XX:MaxDirectMemorySize=1g",
            "Work",
        )
        trial.same(f"output with {collector}", done.out)
    done = trial.check(
        "java -Xcomp",
        "java",
        "-Xcomp",
        "-XX:TieredStopAtLevel=1",
        "-Xmx256m",
        "-XX:NativeMemoryTracking=summary",
        "Work",
    )
    trial.same("output with -Xcomp", done.out)


def go(trial: Trial) -> None:
    """A module with cgo: the tools, and C memory from goroutines."""
    shutil.copy(DATA / "work.go", trial.directory / "main.go")
    (trial.directory / "go.mod").write_text("module example.org/work\n\ngo 1.19\n")
    more = {
        "GOCACHE": str(trial.directory / "cache"),
        "GOFLAGS": "-mod=mod",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "1",
        "GOPROXY": "off",
    }
    trial.check("go vet", "go", "vet", ".", more=more)
    trial.check("go build", "go", "build", "-o", "work", ".", more=more)
    done = trial.check("the program", trial.directory / "work")
    trial.same("output", done.out)


def rust(trial: Trial) -> None:
    """Compile three crates of ours and run the tests of one."""
    more = {
        "CARGO_TARGET_DIR": str(trial.directory / "target"),
        "HOME": str(Path.home()),
        "CARGO_NET_OFFLINE": "true",
        "CARGO_INCREMENTAL": "0",
    }
    trial.check(
        "cargo build", "cargo", "build", "-q", "-p", "contigua-pageheap", directory=ROOT, more=more
    )
    tests = trial.check(
        "cargo test", "cargo", "test", "-q", "-p", "contigua-units", directory=ROOT, more=more
    )
    results = [
        line.partition("; finished")[0] for line in tests.out.splitlines() if "test result" in line
    ]
    trial.same("results", results)
    trial.facts.tests += sum(int(n) for n in re.findall(r"(\d+) passed", tests.out))


def script(trial: Trial, command: str, file: str, *options: str) -> None:
    """One program of ours in a language."""
    done = trial.check(command, command, *options, DATA / file)
    trial.same("output", done.out)
    trial.same("errors", done.err)


def php(trial: Trial) -> None:
    """With PHP's own allocator, and with malloc for everything."""
    for own in ("1", "0"):
        done = trial.check(
            f"USE_ZEND_ALLOC={own}", "php", DATA / "work.php", more={"USE_ZEND_ALLOC": own}
        )
        trial.same(f"output with {own}", done.out)


PROGRAMS = [
    Program(
        "node",
        "objects, 4 worker threads, zlib, crypto, WebAssembly, HTTP; `npm install typescript`,"
        " `tsc`",
        node,
        (("node", "nodejs"), ("npm", "npm")),
        ("node", "--version"),
    ),
    Program(
        "java",
        "`javac`; 8 threads, direct buffers, deflation under G1, Parallel, Serial, Z and"
        " Shenandoah; `-Xcomp`",
        java,
        (("javac", "default-jdk-headless"),),
        ("java", "-version"),
    ),
    Program(
        "go",
        "`go vet`, `go build` with cgo; C memory from 200 goroutines",
        go,
        (("go", "golang"),),
        (),
    ),
    Program(
        "rust",
        "`cargo build` of the page heap, `cargo test` of the units",
        rust,
        (),
        ("rustc", "--version"),
    ),
    Program(
        "perl",
        "hashes, regular expressions, sorting, closures, forks",
        lambda trial: script(trial, "perl", "work.pl"),
        (("perl", "perl"),),
    ),
    Program(
        "ruby",
        "objects, threads, fibers, `GC.stress`, `GC.compact`, forks",
        lambda trial: script(trial, "ruby", "work.rb", "--disable=gems"),
        (("ruby", "ruby"),),
        ("ruby", "--version"),
    ),
    Program(
        "php",
        "arrays, regular expressions, JSON, sorting; also with `USE_ZEND_ALLOC=0`",
        php,
        (("php", "php-cli"),),
        ("php", "--version"),
    ),
]
