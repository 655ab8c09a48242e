"""Profiles as rows of text: for terminals, and in Markdown for a bug report."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from contigua import _engine
from contigua.attribution import Attribution, Costs, bare
from contigua.locality import locality_rows
from contigua.printing import printable
from contigua.profile_page import GROUPS, TITLES
from contigua.table import markdown_table

#: Rows with a smaller share are left out.
LEAST = 0.0005
#: Rows of a table by time.
PHASES = 16


def cost_rows(
    profiles: Sequence[Attribution], key: str, metric: str, top: int
) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows of the first profile's costs, and by how much others change them.

    Parameters
    ----------
    key
        What rows are by, as for :meth:`Attribution.by`; or ``"phase"``.
    metric
        What rows are sorted by, largest first.
    top
        Rows at most.
    """
    first = profiles[0]
    if key == "phase":
        return phase_rows(first, metric)
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


def phase_rows(
    profile: Attribution, metric: str, most: int = PHASES
) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows of the profile's costs by time: phases of equal length.

    Parameters
    ----------
    metric
        What shares are of, and what names the function and the memory of a phase.
    most
        Rows at most; neighboring phases are added up where there are more.
    """
    named = {key: profile.over_time(key) for key in ("function", "mapping")}
    count = max((len(costs) for costs in named["function"].values()), default=0)
    total = max(getattr(profile.total, metric), 1)
    heads = ["from instruction", "share", "walks", "L1 TLB misses", "faults"]
    heads += [f"most {TITLES[metric]}: {key}" for key in ("function", "memory")]
    rows = []
    width = -(-count // most)
    for start in range(0, count, max(width, 1)):
        sums = {
            key: {name: sum(costs[start : start + width], Costs()) for name, costs in of.items()}
            for key, of in named.items()
        }
        all_costs = sum(sums["function"].values(), Costs())
        first = [
            max(((getattr(costs, metric), name) for name, costs in of.items()), default=(0, ""))[1]
            for of in sums.values()
        ]
        some = getattr(all_costs, metric) > 0
        rows.append(
            [
                f"{start * profile.phase:,}",
                f"{100 * getattr(all_costs, metric) / total:.1f} %",
                f"{all_costs.walks:,}",
                f"{all_costs.tlb_misses:,}",
                f"{all_costs.faults:,}",
                bare(first[0]) if some else "",
                first[1] if some else "",
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
    if first.localities:
        lines += [
            "",
            markdown_table(*locality_rows(first.localities, first.tlb_entries, top)).rstrip("\n"),
        ]
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
