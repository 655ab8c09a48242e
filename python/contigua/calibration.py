"""Distributions of a fleet's servers, and draws from them.

A server's draw depends on the fleet's seed and on the server's number, and on nothing else: the
first hundred servers of a fleet of a thousand are the servers of a fleet of a hundred.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from statistics import NormalDist
from typing import Any

from contigua.ageing import AgeOptions
from contigua.errors import ContiguaError
from contigua.reading import ReadError, read_toml
from contigua.sizes import SizeError, size_bytes


class FleetError(ContiguaError):
    """A fleet that cannot be drawn; the message names the key of the calibration."""


@dataclass(frozen=True)
class Factor:
    """A factor with a log-normal distribution, cut off at both ends."""

    median: float
    sigma: float
    least: float
    most: float

    def draw(self, uniform: float) -> float:
        """Return the value at a quantile."""
        normal = NormalDist().inv_cdf(min(max(uniform, 1e-12), 1 - 1e-12))
        return min(max(self.median * math.exp(self.sigma * normal), self.least), self.most)


@dataclass(frozen=True)
class Calibration:
    """Distributions that servers draw from; see ``data/fleet.toml``, which explains each key."""

    text: str
    shortest_hours: float
    longest_hours: float
    memory: dict[str, float]
    profiles: dict[str, float]
    load: Factor
    kernel: Factor
    files: Factor
    free_below: int
    reference: int

    def least_free(self, memory: int) -> float:
        """Return the free bytes below which a server of a size is left out."""
        return self.free_below * min(1.0, memory / self.reference)


@dataclass(frozen=True)
class Draw:
    """Draw of one server."""

    server: int
    hours: float
    memory: str
    profile: str
    load: float
    kernel: float
    files: float
    seed: int

    def options(self) -> AgeOptions:
        """Return the server's history; only its start and its end are sampled."""
        return AgeOptions(
            profile=self.profile,
            memory=self.memory,
            hours=self.hours,
            seed=self.seed,
            sample_seconds=max(1.0, self.hours * 3600),
            load=self.load,
            kernel=self.kernel,
            files=self.files,
        )


def calibration(path: Path | None = None) -> Calibration:
    """Read a calibration.

    Parameters
    ----------
    path
        A TOML file; by default the one that comes with the package.

    Raises
    ------
    FleetError
        When the file is not well formed, or a key is missing, unknown or out of range.
    """
    with resources.as_file(resources.files("contigua") / "data" / "fleet.toml") as ours:
        file = path or ours
        try:
            text, values = read_toml(file)
        except ReadError as error:
            raise FleetError(str(error)) from error
    known = {"description", "age", "memory", "profiles", "load", "kernel", "files", "exclude"}
    for key in values.keys() - known:
        raise FleetError(f"{file}: unknown key {key}")
    try:
        made = Calibration(
            text=text,
            shortest_hours=float(values["age"]["shortest_hours"]),
            longest_hours=float(values["age"]["longest_hours"]),
            memory=_weights(values["memory"], "memory"),
            profiles=_weights(values["profiles"], "profiles"),
            load=_factor(values["load"], "load"),
            kernel=_factor(values["kernel"], "kernel"),
            files=_factor(values["files"], "files"),
            free_below=size_bytes(values["exclude"]["free_below"]),
            reference=size_bytes(values["exclude"]["reference"]),
        )
        if not 0 < made.shortest_hours <= made.longest_hours:
            raise FleetError("age: shortest_hours must be above 0 and at most longest_hours")
    except KeyError as error:
        raise FleetError(f"{file}: key {error.args[0]} is missing") from error
    except (TypeError, ValueError) as error:
        raise FleetError(f"{file}: {error}") from error
    except (FleetError, SizeError) as error:
        raise FleetError(f"{file}: {error}") from error
    return made


def _weights(table: Mapping[str, Any], where: str) -> dict[str, float]:
    weights = {name: float(weight) for name, weight in table.items()}
    if not weights or min(weights.values()) < 0 or not 0 < sum(weights.values()) < math.inf:
        raise FleetError(f"{where}: give weights of at least 0, not all of them 0")
    return weights


def _factor(table: Mapping[str, Any], where: str) -> Factor:
    extra = table.keys() - {"median", "sigma", "least", "most"}
    if extra:
        raise FleetError(f"{where}: unknown key {min(extra)}")
    made = Factor(*(float(table[key]) for key in ("median", "sigma", "least", "most")))
    if not (0 <= made.least <= made.median <= made.most < math.inf and made.sigma >= 0):
        raise FleetError(f"{where}: must have 0 <= least <= median <= most, and sigma >= 0")
    return made


def draw(
    fleet: Calibration, seed: int, server: int, memory: str | None = None, hours: float = math.inf
) -> Draw:
    """Draw one server.

    Parameters
    ----------
    fleet
        What to draw from.
    seed
        The fleet's seed.
    server
        The server's number.
    memory
        Takes the place of the drawn size.
    hours
        Takes the place of the longest age when that is longer.
    """
    chance = random.Random(f"contigua fleet {seed} {server}")
    # One number each, in this order, whatever is made of them: changing one distribution leaves
    # the other draws as they were.
    age, size, profile, load, kernel, files, own = (chance.random() for _ in range(7))
    longest = min(fleet.longest_hours, hours)
    shortest = min(fleet.shortest_hours, longest)
    return Draw(
        server=server,
        hours=round(shortest * (longest / shortest) ** age, 4),
        memory=memory or _pick(fleet.memory, size),
        profile=_pick(fleet.profiles, profile),
        load=round(fleet.load.draw(load), 4),
        kernel=round(fleet.kernel.draw(kernel), 4),
        files=round(fleet.files.draw(files), 4),
        seed=int(own * (1 << 32)),
    )


def _pick(weights: Mapping[str, float], uniform: float) -> str:
    left = uniform * sum(weights.values())
    for name, weight in weights.items():
        left -= weight
        if left < 0:
            return name
    return max(weights, key=lambda name: weights[name])
