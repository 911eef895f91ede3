"""How well a fitted model forecasts a recording that it has not seen.

Two protocols. `free_run`: one open-loop forecast over the whole recording. `blocks`: the model sees
the recording up to the start of each block, then forecasts the block open loop. In both, inputs are
known in advance and an output is read only after it has been predicted.
"""

from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from gpssm import metrics
from gpssm.plumbing.validation import positive_int, series
from gpssm.posteriors.posterior import Forecast, States

NDArray = np.ndarray


class Fitted(Protocol):
    """What the fit of any method returns."""

    @property
    def output_dim(self) -> int: ...

    @property
    def input_dim(self) -> int: ...

    @property
    def end(self) -> States: ...

    def filter(self, outputs: Any, inputs: Any = None, *, state: States | None = None, seed: int = 0) -> States: ...

    def forecast(
        self, horizon: int, inputs: Any = None, *, state: States | None = None, num_paths: int = 500, seed: int = 0
    ) -> Forecast: ...


@dataclass(frozen=True)
class Scores:
    """Of forecasts against the truth, in the user's units; `nlpd` and `crps` per number."""

    rmse: float
    nlpd: float
    crps: float
    coverage90: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def score(samples: NDArray, truth: NDArray) -> Scores:
    """All scores of sample paths (p, h, dy) against what came (h, dy)."""
    return Scores(
        metrics.rmse(samples.mean(axis=0), truth),
        metrics.nlpd(samples, truth),
        metrics.crps(samples, truth),
        metrics.coverage(samples, truth, 0.9),
    )


def free_run(
    fitted: Fitted, length: int, inputs: Any = None, *, state: States | None = None, num_paths: int = 500, seed: int = 0
) -> NDArray:
    """Paths (p, length, dy) of one forecast from `state`, or from the end of the training recording."""
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
    """Paths (p, T, dy): every block of `length` samples forecast from what was seen before it."""
    positive_int("length", length)
    y, c = series(outputs, inputs, fitted.output_dim, fitted.input_dim)
    now = fitted.end if state is None else state
    parts = []
    for first in range(0, len(y), length):
        rows = slice(first, first + length)
        ahead = c[rows] if fitted.input_dim else None
        horizon = len(y[rows])
        parts.append(fitted.forecast(horizon, ahead, state=now, num_paths=num_paths, seed=seed + first).samples)
        if first + length < len(y):
            now = fitted.filter(y[rows], ahead, state=now, seed=seed + first)
    return np.concatenate(parts, axis=1)
