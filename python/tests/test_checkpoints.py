"""Does a replay that goes on from a checkpoint report what one that never stopped does?"""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

import contigua
from conftest import ROOT
from contigua import EngineError, RunOptions
from contigua.checkpoints import CheckpointError
from contigua.runner import OutputsError
from contigua.sampling import Sampling

pytestmark = pytest.mark.programs

GUPS = ["--size", "8MiB", "--updates", "50000"]
DESIGNS = ["linux-4k", "linux-thp", "colt"]
OPTIONS = RunOptions(memory="256MiB")
SAMPLED = Sampling(distance=200_000, warm=50_000, detail=10_000, most=40)
KINDS = {
    "full": OPTIONS,
    "additive": replace(OPTIONS, detail="additive", warmup=1_000_000),
    "translation": replace(OPTIONS, detail="translation", age="full"),
    "sampled": replace(OPTIONS, sample=SAMPLED),
    "cores": replace(OPTIONS, cores=2, migrations=1000.0),
    "holes": replace(OPTIONS, holes="0.5:0.1:dispersed:remapped", skip=3_000_000),
}


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    trace = tmp_path_factory.mktemp("trace") / "gups.trace"
    command = [str(ROOT / "workloads" / "bin" / "gups"), *GUPS]
    contigua.run(command, designs=[], options=RunOptions(record=trace))
    return trace


@pytest.fixture(scope="module")
def whole(trace):
    return contigua.run(trace=trace, designs=DESIGNS, options=OPTIONS)


