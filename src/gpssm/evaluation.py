"""How well a fitted model forecasts a recording that it has not seen.

Two protocols. `free_run`: one open-loop forecast over the whole recording. `blocks`: the model sees
the recording up to the start of each block, then forecasts the block open loop. In both, inputs are
known in advance and an output is read only after it has been predicted.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, astuple, dataclass
from typing import Any, NamedTuple

import numpy as np

from gpssm import metrics
from gpssm.errors import InvalidInput
from gpssm.plumbing.validation import positive_int
from gpssm.posteriors.calibration import rolling
from gpssm.posteriors.fitted import Fitted
from gpssm.posteriors.states import States, first_not_finite

NDArray = np.ndarray


@dataclass(frozen=True)
class Scores:
    """Of forecasts against the truth, over all numbers observed; smaller is better but for the coverage.

    >>> Scores(rmse=0.5, nlpd=0.7, crps=0.3, coverage90=0.91).as_dict()["crps"]
    0.3
    """

    rmse: float
    """Root mean square error of the forecast mean, in the unit of the outputs."""
    nlpd: float
    """Negative log predictive density in nats, per number."""
    crps: float
    """Continuous ranked probability score, in the unit of the outputs."""
    coverage90: float
    """Share of the numbers inside the central 90% band."""

    def as_dict(self) -> dict[str, float]:
        """The scores by name."""
        return asdict(self)


DIVERGED = Scores(rmse=math.inf, nlpd=math.inf, crps=math.inf, coverage90=math.nan)
"""Of paths that have diverged."""


def score(samples: NDArray, truth: NDArray) -> Scores:
    """All scores of sample paths.

    Args:
        samples: (p, h, dy) paths, as in `Forecast.samples`.
        truth: (h, dy) outputs observed, NaN where one is missing.

    >>> found = score(np.array([[[0.0], [2.0]], [[1.0], [3.0]], [[2.0], [4.0]]]), np.array([[1.0], [2.0]]))
    >>> round(found.rmse, 3), round(found.crps, 3), found.coverage90
    (0.707, 0.167, 1.0)
    """
    return Scores(
        metrics.rmse(samples.mean(axis=0), truth),
        metrics.nlpd(samples, truth),
        metrics.crps(samples, truth),
        metrics.coverage(samples, truth, 0.9),
    )


class Scored(NamedTuple):
    """Of a forecast that was made in pieces, none of which was kept.

    >>> steps = np.array([[[0.0], [2.0]], [[1.0], [3.0]], [[2.0], [4.0]]])
    >>> found = Scored.of([steps[:, :1], steps[:, 1:]], np.array([[1.0], [2.0]]))
    >>> round(found.scores.rmse, 3), found.diverged
    (0.707, None)
    """

    scores: Scores
    """`DIVERGED` if it has."""
    diverged: int | None
    """The first step, from 1, of which there is no error: paths are infinite, or their squares are."""

    @classmethod
    def of(cls, pieces: Iterable[NDArray], truth: NDArray) -> "Scored":
        """The scores of paths (p, h, dy) that come in `pieces`, one after the other, for all `truth` (h, dy)."""
        found, counts, done = [], [], 0
        for piece in _together(pieces):
            y = truth[done : done + piece.shape[1]]
            if (step := without_error(piece)) is not None:
                return cls(DIVERGED, done + step)
            if numbers := int(np.sum(~np.isnan(y))):
                found.append(astuple(score(piece, y)))
                counts.append(numbers)
            done += len(y)
        if not found:
            raise InvalidInput("outputs: hold no number to score; expected at least one.")
        shares = np.array(counts) / sum(counts)
        rmse, *others = np.array(found).T
        return cls(Scores(math.sqrt(float(shares @ rmse**2)), *(float(shares @ other) for other in others)), None)


def without_error(samples: NDArray) -> int | None:
    """The first step, from 1, at which `samples` (p, h, dy) are infinite, or their squares are; None if there is none.

    >>> without_error(np.array([[[1.0], [1e200]], [[1.0], [1.0]]]))
    2
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return first_not_finite(np.square(samples).sum(axis=0))


_STEPS = 1024  # that are scored at once: more fill the memory, each by itself takes longer


def _together(pieces: Iterable[NDArray]) -> Iterator[NDArray]:
    """Pieces of paths, so many after the other put together that there are some steps."""
    waiting: list[NDArray] = []
    for piece in pieces:
        waiting.append(piece)
        if sum(each.shape[1] for each in waiting) >= _STEPS:
            yield np.concatenate(waiting, axis=1)
            waiting = []
    if waiting:
        yield np.concatenate(waiting, axis=1)


