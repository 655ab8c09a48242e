"""Do sweeps survive what happens to long work, and run nothing twice?"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import dask
import distributed  # noqa: F401 - it brings its settings, which dask.config.set forgets otherwise
import pytest
from distributed.nanny import WorkerProcess

import contigua
from contigua import Age, Design, EngineError, RunOptions, Sweep, SweepError
from contigua.sweeps import Store, cluster, look, make_plan
from contigua.sweeps.sql import QueryError, query
from contigua.sweeps.tasks import Task, run_at

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "sweeps").glob("*.toml"))
#: Seconds in which anything here is done; only a failure takes as long.
TIMEOUT = 120


@pytest.fixture(scope="session")
def trace(tmp_path_factory):
    file = tmp_path_factory.mktemp("trace") / "gups.trace"
    command = [str(ROOT / "workloads/bin/gups"), "--size", "1MiB", "--updates", "2000"]
    contigua.run(command, designs=[], options=RunOptions(record=file))
    return file


def small(trace, **sweep):
    """A specification of points that take ten milliseconds each."""
    return {
        "options": {"detail": "translation", "memory": "256MiB"},
        "workloads": {"gups": {"trace": str(trace)}},
        "sweep": {"designs": ["linux-4k", "linux-thp"], **sweep},
    }


@pytest.fixture
def two_hundred(trace, tmp_path):
    """A specification of 200 points, some of them slower, as a file."""
    file = tmp_path / "many.toml"
    file.write_text(
        f"""
        [options]
        detail = "translation"
        memory = "256MiB"
        [workloads.gups]
        trace = "{trace}"
        [sweep]
        designs = ["linux-4k", "linux-thp"]
        ages = ["fresh", "scattered:1", "scattered:3", "partial"]
        seeds = {list(range(1, 26))}
        """
    )
    return file


def events(folder):
    """Everything that was started and finished, in order."""
    try:
        lines = (folder / "executions.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("}")]


def wait_until(true, what):
    end = time.monotonic() + TIMEOUT
    while not (found := true()):
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.01)
    return found


def finished(folder, count, client):
    def so_many():
        assert client.poll() is None, client.communicate()
        return sum(event["event"] == "finished" for event in events(folder)) >= count

    wait_until(so_many, f"{count} points were finished")


def kill_a_busy_worker(folder):
    """Kill the worker that started a point last, in the middle of it if it is still there."""
    busy = [event for event in events(folder) if event["event"] == "started"][-1]["pid"]
    os.kill(busy, signal.SIGKILL)
    return busy


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def start(*arguments, **options):
    command = [sys.executable, "-m", "contigua.cli", "sweep", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes, **options)


def check_two_hundred(folder, interrupted):
    """Are there 200 results, and did nothing run again that was finished?

    ``interrupted`` is how many points at most were under way when something was killed.
    """
    swept = Sweep(folder)
    assert len(swept) == 200
    frame = swept.to_pandas()
    assert len(frame) == 200 and set(frame["status"]) == {"done"}
    assert len(set(frame["point"])) == 200
    ended, started = set(), Counter()
    for event in events(folder):
        if event["event"] == "finished":
            assert event["point"] not in ended
            ended.add(event["point"])
        else:
            assert event["point"] not in ended, "a finished point was started again"
            started[event["point"]] += 1
    assert set(started) == set(frame["point"])
    assert started.total() <= 200 + interrupted


def test_a_killed_worker_and_a_killed_client_cost_nothing_that_was_finished(
    two_hundred, tmp_path, cli
):
    folder = tmp_path / "out"
    client = start(two_hundred, "-o", folder, "--workers", 2)
    finished(folder, 20, client)
    kill_a_busy_worker(folder)
    finished(folder, 60, client)
    client.kill()
    client.wait()
    workers = {event["pid"] for event in events(folder)}
    wait_until(lambda: not any(map(is_alive, workers)), "the workers followed their client")
    left = 200 - len(list((folder / "points").glob("*.json")))
    assert left > 0, "it was over before it could be killed"
    # What is there can be read before it is carried on, and nothing of it is half-written.
    assert len(contigua.read_results(folder)) == 200 - left
    dry = cli("sweep", two_hundred, "-o", folder, "--dry-run")
    assert f"{left} to do" in dry.stdout and f"{200 - left} done" in dry.stdout, dry.stdout
    ended = cli("sweep", two_hundred, "-o", folder, "--workers", 2)
    assert ended.returncode == 0, ended.stderr
    assert f"{200 - left} were finished before, {left} ran" in ended.stdout
    # One died with its worker, two with the client.
    check_two_hundred(folder, interrupted=3)
    again = cli("sweep", two_hundred, "-o", folder)
    assert "200 were finished before, 0 ran" in again.stdout
    check_two_hundred(folder, interrupted=3)


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    """A scheduler and two workers in processes of their own; yields address and workers' folder."""
    folder = tmp_path_factory.mktemp("cluster")
    where = folder / "scheduler.json"
    common = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    quiet = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", where]
    one = subprocess.Popen([*dask, *quiet], **common)
    dask = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", where]
    quiet = ["--host", "127.0.0.1", "--no-dashboard", "--nworkers", "2", "--nthreads", "1"]
    quiet += ["--local-directory", folder, "--memory-limit", "0"]
    two = subprocess.Popen([*dask, *quiet], **common)
    try:
        wait_until(lambda: where.exists() and where.stat().st_size > 0, "a scheduler is there")
        yield json.loads(where.read_text())["address"], folder
    finally:
        for process in (two, one):
            process.terminate()
        for process in (two, one):
            process.wait(timeout=TIMEOUT)


