"""Do runs find a QEMU that loads plugins, and do they count the same on every version of it?"""

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from contigua import emulator

#: A program without libraries, in loops of known length: accesses of 8 bytes, of 16 and of 32, and
#: repeated string instructions.
PROGRAM = """
    .globl _start
    .bss
    .balign 64
room: .skip 8192
    .text
_start:
    lea room(%rip), %rbx
    mov $1000, %ecx
1:  mov (%rbx), %rax
    add %rax, 8(%rbx)
    movdqu (%rbx), %xmm0
    movdqu %xmm0, 4090(%rbx)
    vmovdqu (%rbx), %ymm1
    vmovdqu %ymm1, 64(%rbx)
    push %rax
    pop %rax
    dec %ecx
    jnz 1b
    mov $100, %edx
2:  mov %rbx, %rsi
    lea 4096(%rbx), %rdi
    mov $300, %ecx
    rep movsb
    mov $50, %ecx
    rep stosq
    rep stosq
    mov $20, %ecx
    rep lodsw
    dec %edx
    jnz 2b
    mov $60, %eax
    xor %edi, %edi
    syscall
"""
#: Expected executions: an access of more than 8 bytes as several of 8, a repeated string
#: instruction once for each iteration and once more.
EXECUTED = {
    "instructions": 2 + 1000 * 10 + 1 + 100 * (3 + 301 + 1 + 51 + 1 + 1 + 21 + 2) + 3,
    "loads": 1000 * 9 + 100 * (300 + 20),
    "stores": 1000 * 8 + 100 * (300 + 50),
}


def emulators():
    """Return the emulators of this computer: the host's, and those built for it or for wheels."""
    host = shutil.which(emulator.PROGRAM)
    folders = [emulator.cache_folder(), emulator.portable_folder(), emulator.CARRIED]
    built = [
        path for folder in folders for path in sorted(folder.glob(f"[0-9]*/{emulator.PROGRAM}"))
    ]
    found = [path for path in [host and Path(host), *built] if path]
    loads = ["--help"]
    return [
        path
        for path in found
        if "\n-plugin" in subprocess.run([path, *loads], capture_output=True, text=True).stdout
    ]


@pytest.fixture(scope="session")
def bare_program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bare")
    (folder / "bare.s").write_text(PROGRAM)
    build = ["cc", "-nostdlib", "-static", "-o", "bare", "bare.s"]
    subprocess.run(build, cwd=folder, check=True)
    return folder / "bare"


#: Instructions without what a skip over 10,000 of them leaves out: all but the last iteration
#: of the first loop.
AFTER_SKIP = {
    name: count - {"instructions": 2 + 999 * 10, "loads": 999 * 9, "stores": 999 * 8}[name]
    for name, count in EXECUTED.items()
}


# It touches three pages: two of `room` and its stack, none for the first time after the skip.
@pytest.mark.parametrize(
    ("skip", "expected", "touched"),
    [
        ("0", EXECUTED, 3),
        ("10000", AFTER_SKIP, 0),
    ],
    ids=["whole", "after-skip"],
)
@pytest.mark.parametrize("qemu", emulators(), ids=lambda path: path.parent.name)
def test_a_program_without_libraries_counts_the_same_on_every_qemu(
    qemu, skip, expected, touched, cli, bare_program, tmp_path
):
    report = tmp_path / "report.json"
    run = ["run", "--designs", "linux-4k", "--detail", "translation", "--skip", skip]
    run += ["--json", report]
    ran = cli(*run, "--", bare_program, env={"CONTIGUA_QEMU": str(qemu)})
    assert ran.returncode == 0, ran.stderr
    counted = json.loads(report.read_text())[0]
    assert {name: counted["executed"][name] for name in EXECUTED} == expected
    assert counted["kernel"]["faults_anonymous_4k"] == touched
    assert counted["kernel"]["unexplained_accesses"] == 0


def script(path, answers):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {answers}\n")
    path.chmod(0o755)
    return path


