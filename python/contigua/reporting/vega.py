"""Vega and its JavaScript runtime, which draw what the reports show.

The runtime is a library of Rust that panics where it cannot start a thread or open a file.
"""

from __future__ import annotations

import mmap
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

from contigua import files
from contigua.errors import ContiguaError
from contigua.extras import needs
from contigua.reporting.plots import MEASURE

if TYPE_CHECKING:
    from contigua.reporting.plots import Spec

#: Version of Vega-Lite that specifications are written for.
VERSION = "6.1"
#: Descriptors that the runtime opens, and some more.
DESCRIPTORS = 32
#: Bytes of addresses that it reserves; it ends the process where there are not as many.
ADDRESSES = 65 << 30
#: Reserves addresses without access (``PROT_NONE``, ``MAP_NORESERVE`` of Linux on both processors).
NO_ACCESS, NO_RESERVE = 0, 0x4000


class DrawingError(ContiguaError):
    """Plots cannot be drawn here."""


@cache
def _library() -> Any:  # noqa: ANN401 - a module
    """Return vl-convert, if it can run here. To import it takes a fifth of a second.

    Raises
    ------
    DrawingError
        When it cannot.
    """
    try:
        reserved = mmap.mmap(
            -1, ADDRESSES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE, NO_ACCESS
        )
    except OSError as error:
        raise DrawingError(
            f"plots cannot be drawn: {error.strerror}; drawing takes {ADDRESSES >> 30} GiB of "
            "addresses, raise the limit (ulimit -v)"
        ) from error
    reserved.close()
    try:
        files.check_descriptors(DESCRIPTORS)
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
    except OSError as error:
        raise DrawingError(
            f"plots cannot be drawn: {error.strerror}; drawing takes {DESCRIPTORS} files, "
            "raise the limit (ulimit -n)"
        ) from error
    except RuntimeError as error:
        raise DrawingError(f"plots cannot be drawn: {error}") from error
    with needs("reports"):
        import vl_convert

    return vl_convert


def compiled(spec: Spec) -> dict[str, Any]:
    """Return the Vega of a Vega-Lite specification.

    Raises
    ------
    DrawingError
        When Vega cannot run here.
    """
    vega: dict[str, Any] = _library().vegalite_to_vega(spec, vl_version=VERSION)
    # Vega can name an axis by what is chosen, Vega-Lite cannot.
    for axis in vega.get("axes", []):
        if axis.get("title") == MEASURE:
            axis["title"] = {"signal": MEASURE.removeprefix("@")}
    return vega


def svg(spec: Spec) -> str:
    """Draw a specification as SVG.

    Raises
    ------
    DrawingError
        When Vega cannot run here.
    """
    drawn: str = _library().vegalite_to_svg(spec, vl_version=VERSION)
    return drawn


def png(spec: Spec, scale: float) -> bytes:
    """Draw a specification as PNG, of `scale` pixels for each of its own.

    Raises
    ------
    DrawingError
        When Vega cannot run here.
    """
    drawn: bytes = _library().vegalite_to_png(spec, vl_version=VERSION, scale=scale)
    return drawn


@cache
def runtime() -> str:
    """Return Vega for a page, as one script without imports. Takes some seconds once.

    Raises
    ------
    DrawingError
        When Vega cannot run here.
    """
    # Vega alone would do, and is smaller, but vl-convert 1.9 binds `vega` to null.
    script: str = _library().javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VERSION)
    return script