@pytest.mark.long
def test_the_same_on_a_scheduler_in_another_process(two_hundred, tmp_path, cli, scheduler):
    address, _ = scheduler
    folder = tmp_path / "out"
    client = start(two_hundred, "-o", folder, "--scheduler", address)
    finished(folder, 20, client)
    kill_a_busy_worker(folder)
    finished(folder, 60, client)
    client.kill()
    client.wait()
    # Workers live on, and may end what they are at: that is kept as well.
    ended = cli("sweep", two_hundred, "-o", folder, "--scheduler", address)
    assert ended.returncode == 0, ended.stderr
    before = int(ended.stdout.split(" were finished before")[0].split()[-1])
    assert 60 <= before < 200
    check_two_hundred(folder, interrupted=3)


def test_a_point_that_kills_its_workers_fails_and_no_other_does(trace, tmp_path, monkeypatch):
    ordinary = cluster.run_task

    # Within the test, so that Dask sends its code.
    def run_task(task):
        if task.spec["design_name"] == "linux-4k":
            os.kill(os.getpid(), signal.SIGKILL)
        return ordinary(task)

    monkeypatch.setattr(cluster, "run_task", run_task)
    # The second waits on the worker that the first one kills. Two of these are enough here.
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}):
        swept = contigua.sweep(small(trace), tmp_path, workers=1)
    assert [report.design for report in swept.results] == ["linux-thp"]
    (failure,) = swept.failures
    assert failure["design"] == "linux-4k" and "every worker died" in failure["error"]


def test_a_worker_that_restarts_while_its_cluster_ends_is_no_error(monkeypatch):
    kill = WorkerProcess.kill

    async def killed(process, **settings):
        await kill(process, **settings)
        # What multiprocessing says of a process that could not be started.
        raise AssertionError("can only join a started process")

    monkeypatch.setattr(WorkerProcess, "kill", killed)
    with cluster.connect(None, 1) as client:
        running = client.cluster
        assert client.submit(int).result() == 0
    assert running.status.name == "closed"


def test_a_sweep_does_not_wait_for_ever_for_workers(trace, tmp_path):
    class Client:
        """A client whose workers have all died, and whose tasks never end."""

        def nthreads(self):
            return {}

        def submit(self, function, task, key, pure):
            return SimpleNamespace(add_done_callback=lambda called: None)

    task = Task("p", {}, "t", "contigua", {})
    with pytest.raises(SweepError, match="no worker is left, and none came for 0 s"):
        list(cluster.Runner(Client(), [task], timeout=0.0).outcomes())


def test_workers_that_do_not_see_the_folder_are_sent_the_trace(trace, tmp_path, scheduler):
    address, workers = scheduler
    spec = small(trace, ages=["fresh", "scattered:3"], seeds=list(range(1, 11)))
    apart = contigua.sweep(spec, tmp_path / "apart", scheduler=address, shared_folder=False)
    here = contigua.sweep(spec, tmp_path / "here", workers=1)
    assert len(apart.results) == 40
    assert apart.results.to_json() == here.results.to_json()
    (digest,) = {file.name for file in workers.glob("**/contigua-files/*")}
    assert digest == contigua.Trace(trace).info.digest
    # Only the client wrote there.
    assert {event["pid"] for event in events(tmp_path / "apart")} == {None}
    assert len(events(tmp_path / "apart")) == 40


