"""Inducing inputs are placed where the stream goes, and moved when it goes elsewhere."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gpssm.gp.basis import Expansion, Joining

T = TypeVar("T")

# An inducing input is worth its place if the error it removes is not lost in the process noise.
_WORTH, _NOVEL = 0.3, (1e-3, 0.3)


def novel(process_noise: Float[Array, " k"], amplitude: Float[Array, " k"]) -> Float[Array, ""]:
    """Share of the amplitude (both are variances) that must be open where an inducing input is placed."""
    return jnp.clip(_WORTH * jnp.min(process_noise / amplitude), *_NOVEL)


def place(
    weights: T,
    now: Expansion,
    here: Float[Array, " d"],
    least: Array | float,
    allowed: Bool[Array, ""],
    insert: Callable[[Joining], T],
) -> tuple[T, Expansion]:
    """A new inducing input `here`, if the others leave a share of the variance open there that is more than `least`.

    It takes the place of the one that the others explain best, if it says more than that. `insert` returns the
    weights of f with it. Nothing is placed unless `allowed`.
    """
    basis, kernel, amplitude, inverse, _ = now
    k = kernel(here[None], basis.inducing_inputs)[0] * basis.used
    novelty = 1.0 - k @ inverse @ k
    # Conditional variance of each given the others; a free slot goes first.
    worth = jnp.where(basis.used > 0, 1.0 / jnp.diagonal(inverse), 0.0)
    slot = jnp.argmin(worth)

    def add() -> tuple[T, Expansion]:
        joining, wider = now.join(slot, here)
        return insert(joining), Expansion.of(wider, kernel, amplitude)

    wanted = (novelty > least) & (novelty > 2.0 * worth[slot]) & allowed
    placed: tuple[T, Expansion] = jax.lax.cond(wanted, add, lambda: (weights, now))
    return placed
