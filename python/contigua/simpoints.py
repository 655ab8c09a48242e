"""SimPoints: a few intervals of a program that stand for all of it.

Sherwood et al., "Automatically characterizing large scale program behavior", ASPLOS 2002; the rules
are those of SimPoint 3.2 (Hamerly et al., "SimPoint 3.0: faster and more flexible program phase
analysis", JILP 2005). Clusters are scikit-learn's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log, pi
from pathlib import Path
from typing import Any

from contigua import _engine
from contigua.errors import ContiguaError
from contigua.extras import needs
from contigua.regions import INTERVAL
from contigua.run_spec import ExecutionSpec, document

with needs("simpoints"):
    import numpy as np

#: Dimensions to which vectors are projected.
DIMENSIONS = 15
#: The fewest clusters are taken whose score is this far between the worst and the best.
THRESHOLD = 0.9
#: Times that each number of clusters is tried.
TRIES = 10
#: Instructions of an interval: more than any block has.
LEAST_INTERVAL = 1000
#: Variances below this are none: vectors add up to 1.
LEAST_VARIANCE = 1e-12


class SimPointError(ContiguaError):
    """A program of which no intervals can be chosen."""


@dataclass(frozen=True)
class Vectors:
    """Basic-block vectors of a program's intervals.

    Attributes
    ----------
    begins
        Where each interval begins in the other two, and where the last one ends.
    blocks
        Numbers of blocks, from 0.
    counts
        Instructions executed in each.
    interval
        Instructions of an interval.
    instructions
        Instructions of the program.
    exit_code
        Its exit status.
    """

    begins: np.ndarray[Any, np.dtype[np.uint64]]
    blocks: np.ndarray[Any, np.dtype[np.uint32]]
    counts: np.ndarray[Any, np.dtype[np.uint64]]
    interval: int
    instructions: int
    exit_code: int

    @property
    def whole(self) -> int:
        """Intervals, without a shorter last one."""
        return self.instructions // self.interval

    def lines(self) -> Iterator[str]:
        """Write each interval as SimPoint reads it (its *frequency vector file*)."""
        for begin, end in zip(self.begins[:-1], self.begins[1:], strict=True):
            row = zip(self.blocks[begin:end], self.counts[begin:end], strict=True)
            yield "T" + "".join(f":{block + 1}:{count} " for block, count in row) + "\n"


@dataclass(frozen=True)
class Point:
    """An interval that stands for others.

    Attributes
    ----------
    interval
        Its number, from 0.
    weight
        The share of all intervals that are like it.
    """

    interval: int
    weight: float


def block_vectors(
    command: Sequence[str] | None = None,
    *,
    trace: Path | None = None,
    interval: int = INTERVAL,
    seconds: float | None = None,
    root: Path | None = None,
) -> Vectors:
    """Run a program, or read its trace, and count which blocks each interval executes.

    ``root`` has the program's files, as :class:`~contigua.RunOptions` says.

    Raises
    ------
    EngineError
        When the program cannot be run, or the trace cannot be read.
    SimPointError
        When the program is shorter than an interval.
    """
    if interval < LEAST_INTERVAL:
        raise SimPointError(
            f"an interval needs at least {LEAST_INTERVAL} instructions, not {interval}"
        )
    execution: ExecutionSpec = {
        "command": None if command is None else list(command),
        "trace": trace,
        "seconds": seconds,
        "root": root,
    }
    found = _engine.block_vectors(interval, document(execution))
    (begins, blocks, counts), instructions, exit_code = found
    if instructions < interval:
        raise SimPointError(
            f"the program executed {instructions:,} instructions, fewer than an interval has "
            f"({interval:,}): give a shorter --interval"
        )
    return Vectors(
        np.frombuffer(begins, np.uint64),
        np.frombuffer(blocks, np.uint32),
        np.frombuffer(counts, np.uint64),
        interval,
        instructions,
        exit_code,
    )


def check_library() -> None:
    """Say how to get scikit-learn if it is not there.

    Raises
    ------
    MissingExtraError
        When it is not.
    """
    with needs("simpoints"):
        import sklearn  # noqa: F401


def choose(vectors: Vectors, most: int = 10, seed: int = 1) -> list[Point]:
    """Choose intervals that stand for the program, in its order.

    Parameters
    ----------
    vectors
        Of the program.
    most
        The most intervals.
    seed
        Seed of the projection and of the first clusters.

    Raises
    ------
    SimPointError
        When scikit-learn is not installed.
    """
    check_library()
    with needs("simpoints"):
        from sklearn.cluster import KMeans
        from threadpoolctl import threadpool_limits

    projected = _projected(vectors, seed)
    most = min(most, len(np.unique(projected, axis=0)))
    # The order in which threads add up would show in the last digits.
    with threadpool_limits(1):
        tried = [
            KMeans(count, n_init=TRIES, random_state=seed).fit(projected)
            for count in range(1, most + 1)
        ]
    scores = [_score(found, projected) for found in tried]
    enough = min(scores) + THRESHOLD * (max(scores) - min(scores))
    chosen = next(found for found, score in zip(tried, scores, strict=True) if score >= enough)
    points = []
    for cluster, center in enumerate(chosen.cluster_centers_):
        members = np.flatnonzero(chosen.labels_ == cluster)
        away = ((projected[members] - center) ** 2).sum(axis=1)
        points.append(Point(int(members[away.argmin()]), len(members) / len(projected)))
    return sorted(points, key=lambda point: point.interval)


def _projected(vectors: Vectors, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Make rows that add up to 1, and project them to a few dimensions."""
    with needs("simpoints"):
        from scipy.sparse import csr_matrix
        from sklearn.preprocessing import normalize
        from sklearn.random_projection import GaussianRandomProjection

    end = int(vectors.begins[vectors.whole])
    rows = csr_matrix(
        (
            vectors.counts[:end].astype(np.float64),
            vectors.blocks[:end].astype(np.int64),
            vectors.begins[: vectors.whole + 1].astype(np.int64),
        )
    )
    shares = normalize(rows, norm="l1")
    if shares.shape[1] <= DIMENSIONS:
        return np.asarray(shares.toarray())
    projection = GaussianRandomProjection(DIMENSIONS, random_state=seed)
    return np.asarray(projection.fit_transform(shares))


def _score(found: Any, rows: np.ndarray[Any, np.dtype[np.float64]]) -> float:  # noqa: ANN401
    """Score clusters (BIC; Pelleg and Moore, "X-means", ICML 2000)."""
    count, dimensions = rows.shape
    clusters = found.n_clusters
    variance = max(found.inertia_ / max(count - clusters, 1) / dimensions, LEAST_VARIANCE)
    sizes = np.bincount(found.labels_, minlength=clusters)
    likelihood = sum(int(size) * log(int(size) / count) for size in sizes if size)
    likelihood -= count * dimensions / 2 * log(2 * pi * variance)
    likelihood -= dimensions * (count - clusters) / 2
    parameters = clusters * (dimensions + 1)
    return float(likelihood - parameters / 2 * log(count))


def simpoints_text(points: Sequence[Point]) -> str:
    """Write intervals as SimPoint's ``-saveSimpoints``."""
    return "".join(f"{point.interval} {cluster}\n" for cluster, point in enumerate(points))


def weights_text(points: Sequence[Point]) -> str:
    """Write their weights as SimPoint's ``-saveSimpointWeights``."""
    return "".join(f"{point.weight:.6f} {cluster}\n" for cluster, point in enumerate(points))
