"""RGPSSM (Zheng et al. 2024, arXiv 2411.14679): an extended Kalman filter of the state and f together.

One Gaussian over x and u, as in OEnVI, but moved by linearising f at the mean of the state instead of by an
ensemble. What makes it itself:

- an inducing input is added where the kernel's variance that the others leave open is above a threshold; above
  the budget the one is removed whose loss changes the joint distribution least (their score from the inverse
  covariances);
- hyper-parameters follow the evidence of all samples so far, which q(u) / p(u) has kept: the likelihood of u.
  With another prior p'(u) the posterior is q(u) p'(u) / p(u), in closed form, and so is its normalising constant.

The paper leaves open, and is given here what helps: Q and R are known there and follow the gradient of the
likelihood of every sample here; kernel and prior mean are the user's there, and RBF on top of a linear function
with its own weights here; a trial of several beginnings, and less trust in outliers, are OEnVI's.
"""

from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.filters import augmented, sensitivity
from gpssm.filters.augmented import Basis, Joint, Predicted, Whitening
from gpssm.filters.ensemble import with_inputs
from gpssm.filters.sensitivity import Sensitivity
from gpssm.gp.kernels import RBF
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.online import hypotheses
from gpssm.online.base import OnlineStateSpace, Units, ascend, running_spread
from gpssm.online.hypotheses import Beginning, Trial, beginnings, leading
from gpssm.online.stream import Info
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import NonNegative

NDArray = np.ndarray

_NOVEL = 0.1  # share of the kernel's variance that is worth an inducing input
_KERNEL_EVERY = 5  # samples between two steps of the kernel's parameters
_RAISED = 1.0  # that the logarithms of Q and the amplitude grow by when the state has jumped
_HALF = 1000.0  # samples after which the rates fall like one over the root of their number


@saved
class RGPSSMHyper(NamedTuple):
    """Logarithms of what is learned by gradient."""

    lengthscale: Float[Array, " d"]
    amplitude: Float[Array, " k"]
    process_noise: Float[Array, " k"]
    obs_noise: Float[Array, " dy"]


# Noise variances must travel far; length scales change f everywhere.
_RATES = (0.02, 0.04, 0.03, 0.03)


@saved
class RGPSSMState(eqx.Module):
    """All that is carried from one sample to the next."""

    joint: Joint
    basis: Basis
    hyper: RGPSSMHyper
    moments: tuple[RGPSSMHyper, NonNegative[RGPSSMHyper]]
    sensitivity: Sensitivity
    count: NonNegative[Float[Array, ""]]
    rejected: NonNegative[Float[Array, ""]]
    spread: tuple[Float[Array, " dx"], NonNegative[Float[Array, " dx"]]]
    """Running mean and variance of the states."""
    limits: tuple[RGPSSMHyper, RGPSSMHyper]
    emission: LinearEmission | FunctionEmission
    points: Float[Array, "n dx"]
    """For a nonlinear emission."""
    learn_obs_noise: bool = eqx.field(static=True)

    @property
    def kernel(self) -> RBF:
        """Correlations; the variances are the amplitudes."""
        return _correlations(self.hyper)


