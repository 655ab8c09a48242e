"""Is what a server does under its client measured, and the latency of requests?"""

import json
import shutil
import subprocess
import sys

import pytest
from test_verdicts import claims_of, masked

import contigua
from conftest import ROOT
from contigua import RunOptions
from contigua.loads import Commands
from contigua.programs.clients import free_port
from contigua.programs.program import ProgramError
from contigua.regions import Regions
from contigua.reporting.sentences import verdict

#: Sends so many messages, each after the answer to the one before, on as many connections.
CLIENT = """
import socket, sys
port, messages, connections = map(int, sys.argv[1:])
for _ in range(connections):
    one = socket.create_connection(("127.0.0.1", port))
    for _ in range(messages):
        one.sendall(b"a")
        assert len(one.recv(64)) == 1
    one.close()
"""
#: Sends one message that needs no answer: q ends the server.
ONCE = """
import socket, sys
one = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
one.sendall(sys.argv[2].encode())
assert sys.argv[2] == "q" or len(one.recv(64)) == 1
"""
OPTIONS = RunOptions(memory="256MiB", detail="additive")


def commands(port, messages=50, connections=2):
    """Commands that drive the server ``serve``."""
    python = (sys.executable, "-c")
    return Commands(
        client=((*python, CLIENT, str(port), str(messages), str(connections)),),
        ready=((*python, ONCE, str(port), "r"),),
        stop=((*python, ONCE, str(port), "q"),),
    )


def served(guest, designs=("linux-4k",), options=OPTIONS, port=None, **how):
    """Run the server under a client."""
    port = port or free_port()
    given = {"client": commands(port, **how)}
    return contigua.run(
        [guest("serve"), str(port)],
        designs=designs,
        options=RunOptions(**{**options.__dict__, **given}),
    )


@pytest.mark.parametrize("detail", ["translation", "additive", "full"])
def test_requests_of_the_client_are_counted_and_no_others(guest, detail):
    results = served(guest, options=RunOptions(memory="256MiB", detail=detail))
    values = results[0].values
    assert results.exit_code == 0 and values["ended"] == "program"
    # That of --ready and that of --stop are not among them.
    assert values["requests"]["answered"] == 100
    assert values["regions"]["count"] == 1
    # Its memory was filled before: 8 MB, a million stores.
    assert values["executed"]["stores"] < 300_000 < values["executed"]["instructions"]
    latency = values["requests"]["latency_cycles"]
    if detail == "translation":
        assert latency is None
        return
    names = ("p50", "p95", "p99", "p99_9", "most")
    assert [latency[name] for name in names] == sorted(latency[name] for name in names)
    assert 0 < latency["mean"] * 100 <= values["time"]["busy_cycles"]


def test_two_executions_have_the_same_latencies_and_designs_have_others(guest):
    # Another port is another command line: its stack may lie elsewhere in a line.
    port = free_port()
    one, other = (served(guest, ("linux-4k", "linux-thp"), port=port) for _ in range(2))
    found = [[report.values["requests"] for report in results] for results in (one, other)]
    assert found[0] == found[1]
    small, huge = (requests["latency_cycles"] for requests in found[0])
    # Each request reads 8 MB at random.
    assert huge["p50"] < small["p50"] and huge["mean"] < small["mean"]


def test_percentiles_are_in_the_table_and_numbers_of_the_verdict_are_counters(guest, cli, tmp_path):
    port = free_port()
    line = commands(port)

    def quoted(command):
        return " ".join(f"'{part}'" if part else "''" for part in command)

    given = [
        option
        for name in ("client", "ready", "stop")
        for command in getattr(line, name)
        for option in (f"--{name}", quoted(command))
    ]
    written = tmp_path / "run.json"
    ran = cli("run", "--memory", "256M", "--json", written, *given, "--", guest("serve"), port)
    assert ran.returncode == 0, ran.stderr
    results = contigua.Results.from_json(written.read_text())
    lines = verdict(results)
    assert all(line in ran.stderr for line in lines)
    claims_of(results, lines)
    # Each request reads 8 MB at random, which was filled before.
    short, first, why = lines[:3]
    assert masked(short) == "Too short for a verdict: only # instructions."
    assert masked(first) == "linux-thp is fastest: # cycles, # % fewer than linux-4k (#)."
    assert "translation overhead down from" in why
    for row in (
        "requests",
        "cycles per request",
        "median latency of requests",
        "99.9th percentile",
    ):
        assert row in ran.stderr, ran.stderr
    assert " µs" in ran.stderr


def test_a_recording_of_a_loaded_server_replays_to_the_same_requests(guest, tmp_path):
    trace = tmp_path / "served.trace"
    live = served(guest, options=RunOptions(memory="256MiB", detail="additive", record=trace))
    options = RunOptions(memory="256MiB", detail="additive", regions=Regions.markers())
    (replayed,) = contigua.run(trace=trace, designs=["linux-4k"], options=options)
    assert replayed.values["requests"] == live[0].values["requests"]


