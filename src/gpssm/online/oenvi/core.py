"""The pure core of OEnVI: `step(key, state, y, u) -> (state, info)`.

Place an inducing input, predict, condition the state and q(u) on the sample in closed form
(`filters.joint`), let older samples count a little less, then one step of Adam for what has no closed form:

    maximise  log N(y_t | C m_t, C P_t C^T + R)  +  E_q[log p(u)] / t.

The gradient of the noise variances goes through time (`filters.sensitivity`).
"""

from typing import Annotated, Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.filters import augmented, sensitivity
from gpssm.filters.augmented import Basis, Joint, Predicted, Whitening
from gpssm.filters.sensitivity import Sensitivity
from gpssm.gp.kernels import KERNELS, Kernel
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.online.base import ascend, running_spread
from gpssm.online.stream import Info
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import NonNegative, Positive

# Adam. Noise variances must travel far; length scales change f everywhere.
_RATE = {"lengthscale": 0.01, "amplitude": 0.06, "process_noise": 0.08, "obs_level": 0.03, "obs_shape": 0.01}
_HALF = 1000.0  # samples after which the rates fall like one over the root of their number
_LENGTHSCALE_EVERY = 2  # samples between two gradients of the length scales, the one costly part
# What was learned of f while the state was hardly known is worth less: at sample t, that of sample s counts as s / t,
# with this number added to both, so that the first samples do not forget each other.
_FORGET_FROM = 20.0
# An inducing input is worth its place if the error it removes is not lost in the process noise.
_WORTH, _NOVEL = 0.3, (1e-3, 0.3)


@saved
class Hyper(NamedTuple):
    """Logarithms of what is learned by gradient, or one such number for each of them."""

    lengthscale: Float[Array, " d"]
    amplitude: Float[Array, " k"]  # variance of f_d
    process_noise: Float[Array, " k"]
    obs_level: Float[Array, ""]  # common to all channels
    obs_shape: Float[Array, " dy"]  # of each, relative to it


@saved
class Settings(NamedTuple):
    """What the compiled step is built for."""

    kernel: Annotated[str, Literal[tuple(KERNELS)]]
    learn_obs_noise: bool


@saved
class State(eqx.Module):
    """All that is carried from one sample to the next."""

    joint: Joint
    basis: Basis
    hyper: Hyper
    adam: tuple[Hyper, NonNegative[Hyper]]
    sensitivity: Sensitivity
    count: NonNegative[Float[Array, ""]]
    rejected: NonNegative[Float[Array, ""]]
    spread: tuple[Float[Array, " dx"], NonNegative[Float[Array, " dx"]]]
    """Running mean and variance of the states: where length scales make sense."""
    linear_prior: NonNegative[Float[Array, "k d+1"]]
    """Variances of the weights of the linear function before anything was seen."""
    unit: Positive[Float[Array, " k"]]
    """Size of one step, as first seen, of the states whose f is learned; the others are their past."""
    obs_unit: Float[Array, ""]
    emission: LinearEmission | FunctionEmission
    points: Float[Array, "n dx"]
    settings: Settings = eqx.field(static=True)

    @property
    def state_dim(self) -> int:
        return self.points.shape[-1]


