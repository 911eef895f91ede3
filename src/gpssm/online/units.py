"""Where the data live and on what scale: of the first samples of a stream, and of all states so far."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.models.emission import FunctionEmission, LinearEmission

NDArray = np.ndarray
Spread = tuple[Float[Array, " dx"], Float[Array, " dx"]]
"""Running mean and variance of the states."""


class Units(NamedTuple):
    """In the user's units, d = dx + dc; k states have a transition that is learned."""

    emission: LinearEmission | FunctionEmission
    steps: Float[NDArray, " k"]
    """Mean square of one step of every state whose transition is learned: the unit of f(x) - x and of Q."""
    shift: Float[NDArray, " d"]
    scale: Float[NDArray, " d"]
    """Mean and spread of the states and inputs: the unit of length scales."""
    obs_noise: Float[NDArray, " dy"]
    """Variances as given, or roughly."""

    def linear_prior(self, state_dim: int, strength: float) -> Float[NDArray, "f f"]:
        """Covariance of the weights of `[(s - shift) / scale, 1]` in a row of W, for a step of size one.

        A state that is one unit from the centre, an input likewise, moves f(x) - x by `strength` steps. The past
        counts by its differences, x_{t-1} - x_{t-2} and so on, which are steps themselves: in other coordinates
        a system that goes on as it went would need weights many steps large.
        """
        learned = len(self.steps)
        basis = np.eye(len(self.scale) + 1)
        for past in range(learned, state_dim):
            per_step = self.scale[past] / np.sqrt(self.steps[past % learned])
            basis[past, past], basis[past - learned, past] = -per_step, per_step
        return strength**2 * basis @ basis.T


def running_spread(spread: Spread, x: Float[Array, " dx"], count: Array, counts: Array) -> Spread:
    """With one more state, if it counts; an outlier moves them by ten standard deviations at most."""
    mean, variance = spread
    share = jnp.where(counts, 1.0 / (count + 10.0), 0.0)
    deviation = jnp.clip(x - mean, -10 * jnp.sqrt(variance), 10 * jnp.sqrt(variance))
    return mean + share * deviation, (1 - share) * (variance + share * deviation**2)


def bounded_lengthscale(
    log_lengthscale: Float[Array, " d"], variance: Float[Array, " dx"], scale: Float[Array, " d"]
) -> Float[Array, " d"]:
    """Limits far from any sensible value, so that a constant stretch drives nothing to zero or infinity.

    `variance` is that of the states so far, `scale` the first standard deviations of states and inputs.
    """
    dx, scale = len(variance), jnp.log(scale)
    span = jnp.concatenate([jnp.maximum(0.5 * jnp.log(variance), scale[:dx]), scale[dx:]])
    return jnp.clip(log_lengthscale, span - 1.5, span + 3.0)


def mean_square_steps(rows: NDArray) -> NDArray:
    """Mean square of the differences of each column of `rows` (t, c); ones if there is a single row."""
    return np.mean(np.diff(rows, axis=0) ** 2, axis=0) if len(rows) > 1 else np.ones(rows.shape[1])


def residual_noise(rows: NDArray, hat: NDArray) -> NDArray:
    """Variance of each channel about the state that explains it best; a quarter of its steps where there is none."""
    left = 1.0 - np.diagonal(hat)  # share of the noise that is not explained away
    residual = np.mean((rows - rows @ hat.T) ** 2, axis=0)
    steps = mean_square_steps(rows)
    noise = np.where(left > 0.2, residual / np.maximum(left, 0.2), 0.25 * steps)
    typical = np.mean(steps) if np.mean(steps) > 0 else 1.0
    return np.maximum(noise, 1e-8 * typical)
