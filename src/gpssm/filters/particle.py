"""The bootstrap particle filter (Gordon, Salmond and Smith, 1993), as pure functions of arrays.

Particles move by the model itself, `x^n ~ N(f(x^n), Var f + Q)`, and are weighted by the density of the
observation. With enough of them it is exact for any f and g, where the ensemble Kalman filter
is not; how many are enough grows exponentially with the number of channels that surprise.

Arguments are those of `filters.ensemble`; a NaN is a missing channel.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gpssm.filters.ensemble import FilterSettings, Observing, Transition, move, with_inputs
from gpssm.filters.stepwise import Filter, Moments
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

    def body(state: Weighted, now: tuple[Array, Array, Array]) -> tuple[Weighted, Moments]:
        return step(transition, observing, state, *now)

    key_steps, key_last = jax.random.split(key)
    keys = jax.random.split(key_steps, outputs.shape[0])
    last, found = jax.lax.scan(body, Weighted.equally(first), (outputs, inputs, keys))
    return Trace(*found, last.resampled(key_last, len(first)))


def step(
    transition: Transition,
    observing: Observing,
    state: "Weighted",
    y: Float[Array, " dy"],
    c: Float[Array, " dc"],
    key: Array,
) -> tuple["Weighted", Moments]:
    """Particles after a sample, and their moments before they were resampled; arguments as in `run`."""
    (particles, log_weights), dtype = state, state.particles.dtype
    num_particles = len(particles)
    key_move, key_resample = jax.random.split(key)
    f_mean, f_noise = transition(with_inputs(particles, c))
    kinds = num_draws(f_noise, observing.process_noise)
    # Drawn step by step: all at once, a long recording's draws for a thousand particles would fill the memory.
    draws = jax.random.normal(key_move, (kinds, *particles.shape), jnp.float32).astype(dtype)
    particles = move(f_mean, f_noise, observing.process_noise, draws)

    log_weights = log_weights + observing.obs_noise.log_prob(y, observing.emission(particles))
    score = jax.nn.logsumexp(log_weights)
    log_weights = log_weights - score
    weights = jnp.exp(log_weights)
    mean, cov = weighted_moments(particles, weights)

    few = 1.0 / jnp.sum(weights**2) < _RESAMPLE_SHARE * num_particles
    chosen = systematic(weights, jax.random.uniform(key_resample, (), dtype), num_particles)
    particles = jnp.where(few, particles[chosen], particles)
    log_weights = jnp.where(few, Weighted.equally(particles).log_weights, log_weights)
    return Weighted(particles, log_weights), Moments(mean, cov, score)


class Weighted(NamedTuple):
    """Particles, and the logarithms of their weights, which sum to one."""

    particles: Float[Array, "n dx"]
    log_weights: Float[Array, " n"]

    @classmethod
    def equally(cls, particles: Float[Array, "n dx"]) -> "Weighted":
        """All with the same weight."""
        count = len(particles)
        return cls(particles, jnp.full(count, -jnp.log(count), particles.dtype))

    def resampled(self, key: Array, count: int) -> Float[Array, "m dx"]:
        """As many that have equal weights."""
        offset = jax.random.uniform(key, (), self.particles.dtype)
        return self.particles[systematic(jnp.exp(self.log_weights), offset, count)]


def filter_of(model: GPSSM, settings: FilterSettings) -> Filter:
    """The filter as `gpssm.filters.FILTERS` knows it; `settings` are those of an ensemble and change nothing here."""
    transition, observing = model.transition.marginal(), Observing.of(model)
    dtype = observing.obs_noise.variance.dtype

    def start(members: Array | None, key: Array) -> Weighted:
        if members is not None:  # of any filter, and as many as it had
            return Weighted.equally(Weighted.equally(members).resampled(key, NUM_PARTICLES))
        shape = (NUM_PARTICLES, model.state_dim)
        return Weighted.equally(model.initial_state.prior_members(jax.random.normal(key, shape, dtype)))

    return Filter(start, partial(step, transition, observing), lambda state, key: state.resampled(key, NUM_PARTICLES))
