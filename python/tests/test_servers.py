"""Do servers run to their end under their clients, and are all answers counted and checked?"""

import socket
import subprocess
import threading
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from contigua import _engine
from contigua.options import RunOptions
from contigua.programs.clients import answer, call, free_port
from contigua.programs.databases import mariadb
from contigua.programs.program import Loaded, Program, ProgramError, find_program
from contigua.programs.servers import (
    FILE_SIZES,
    Connection,
    Load,
    file_contents,
    memcached,
    nginx,
    popular,
    redis_store,
    stored_value,
)
from contigua.programs.tpcc import MIX, Company, Terminal
from contigua.regions import Regions
from contigua.run_spec import document
from contigua_experiments.running import Cell, run_cells

pytestmark = pytest.mark.programs

OPTIONS = RunOptions(detail="translation", memory="512MiB")


@pytest.mark.parametrize(
    ("program", "requests", "threads", "processes"),
    [
        # A connection has 50 keys, which it stores before it asks for 125.
        (memcached(Load(400, 100, 1_000), threads=4), 1_400, 5, 1),
        (redis_store(Load(300, 100, 704)), 1_004, 5, 1),
        (nginx(20, 100, workers=2, connections=4), 100, 3, 3),
    ],
    ids=["memcached", "redis", "nginx"],
)
def test_a_server_ends_when_all_requests_are_answered(program, requests, threads, processes):
    missing = program.missing()
    assert missing is None, missing
    (values,) = run_cells(program, [Cell("linux-4k")], OPTIONS).values()
    assert values["client"]["requests"] == requests
    assert values["program"]["threads"] >= threads
    assert values["program"]["processes"] == processes


@pytest.mark.parametrize(
    "program",
    [memcached(Load(200, 100, 400)), nginx(10, 100, workers=2)],
    ids=["memcached", "nginx"],
)
def test_a_recorded_server_replays_to_the_same_events(program, tmp_path):
    trace = tmp_path / "events.trace"
    (tmp_path / "own").mkdir()
    if program.prepare is not None:
        program.prepare(tmp_path / "own")
    command = [part.replace("{folder}", str(tmp_path / "own")) for part in program.command]
    specs = [Cell("linux-4k").spec(OPTIONS)]

    def told(**execution):
        return document({"runs": specs, "execution": execution})

    client = threading.Thread(
        target=program.client, args=(tmp_path / "own", threading.Event(), nullcontext)
    )
    client.start()
    live, status, _ = _engine.run(told(command=command, record=trace))
    client.join()
    assert status == 0
    replayed, *_ = _engine.run(told(trace=trace))
    assert live == replayed


def test_configurations_that_replay_a_recording_see_the_same_events():
    cells = [Cell("linux-4k"), Cell("linux-thp"), Cell("linux-thp", age="scattered:3")]
    found = run_cells(memcached(Load(100, 100, 200)), cells, OPTIONS, record=True)
    assert list(found) == cells
    assert len({values["program"]["events"] for values in found.values()}) == 1
    assert {values["client"]["requests"] for values in found.values()} == {300}


def test_a_server_is_measured_while_it_is_asked_alone():
    load = Load(2_000, 100, 400)
    (whole,) = run_cells(memcached(load), [Cell("linux-4k")], OPTIONS).values()
    loaded = replace(OPTIONS, regions=Regions.client())
    (asked,) = run_cells(memcached(load), [Cell("linux-4k")], loaded).values()
    share = asked["executed"]["instructions"] / whole["executed"]["instructions"]
    # Filling is five times as many requests, and then there are its start and end.
    assert 0.02 < share < 0.3
    assert asked["client"]["requests"] == 2_400


