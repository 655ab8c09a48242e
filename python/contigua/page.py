"""One HTML page that carries everything: pictures inside it, no network, light and dark."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape

from contigua.themes import DARK, LIGHT, Picture

#: Percent of its own width to which a picture may shrink.
READABLE = 60
#: Media query of screens on which charts stand below each other.
NARROW = "(max-width: 44rem)"
DARKNESS = "(prefers-color-scheme: dark)"

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --line: #d8d8d8; --soft: #5c5c5c }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #16181c; --line: #3a3d44; --soft: #a6a6a6 }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 68rem; margin: 0 auto; padding: 1rem }
h1 { font-size: 1.5rem; line-height: 1.25 } h2 { font-size: 1.15rem; margin-top: 2rem }
p { max-width: 44rem } .wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right }
th:first-child, td:first-child { text-align: left } th { border-bottom-width: 2px }
figure { margin: 1.2rem 0 } .wide img { max-width: 100%; height: auto; display: block }
figcaption { color: var(--soft); max-width: 44rem }
"""


class Page:
    """A page that grows from top to bottom.

    Parameters
    ----------
    title
        The page's title.
    style
        CSS after the page's own.
    """

    def __init__(self, title: str, style: str = "") -> None:
        self.title = title
        self.style = style
        self.body: list[str] = []

    def heading(self, text: str) -> None:
        """Begin a section."""
        self.body.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self.body.append(f"<p>{escape(text)}</p>")

    def note(self, text: str, wanted: bool = True) -> None:
        """Add a small remark, where it is wanted."""
        if wanted:
            self.body.append(f'<p class="note">{escape(text)}</p>')

    def sentences(self, lines: Sequence[str]) -> None:
        """Add what matters, as a list."""
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        self.body.append(f'<ul class="matters">{items}</ul>')

    def raw(self, html: str) -> None:
        """Add HTML; its maker answers for what it escapes."""
        self.body.append(html)

    def fold(self, summary: str, html: str) -> None:
        """Add HTML that is folded away until a reader opens it."""
        self.body.append(f"<details><summary>{escape(summary)}</summary>{html}</details>")

    def script(self, text: str) -> None:
        """Add a script; nothing in it ends its element."""
        harmless = re.sub("</(?=script)", r"<\\/", text, flags=re.IGNORECASE)
        self.body.append(f"<script>{harmless}</script>")

    def data(self, identity: str, text: str) -> None:
        """Add JSON for scripts, which find it by its ``id``."""
        harmless = text.replace("<", "\\u003c")
        self.body.append(
            f'<script type="application/json" id="{escape(identity)}">{harmless}</script>'
        )

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table, which scrolls sideways where a screen is narrow."""
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
        )
        self.body.append(
            f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def picture(self, picture: Picture, alt: str, caption: str = "") -> None:
        """Add a picture, drawn for light and for dark, for wide screens and for narrow ones.

        Parameters
        ----------
        picture
            What to draw.
        alt
            What it shows, for those who do not see it.
        caption
            What stands below it.
        """
        light, dark, small_light, small_dark = (
            picture(replace(theme, narrow=narrow))
            for narrow in (False, True)
            for theme in (LIGHT, DARK)
        )
        sources = [(DARKNESS, dark)]
        if small_light != light:
            small = [(f"{NARROW} and {DARKNESS}", small_dark), (NARROW, small_light)]
            sources = [*small, *sources]
        sourced = "".join(
            f'<source media="{media}" srcset="{_inline(png)}">' for media, png in sources
        )
        # On a narrow screen a picture scrolls, rather than shrink until nobody can read it.
        least = READABLE * _width(light if small_light == light else small_light) // 100
        below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        self.body.append(
            f'<figure><div class="wide" tabindex="0"><picture>{sourced}'
            f'<img src="{_inline(light)}" alt="{escape(alt)}" style="min-width: {least}px">'
            f"</picture></div>{below}</figure>"
        )

    def html(self) -> str:
        """Return the page."""
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self.title)}</title>\n<style>{STYLE}{self.style}</style>\n</head>\n<body>\n"
            f"<h1>{escape(self.title)}</h1>\n" + "\n".join(self.body) + "\n</body>\n</html>\n"
        )


def _width(png: bytes) -> int:
    """Return a PNG file's width in pixels."""
    return int.from_bytes(png[16:20], "big")


def _inline(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
