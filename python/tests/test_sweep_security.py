"""Can another user of this computer, or of the network, run code through a sweep?"""

import contextlib
import socket
import ssl

import psutil
import pytest
from distributed.security import Security

from contigua.sweeps import SweepError, cluster

#: First bytes of a TLS alert, and of an HTTP answer.
ALERT, HTTP = b"\x15", b"H"


def listening():
    """Ports on which this process or one that it started takes connections."""
    mine = psutil.Process()
    found = set()
    for process in [mine, *mine.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in process.net_connections("tcp"):
                if one.status == psutil.CONN_LISTEN:
                    assert one.laddr.ip == "127.0.0.1", one
                    found.add(one.laddr.port)
    return found


def first_byte(port, credentials=None):
    """Return the first byte that a port sends; a Dask server greets those that it trusts."""
    with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        if credentials is not None:
            context = credentials.get_connection_args("client")["ssl_context"]
            # Who attacks does not ask whom.
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            connection = context.wrap_socket(connection)
        else:
            connection.sendall(bytes(64))
        # It may say nothing, or hang up; both are a refusal.
        with contextlib.suppress(OSError):
            return connection.recv(1)
    return b""


def test_a_stranger_on_this_computer_runs_nothing_on_a_sweeps_workers():
    before = listening()
    with cluster.connect(None, 1) as client:
        ports = listening() - before
        assert len(ports) >= 3, "a scheduler, a nanny and a worker"
        for port in ports:
            assert first_byte(port) in (b"", ALERT, HTTP)
            with contextlib.suppress(OSError):
                assert first_byte(port, Security.temporary()) == b""
        (worker,) = client.scheduler_info()["workers"]
        # Who has this cluster's own credentials is greeted.
        assert first_byte(int(worker.rpartition(":")[2]), client.security) != b""


@pytest.mark.parametrize("address", ["tcp://h:1", "h:1", "ws://h:1"])
def test_a_remote_scheduler_without_tls_gives_a_warning(address):
    assert "not authenticated" in cluster.warning(address)


def test_a_remote_scheduler_with_tls_gives_none():
    assert cluster.warning("tls://h:1") is None
    assert cluster.warning(None) is None


def test_tls_without_credentials_is_one_clear_error():
    with (
        pytest.raises(SweepError, match="DASK_DISTRIBUTED__COMM__TLS__CA_FILE"),
        cluster.connect("tls://127.0.0.1:1", None),
    ):
        pass
