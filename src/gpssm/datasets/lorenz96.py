"""Lorenz's 1996 model of a ring of 40 atmospheric cells: chaotic, and the usual test of ensemble filters.

    dx_i/dt = (x_{i+1} - x_{i-2}) x_{i-1} - x_i + 8,      i modulo 40

Time step, forcing and observations are those of Sakov and Oke (Tellus A, 2008): every cell is seen with unit
noise every 0.05 time units, about six hours of weather, and nothing but the start is random.
"""

from typing import Any

import numpy as np

from gpssm.datasets.series import Series, simulate

DIM, FORCING, STEP, OBS_NOISE = 40, 8.0, 0.05, 1.0
_SPIN_UP = 1000  # steps from near the unstable equilibrium onto the attractor


def _tendency(x: Any) -> Any:
    roll = x.__array_namespace__().roll
    return (roll(x, -1, axis=-1) - roll(x, 2, axis=-1)) * roll(x, 1, axis=-1) - x + FORCING


def lorenz96_function(x: Any, step: float = STEP) -> Any:
    """The state `step` time units after `x` (..., cells), by one step of Runge and Kutta; of NumPy or JAX arrays.

    >>> lorenz96_function(np.array([8.0, 8.0, 8.01, 8.0])).round(4).tolist()  # 8 everywhere would stay
    [7.9969, 8.0041, 8.01, 7.9985]
    """
    k1 = _tendency(x)
    k2 = _tendency(x + step / 2 * k1)
    k3 = _tendency(x + step / 2 * k2)
    k4 = _tendency(x + step * k3)
    return x + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def lorenz96(length: int = 1000, seed: int = 0) -> Series:
    """Simulate `length` steps on the attractor, `y_t = x_t + e_t` with e ~ N(0, I).

    Args:
        length: number of samples, `STEP` time units apart.
        seed: of the initial state and of e.

    Returns:
        The recording (length, 40) with its states.

    >>> lorenz96(length=20).outputs.shape
    (20, 40)
    """
    rng = np.random.default_rng(seed)
    x = FORCING + rng.normal(size=DIM)
    for _ in range(_SPIN_UP):
        x = lorenz96_function(x)
    return simulate(lorenz96_function, x, length, np.eye(DIM), OBS_NOISE, rng).series
