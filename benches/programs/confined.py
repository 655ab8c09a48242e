"""Programs that forbid themselves system calls once they have started."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from pathlib import Path

from trial import Program, Trial, free_port

CONFIGURATION = """
Port {port}
ListenAddress 127.0.0.1
HostKey {directory}/host
AuthorizedKeysFile {directory}/known
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile none
MaxStartups 100
Subsystem sftp internal-sftp
"""


def openssh(trial: Trial) -> None:
    """Logins, commands and file transfers; its sandbox before a login lives for a while, too."""
    directory = trial.directory
    # Where the server's confined part lives; the package's service makes it.
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    port = free_port()
    for name in ("host", "user"):
        trial.check(f"key of {name}", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", name)
    (directory / "known").write_text((directory / "user.pub").read_text())
    (directory / "sshd_config").write_text(CONFIGURATION.format(port=port, directory=directory))
    common = ["-i", "user", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=hosts"]
    common += ["-o", "LogLevel=ERROR", "-F", "none"]
    at = "root@127.0.0.1"
    with trial.server(
        "/usr/sbin/sshd", "-D", "-e", "-f", directory / "sshd_config", port=port
    ) as server:
        for _ in range(5):
            done = trial.check(
                "a command", "ssh", *common, "-p", str(port), at, "seq 20000 | md5sum"
            )
            trial.same("its output", done.out)
        done = trial.check(
            "a stream",
            "ssh",
            *common,
            "-C",
            "-p",
            str(port),
            at,
            "cat | wc -c",
            text="x" * 3_000_000,
        )
        trial.same("its length", done.out.strip())
        (directory / "file").write_bytes(bytes(range(256)) * 20_000)
        trial.check("scp", "scp", "-q", *common, "-P", str(port), "file", f"{at}:{directory}/copy")
        trial.same(
            "the copy", (directory / "copy").read_bytes() == (directory / "file").read_bytes()
        )
        for wait in (0.2, 1.5, 2.5):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as one:
                banner = one.recv(100)
                one.sendall(b"SSH-2.0-patient\r\n")
                time.sleep(wait)
                one.setblocking(False)
                # Closed means that the server's part behind it ended.
                answer = b"?"
                with contextlib.suppress(BlockingIOError):
                    while answer:
                        answer = one.recv(4096)
                trial.same(f"a patient client after {wait} s", (banner[:8], bool(answer)))
        trial.same("sshd ends", server.stop())
        log = server.log.read_text(errors="replace")
        trial.same("complaints", re.findall(r"fatal:.*|.*signal.*", log))


TEXT = Path("/usr/share/common-licenses/GPL-3")


def pages(trial: Trial) -> None:
    """Manual pages and file types: libseccomp confines what reads them."""
    for page in ("bash", "gcc", "perlfunc", "tar"):
        done = trial.run("man", "-P", "cat", "-E", "UTF-8", page, more={"MANWIDTH": "80"})
        trial.same(f"man {page}", (done.code, len(done.out), done.err))
    files = sorted(Path("/usr/bin").iterdir())[:300]
    done = trial.check("file", "file", "-z", TEXT, *files)
    trial.same("types", done.out)


PROGRAMS = [
    Program(
        "openssh",
        "logins, a compressed stream, `scp`; its confined part living for 2.5 s",
        openssh,
        (("/usr/sbin/sshd", "openssh-server"), ("ssh", "openssh-client")),
        ("ssh", "-V"),
        server=True,
    ),
    Program(
        "man-file",
        "four pages; the types of 300 files: both confine themselves",
        pages,
        (("man", "man-db"), ("file", "file")),
        ("man", "--version"),
    ),
]
