"""Reading tables that people write, with errors that say what, where, and what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contigua.sweeps.store import SweepError


def nearest(word: str, known: Iterable[str]) -> str:
    """Quote a word that is not known, with what may have been meant and what there is.

    Examples
    --------
    >>> nearest("sedes", ["seeds", "ages"])
    "'sedes'; did you mean seeds? (there are ages, seeds)"
    """
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{word!r}{hint} (there are {', '.join(names)})" if names else f"{word!r}"


def as_list(value: Any) -> list[Any]:  # noqa: ANN401 - TOML
    """Return the values of an axis; one alone need not be a list."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def texts(where: str, value: Any) -> tuple[str, ...]:  # noqa: ANN401 - TOML
    """Read a list of texts, one at least.

    Raises
    ------
    SweepError
        When it is none.
    """
    if (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and value
        and all(isinstance(part, str) for part in value)
    ):
        return tuple(value)
    raise SweepError(f'{where}: write a list of texts, such as ["program", "argument"]')


def command_lines(where: str, value: Any) -> list[tuple[str, ...]]:  # noqa: ANN401 - TOML
    """Read a list of commands, each a list of texts; one alone need not be a list of lists.

    Raises
    ------
    SweepError
        When it is none.
    """
    if value == []:
        return []
    if isinstance(value, Sequence) and all(isinstance(part, str) for part in value):
        value = [value]
    if not isinstance(value, Sequence):
        raise SweepError(f"{where}: write a list of commands, each a list of texts")
    return [texts(where, line) for line in value]


@dataclass
class Keys:
    """The keys of a table, each asked for once; what nobody asked for is not known.

    Attributes
    ----------
    where
        The table's name, for messages.
    table
        The table.
    """

    where: str
    table: Mapping[str, Any]
    asked: set[str] = field(default_factory=set)

    def known(self, *keys: str) -> None:
        """Say that there are keys that others read."""
        self.asked |= set(keys)

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - TOML
        """Return a value as it is."""
        self.asked.add(key)
        return self.table.get(key, default)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text.

        Raises
        ------
        SweepError
            When it is no text, or missing and without default.
        """
        value = self.get(key, default)
        if not isinstance(value, str):
            raise SweepError(f"{self.where}.{key}: write a text, not {value!r}")
        return value

    def one_of(self, key: str, values: Sequence[str], default: str) -> str:
        """Return a text that is one of a few.

        Raises
        ------
        SweepError
            When it is none of these.
        """
        value = self.text(key, default)
        if value not in values:
            raise SweepError(f"{self.where}.{key}: {nearest(value, values)}")
        return value

    def tables(self, key: str) -> dict[str, Any]:
        """Return a table; an empty one when it is missing.

        Raises
        ------
        SweepError
            When it is no table.
        """
        value = self.get(key, {})
        if not isinstance(value, Mapping):
            place = f"{self.where}.{key}" if self.where else key
            raise SweepError(f"{place}: write a table, not {value!r}")
        return dict(value)

    def done(self) -> None:
        """Refuse keys that nobody asked for.

        Raises
        ------
        SweepError
            When there are any.
        """
        for key in self.table:
            if key not in self.asked:
                place = f"{self.where}: " if self.where else ""
                raise SweepError(f"{place}unknown key {nearest(key, self.asked)}")
