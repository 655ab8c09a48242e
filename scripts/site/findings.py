"""Writes docs/findings.md: gains against storage on new and used servers, and what follows.

Everything comes from the accounts of experiments (``compared.Stored``). Each finding is a claim
about stored values: where they no longer bear it out, no page is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compared import DEMAND, ROOT, Stored, storage, table

from contigua.pictures import Point, front_picture
from contigua.themes import LIGHT
from contigua_experiments import find

PAGE = ROOT / "docs" / "findings.md"
PICTURE = ROOT / "docs" / "pictures" / "findings.png"
#: The baseline: it gains nothing and stores nothing more.
BASE = "linux-4k"
FRESH = "fresh"
INTRODUCTION = """# Findings

Written by `make reference`; manual changes are lost. What the stored results say of all designs
together; each command computes its part again. [Designs compared](reference/designs-compared.md)
has every value, its scale, and the verdict on it."""


@dataclass(frozen=True)
class Choice:
    """A design on one server.

    Attributes
    ----------
    name
        The design.
    bits
        Storage of a core beyond that of conventional hardware.
    gain, margin
        Speed over that of 4 KB pages on the same server, in percent, and half of its 95 % interval.
    """

    name: str
    bits: int
    gain: float
    margin: float

    def beats(self, other: Choice) -> bool:
        """Return whether nothing speaks for the other one, even at the ends of both intervals."""
        is_surely_faster = self.gain - self.margin > other.gain + other.margin
        return self.bits <= other.bits and is_surely_faster


def choices(stored: Stored) -> dict[str, list[Choice]]:
    """Return the designs of contiguity-demand on each of its servers."""
    names = list(find(DEMAND).inputs["quick"]["compared"])
    bits = {name: _bits(of) for name, of in storage([BASE, *names]).items()}
    found = {}
    for server in stored.servers:
        found[server] = [Choice(BASE, 0, 0.0, 0.0)]
        for name in names:
            told = stored.gain(name, server)
            if told != "-":
                gain, _, margin = told.partition(" ± ")
                more = bits[name] - bits[BASE]
                found[server].append(Choice(name, more, float(gain), float(margin or 0)))
    return found


def _bits(hardware: dict[str, int]) -> int:
    return sum(hardware[f"{key}_bits"] for key in ("first_level_tlb", "translation", "register"))


def front(rivals: Sequence[Choice]) -> list[Choice]:
    """Return those that none is sure to beat for as few bits, the cheapest first."""
    best = [one for one in rivals if not any(rival.beats(one) for rival in rivals)]
    return sorted(best, key=lambda one: (one.bits, -one.gain))


class Claims:
    """Sentences about the stored values, and the conditions that they rest on."""

    def __init__(self, stored: Stored, servers: dict[str, list[Choice]]) -> None:
        self.stored, self.servers = stored, servers
        self.needs = find(DEMAND).inputs["quick"]["compared"]

    def figure(self, experiment: str, key: str) -> tuple[str, float, float]:
        """Return a figure's value as text, as a number, and half of its interval."""
        label = next(one.label for one in find(experiment).figures if one.key == key)
        scale, row = self.stored.rows[experiment, label]
        number, *unit = row["ours"].split()
        margin = 0.0 if row["±"] == "-" else float(row["±"].split()[0])
        text = number + (f" ± {margin}" if margin else "") + "".join(f" {one}" for one in unit)
        return f"{text} ({scale})", float(number), margin

    def contiguity(self) -> tuple[str, bool]:
        """Say that used memory takes what large pages gain, and confinement keeps more of it."""
        linux, kept, _ = self.figure(DEMAND, "linux_large")
        ours, more, _ = self.figure(DEMAND, "contiguitas_large")
        text = (
            "Used memory takes what large pages gain, and confinement brings much of it back: of "
            "the gains of designs that map memory in blocks or runs of 2 MB and more, full servers "
            f"leave {linux} under Linux and {ours} under Contiguitas with hardware."
        )
        return text, kept < 50 and more > kept + 20

    def price(self) -> tuple[str, bool]:
        """Say that large gains need large contiguity."""
        best: dict[bool, Choice] = {}
        for one in self.servers[FRESH]:
            if one.name != BASE:
                kind = self.needs[one.name]["large"]
                best[kind] = max(best.get(kind, one), one, key=lambda each: each.gain)
        large, small = best[True], best[False]
        text = (
            "Who asks memory for little gains little: on fresh memory the best design that takes "
            f"blocks or runs of 2 MB and more (`{large.name}`) gains {large.gain} %, the best of "
            f"all others (`{small.name}`) {small.gain} %."
        )
        return text, large.gain > 3 * small.gain

    def hardware(self) -> tuple[str, bool]:
        """Say that hardware that moves pages in use makes the unmovable region smaller."""
        saved, value, margin = self.figure("contiguitas-parts", "region_saved")
        blocks, more, around = self.figure("contiguitas-parts", "more_32m")
        text = (
            "Hardware that moves pages in use makes the unmovable region smaller by "
            f"{saved}, and adds {blocks} potential blocks of 32 MB to a server, in the mean over "
            "its history."
        )
        return text, value > margin and more > around