def test_snapshots_are_sent_and_reports_do_not_tell(trace, tmp_path, scheduler):
    address, _ = scheduler
    snapshot = tmp_path / "web.snapshot"
    aged = contigua.age(options=contigua.AgeOptions(memory="256M", hours=0.02))
    aged.save(snapshot)
    spec = small(trace, ages=[Age.snapshot(snapshot)])
    apart = contigua.sweep(spec, tmp_path / "apart", scheduler=address, shared_folder=False)
    assert [report.values["config"]["age"] for report in apart.results] == [
        f"snapshot:{snapshot}"
    ] * 2
    assert apart.results[0].values["contiguity_before"] == aged.final["contiguity"]
    # Another state in the same file is another point.
    contigua.age(options=contigua.AgeOptions(memory="256M", hours=0.01)).save(snapshot)
    assert [p.status for p in look(make_plan(spec), tmp_path / "apart")] == ["to do"] * 2


def test_an_interrupt_says_how_to_carry_on(two_hundred, tmp_path, cli):
    folder = tmp_path / "out"
    client = start(two_hundred, "-o", folder, "--workers", 2, start_new_session=True)
    finished(folder, 5, client)
    # As a terminal does: to the whole group.
    os.killpg(client.pid, signal.SIGINT)
    _, errors = client.communicate(timeout=TIMEOUT)
    assert client.returncode == 130, errors
    assert "the same command carries on" in errors
    assert "Traceback" not in errors, errors
    table = query(folder, "select count(*) n from results")
    assert table.column("n").to_pylist()[0] >= 5
    assert not Store(folder).stale()
    workers = {event["pid"] for event in events(folder)}
    wait_until(lambda: not any(map(is_alive, workers)), "the workers ended")


def test_a_point_cut_short_by_an_interrupt_is_no_result(trace, tmp_path, monkeypatch):
    # As the engine does: the interrupt ends the run, and what ran is reported.
    def run(_, progress, load=None):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
            progress([(0, 0)])
        return ["part of a report"], 0, []

    monkeypatch.setattr(contigua._engine, "run", run)
    with pytest.raises(KeyboardInterrupt):
        contigua.sweep(small(trace), tmp_path, workers=0)
    assert not list((tmp_path / "points").iterdir())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_two_sweeps_do_not_share_a_folder(trace, tmp_path):
    store = Store(tmp_path)
    store.create()
    with store.lock(), pytest.raises(SweepError, match=f"process {os.getpid()} on .* is running"):
        contigua.sweep(small(trace), tmp_path)


# Programs.


def test_a_program_is_executed_once_whatever_its_points(tmp_path):
    counter = tmp_path / "count"
    script = tmp_path / "program"
    script.write_text(f"#!/bin/sh\necho run >> {counter}\n")
    script.chmod(0o755)
    spec = small("unused", ages=["fresh", "scattered:2"])
    spec["workloads"] = {"script": {"command": [str(script)]}}
    folder = tmp_path / "out"
    assert [p.status for p in look(make_plan(spec), folder)] == ["to record"] * 4
    assert not folder.exists()
    swept = contigua.sweep(spec, folder, workers=0)
    assert counter.read_text() == "run\n"
    assert len(swept.results) == 4
    # A trace that is gone is not missed until a point needs it.
    (file,) = (folder / "traces").glob("*.trace")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    contigua.sweep(spec, folder, workers=0)
    assert counter.read_text() == "run\n"
    spec["sweep"]["seeds"] = [1, 2]
    said = Heard()
    swept = contigua.sweep(spec, folder, workers=0, listener=said)
    assert len(swept.results) == 8
    assert counter.read_text() == "run\n" * 2
    assert any("damaged; script is recorded again" in line for line in said.lines)


