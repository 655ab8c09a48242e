"""Workers: those that are started here, or those of a Dask scheduler that is there already.

The client keeps only a few points more on their way than there are threads, so a sweep of a
hundred thousand points costs the scheduler what one of a hundred does, and little is lost when it
ends. A point whose worker dies goes to another one, a few times; if they die each time, also when
nothing else runs, it is taken to be the point's own fault and recorded as failed.

Dask's messages are pickles: whoever can send one runs code as the user of the receiver. Workers
that are started here therefore speak TLS with a certificate that is made for this cluster, is known
to nobody else and is asked of both sides; the HTTP servers beside them (Dask's dashboard) serve
nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import multiprocessing
import os
import queue
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contigua import _engine, files
from contigua.extras import needs
from contigua.sweeps.store import Record, SweepError
from contigua.sweeps.tasks import Outcome, Task, receive, run_at, run_task

if TYPE_CHECKING:
    from distributed import Client, Future, LocalCluster

#: Points on their way for each thread of the workers.
AHEAD = 3
#: Seconds after which threads are counted again: workers come and go.
REFRESH = 2.0
#: Bytes of a file that are sent at a time.
PIECE = 16 << 20
#: Times that a point is tried again because a worker had not got its files.
MOST_RETURNS = 20
#: Seconds that a scheduler may take to answer, and after that its first worker to be there.
CONNECT_TIMEOUT, WORKER_TIMEOUT = 5, 20
#: Files that the client and its workers have open, at most.
DESCRIPTORS = 48
#: Seconds without any worker after which a sweep gives up: of those that are started here, which
#: come back at once, and of a cluster's, which may have to be allocated.
CONNECT_TIMEOUT_HERE, CONNECT_TIMEOUT_THERE = 60.0, 1800.0


@contextlib.contextmanager
def outcomes_of(
    tasks: Iterable[Task], scheduler: str | None, workers: int | None
) -> Iterator[Iterator[tuple[Task, Outcome]]]:
    """Run tasks on workers, and give what comes of each; see :func:`connect`.

    Without workers (0) they run in this process. When the block is left early, tasks that have not
    started are taken back.
    """
    if workers == 0:
        yield Here(tasks).outcomes()
        return
    with connect(scheduler, workers) as client:
        runner = Runner(
            client, tasks, CONNECT_TIMEOUT_HERE if scheduler is None else CONNECT_TIMEOUT_THERE
        )
        try:
            yield runner.outcomes()
        except BaseException:
            runner.cancel()
            raise


@contextlib.contextmanager
def connect(scheduler: str | None, workers: int | None) -> Iterator[Client]:
    """Connect to a scheduler, or start workers here: processes of one thread each.

    Parameters
    ----------
    scheduler
        Its address, such as ``tls://host:8786``; ``None`` to start workers here.
    workers
        How many are started; by default one for each processor.

    Raises
    ------
    SweepError
        When there is no scheduler, it has no workers, or theirs is another version.
    """
    # A second to import, which nothing else needs.
    with needs("sweeps"):
        from distributed.utils import silence_logging_cmgr

    # What goes wrong is said here, once.
    with silence_logging_cmgr(logging.CRITICAL):
        yield from _started(workers) if scheduler is None else _found(scheduler)


def _started(workers: int | None) -> Iterator[Client]:
    """Start workers here; they end with the client."""
    with needs("sweeps"):
        import dask

    settings = {
        # Dask gives up a worker that is not there a while after it was lost. It may be restarting
        # for the second time, and nobody would start another one.
        "distributed.deploy.lost-worker-timeout": "1 day",
        # Its HTTP servers ask nobody who they are.
        "distributed.scheduler.http.routes": [],
        "distributed.worker.http.routes": [],
        "distributed.nanny.http.routes": [],
    }
    with dask.config.set(settings):
        yield from _restarting(workers)


def _restarting(workers: int | None) -> Iterator[Client]:
    with needs("sweeps"):
        from distributed import Client, LocalCluster
        from distributed.deploy.spec import SpecCluster
        from distributed.security import Security

    others = set(SpecCluster._instances)
    try:
        _check_host()
        cluster = LocalCluster(
            n_workers=workers or len(os.sched_getaffinity(0)),
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            protocol="tls://",
            security=Security.temporary(),
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
            preload=["contigua.sweeps.local_worker"],
        )
    except (OSError, RuntimeError, TimeoutError) as error:
        raise SweepError(
            f"workers could not be started ({error}); --workers 0 does without them. "
            'In a script, a sweep is run below `if __name__ == "__main__":`, because workers '
            "import the script"
        ) from error
    except BaseException:
        # A signal, while it starts: Dask's exit handler would assert that all of it has started.
        for cluster in set(SpecCluster._instances) - others:
            cluster.shutdown_on_close = False
        _silence_nannies()
        _kill_starting()
        atexit.register(_end_in_silence)
        raise
    with contextlib.ExitStack() as ending:
        ending.callback(_close, cluster)
        client = ending.enter_context(Client(cluster))
        try:
            yield client
        except BaseException:
            # They would end their points first, which may take hours. Nothing is lost with them:
            # what is written is written whole.
            _silence()
            for nanny in cluster.workers.values():
                with contextlib.suppress(ProcessLookupError):
                    if nanny.pid:
                        os.kill(nanny.pid, signal.SIGKILL)
            raise


def _silence() -> None:
    """Hide for good what Dask's threads log: they outlive a cluster whose workers are killed."""
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _silence_nannies() -> None:
    """Hide what nannies and asyncio report of workers that are killed while they start."""
    logging.getLogger("distributed.nanny").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").addFilter(
        lambda record: not (record.exc_info and "Nanny" in str(record.exc_info[1]))
    )


