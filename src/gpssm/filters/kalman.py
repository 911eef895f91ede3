"""The exact Kalman filter and Rauch-Tung-Striebel smoother of a linear Gaussian system.

    x_t = A x_{t-1} + b_t + v_t,  v_t ~ N(0, Q)        y_t = C x_t + d + e_t,  e_t ~ N(0, R)

Pure functions of arrays. `b_t` holds what known inputs contribute. A NaN in `y_t` is a missing
channel.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.numerics.linalg import cholesky, gaussian_log_density, solve_lower, solve_lower_transposed
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Covariance


@saved
class Gaussian(NamedTuple):
    """Mean and covariance of a state."""

    mean: Float[Array, "*t dx"]
    cov: Covariance[Float[Array, "*t dx dx"]]


@saved
class System(NamedTuple):
    """The matrices of a linear Gaussian system."""

    transition: Float[Array, "dx dx"]
    process_cov: Covariance[Float[Array, "dx dx"]]
    emission: Float[Array, "dy dx"]
    emission_bias: Float[Array, " dy"]
    obs_cov: Covariance[Float[Array, "dy dy"]]


class Trace(NamedTuple):
    """Predicted and filtered states at every time, and the log-likelihood of every sample."""

    predicted: Gaussian
    filtered: Gaussian
    log_likelihood: Float[Array, " t"]


def predict(state: Gaussian, system: System, offset: Float[Array, " dx"]) -> Gaussian:
    """Move one step: `N(A m + b, A P A^T + Q)`. Cost O(dx^3)."""
    a = system.transition
    return Gaussian(a @ state.mean + offset, a @ state.cov @ a.T + system.process_cov)


def update(state: Gaussian, system: System, y: Float[Array, " dy"]) -> tuple[Gaussian, Float[Array, ""]]:
    """Condition on `y`; returns the state and `log N(y | C m, C P C^T + R)`. Cost O(dx^2 dy + dy^3).

    The covariance is updated in Joseph's form, which stays positive definite.
    """
    seen = ~jnp.isnan(y)
    both = seen[:, None] & seen[None, :]
    c = jnp.where(seen[:, None], system.emission, 0.0)
    r = jnp.where(both, system.obs_cov, jnp.eye(y.shape[0], dtype=y.dtype))
    expected = system.emission @ state.mean + system.emission_bias
    innovation = jnp.where(seen, jnp.where(seen, y, 0.0) - expected, 0.0)
    chol = cholesky(c @ state.cov @ c.T + r)
    half = solve_lower(chol, c @ state.cov)
    gain = solve_lower_transposed(chol, half).T
    whitened = solve_lower(chol, innovation[:, None])[:, 0]
    rest = jnp.eye(state.mean.shape[0], dtype=y.dtype) - gain @ c
    noise = jnp.where(both, system.obs_cov, 0.0)
    cov = rest @ state.cov @ rest.T + gain @ noise @ gain.T
    score = gaussian_log_density(whitened, chol, jnp.sum(seen, dtype=y.dtype))
    return Gaussian(state.mean + gain @ innovation, cov), score


def filter(
    system: System, initial: Gaussian, outputs: Float[Array, "t dy"], offsets: Float[Array, "t dx"] | None = None
) -> Trace:
    """Filter a recording; `initial` is the state one step before the first sample."""
    if offsets is None:
        offsets = jnp.zeros((outputs.shape[0], initial.mean.shape[0]), outputs.dtype)

    def body(state: Gaussian, now: tuple[Array, Array]) -> tuple[Gaussian, Trace]:
        y, offset = now
        predicted = predict(state, system, offset)
        filtered, score = update(predicted, system, y)
        return filtered, Trace(predicted, filtered, score)

    return jax.lax.scan(body, initial, (outputs, offsets))[1]


def smooth(system: System, trace: Trace) -> Gaussian:
    """States given all samples (Rauch-Tung-Striebel). Cost O(T dx^3)."""

    def body(ahead: Gaussian, now: tuple[Gaussian, Gaussian]) -> tuple[Gaussian, Gaussian]:
        filtered, predicted = now  # at t, and the prediction for t + 1 made from it
        chol = cholesky(predicted.cov)
        gain = solve_lower_transposed(chol, solve_lower(chol, system.transition @ filtered.cov)).T
        mean = filtered.mean + gain @ (ahead.mean - predicted.mean)
        cov = filtered.cov + gain @ (ahead.cov - predicted.cov) @ gain.T
        return Gaussian(mean, cov), Gaussian(mean, cov)

    last = jax.tree.map(lambda a: a[-1], trace.filtered)
    before = jax.tree.map(lambda a: a[:-1], trace.filtered)
    after = jax.tree.map(lambda a: a[1:], trace.predicted)
    _, smoothed = jax.lax.scan(body, last, (before, after), reverse=True)
    return jax.tree.map(lambda rest, end: jnp.concatenate([rest, end[None]]), smoothed, last)
