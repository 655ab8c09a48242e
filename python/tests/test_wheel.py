"""Does the wheel with its QEMU hold what its list of files says, and what the licences ask for?"""

import base64
import hashlib
import subprocess
import zipfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from contigua import emulator


@pytest.fixture(scope="module")
def wheel():
    script = Path(__file__).parents[2] / "scripts" / "wheel"
    loader = SourceFileLoader("wheel_script", str(script))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


@pytest.fixture
def qemu(tmp_path):
    """A program that needs the C library only, as a portable build lies."""
    folder = tmp_path / "carried" / "10.2.2"
    (folder / emulator.SOURCES).mkdir(parents=True)
    build = ["cc", "-x", "c", "-", "-o", str(folder / emulator.PROGRAM)]
    subprocess.run(build, input=b"int main(void) { return 0; }", check=True)
    (folder / emulator.SOURCES / "qemu_10.2.2.dsc").write_text("source")
    (folder / "COPYING").write_text("GPL")
    return folder


def plain(folder, tag):
    """A wheel as maturin makes one."""
    path = folder / f"contigua-1.0-cp311-abi3-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("contigua/__init__.py", "")
        archive.writestr("contigua-1.0.dist-info/METADATA", "License-Expression: MIT\n\ntext\n")
        archive.writestr("contigua-1.0.dist-info/WHEEL", f"Tag: cp311-abi3-{tag}\n")
        archive.writestr("contigua-1.0.dist-info/RECORD", "")
    return path


def test_a_wheel_lists_what_it_carries(wheel, qemu, tmp_path):
    bare = plain(tmp_path, "manylinux_2_17_x86_64.manylinux2014_x86_64")
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
    made, again = (wheel.add(bare, qemu, place) for place in places)
    assert made.read_bytes() == again.read_bytes()
    major, minor = wheel.glibc_of(qemu / emulator.PROGRAM)
    assert made.name == f"contigua-1.0-cp311-abi3-manylinux_{major}_{minor}_x86_64.whl"
    with zipfile.ZipFile(made) as archive:
        listed = {}
        for line in archive.read("contigua-1.0.dist-info/RECORD").decode().splitlines():
            name, digest, size = line.rsplit(",", 2)
            listed[name] = digest, size
        assert set(listed) == set(archive.namelist())
        for name, (digest, size) in listed.items():
            if not name.endswith("RECORD"):
                content = archive.read(name)
                found = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
                assert (digest, size) == (f"sha256={found.decode()}", str(len(content)))
        shared = "contigua-1.0.data/data/share/"
        assert b".TH CONTIGUA 1" in archive.read(f"{shared}man/man1/contigua.1")
        script = archive.read(f"{shared}bash-completion/completions/contigua")
        assert b"_CONTIGUA_COMPLETE=bash_complete" in script
        program = archive.getinfo(f"contigua/carried/10.2.2/{emulator.PROGRAM}")
        assert program.external_attr >> 16 & 0o111
        assert archive.read("contigua/carried/10.2.2/COPYING") == b"GPL"
        assert not any(emulator.SOURCES in name for name in listed)
        metadata = archive.read("contigua-1.0.dist-info/METADATA").decode()
        assert "License-Expression: (MIT OR Apache-2.0) AND GPL-2.0-only" in metadata
        tag = archive.read("contigua-1.0.dist-info/WHEEL").decode()
        assert tag == f"Tag: cp311-abi3-manylinux_{major}_{minor}_x86_64\n"


def test_a_newer_module_decides_the_tag(wheel, qemu, tmp_path):
    (tmp_path / "to").mkdir()
    made = wheel.add(plain(tmp_path, "manylinux_2_99_x86_64"), qemu, tmp_path / "to")
    assert made.stem.endswith("-manylinux_2_99_x86_64")


def test_a_qemu_that_needs_other_libraries_is_refused(wheel, tmp_path):
    library, program = tmp_path / "libother.so", tmp_path / "program"
    for made, options in ((library, ["-shared", "-Wl,-soname,libother.so"]), (program, [library])):
        build = ["cc", "-x", "c", "-", "-Wl,--no-as-needed", "-o", made, "-x", "none", *options]
        subprocess.run(build, input=b"int main(void) { return 0; }", check=True)
    with pytest.raises(SystemExit, match=r"program is not portable, it needs libother\.so$"):
        wheel.glibc_of(program)


def test_a_wheel_for_another_processor_says_so(wheel, qemu, tmp_path):
    bare = plain(tmp_path, "manylinux_2_34_aarch64")
    (tmp_path / "one").mkdir()
    made = wheel.add(bare, qemu, tmp_path / "one")
    assert made.name.startswith("contigua-1.0-cp311-abi3-manylinux_2_")
    assert made.name.endswith("_aarch64.whl")
    with pytest.raises(SystemExit, match="for neither x86-64 nor aarch64 Linux"):
        wheel.add(plain(tmp_path, "musllinux_1_2_riscv64"), qemu, tmp_path / "one")


def test_a_carried_qemu_is_built_once_for_the_hosts_programs(wheel, monkeypatch, tmp_path):
    built = []

    def build(portable, architecture, host):
        program = portable / "10.2.2" / f"qemu-{architecture}"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("")
        built.append((architecture, host))
        return program

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(emulator, "build", build)
    folders = [wheel.carried("aarch64") for _ in range(2)]
    assert built == [("aarch64", "aarch64")]
    assert {folder.name for folder in folders} == {"10.2.2"}
    assert emulator.portable_folder("aarch64") in folders[0].parents