def free_run(
    fitted: Fitted, length: int, inputs: Any = None, *, state: States | None = None, num_paths: int = 500, seed: int = 0
) -> NDArray:
    """One open-loop forecast.

    Args:
        fitted: what a fit returned.
        length: number of steps.
        inputs: (length, dc), if the model has any.
        state: result of `filter` before the first step; the end of the training recording by default.
        num_paths: number of paths.
        seed: of the draws.

    Returns:
        Paths (num_paths, length, dy), observation noise included.

    >>> from gpssm import LastValue
    >>> free_run(LastValue().fit(np.array([[1.0], [2.0], [2.0]])), 3, num_paths=10).shape
    (10, 3, 1)
    """
    return fitted.forecast(length, inputs, state=state, num_paths=num_paths, seed=seed).samples


def score_free_run(
    fitted: Fitted,
    outputs: NDArray,
    inputs: Any = None,
    *,
    state: States | None = None,
    num_paths: int = 500,
    seed: int = 0,
) -> Scored:
    """The scores of what `free_run` returns, of which a few steps at a time are kept.

    Args:
        fitted: the model.
        outputs: (T, dy) what was observed, NaN where a value is missing.
        inputs: (T, dc), if the model has any.
        state: to start from; the end of the training recording by default.
        num_paths: number of sample paths.
        seed: of the draws.

    >>> from gpssm import LastValue
    >>> score_free_run(LastValue().fit(np.array([[1.0], [2.0], [2.0]])), np.array([[2.0], [3.0]])).diverged is None
    True
    """
    c = fitted.future(len(outputs), inputs, state)
    pieces = fitted.pieces(c, state=state, num_paths=num_paths, seed=seed)
    return Scored.of((piece.samples for piece in pieces), outputs)


def blocks(
    fitted: Fitted,
    outputs: Any,
    inputs: Any = None,
    *,
    length: int = 50,
    state: States | None = None,
    num_paths: int = 500,
    seed: int = 0,
) -> NDArray:
    """Forecasts of every block of `length` samples from what was observed before it.

    Args:
        fitted: what a fit returned.
        outputs: (T, dy), NaN where a value is missing.
        inputs: (T, dc), if the model has any.
        length: samples in a block.
        state: result of `filter` before the first sample; the end of the training recording by default.
        num_paths: number of paths.
        seed: of the draws.

    Returns:
        Paths (num_paths, T, dy), observation noise included.

    >>> from gpssm import ARX
    >>> y = np.sin(0.3 * np.arange(150))[:, None]
    >>> paths = blocks(ARX(order=2).fit(y[:100]), y[100:], length=20, num_paths=50)
    >>> paths.shape, score(paths, y[100:]).rmse < 0.01
    ((50, 50, 1), True)
    """
    return np.concatenate(list(_blocks(fitted, outputs, inputs, length, state, num_paths, seed)), axis=1)


def score_blocks(
    fitted: Fitted,
    outputs: NDArray,
    inputs: Any = None,
    *,
    length: int = 50,
    state: States | None = None,
    num_paths: int = 500,
    seed: int = 0,
) -> Scored:
    """The scores of what `blocks` returns, of which a few are kept at a time.

    Args:
        fitted: the model.
        outputs: (T, dy) what was observed, NaN where a value is missing.
        inputs: (T, dc), if the model has any.
        length: samples in a block.
        state: to start from; the end of the training recording by default.
        num_paths: number of sample paths.
        seed: of the draws.

    >>> from gpssm import ARX
    >>> y = np.sin(0.3 * np.arange(150))[:, None]
    >>> score_blocks(ARX(order=2).fit(y[:100]), y[100:], length=20, num_paths=50).scores.rmse < 0.01
    True
    """
    return Scored.of(_blocks(fitted, outputs, inputs, length, state, num_paths, seed), outputs)


def _blocks(
    fitted: Fitted, outputs: Any, inputs: Any, length: int, state: States | None, num_paths: int, seed: int
) -> Iterator[NDArray]:
    """Paths of one block after the other."""
    positive_int("length", length)
    now = fitted.end if state is None else state
    y, c, _ = fitted.checked(outputs, inputs, now)
    found = rolling(fitted, y, c, range(0, len(y), length), length, state=now, num_paths=num_paths, seed=seed)
    return (forecast.samples for _, forecast in found)