def _kill_starting() -> None:
    """Kill workers of which Dask may not know yet."""
    for process in multiprocessing.active_children():
        if process.name.startswith("Dask Worker"):
            process.kill()


def _end_in_silence() -> None:
    """Hide what Dask's threads and exit handlers report of workers that never started."""
    _kill_starting()
    _silence()
    sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)


def _close(cluster: LocalCluster) -> None:
    """End a cluster of this computer.

    Dask asserts that a worker's process was started before it joins it, which is not so where a
    nanny failed to restart one in this very moment. Its nannies are closed nevertheless; a second
    attempt, which Dask waits for for ever unless the first one has failed, ends the scheduler.
    """
    with needs("sweeps"):
        from distributed.core import Status

    try:
        cluster.close()
    except AssertionError:
        cluster.status = Status.failed
        cluster.close()


def _check_host() -> None:
    """Find out what workers would fail for, in processes and threads of their own.

    Raises
    ------
    OSError
        When there is something.
    """
    if (there := Path("/proc/self").readlink().name) != str(os.getpid()):
        raise OSError(f"/proc is another PID namespace's: it calls this process {there}")
    try:
        files.check_descriptors(DESCRIPTORS)
    except OSError as error:
        raise OSError(f"they take {DESCRIPTORS} files: {error.strerror} (ulimit -n)") from error
    with socket.create_server(("127.0.0.1", 0)) as server:
        try:
            socket.create_connection(server.getsockname(), timeout=CONNECT_TIMEOUT).close()
        except OSError as error:
            raise OSError(f"127.0.0.1 cannot be reached: {error.strerror}") from error


def warning(scheduler: str | None) -> str | None:
    """Say what is wrong with a scheduler that anybody can talk to; ``None`` where nothing is.

    Examples
    --------
    >>> warning("tls://host:8786") is None, "not authenticated" in warning("tcp://host:8786")
    (True, True)
    """
    if scheduler is None or scheduler.partition("://")[0] in ("tls", "inproc"):
        return None
    return (
        f"warning: {scheduler} is not authenticated: whoever reaches it or its workers runs code "
        "as their user and as you; use tls:// (docs/how-to/sweeps.md)"
    )


