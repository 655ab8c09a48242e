"""Sweeps: many runs of one table of designs, machines, programs, ages, seeds and parameters."""

from contigua.sweeps.store import Record, Store, SweepError, read_results

__all__ = ["Record", "Store", "SweepError", "read_results"]
