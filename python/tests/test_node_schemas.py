"""Is the JSON of ``contigua-node`` as its schemas say? (A Rust test compares these with types.)"""

import json
import os
import subprocess
import sys

import jsonschema
import pytest
from test_schemas import strict

from conftest import ROOT
from contigua.allocators import find_library

NODES = [ROOT / "target" / profile / "contigua-node" for profile in ("debug", "release")]
NODE = next((node for node in NODES if node.is_file()), None)
LIBRARY = find_library("libcontigua_malloc.so")
pytestmark = pytest.mark.skipif(
    NODE is None, reason="contigua-node is not built (cargo build -p contigua-node)"
)
needs_library = pytest.mark.skipif(
    LIBRARY is None,
    reason="libcontigua_malloc.so is not built (cargo build --release -p contigua-malloc)",
)


def check(name, document):
    form = json.loads((ROOT / "docs" / "reference" / f"node-{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(form)
    jsonschema.Draft202012Validator(strict(form)).validate(document)


def node(*arguments):
    done = subprocess.run([NODE, *arguments], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def machine(tmp_path):
    """A machine with two of the kernel's blocks and three movable ones."""
    zone = """Node 0, zone {name:>8}
  pages free     {free}
        boost    0
        min      500
        low      1000
        high     1500
        spanned  {frames}
        present  {frames}
        managed  {frames}
        cma      0
        protection: (0, 0, 0, 0, 0)
  start_pfn:           0
"""
    blocks = "sys/devices/system/memory"
    files = {
        "proc/zoneinfo": zone.format(name="Normal", free=9000, frames=2 << 15)
        + zone.format(name="Movable", free=90_000, frames=3 << 15),
        "proc/vmstat": "allocstall_normal 0\nallocstall_movable 0\n",
        "proc/meminfo": "MemTotal: 655360 kB\nSwapFree: 0 kB\n",
        "proc/sys/kernel/random/boot_id": "this-boot\n",
        f"{blocks}/block_size_bytes": "8000000\n",
    }
    for block in range(5):
        files[f"{blocks}/memory{block}/state"] = "online\n"
        where = "Normal" if block < 2 else "Movable"
        files[f"{blocks}/memory{block}/valid_zones"] = f"{where}\n"
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


@pytest.mark.parametrize("options", [[], ["--quick"]])
def test_a_scan_of_this_machine_is_as_its_schema_says(options):
    check("scan", node("scan", "--json", *options))


def test_the_guards_status_and_state_are_as_their_schemas_say(machine):
    place = ["--root", str(machine), "--state", str(machine / "guard.json")]
    status = node("guard", "status", "--json", *place)
    check("guard-status", status)
    state = {
        **status["state"],
        "originals": {"3": "movable"},
        "intent": {"block": 4, "from": "movable", "to": "kernel"},
    }
    check("guard-state", state)
    (machine / "guard.json").write_text(json.dumps(state))
    status = node("guard", "status", "--json", *place)
    check("guard-status", status)
    assert status["state"] == state


@needs_library
def test_the_heap_of_a_process_is_as_its_schema_says():
    program = (
        "import sys, time; time.sleep(1); x = bytes(1 << 28); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"LD_PRELOAD": str(LIBRARY), "PYTHONMALLOC": "malloc"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        try:
            check("heap", node("heap", "--json", str(process.pid)))
        finally:
            process.kill()


@needs_library
def test_a_heap_profile_is_shown_and_written_for_pprof(tmp_path):
    profile, encoded = tmp_path / "heap", tmp_path / "heap.pb"
    subprocess.run(
        [sys.executable, "-c", "x = bytes(1 << 28)"],
        env=os.environ
        | {"LD_PRELOAD": str(LIBRARY), "PYTHONMALLOC": "malloc"}
        | {"CONTIGUA_MALLOC_PROFILE": str(profile)},
        check=True,
    )
    command = [NODE, "heap", "--profile", str(profile)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # What is still in use is first; the allocator's own functions are hidden.
    places = [place.splitlines() for place in shown.split("\n\n")[1:]]
    (large,) = (place for place in places if "256 MB allocated in 1 objects" in place[0])
    assert any("Py" in line for line in large[1:])
    assert "malloc" not in large[1]
    subprocess.run([*command, "--pprof", str(encoded)], check=True)
    assert b"inuse_space" in encoded.read_bytes()
    assert b"/libcontigua_malloc.so" in encoded.read_bytes()


def test_page_walks_are_null_where_the_processor_does_not_count_them():
    document = {
        "schema": 1,
        "cycles": 1000.0,
        "instructions": 500.0,
        "counts": "cycles",
        "data_walks": None,
        "instruction_walks": None,
        "data_walk_active_cycles": 140.0,
        "instruction_walk_active_cycles": 60.0,
        "data_share_of_cycles": 0.14,
        "instruction_share_of_cycles": 0.06,
    }
    check("tlb", document)
    with pytest.raises(jsonschema.ValidationError, match="misses"):
        check("tlb", {**document, "counts": "misses"})
