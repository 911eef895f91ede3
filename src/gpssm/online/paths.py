"""Sample paths of a forecast: each has its own draw of the state and of f, and stays where the stream has been.

One draw of f in many is unstable, and must not take the mean of all paths with it. The system has not left its range,
so that an f which does is refuted by all that was seen.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gpssm.filters.ensemble import with_inputs
from gpssm.gp.basis import Expansion

Range = tuple[Float[Array, " dx"], Float[Array, " dx"]]

_KEPT = 0.1  # share of the paths that are kept although they leave the range


def sample(
    keys: Sequence[Array],
    start: Float[Array, "p dx"],
    inputs: Float[Array, "h dc"],
    move: Callable[[Array, Array, Array], Array],
    emission: Callable[[Array], Array],
    obs_noise: Float[Array, " dy"],
    within: Range | None,
) -> tuple[Float[Array, "p h dx"], Float[Array, "p h dy"]]:
    """States and outputs.

    Args:
        keys: three, of the process noise, of the observation noise, and of which paths stay.
        start: the present state of every path.
        move: the next states (p, dx) by the present ones, an input (dc,) and a key.
        emission: outputs (p, dy) by states.
        obs_noise: variances.
        within: lower and upper end of the range; paths that leave it give way to others. None if they need not.
    """

    def body(x: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        x = move(x, *now)
        return x, x

    _, states = jax.lax.scan(body, start, (inputs, jax.random.split(keys[0], len(inputs))))
    if within is not None:
        states = states[:, stay(keys[2], states, *within)]
    clean = jax.vmap(emission)(states)
    outputs = clean + jnp.sqrt(obs_noise) * jax.random.normal(keys[1], clean.shape, clean.dtype)
    return jnp.swapaxes(states, 0, 1), jnp.swapaxes(outputs, 0, 1)


def step(
    f: Expansion, weights: Float[Array, "p k f"], process_noise: Float[Array, " k"], x: Array, c: Array, key: Array
) -> Float[Array, "p k"]:
    """The states after `x` (p, dx) of which the transition is learned, each by its own draw of the weights of f."""
    h, open_share = f.features(with_inputs(x, c))
    std = jnp.sqrt(open_share[:, None] * f.amplitude + process_noise)
    mean = x[:, : std.shape[1]] + jnp.einsum("nf,nkf->nk", h, weights)
    return mean + std * jax.random.normal(key, std.shape, x.dtype)


def stay(
    key: Array, states: Float[Array, "h p dx"], low: Float[Array, " dx"], high: Float[Array, " dx"]
) -> Int[Array, " p"]:
    """The number of the path to take for each: itself, or for one that leaves the range one of those that do not.

    Where nearly all of them leave, those that stay longest are kept.
    """
    inside = jnp.all((states > low) & (states < high), axis=2)
    steps = jnp.sum(jnp.cumprod(inside, axis=0), axis=0)
    count = len(steps)
    kept = jnp.maximum(jnp.sum(steps == len(states)), int(np.ceil(_KEPT * count)))
    order = jnp.argsort(-steps)
    good = jnp.zeros(count, bool).at[order].set(jnp.arange(count) < kept)
    others = order[jnp.floor(kept * jax.random.uniform(key, (count,))).astype(int)]
    return jnp.where(good, jnp.arange(count), others)
