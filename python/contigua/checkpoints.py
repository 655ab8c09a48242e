"""Checkpoints of simulated servers: which file is whose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from contigua.errors import ContiguaError


class CheckpointError(ContiguaError):
    """Checkpoints that cannot be saved or found."""


def known_as(values: Iterable[str]) -> str:
    """Make a part of a file's name of what a configuration is known by.

    Examples
    --------
    >>> known_as(["scattered:3", "designs/my design.toml"])
    'scattered-3.designs-my-design.toml'
    """
    return ".".join(re.sub(r"[^\w.-]+", "-", value).strip("-") for value in values)


def checkpoint_file(folder: Path, values: Sequence[str]) -> Path:
    """Say where in a folder a configuration's checkpoint is.

    Examples
    --------
    >>> checkpoint_file(Path("saved/1000000"), ["linux-4k"])
    PosixPath('saved/1000000/linux-4k.checkpoint')
    """
    return folder / f"{known_as(values)}.checkpoint"


def check_checkpoints(
    folder: Path | None, counts: Sequence[int], known: Sequence[Sequence[str]]
) -> None:
    """See that checkpoints can be saved, before any time is spent.

    Raises
    ------
    CheckpointError
        When it is not said where or when, or two configurations would have the same file.
    """
    if (folder is None) != (not counts):
        raise CheckpointError("--checkpoint DIR and --checkpoint-at N go together: give both")
    names = list(map(known_as, known))
    for name in names:
        if names.count(name) > 1:
            raise CheckpointError(
                f"two configurations are called {name}, and would have the same checkpoint: run one"
            )
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"{folder}: cannot be a folder for checkpoints ({error.strerror}); give another one"
            ) from error
