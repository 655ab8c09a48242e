"""A measured machine as a TOML file and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from contigua import _engine
from contigua.measuring.machine import LOUD, Machine
from contigua.printing import printable

#: Of the JSON; another number where a key changes its meaning or goes.
SCHEMA = 1


def source(machine: Machine, key: str) -> str:
    """Say where a value comes from: a measurement with its spread, or the base machine."""
    said = machine.notes.get(key, "")
    if (one := machine.measured.get(key)) is None:
        return said or f"from {machine.base}"
    unit = f" {machine.units[key]}" if machine.units[key] else ""
    text = f"measured: {one.value:.4g}{unit}, spread {100 * one.spread:.0f} %, n {one.repeats}"
    return f"{text}; {said}" if said else text


def toml(machine: Machine, day: str) -> str:
    """Write a machine file: each value with its measurement, or the machine that it is from."""
    lines = [
        f"# {_plain(machine.computer.name)}, measured on {day} by `contigua machines measure`, "
        f"Contigua {_engine.VERSION}.",
        f"# Values without a measurement are those of {machine.base}; the sources of those are in "
        "its file.",
        "# A spread is half the distance of the quartiles, in percent of the median.",
        *(f"# {line}" for line in facts(machine)),
    ]
    nested = _nested(machine.values)
    lines += _table("", nested, machine)
    return "\n".join(lines) + "\n"


def facts(machine: Machine) -> Iterator[str]:
    """Say what was found that no key of a machine file has."""
    if machine.computer.virtual:
        yield "This computer is a virtual machine: walks are those of guest and host together."
    if machine.host_page is not None:
        small = machine.host_page == "4k"
        yield (
            "2 MB pages do not extend the reach of TLBs, they shorten walks: the memory behind "
            "them is in small pages."
            if small
            else "2 MB pages extend the reach of TLBs: the memory behind them is in 2 MB pages."
        )
        if small:
            yield "Designs with a host of 4 KB pages ([host.translation.base]) model that."
    shared = "share TLB entries" if machine.coalesces else "do not share TLB entries"
    yield f"Pages of 4 KB that were touched in order {shared}."
    for key in machine.measured:
        if key not in machine.values:
            yield f"{key}: {source(machine, key)}"


def _plain(text: str) -> str:
    return printable(text).replace("\n", " ")


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, last = key.split(".")
        at = tree
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = value
    return tree


def _value(value: Any) -> str:  # noqa: ANN401 - what a machine file has
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    # TOML's strings, numbers and booleans are JSON's.
    return json.dumps(value, ensure_ascii=False)


def _table(path: str, table: dict[str, Any], machine: Machine) -> Iterator[str]:
    """Write a table: its own lines, then the tables in it."""
    own = {key: value for key, value in table.items() if _is_line(value)}
    if path and own and not path.startswith("tlb.l2."):
        yield f"\n[{path}]"
    for key, value in own.items():
        yield f"{key} = {_value(value)} # {_plain(_comment(_join(path, key), value, machine))}"
    for key, value in table.items():
        full = _join(path, key)
        if full == "tlb.l2":
            for index, level in value.items():
                yield "\n[[tlb.l2]]"
                yield from _table(f"tlb.l2.{index}", level, machine)
        elif key not in own:
            yield from _table(full, value, machine)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _comment(full: str, value: Any, machine: Machine) -> str:  # noqa: ANN401 - as above
    if not isinstance(value, dict):
        return source(machine, full)
    said = [key for key in value if _join(full, key) in machine.measured | machine.notes]
    parts = [f"{key} {source(machine, _join(full, key))}" for key in said]
    return "; ".join(parts) or f"from {machine.base}"


def _is_line(value: Any) -> bool:  # noqa: ANN401 - as above
    """Return whether a value is written as one line: no table, or entries and ways."""
    return not isinstance(value, dict) or set(value) <= {
        "entries",
        "ways",
        "size",
        "latency_cycles",
    }


def as_json(machine: Machine) -> str:
    """Write what was measured, for programs."""
    return (
        json.dumps(
            {
                "schema": SCHEMA,
                "version": _engine.VERSION,
                "computer": asdict(machine.computer),
                "base": machine.base,
                "host_page": machine.host_page,
                "coalesces": machine.coalesces,
                "limit": LOUD,
                "measured": {
                    key: {**asdict(one), "unit": machine.units[key]}
                    for key, one in machine.measured.items()
                },
            },
            indent=2,
        )
        + "\n"
    )
