"""A browser."""

from __future__ import annotations

from trial import Program

PROGRAMS: list[Program] = []