@saved
@dataclass(frozen=True)
class RGPSSM(OnlineStateSpace):
    """The recursive GP state-space model.

    Args, besides those of `OnlineStateSpace`:
        num_inducing: budget of inducing inputs, shared by all state dimensions.
        trial: samples during which several beginnings run side by side.
    """

    num_inducing: int = 40
    _: KW_ONLY
    trial: int = 100
    name: str = "RGPSSM"

    @property
    def counts(self) -> tuple[tuple[str, int], ...]:
        return (("num_inducing", 1), ("trial", 0))

    def begin(self, outputs: NDArray, inputs: NDArray) -> RGPSSMState | Trial:
        """Some beginnings; nothing but the units of the first samples is known."""
        units = self.units(outputs, inputs)
        begun = [self._begin(units, one) for one in beginnings(with_past=len(units.steps) < self.state_dim)]
        return Trial.of(begun) if self.trial else begun[0]

    def settled(self, state: RGPSSMState | Trial) -> RGPSSMState:
        """What goes on after the trial."""
        chosen: RGPSSMState = leading(state)
        return chosen

    def _begin(self, units: Units, beginning: Beginning) -> RGPSSMState:
        # One slot more than the budget: a new inducing input may be the one that is not worth keeping.
        dx, num = self.state_dim, self.num_inducing + 1
        steps, shift, scale = (jnp.asarray(part) for part in (units.steps, units.shift, units.scale))
        prior = augmented.prior(dx, num, units.scale, units.steps, units.linear_prior(dx, beginning.linear))
        hyper = RGPSSMHyper(
            jnp.log(beginning.lengthscale * scale),
            jnp.log(beginning.amplitude**2 * steps),
            jnp.log(beginning.process_noise * steps),
            jnp.log(units.obs_noise),
        )
        span, step_size = jnp.log(scale), jnp.log(steps)
        lowest = RGPSSMHyper(span - 1.5, step_size - 10, step_size - 12, hyper.obs_noise - 12)
        highest = RGPSSMHyper(span + 3.0, step_size + 8, step_size + 4, hyper.obs_noise + 10)
        zero = jax.tree.map(jnp.zeros_like, hyper)
        return RGPSSMState(
            joint=Joint(jnp.concatenate([shift[:dx], jnp.zeros(len(prior) - dx)]), prior),
            basis=Basis(jnp.zeros((num, len(scale))), jnp.zeros(num), shift, scale),
            hyper=hyper,
            moments=(zero, zero),
            sensitivity=sensitivity.nothing(dx, len(steps), len(hyper.obs_noise)),
            count=jnp.zeros(()),
            rejected=jnp.zeros(()),
            spread=(shift[:dx], scale[:dx] ** 2),
            limits=(lowest, highest),
            emission=jax.tree.map(jnp.asarray, units.emission),
            points=jnp.asarray(augmented.members(2 * dx + 2, dx)),
            learn_obs_noise=self.obs_noise is None,
        )

    @staticmethod
    def step(key: Array, state: RGPSSMState | Trial, y: Array, u: Array) -> tuple[RGPSSMState | Trial, Info]:
        """One sample, of one beginning or of those on trial. Deterministic: `key` is not used."""
        return _step(key, state, y, u) if isinstance(state, RGPSSMState) else hypotheses.step(_step, key, state, y, u)

    @staticmethod
    def paths(key: Array, state: RGPSSMState | Trial, inputs: Array, num_paths: int) -> tuple[Array, Array]:
        """Each path has its own draw of the state and of f."""
        of: RGPSSMState = leading(state)
        amplitude, process_noise = jnp.exp(of.hyper.amplitude), jnp.exp(of.hyper.process_noise)
        obs_noise = jnp.exp(of.hyper.obs_noise)
        model = augmented.Model(of.basis, of.kernel, amplitude, process_noise, of.emission, obs_noise, of.spread)
        return augmented.sample_paths(key, of.joint, model, inputs, num_paths, staying=False)

    @staticmethod
    def transition(state: RGPSSMState | Trial, x: Array) -> tuple[Array, Array]:
        """f with W integrated out."""
        of: RGPSSMState = leading(state)
        return augmented.transition(of.joint, of.basis, of.kernel, jnp.exp(of.hyper.amplitude), x)

    @staticmethod
    def process_noise(state: RGPSSMState | Trial) -> Array:
        """As learned so far; the past has none."""
        of: RGPSSMState = leading(state)
        return jnp.pad(jnp.exp(of.hyper.process_noise), (0, of.points.shape[1] - len(of.hyper.process_noise)))


