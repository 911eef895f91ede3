"""The NASCAR track of the paper's Section VI.D: a recurrent switching linear system seen through ten channels."""

import numpy as np

from gpssm.datasets.series import Simulated, simulate

NDArray = np.ndarray

PROCESS_NOISE, OBS_NOISE = 1e-3, 0.1**2
_RANGE = np.array([10.0, 8.0])  # of x_0


def _rotation(angle: float) -> NDArray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


# Two turns around (2, 0) and (-2, 0), and two straights.
_A = np.stack([_rotation(-np.pi / 24), _rotation(-np.pi / 48), np.eye(2), np.eye(2)])
_B = np.stack([(np.eye(2) - _A[0]) @ [2.0, 0.0], (np.eye(2) - _A[1]) @ [-2.0, 0.0], [0.1, 0.0], [-0.35, 0.0]])


Nascar = Simulated


def nascar_function(x: NDArray | list[list[float]]) -> NDArray:
    """The next state without noise: a row (n, 2) for every row of `x` (n, 2).

    >>> nascar_function([[0.0, 1.0], [0.0, -1.0]]).round(2).tolist()
    [[0.1, 1.0], [-0.35, -1.0]]
    """
    x = np.asarray(x, dtype=float)
    gates = np.stack([100 * x[:, 0] - 200, -100 * x[:, 0] - 200, 100 * x[:, 1]], axis=1)
    open_ = 1.0 / (1.0 + np.exp(-np.clip(gates, -500, 500)))
    left = np.cumprod(1.0 - open_, axis=1)  # stick-breaking: what the gates so far have left over
    weights = np.concatenate([open_[:, :1], left[:, :-1] * open_[:, 1:], left[:, -1:]], axis=1)
    return np.einsum("nk,nkd->nd", weights, np.einsum("kde,ne->nkd", _A, x) + _B)


def nascar(length: int = 2500, seed: int = 0) -> Nascar:
    """Simulate two states, seen through ten channels; `x_0 ~ 10 N(0, I)`, clipped to `|x_1| <= 10`, `|x_2| <= 8`.

    Args:
        length: number of samples.
        seed: of the simulation.

    Returns:
        The recording with its states, and the matrix C (10, 2), uniform in [-0.5, 0.5]. The variances of the process
        noise and of the observation noise are `PROCESS_NOISE` and `OBS_NOISE`.

    >>> data = nascar(length=50)
    >>> data.series.outputs.shape, data.series.states.shape, data.emission.shape
    ((50, 10), (50, 2), (10, 2))
    """
    rng = np.random.default_rng(seed)
    emission = rng.uniform(-0.5, 0.5, (10, 2))
    initial = np.clip(10.0 * rng.normal(size=2), -_RANGE, _RANGE)

    def step(x: NDArray) -> NDArray:
        return nascar_function(x[None])[0] + np.sqrt(PROCESS_NOISE) * rng.normal(size=2)

    return simulate(step, initial, length, emission, OBS_NOISE, rng)
