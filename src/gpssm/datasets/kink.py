"""The kink system of the paper's Section VI.B, learned from noisy observations of its state."""

import numpy as np

from gpssm.datasets.series import Series
from gpssm.errors import InvalidInput
from gpssm.plumbing.validation import positive_int

NDArray = np.ndarray


def kink_function(x: NDArray | float | list[float]) -> NDArray:
    """`f(x) = 0.8 + (x + 0.2) (1 - 5 / (1 + exp(-2x)))`, for every number of `x`, in its shape.

    >>> kink_function([-1.0, 0.0, 1.0]).round(3).tolist()
    [0.477, 0.5, -3.285]
    """
    x = np.asarray(x, dtype=float)
    return np.asarray(0.8 + (x + 0.2) * (1.0 - 5.0 / (1.0 + np.exp(-2.0 * x))))


def kink(length: int = 600, process_noise: float = 0.05, obs_noise: float = 0.08, seed: int = 0) -> Series:
    """Simulate `x_t = f(x_{t-1}) + v`, `y_t = x_t + e`.

    Args:
        length: number of samples.
        process_noise: variance of v. The paper's text says 0.05; its code uses 0.05 squared.
        obs_noise: variance of e.
        seed: of the simulation.

    Returns:
        The recording (length, 1) with its states.

    >>> data = kink(length=50)
    >>> data.outputs.shape, data.inputs, data.states.shape
    ((50, 1), None, (50, 1))
    """
    positive_int("length", length)
    for name, value in (("process_noise", process_noise), ("obs_noise", obs_noise)):
        if not np.isfinite(value) or value < 0:
            raise InvalidInput(f"{name}: expected a variance of at least 0, got {value!r}.")
    rng = np.random.default_rng(seed)
    x = rng.normal()
    states = np.empty((length, 1))
    noise = rng.normal(size=(length, 2)) * np.sqrt([process_noise, obs_noise])
    for t in range(length):
        x = float(kink_function(x)) + noise[t, 0]
        states[t] = x
    return Series(outputs=states + noise[:, 1:], inputs=None, states=states)
