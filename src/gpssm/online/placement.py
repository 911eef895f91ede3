"""Inducing inputs are placed where the stream goes, and moved when it goes elsewhere."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gpssm.gp.basis import Basis, Joining, Whitening, join, whiten
from gpssm.gp.kernels import Kernel

T = TypeVar("T")

# An inducing input is worth its place if the error it removes is not lost in the process noise.
_WORTH, _NOVEL = 0.3, (1e-3, 0.3)


def novel(process_noise: Float[Array, " k"], amplitude: Float[Array, " k"]) -> Float[Array, ""]:
    """Share of the amplitude (both are variances) that must be open where an inducing input is placed."""
    return jnp.clip(_WORTH * jnp.min(process_noise / amplitude), *_NOVEL)


def place(
    weights: T,
    basis: Basis,
    kernel: Kernel,
    here: Float[Array, " d"],
    least: Array | float,
    allowed: Bool[Array, ""],
    insert: Callable[[Joining], T],
) -> tuple[T, Basis, Whitening]:
    """A new inducing input `here`, if the others leave a share of the variance open there that is more than `least`.

    It takes the place of the one that the others explain best, if it says more than that. `insert` returns the
    weights of f with it.
    """
    whitening = whiten(basis, kernel)
    k = kernel(here[None], basis.inducing_inputs)[0] * basis.used
    novelty = 1.0 - k @ whitening.inverse @ k
    # Conditional variance of each given the others; a free slot goes first.
    worth = jnp.where(basis.used > 0, 1.0 / jnp.diagonal(whitening.inverse), 0.0)
    slot = jnp.argmin(worth)

    def add(_: None) -> tuple[T, Basis, Whitening]:
        joining = join(basis, kernel, slot, here)
        return insert(joining), joining.basis, whiten(joining.basis, kernel)

    wanted = (novelty > least) & (novelty > 2.0 * worth[slot]) & allowed
    return jax.lax.cond(wanted, add, lambda _: (weights, basis, whitening), None)
