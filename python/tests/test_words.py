"""Does the lint notice a retired word, and only where it is not allowed?"""

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest

from conftest import ROOT


@pytest.fixture(scope="module")
def words():
    loader = SourceFileLoader("words", str(ROOT / "scripts" / "words"))
    module = module_from_spec(spec_from_loader("words", loader))
    sys.modules["words"] = module  # Data classes look there.
    loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


def test_every_line_of_the_list_is_read_and_written_as_it_is(words):
    text = words.LIST.read_text()
    read = words.read(text)
    lines = [line for line in text.splitlines() if line and line[0] not in "# "]
    assert [word.head() for word in read] == lines and len(lines) > 15
    assert all(word.instead for word in read)


@pytest.mark.parametrize(
    ("text", "retired"),
    [
        ("it spoils the block", True),
        ("fn count_spoiled_blocks()", True),
        ("SPOILER", True),
        ("servers that have grown old", True),
        ("let a server grow old", True),
        ("paper 003, figure 2", True),
        ("the quick path", True),
        ("fn bury_the_dead()", True),
        ("a block that nobody has", True),
        ("    /// What a block holds.", True),
        ("//! Whether memory is contiguous.", True),
        ('    """Whether it is on."""', True),
        ("    /// The same of a large object.", True),
        ("memory is initialised", True),
        ("the behaviour of a program", True),
        ("a polluted block of an aged server, on the fast path", False),
        ("    /// Returns whether it is on, and what it holds.", False),
        ("an old server; victims of a cache; a quick test; nobody", False),
    ],
)
def test_retired_words_are_found(words, folder, text, retired):
    (folder / "file.md").write_text(f"one\n{text}\n")
    (folder / "CHANGELOG.md").write_text(text)
    found = words.found(words.read(words.LIST.read_text()), folder)
    places = [at for own in found for at in own.values()]
    assert places == ([["file.md:2"]] if retired else [])


def test_a_word_more_than_allowed_fails_and_fewer_do_not(words, folder, monkeypatch, capsys):
    listed = folder / "words.txt"
    listed.write_text('# head\nspoils | "pollutes"\n    1 a.md\n')
    monkeypatch.setattr(words, "LIST", listed)
    monkeypatch.setattr(words, "ROOT", folder)
    monkeypatch.setattr(words, "EXEMPT", ("words.txt",))
    monkeypatch.setattr(words.found, "__defaults__", (folder,))
    monkeypatch.setattr(words.sys, "argv", ["words"])
    (folder / "a.md").write_text("it spoils")
    words.main()
    (folder / "b.md").write_text("spoils\nit spoils and spoils\n")
    with pytest.raises(SystemExit, match=r'b\.md:1, b\.md:2: write "pollutes"'):
        words.main()
    (folder / "a.md").write_text("clean")
    monkeypatch.setattr(words.sys, "argv", ["words", "--write"])
    words.main()
    assert listed.read_text() == '# head\nspoils | "pollutes"\n    3 b.md\n'


def test_make_lint_asks_for_it():
    recipe = (ROOT / "Makefile").read_text().split("\nlint-rest:")[1].split("\n\n")[0]
    for command in ("scripts/words", "scripts/circles", "$(CLANG_FORMAT) --dry-run --Werror"):
        assert command in recipe