def test_programs_are_recorded_at_the_addresses_that_options_choose(tmp_path, guest):
    """Reports equal those of runs; a recording for each seed, where seeds decide on addresses."""
    spec = {
        "options": {"detail": "translation", "memory": "256MiB"},
        "workloads": {"holes": {"command": [guest("addresses"), "holes"]}},
        "sweep": {
            "designs": ["linux-thp"],
            "seeds": [1, 2],
            "options": {"linux": ["6.1", "6.18"], "randomize_va_space": [False, True]},
        },
    }
    swept = contigua.sweep(spec, tmp_path / "out", workers=0)
    assert len(list((tmp_path / "out" / "traces").glob("*.trace"))) == 2 * (1 + 2)
    layouts = [report.values["config"].get("layout", {"linux": "6.18"}) for report in swept.results]
    unmoved, moved = [{"linux": "6.1"}, {"linux": "6.18"}], []
    for linux in ("6.1", "6.18"):
        moved += [{"linux": linux, "seed": seed} for seed in (1, 2)]
    key = json.dumps
    assert sorted(map(key, layouts)) == sorted(map(key, [*unmoved * 2, *moved]))


@pytest.mark.parametrize(
    ("designs", "options", "aligned"),
    [
        (["linux-4k"], {}, None),
        (["linux-4k", "forced"], {}, "all"),
        (["linux-4k", "advised"], {}, "unmounted"),
        (["linux-4k", "forced"], {"shmem_enabled": "never"}, None),
    ],
)
def test_designs_of_a_sweep_decide_together_where_shared_memory_is(
    designs, options, aligned, tmp_path, guest
):
    key = "translation.thp.shmem_enabled"
    spec = {
        "options": {"detail": "translation", "memory": "256MiB", **options},
        "workloads": {"shared": {"command": [guest("addresses"), "shared"]}},
        "designs": {
            "forced": {"base": "linux-thp", "set": {key: "force"}},
            "advised": {"base": "linux-thp", "set": {key: "advise"}},
        },
        "sweep": {"designs": designs},
    }
    swept = contigua.sweep(spec, tmp_path / "out", workers=0)
    layouts = [report.values["config"].get("layout", {}) for report in swept.results]
    assert {layout.get("aligned_shmem") for layout in layouts} == {aligned}


class Heard:
    """Keeps what a sweep says."""

    def __init__(self):
        self.lines = []

    def said(self, text):
        self.lines.append(text)

    def recording(self, workload):
        self.lines.append(f"recording {workload}")

    def start(self, total, there):
        self.lines.append(f"{there} of {total}")

    def advance(self, record, points):
        pass


def test_a_server_is_driven_by_its_client(tmp_path):
    spec = small("unused")
    spec["workloads"] = {
        "server": {
            "command": [
                "/bin/sh",
                "-c",
                "touch {folder}/up; while [ ! -e {folder}/stop ]; do :; done",
            ],
            "ready": ["test", "-e", "{folder}/up"],
            "client": [["cp", "{folder}/up", "{folder}/asked"], ["test", "-e", "{folder}/asked"]],
            "stop": ["touch", "{folder}/stop"],
            "requests": 7,
        }
    }
    swept = contigua.sweep(spec, tmp_path / "out", workers=0)
    assert list(swept.to_pandas()["requests"]) == [7, 7]
    spec["workloads"]["server"]["client"] = ["false"]
    swept = contigua.sweep(spec, tmp_path / "out", workers=0)
    assert {failure["error"].split(":")[0] for failure in swept.failures} == {"the client failed"}


def test_failures_are_recorded_and_run_again_when_told(trace, tmp_path, cli):
    program = tmp_path / "program"
    spec = tmp_path / "s.toml"
    spec.write_text(
        f"""
        [options]
        detail = "translation"
        memory = "256MiB"
        [workloads.there]
        trace = "{trace}"
        [workloads.missing]
        command = ["{program}"]
        [sweep]
        designs = "linux-thp"
        """
    )
    folder = tmp_path / "out"
    ran = cli("sweep", spec, "-o", folder, "--workers", 0)
    assert ran.returncode == 1
    assert f"1 failed: missing: there is no program {program}" in ran.stderr
    assert "--retry-failed" in ran.stderr and "Traceback" not in ran.stderr
    swept = Sweep(folder)
    assert [axes["workload"] for axes in swept.results.axes] == ["there"]
    assert [failure["workload"] for failure in swept.failures] == ["missing"]
    program.symlink_to("/bin/true")
    ran = cli("sweep", spec, "-o", folder, "--workers", 0)
    assert "2 points: 1 were finished before, 1 ran" in ran.stdout, ran.stdout + ran.stderr


