"""The extended Kalman filter, as pure functions of arrays.

At every step f is replaced by its tangent at the filtered mean and g by its tangent at the predicted mean; the
rest is the Kalman filter (`filters.kalman`) of that linear system:

    P_t = A P A^T + Var f(m) + Q,    A = df/dx at m,    C = dg/dx at f(m)

The cheapest of the filters and free of random numbers, and right as long as f is close to its tangent over the
width of the state's distribution. Arguments are those of `filters.ensemble`: a NaN is a missing channel, noise is
diagonal or full.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.filters import kalman
from gpssm.filters.ensemble import Observing, Transition, sample_moments, with_inputs
from gpssm.filters.kalman import Gaussian, System, Trace
from gpssm.numerics.linalg import cholesky, solve_lower


def linearise(
    transition: Transition, observing: Observing, mean: Float[Array, " dx"], c: Float[Array, " dc"]
) -> tuple[System, Float[Array, " dx"]]:
    """The system that `x_{t-1} = mean` is moved and seen by, and its offset `f(mean) - A mean`."""

    def f(x: Array) -> tuple[Array, tuple[Array, Array]]:
        f_mean, f_var = transition(with_inputs(x[None], c))
        return f_mean[0], (f_mean[0], f_var[0])

    def g(x: Array) -> tuple[Array, Array]:
        y = observing.emission(x[None])[0]
        return y, y

    a, (ahead, f_var) = jax.jacfwd(f, has_aux=True)(mean)
    matrix, expected = jax.jacfwd(g, has_aux=True)(ahead)
    q = observing.process_noise
    process_cov = (jnp.diag(q) if q.ndim == 1 else q @ q.T) + (jnp.diag(f_var) if f_var.ndim == 1 else f_var @ f_var.T)
    system = System(a, process_cov, matrix, expected - matrix @ ahead, jnp.diag(observing.obs_noise))
    return system, ahead - a @ mean


def run(
    transition: Transition,
    observing: Observing,
    first: Gaussian,
    outputs: Float[Array, "t dy"],
    inputs: Float[Array, "t dc"],
    *,
    inflation: float = 1.0,
) -> Trace:
    """Filter one recording; `first` is the state one step before the first sample.

    `inflation` multiplies the predicted standard deviations, as it does an ensemble's anomalies. Cost of a step
    O(dx^3 + dx^2 dy + dy^3) and dx tangents of f.
    """

    def body(state: Gaussian, now: tuple[Array, Array]) -> tuple[Gaussian, Trace]:
        y, c = now
        system, offset = linearise(transition, observing, state.mean, c)
        predicted = kalman.predict(state, system, offset)
        predicted = predicted._replace(cov=inflation**2 * predicted.cov)
        filtered, score = kalman.update(predicted, system, y)
        return filtered, Trace(predicted, filtered, score)

    return jax.lax.scan(body, first, (outputs, inputs))[1]


def members(state: Gaussian, noise: Float[Array, "n dx"]) -> Float[Array, "n dx"]:
    """Draws with the mean and covariance of `state`, exactly; `noise` is standard normal, n > dx.

    Exactly, so that a filter that continues from the draws is the one that never stopped.
    """
    mean, cov = sample_moments(noise)
    white = solve_lower(cholesky(cov), (noise - mean).T)
    values, vectors = jnp.linalg.eigh(state.cov)  # a state without noise may have a singular covariance
    return state.mean + white.T @ (jnp.sqrt(jnp.maximum(values, 0.0))[:, None] * vectors.T)