def answering(answer):
    """A server that always says the same, in a thread of its own; returns its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with listener:
            one, _ = listener.accept()
            with one:
                one.recv(1000)
                one.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [(b"SERVER_ERROR out of memory\r\n", "out of memory"), (b"STOR", "closed a connection")],
)
def test_a_wrong_answer_is_an_error_that_quotes_it(answer, message):
    with Connection(answering(answer)) as one, pytest.raises(ProgramError, match=message):
        one.send(b"x")
        one.expect(b"STORED\r\n" * 10)


def test_a_client_that_fails_ends_the_run(guest):
    def drive(_: Path, __: threading.Event, loaded: Loaded) -> None:
        raise ProgramError("no such luck")

    with pytest.raises(ProgramError, match="no such luck"):
        run_cells(Program("forever", (guest("forever"),), {}, drive), [Cell("linux-4k")], OPTIONS)


def test_popularity_is_zipfs():
    import random
    from collections import Counter

    draw = popular(100, random.Random(1))
    counts = Counter(draw() for _ in range(50_000)).most_common()
    assert len(counts) == 100
    # The first is 1 / H(0.99, 100) of all, the tenth 10 ** -0.99 of that.
    assert counts[0][1] / 50_000 == pytest.approx(0.19, abs=0.02)
    assert counts[9][1] / counts[0][1] == pytest.approx(0.102, abs=0.03)


def test_values_and_files_differ_and_have_their_sizes():
    values = {stored_value(key, version, 100) for key in range(9) for version in range(9)}
    assert len(values) == 81 and {len(value) for value in values} == {100}
    files = [file_contents(number) for number in range(100)]
    assert len(set(files)) == 100
    for size, share in FILE_SIZES:
        assert sum(len(file) == size for file in files) == share


def test_a_free_port_can_be_listened_to():
    with socket.create_server(("127.0.0.1", free_port())):
        pass


#: Conditions after any transactions of TPC-C (revision 5.11, clause 3.3.2), as counts of what
#: breaks them.
CONDITIONS = {
    "a warehouse has received what its districts have": """
        select count(*) from warehouse
        where w_ytd <> (select sum(d_ytd) from district where d_w_id = w_id)""",
    "the last order of a district is the one before the next": """
        select count(*) from district where d_next_o_id - 1 <>
        (select max(o_id) from orders where o_w_id = d_w_id and o_d_id = d_id)""",
    "an order has the lines that it says": """
        select count(*) from orders where o_ol_cnt <> (select count(*) from order_line
        where ol_w_id = o_w_id and ol_d_id = o_d_id and ol_o_id = o_id)""",
    "an order has a carrier or is a new one": """
        select count(*) from orders left join new_order
        on no_w_id = o_w_id and no_d_id = o_d_id and no_o_id = o_id
        where (o_carrier_id is null) <> (no_o_id is not null)""",
}
#: Transactions of each kind that the tables tell of.
DONE = """
    select (select count(*) from orders), (select count(*) from history),
    (select sum(c_delivery_cnt) from customer), (select count(*) from new_order)"""


def test_a_company_is_consistent_after_all_its_transactions(tmp_path):
    company = Company(warehouses=2, divisor=100)
    program = mariadb(company, 400, before=80)
    missing = program.missing()
    assert missing is None, missing
    program.prepare(tmp_path)
    client = ("mariadb", "-N", "-u", "root", f"--socket={tmp_path}/socket", "tpcc", "-e")
    counts = []

    def count():
        counts.append([int(one) for one in answer(*client, DONE).split()])

    @contextmanager
    def loaded():
        count()
        yield
        count()
        broken = {said: int(answer(*client, sql)) for said, sql in CONDITIONS.items()}
        assert not any(broken.values()), broken
        # A statement that breaks a condition is noticed.
        call(*client, "update district set d_ytd = d_ytd + 1 where d_id = 3")
        call(*client, "delete from new_order limit 1")
        assert [int(answer(*client, sql)) for sql in CONDITIONS.values()] == [2, 0, 0, 1]

    command = [part.replace("{folder}", str(tmp_path)) for part in program.command]
    with subprocess.Popen(
        [find_program(command[0]), *command[1:]], stderr=subprocess.DEVNULL
    ) as it:
        program.client(tmp_path, threading.Event(), loaded)
        assert it.wait(60) == 0
    (orders, payments, delivered, new), (more_orders, more_payments, more_delivered, more_new) = (
        counts
    )
    assert orders >= 2 * 10 * company.customers
    assert more_orders - orders > more_payments - payments > 0.35 * 400
    assert more_delivered > delivered
    assert more_new - new == (more_orders - orders) - (more_delivered - delivered)


def test_terminals_ask_for_the_mix_and_each_for_others():
    company = Company(warehouses=3)
    one, other = (Terminal(company, number).transactions(2_000) for number in (0, 3))
    assert one == Terminal(company, 0).transactions(2_000)
    assert one != other
    said = {
        "new_order": "insert into orders",
        "payment": "insert into history",
        "order_status": "order by o_id desc",
        "delivery": "update orders set o_carrier_id",
        "stock_level": "count(distinct",
    }
    found = Counter({name: one.count(text) for name, text in said.items()})
    # A delivery is of each district.
    found["delivery"] //= 10
    assert sum(found.values()) == 2_000
    assert all(abs(found[name] / 20 - share) < 3 for name, share in MIX.items())
    supplied = [
        line.split("where s_w_id = ")[1][0] for line in one.splitlines() if "where s_w_id" in line
    ]
    assert 0.97 < supplied.count("1") / len(supplied) < 1