def step(key: Array, state: State, y: Float[Array, " dy"], u: Float[Array, " dc"]) -> tuple[State, Info]:
    """One sample: place an inducing input, predict, condition, learn. Deterministic: `key` is not used."""
    dx, hyper = state.state_dim, state.hyper
    kernel = correlations(state.settings, hyper.lengthscale)
    amplitude, process_noise = jnp.exp(hyper.amplitude), jnp.exp(hyper.process_noise)
    current, basis, whitening = _place(state, kernel, amplitude, u)
    factor = augmented.state_factor(current, dx)

    def predict(kernel: Kernel, whitening: Whitening) -> Predicted:
        return augmented.predict(current, factor, basis, kernel, whitening, amplitude, process_noise, u, state.points)

    predicted = predict(kernel, whitening)
    obs_noise = jnp.exp(hyper.obs_level + hyper.obs_shape)
    seen = augmented.observe(state.emission, predicted, y, obs_noise, state.points)
    innovation = augmented.innovate(predicted, seen)
    log_score = innovation.log_density

    trusted, free, doubt = augmented.trust(predicted, seen, innovation, state.rejected)
    update = augmented.innovate(free, trusted)
    updated = augmented.update(current, free, update)
    anything, missing = jnp.any(seen.precision > 0), jnp.any(jnp.isnan(y))
    updated = augmented.confine(updated, state.spread, basis.scale, missing)
    if len(amplitude) == dx:  # Not where a state is the past of another: that was seen, and is as good as the present.
        updated = _forget(state, updated, amplitude, anything)

    carried = sensitivity.predict(state.sensitivity, predicted, amplitude, process_noise)
    of_noise = sensitivity.gradient(carried, len(amplitude), seen, innovation)
    of_obs = of_noise.obs_noise if state.settings.learn_obs_noise else jnp.zeros_like(of_noise.obs_noise)
    prior_share = 1.0 / (state.count + 10.0)
    moment = _second_moment(current, dx, len(amplitude), len(basis.used))  # E[u u^T]
    surprise = jnp.sum(moment * whitening.inverse, axis=(1, 2)) / amplitude
    at_lengthscale = state.count % _LENGTHSCALE_EVERY == 0

    def bound(log_lengthscale: Array) -> Array:
        """What a change of the length scales does to the log-density of y_t and to E[log p(u)]."""
        kernel = correlations(state.settings, log_lengthscale)
        whitening = augmented.whiten(basis, kernel)
        moved = predict(kernel, whitening)
        log_det = len(amplitude) * jnp.sum(basis.used * jnp.log(jnp.diagonal(whitening.chol)))
        prior = -0.5 * jnp.sum(jnp.sum(moment * whitening.inverse, axis=(1, 2)) / amplitude) - log_det
        pull, curvature = update.pull, update.curvature
        return pull @ moved.mean + 0.5 * jnp.sum((jnp.outer(pull, pull) - curvature) * moved.cov) + prior_share * prior

    gradient = Hyper(
        jax.lax.cond(at_lengthscale, jax.grad(bound), jnp.zeros_like, hyper.lengthscale),
        of_noise.amplitude + prior_share * 0.5 * (surprise - jnp.sum(basis.used)),
        of_noise.process_noise,
        jnp.sum(of_obs),
        of_obs,
    )
    hyper, adam = _climb(state, gradient, anything, at_lengthscale & ~doubt.any)
    spread = running_spread(state.spread, updated.mean[:dx], state.count, anything)
    new = eqx.tree_at(
        lambda s: (s.joint, s.basis, s.hyper, s.adam, s.sensitivity, s.count, s.rejected, s.spread),
        state,
        (
            updated,
            basis,
            _bounded(state, hyper, spread[1]),
            adam,
            sensitivity.confine(sensitivity.update(carried, trusted, update), state.spread[1], missing),
            state.count + jnp.where(anything, 1.0, 0.0),
            doubt.rejected,
            spread,
        ),
    )
    predicted_variance = jnp.sum((seen.matrix @ predicted.cov) * seen.matrix, axis=1) + seen.variance
    info = Info(updated.mean[:dx], updated.cov[:dx, :dx], seen.expected, jnp.sqrt(predicted_variance), log_score)
    return new, info


def correlations(settings: Settings, log_lengthscale: Array) -> Kernel:
    """Correlations; the variances are the amplitudes."""
    return KERNELS[settings.kernel](jnp.exp(log_lengthscale), jnp.ones((), log_lengthscale.dtype))


def _place(state: State, kernel: Kernel, amplitude: Array, u: Array) -> tuple[Joint, Basis, Whitening]:
    """A new inducing input where the stream is now, if the others do not explain f there."""
    dx, basis = state.state_dim, state.basis
    here = jnp.concatenate([state.joint.mean[:dx], u])
    whitening = augmented.whiten(basis, kernel)
    k = kernel(here[None], basis.inducing_inputs)[0] * basis.used
    novelty = 1.0 - k @ whitening.inverse @ k
    # Conditional variance of each given the others; a free slot goes first.
    worth = jnp.where(basis.used > 0, 1.0 / jnp.diagonal(whitening.inverse), 0.0)
    slot = jnp.argmin(worth)
    enough = jnp.clip(_WORTH * jnp.min(jnp.exp(state.hyper.process_noise) / amplitude), *_NOVEL)
    # Not where the state is only guessed, as in the middle of a long gap.
    sure = jnp.all(jnp.diagonal(state.joint.cov)[:dx] < jnp.exp(2 * state.hyper.lengthscale[:dx]))

    def insert(_: None) -> tuple[Joint, Basis, Whitening]:
        moved, wider = augmented.insert(state.joint, dx, basis, kernel, amplitude, slot, here)
        return moved, wider, augmented.whiten(wider, kernel)

    wanted = (novelty > enough) & (novelty > 2.0 * worth[slot]) & sure
    return jax.lax.cond(wanted, insert, lambda _: (state.joint, basis, whitening), None)


