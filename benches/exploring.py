"""Slow-down of a server whose placement is written in Python: `python benches/exploring.py`.

Prints the processor time of one server under Linux's rules: the engine's own, Python's where Python
is asked only for fallbacks and verdicts, and Python's for every request.
"""

import time

import contigua
from contigua import AgeOptions, explore

HISTORY = AgeOptions(memory="512M", hours=0.2, load=2)


class Every(explore.Policy):
    def home(self, request: explore.Request) -> explore.Kind:
        return super().home(request)


def main() -> None:
    ways = {
        "Rust": lambda: contigua.age("linux-thp", HISTORY),
        "Python, home from Rust": lambda: explore.age(explore.Policy(), HISTORY),
        "Python": lambda: explore.age(Every(), HISTORY),
    }
    native = None
    for name, live in ways.items():
        start = time.process_time()
        server = live()
        seconds = time.process_time() - start
        native = native or seconds
        allocations = server.final["events"]["allocations"]
        print(f"{name}: {seconds:.2f} s, {seconds / native:.1f} times, {allocations:,} allocations")


if __name__ == "__main__":
    main()
