"""RGPSSM (Zheng et al. 2024, arXiv 2411.14679): an extended Kalman filter of the state and f together.

One Gaussian over x and u, as in OEnVI, but moved by linearising f at the mean of the state instead of by an
ensemble. What makes it itself:

- an inducing input is added where the kernel's variance that the others leave open is above a threshold; above
  the budget the one is removed whose loss changes the distribution of all least (their score from the inverse
  covariances);
- hyper-parameters follow the evidence of all samples so far, which q(u) / p(u) has kept: the likelihood of u.
  With another prior p'(u) the posterior is q(u) p'(u) / p(u), in closed form, and so is its normalising constant.

The paper leaves open, and is given here what helps: Q and R are known there and follow the gradient of the
likelihood of every sample here; kernel and prior mean are the user's there, and RBF on top of a linear function
with its own weights here; a trial of several hypotheses, and less trust in outliers, are OEnVI's.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag
from jaxtyping import Array, Float, Int

from gpssm.filters import augmented
from gpssm.filters.augmented import AugmentedState, Predicted
from gpssm.filters.ensemble import with_inputs
from gpssm.gp.basis import Basis, Expansion
from gpssm.gp.kernels import RBF
from gpssm.online import reading
from gpssm.online.adam import ascend, decay
from gpssm.online.augmented import AugmentedMethod, Hypothesis, Tracked, assimilate, leading
from gpssm.online.base import Info, Units, host
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import NonNegative
from gpssm.posteriors.posterior import Posterior

_NOVEL = 0.1  # share of the kernel's variance that is worth an inducing input
_KERNEL_EVERY = 5  # samples between two steps of the kernel's parameters
_RAISED = 1.0  # that the logarithms of Q and the amplitude grow by when the state has jumped


@saved
class RGPSSMHyper(NamedTuple):
    """Logarithms of what is learned by gradient."""

    lengthscale: Float[Array, " d"]
    amplitude: Float[Array, " k"]  # variance of f_d
    process_noise: Float[Array, " k"]
    obs_noise: Float[Array, " dy"]


# Of Adam, in this order. Noise variances must travel far; length scales change f everywhere.
_RATES = (0.02, 0.04, 0.03, 0.03)


@saved
class RGPSSMState(Tracked):
    """All that is carried from one sample to the next; members are needed for a nonlinear emission only."""

    hyper: RGPSSMHyper
    adam: tuple[RGPSSMHyper, NonNegative[RGPSSMHyper]]
    limits: tuple[RGPSSMHyper, RGPSSMHyper]
    learn_obs_noise: bool = eqx.field(static=True)

    kind = RBF

    @property
    def obs_noise(self) -> Float[Array, " dy"]:
        """Variances R of the observation noise."""
        return jnp.exp(self.hyper.obs_noise)


@saved
@dataclass(frozen=True)
class RGPSSM(AugmentedMethod):
    """The recursive GP state-space model. `RGPSSM(state_dim).start()` is ready to learn.

    >>> import gpssm
    >>> gpssm.RGPSSM(2, num_inducing=30, emission=[[1.0, 0.5]]).start()
    <RGPSSM stream: 0 sample(s), 2 state(s)>
    """

    _: KW_ONLY
    name: str = "RGPSSM"

    staying = False

    def hypothesis(self, units: Units, of: Hypothesis) -> RGPSSMState:
        """The state to start from if `of` is right."""
        steps, scale = units.steps, units.scale
        hyper = RGPSSMHyper(
            host.log(of.lengthscale * scale),
            host.log(of.amplitude * steps),
            host.log(of.process_noise * steps),
            host.log(units.obs_noise),
        )
        span, step_size = np.log(scale), np.log(steps)
        lowest = RGPSSMHyper(span - 1.5, step_size - 10, step_size - 12, hyper.obs_noise - 12)
        highest = RGPSSMHyper(span + 3.0, step_size + 8, step_size + 4, hyper.obs_noise + 10)
        # One slot more than the budget: a new inducing input may be the one that is not worth keeping.
        prior = self.prior(units, of, self.num_inducing + 1, 2 * self.state_dim + 2)
        return RGPSSMState.start(*prior, hyper=hyper, limits=(lowest, highest), learn_obs_noise=self.obs_noise is None)

    @staticmethod
    def step(
        key: Array, state: RGPSSMState, y: Float[Array, " dy"], c: Float[Array, " dc"]
    ) -> tuple[RGPSSMState, Info]:
        """Add an inducing input, predict, remove one, condition, adapt. Deterministic: `key` is not used."""
        hyper = state.hyper
        current, f = state.placed(c, state.f, _NOVEL)
        basis = _within_budget(current, f, state.state_dim)
        found = assimilate(state, current, linearise(current, f, state.process_noise, c), y, state.learn_obs_noise)
        updated, verdict = found.state, found.verdict

        at_kernel = verdict.usual & (state.count % _KERNEL_EVERY == 0)
        gradient = jax.lax.cond(
            at_kernel,
            lambda: jax.grad(_evidence)(hyper, updated, basis, hyper),
            lambda: jax.tree.map(jnp.zeros_like, hyper),
        )._replace(process_noise=found.gradient.process_noise, obs_noise=found.gradient.obs_noise)
        active = RGPSSMHyper(at_kernel, at_kernel, verdict.seen, verdict.seen)
        clock = RGPSSMHyper(*[jnp.floor(state.count / every) for every in (_KERNEL_EVERY, _KERNEL_EVERY, 1, 1)])
        rates = RGPSSMHyper(*(decay(state.count) * rate for rate in _RATES))
        moved, adam = ascend(hyper, gradient, state.adam, clock=clock, rates=rates, active=active)
        # The system is not what it was: steps of the old size would take thousands of samples.
        raised = jnp.where(verdict.jump, _RAISED, 0.0)
        moved = moved._replace(amplitude=moved.amplitude + raised, process_noise=moved.process_noise + raised)
        moved = jax.tree.map(jnp.clip, moved, *state.limits)
        updated = jax.lax.cond(
            at_kernel | verdict.jump, lambda: _with_prior(updated, basis, hyper, moved), lambda: updated
        )
        return state.moved(found, updated, basis, moved, adam)

    @staticmethod
    def posterior(state: Any) -> Posterior:
        """An ordinary fitted model whose recording ends here; what is lost on the way says `online.reading`."""
        return reading.posterior(leading(state), "RGPSSM")


def linearise(
    current: AugmentedState, f: Expansion, process_noise: Float[Array, " k"], c: Float[Array, " dc"]
) -> Predicted:
    """Move x one step, f replaced by its tangent at the mean of x. Cost O(M^2 + (k M)^2)."""
    rows, dx = len(f.amplitude), len(f.basis.scale) - len(c)
    x = current.mean[:dx]

    def at(x: Array) -> tuple[Array, tuple[Array, Array]]:
        h, open_share = f.features(with_inputs(x[None], c))
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
    added = jnp.diag(jnp.pad(f.amplitude * open_share + process_noise, (0, dx - rows)))
    moved = slope @ cov @ slope.T + mixed + mixed.T + of_weights + added
    return Predicted(mean, 0.5 * (moved + moved.T), slope @ across + through, slope, open_share)


def _within_budget(current: AugmentedState, f: Expansion, dx: int) -> Basis:
    """Above the budget, without the inducing input that says least; its u is marginalised by not being used."""

    def drop() -> Basis:
        return f.basis._replace(used=f.basis.used.at[jnp.argmin(scores(current, f, dx))].set(0.0))

    return jax.lax.cond(jnp.all(f.basis.used > 0), drop, lambda: f.basis)


def scores(current: AugmentedState, f: Expansion, dx: int) -> Float[Array, " m"]:
    """What q(x, u) loses with each inducing input, all of them in use: their Eq. for the divergence
    between it and what remains of it when u_d is put back by its conditional prior. Cost O((k M)^3).
    """
    amplitude, inverse = f.amplitude, f.inverse
    rows, num = len(amplitude), len(inverse)
    width = (len(current.mean) - dx) // rows
    index = dx + jnp.arange(rows) * width + jnp.arange(num)[:, None]
    precision = jnp.linalg.inv(current.cov + jnp.diag(1e-10 * jnp.diagonal(current.cov)))
    blocks = precision[index[:, :, None], index[:, None, :]]
    own = jnp.diagonal(inverse)
    second = jnp.einsum("mf,dfg,mg->dm", inverse, augmented.second_moment(current, dx, rows, num), inverse)
    log_ratio = jnp.linalg.slogdet(blocks)[1] - jnp.sum(jnp.log(own[:, None] / amplitude), axis=1)
    return log_ratio + jnp.sum(second / amplitude[:, None] / own, axis=0)


def _prior_change(
    current: AugmentedState, basis: Basis, old: RGPSSMHyper, new: RGPSSMHyper
) -> tuple[Int[Array, " k*m"], Float[Array, "k*m k*m"], Float[Array, ""]]:
    """Where u is in the augmented state; its precision under the new prior less that under the old; log |K_new|."""
    used = basis.used[:, None] * basis.used
    before, after = (Expansion.learned(basis, RBF, hyper.lengthscale, hyper.amplitude) for hyper in (old, new))
    change = after.inverse * jnp.exp(-new.amplitude)[:, None, None] - (
        before.inverse * jnp.exp(-old.amplitude)[:, None, None]
    )
    rows, num, width = len(new.amplitude), len(basis.used), len(basis.used) + len(basis.scale) + 1
    log_det = 2 * rows * jnp.sum(basis.used * jnp.log(jnp.diagonal(after.chol)))
    index = len(current.mean) - rows * width + jnp.arange(rows)[:, None] * width + jnp.arange(num)
    return index.ravel(), block_diag(*(change * used)), log_det + jnp.sum(basis.used) * jnp.sum(new.amplitude)


def _evidence(new: RGPSSMHyper, current: AugmentedState, basis: Basis, old: RGPSSMHyper) -> Float[Array, ""]:
    """Log-evidence of all samples so far under other parameters of the kernel, up to a constant."""
    index, change, log_det = _prior_change(current, basis, old, new)
    mean, cov = current.mean[index], current.cov[index][:, index]
    shrink = jnp.eye(len(index), dtype=cov.dtype) + cov @ change
    fit = mean @ change @ jnp.linalg.solve(shrink, mean)
    return -0.5 * (log_det + jnp.linalg.slogdet(shrink)[1] + fit)


def _with_prior(current: AugmentedState, basis: Basis, old: RGPSSMHyper, new: RGPSSMHyper) -> AugmentedState:
    """The augmented state had the prior of u been the new one: everything else follows u."""
    index, change, _ = _prior_change(current, basis, old, new)
    across = current.cov[:, index]
    gain = jnp.linalg.solve(jnp.eye(len(index), dtype=across.dtype) + change @ across[index], change)
    gain = 0.5 * (gain + gain.T)
    moved = current.cov - across @ gain @ across.T
    return AugmentedState(current.mean - across @ (gain @ current.mean[index]), 0.5 * (moved + moved.T))
