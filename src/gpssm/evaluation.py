"""How well a fitted model forecasts a recording that it has not seen.

Two protocols. `free_run`: one open-loop forecast over the whole recording. `blocks`: the model sees
the recording up to the start of each block, then forecasts the block open loop. In both, inputs are
known in advance and an output is read only after it has been predicted.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gpssm import metrics
from gpssm.plumbing.validation import positive_int, series
from gpssm.posteriors.calibration import rolling
from gpssm.posteriors.fitted import Fitted
from gpssm.posteriors.states import States

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
    positive_int("length", length)
    y, c = series(outputs, inputs, fitted.output_dim, fitted.input_dim)
    starts = range(0, len(y), length)
    ahead = c if fitted.input_dim else None
    found = rolling(fitted, y, ahead, starts, length, state=state, num_paths=num_paths, seed=seed)
    return np.concatenate([forecast.samples for _, forecast in found], axis=1)
