"""Do the notebooks run, and are they committed without what they printed?"""

import shutil

import pytest

from conftest import ROOT

pytestmark = pytest.mark.programs

nbformat = pytest.importorskip("nbformat", reason="needs nbformat (make test installs it)")
nbclient = pytest.importorskip("nbclient", reason="needs nbclient (make test installs it)")

FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
#: A limit for what hangs, not a measure of speed: each takes seconds on a quiet machine.
LIMIT = 900


def read(path):
    return nbformat.read(path, as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path):
    notebook = read(path)
    source = "\n".join(cell.source for cell in code(notebook))
    if "contigua.run(" in source and shutil.which("qemu-x86_64") is None:
        pytest.skip("needs qemu-x86_64 (Debian's package qemu-user)")
    if "workloads/bin/gups" in source and not (ROOT / "workloads" / "bin" / "gups").exists():
        pytest.skip("needs workloads/bin/gups (make -C workloads)")
    client = nbclient.NotebookClient(
        notebook,
        timeout=LIMIT,
        startup_timeout=LIMIT,
        resources={"metadata": {"path": str(FOLDER)}},
    )
    client.execute()
    shown = [output for cell in code(notebook) for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in shown), "no figure is shown"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs(path):
    for cell in code(read(path)):
        assert not cell.outputs, cell.source
        assert cell.execution_count is None, cell.source


def test_there_are_notebooks_and_the_page_lists_each():
    page = (ROOT / "docs" / "how-to" / "notebooks.md").read_text()
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        assert f"{path.name})" in page, path.name