#: The claims, each with the command that computes it.
FINDINGS: tuple[tuple[Callable[[Claims], tuple[str, bool]], str], ...] = (
    (Claims.contiguity, DEMAND),
    (Claims.price, DEMAND),
    (Claims.hardware, "contiguitas-parts"),
)


def page(servers: dict[str, list[Choice]], stored: Stored) -> str:
    """Return the page.

    Raises
    ------
    SystemExit
        When stored values no longer bear a finding out.
    """
    claims = Claims(stored, servers)
    lines = [INTRODUCTION, ""]
    for number, (claim, experiment) in enumerate(FINDINGS, 1):
        text, holds = claim(claims)
        if not holds:
            raise SystemExit(f"findings: stored values no longer say: {text}")
        lines += [f"{number}. {text} `contigua experiment run {experiment}`"]
    lines += [
        "",
        "## Gain against storage",
        "",
        "Speed over that of 4 KB pages on the same server against the bits that a core stores "
        f"beyond conventional hardware (`{DEMAND}`, {stored.scale} scale). On the front are "
        "designs that no other one is sure to beat, by the intervals of both, for as few bits; a "
        "dash is a design that is beaten.",
        "",
        "![Gain against bits on each server](pictures/findings.png)",
        "",
    ]
    names = [one.name for one in servers[FRESH]]
    best = {server: front(rivals) for server, rivals in servers.items()}
    rows = []
    for name in names:
        own = {s: next(one for one in rivals if one.name == name) for s, rivals in servers.items()}
        told = [_told(one) if one in best[server] else "-" for server, one in own.items()]
        if any(one != "-" for one in told):
            rows.append([f"`{name}`", f"{own[FRESH].bits:,}", *told])
    rows.sort(key=lambda row: int(row[1].replace(",", "")))
    lines += table(["on the front", "bits", *servers], rows)
    return "\n".join(lines) + "\n"


def _told(one: Choice) -> str:
    return f"{one.gain:.1f} %" + (f" ± {one.margin:.1f}" if one.margin else "")


def picture(servers: dict[str, list[Choice]]) -> bytes:
    """Draw the front of each server."""
    needs = find(DEMAND).inputs["quick"]["compared"]
    charts = []
    for server, rivals in servers.items():
        best = front(rivals)
        points = []
        named: set[tuple[int, float]] = set()
        for one in rivals:
            is_large = needs.get(one.name, {}).get("large", False)
            kind = "takes blocks or runs of 2 MB and more" if is_large else "asks for less"
            # Those that are equal in both are one point, with the first one's name.
            place = one.bits, one.gain + 0.0
            label = "" if place in named else one.name
            named |= {place} if one in best else set()
            points.append(Point(label, kind, one.bits, one.gain, one in best))
        charts.append((f"gain over 4 KB pages, %: {server}", points))
    return front_picture(charts, "Gain against storage of a core", "bits")(LIGHT)


def main() -> None:
    """Write page and picture."""
    stored = Stored()
    servers = choices(stored)
    text = page(servers, stored)
    PICTURE.write_bytes(picture(servers))
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
