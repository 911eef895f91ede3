"""The pure core of OEnVI: `step(key, state, y, c) -> (state, info)`.

Place an inducing input, predict, condition the state and q(u) on the sample in closed form
(`filters.augmented`), let older samples count a little less, then one step of Adam for what has no closed form:

    maximise  log N(y_t | C m_t, C P_t C^T + R)  +  E_q[log p(u)] / t.

The gradient of the noise variances goes through time (`filters.sensitivity`).
"""

from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.filters import augmented
from gpssm.filters.augmented import AugmentedState, Predicted
from gpssm.gp.basis import Expansion
from gpssm.gp.kernels import KERNELS, Kernel
from gpssm.online import placement
from gpssm.online.adam import ascend, decay
from gpssm.online.augmented import Tracked, assimilate
from gpssm.online.base import Info
from gpssm.online.units import bounded_lengthscale
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import NonNegative, Positive

_LENGTHSCALE_EVERY = 2  # samples between two gradients of the length scales, the one costly part
# What was learned of f while the state was hardly known is worth less: at sample t, that of sample s counts as s / t,
# with this number added to both, so that the first samples do not forget each other.
_FORGET_FROM = 20.0


@saved
class OEnVIHyper(NamedTuple):
    """Logarithms of what is learned by gradient, or one such number for each of them."""

    lengthscale: Float[Array, " d"]
    amplitude: Float[Array, " k"]  # variance of f_d
    process_noise: Float[Array, " k"]
    obs_level: Float[Array, ""]  # common to all channels
    obs_shape: Float[Array, " dy"]  # of each, relative to it


# Of Adam, in this order. Noise variances must travel far; length scales change f everywhere.
_RATES = (0.01, 0.06, 0.08, 0.03, 0.01)


@saved
class OEnVISettings(NamedTuple):
    """What the compiled step is built for."""

    kernel: Annotated[str, Literal[tuple(KERNELS)]]
    learn_obs_noise: bool


@saved
class OEnVIState(Tracked):
    """All that is carried from one sample to the next."""

    hyper: OEnVIHyper
    adam: tuple[OEnVIHyper, NonNegative[OEnVIHyper]]
    linear_prior: NonNegative[Float[Array, "k d+1"]]
    """Variances of the weights of the linear function before anything was seen."""
    unit: Positive[Float[Array, " k"]]
    """Size of one step, as first seen, of the states whose f is learned; the others are their past."""
    obs_unit: Float[Array, ""]
    settings: OEnVISettings = eqx.field(static=True)

    @property
    def obs_noise(self) -> Float[Array, " dy"]:
        return jnp.exp(self.hyper.obs_level + self.hyper.obs_shape)

    @property
    def kernel(self) -> Kernel:
        return correlations(self.settings, self.hyper.lengthscale)


