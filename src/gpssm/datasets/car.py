"""The linear Gaussian car of the paper's Section VI.A: position and velocity in the plane, all seen with noise."""

import numpy as np

from gpssm.datasets.series import Simulated, simulate

STEP, DIFFUSION, OBS_NOISE = 0.1, 1.0, 0.5**2
TRANSITION = np.eye(4) + STEP * np.eye(4, k=2)
PROCESS_NOISE = DIFFUSION * np.kron([[STEP**3 / 3, STEP**2 / 2], [STEP**2 / 2, STEP]], np.eye(2))
INITIAL_STATE = np.array([0.0, 0.0, 1.0, -1.0])

Car = Simulated


def car(length: int = 1000, random_emission: bool = False, seed: int = 0) -> Car:
    """Simulate `x_t = H x_{t-1} + v`, `y_t = C x_t + e` with four states and four outputs.

    Args:
        length: number of samples, `STEP` seconds apart.
        random_emission: C uniform in [-0.5, 0.5]; otherwise the identity.
        seed: of the simulation.

    Returns:
        The recording with its states (positions, then velocities), and C (4, 4). The covariance of v is
        `PROCESS_NOISE`, the variance of e `OBS_NOISE`.

    >>> data = car(length=50)
    >>> data.series.outputs.shape, data.series.states.shape, data.emission.shape
    ((50, 4), (50, 4), (4, 4))
    """
    rng = np.random.default_rng(seed)
    emission = rng.uniform(-0.5, 0.5, (4, 4)) if random_emission else np.eye(4)
    factor = np.linalg.cholesky(PROCESS_NOISE)
    return simulate(
        lambda x: TRANSITION @ x + factor @ rng.normal(size=4), INITIAL_STATE, length, emission, OBS_NOISE, rng
    )
