"""Machine files of real computers: native probes, what they say, and the file."""

from contigua.measuring.computer import Computer, MeasureError
from contigua.measuring.machine import Machine, machine_of
from contigua.measuring.probes import Measured, Probe, measure

__all__ = ["Computer", "Machine", "MeasureError", "Measured", "Probe", "machine_of", "measure"]