def test_a_point_that_fails_again_stays_failed_until_it_is_told(trace, tmp_path):
    damaged = tmp_path / "damaged.trace"
    damaged.write_bytes(trace.read_bytes()[:-9])
    spec = small(damaged)
    swept = contigua.sweep(spec, tmp_path / "out", workers=0)
    assert len(swept.failures) == 2 and len(swept.results) == 0
    with pytest.raises(EngineError) as caught:
        contigua.run(trace=damaged, designs=["linux-4k"])
    # The engine's text, but for the path.
    assert swept.failures[0]["error"] == str(caught.value)
    contigua.sweep(spec, tmp_path / "out", workers=0)
    assert len(events(tmp_path / "out")) == 4
    contigua.sweep(spec, tmp_path / "out", workers=0, retry_failed=True)
    assert len(events(tmp_path / "out")) == 8


def test_hardware_that_cannot_be_fails_its_points_and_no_others(trace, tmp_path):
    spec = small(trace, designs="linux-thp", machine={"tlb.l1d.4k.entries": [64, 65]})
    swept = contigua.sweep(spec, tmp_path, workers=0)
    assert [axes["machine.tlb.l1d.4k.entries"] for axes in swept.results.axes] == [64]
    (failure,) = swept.failures
    assert "65 entries do not divide" in failure["error"]


def test_options_are_axes_that_hide_no_figure(trace, tmp_path):
    spec = small(trace, designs="linux-thp")
    spec["sweep"]["options"] = {"instructions": [100_000, 200_000], "holes": ["none"]}
    spec["options"]["detail"] = "additive"
    frame = contigua.sweep(spec, tmp_path, workers=0).to_pandas()
    assert list(frame["options.instructions"]) == [100_000, 200_000]
    # Whole blocks: a little less is executed.
    assert all(frame["instructions"] <= frame["options.instructions"])
    assert all(frame["instructions"] > 0.9 * frame["options.instructions"])
    assert (frame["cycles"] > 0).all()


# What is in the folder.


def test_damaged_files_are_said_and_made_again(trace, tmp_path):
    folder = tmp_path / "out"
    spec = small(trace, seeds=[1, 2])
    before = contigua.sweep(spec, folder, workers=0).results.to_json()
    points = sorted((folder / "points").glob("*.json"))
    points[0].write_bytes(points[0].read_bytes()[:100])
    points[1].write_bytes(points[1].read_bytes().replace(b"walks", b"talks", 1))
    (half := folder / "points" / f".{points[2].name}.999").write_text("half")
    os.utime(half, (0, 0))
    (folder / "sweep.json").write_text("{")
    (folder / "results" / "part-0.parquet").write_text("PAR1")
    for name in ("half.new", ".contigua-x.partial", "0123.trace", "0123.json"):
        (folder / "traces" / name).write_text("half")
    said = Heard()
    swept = contigua.sweep(spec, folder, workers=0, listener=said)
    assert swept.results.to_json() == before
    assert sum("damaged; its point is run again" in line for line in said.lines) == 2
    assert sum("damaged; its program is recorded again" in line for line in said.lines) == 1
    assert not half.exists()
    assert "2 of 4" in said.lines
    ran = Counter(event["point"] for event in events(folder) if event["event"] == "finished")
    assert sorted(ran.values()) == [1, 1, 2, 2]
    assert not list((folder / "traces").iterdir())
    # A damaged table alone is made again by who reads it.
    view = folder / "results" / "part-0.parquet"
    view.write_text("PAR1")
    assert query(folder, "select count(*) n from results").column("n").to_pylist() == [4]


def test_points_are_shared_by_specifications_that_have_them_in_common(trace, tmp_path):
    contigua.sweep(small(trace, seeds=[1, 2]), tmp_path, workers=0)
    swept = contigua.sweep(small(trace, seeds=[2, 3]), tmp_path, workers=0)
    assert len([e for e in events(tmp_path) if e["event"] == "finished"]) == 6
    # The table has what the sweep has now.
    assert sorted(swept.to_pandas()["seed"]) == [2, 2, 3, 3]


