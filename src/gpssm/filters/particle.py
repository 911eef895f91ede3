"""The bootstrap particle filter (Gordon, Salmond and Smith, 1993), as pure functions of arrays.

Particles move by the model itself, `x^n ~ N(f(x^n), Var f + Q)`, and are weighted by the density of the
observation. With enough of them it is exact for any f and g, where the ensemble Kalman filter
is not; how many are enough grows exponentially with the number of channels that surprise.

Arguments are those of `filters.ensemble`; a NaN is a missing channel.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gpssm.filters.ensemble import FilterSettings, Observing, Transition, move, with_inputs
from gpssm.models.gpssm import GPSSM
from gpssm.models.noise import num_draws

NUM_PARTICLES = 1000

# Below this share of particles that carry weight they are resampled; more often costs accuracy, too.
_RESAMPLE_SHARE = 0.5


class Trace(NamedTuple):
    """Weighted moments and score at every time step, and the particles after the last one."""

    mean: Float[Array, "t dx"]
    cov: Float[Array, "t dx dx"]
    log_likelihood: Float[Array, " t"]
    members: Float[Array, "n dx"]
    """Equally weighted: where a forecast continues from."""


def weighted_moments(
    particles: Float[Array, "n dx"], weights: Float[Array, " n"], covs: Float[Array, "n dx dx"] | None = None
) -> tuple[Float[Array, " dx"], Float[Array, "dx dx"]]:
    """Mean and covariance of particles whose weights sum to one. Cost O(n dx^2).

    With `covs` each of them is a Gaussian, and the moments are those of their mixture.
    """
    mean = weights @ particles
    deviations = particles - mean
    between = (weights[:, None] * deviations).T @ deviations
    return mean, between if covs is None else jnp.tensordot(weights, covs, 1) + between


def systematic(weights: Float[Array, " n"], offset: Float[Array, ""], count: int) -> Int[Array, " m"]:
    """Indices of `count` equally weighted particles; `offset` is uniform on [0, 1).

    Particle n is taken `count * weights[n]` times, rounded up or down, and that often on average. Cost O(n + m).
    """
    edges = jnp.cumsum(weights)
    ticks = (jnp.arange(count) + offset) / count
    # Rounding may leave the last edge below the last tick.
    return jnp.minimum(jnp.searchsorted(edges / edges[-1], ticks, side="right"), weights.shape[0] - 1)


def run(
    transition: Transition,
    observing: Observing,
    first: Float[Array, "n dx"],
    outputs: Float[Array, "t dy"],
    inputs: Float[Array, "t dc"],
    key: Array,
) -> Trace:
    """Filter one recording; arguments as in `ensemble.run`, where `first` has equal weights.

    Returns:
        Moments and log-likelihoods in nats at every time, and particles after the last sample. The exponential of
        the summed log-likelihood is an unbiased estimate of `p(y_1, ..., y_T)`.

    >>> from gpssm.models import DiagonalNoise, LinearEmission
    >>> still = lambda x: (x, DiagonalNoise(jnp.zeros_like(x)))
    >>> seen = Observing(DiagonalNoise([1.0]), LinearEmission([[1.0]], [0.0]), DiagonalNoise([1.0]))
    >>> first = jax.random.normal(jax.random.key(0), (20_000, 1))
    >>> trace = run(still, seen, first, jnp.array([[3.0]]), jnp.zeros((1, 0)), jax.random.key(1))
    >>> round(float(trace.mean[0, 0]), 1)  # two thirds of the way, as the exact filter
    2.0
    """
    num_particles, state_dim = first.shape
    equal = jnp.full(num_particles, -jnp.log(num_particles), first.dtype)

    def body(
        carry: tuple[Array, Array], now: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        (particles, log_weights), (y, c, key) = carry, now
        key_move, key_resample = jax.random.split(key)
        f_mean, f_noise = transition(with_inputs(particles, c))
        kinds = num_draws(f_noise, observing.process_noise)
        # Drawn step by step: all at once, a long recording's draws for a thousand particles would fill the memory.
        draws = jax.random.normal(key_move, (kinds, num_particles, state_dim), jnp.float32).astype(first.dtype)
        particles = move(f_mean, f_noise, observing.process_noise, draws)

        log_weights = log_weights + observing.obs_noise.log_prob(y, observing.emission(particles))
        score = jax.nn.logsumexp(log_weights)
        log_weights = log_weights - score
        weights = jnp.exp(log_weights)
        mean, cov = weighted_moments(particles, weights)

        few = 1.0 / jnp.sum(weights**2) < _RESAMPLE_SHARE * num_particles
        chosen = systematic(weights, jax.random.uniform(key_resample, (), first.dtype), num_particles)
        particles = jnp.where(few, particles[chosen], particles)
        log_weights = jnp.where(few, equal, log_weights)
        return (particles, log_weights), (mean, cov, score)

    key_steps, key_last = jax.random.split(key)
    keys = jax.random.split(key_steps, outputs.shape[0])
    (particles, log_weights), (mean, cov, scores) = jax.lax.scan(body, (first, equal), (outputs, inputs, keys))
    offset = jax.random.uniform(key_last, (), first.dtype)
    return Trace(mean, cov, scores, particles[systematic(jnp.exp(log_weights), offset, num_particles)])


def filter_recording(
    model: GPSSM, members: Array | None, outputs: Array, inputs: Array, key: Array, settings: FilterSettings
) -> Trace:
    """The filter as `gpssm.filters.FILTERS` knows it; `settings` are those of an ensemble and change nothing here."""
    key_x0, key_noise = jax.random.split(key)
    if members is None:
        shape = (NUM_PARTICLES, model.state_dim)
        first = model.initial_state.prior_members(jax.random.normal(key_x0, shape, outputs.dtype))
    else:  # of any filter, and as many as it had
        equal = jnp.full(members.shape[0], 1.0 / members.shape[0], outputs.dtype)
        first = members[systematic(equal, jax.random.uniform(key_x0, (), outputs.dtype), NUM_PARTICLES)]
    return run(model.transition.marginal(), Observing.of(model), first, outputs, inputs, key_noise)