def test_a_qemu_without_plugins_is_refused_with_the_command_that_builds_one(cli, tmp_path):
    static = script(tmp_path / "static" / emulator.PROGRAM, "usage")
    environment = {"CONTIGUA_QEMU": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment["PATH"] = f"{static.parent}:{os.environ['PATH']}"
    ran = cli("run", "--", "true", env=environment)
    assert ran.returncode == 1
    assert ran.stderr == (
        "contigua: no QEMU that loads plugins (qemu-x86_64: loads no plugins); run `contigua setup "
        "qemu` to build one, or set CONTIGUA_QEMU to the path of one\n"
    )


@pytest.mark.parametrize("architecture", emulator.ARCHITECTURES)
def test_the_wheels_qemu_comes_after_a_choice_and_a_newer_build(
    architecture, monkeypatch, tmp_path
):
    monkeypatch.setattr(emulator, "CARRIED", tmp_path / "carried")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for one in emulator.VARIABLES.values():
        monkeypatch.setenv(one, "")
    program, variable = f"qemu-{architecture}", emulator.VARIABLES[architecture]

    def used():
        emulator.use_carried()
        return os.environ[variable]

    assert used() == ""
    carried = script(tmp_path / "carried" / "10.2.2" / program, "")
    script(emulator.cache_folder() / "9.2.4" / program, "")
    script(emulator.cache_folder() / "build-x" / program, "")
    assert used() == str(carried)
    monkeypatch.setenv(variable, "/opt/qemu")
    assert used() == "/opt/qemu"
    monkeypatch.setenv(variable, "")
    built = script(emulator.cache_folder() / "10.10.0" / program, "")
    assert used() == ""
    built.chmod(0o644)
    assert used() == str(carried)
    monkeypatch.setenv(variable, "")
    carried.chmod(0o644)
    assert used() == ""


def test_a_build_says_which_packages_it_takes(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(emulator, "COMMANDS", {"no-such-command": "some-package"})
    with pytest.raises(emulator.EmulatorError, match="run: apt-get install some-package"):
        emulator.build()
    assert not list(tmp_path.rglob("*"))


def test_a_built_qemu_lies_beside_its_licence_and_its_source(tmp_path):
    source = tmp_path / "qemu-10.0.13"
    for name in ("COPYING", "COPYING.LIB", "LICENSE", "debian/patches/series"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    (source / "VERSION").write_text("10.0.13\n")
    described = tmp_path / "qemu_10.0.13.dsc"
    described.write_text("Version: 1:10.0.13\n")
    package = emulator.Source("1:10.0.13", source, (described,))
    program = script(tmp_path / "build" / emulator.PROGRAM, "10.0.13")
    cache = tmp_path / "cache"
    for _ in range(2):
        cache.mkdir(exist_ok=True)
        installed = emulator._install(program, package, cache)
    assert installed == cache / "10.0.13" / emulator.PROGRAM
    assert installed.stat().st_mode & stat.S_IXUSR
    beside = {path.name for path in installed.parent.iterdir()}
    assert beside == {emulator.PROGRAM, "COPYING", "COPYING.LIB", "LICENSE", "SOURCE", "patches"}
    note = (installed.parent / "SOURCE").read_text()
    assert "Debian's package qemu 1:10.0.13" in note
    assert "--enable-plugins" in note
    assert [path.name for path in cache.iterdir()] == ["10.0.13"]


def test_emulators_of_both_architectures_lie_beside_each_other(tmp_path):
    source = tmp_path / "qemu-10.0.13"
    for name in ("COPYING", "COPYING.LIB", "LICENSE", "debian/patches/series"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    (source / "VERSION").write_text("10.0.13\n")
    package = emulator.Source("1:10.0.13", source, ())
    cache = tmp_path / "cache"
    cache.mkdir()
    names = [f"qemu-{architecture}" for architecture in emulator.ARCHITECTURES]
    for name in [*names, names[0]]:
        program = script(tmp_path / "build" / name, name)
        installed = emulator._install(program, package, cache)
        assert installed.name == name
    for name, note in zip(names, ("SOURCE", "SOURCE.qemu-aarch64"), strict=True):
        assert name in (installed.parent / name).read_text()
        architecture = name.removeprefix("qemu-")
        assert f"--target-list={architecture}-linux-user" in (installed.parent / note).read_text()


def test_beside_a_portable_build_is_the_source_of_all_of_it(monkeypatch, tmp_path):
    source = tmp_path / "qemu-10.0.13"
    for name in ("COPYING", "COPYING.LIB", "LICENSE", "debian/patches/series"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    (source / "VERSION").write_text("10.0.13\n")
    described, library = tmp_path / "qemu_10.0.13.dsc", tmp_path / "glib2.0_2.74.6.dsc"
    described.write_text("qemu")
    library.write_text("glib")
    monkeypatch.setattr(emulator, "LIBRARIES", {"c": "libc6"})
    program = script(tmp_path / "build" / emulator.PROGRAM, "10.0.13")
    package = emulator.Source("1:10.0.13", source, (described,))
    (tmp_path / "to").mkdir()
    tools = "aarch64-linux-gnu-"
    installed = emulator._install(program, package, tmp_path / "to", (library,), tools)
    sources = installed.parent / emulator.SOURCES
    assert {path.name for path in sources.iterdir()} == {described.name, library.name}
    assert (installed.parent / "libc6.copyright").exists()
    note = (installed.parent / "SOURCE").read_text()
    assert hashlib.sha256(b"glib").hexdigest() in note
    assert "export-dynamic-symbol=g_byte_array_new" in note
    assert f" --cross-prefix={tools} " in note


def test_a_portable_build_has_the_functions_of_glib_that_the_plugin_asks_for():
    plugin = Path(__file__).parents[2] / "crates/qemu-plugin/src"
    asked = re.findall(r'symbol\(c"(g_\w+)"\)', "".join(map(Path.read_text, plugin.glob("*.rs"))))
    assert set(asked) == set(emulator.EXPORTED)
    for name in asked:
        assert f"--export-dynamic-symbol={name}" in emulator.PORTABLE_OPTIONS[0]


@pytest.mark.parametrize(
    ("tools", "package"), [("", "some-package"), ("aarch64-linux-gnu-", "some-package:arm64")]
)
def test_a_library_that_is_not_there_to_be_linked_in_is_named(
    tools, package, monkeypatch, tmp_path
):
    monkeypatch.setattr(emulator, "LIBRARIES", {"no-such-library": "some-package"})
    said = rf"libno-such-library\.a is missing; as root, run: apt-get install {package}$"
    with pytest.raises(emulator.EmulatorError, match=said):
        emulator._static_libraries(emulator._Steps(tmp_path, tmp_path / "log", 0), tools)


def test_a_step_that_fails_shows_the_end_of_what_it_said(tmp_path):
    log = tmp_path / "log"
    with log.open("wb") as output:
        steps = emulator._Steps(tmp_path, log, output.fileno())
        seen = []
        steps.run(["printf", "[1/4] one\n[4/4] two\n"], seen.append)
        assert seen == [0.25, 1.0]
        with pytest.raises(emulator.EmulatorError, match=r"sh failed; .*log, and at last:\nbad$"):
            steps.run(["sh", "-c", "echo bad; exit 3"])
        with pytest.raises(emulator.EmulatorError, match="no-such-command: No such file"):
            steps.run(["no-such-command"])
    assert log.read_text() == "[1/4] one\n[4/4] two\nbad\n"
