"""Detection of malloc misuse by allocator: write the table into docs/malloc.md.

Each case of `benches/malloc/support/misuse.c` runs in a process of its own under each allocator.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Collection
from pathlib import Path

import documents
import malloc
import peers

SCUDO = "/usr/lib/llvm-14/lib/clang/14.0.6/lib/linux/libclang_rt.scudo_standalone-x86_64.so"
ENDS = {0: "-", 3: "n/a"}


def outcome(program: Path, number: int, environment: dict[str, str]) -> str:
    """Return what became of a mistake: noticed, a fault without a word, a hang, nothing."""
    try:
        done = subprocess.run(
            [program, str(number)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        return "hangs"
    if done.returncode in (-signal.SIGSEGV, -signal.SIGBUS):
        return "yes" if done.stderr else "fault"
    if done.returncode in ENDS:
        return "yes" if done.returncode == 0 and done.stderr else ENDS[done.returncode]
    return "yes"


def table(
    cases: list[list[str]], outcomes: dict[str, list[str]], ours: Collection[str]
) -> list[str]:
    """Lines of a Markdown table: how many mistakes of a kind were noticed, by allocator.

    `cases` are kinds and what of them; `outcomes` what became of each, by allocator. Of `ours`
    the lines name what was not noticed.
    """
    kinds = list(dict.fromkeys(kind for kind, _ in cases))

    def counted(found: list[str], where: list[bool]) -> str:
        own = [one for one, is_own in zip(found, where, strict=True) if is_own]
        return str(own.count("yes")) + (f" + {n}" if (n := own.count("fault")) else "")

    rows = []
    for kind in [*kinds, "all"]:
        where = [kind in (one, "all") for one, _ in cases]
        cells = [counted(found, where) for found in outcomes.values()]
        rows.append([kind, str(sum(where)), *cells])
    lines = [
        "Mistakes at which the process ends or complains, + those at which it ends with SIGSEGV."
    ]
    for name in ours:
        missed = []
        for kind in kinds:
            own = [
                (what, one)
                for (of, what), one in zip(cases, outcomes[name], strict=True)
                if of == kind
            ]
            those = [what for what, one in own if one not in ("yes", "fault")]
            if those:
                missed.append(f"{kind} ({'all' if len(those) == len(own) else '; '.join(those)})")
        lines.append(f"Not noticed, {name}: {', '.join(missed) or 'none'}.")
    wrapped = textwrap.wrap(" ".join(lines), 118)
    return [
        *wrapped,
        "",
        *documents.rows({"heads": ["mistake", "of", *outcomes], "rows": rows}, names=1),
    ]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, default=malloc.ALLOCATORS["contigua"])
    parser.add_argument("--scudo", type=Path, default=Path(SCUDO), help="LLVM's Scudo")
    parser.add_argument("--print", action="store_true", help="write nothing, print the table")
    options = parser.parse_args()
    others = {**malloc.ALLOCATORS, **peers.built(hardened=True), "Scudo": options.scudo}
    del others["contigua"]
    settings = {
        "contigua": {},
        "level 2": {"CONTIGUA_MALLOC_HARDEN": "2"},
        "level 3": {"CONTIGUA_MALLOC_HARDEN": "3"},
        "guarded": {"CONTIGUA_MALLOC_GUARDED": "1"},
    }
    runs = {
        name: {"LD_PRELOAD": str(options.library), **setting} for name, setting in settings.items()
    }
    for name, library in others.items():
        if library is None:
            runs[name] = {}
        elif library.exists():
            runs[name] = {"LD_PRELOAD": str(library)}
    outcomes: dict[str, list[str]] = {name: [] for name in runs}
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "misuse"
        source = malloc.SOURCES / "support" / "misuse.c"
        command = ["cc", "-O1", "-w", "-fno-builtin", "-pthread", "-o", str(program), str(source)]
        libraries = ["-Wl,--no-as-needed", "-lstdc++"]
        subprocess.run([*command, *libraries], check=True)
        listed = subprocess.run([program], capture_output=True, text=True, check=True)
        cases = [line.split("|") for line in listed.stdout.splitlines()]
        for number, (kind, what) in enumerate(cases):
            found = [outcome(program, number, environment) for environment in runs.values()]
            for name, one in zip(runs, found, strict=True):
                outcomes[name].append(one)
            print(kind, what, *found, file=sys.stderr, flush=True)
    lines = table(cases, outcomes, settings)
    documents.publish("misuse", "malloc.md", lines, only_print=options.print)


if __name__ == "__main__":
    main()
