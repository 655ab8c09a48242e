"""Does every command end in an orderly way, whatever happens to it or is missing?"""

import signal
import subprocess
import sys
from pathlib import Path

import harness
import pytest
from harness import (
    Hazard,
    Subject,
    is_json,
    is_node_snapshot,
    is_page,
    is_png,
    is_snapshot,
    is_sweep,
    is_table,
    is_trace,
)

from conftest import ROOT, takes_namespaces, takes_user_namespaces
from contigua import RunOptions
from contigua import run as simulate

CONTIGUA = [sys.executable, "-m", "contigua.cli"]
RUN = [*CONTIGUA, "run", "--designs", "linux-4k", "--detail", "translation", "--memory", "256MiB"]
GUEST = ["sh", "-c", "i=0; while [ $i -lt 500 ]; do i=$((i+1)); done; (echo one & wait); echo two"]

pytestmark = takes_namespaces


def cases(hazards):
    """Mark the hazards that cannot be made everywhere."""
    return [
        pytest.param(
            hazard,
            marks=[takes_user_namespaces] if hazard.name.startswith("user ") else [],
            id=hazard.name,
        )
        for hazard in hazards
    ]


LIVE = Subject(
    "run", [*RUN, "--json", "r.json", "--record", "r.trace", "--", *GUEST],
    {"r.json": is_json, "r.trace": is_trace},
)  # fmt: skip
AGE = Subject(
    "age",
    [
        *CONTIGUA, "age", "--memory", "256M", "--hours", "0.02",
        "--json", "a.json", "--save", "a.snapshot", "--png", "a.png", "--html", "a.html",
    ],
    {"a.json": is_json, "a.snapshot": is_snapshot, "a.png": is_png, "a.html": is_page},
)  # fmt: skip