def _step(key: Array, state: RGPSSMState, y: Float[Array, " dy"], u: Float[Array, " dc"]) -> tuple[RGPSSMState, Info]:
    """Add an inducing input, predict, remove one, condition, adapt."""
    hyper, kernel, dx = state.hyper, state.kernel, state.points.shape[1]
    amplitude, process_noise = jnp.exp(hyper.amplitude), jnp.exp(hyper.process_noise)
    rows = len(amplitude)
    current, basis, whitening = _add(state, kernel, amplitude, u)
    predicted = linearise(current, basis, kernel, whitening, amplitude, process_noise, u)
    basis, whitening = _remove(current, basis, kernel, whitening, amplitude, dx)

    seen = augmented.observe(state.emission, predicted, y, jnp.exp(hyper.obs_noise), state.points)
    innovation = augmented.innovate(predicted, seen)
    trusted, free, doubt = augmented.trust(predicted, seen, innovation, state.rejected)
    update = augmented.innovate(free, trusted)
    missing = jnp.any(jnp.isnan(y))
    updated = augmented.confine(augmented.update(current, free, update), state.spread, basis.scale, missing)

    carried = sensitivity.predict(state.sensitivity, predicted, amplitude, process_noise)
    of_noise = sensitivity.gradient(carried, rows, seen, innovation)
    obs = of_noise.obs_noise if state.learn_obs_noise else jnp.zeros_like(of_noise.obs_noise)
    anything = jnp.any(seen.precision > 0)
    at_kernel = anything & ~doubt.any & (state.count % _KERNEL_EVERY == 0)
    zeros = jnp.zeros_like
    lengthscale, own = jax.lax.cond(
        at_kernel,
        lambda: jax.grad(_evidence, argnums=(0, 1))(hyper.lengthscale, hyper.amplitude, updated, basis, hyper),
        lambda: (zeros(hyper.lengthscale), zeros(hyper.amplitude)),
    )
    gradient = RGPSSMHyper(lengthscale, own, of_noise.process_noise, obs)
    active = RGPSSMHyper(at_kernel, at_kernel, anything, anything)
    clock = RGPSSMHyper(*[jnp.floor(state.count / every) for every in (_KERNEL_EVERY, _KERNEL_EVERY, 1, 1)])
    decay = (1.0 + state.count / _HALF) ** -0.5
    moved, moments = ascend(
        hyper, gradient, state.moments, clock, RGPSSMHyper(*map(jnp.asarray, _RATES)), active, decay
    )
    # The system is not what it was: steps of the old size would take thousands of samples.
    jumped = doubt.any & (doubt.rejected == 0)
    raised = jnp.where(jumped, _RAISED, 0.0)
    moved = moved._replace(amplitude=moved.amplitude + raised, process_noise=moved.process_noise + raised)
    moved = jax.tree.map(jnp.clip, moved, *state.limits)
    updated = jax.lax.cond(at_kernel | jumped, lambda: _with_prior(updated, basis, hyper, moved, rows), lambda: updated)
    new = eqx.tree_at(
        lambda s: (s.joint, s.basis, s.hyper, s.moments, s.sensitivity, s.count, s.rejected, s.spread),
        state,
        (
            updated,
            basis,
            moved,
            moments,
            sensitivity.confine(sensitivity.update(carried, trusted, update), state.spread[1], missing),
            state.count + jnp.where(anything, 1.0, 0.0),
            doubt.rejected,
            running_spread(state.spread, updated.mean[:dx], state.count, anything),
        ),
    )
    variance = jnp.sum((seen.matrix @ predicted.cov) * seen.matrix, axis=1) + seen.variance
    info = Info(updated.mean[:dx], updated.cov[:dx, :dx], seen.expected, jnp.sqrt(variance), innovation.log_density)
    return new, info


