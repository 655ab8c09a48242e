"""Profiles of programs: who causes the cost, and what other designs would change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from contigua.attribution import Attribution, ProfileError, bare
from contigua.options import RunOptions
from contigua.presets import Preset
from contigua.progress import Progress
from contigua.reporting.cases import arrange
from contigua.reporting.sentences import incomplete
from contigua.reporting.words import percent
from contigua.results import Results
from contigua.runner import run

#: Shares of less are not worth a sentence.
LEAST = 0.005
#: Functions and mappings that a sentence names.
NAMED = 3


@dataclass(frozen=True)
class Profiled:
    """A profile of each design on one execution.

    Attributes
    ----------
    results
        The designs' reports.
    profiles
        The profile of each.
    """

    results: Results
    profiles: tuple[Attribution, ...]

    def sentences(self) -> list[str]:
        """Say what the first design's time goes to, and what the others change, by mapping."""
        first = self.profiles[0]
        found = [*incomplete(arrange(self.results)), _headline(first)]
        if not first.total.tlb_misses:
            return [*found, "No access missed the first-level TLB."]
        metric = "translation_cycles" if first.total.translation_cycles else "walks"
        what = "translation time" if metric == "translation_cycles" else "page walks"
        for key in ("function", "mapping"):
            total = getattr(first.total, metric)
            written = bare if key == "function" else str
            shares = [
                f"{percent(getattr(costs, metric) / total)} {written(name)}"
                for (name,), costs in first.by(key, metric=metric)[:NAMED]
                if getattr(costs, metric) / total >= LEAST
            ]
            found.append(f"Of the {what}, by {key}: " + ", ".join(shares) + ".")
        return found + [self._saving(other) for other in self.profiles[1:]]

    def _saving(self, other: Attribution) -> str:
        first = self.profiles[0]
        if first.cycles is None or other.cycles is None:
            fewer = 1 - other.total.walks / max(first.total.walks, 1)
            word = "fewer" if fewer >= 0 else "more"
            return f"{other.design} has {percent(abs(fewer))} {word} walks."
        saved = 1 - other.cycles / first.cycles
        if abs(saved) < LEAST:
            return f"{other.design} is no faster than {first.design}."
        before, after = estimated(first), estimated(other)
        parts = {name: before[name] - after.get(name, 0.0) for name in before}
        helped = sorted(parts, key=lambda name: -parts[name] * (1 if saved > 0 else -1))[:NAMED]
        shares = [
            f"{percent(abs(parts[name]) / first.cycles)} at {name}"
            for name in helped
            if parts[name] * saved > 0 and abs(parts[name]) / first.cycles >= LEAST
        ]
        word, less = ("saves", "less") if saved > 0 else ("costs", "more")
        text = f"{other.design} {word} {percent(abs(saved))} of the cycles."
        if shares:
            text += f" Translation and faults take {less}: {', '.join(shares)}."
        rest = saved - sum(parts.values()) / first.cycles
        if abs(rest) >= LEAST:
            rest_word = "less" if rest > 0 else "more"
            text += f" Everything else takes {percent(abs(rest))} {rest_word}."
        return text


def estimated(profile: Attribution) -> dict[str, float]:
    """Estimate the cycles that translation and page faults cost at each mapping."""
    return {name: profile.cycles_of(costs) for (name,), costs in profile.by("mapping")}


def _headline(profile: Attribution) -> str:
    name = Path(profile.command[0]).name
    if profile.cycles is None:
        walks = 1000 * profile.total.walks / max(profile.instructions, 1)
        return f"{name} under {profile.design}: {walks:.2f} page walks in 1,000 instructions."
    overhead = profile.translation_overhead or 0.0
    return (
        f"{name} takes {profile.cycles:,} cycles under {profile.design}, "
        f"{percent(overhead)} of them for address translation."
    )


def profile(
    command: Sequence[str],
    *,
    designs: Sequence[str | Preset] = ("linux-4k", "linux-thp"),
    options: RunOptions | None = None,
    progress: Progress | None = None,
) -> Profiled:
    """Run designs on one execution as :func:`contigua.run` does, and profile each.

    Raises
    ------
    ProfileError
        When ``options`` have several ages, scenarios of holes or seeds.

    Notes
    -----
    With ``options.locality``, the first design's profile has it; others would have no other.

    Examples
    --------
    >>> options = RunOptions(memory="256MiB", detail="translation")
    >>> profiled = profile(["/bin/true"], options=options)
    >>> [found.design for found in profiled.profiles]
    ['linux-4k', 'linux-thp']
    """
    with TemporaryDirectory(prefix="contigua-profile-") as folder:
        options = replace(options or RunOptions(), profile=Path(folder) / "profile.json")
        files = [str(spec["profile"]) for spec in options.specs(designs)]
        if len(files) != len(designs):
            raise ProfileError("a profile is of one age, one scenario of holes and one seed")
        results = run(command, designs=designs, options=options, progress=progress)
        found = tuple(map(Attribution.read, files))
    return Profiled(results, found)
