"""A browser. It brings a malloc of its own, PartitionAlloc, which serves the names `malloc`, `free`
and so on to every library of the process; ours is loaded beside it and must not get in the way.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from trial import DATA, Program, Trial

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=700,700",
    "--timeout=100000",
]


def colors(picture: Path) -> int:
    """Return the number of colors of a PNG picture of 8 bits a channel, of rows as filtered."""
    data = picture.read_bytes()
    at, packed, channels, width = 8, b"", 3, 0
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        part = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, channels = struct.unpack_from(">I", part)[0], {2: 3, 6: 4}[part[9]]
        elif kind == b"IDAT":
            packed += part
        at += 12 + length
    rows = zlib.decompress(packed)
    line = 1 + width * channels
    return len(
        {
            rows[i : i + channels]
            for start in range(1, len(rows), line)
            for i in range(start, min(start + line - 1, len(rows)), channels)
        }
    )


@contextlib.contextmanager
def served() -> Iterator[str]:
    """Serve the page, and a picture in it that only comes when the page has finished its work."""
    done = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/wait":
                done.wait(90)
                self.send_error(404)
                return
            done.clear()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write((DATA / "page.html").read_bytes())

        def do_POST(self) -> None:
            done.set()
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def chromium(trial: Trial) -> None:
    """A page that computes, draws, starts workers and frames: its text, picture and print."""
    profile = f"--user-data-dir={trial.directory / 'profile'}"
    picture, book = trial.directory / "picture.png", trial.directory / "page.pdf"
    with served() as page:

        def run(action: str) -> str:
            name = action.partition("=")[0]
            return trial.check(name, "chromium", *FLAGS, profile, action, page).out

        found = re.search(r'<pre id="out">(.*?)</pre>', run("--dump-dom"), re.DOTALL)
        trial.same("text", found and found[1])
        trial.same("all of it", found is not None and found[1].endswith("done\n"))
        run(f"--screenshot={picture}")
        drawn = picture.exists() and colors(picture) > 1000
        trial.same("drawn", drawn)
        digest = hashlib.sha256(picture.read_bytes() if drawn else b"").hexdigest()
        trial.same("picture", digest[:16])
        run(f"--print-to-pdf={book}")
        trial.same("printed", book.exists() and book.read_bytes().startswith(b"%PDF"))


PROGRAMS = [
    Program(
        "chromium",
        "`--headless` on a page with JavaScript, a canvas, workers, streams and frames:"
        " its text, screenshot and PDF",
        chromium,
        (("chromium", "chromium"),),
        ("chromium", "--version"),
    ),
]