def linearise(
    current: Joint,
    basis: Basis,
    kernel: RBF,
    whitening: Whitening,
    amplitude: Float[Array, " k"],
    process_noise: Float[Array, " k"],
    c: Float[Array, " dc"],
) -> Predicted:
    """Move x one step, f replaced by its tangent at the mean of x. Cost O(M^2 + (k M)^2)."""
    rows, dx = len(amplitude), len(basis.scale) - len(c)
    x = current.mean[:dx]

    def at(x: Array) -> tuple[Array, tuple[Array, Array]]:
        h, open_share = augmented.features(basis, kernel, whitening, with_inputs(x[None], c))
        return h[0], (h[0], open_share[0])

    slope_h, (h, open_share) = jax.jacfwd(at, has_aux=True)(x)
    weights = current.mean[dx:].reshape(rows, -1)
    past = jnp.eye(dx - rows, dx, dtype=x.dtype)
    slope = jnp.concatenate([jnp.eye(rows, dx, dtype=x.dtype) + weights @ slope_h, past])
    mean = augmented.with_past((x[:rows] + weights @ h)[None], x[None])[0]
    cov, across = current.cov[:dx, :dx], current.cov[:dx, dx:]
    width = len(h)
    through = jnp.pad(
        jnp.einsum("f,dfw->dw", h, current.cov[dx:, dx:].reshape(rows, width, -1)), ((0, dx - rows), (0, 0))
    )
    of_weights = jnp.pad(jnp.einsum("f,idf->id", h, through.reshape(dx, rows, width)), ((0, 0), (0, dx - rows)))
    mixed = slope @ jnp.pad(jnp.einsum("f,idf->id", h, across.reshape(dx, rows, width)), ((0, 0), (0, dx - rows)))
    added = jnp.diag(jnp.pad(amplitude * open_share + process_noise, (0, dx - rows)))
    moved = slope @ cov @ slope.T + mixed + mixed.T + of_weights + added
    return Predicted(mean, 0.5 * (moved + moved.T), slope @ across + through, slope, open_share)


def _correlations(hyper: RGPSSMHyper) -> RBF:
    return RBF(jnp.exp(hyper.lengthscale), jnp.ones((), hyper.lengthscale.dtype))


def _add(state: RGPSSMState, kernel: RBF, amplitude: Array, u: Array) -> tuple[Joint, Basis, Whitening]:
    """A new inducing input at the mean of the state, where the others leave f open."""
    dx, basis = state.points.shape[1], state.basis
    here = jnp.concatenate([state.joint.mean[:dx], u])
    whitening = augmented.whiten(basis, kernel)
    k = kernel(here[None], basis.inducing_inputs)[0] * basis.used
    open_share = 1.0 - k @ whitening.inverse @ k
    # Not where the state is only guessed, as in the middle of a long gap.
    sure = jnp.all(jnp.diagonal(state.joint.cov)[:dx] < jnp.exp(2 * state.hyper.lengthscale[:dx]))

    def insert(_: None) -> tuple[Joint, Basis, Whitening]:
        moved, wider = augmented.insert(state.joint, dx, basis, kernel, amplitude, jnp.argmin(basis.used), here)
        return moved, wider, augmented.whiten(wider, kernel)

    return jax.lax.cond((open_share > _NOVEL) & sure, insert, lambda _: (state.joint, basis, whitening), None)


def _remove(
    current: Joint, basis: Basis, kernel: RBF, whitening: Whitening, amplitude: Array, dx: int
) -> tuple[Basis, Whitening]:
    """Above the budget, without the inducing input that says least; its u is marginalised by not being used."""

    def drop(_: None) -> tuple[Basis, Whitening]:
        left = basis._replace(used=basis.used.at[jnp.argmin(scores(current, whitening, amplitude, dx))].set(0.0))
        return left, augmented.whiten(left, kernel)

    return jax.lax.cond(jnp.all(basis.used > 0), drop, lambda _: (basis, whitening), None)


