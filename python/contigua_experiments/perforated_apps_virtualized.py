"""Programs in virtual machines under fragmentation (Perforated Page, ISCA 2020, section 6).

What is computed is the same as without a host; the designs are in the file.
"""

from contigua_experiments.perforated_apps import compute

__all__ = ["compute"]
