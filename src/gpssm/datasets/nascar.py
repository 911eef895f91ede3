"""The NASCAR track of the paper's Section VI.D: a recurrent switching linear system seen through ten channels."""

from typing import NamedTuple

import numpy as np

from gpssm.datasets.series import Series
from gpssm.plumbing.validation import positive_int

NDArray = np.ndarray

PROCESS_NOISE, OBS_NOISE = 1e-3, 0.1**2
_RANGE = np.array([10.0, 8.0])  # of x_0


def _rotation(angle: float) -> NDArray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


# Two turns around (2, 0) and (-2, 0), and two straights.
_A = np.stack([_rotation(-np.pi / 24), _rotation(-np.pi / 48), np.eye(2), np.eye(2)])
_B = np.stack([(np.eye(2) - _A[0]) @ [2.0, 0.0], (np.eye(2) - _A[1]) @ [-2.0, 0.0], [0.1, 0.0], [-0.35, 0.0]])


class Nascar(NamedTuple):
    """The recording and the matrix C (10, 2) through which the state is seen."""

    series: Series
    emission: NDArray


def nascar_function(x: NDArray) -> NDArray:
    """The noise-free next state of the rows of `x` (n, 2)."""
    x = np.asarray(x, dtype=float)
    gates = np.stack([100 * x[:, 0] - 200, -100 * x[:, 0] - 200, 100 * x[:, 1]], axis=1)
    open_ = 1.0 / (1.0 + np.exp(-np.clip(gates, -500, 500)))
    left = np.cumprod(1.0 - open_, axis=1)  # stick-breaking: what the gates so far have left over
    weights = np.concatenate([open_[:, :1], left[:, :-1] * open_[:, 1:], left[:, -1:]], axis=1)
    return np.einsum("nk,nkd->nd", weights, np.einsum("kde,ne->nkd", _A, x) + _B)


def nascar(length: int = 2500, seed: int = 0) -> Nascar:
    """Simulate; x_0 ~ 10 N(0, I), clipped to |x_1| <= 10, |x_2| <= 8."""
    positive_int("length", length)
    rng = np.random.default_rng(seed)
    emission = rng.uniform(-0.5, 0.5, (10, 2))
    x = np.clip(10.0 * rng.normal(size=2), -_RANGE, _RANGE)
    states = np.empty((length, 2))
    for t in range(length):
        x = nascar_function(x[None])[0] + np.sqrt(PROCESS_NOISE) * rng.normal(size=2)
        states[t] = x
    outputs = states @ emission.T + np.sqrt(OBS_NOISE) * rng.normal(size=(length, 10))
    return Nascar(Series(outputs, None, states), emission)
