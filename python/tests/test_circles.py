"""Does the lint notice files that import each other in a circle, and is every test compiled?"""

import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest

from conftest import ROOT


@pytest.fixture(scope="module")
def circles():
    loader = SourceFileLoader("circles", str(ROOT / "scripts" / "circles"))
    module = module_from_spec(spec_from_loader("circles", loader))
    loader.exec_module(module)
    return module


def crate(folder, **files):
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.rs"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def found(circles, folder):
    parts = circles.circles(circles.imports(folder))
    return [sorted(map(circles.label, part)) for part in parts]


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        ("use crate::b::{X, Y};", "use crate::c;", "fn f() { crate::a::g() }"),
        (
            "use crate::{other::Z, b};",
            "use super::c::{self, W};",
            "use crate::{c, a::{V, U as T}};",
        ),
    ],
)
def test_a_circle_of_three_files_is_found(a, b, c, tmp_path, circles):
    folder = crate(tmp_path, lib="mod a; mod b; mod c; mod d;", a=a, b=b, c=c, d="use crate::a;")
    assert found(circles, folder) == [["a", "b", "c"]]


def test_imports_without_a_circle_are_accepted(tmp_path, circles):
    folder = crate(
        tmp_path,
        lib="mod a; mod b; use crate::a::X;",
        a="use crate::b::X; // use crate::lib\nmod inner { use super::Y; }",
        b="fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::a::X;\n}",
        b__c="use self::D; fn g() { super::f() }",
    )
    assert found(circles, folder) == []


def package(folder, **files):
    for name in ("contigua", "contigua_experiments"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    "a",
    [
        "def f():\n    from contigua.sub.b import g\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from contigua.sub import b\n",
        "import contigua.sub.b\n",
        "from .sub import b\n",
    ],
)
def test_a_circle_of_python_files_is_found_wherever_they_import(a, tmp_path, circles):
    folder = package(tmp_path, contigua__a=a)
    package_b = folder / "contigua" / "sub"
    package_b.mkdir()
    (package_b / "__init__.py").touch()
    (package_b / "b.py").write_text("from contigua import a, _engine\n")
    parts = circles.circles(circles.python_imports(folder))
    assert parts == [{("contigua", "a"), ("contigua", "sub", "b")}]


def test_layers_are_told_by_the_architecture(tmp_path, circles):
    layers = circles.python_layers(
        "<!-- Python's layers -->\n| layer | modules |\n|--:|---|\n"
        "| 2 | `contigua_experiments` | x |\n| 1 | `contigua` `a` | x |\n| 0 | `b` | x |\n\n"
        "## Next\n| 9 | `c` | x |\n"
    )
    assert layers == {"contigua_experiments": 2, "contigua": 1, "a": 1, "b": 0}
    folder = package(
        tmp_path,
        contigua__a="from contigua import b\n",
        contigua__b="from contigua_experiments import d\n",
        contigua__c="",
        contigua_experiments__d="",
    )
    assert list(circles.upward(circles.python_imports(folder), layers)) == [
        "contigua.b (layer 0) imports contigua_experiments.d (layer 2)",
        "contigua.c has no layer in ARCHITECTURE.md",
    ]


def test_no_file_of_tests_is_left_out():
    programs = sorted(ROOT.glob("crates/*/tests/main.rs"))
    assert programs
    for program in (*programs, *ROOT.glob("crates/*/tests/*/mod.rs")):
        # Modules with a path are other crates' or examples' files.
        text = re.sub(r'#\[path = "[^"]+"\]\nmod \w+;', "", program.read_text())
        modules = set(re.findall(r"^(?:pub )?mod (\w+);", text, re.MULTILINE))
        files = {file.stem for file in program.parent.glob("*.rs")} - {program.stem}
        folders = {file.parent.name for file in program.parent.glob("*/mod.rs")}
        assert modules == files | folders, program
