"""Compares the core model with llvm-mca, the LLVM project's simulator of processor pipelines.

Both get the same loops, whose data fit into the first-level cache: llvm-mca has no caches. It knows
micro-operations and which ports they go to, from LLVM's scheduling model of Skylake server. Writes
a table into docs/validation.md.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Iterations: enough that starting the program does not count.
ITERATIONS = 2_000_000

#: Name, what it exercises, body of the loop. %rdi, %rsi and %rdx point to 16 KB buffers; every
#: body may use all other registers but %r15, which counts.
LOOPS = [
    ("add-chain", "one dependent addition", "add $3, %rax\n" * 8),
    (
        "add-wide",
        "eight independent additions",
        "".join(f"add $3, %{r}\n" for r in ["rax", "rbx", "rcx", "r8", "r9", "r10", "r11", "r12"]),
    ),
    ("multiply-chain", "dependent multiplications", "imul %rax, %rax\n" * 4),
    (
        "multiply-wide",
        "independent multiplications",
        "".join(f"imul %{r}, %{r}\n" for r in ["rax", "rbx", "rcx", "r8"]),
    ),
    ("chase", "a chain of loads", "mov (%rdi), %rdi\n" * 4),
    (
        "loads",
        "independent loads",
        "".join(f"mov {8 * i}(%rsi), %{r}\n" for i, r in enumerate(["rax", "rbx", "rcx", "r8"])),
    ),
    ("stores", "independent stores", "".join(f"mov %rax, {8 * i}(%rsi)\n" for i in range(4))),
    (
        "copy",
        "loads and stores",
        "".join(f"mov {8 * i}(%rsi), %rax\nmov %rax, {8 * i}(%rdx)\n" for i in range(4)),
    ),
    (
        "xorshift",
        "a generator of random numbers",
        "".join(
            f"mov %rax, %rbx\n{shift} ${by}, %rbx\nxor %rbx, %rax\n"
            for shift, by in (("shl", 13), ("shr", 7), ("shl", 17))
        ),
    ),
    (
        "hash",
        "FNV-1a over eight bytes",
        "".join(
            f"movzbl {i}(%rsi), %ebx\nxor %rbx, %rax\nimul $435, %rax, %rax\n" for i in range(8)
        ),
    ),
    ("float-add-chain", "dependent additions of doubles", "addsd %xmm1, %xmm0\n" * 4),
    (
        "dot",
        "a dot product, one accumulator",
        "".join(
            f"movsd {8 * i}(%rsi), %xmm1\nmulsd {8 * i}(%rdx), %xmm1\naddsd %xmm1, %xmm0\n"
            for i in range(4)
        ),
    ),
    (
        "axpy",
        "y += a x, two doubles at a time",
        "".join(
            f"movupd {16 * i}(%rsi), %xmm1\nmulpd %xmm2, %xmm1\n"
            f"addpd {16 * i}(%rdx), %xmm1\nmovupd %xmm1, {16 * i}(%rdx)\n"
            for i in range(4)
        ),
    ),
    ("divide", "dependent divisions of doubles", "divsd %xmm1, %xmm0\n" * 2),
    (
        "mixed",
        "address arithmetic, loads, comparison",
        "lea 8(%rsi,%rax,1), %rbx\nmov (%rbx), %rcx\nadd %rcx, %r8\ncmp %r8, %r9\n"
        "cmovl %r8, %r9\nadd $8, %rax\nand $1023, %rax\n",
    ),
]

PROGRAM = """
.globl _start
.text
_start:
    lea one(%rip), %rdi
    mov %rdi, (%rdi)
    lea one(%rip), %rsi
    add $4096, %rsi
    lea two(%rip), %rdx
    mov $1, %eax
    mov $2, %ebx
    mov ${iterations}, %r15
    jmp 1f
    .p2align 6
1:
{body}
    dec %r15
    jnz 1b
    mov $60, %eax
    xor %edi, %edi
    syscall
.bss
.p2align 12
one: .skip 16384
two: .skip 16384
"""


def ours(body: str, folder: Path) -> float:
    """Return the simulated instructions per cycle of a loop."""
    source, binary, report = folder / "loop.s", folder / "loop", folder / "report.json"
    source.write_text(PROGRAM.format(iterations=ITERATIONS, body=body))
    subprocess.run(["cc", "-nostdlib", "-static", "-o", binary, source], check=True)
    command = [sys.executable, "-m", "contigua.cli", "run", "--designs", "linux-4k"]
    # The start, with its faults, is not counted.
    command += ["--machine", "skylake", "--warmup", "100000", "--json", str(report), "--"]
    done = subprocess.run([*command, str(binary)], capture_output=True, check=False)
    if not report.exists():
        raise SystemExit(done.stderr.decode())
    return float(json.loads(report.read_text())[0]["time"]["ipc"])


def theirs(body: str, folder: Path) -> float:
    """Return llvm-mca's instructions per cycle of a loop."""
    source = folder / "body.s"
    source.write_text(body + "dec %r15\njnz 1b\n")
    command = ["llvm-mca", "-mtriple=x86_64", "-mcpu=skylake-avx512", "-iterations=2000"]
    done = subprocess.run([*command, str(source)], capture_output=True, check=True, text=True)
    found = re.search(r"^IPC:\s+([0-9.]+)", done.stdout, re.MULTILINE)
    assert found is not None
    return float(found.group(1))


def main() -> None:
    """Run every loop through both, print, and write the table."""
    if shutil.which("llvm-mca") is None:
        raise SystemExit("llvm-mca is not installed (Debian package llvm)")
    rows, near, ratios = [], [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for label, what, body in LOOPS:
            mine, other = ours(body, folder), theirs(body, folder)
            ratios.append(mine / other)
            row = f"| `{label}` | {what} | {mine:.2f} | {other:.2f} | {mine / other:.2f} |"
            print(row, flush=True)
            if 0.9 <= mine / other <= 1.1:
                near.append(f"{what} ({mine:.2f})")
            else:
                rows.append(row)
    version = subprocess.run(["llvm-mca", "--version"], capture_output=True, check=True, text=True)
    found = re.search(r"LLVM version (\S+)", version.stdout)
    lines = [
        f"llvm-mca of LLVM {found.group(1) if found else 'unknown'}, `-mcpu=skylake-avx512`; "
        f"machine `skylake`. {len(near)} of {len(ratios)} loops agree within 10 %; geometric mean "
        f"of the ratios {statistics.geometric_mean(ratios):.3f}. "
        f"Within 10 % (IPC): {', '.join(near)}. The others:",
        "",
        "| loop | what | IPC, ours | IPC, llvm-mca | ratio |",
        "|---|---|--:|--:|--:|",
        *rows,
    ]
    page = ROOT / "docs" / "validation.md"
    before, _, rest = page.read_text().partition("<!-- cores:begin -->")
    after = rest.partition("<!-- cores:end -->")[2]
    middle = "\n".join(["<!-- cores:begin -->", *lines, "<!-- cores:end -->"])
    page.write_text(before + middle + after)


if __name__ == "__main__":
    main()
