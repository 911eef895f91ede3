"""What SVMC learns by gradient: noises through time, kernel with the past as it is, proposal by the filtering bound."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.filters.ensemble import with_inputs
from gpssm.gp.basis import Basis
from gpssm.numerics.networks import MLP
from gpssm.online.adam import ascend, decay
from gpssm.online.base import bounded_lengthscale
from gpssm.online.outliers import Verdict
from gpssm.online.svmc import filtering
from gpssm.online.svmc.filtering import Adapted, KernelParameters, Moved, NoiseParameters, Particles, SVMCState

# Noise variances must travel far; length scales change f everywhere.
_KERNEL_RATES = (0.01, 0.06)  # of the length scales and of the amplitude
_NOISE_RATE, _PROPOSAL_RATE = 0.03, 0.003
# Gradients far below this are followed in proportion, not in steps of fixed size, which near the optimum would be
# driven by rounding alone; and behind a linear g the network starts at its optimum.
_SMALL, _PROPOSAL_SMALL = 1e-3, 0.1
_KERNEL_EVERY = 4  # samples between two gradients of the kernel
_JUMP = 1.0  # that the logarithm of Q grows at most by when the system has changed


def push(function: Callable[[Moved, Array], Array], moved: Moved, log_obs_noise: Array) -> Array:
    """Derivatives (n, p, ...) in log Q and log R of what a function makes of predictions and of log R."""
    dy = len(log_obs_noise)

    def of(mean: Array, variance: Array, log_obs_noise: Array) -> Array:
        return function(moved._replace(mean=mean, variance=variance), log_obs_noise)

    def along(mean: Array, variance: Array, own: Array) -> Array:
        return jax.jvp(of, (moved.mean, moved.variance, log_obs_noise), (mean, variance, own))[1]

    own = jnp.eye(moved.mean_slope.shape[1], dtype=log_obs_noise.dtype)[:, -dy:]
    return jax.vmap(along, in_axes=(1, 1, 0), out_axes=1)(moved.mean_slope, moved.variance_slope, own)


def noise_gradient(
    state: SVMCState, particles: Particles, moved: Moved, y: Array, counts: Array
) -> tuple[NoiseParameters, Float[Array, "n p"]]:
    """Gradient of log sum_i w_i p(y_t | particle i) in log Q and log R, through the past; and of log w_i."""

    def density(moved: Moved, log_obs_noise: Array) -> Array:
        return filtering.condition(state, moved, log_obs_noise, y).log_density

    at = density(moved, state.learned.noise.obs)
    own = push(density, moved, state.learned.noise.obs)
    before = jax.nn.softmax(particles.log_weight)
    after = jax.nn.softmax(particles.log_weight + at)
    slope = after @ (particles.weight_slope + own) - before @ particles.weight_slope
    process, obs = jnp.split(slope, [len(state.unit)])
    if not state.learn_obs_noise:
        obs = jnp.zeros_like(obs)
    return NoiseParameters(process, obs), particles.weight_slope + jnp.where(counts, own, 0.0)


def kernel_gradient(
    state: SVMCState, particles: Particles, basis: Basis, moved: Moved, y: Array, c: Array
) -> KernelParameters:
    """Gradient of log sum_i w_i p(y_t | particle i) + E[log p(u)] / t, with the past as it is."""
    num, weight = len(basis.used), jax.nn.softmax(particles.log_weight)
    mean, cov = particles.mean[..., :num], particles.cov[..., :num, :num]
    moment = jnp.einsum("n,nkf,nkg->kfg", weight, mean, mean) + jnp.einsum("n,nkfg->kfg", weight, cov)
    s = with_inputs(particles.x, c)

    def bound(kernel: KernelParameters) -> Array:
        f = kernel.expand(basis)
        h, open_share = f.features(s)
        change = h - moved.features
        open_variance = open_share[:, None] * f.amplitude
        means = moved.mean + jnp.einsum("nkf,nf->nk", particles.mean, change)
        # Only the slope counts: the covariance need not be read again.
        variances = moved.variance + 2 * jnp.einsum("nkf,nf->nk", moved.gain, change)
        variances = variances + open_variance - jax.lax.stop_gradient(open_variance)
        there = filtering.condition(state, moved._replace(mean=means, variance=variances), state.learned.noise.obs, y)
        fit = jax.nn.logsumexp(particles.log_weight + there.log_density)
        log_det = 2 * jnp.sum(basis.used * jnp.log(jnp.diagonal(f.chol)))
        surprise = jnp.sum(moment * f.inverse, axis=(1, 2)) / f.amplitude
        prior = -0.5 * jnp.sum(surprise + log_det + jnp.sum(basis.used) * kernel.amplitude)
        return fit + prior / (state.count + 10.0)

    return jax.grad(bound)(state.learned.kernel)


def learn(
    state: SVMCState, gradient: NoiseParameters, proposal: MLP, kernel: Callable[[], KernelParameters], verdict: Verdict
) -> tuple[Adapted, tuple[Adapted, Adapted]]:
    """A step of Adam for everything. The kernel's gradient, which is costly, is taken now and then.

    A jump widens Q at once: the units of the first samples may be too small.
    """
    (first, second), learned, count = state.adam, state.learned, state.count

    def climb(value: Any, gradient: Any, moments: Any, rate: Any, small: float = _SMALL, every: int = 1) -> Any:
        at = count / every
        rates = jax.tree.map(lambda share: decay(at) * share, rate)
        return ascend(value, gradient, moments, clock=jnp.floor(at), rates=rates, active=verdict.usual, small=small)

    def kernel_step() -> Any:
        rates = KernelParameters._make(_KERNEL_RATES)
        return climb(learned.kernel, kernel(), (first.kernel, second.kernel), rates, every=_KERNEL_EVERY)

    steps = (
        jax.lax.cond(count % _KERNEL_EVERY == 0, kernel_step, lambda: (learned.kernel, (first.kernel, second.kernel))),
        climb(learned.noise, gradient, (first.noise, second.noise), _NOISE_RATE),
        climb(learned.proposal, proposal, (first.proposal, second.proposal), _PROPOSAL_RATE, _PROPOSAL_SMALL),
    )
    values, moments = zip(*steps, strict=True)
    moved = Adapted(*values)
    moved = moved._replace(noise=moved.noise._replace(process=moved.noise.process + verdict.raised(_JUMP)))
    return moved, (Adapted(*(m for m, _ in moments)), Adapted(*(v for _, v in moments)))


def bounded(state: SVMCState, learned: Adapted, variance: Float[Array, " dx"]) -> Adapted:
    """Limits far from any sensible value, so that a constant stretch drives nothing to zero or infinity."""
    kernel, noise, step_size, obs_size = learned.kernel, learned.noise, jnp.log(state.unit), jnp.log(state.obs_unit)
    # The first samples may have been at rest.
    size = jnp.maximum(step_size, jnp.log(variance[: len(step_size)]))
    kernel = KernelParameters(
        bounded_lengthscale(kernel.lengthscale, variance, state.basis.scale),
        jnp.clip(kernel.amplitude, step_size - 10.0, size + 5.0),
    )
    noise = NoiseParameters(
        jnp.clip(noise.process, step_size - 12.0, size + 2.0),
        jnp.clip(noise.obs, obs_size - 12.0, obs_size + 10.0),
    )
    return Adapted(kernel, noise, learned.proposal)