def _found(scheduler: str) -> Iterator[Client]:
    """Connect to a scheduler that is there."""
    with needs("sweeps"):
        from distributed import Client
        from distributed.security import Security

    # The files that DASK_DISTRIBUTED__COMM__TLS__* or a configuration file of Dask's name.
    security = Security()
    if scheduler.startswith("tls:") and not (security.tls_ca_file and security.tls_client_cert):
        raise SweepError(
            f"{scheduler} needs credentials: set DASK_DISTRIBUTED__COMM__TLS__CA_FILE, "
            "DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT and "
            "DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY (docs/how-to/sweeps.md)"
        )
    try:
        client = Client(scheduler, timeout=CONNECT_TIMEOUT, set_as_default=False, security=security)
    except (OSError, TimeoutError, ValueError, RuntimeError) as error:
        raise SweepError(
            f"no Dask scheduler answers at {scheduler}; start one with `dask scheduler`, "
            "and workers with `dask worker ADDRESS`"
        ) from error
    with client:
        check(client, scheduler)
        yield client


def check(client: Client, scheduler: str) -> None:
    """Make sure that a scheduler has workers, and that they have this version.

    Raises
    ------
    SweepError
        When that is not so.
    """
    try:
        client.wait_for_workers(1, timeout=WORKER_TIMEOUT)
    except TimeoutError as error:
        raise SweepError(
            f"the scheduler at {scheduler} has no workers; "
            f"start some with `dask worker {scheduler}`"
        ) from error

    # Not a function of this package, which a worker may lack: Dask sends this one's code.
    def found(dask_worker: Any = None) -> str:  # noqa: ANN401 - Dask's
        try:
            from contigua._engine import VERSION

            return str(VERSION)
        except ImportError:
            return "none"

    for worker, there in client.run(found, on_error="ignore").items():
        if there != _engine.VERSION:
            what = "no contigua" if there == "none" else f"contigua {there}"
            raise SweepError(
                f"the worker at {worker} has {what}, this is {_engine.VERSION}: "
                "install the same version there"
            )


