"""Contiguitas on large servers, with all of its parts: the study of ``contiguitas-parts``."""

from __future__ import annotations

from typing import Any

from contigua_experiments import contiguitas_parts
from contigua_experiments.base import Context, Outcome


def compute(inputs: dict[str, Any], context: Context) -> Outcome:
    """Age every design with every history."""
    return contiguitas_parts.compute({**inputs, "without": {}}, context)
