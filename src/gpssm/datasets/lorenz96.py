"""Lorenz's 1996 model of a ring of 40 atmospheric cells: chaotic, and the usual test of ensemble filters.

    dx_i/dt = (x_{i+1} - x_{i-2}) x_{i-1} - x_i + 8,      i modulo 40

Time step, forcing and observations are those of Sakov and Oke (Tellus A, 2008): every cell is seen with unit
noise every 0.05 time units, about six hours of weather, and nothing but the start is random.
"""

from typing import Any

import numpy as np

from gpssm.datasets.series import Series
from gpssm.plumbing.validation import positive_int

DIM, FORCING, STEP, OBS_NOISE = 40, 8.0, 0.05, 1.0
_SPIN_UP = 1000  # steps from near the unstable equilibrium onto the attractor


def _tendency(x: Any) -> Any:
    roll = x.__array_namespace__().roll
    return (roll(x, -1, axis=-1) - roll(x, 2, axis=-1)) * roll(x, 1, axis=-1) - x + FORCING


def lorenz96_function(x: Any, step: float = STEP) -> Any:
    """The state `step` time units after `x` (..., cells), by one step of Runge and Kutta; of NumPy or JAX arrays."""
    k1 = _tendency(x)
    k2 = _tendency(x + step / 2 * k1)
    k3 = _tendency(x + step / 2 * k2)
    k4 = _tendency(x + step * k3)
    return x + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def lorenz96(length: int = 1000, seed: int = 0) -> Series:
    """Simulate `length` steps on the attractor, `y_t = x_t + e_t` with e ~ N(0, I)."""
    positive_int("length", length)
    rng = np.random.default_rng(seed)
    x = FORCING + rng.normal(size=DIM)
    states = np.empty((length, DIM))
    for t in range(-_SPIN_UP, length):
        x = lorenz96_function(x)
        if t >= 0:
            states[t] = x
    return Series(states + np.sqrt(OBS_NOISE) * rng.normal(size=states.shape), None, states)
