"""Placement policies in Python: ideas to try before somebody writes them in Rust.

A policy says which part of memory may serve which request; the engine does the rest, with the very
mechanism that the built-in placements have (docs/design/placement.md). Subclass :class:`Policy`,
whose rules are Linux's, override what shall be otherwise, and age a server under it::

    from contigua import AgeOptions, explore

    class Apart(explore.Policy):
        def verdict(self, home, request, candidate):
            if candidate.order >= explore.PAGEBLOCK_ORDER:
                return explore.Verdict.CLAIM
            return explore.Verdict.REFUSE

    server = explore.age(Apart(), AgeOptions(memory="512M", hours=0.2, load=2))

This is the slow path: each verdict is a call into Python, and ``home`` is asked for every request.
Use small servers and minutes of simulated time, and port what works to
``crates/frames/src/policies/``, where the methods have the same names (docs/how-to/new-policy.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from contigua import _engine
from contigua.ageing import AgedServer, AgeOptions
from contigua.errors import ContiguaError

#: Order of a pageblock, which is 2 MB: 2**9 frames of 4 KB.
PAGEBLOCK_ORDER = 9
#: Frames of a pageblock.
PAGEBLOCK_FRAMES = 1 << PAGEBLOCK_ORDER

#: Uses of memory that can be moved.
MOVABLE_USES = frozenset({"anonymous", "page_cache"})


class PolicyError(ContiguaError):
    """A policy gave an answer that is none; the message says which method and what it returned."""


class Kind(IntEnum):
    """Purpose of a pageblock's free frames: Linux's migrate types."""

    UNMOVABLE = 0
    """Allocations that stay where they are."""
    MOVABLE = 1
    """Allocations that can be moved."""
    RECLAIMABLE = 2
    """Kernel caches that can be dropped when memory is short."""


class Verdict(IntEnum):
    """Verdict on a free block of another kind."""

    REFUSE = 0
    """Leave it alone; smaller blocks are shown next."""
    BORROW = 1
    """Take what is needed from it; the pageblock keeps its kind."""
    BORROW_SMALLEST = 2
    """Take what is needed from the smallest block that has it; pageblocks keep their kinds."""
    CLAIM = 3
    """Take what is needed, and let the pageblock have the request's kind from now on."""


class Request(NamedTuple):
    """Request for a block.

    Attributes
    ----------
    order
        How much: 2**order frames of 4 KB, order 0 to 10.
    use
        What for: ``"anonymous"``, ``"page_cache"``, ``"page_table"``, ``"slab"``,
        ``"network_buffer"``, ``"file_system"`` or ``"kernel_other"``.
    reclaimable
        Whether the memory is reclaimable, although it does not move.
    long_lived
        Whether it will be in use for as long as the server runs.
    atomic
        Whether the requester cannot wait.
    """

    order: int
    use: str
    reclaimable: bool
    long_lived: bool
    atomic: bool

    @property
    def movable(self) -> bool:
        """Return whether the allocated block can be moved."""
        return self.use in MOVABLE_USES


class Candidate(NamedTuple):
    """A free block of another kind than the request's own, which has run out.

    Attributes
    ----------
    kind
        Kind of the pageblock that it lies in.
    order
        Its order.
    free, movable, unmovable
        Frames of its pageblock that are free, in use and movable, in use and not.
    """

    kind: Kind
    order: int
    free: int
    movable: int
    unmovable: int