def _forget(state: State, updated: Joint, amplitude: Array, learns: Array) -> Joint:
    """All that q(W) has taken from samples so far loses 1 / t of its weight."""
    of_inducing = jnp.broadcast_to(amplitude[:, None], (len(amplitude), len(state.basis.used)))
    prior = jnp.concatenate([of_inducing, state.linear_prior], axis=1).ravel()
    return augmented.forget(updated, prior, jnp.where(learns, 1.0 / (state.count + _FORGET_FROM), 0.0))


def _second_moment(current: Joint, dx: int, rows: int, num: int) -> Float[Array, "k m m"]:
    """E[u_d u_d^T] for every d."""
    width = (len(current.mean) - dx) // rows
    mean = current.mean[dx:].reshape(rows, width)[:, :num]
    cov = jnp.einsum("dfdg->dfg", current.cov[dx:, dx:].reshape(rows, width, rows, width))[:, :num, :num]
    return mean[:, :, None] * mean[:, None, :] + cov


def _climb(state: State, gradient: Hyper, learns: Array, at_lengthscale: Array) -> tuple[Hyper, tuple[Hyper, Hyper]]:
    """One step of Adam, where a sample has something to say; the length scales have a clock of their own."""
    clock = Hyper(jnp.floor(state.count / _LENGTHSCALE_EVERY), *[state.count] * 4)
    active = Hyper(learns & at_lengthscale, *[learns] * 4)
    rates = Hyper(**{name: jnp.asarray(rate) for name, rate in _RATE.items()})
    decay = (1.0 + state.count / _HALF) ** -0.5
    return ascend(state.hyper, gradient, state.adam, clock, rates, active, decay)


def _bounded(state: State, hyper: Hyper, variance: Array) -> Hyper:
    """Limits far from any sensible value, so that a constant stretch drives nothing to zero or infinity."""
    dx = state.state_dim
    step_size, scale = 2 * jnp.log(state.unit), jnp.log(state.basis.scale)
    span = jnp.concatenate([jnp.maximum(0.5 * jnp.log(variance), scale[:dx]), scale[dx:]])
    return Hyper(
        jnp.clip(hyper.lengthscale, span - 1.5, span + 3.0),
        jnp.clip(hyper.amplitude, step_size - 10.0, step_size + 8.0),
        jnp.clip(hyper.process_noise, step_size - 12.0, step_size + 4.0),
        jnp.clip(hyper.obs_level, state.obs_unit - 12.0, state.obs_unit + 10.0),
        jnp.clip(hyper.obs_shape, -8.0, 8.0),
    )


def new_state(
    of: Joint,
    basis: Basis,
    hyper: Hyper,
    unit: Any,
    emission: LinearEmission | FunctionEmission,
    settings: Settings,
    points: Float[np.ndarray, "n dx"],
    count: float = 0.0,
) -> State:
    """A state whose gradients have no past yet."""
    of, basis, hyper, unit, emission = jax.tree.map(jnp.asarray, (of, basis, hyper, unit, emission))
    dx, num = points.shape[1], len(basis.used)
    zero = jax.tree.map(jnp.zeros_like, hyper)
    return State(
        joint=of,
        basis=basis,
        hyper=hyper,
        adam=(zero, zero),
        sensitivity=sensitivity.nothing(dx, len(unit), len(hyper.obs_shape)),
        count=jnp.asarray(count),
        rejected=jnp.zeros(()),
        spread=(basis.shift[:dx], basis.scale[:dx] ** 2),
        linear_prior=jnp.diagonal(of.cov)[dx:].reshape(len(unit), -1)[:, num:],
        unit=unit,
        obs_unit=hyper.obs_level,
        emission=emission,
        points=jnp.asarray(points),
        settings=settings,
    )
