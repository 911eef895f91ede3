"""The extended Kalman filter, as pure functions of arrays.

At every step f is replaced by its tangent at the filtered mean and g by its tangent at the predicted mean; the
rest is the Kalman filter (`filters.kalman`) of that linear system:

    P_t = A P A^T + Var f(m) + Q,    A = df/dx at m,    C = dg/dx at f(m)

The cheapest of the filters and free of random numbers, and right as long as f is close to its tangent over the
width of the state's distribution. Arguments are those of `filters.ensemble`; a NaN is a missing channel.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.filters import kalman, particle
from gpssm.filters.ensemble import FilterSettings, Observing, Transition, sample_moments, with_inputs
from gpssm.filters.kalman import Gaussian, System, Trace
from gpssm.filters.stepwise import Filter, Moments
from gpssm.models.gpssm import GPSSM
from gpssm.numerics.linalg import cholesky, solve_lower, symmetric_root


def linearise(
    transition: Transition, observing: Observing, mean: Float[Array, " dx"], c: Float[Array, " dc"]
) -> tuple[System, Float[Array, " dx"]]:
    """The system that `x_{t-1} = mean` is moved and seen by, and its offset `f(mean) - A mean`."""

    def f(x: Array) -> tuple[Array, tuple[Array, Array]]:
        f_mean, f_noise = transition(with_inputs(x[None], c))
        return f_mean[0], (f_mean[0], f_noise.covariance)

    def g(x: Array) -> tuple[Array, Array]:
        y = observing.emission(x[None])[0]
        return y, y

    a, (ahead, f_cov) = jax.jacfwd(f, has_aux=True)(mean)
    matrix, expected = jax.jacfwd(g, has_aux=True)(ahead)
    obs_cov = jnp.diag(jnp.asarray(observing.obs_noise.variance))
    process_cov = observing.process_noise.covariance + f_cov
    return System(a, process_cov, matrix, expected - matrix @ ahead, obs_cov), ahead - a @ mean


def step(
    transition: Transition,
    observing: Observing,
    state: Gaussian,
    y: Float[Array, " dy"],
    c: Float[Array, " dc"],
    *,
    inflation: float = 1.0,
) -> tuple[Gaussian, Trace]:
    """The state after a sample, and all that is known of that time; arguments as in `run`."""
    system, offset = linearise(transition, observing, state.mean, c)
    predicted = kalman.predict(state, system, offset)
    predicted = predicted._replace(cov=inflation**2 * predicted.cov)
    expected = system.emission @ predicted.mean + system.emission_bias
    expected_cov = system.emission @ predicted.cov @ system.emission.T
    variance, score = observing.obs_noise.match(y, expected, expected_cov)
    filtered, gaussian_score = kalman.update(predicted, system._replace(obs_cov=jnp.diag(variance)), y)
    return filtered, Trace(predicted, filtered, gaussian_score if score is None else score)


def run(
    transition: Transition,
    observing: Observing,
    first: Gaussian,
    outputs: Float[Array, "t dy"],
    inputs: Float[Array, "t dc"],
    *,
    inflation: float = 1.0,
) -> Trace:
    """Filter one recording. Cost of a step O(dx^3 + dx^2 dy + dy^3) and dx tangents of f.

    Args:
        transition, observing, outputs, inputs: as in `ensemble.run`.
        first: the state one step before the first sample.
        inflation: factor on the predicted standard deviations, as it is on an ensemble's anomalies.

    Returns:
        Predicted and filtered states at every time, and log-likelihoods in nats.

    >>> from gpssm.models import DiagonalNoise, LinearEmission
    >>> still = lambda x: (x, DiagonalNoise(jnp.zeros_like(x)))
    >>> seen = Observing(DiagonalNoise([1.0]), LinearEmission([[1.0]], [0.0]), DiagonalNoise([1.0]))
    >>> trace = run(still, seen, Gaussian(jnp.zeros(1), jnp.eye(1)), jnp.array([[3.0]]), jnp.zeros((1, 0)))
    >>> round(float(trace.filtered.mean[0, 0]), 3)  # two thirds of the way, as the exact filter
    2.0
    """

    def body(state: Gaussian, now: tuple[Array, Array]) -> tuple[Gaussian, Trace]:
        return step(transition, observing, state, *now, inflation=inflation)

    return jax.lax.scan(body, first, (outputs, inputs))[1]


def draws(state: Gaussian, noise: Float[Array, "n dx"]) -> Float[Array, "n dx"]:
    """Draws with the mean and covariance of `state`, exactly; `noise` is standard normal, n > dx.

    Exactly, so that a filter that continues from the draws is the one that never stopped.
    """
    mean, cov = sample_moments(noise)
    white = solve_lower(cholesky(cov), (noise - mean).T)
    return state.mean + white.T @ symmetric_root(state.cov)  # a state without noise may have a singular covariance


def filter_of(model: GPSSM, settings: FilterSettings) -> Filter:
    """The filter as `gpssm.filters.FILTERS` knows it; what it leaves for forecasts are draws of the last state."""
    transition, observing = model.transition.marginal(), Observing.of(model)
    dtype = observing.obs_noise.variance.dtype

    def start(members: Array | None, key: Array) -> Gaussian:
        if members is not None:
            return Gaussian(*sample_moments(members))
        chol = jnp.asarray(model.initial_state.prior_chol)
        return Gaussian(jnp.asarray(model.initial_state.prior_mean), chol @ chol.T)

    def assimilated(state: Gaussian, y: Array, c: Array, key: Array) -> tuple[Gaussian, Moments]:
        state, found = step(transition, observing, state, y, c)
        return state, Moments(*state, found.log_likelihood)

    def members(state: Gaussian, key: Array) -> Array:
        return draws(state, jax.random.normal(key, (particle.NUM_PARTICLES, model.state_dim), dtype))

    return Filter(start, assimilated, members)
