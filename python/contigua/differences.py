"""The difference of two profiles."""

from __future__ import annotations

from collections.abc import Mapping

from contigua.attribution import Attribution, bare
from contigua.reporting.words import percent

#: Changes that a sentence names.
NAMED = 3
#: Changes of less than this share of the earlier total are not named.
LEAST = 0.005
#: Smaller changes have no percentage.
LEAST_SHARE = 0.0005


def difference(now: Attribution, before: Attribution, metric: str) -> list[str]:
    """Say what has changed since an earlier profile: in total, and where most.

    Parameters
    ----------
    now, before
        Profiles of one program, or of versions of it.
    metric
        What is compared by function and by mapping: a field of ``Costs``.
    """
    found = [_headline(now, before)]
    word = metric.replace("_", " ")
    first, second = (getattr(profile.total, metric) for profile in (before, now))
    found.append(f"{word.capitalize()}: {_change(first, second)}.")
    for key in ("function", "mapping"):
        old, new = (_by(profile, key, metric) for profile in (before, now))
        changes = {name: new.get(name, 0) - old.get(name, 0) for name in (*old, *new)}
        largest = sorted(changes, key=lambda name: (-abs(changes[name]), name))[:NAMED]
        named = [
            f"{name} {_change(old.get(name, 0), new.get(name, 0))}"
            for name in largest
            if abs(changes[name]) >= LEAST * max(first, second, 1)
        ]
        if named:
            found.append(f"By {key}: {'; '.join(named)}.")
    return found


def _by(profile: Attribution, key: str, metric: str) -> Mapping[str, int]:
    written = bare if key == "function" else str
    sums: dict[str, int] = {}
    for (name,), costs in profile.by(key, metric=metric):
        sums[written(name)] = sums.get(written(name), 0) + getattr(costs, metric)
    return sums


def _headline(now: Attribution, before: Attribution) -> str:
    old = f"{before.design} on {before.machine}"
    new = f"{now.design} on {now.machine}"
    what = f"Before, {' '.join(before.command)}" if before.command != now.command else "Before"
    under = f" under {old}, now {new}" if old != new else ""
    instructions = f"instructions {_change(before.instructions, now.instructions)}"
    if before.cycles is None or now.cycles is None:
        return f"{what}{under}: {instructions}."
    return f"{what}{under}: cycles {_change(before.cycles, now.cycles)}, {instructions}."


def _change(before: int, now: int) -> str:
    if before == now:
        return f"{now:,} as before"
    if before == 0:
        return f"from 0 to {now:,}"
    share = now / before - 1
    if abs(share) < LEAST_SHARE:
        return f"from {before:,} to {now:,}"
    return f"from {before:,} to {now:,} ({'+' if share > 0 else '-'}{percent(abs(share))})"
