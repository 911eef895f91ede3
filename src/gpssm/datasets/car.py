"""The linear Gaussian car of the paper's Section VI.A: position and velocity in the plane, all seen with noise."""

from typing import NamedTuple

import numpy as np

from gpssm.datasets.series import Series
from gpssm.plumbing.validation import positive_int

NDArray = np.ndarray

STEP, DIFFUSION, OBS_NOISE = 0.1, 1.0, 0.5**2
TRANSITION = np.eye(4) + STEP * np.eye(4, k=2)
PROCESS_NOISE = DIFFUSION * np.kron([[STEP**3 / 3, STEP**2 / 2], [STEP**2 / 2, STEP]], np.eye(2))
INITIAL_STATE = np.array([0.0, 0.0, 1.0, -1.0])


class Car(NamedTuple):
    """The recording and the matrix C (4, 4) through which the state is seen."""

    series: Series
    emission: NDArray


def car(length: int = 1000, random_emission: bool = False, seed: int = 0) -> Car:
    """Simulate `x_t = H x_{t-1} + v`, `y_t = C x_t + e`, with C the identity or uniform in [-0.5, 0.5]."""
    positive_int("length", length)
    rng = np.random.default_rng(seed)
    emission = rng.uniform(-0.5, 0.5, (4, 4)) if random_emission else np.eye(4)
    factor = np.linalg.cholesky(PROCESS_NOISE)
    x, states = INITIAL_STATE, np.empty((length, 4))
    for t in range(length):
        x = TRANSITION @ x + factor @ rng.normal(size=4)
        states[t] = x
    outputs = states @ emission.T + np.sqrt(OBS_NOISE) * rng.normal(size=(length, 4))
    return Car(Series(outputs, None, states), emission)
