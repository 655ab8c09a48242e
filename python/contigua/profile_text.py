"""Profiles as rows of text: for terminals, and in Markdown for a bug report."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from contigua import _engine
from contigua.attribution import Attribution, bare
from contigua.printing import printable
from contigua.profile_page import GROUPS, TITLES
from contigua.table import markdown_table

#: Rows with a smaller share are left out.
LEAST = 0.0005


def cost_rows(
    profiles: Sequence[Attribution], key: str, metric: str, top: int
) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows of the first profile's costs, and by how much others change them.

    Parameters
    ----------
    key
        What rows are by, as for :meth:`Attribution.by`.
    metric
        What rows are sorted by, largest first.
    top
        Rows at most.
    """
    first = profiles[0]
    heads = [GROUPS.get(key, key), "share", "walks", "L1 TLB misses", "faults", "data-miss cycles"]
    heads += [f"{TITLES[metric]}, {found.design}" for found in profiles[1:]]
    others = [dict(found.by(key)) for found in profiles[1:]]
    total = getattr(first.total, metric)
    data = first.total.data_cycles
    rows = []
    for name, costs in first.by(key, metric=metric)[:top]:
        value = getattr(costs, metric)
        if value < LEAST * total:
            break
        after = [getattr(other[name], metric) if name in other else 0 for other in others]
        rows.append(
            [
                bare(name[0]) if key == "function" else name[0],
                f"{100 * value / max(total, 1):.1f} %",
                f"{costs.walks:,}",
                f"{costs.tlb_misses:,}",
                f"{costs.faults:,}",
                f"{100 * costs.data_cycles / max(data, 1):.1f} %",
                *(f"{100 * (now - value) / max(value, 1):+.0f} %" for now in after),
            ]
        )
    return heads, rows


def markdown_of(
    profiles: Sequence[Attribution],
    sentences: Sequence[str],
    keys: Sequence[str],
    metric: str,
    top: int,
) -> str:
    """Return what a bug report needs: program, versions, sentences, and a table for each key."""
    first = profiles[0]
    designs = ", ".join(found.design for found in profiles)
    lines = [
        f"Contigua {_engine.VERSION}, {first.machine}, {designs}:",
        "",
        # Whatever the arguments hold, the fence is longer.
        *_fenced(printable(shlex.join(first.command))),
        "",
        *(f"- {_plain(sentence)}" for sentence in sentences),
    ]
    for key in keys:
        lines += ["", markdown_table(*cost_rows(profiles, key, metric, top)).rstrip("\n")]
    return "\n".join(lines) + "\n"


def _fenced(text: str) -> list[str]:
    fence = "```"
    while fence in text:
        fence += "`"
    return [fence, text, fence]


def _plain(text: str) -> str:
    r"""Escape characters that Markdown would read as markup.

    Examples
    --------
    >>> print(_plain("a_b takes 3 < 4 `cycles`"))
    a\_b takes 3 \< 4 \`cycles\`
    """
    return re.sub(r"([\\`*_<>\[\]#|])", r"\\\1", printable(text))
