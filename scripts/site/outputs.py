"""Runs the documentation's commands again and writes the outputs that it shows.

`outputs.py [PAGE...]`; by default every page that shows one. A new command gets its output when a
line of any kind stands under it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from examples import ROOT, blocks, rewritten


def main(names: list[str]) -> None:
    """Rewrite pages."""
    pages = [Path(name) for name in names] or [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        text = page.read_text()
        shows = (c.output for b in blocks(text) if b.verdict == "run" for c in b.commands)
        if not any(shows):
            continue
        new = rewritten(text)
        if new != text:
            page.write_text(new)
        print(f"{page}: {'written' if new != text else 'as it was'}")


if __name__ == "__main__":
    main(sys.argv[1:])
