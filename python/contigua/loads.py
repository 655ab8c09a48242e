"""Commands that drive a server."""

from __future__ import annotations

from dataclasses import dataclass

#: A command line.
Line = tuple[str, ...]


@dataclass(frozen=True)
class Commands:
    """Commands that drive a server; ``{folder}`` stands for a folder of the run.

    Attributes
    ----------
    client
        They load it, one after the other.
    stop
        They end it afterwards, whatever happened.
    ready
        All of them succeed as soon as it answers.
    requests
        Requests that the client has answered, where somebody says how many.
    """

    client: tuple[Line, ...]
    stop: tuple[Line, ...]
    ready: tuple[Line, ...] = ()
    requests: int | None = None
