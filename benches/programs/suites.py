"""Test suites of others."""

from __future__ import annotations

from trial import Program

PROGRAMS: list[Program] = []
