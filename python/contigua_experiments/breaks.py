"""Breaks: an experiment with its mechanism taken out, and the figures whose verdicts must notice.

An experiment's file lists them under ``[[breaks]]``. A verdict that stands all the same says
nothing about the mechanism.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tomli_w

from contigua.errors import ContiguaError
from contigua.presets import Collection, designs, laid_over, machines, profiles

#: Folders of presets, and what reads them.
COLLECTIONS: dict[str, Collection] = {f"{one.kind}s": one for one in (designs, machines, profiles)}


class BreakError(ContiguaError):
    """A break of an experiment's file is not well formed."""


@dataclass(frozen=True)
class Break:
    """A break of an experiment.

    Attributes
    ----------
    what
        What is broken, in a few words.
    figures
        Keys of the figures whose verdicts must get worse.
    preset
        The preset that is changed, as ``designs/NAME``; empty where the inputs are.
    instead
        The preset that takes its place.
    put
        Keys that are put over those of the preset, or of the inputs.
    """

    what: str
    figures: tuple[str, ...]
    preset: str = ""
    instead: str = ""
    put: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def read(values: Mapping[str, Any]) -> Break:
        """Read a ``[[breaks]]`` table of an experiment's file.

        Raises
        ------
        BreakError
            When it breaks nothing, or two things.
        """
        rest = dict(values)
        found = Break(figures=tuple(rest.pop("figures")), **rest)
        if bool(found.instead) == bool(found.put):
            raise BreakError(f"{found.what}: a break has one of instead and put")
        if found.instead and not found.preset:
            raise BreakError(f"{found.what}: instead needs a preset")
        if found.preset and found.preset.partition("/")[0] not in COLLECTIONS:
            raise BreakError(
                f"{found.what}: preset is {found.preset!r}, not in {', '.join(COLLECTIONS)}"
            )
        if not found.figures:
            raise BreakError(f"{found.what}: a break names the figures that must notice")
        return found

    def inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return an experiment's inputs with the break."""
        return inputs if self.preset else laid_over(inputs, dict(self.put))

    def replaced(self) -> dict[str, str]:
        """Return the text of the preset with the break, by the name of its file.

        Raises
        ------
        PresetError
            When there is no such preset.
        """
        if not self.preset:
            return {}
        kind, _, name = self.preset.partition("/")
        collection = COLLECTIONS[kind]
        text = collection.get(self.instead or name).text
        if self.put:
            text = tomli_w.dumps(laid_over(tomllib.loads(text), dict(self.put)))
        return {f"{self.preset}.toml": text}