def test_simulated_time_ends_a_run_before_its_client(guest):
    options = RunOptions(memory="256MiB", detail="additive", simulated_seconds=100e-6)
    (report,) = served(guest, options=options, messages=100_000)
    values = report.values
    assert values["complete"] and values["ended"] == "time"
    clock = float(values["config"]["machine"]["clock"].removesuffix("MHz"))
    assert 100 <= values["time"]["cycles"] / clock < 200


def test_a_client_that_fails_is_said(guest):
    port = free_port()
    client = Commands(client=(("false",),), stop=commands(port).stop, ready=commands(port).ready)
    with pytest.raises(ProgramError, match="the client failed"):
        contigua.run(
            [guest("serve"), str(port)],
            designs=["linux-4k"],
            options=RunOptions(memory="256MiB", detail="translation", client=client),
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--client", "true"), "--client needs --stop"),
        (("--stop", "true"), "add --client"),
        (("--ready", "true"), "add --client"),
        (("--client", "'", "--stop", "true"), "is no command"),
        (("--client", "true", "--stop", "true", "--region", "markers"), "not both"),
        (("--client", "true", "--stop", "true", "--skip", "1"), "--skip"),
        (("--for", "1s", "--detail", "translation"), "--for is simulated time"),
        (("--for", "0s"), "--for 0 s is out of range"),
        (("--wall", "0s"), "--wall 0 s is out of range"),
        (("--instructions", "0"), "--instructions 0 is out of range"),
    ],
)
def test_what_does_not_go_together_is_refused(cli, options, said):
    ran = cli("run", *options, "--", "/bin/true")
    assert ran.returncode in (1, 2) and said in ran.stderr, ran.stderr


def test_a_trace_has_no_client(cli, tmp_path):
    ran = cli("run", "--client", "true", "--stop", "true", "--trace", tmp_path / "any.trace")
    assert ran.returncode == 2 and "a trace needs none" in ran.stderr


def test_reports_without_a_server_have_no_requests():
    (report,) = contigua.run(["/bin/true"], designs=["linux-4k"], options=OPTIONS)
    assert "requests" not in json.loads(report.json)
    assert report.summary()["requests"] is None


#: Files that nginx serves.
FILES = 20
NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error;
events {{ worker_connections 64; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi; keepalive_requests 100000;
    server {{ listen 127.0.0.1:{port}; root {folder}/files; }}
}}
"""


def redis(port, folder):
    """A redis of one connection, and its client."""
    ask = ("redis-cli", "-p", str(port))
    load = ("redis-benchmark", "-p", str(port), "-t", "set,get", "-n", "500", "-c", "1", "-q")
    server = ["redis-server", "--port", str(port), "--save", "", "--hz", "1", "--dir", str(folder)]
    return server, Commands(
        client=(load,), ready=((*ask, "ping"),), stop=((*ask, "shutdown", "nosave"),)
    )


def nginx(port, folder):
    """An nginx of one process, and its client."""
    files = folder / "files"
    files.mkdir()
    for number in range(FILES):
        (files / str(number)).write_bytes(bytes([65 + number]) * 4000)
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port))
    address = f"http://127.0.0.1:{port}"
    fetch = ("curl", "-s", "-f", "-o", "/dev/null", f"{address}/[0-{FILES - 1}]?[1-25]")
    return ["nginx", "-c", str(config)], Commands(
        client=(fetch,),
        ready=(("curl", "-s", "-f", "-o", "/dev/null", f"{address}/0"),),
        stop=(("sh", "-c", f"kill -QUIT $(cat {folder}/pid)"),),
    )


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    """Return a library to preload under which the clock stands still and nothing is random."""
    library = tmp_path_factory.mktemp("frozen") / "frozen.so"
    source = ROOT / "python" / "tests" / "frozen.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.parametrize("server", [redis, nginx])
def test_servers_that_people_run_have_the_same_percentiles_in_two_executions(
    server, tmp_path, frozen
):
    lacking = [name for name in ("redis-server", "nginx", "curl") if shutil.which(name) is None]
    if lacking:
        pytest.skip(f"not installed: {', '.join(lacking)}")
    port, found = free_port(), []
    designs = ["linux-4k", "linux-thp", "contiguitas-thp"]
    # Names of one length: with the command line's, stacks would lie elsewhere in a line.
    for execution in ("one", "two"):
        folder = tmp_path / execution
        folder.mkdir()
        command, client = server(port, folder)
        options = RunOptions(memory="512MiB", detail="additive", client=client)
        command = ["env", f"LD_PRELOAD={frozen}", *command]
        results = contigua.run(command, designs=designs, options=options)
        assert [report.values["complete"] for report in results] == [True] * 3
        found.append([report.values["requests"] for report in results])
    for one, other in zip(*found, strict=True):
        assert one["answered"] == other["answered"] >= 500
        for percentile in ("p50", "p95", "p99"):
            two = [requests["latency_cycles"][percentile] for requests in (one, other)]
            assert two[0] == pytest.approx(two[1], rel=0.01) and two[0] > 0