def scores(current: Joint, whitening: Whitening, amplitude: Float[Array, " k"], dx: int) -> Float[Array, " m"]:
    """What the joint distribution loses with each inducing input, all of them in use: their Eq. for the divergence
    between q(x, u) and what is left of it when u_d is put back by its conditional prior. Cost O((k M)^3).
    """
    rows, num = len(amplitude), len(whitening.inverse)
    width = (len(current.mean) - dx) // rows
    index = dx + jnp.arange(rows) * width + jnp.arange(num)[:, None]
    precision = jnp.linalg.inv(current.cov + jnp.diag(1e-10 * jnp.diagonal(current.cov)))
    blocks = precision[index[:, :, None], index[:, None, :]]
    mean = current.mean[dx:].reshape(rows, width)[:, :num]
    cov = jnp.einsum("dfdg->dfg", current.cov[dx:, dx:].reshape(rows, width, rows, width))[:, :num, :num]
    inverse = whitening.inverse
    own = jnp.diagonal(inverse)
    second = jnp.einsum("mf,dfg,mg->dm", inverse, cov + mean[:, :, None] * mean[:, None, :], inverse)
    log_ratio = jnp.linalg.slogdet(blocks)[1] - jnp.sum(jnp.log(own[:, None] / amplitude), axis=1)
    return log_ratio + jnp.sum(second / amplitude[:, None] / own, axis=0)


def _prior_change(basis: Basis, old: RGPSSMHyper, new: RGPSSMHyper) -> tuple[Float[Array, "k m m"], Float[Array, ""]]:
    """Precision of u under the new prior less that under the old one, and log |K_new|."""
    used = basis.used[:, None] * basis.used
    before, after = augmented.whiten(basis, _correlations(old)), augmented.whiten(basis, _correlations(new))
    change = after.inverse * jnp.exp(-new.amplitude)[:, None, None] - (
        before.inverse * jnp.exp(-old.amplitude)[:, None, None]
    )
    log_det = 2 * len(new.amplitude) * jnp.sum(basis.used * jnp.log(jnp.diagonal(after.chol)))
    return change * used, log_det + jnp.sum(basis.used) * jnp.sum(new.amplitude)


def _of_inducing(current: Joint, basis: Basis, rows: int) -> tuple[Array, Array]:
    """Where u is in the joint mean, and its mean and covariance."""
    num = len(basis.used)
    width = len(basis.used) + len(basis.scale) + 1
    dx = len(current.mean) - rows * width
    index = (dx + jnp.arange(rows)[:, None] * width + jnp.arange(num)).ravel()
    return index, current.cov[index][:, index]


def _spread_out(blocks: Float[Array, "k m m"]) -> Float[Array, "km km"]:
    rows, num, _ = blocks.shape
    eye = jnp.eye(rows, dtype=blocks.dtype)
    return jnp.einsum("de,dfg->dfeg", eye, blocks).reshape(rows * num, rows * num)


def _evidence(
    lengthscale: Float[Array, " d"],
    amplitude: Float[Array, " k"],
    current: Joint,
    basis: Basis,
    old: RGPSSMHyper,
) -> Float[Array, ""]:
    """Log-evidence of all samples so far under other parameters of the kernel, up to a constant."""
    new = old._replace(lengthscale=lengthscale, amplitude=amplitude)
    change, log_det = _prior_change(basis, old, new)
    index, cov = _of_inducing(current, basis, len(amplitude))
    change_all, mean = _spread_out(change), current.mean[index]
    shrink = jnp.eye(len(index), dtype=cov.dtype) + cov @ change_all
    fit = mean @ change_all @ jnp.linalg.solve(shrink, mean)
    return -0.5 * (log_det + jnp.linalg.slogdet(shrink)[1] + fit)


def _with_prior(current: Joint, basis: Basis, old: RGPSSMHyper, new: RGPSSMHyper, rows: int) -> Joint:
    """The joint distribution had the prior of u been the new one: everything else follows u."""
    change = _spread_out(_prior_change(basis, old, new)[0])
    index, cov = _of_inducing(current, basis, rows)
    gain = jnp.linalg.solve(jnp.eye(len(index), dtype=cov.dtype) + change @ cov, change)
    gain = 0.5 * (gain + gain.T)
    across = current.cov[:, index]
    moved = current.cov - across @ gain @ across.T
    return Joint(current.mean - across @ (gain @ current.mean[index]), 0.5 * (moved + moved.T))