NODE = Subject(
    "node",
    [
        str(ROOT / "target" / "debug" / "contigua-node"), "scan",
        "--parquet", "n.parquet", "--snapshot", "n.snapshot", "--png", "n.png",
    ],
    {"n.parquet": is_table, "n.snapshot": is_node_snapshot, "n.png": is_png},
)  # fmt: skip
SWEEP = """
[options]
detail = "translation"
memory = "256MiB"
[workloads.recorded]
trace = "{trace}"
[sweep]
designs = ["linux-4k", "linux-thp"]
seeds = [1, 2, 3]
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("recorded") / "events.trace"
    results = simulate(
        GUEST,
        designs=["linux-4k"],
        options=RunOptions(detail="translation", memory="256MiB", record=file),
    )
    file.with_name("results.json").write_text(results.to_json())
    file.with_name("sweep.toml").write_text(SWEEP.format(trace=file))
    return file


def subject(name: str, trace: Path) -> Subject:
    command = [*CONTIGUA, "run", "--designs", "linux-4k", "--trace", trace, "--json", "t.json"]
    replay = Subject("replay", [*map(str, command), "--timeline", "t.line"],
                     {"t.json": is_json, "t.line": is_json})  # fmt: skip
    report = [*CONTIGUA, "report", str(trace.with_name("results.json")), "--output", "p.html"]
    sweep = [*CONTIGUA, "sweep", str(trace.with_name("sweep.toml")), "--workers", "2", "-o", "s"]
    return {
        "run": LIVE,
        "age": AGE,
        "replay": replay,
        "report": Subject("report", report, {"p.html": is_page}),
        "sweep": Subject("sweep", sweep, {"s": is_sweep}),
        "node": NODE,
    }[name]


SUBJECTS = ["run", "age", "replay", "report", "sweep", "node"]


def faultless(subject: Subject, hazard: Hazard, folder: Path) -> harness.Outcome:
    outcome = harness.run(subject, hazard, folder)
    assert not outcome.faults(), "\n".join([str(hazard), *outcome.faults()])
    return outcome


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_command_to_which_nothing_happens_writes_whole_outputs(name, recorded, tmp_path):
    outcome = faultless(subject(name, recorded), Hazard("nothing"), tmp_path)
    assert outcome.status == 0


SAMPLE = {"nofile=12", "fsize=1024", "no /dev/shm", "user and PID namespace", "no standard output"}


@pytest.mark.parametrize(
    "hazard", cases(hazard for hazard in harness.SURROUNDINGS if hazard.name in SAMPLE)
)
def test_a_command_in_unusual_surroundings_says_what_is_wrong(hazard, tmp_path):
    faultless(LIVE, hazard, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_a_signal_ends_leaves_nothing_behind(number, tmp_path):
    """The moment is of no importance: faults of others are found by the long test."""
    faultless(LIVE, Hazard("signal", number=number, moment=0.8), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("hazard", cases(harness.SURROUNDINGS))
def test_every_command_in_all_unusual_surroundings(name, hazard, recorded, tmp_path):
    faultless(subject(name, recorded), hazard, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("number", harness.SIGNALS, ids=lambda number: number.name)
def test_every_command_at_every_moment_of_a_signal(name, number, recorded, tmp_path):
    command = subject(name, recorded)
    duration = faultless(command, Hazard("nothing"), tmp_path / "whole").seconds
    faults = []
    for moment, hazard in enumerate(harness.signals(duration, [number])):
        outcome = harness.run(command, hazard, tmp_path / str(moment))
        faults += [f"{hazard}: {fault}" for fault in outcome.faults()]
    assert not faults, "\n".join(faults)


# The harness itself: does it see what it looks for?

SPAWNED = """Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "spawn.py", line 122, in spawn_main
    exitcode = _main(fd, parent_sentinel)
{}: Ran out of input
"""


@pytest.mark.parametrize(
    ("number", "error", "is_fault"),
    [
        (signal.SIGKILL, "EOFError", False),
        (signal.SIGKILL, "KeyError", True),
        (signal.SIGTERM, "EOFError", True),
    ],
)
def test_what_a_starting_process_says_whose_parent_was_killed_is_no_fault(number, error, is_fault):
    hazard = Hazard("signal", number=number, moment=0.5)
    outcome = harness.Outcome(hazard, -number, SPAWNED.format(error), {})
    assert bool(outcome.faults()) == is_fault


BAD = {
    "damaged": "echo '{' > x.json; exit 1",
    "absent": "exit 0",
    "file": "echo '{}' > x.json; touch .x.json.partial",
    "process": "echo '{}' > x.json; setsid sleep 3 >/dev/null 2>&1 & sleep 0.2",
    "silent": "exit 1",
    "traceback": "echo 'Traceback (most recent call last):' >&2; exit 1",
    "crash": "kill -ABRT $$",
}


@pytest.mark.parametrize("script", BAD.values(), ids=BAD)
def test_the_harness_sees_what_a_bad_command_does(script, tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "GRACE", 2.0)
    command = Subject("bad", ["sh", "-c", script], {"x.json": is_json})
    assert harness.run(command, Hazard("nothing"), tmp_path).faults()


@pytest.mark.parametrize(
    "hazard", cases(hazard for hazard in harness.SURROUNDINGS if hazard.prefix)
)
def test_every_hazard_can_be_made_here(hazard, tmp_path):
    """A command that writes nothing and needs little is not harmed: what fails is the command."""
    outcome = harness.run(Subject("true", ["/bin/true"], {}), hazard, tmp_path)
    harmless = hazard.name.startswith(("as=", "stack=", "nofile=3"))
    assert harmless or (not outcome.faults() and outcome.status == 0), outcome.said


def test_a_full_disk_is_full_only_for_the_command(tmp_path):
    full = next(hazard for hazard in harness.SURROUNDINGS if hazard.name == "full disk, 4 KiB")
    command = Subject(
        "dd", ["dd", "if=/dev/zero", "of=x", "bs=1k", "count=64"], {"x": lambda _: True}
    )
    outcome = harness.run(command, full, tmp_path)
    assert outcome.status == 1
    assert "No space left" in outcome.said
    assert outcome.outputs == {"x": "whole"}
    assert subprocess.run(["mountpoint", "-q", tmp_path / "out"]).returncode != 0