def test_a_point_is_named_by_what_its_report_depends_on_and_nothing_else(trace, tmp_path):
    def names(**changes):
        spec = small(trace, **changes.pop("sweep", {}))
        spec |= changes
        plan = make_plan(spec)
        return [p.name for p in look(plan, tmp_path)]

    base = names()
    assert names(description="x") == base
    assert names(sweep={"ages": "scattered:3"}) == names(sweep={"ages": "scattered:3.0"})
    other = {"detail": "translation", "memory": "512MiB"}
    for changed in (
        names(options=other),
        names(sweep={"seeds": 2}),
        names(sweep={"ages": "full"}),
        names(sweep={"options": {"holes": "1:0.1:dispersed:remapped"}}),
        names(sweep={"machine": {"tlb.l1d.4k.entries": 32}}),
    ):
        assert not set(changed) & set(base)
    default = names(sweep={"design": {"memory.swappiness": 0}})
    assert default == base


def test_the_dataset_is_read_by_others(trace, tmp_path):
    duckdb, pd = pytest.importorskip("duckdb"), pytest.importorskip("pandas")
    few = Design("perforated").with_({"translation.perforated.most_holes": 8}, name="few")
    spec = small(trace, designs=["linux-4k", few], seeds=[1, 2])
    spec["sweep"] = [spec["sweep"]]
    spec["sweep"].append(
        {"designs": "perforated", "design": {"translation.perforated.most_holes": [4, 16]}}
    )
    swept = contigua.sweep(spec, tmp_path, workers=0)
    frame = pd.read_parquet(tmp_path / "results")
    assert len(frame) == 6
    column = "design.translation.perforated.most_holes"
    assert sorted(frame[column].dropna()) == [4, 16]
    for text, holes in zip(frame["report"], frame[column], strict=True):
        config = json.loads(text)["config"]
        if holes == holes:
            assert config["design"]["translation"]["perforated"]["most_holes"] == holes
    assert set(swept.results[0].summary()) <= set(frame)
    files = f"{tmp_path}/results/*.parquet"
    (row,) = duckdb.sql(
        f"select design, count(*) from '{files}' where seed = 2 group by all order by 1 limit 1"
    ).fetchall()
    assert row == ("few", 1)
    assert "null" not in {str(field.type) for field in swept.to_arrow().schema}
    assert "few" in swept._repr_html_()


def test_seeds_give_confidence_intervals(trace, tmp_path):
    spec = small(trace, designs="linux-thp", ages=["fresh", "partial"], seeds=[1, 2, 3, 4])
    swept = contigua.sweep(spec, tmp_path, workers=0)
    rows = swept.summary("free_2m_blocks_before").set_index("age")
    assert list(rows["points"]) == [4, 4]
    assert rows.loc["fresh", "free_2m_blocks_before_margin"] == 0
    frame = swept.to_pandas()
    blocks = frame[frame["age"] == "partial"]["free_2m_blocks_before"]
    assert rows.loc["partial", "free_2m_blocks_before"] == blocks.mean()
    # Student's t for 3 degrees of freedom.
    expected = 3.1824 * blocks.std() / 2
    assert rows.loc["partial", "free_2m_blocks_before_margin"] == pytest.approx(expected)


# Questions.


