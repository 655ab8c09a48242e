"""Hooks of mkdocs: pages that are generated, and links out of docs/.

Nothing that is generated is committed, so nothing can be out of date.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from lists import pages, repository_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from schemas import ROOT

#: Pages of the repository's top that the site has, too.
TOP = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changes.md",
    "CONTRIBUTING.md": "project/contributing.md",
}
#: Targets of links from the repository to generated files, and the site's page of each.
GENERATED = {
    "python/contigua/cli.py": "reference/command-line.md",
    "python/contigua/__init__.py": "reference/python.md",
    "python/contigua/data/designs": "reference/designs.md",
    "python/contigua/data/machines": "reference/machines.md",
    "python/contigua/data/profiles": "reference/profiles.md",
    "python/contigua_experiments": "reference/experiments.md",
}
#: Pages that appear when what writes them was run.
WRITTEN_LATER = {
    "reproduction.md",
    "reproduction-quick.md",
    "how-to/sweeps.md",
    "how-to/reports.md",
}

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s:]+)(#[^)]*)?\)")
#: Links and pictures.
LINK_OR_PICTURE = re.compile(LINK.pattern.removeprefix("(?<!!)"))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave pages that were not written yet out of the navigation."""
    config.nav = _without(config.nav, _missing())
    return config


def _missing() -> set[str]:
    return {page for page in WRITTEN_LATER if not (ROOT / "docs" / page).exists()}


def _without(nav: Any, missing: set[str]) -> Any:  # noqa: ANN401 - lists and dictionaries
    if isinstance(nav, list):
        return [kept for entry in nav if (kept := _without(entry, missing)) is not None]
    if isinstance(nav, dict):
        kept = {title: _without(inner, missing) for title, inner in nav.items()}
        return {title: inner for title, inner in kept.items() if inner is not None} or None
    return None if nav in missing else nav


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add generated pages, pages from the repository's top, and files that pages link to."""
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    added = pages()
    texts |= added
    for source, page in TOP.items():
        added[page] = texts[page] = _moved((ROOT / source).read_text(), source, page)
    for page, text in texts.items():
        for path in _outside(page, text):
            added.setdefault(f"source/{path}.md", repository_page(ROOT / path))
    for page, text in added.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:  # noqa: ANN401 - as mkdocs has it
    """Let links to files of the repository lead to the pages that show them.

    A line that leads to a page that was not written yet is left out.
    """
    uri = page.file.src_uri

    def replace(match: re.Match[str]) -> str:
        path = _repository_path(uri, match[2])
        if path is None or not (path in GENERATED or (ROOT / path).is_file()):
            return match[0]
        target = (TOP | GENERATED).get(path, f"source/{path}.md")
        return f"[{match[1]}]({relpath(target, PurePosixPath(uri).parent)}{match[3] or ''})"

    for missing in _missing():
        link = f"]({relpath(missing, PurePosixPath(uri).parent)})"
        markdown = "\n".join(line for line in markdown.splitlines() if link not in line)
    return LINK.sub(replace, markdown)


def _repository_path(page: str, target: str) -> str | None:
    """Return the path from the repository's top of what lies outside docs/, else nothing."""
    path = normpath(str(PurePosixPath("docs") / PurePosixPath(page).parent / target))
    return None if path.startswith(("docs/", "..")) else path


def _outside(page: str, text: str) -> set[str]:
    paths = {_repository_path(page, match[2]) for match in LINK.finditer(text)}
    known = TOP | GENERATED
    return {path for path in paths if path and path not in known and (ROOT / path).is_file()}


def _moved(text: str, source: str, page: str) -> str:
    """Rewrite a page's links for its place under docs/."""
    start = PurePosixPath("docs") / PurePosixPath(page).parent

    def replace(match: re.Match[str]) -> str:
        target = normpath(str(PurePosixPath(source).parent / match[2]))
        return f"[{match[1]}]({relpath(target, start)}{match[3] or ''})"

    return LINK_OR_PICTURE.sub(replace, text)