class Here:
    """Runs tasks in this process, one after the other, without Dask.

    Parameters
    ----------
    tasks
        What to run.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.tasks = tasks

    def outcomes(self) -> Iterator[tuple[Task, Outcome]]:
        """Yield what came of each task."""
        with tempfile.TemporaryDirectory(prefix="contigua-") as folder:
            for task in self.tasks:
                yield task, run_at(task, "here", Path(folder))


@dataclass(frozen=True)
class Sent:
    """A task on its way.

    Attributes
    ----------
    task
        The task.
    clock
        When it was sent.
    returns
        How often it came back because its worker lacked a file.
    alone
        Whether no other task is on its way.
    """

    task: Task
    clock: int
    returns: int = 0
    alone: bool = False


class Runner:
    """Runs tasks on the workers of a client.

    A worker that dies takes down tasks that only waited on it, too. So a task that died with its
    workers is run once more at the end, alone; if they die again, it was the task.

    Parameters
    ----------
    client
        Dask's client.
    tasks
        What to run.
    timeout
        Seconds without any worker after which it gives up.
    """

    def __init__(self, client: Client, tasks: Iterable[Task], timeout: float) -> None:
        self.client = client
        self.waiting = iter(tasks)
        self.timeout = timeout
        self.running: dict[Future, Sent] = {}
        self.ended: queue.SimpleQueue[Future] = queue.SimpleQueue()
        #: Tasks whose workers died.
        self.suspects: list[Task] = []
        self.clock = 0
        #: Threads of all workers, when they were counted, and when there were some.
        self.threads, self.counted, self.seen = 0, -REFRESH, time.monotonic()
        #: When each worker was sent each file.
        self.sent: dict[tuple[str, str], int] = {}

    def outcomes(self) -> Iterator[tuple[Task, Outcome]]:
        """Yield what came of each task, in the order in which they end.

        Raises
        ------
        SweepError
            When the scheduler is gone, or all workers are.
        """
        with needs("sweeps"):
            from distributed import KilledWorker

        while self._fill():
            future = self._next()
            sent = self.running.pop(future)
            try:
                outcome = self._outcome(future)
            except KilledWorker as error:
                if not sent.alone:
                    self.suspects.append(sent.task)
                    continue
                last = getattr(error.last_worker, "address", "unknown")
                what = "every worker died while it ran this point, the last of them "
                what += f"{last}; is its memory too small?"
                outcome = Outcome(Record(sent.task.point, None, what))
            except SweepError:
                raise
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                outcome = Outcome(Record(sent.task.point, None, what))
            if outcome.missing and sent.returns < MOST_RETURNS:
                self._send_files(sent, outcome)
                self._submit(sent.task, sent.returns + 1, sent.alone)
                continue
            if outcome.missing:
                what = f"its files did not stay on the worker {outcome.worker}"
                outcome = Outcome(Record(sent.task.point, None, what), worker=outcome.worker)
            yield sent.task, outcome

    def cancel(self) -> None:
        """Take back what has not started."""
        with needs("sweeps"):
            from distributed.client import CancelledError

        # Where the scheduler is gone, they are too.
        with contextlib.suppress(OSError, TimeoutError, CancelledError, RuntimeError):
            self.client.cancel(list(self.running), force=True)
        self.running.clear()

    def _fill(self) -> bool:
        """Send as many tasks as there is room for; say whether any are on their way."""
        self._count()
        for _ in range(AHEAD * max(1, self.threads) - len(self.running)):
            task = next(self.waiting, None)
            if task is None:
                break
            self._submit(task)
        if not self.running and self.suspects:
            self._submit(self.suspects.pop(), alone=True)
        return bool(self.running)

    def _count(self) -> None:
        """Count the workers' threads now and then.

        Raises
        ------
        SweepError
            When the scheduler is gone, or all workers have been for too long.
        """
        now = time.monotonic()
        if now < self.counted + REFRESH:
            return
        try:
            self.counted, self.threads = now, sum(self.client.nthreads().values())
        except (OSError, TimeoutError, RuntimeError) as error:
            raise SweepError("the Dask scheduler is gone") from error
        if self.threads:
            self.seen = now
        elif now > self.seen + self.timeout:
            raise SweepError(
                f"no worker is left, and none came for {self.timeout:.0f} s; "
                "the same command carries on"
            )

    def _submit(self, task: Task, returns: int = 0, alone: bool = False) -> None:
        self.clock += 1
        key = f"contigua-{task.point}-{id(self)}-{self.clock}"
        future = self.client.submit(run_task, task, key=key, pure=False)
        self.running[future] = Sent(task, self.clock, returns, alone)
        future.add_done_callback(self.ended.put)

    def _next(self) -> Future:
        """Wait for a task to end, as long as there is somebody to end one."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self.ended.get(timeout=REFRESH)
            self._count()

    def _outcome(self, future: Future) -> Outcome:
        with needs("sweeps"):
            from distributed.client import CancelledError

        while True:
            try:
                outcome: Outcome = future.result(timeout=REFRESH)
                return outcome
            except CancelledError as error:
                raise SweepError(
                    "the Dask scheduler is gone, or somebody cancelled the points"
                ) from error
            except TimeoutError:
                # The worker that had the result died: another one runs the task again.
                if future.status == "error":
                    raise
                self._count()

    def _send_files(self, sent: Sent, outcome: Outcome) -> None:
        """Send a worker the files that it has not got, unless that was done in the meantime."""
        for digest in outcome.missing:
            if self.sent.get((outcome.worker, digest), 0) > sent.clock:
                continue
            try:
                send(self.client, outcome.worker, digest, Path(sent.task.files[digest]))
            except (OSError, TimeoutError, ValueError, KeyError):
                # The worker is gone; the task goes to another one.
                continue
            self.clock += 1
            self.sent[outcome.worker, digest] = self.clock


def send(client: Client, worker: str, digest: str, path: Path) -> None:
    """Send a file to a worker, in pieces.

    Raises
    ------
    OSError
        When the file cannot be read, or the worker is gone.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        offset = 0
        while True:
            data = file.read(PIECE)
            last = offset + len(data) >= size
            done: Mapping[str, object] = client.run(
                receive, digest, offset, data, last, workers=[worker]
            )
            if worker not in done:
                raise OSError(f"{worker} is gone")
            offset += len(data)
            if last or not data:
                return
