"""Parts of the package that need more than ``pip install contigua`` installs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from contigua.errors import ContiguaError

#: Extras of the package, as ``pyproject.toml`` has them.
Extra = Literal["reports", "simpoints", "sweeps"]


class MissingExtraError(ContiguaError, ImportError):
    """A package is not installed that an extra has; the message names the command."""


@contextmanager
def needs(extra: Extra) -> Iterator[None]:
    """Import what an extra has.

    Raises
    ------
    MissingExtraError
        When it is not installed.

    Examples
    --------
    >>> with needs("sweeps"):
    ...     import nothing
    Traceback (most recent call last):
    contigua.extras.MissingExtraError: nothing is not installed: pip install 'contigua[sweeps]'
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError)
        why = f"{error.name} is not installed" if is_missing else str(error)
        raise MissingExtraError(f"{why}: pip install 'contigua[{extra}]'") from error
