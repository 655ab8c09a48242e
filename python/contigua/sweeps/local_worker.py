"""First code of workers that were started here (Dask calls it a preload)."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Worker


def dask_setup(worker: Worker) -> None:
    """Leave interrupts to the client, which ends its workers: a terminal sends them to all."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