class Policy:
    """A placement policy: verdicts, and Linux's rules where a subclass has no others.

    The engine shows each request; what a policy returns depends on its arguments alone if runs
    shall be repeatable. Any answer is safe, if not wise: memory never breaks. An exception ends the
    server's life and reaches whoever called :func:`age`.

    Examples
    --------
    >>> policy = Policy()
    >>> policy.home(Request(0, "slab", True, False, False)).name
    'RECLAIMABLE'
    >>> [kind.name for kind in policy.fallbacks(Kind.MOVABLE)]
    ['RECLAIMABLE', 'UNMOVABLE']
    """

    @property
    def name(self) -> str:
        """Return its name in reports; by default its class's name."""
        return type(self).__name__

    def home(self, request: Request) -> Kind:
        """Say which kind's free blocks serve a request first.

        A policy that does not override this is much faster: the engine then knows the answer.
        """
        if request.movable:
            return Kind.MOVABLE
        return Kind.RECLAIMABLE if request.reclaimable else Kind.UNMOVABLE

    def fallbacks(self, home: Kind) -> Sequence[Kind]:
        """Say where to look when these have nothing, in order (Linux's table ``fallbacks``)."""
        return _FALLBACKS[home]

    def verdict(self, home: Kind, request: Request, candidate: Candidate) -> Verdict:
        """Say what to do with what is found there; the largest blocks are shown first.

        Linux's ``can_steal_fallback`` and ``steal_suitable_fallback`` (``mm/page_alloc.c``, 5.12 to
        6.12).
        """
        if candidate.order >= PAGEBLOCK_ORDER:
            return Verdict.CLAIM
        # Below half a pageblock, only kinds that pollute are worth a pageblock of their own.
        if candidate.order < PAGEBLOCK_ORDER // 2 and home is Kind.MOVABLE:
            smaller = candidate.order > request.order
            return Verdict.BORROW_SMALLEST if smaller else Verdict.BORROW
        # Frames that would be at home in the pageblock after it has changed its kind.
        if home is Kind.MOVABLE:
            alike = candidate.movable
        else:
            alike = candidate.unmovable if candidate.kind is Kind.MOVABLE else 0
        enough = candidate.free + alike >= PAGEBLOCK_FRAMES // 2
        return Verdict.CLAIM if enough else Verdict.BORROW


_FALLBACKS = {
    Kind.UNMOVABLE: (Kind.RECLAIMABLE, Kind.MOVABLE),
    Kind.MOVABLE: (Kind.RECLAIMABLE, Kind.UNMOVABLE),
    Kind.RECLAIMABLE: (Kind.UNMOVABLE, Kind.MOVABLE),
}


def age(
    policy: Policy,
    options: AgeOptions | None = None,
    *,
    design: str = "linux-thp",
    progress: Callable[[float], None] | None = None,
) -> AgedServer:
    """Age a server whose memory is placed by a policy in Python.

    Parameters
    ----------
    policy
        Who gives the verdicts.
    options
        The history; by default ten minutes of a web server with 512 MB.
    design
        Name of a design, or path of its TOML file: everything but the placement.
    progress
        Called each simulated second with the part that is done, 0 to 1; may raise to stop.

    Returns
    -------
    AgedServer
        The same as :func:`contigua.age` returns. A snapshot of it can be looked at; a program's
        design has another placement, so no program runs on it.

    Raises
    ------
    PolicyError
        When a method returns what is no answer.
    PresetError
        When the design or profile does not exist.
    EngineError
        When the history cannot be simulated; the message says what to do.
    Exception
        Whatever the policy raises.
    """
    options = options or AgeOptions(memory="512M", hours=1 / 6)
    if not isinstance(policy, Policy):
        raise PolicyError(f"{policy!r} is no policy; subclass contigua.explore.Policy")
    spec = options.spec(design)
    seconds = 3600 * max(spec["hours"], 1e-9)

    def tick(now: float) -> None:
        if progress is not None:
            progress(min(now / seconds, 1.0))

    return AgedServer(_engine.age(spec, tick, _told(policy)))


def _told(policy: Policy) -> _engine.PolicySpec:
    """Return the policy as the engine asks it: numbers in, numbers out, answers checked."""
    kinds = tuple(Kind)

    def home(*request: Any) -> int:  # noqa: ANN401 - the attributes of a request
        return _checked(policy, "home", policy.home(Request(*request)), Kind)

    def fallbacks(number: int) -> list[int]:
        found = policy.fallbacks(kinds[number])
        if isinstance(found, str) or not isinstance(found, Sequence):
            raise PolicyError(f"{policy.name}.fallbacks returned {found!r}, not a list of kinds")
        if len(set(found)) < len(found):
            raise PolicyError(f"{policy.name}.fallbacks returned a kind twice: {found!r}")
        return [_checked(policy, "fallbacks", kind, Kind) for kind in found]

    def verdict(number: int, request: tuple[Any, ...], candidate: tuple[int, ...]) -> int:
        kind, *rest = candidate
        answer = policy.verdict(kinds[number], Request(*request), Candidate(kinds[kind], *rest))
        return _checked(policy, "verdict", answer, Verdict)

    overridden = type(policy).home is not Policy.home or "home" in vars(policy)
    return {
        "name": policy.name,
        "home": home if overridden else None,
        "fallbacks": fallbacks,
        "verdict": verdict,
    }


def _checked(policy: Policy, method: str, answer: object, wanted: type[IntEnum]) -> int:
    if not isinstance(answer, wanted):
        raise PolicyError(
            f"{policy.name}.{method} returned {answer!r}, which is no "
            f"contigua.explore.{wanted.__name__}"
        )
    return int(answer)
