"""Adam, uphill, one step a sample: for what has no closed form.

Its memory is shorter than usual: what is learned moves. Gradients are clipped: one outlier must not count for hundreds
of samples, but many must be able to raise the noise. Rates fall like one over the root of the number of samples.
"""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

T = TypeVar("T")

_BETA1, _BETA2, _CLIP = 0.9, 0.99, 5.0
_HALF = 1000.0  # samples after which the rates fall


def decay(count: Array) -> Float[Array, ""]:
    """The share of their first value that rates have after `count` samples."""
    return (1.0 + count / _HALF) ** -0.5


def ascend(
    values: T, gradient: T, moments: tuple[T, T], *, clock: Any, rates: Any, active: Any, small: float = 1e-4
) -> tuple[T, tuple[T, T]]:
    """One step of those values that are active; what is not finite in the gradient counts as zero.

    Args:
        values, gradient: trees of arrays of the same structure.
        moments: of the gradient, first and second: what was returned for the sample before.
        clock: number of steps before this one. It, `rates` and `active` are one for all values, or one for each
            part of the tree.
        rates: step sizes, decay included.
        active: whether a value moves.
        small: a gradient far below it is followed in proportion, not by a step of fixed size.
    """

    def one(value: Array, g: Array, m: Array, v: Array, count: Array, rate: Array, on: Array) -> list[Array]:
        on = jnp.where(on, 1.0, 0.0)
        g = jnp.clip(jnp.where(jnp.isfinite(g), g, 0.0), -_CLIP, _CLIP)
        m, v = m + on * (1 - _BETA1) * (g - m), v + on * (1 - _BETA2) * (g * g - v)
        size = jnp.sqrt(v / (1 - _BETA2 ** (count + 1))) + small
        return [value + on * rate * m / (1 - _BETA1 ** (count + 1)) / size, m, v]

    parts = (jax.tree.broadcast(part, values) for part in (clock, rates, active))
    moved = jax.tree.map(one, values, gradient, *moments, *parts)
    value, first, second = jax.tree.transpose(jax.tree.structure(values), jax.tree.structure([0, 0, 0]), moved)
    return value, (first, second)
