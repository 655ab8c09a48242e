"""Errors of virtual machines."""

from __future__ import annotations


class VmError(Exception):
    """A machine that is not available, or does not answer; the message says why and what to do."""


class Unavailable(VmError):
    """Something that this host lacks: a program, or what must be fetched once."""


class GuestDied(VmError):
    """A machine that stopped by itself: a panic, an oops, or QEMU's end."""