@pytest.fixture(scope="module")
def swept(trace, tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept")
    spec = small(trace, designs="perforated")
    spec["sweep"]["design"] = {"translation.perforated.most_holes": [8, 64]}
    return contigua.sweep(spec, folder, workers=0)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select cyles from results", "no column is called cyles; did you mean cycles?"),
        (
            "select most_holes from results",
            'did you mean "design.translation.perforated.most_holes"?',
        ),
        (
            "select design.translation.perforated.most_holes from results",
            'quotation marks: "design.translation.perforated.most_holes"',
        ),
        ("from result", "no table is called result; the only one is results"),
        ("selct 1", "syntax error"),
    ],
)
def test_a_wrong_question_gets_one_clear_error(swept, cli, sql, expected):
    with pytest.raises(QueryError) as caught:
        swept.query(sql)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_answers_have_the_form_that_is_asked_for(swept, cli, tmp_path):
    sql = "select design, seed from results order by all"
    assert cli("query", swept.folder, sql, "--format", "csv").stdout.splitlines() == [
        '"design","seed"',
        '"perforated",1',
        '"perforated",1',
    ]
    rows = [{"design": "perforated", "seed": 1}] * 2
    assert json.loads(cli("query", swept.folder, sql, "--format", "json").stdout) == rows
    # A table has the beginnings of reports, and everything else whole.
    some = "select columns('design.*|report') from results"
    table = cli("query", swept.folder, some).stdout
    assert "design.translation.perforated.most_holes" in table and "…" in table
    assert max(map(len, table.splitlines())) < 1100
    assert "walk_references" in cli("query", swept.folder, "describe results").stdout
    file = tmp_path / "a.parquet"
    assert cli("query", swept.folder, sql, "-o", file).returncode == 0
    assert query(file, "from results").to_pylist() == rows
    assert cli("query", swept.folder, sql, "--format", "parquet").returncode == 2
    wrong = cli("query", swept.folder, "select cyles from results")
    assert wrong.returncode == 1 and "did you mean cycles" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_a_file_of_run_is_asked_the_same_way(swept, trace, cli, tmp_path):
    file = tmp_path / "run.json"
    arguments = ("--detail", "translation", "--memory", "256M", "--json", file)
    assert cli("run", "--trace", trace, *arguments).returncode == 0
    answer = cli("query", file, "select design from results order by 1", "--format", "csv")
    assert answer.stdout.splitlines() == ['"design"', '"linux-4k"', '"linux-thp"']
    for place, expected in ((tmp_path, "no sweep is here"), (tmp_path / "no", "No such file")):
        ran = cli("query", place, "from results")
        assert ran.returncode == 1 and expected in ran.stderr


# Mistakes.


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sweeps": {}}, "unknown key 'sweeps'; did you mean sweep?"),
        ({"sweep": {}}, "give designs"),
        ({"sweep": 3}, r"no \[sweep\]"),
        ({"workloads": {}}, r"no \[workloads.NAME\]"),
        ({"workloads": {"a": {}}}, "give one of command, trace and program"),
        ({"workloads": {"a": {"command": "true"}}}, "a.command: write a list of texts"),
        ({"workloads": {"a": {"command": ["true"], "x": 1}}}, "workloads.a: unknown key 'x'"),
        ({"workloads": {"a": {"command": ["true"], "client": ["x"]}}}, "a server needs `stop`"),
        ({"workloads": {"a": {"command": ["true"], "stop": ["x"]}}}, "need `client`"),
        ({"workloads": {"a": {"trace": "/no/such"}}}, "there is no trace /no/such"),
        ({"workloads": {"a": {"program": "redi"}}}, "did you mean redis"),
        ({"workloads": {"a": {"program": "redis", "scale": "big"}}}, "a.scale: 'big'"),
        ({"options": {"core": 1}}, "options: unknown key 'core'; did you mean cores"),
        ({"options": {"cores": "two"}}, "options.cores: write a whole number, not 'two'"),
        ({"options": {"seed": 1}}, r"an axis: seeds = \[...\]"),
        ({"options": {"timeline": "x"}}, "for single runs"),
        ({"options": {"linux": "4.4"}}, "options.linux: '4.4' is not one of 6.1, 6.8, 6.12, 6.18"),
        ({"options": {"linux": "6.1"}}, "a trace has its addresses inside: take options.linux out"),
        ({"designs": {"a": {}}}, "designs.a.base: write a text"),
        ({"designs": {"a": {"base": "linux-5k"}}}, "did you mean linux-4k"),
        ({"sweep": {"designs": "linux-tph"}}, "did you mean linux-thp"),
        ({"sweep": {"designs": "linux-thp", "sedes": 1}}, "did you mean seeds"),
        ({"sweep": {"designs": "linux-thp", "seeds": "x"}}, "seeds are whole numbers"),
        ({"sweep": {"designs": "linux-thp", "seeds": []}}, "axis seed has no values"),
        ({"sweep": {"designs": ["linux-thp"] * 2}}, "axis design has a value twice"),
        ({"sweep": {"designs": "linux-thp", "workloads": "gps"}}, "did you mean gups"),
        ({"sweep": {"designs": "linux-thp", "ages": "old"}}, "age old.*unknown age"),
        ({"sweep": {"designs": "linux-thp", "ages": "snapshot:/no"}}, "No such file"),
        (
            {"sweep": {"designs": "perforated", "design": {"translation.perforated.filter": 3}}},
            "translation.perforated.filter = 3: .*unknown field `filter`",
        ),
        ({"sweep": {"designs": "linux-thp", "options": {"cores": [1, 65]}}}, "cores"),
        (
            {
                "sweep": {
                    "designs": "linux-thp",
                    "seeds": list(range(1001)),
                    "options": {"skip": list(range(1001))},
                }
            },
            "1,002,001 points are more",
        ),
    ],
)
def test_a_wrong_specification_gets_one_clear_error_before_anything_runs(
    trace, tmp_path, changes, expected
):
    spec = small(trace) | changes
    with pytest.raises((SweepError, EngineError, contigua.PresetError), match=f"(?s){expected}"):
        contigua.sweep(spec, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_mistakes_on_the_command_line(cli, tmp_path, two_hundred):
    bad = tmp_path / "bad.toml"
    bad.write_text("[sweep\n")
    for arguments, expected in (
        ((tmp_path / "no.toml",), "No such file"),
        ((bad,), "not valid TOML"),
        ((two_hundred, "-o", "/proc/no"), "give another -o"),
        (
            (two_hundred, "--scheduler", "tcp://127.0.0.1:1", "-o", tmp_path / "x"),
            "contigua: warning: tcp://127.0.0.1:1 is not authenticated",
        ),
    ):
        timeout = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1s"}
        ran = cli("sweep", *arguments, env=timeout)
        assert ran.returncode == 1 and expected in ran.stderr, ran.stderr
        assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ({}, "has no workers; start some with `dask worker tcp://x`"),
        ({"tcp://w": "0.0.1"}, "the worker at tcp://w has contigua 0.0.1, this is"),
        ({"tcp://w": "none"}, "the worker at tcp://w has no contigua"),
        ({"tcp://w": contigua.__version__}, None),
    ],
)
def test_workers_need_this_version(there, expected):
    class Client:
        def wait_for_workers(self, count, timeout):
            if len(there) < count:
                raise TimeoutError

        def run(self, function, on_error):
            assert function() == contigua.__version__
            return there

    # Those that come later say so at their first point.
    late = run_at(Task("p", {}, "t", "contigua", {}, version="0.0.1"), "tcp://w", Path())
    assert late.record.error.startswith("the worker tcp://w has contigua")
    if expected is None:
        cluster.check(Client(), "tcp://x")
        return
    with pytest.raises(SweepError, match=expected):
        cluster.check(Client(), "tcp://x")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_the_examples_are_well_formed(example, cli, tmp_path):
    ran = cli("sweep", example, "-o", tmp_path / "out", "--dry-run")
    assert ran.returncode == 0, ran.stderr
    assert "points: " in ran.stdout and "to record" in ran.stdout
    assert not (tmp_path / "out").exists()


