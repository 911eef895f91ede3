"""The exact Kalman filter and smoother of a linear Gaussian system.

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
    """Mean and covariance of a state, or of the states at all times."""

    mean: Float[Array, "*t dx"]
    cov: Covariance[Float[Array, "*t dx dx"]]


@saved
class System(NamedTuple):
    """The matrices A, Q, C, R and the vector d of a linear Gaussian system; Q and R are covariances."""

    transition: Float[Array, "dx dx"]
    process_cov: Covariance[Float[Array, "dx dx"]]
    emission: Float[Array, "dy dx"]
    emission_bias: Float[Array, " dy"]
    obs_cov: Covariance[Float[Array, "dy dy"]]


class Trace(NamedTuple):
    """Predicted and filtered state, and the log-likelihood of the sample, at one time or at all."""

    predicted: Gaussian
    filtered: Gaussian
    log_likelihood: Float[Array, "*t"]


def predict(state: Gaussian, system: System, offset: Float[Array, " dx"]) -> Gaussian:
    """Move one step: `N(A m + b, A P A^T + Q)`; `offset` is b. Cost O(dx^3).

    >>> walk = System(jnp.eye(1), jnp.eye(1), jnp.eye(1), jnp.zeros(1), jnp.eye(1))
    >>> predict(Gaussian(jnp.array([3.0]), jnp.array([[2.0]])), walk, jnp.zeros(1)).cov.tolist()
    [[3.0]]
    """
    a = system.transition
    return Gaussian(a @ state.mean + offset, a @ state.cov @ a.T + system.process_cov)


def update(state: Gaussian, system: System, y: Float[Array, " dy"]) -> tuple[Gaussian, Float[Array, ""]]:
    """Condition on `y`; returns the state and `log N(y | C m + d, C P C^T + R)`. Cost O(dx^2 dy + dy^3).

    The covariance is updated in Joseph's form, which stays positive definite.

    >>> walk = System(jnp.eye(1), jnp.eye(1), jnp.eye(1), jnp.zeros(1), jnp.eye(1))
    >>> state, _ = update(Gaussian(jnp.zeros(1), jnp.eye(1)), walk, jnp.array([4.0]))
    >>> round(float(state.mean[0]), 3), round(float(state.cov[0, 0]), 3)  # half way
    (2.0, 0.5)
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


def step(
    system: System, state: Gaussian, y: Float[Array, " dy"], offset: Float[Array, " dx"]
) -> tuple[Gaussian, Trace]:
    """Move and condition: the state after a sample, and all that is known of that time."""
    predicted = predict(state, system, offset)
    filtered, score = update(predicted, system, y)
    return filtered, Trace(predicted, filtered, score)


def filter(
    system: System, initial: Gaussian, outputs: Float[Array, "t dy"], offsets: Float[Array, "t dx"] | None = None
) -> Trace:
    """Filter a recording.

    Args:
        system: the matrices.
        initial: the state one step before the first sample.
        outputs: NaN where a value is missing.
        offsets: b_t, zero if not given.

    Returns:
        Predicted and filtered states at every time, and log-likelihoods in nats.

    >>> walk = System(jnp.eye(1), jnp.eye(1), jnp.eye(1), jnp.zeros(1), jnp.eye(1))
    >>> trace = filter(walk, Gaussian(jnp.zeros(1), jnp.eye(1)), jnp.array([[1.0], [jnp.nan], [2.0]]))
    >>> [round(float(v), 2) for v in trace.filtered.mean[:, 0]]
    [0.67, 0.67, 1.64]
    """
    if offsets is None:
        offsets = jnp.zeros((outputs.shape[0], initial.mean.shape[0]), outputs.dtype)

    return jax.lax.scan(lambda state, now: step(system, state, *now), initial, (outputs, offsets))[1]


Score = tuple[Float[Array, " dx"], Float[Array, "dx dx"]]
"""What samples say of the state before them: r and N of `smooth`."""


def smooth(
    system: System, predicted: Gaussian, outputs: Float[Array, "t dy"], ahead: Score | None = None
) -> tuple[Score, Gaussian]:
    """States (T, dx) and covariances (T, dx, dx) given all samples, from what `filter` predicted. Cost O(T dx^3).

    Bryson and Frazier's form, which works backwards with the score r_t = d log p(y_{t:T}) / d m_t and its information
    N_t, so that no covariance of a state is inverted: in a companion form they are singular. `ahead` is what samples
    after these say, nothing if there are none; what comes first is what all of them say to those before.

    >>> walk = System(jnp.eye(1), jnp.eye(1), jnp.eye(1), jnp.zeros(1), jnp.eye(1))
    >>> outputs = jnp.array([[1.0], [jnp.nan], [2.0]])
    >>> _, states = smooth(walk, filter(walk, Gaussian(jnp.zeros(1), jnp.eye(1)), outputs).predicted, outputs)
    >>> [round(float(v), 2) for v in states.mean[:, 0]]
    [0.91, 1.27, 1.64]
    """
    eye = jnp.eye(predicted.mean.shape[1], dtype=outputs.dtype)

    def body(ahead: Score, now: tuple[Gaussian, Array]) -> tuple[Score, Gaussian]:
        (r, n), ((mean, cov), y) = ahead, now
        seen = ~jnp.isnan(y)
        c = jnp.where(seen[:, None], system.emission, 0.0)
        innovation = jnp.where(seen, y - system.emission @ mean - system.emission_bias, 0.0)
        obs_cov = jnp.where(seen[:, None] & seen, system.obs_cov, jnp.eye(y.shape[0], dtype=y.dtype))
        solved = jnp.linalg.solve(c @ cov @ c.T + obs_cov, jnp.column_stack([c, innovation]))  # S^{-1} [C, innovation]
        rest = eye - cov @ c.T @ solved[:, :-1]
        r = c.T @ solved[:, -1] + rest.T @ r
        n = c.T @ solved[:, :-1] + rest.T @ n @ rest
        smoothed = Gaussian(mean + cov @ r, cov - cov @ n @ cov)
        return (system.transition.T @ r, system.transition.T @ n @ system.transition), smoothed

    nothing = (jnp.zeros_like(eye[0]), jnp.zeros_like(eye))
    return jax.lax.scan(body, nothing if ahead is None else ahead, (predicted, outputs), reverse=True)
