"""Where VJF puts its centres, and one step of Adam for all that is learned by gradient."""

from dataclasses import replace

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from gpssm.online.adam import ascend, decay
from gpssm.online.outliers import Verdict
from gpssm.online.vjf.inference import Learned, VJFState, Weights, features, prior, steps_back

# Adam: noise variances must travel far, centres and widths change f everywhere.
_RATE = {"recognition": 0.003, "process_noise": 0.06, "obs_noise": 0.06, "centres": 0.003, "log_width": 0.01}
_SLOWEST = 0.2  # share of their first rate that those of the noises fall to
_NOVEL = 1.0  # distance in widths from which on a place deserves a centre of its own
_NOVEL_AT_FIRST = 0.5  # the same while there are some left
_WIDER = 0.012  # growth of the widths when a centre had to make room, for each dimension: more of them are emptier


def place(state: VJFState, c: Array) -> VJFState:
    """A centre where the stream is now, if there is none nearby."""
    learned, weights, dx = state.learned, state.weights, len(state.mean)
    here = jnp.concatenate([steps_back(state, state.mean[None])[0], c])
    # In widths, or in what is known of the state if that is less: no place is new in the middle of a long gap.
    k = len(state.scales.step)
    var = jnp.concatenate(
        [state.var[:k], (state.var[:-k] + state.var[k:]) / jnp.resize(state.scales.step, (dx - k,)) ** 2]
    )
    blurred = jnp.exp(2 * learned.log_width) + jnp.concatenate([var, jnp.zeros_like(c)])
    far = jnp.where(state.used > 0, jnp.sum((here - learned.centres) ** 2 / blurred, axis=1), jnp.inf)
    between = jnp.sum((learned.centres[:, None] - learned.centres) ** 2 / blurred, axis=2)
    pairs = (state.used[:, None] * state.used > 0) & ~jnp.eye(len(between), dtype=bool)
    nearest = jnp.min(jnp.where(pairs, between, jnp.inf), axis=1)
    full = jnp.all(state.used > 0)
    slot = jnp.where(full, jnp.argmin(nearest), jnp.argmin(state.used))
    wanted = jnp.min(far) > jnp.where(full, jnp.maximum(_NOVEL**2, nearest[slot]), _NOVEL_AT_FIRST**2)

    one = jnp.arange(weights.mean.shape[1]) == slot
    num = len(state.used)
    h = features(state, learned, state.mean[None], c)[0, :num]
    value = jnp.where(jnp.any(state.used > 0), jnp.where(jnp.isnan(h), 0.0, h) @ weights.mean[:, :num].T, 0.0)
    before = prior(state.scales.step, len(one))
    mean = jnp.where(one & wanted, value[:, None], weights.mean)
    cov = jnp.where((one[:, None] | one) & wanted, before, weights.cov)
    index = jnp.arange(len(state.used))
    centres = jnp.where(((index == slot) & wanted)[:, None], here, learned.centres)
    log_width = learned.log_width + jnp.where(wanted & full, _WIDER * len(here), 0.0)
    return replace(
        state,
        weights=Weights(mean, cov),
        used=jnp.where((index == slot) & wanted, 1.0, state.used),
        learned=learned._replace(centres=centres, log_width=log_width),
    )


def climb(
    state: VJFState, gradient: Learned, verdict: Verdict
) -> tuple[Learned, tuple[Float[Array, " p"], Float[Array, " p"]]]:
    """One step of Adam, where a sample has something to say. An outlier speaks of the noises only."""
    later = decay(state.count)

    def rate_of(name: str) -> Array:
        if name == "obs_noise" and not state.learn_obs_noise:
            return jnp.zeros(())
        # Noises go on to be learned, at a pace that finds back after a fault. Centres do not: for ever, they run into
        # each other while W follows behind.
        if name.endswith("noise"):
            pace = jnp.maximum(later, _SLOWEST)
        else:
            pace = later**3 if name in ("centres", "log_width") else later
        return jnp.where(verdict.seen if name.endswith("noise") else verdict.usual, pace * _RATE[name], 0.0)

    values, restore = ravel_pytree(state.learned)
    sizes = [ravel_pytree(part)[0].size for part in state.learned]
    rates = jnp.concatenate([jnp.full(n, rate_of(name)) for name, n in zip(Learned._fields, sizes, strict=True)])
    slope = jnp.nan_to_num(ravel_pytree(gradient)[0])
    moved, adam = ascend(values, slope, state.adam, clock=state.count, rates=rates, active=rates > 0)
    return restore(moved), adam


def bounded(state: VJFState, learned: Learned) -> Learned:
    """Limits far from any sensible value, so that a constant stretch drives nothing to zero or infinity."""
    step, output = 2 * jnp.log(state.scales.step), 2 * jnp.log(state.scales.output)
    return learned._replace(
        process_noise=jnp.clip(learned.process_noise, step - 12.0, step + 4.0),
        obs_noise=jnp.clip(learned.obs_noise, output - 12.0, output + 10.0),
        log_width=jnp.clip(learned.log_width, -3.0, 20.0),
    )
