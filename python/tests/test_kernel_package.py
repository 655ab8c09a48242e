"""The command that makes Debian packages of a kernel, on what it must refuse."""

import os
import subprocess
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "kernel" / "package"


@pytest.fixture
def tree(tmp_path):
    for name in ("mm/page_alloc.c", "scripts/package/mkdebian", "scripts/Makefile.package"):
        path = tmp_path / "linux" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "linux/.config").write_text("")
    return tmp_path / "linux"


def package(*arguments, **settings):
    return subprocess.run([PACKAGE, *arguments], capture_output=True, text=True, **settings)


@pytest.mark.parametrize("arguments", [[], ["a", "b", "c"], ["--help"]])
def test_the_kernel_package_command_prints_its_usage(arguments):
    done = package(*arguments)
    assert done.returncode == 2
    assert done.stderr == "usage: package TREE [CONFIGURATION]\n"


def test_no_kernel_tree(tmp_path):
    done = package(tmp_path)
    assert done.returncode == 1
    said = f"package: {tmp_path} is not a Linux source tree: it has no mm/page_alloc.c\n"
    assert done.stderr == said


def test_no_configuration(tree):
    done = package(tree, tree / "config")
    assert done.returncode == 1
    assert done.stderr == f"package: there is no file {tree}/config\n"


def test_packages_that_a_build_lacks_are_named_and_the_tree_stays_as_it_is(tree, tmp_path):
    # One that knows of no package but make, at the head of the path.
    query = tmp_path / "bin/dpkg-query"
    query.parent.mkdir()
    query.write_text("#!/bin/sh\n[ $4 = make ] && echo install ok installed\n")
    query.chmod(0o755)
    (tree / "scripts/package/mkdebian").write_text("debhelper-compat (= 12)\n")
    before = sorted(tree.rglob("*"))
    path = f"{query.parent}:{os.environ['PATH']}"
    done = package("linux", cwd=tmp_path, env={**os.environ, "PATH": path})
    assert done.returncode == 1
    assert done.stderr == (
        "package: as root, run: apt-get install gcc flex bison bc libelf-dev libssl-dev rsync "
        "kmod cpio dpkg-dev debhelper\n"
    )
    assert sorted(tree.rglob("*")) == before