@pytest.fixture(scope="module")
def saved(trace, whole, tmp_path_factory):
    """Folders with the checkpoints of a run in full detail, half-way and near the end."""
    folder = tmp_path_factory.mktemp("saved")
    end = whole[0].values["executed"]["instructions"]
    at = (end // 2, end - 50_000)
    options = replace(OPTIONS, checkpoint=folder, checkpoint_at=at)
    ran = contigua.run(trace=trace, designs=DESIGNS, options=options)
    assert ran.to_json() == whole.to_json()
    return [folder / str(count) for count in at]


def test_each_design_resumes_from_a_checkpoint_as_if_it_had_not_stopped(trace, whole, saved):
    for folder in saved:
        names = {file.name for file in folder.iterdir()}
        assert names == {f"{design}.checkpoint" for design in DESIGNS}
        resumed = contigua.run(
            trace=trace, designs=DESIGNS, options=replace(OPTIONS, resume=folder)
        )
        assert resumed.to_json() == whole.to_json()


def test_one_design_resumes_alone_from_a_checkpoint_of_several(trace, whole, saved):
    options = replace(OPTIONS, resume=saved[0])
    resumed = contigua.run(trace=trace, designs=["colt"], options=options)
    assert resumed[0].values == whole[2].values


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_goes_on(kind, trace, tmp_path):
    options = KINDS[kind]
    designs = ["linux-thp", "contiguitas-thp"]
    expected = contigua.run(trace=trace, designs=designs, options=options).to_json()
    save = replace(options, checkpoint=tmp_path, checkpoint_at=(4_000_000,))
    assert contigua.run(trace=trace, designs=designs, options=save).to_json() == expected
    resume = replace(options, resume=tmp_path / "4000000")
    assert contigua.run(trace=trace, designs=designs, options=resume).to_json() == expected


def test_a_sampled_recording_is_entered_in_the_middle(tmp_path):
    trace = tmp_path / "units.trace"
    command = [str(ROOT / "workloads" / "bin" / "gups"), *GUPS]
    contigua.run(command, designs=[], options=RunOptions(record=trace, sample=SAMPLED))
    options = replace(OPTIONS, sample=SAMPLED, age="scattered:1")
    expected = contigua.run(trace=trace, designs=["linux-thp"], options=options).to_json()
    save = replace(options, checkpoint=tmp_path, checkpoint_at=(2_000_000, 5_000_000))
    contigua.run(trace=trace, designs=["linux-thp"], options=save)
    for count in save.checkpoint_at:
        resume = replace(options, resume=tmp_path / str(count))
        resumed = contigua.run(trace=trace, designs=["linux-thp"], options=resume)
        assert resumed.to_json() == expected


def test_a_resumed_run_saves_checkpoints_itself(trace, whole, saved, tmp_path):
    end = int(saved[1].name)
    options = replace(OPTIONS, resume=saved[0], checkpoint=tmp_path, checkpoint_at=(end,))
    contigua.run(trace=trace, designs=["colt"], options=options)
    again = (tmp_path / str(end) / "colt.checkpoint").read_bytes()
    assert again == (saved[1] / "colt.checkpoint").read_bytes()


def test_the_command_saves_and_goes_on(cli, trace, whole, tmp_path):
    common = ["run", "--trace", trace, "--memory", "256M", "--designs", "linux-4k"]
    folder = tmp_path / "a" / "b"
    ran = cli(*common, "--checkpoint", folder, "--checkpoint-at", "1M,4M")
    assert ran.returncode == 0, ran.stderr
    assert {file.name for file in folder.iterdir()} == {"1000000", "4000000"}
    report = tmp_path / "report.json"
    resumed = cli(*common, "--from", folder / "4000000", "--json", report)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == ran.stdout
    assert json.loads(report.read_text()) == [whole[0].values]


def test_an_unusable_checkpoint_is_refused_in_a_sentence(cli, trace, saved, tmp_path):
    def refused(*arguments: object) -> str:
        ran = cli("run", "--trace", trace, "--designs", "linux-4k", *arguments)
        assert ran.returncode not in (0, -6) and "Traceback" not in ran.stderr
        assert len(ran.stderr.strip().splitlines()) <= 3, ran.stderr
        return ran.stderr

    half = saved[0]
    assert "machine.memory 256MiB, and this one has 512MiB" in refused(
        "--memory", "512M", "--from", half
    )
    assert "seed 1, and this one has 2" in refused(
        "--memory", "256M", "--seed", "2", "--from", half
    )
    assert "detail full, and this one has additive" in refused(
        "--memory", "256M", "--detail", "additive", "--from", half
    )
    assert "No such file" in refused("--memory", "256M", "--from", tmp_path)
    assert "cannot be a folder" in refused("--checkpoint", trace, "--checkpoint-at", "1M")
    assert "go together" in refused("--checkpoint", tmp_path)
    assert "go together" in refused("--checkpoint-at", "1M")
    assert "do not store the timeline" in refused(
        "--checkpoint", tmp_path, "--checkpoint-at", "1M", "--timeline", tmp_path / "line.json"
    )
    good = (half / "linux-4k.checkpoint").read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    bad = tmp_path / "linux-4k.checkpoint"
    for contents, words in [
        (good[:-1], "damaged or cut short"),
        (good[:9], "damaged or cut short"),
        (bytes(flipped), "damaged or cut short"),
        (b"", "not a checkpoint"),
        (b"# a design\n" * 9, "not a checkpoint"),
    ]:
        bad.write_bytes(contents)
        assert words in refused("--memory", "256M", "--from", tmp_path)


def test_a_checkpoint_of_another_recording_is_refused(saved, tmp_path):
    other = tmp_path / "other.trace"
    contigua.run(["/bin/true"], designs=[], options=RunOptions(record=other))
    with pytest.raises(EngineError, match="another recording"):
        contigua.run(trace=other, designs=["linux-4k"], options=replace(OPTIONS, resume=saved[0]))


def test_live_programs_and_foreign_traces_have_no_checkpoints(tmp_path):
    options = RunOptions(checkpoint=tmp_path, checkpoint_at=(1000,))
    with pytest.raises(EngineError, match="contigua record -o FILE"):
        contigua.run(["/bin/true"], designs=["linux-4k"], options=options)
    lackey = tmp_path / "lackey"
    lackey.write_text("I  04001f90,3\n L 1ffeffe7e0,8\n")
    with pytest.raises(EngineError, match="contigua record"):
        contigua.run(
            trace=lackey,
            designs=["linux-4k"],
            options=replace(options, trace_format="lackey", detail="additive"),
        )


def test_two_configurations_of_a_name_are_refused(trace, tmp_path):
    options = RunOptions(checkpoint=tmp_path, checkpoint_at=(1000,))
    with pytest.raises(CheckpointError, match="two configurations are called linux-4k"):
        contigua.run(trace=trace, designs=["linux-4k", "linux-4k"], options=options)


def test_a_checkpoint_that_is_lost_costs_no_report(trace, whole, tmp_path):
    # One count is beyond the end; where the other one belongs is a file.
    (tmp_path / "1000000").write_text("mine")
    options = replace(OPTIONS, checkpoint=tmp_path, checkpoint_at=(1_000_000, 10**15))
    with pytest.raises(OutputsError) as lost:
        contigua.run(trace=trace, designs=["linux-4k"], options=options)
    assert lost.value.results[0].values == whole[0].values
    file, end = lost.value.failures
    assert str(Path("1000000") / "linux-4k.checkpoint") in file
    assert re.search(r"not saved: the run went from instruction 0 to \d+$", end)
    assert (tmp_path / "1000000").read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == ["1000000"]


def test_a_checkpoint_is_not_written_through_a_planted_link(trace, tmp_path):
    """In a folder that others can write, a link of theirs is not followed."""
    if os.geteuid() != 0:
        pytest.skip("needs root to be two users")
    shared = tmp_path / "shared"
    folder = shared / "1000000"
    folder.mkdir(parents=True)
    folder.chmod(0o1777)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    link = folder / "linux-4k.checkpoint"
    link.symlink_to(victim)
    os.lchown(link, 65534, 65534)
    options = replace(OPTIONS, checkpoint=shared, checkpoint_at=(1_000_000,))
    with pytest.raises(OutputsError):
        contigua.run(trace=trace, designs=["linux-4k"], options=options)
    assert victim.read_text() == "precious"