def step(key: Array, state: OEnVIState, y: Float[Array, " dy"], c: Float[Array, " dc"]) -> tuple[OEnVIState, Info]:
    """One sample: place an inducing input, predict, condition, learn. Deterministic: `key` is not used."""
    dx, hyper, process_noise, now = state.state_dim, state.hyper, state.process_noise, state.f
    current, now = state.placed(c, now, placement.novel(process_noise, now.amplitude))
    basis, amplitude, factor = now.basis, now.amplitude, augmented.state_factor(current, dx)

    def predict(f: Expansion) -> Predicted:
        return augmented.predict(current, factor, f, process_noise, c, state.points)

    found = assimilate(state, current, predict(now), y, state.settings.learn_obs_noise)
    updated, update = found.state, found.update
    if len(amplitude) == dx:  # Not where a state is the past of another: that was seen, and is as good as the present.
        updated = _forget(state, updated, amplitude, found.anything)

    prior_share = 1.0 / (state.count + 10.0)
    moment = _second_moment(current, dx, len(amplitude), len(basis.used))  # E[u u^T]
    surprise = jnp.sum(moment * now.inverse, axis=(1, 2)) / amplitude
    at_lengthscale = state.count % _LENGTHSCALE_EVERY == 0

    def bound(log_lengthscale: Array) -> Array:
        """What a change of the length scales does to the log-density of y_t and to E[log p(u)]."""
        f = Expansion.of(basis, correlations(state.settings, log_lengthscale), amplitude)
        moved = predict(f)
        log_det = len(amplitude) * jnp.sum(basis.used * jnp.log(jnp.diagonal(f.chol)))
        prior = -0.5 * jnp.sum(jnp.sum(moment * f.inverse, axis=(1, 2)) / amplitude) - log_det
        pull, curvature = update.pull, update.curvature
        return pull @ moved.mean + 0.5 * jnp.sum((jnp.outer(pull, pull) - curvature) * moved.cov) + prior_share * prior

    of_obs = found.gradient.obs_noise
    gradient = OEnVIHyper(
        jax.lax.cond(at_lengthscale, jax.grad(bound), jnp.zeros_like, hyper.lengthscale),
        found.gradient.amplitude + prior_share * 0.5 * (surprise - jnp.sum(basis.used)),
        found.gradient.process_noise,
        jnp.sum(of_obs),
        of_obs,
    )
    # The length scales have a clock of their own.
    clock = OEnVIHyper(jnp.floor(state.count / _LENGTHSCALE_EVERY), *[state.count] * 4)
    active = OEnVIHyper(found.anything & at_lengthscale & found.verdict.usual, *[found.anything] * 4)
    rates = OEnVIHyper(*(decay(state.count) * rate for rate in _RATES))
    hyper, adam = ascend(hyper, gradient, state.adam, clock=clock, rates=rates, active=active)
    new, info = state.moved(found, updated, basis, hyper, adam)
    return replace(new, hyper=_bounded(new)), info


def correlations(settings: OEnVISettings, log_lengthscale: Array) -> Kernel:
    """Correlations; the variances are the amplitudes."""
    return KERNELS[settings.kernel](jnp.exp(log_lengthscale), jnp.ones((), log_lengthscale.dtype))


def _forget(state: OEnVIState, updated: AugmentedState, amplitude: Array, learns: Array) -> AugmentedState:
    """All that q(W) has taken from samples so far loses 1 / t of its weight."""
    of_inducing = jnp.broadcast_to(amplitude[:, None], (len(amplitude), len(state.basis.used)))
    prior = jnp.concatenate([of_inducing, state.linear_prior], axis=1).ravel()
    return augmented.forget(updated, prior, jnp.where(learns, 1.0 / (state.count + _FORGET_FROM), 0.0))


def _second_moment(current: AugmentedState, dx: int, rows: int, num: int) -> Float[Array, "k m m"]:
    """E[u_d u_d^T] for every d."""
    mean, cov = augmented.rows_of(current, dx, rows)
    mean, cov = mean[:, :num], cov[:, :num, :num]
    return mean[:, :, None] * mean[:, None, :] + cov


def _bounded(state: OEnVIState) -> OEnVIHyper:
    """Limits far from any sensible value, so that a constant stretch drives nothing to zero or infinity."""
    hyper, step_size = state.hyper, 2 * jnp.log(state.unit)
    return OEnVIHyper(
        bounded_lengthscale(hyper.lengthscale, state.spread[1], state.basis.scale),
        jnp.clip(hyper.amplitude, step_size - 10.0, step_size + 8.0),
        jnp.clip(hyper.process_noise, step_size - 12.0, step_size + 4.0),
        jnp.clip(hyper.obs_level, state.obs_unit - 12.0, state.obs_unit + 10.0),
        jnp.clip(hyper.obs_shape, -8.0, 8.0),
    )


def new_state(fields: dict[str, Any], hyper: OEnVIHyper, unit: Any, settings: OEnVISettings) -> OEnVIState:
    """A state with the fields of `fresh`, and parameters whose gradients have no past yet."""
    hyper, unit = jax.tree.map(jnp.asarray, (hyper, unit))
    zero, num, dx = jax.tree.map(jnp.zeros_like, hyper), len(fields["basis"].used), fields["points"].shape[1]
    variances = jnp.diagonal(fields["augmented"].cov)[dx:].reshape(len(unit), -1)
    return OEnVIState(
        **fields,
        hyper=hyper,
        adam=(zero, zero),
        linear_prior=variances[:, num:],
        unit=unit,
        obs_unit=hyper.obs_level,
        settings=settings,
    )