def test_a_script_that_its_workers_would_run_again_is_told(trace, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"import contigua\ncontigua.sweep({small(trace)!r}, 'out', workers=1)\n")
    ran = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert ran.returncode != 0
    assert 'below `if __name__ == "__main__":`' in ran.stderr.splitlines()[-1]


def test_the_how_tos_script_runs(tmp_path):
    text = (ROOT / "docs" / "how-to" / "sweeps.md").read_text()
    (code,) = (block.split("```")[0] for block in text.split("```python\n")[1:])
    script = tmp_path / "script.py"
    script.write_text(code)
    ran = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert "page_faults_margin" in ran.stdout or "..." in ran.stdout
    assert len(Sweep(tmp_path / "contigua-results" / "few").results) == 12


def test_points_are_sampled_as_runs_are(trace, tmp_path):
    spec = small(trace)
    sample = {"distance": 20_000, "detail": 2000, "goal": 0.05}
    spec["options"] |= {"detail": "additive", "sample": sample}
    contigua.sweep(spec, tmp_path / "sampled", workers=0)
    results = contigua.read_results(tmp_path / "sampled")
    for report in results:
        assert report.values["sample"]["sampling"]["distance"] == 20_000
        assert report.values["sample"]["goal"]["error"] == 0.05
        assert report.intervals()["cycles"] > 0
    for wrong in ({"distnace": 1}, {"distance": True}, {"detail": 10}, {"goal": 2}, 3):
        spec["options"]["sample"] = wrong
        with pytest.raises((SweepError, EngineError), match=r"sample|unit|error|goal"):
            make_plan(spec)
