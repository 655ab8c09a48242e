"""The native half: what is simulated goes in as TOML and JSON, reports come out as JSON.

Documents are made by :func:`contigua.run_spec.document`.
"""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import NotRequired, TypedDict

VERSION: str
SCHEMES: list[str]

class EngineError(Exception): ...
class NoSuchProgramError(EngineError): ...
class NotExecutableError(EngineError): ...

class AgeSpec(TypedDict):
    design_name: str
    design: str
    profile_name: str
    profile: str
    memory: str
    hours: float
    seed: int
    sample_seconds: float
    load: float
    kernel: float
    files: float
    daily: bool
    paranoid: bool
    gigantic_pages: NotRequired[int]
    nodes: NotRequired[int]

class PolicySpec(TypedDict):
    name: str
    home: Callable[..., int] | None
    fallbacks: Callable[[int], list[int]]
    verdict: Callable[..., int]

class AgedServer:
    samples: str
    report: str
    def memory_map(self, cell: str) -> tuple[int, int, list[str], bytes]: ...
    def save(self, path: str | PathLike[str]) -> None: ...

class HeapSpec(TypedDict):
    demand: Sequence[tuple[float, int]]
    seconds: float
    release_rate: int
    interval: float
    cache_interval: float
    schedule: float
    collapses: int
    sizes: Sequence[int]
    removal: str
    seed: int

class Output:
    def __init__(self, path: str | PathLike[str]) -> None: ...
    @staticmethod
    def check(path: str | PathLike[str]) -> None: ...
    @staticmethod
    def is_through(path: str | PathLike[str]) -> bool: ...
    @staticmethod
    def descriptor(path: str | PathLike[str]) -> int | None: ...
    def fileno(self) -> int: ...
    def keep(self) -> None: ...
    def discard(self) -> None: ...

class Load:
    def __init__(self) -> None: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...
    def is_pending(self) -> bool: ...

def run(
    document: bytes,
    progress: Callable[[list[tuple[int, int]]], None] | None = None,
    load: Load | None = None,
) -> tuple[list[str], int, list[str]]: ...
def trace_plan(trace: str | PathLike[str]) -> str: ...
def trace_info(
    trace: str | PathLike[str], trace_format: str
) -> list[tuple[str, Path, list[tuple[str, int]], list[int]]]: ...
def block_vectors(
    interval: int, execution: bytes
) -> tuple[tuple[bytes, bytes, bytes], int, int]: ...
def resolve_design(text: str, path: str) -> str: ...
def resolve_machine(text: str, path: str) -> str: ...
def resolve_run(run: bytes) -> str: ...
def resolve_profile(text: str, path: str) -> str: ...
def age(
    spec: AgeSpec,
    progress: Callable[[float], None] | None = None,
    policy: PolicySpec | None = None,
) -> AgedServer: ...
def load_snapshot(path: str | PathLike[str]) -> AgedServer: ...
def locate(
    file: str | PathLike[str], offsets: Sequence[int]
) -> list[tuple[str | None, tuple[str, int] | None, int | None]]: ...
def disassemble(
    file: str | PathLike[str], offsets: Sequence[int], context: int
) -> list[tuple[int, list[list[tuple[int, int, str]]]]]: ...
def build_id(file: str | PathLike[str]) -> bytes | None: ...
def schema(kind: str) -> str: ...
def emulator(architecture: str = "x86_64") -> str: ...
def emulator_options(architecture: str = "x86_64") -> list[str]: ...
def replay_heap(spec: HeapSpec, *, warmup: float = 0.0) -> str: ...
def heap_on_server(
    spec: HeapSpec,
    server: bytes,
    *,
    warmup: float = 0.0,
    reads: int = 0,
    progress: Callable[[float], None] | None = None,
) -> str: ...
def replay_requests(record: bytes, design: str, design_name: str) -> str: ...
def heap_spikes(
    base: int, highest: int, every: float, longest: float, seconds: float, seed: int
) -> list[tuple[float, int]]: ...
