"""A recording, filtered a stretch at a time: what a filter of a fitted model is made of, and the loop over samples.

Every sample has a key of its own, made from its number, so that what is found does not depend on where a recording was
cut. Rows after the last sample, which fill up a stretch, change nothing.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


class Moments(NamedTuple):
    """Of the filtered state, and the score of the sample, at one time or at all."""

    mean: Float[Array, "*t dx"]
    cov: Float[Array, "*t dx dx"]
    log_likelihood: Float[Array, "*t"]

    @classmethod
    def of(cls, found: Any) -> "Moments":
        """Those alone, of what a step has found."""
        return cls(found.mean, found.cov, found.log_likelihood)


class Filter(NamedTuple):
    """How samples are assimilated, one after the other. Its state is any tree of arrays."""

    start: Callable[[Float[Array, "n dx"] | None, Array], Any]
    """The state before the first sample, from members or, where they are None, from p(x_0); and a key."""
    step: Callable[[Any, Float[Array, " dy"], Float[Array, " dc"], Array], tuple[Any, Any]]
    """From a state, a sample (NaN where a channel is missing), its input and a key to the state after it, and to what
    was found: something with the `Moments` of that state."""
    members: Callable[[Any, Array], Float[Array, "n dx"]]
    """Equally weighted draws of a state, for forecasts; with a key."""


class Stretch(NamedTuple):
    """Some samples of a recording, in arrays that may be longer than they are many."""

    outputs: Any
    """(T, dy)."""
    inputs: Any
    """(T, dc)."""
    first: Int[Array, ""] | np.int32
    """Number of the first sample in its recording, from 0."""
    samples: Int[Array, ""] | np.int32
    """How many there are."""

    @property
    def steps(self) -> Int[Array, " t"]:
        """The number of every row in the recording."""
        return self.first + jnp.arange(len(self.outputs))


def advance(
    step: Callable[..., tuple[Any, Any]], state: Any, stretch: Stretch, key: Array, keep: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """The state after a stretch, and what is to be kept of every row of it.

    >>> count = lambda state, y, c, key: (state + y[0], state)
    >>> ones = Stretch(jnp.ones((4, 1)), jnp.zeros((4, 0)), jnp.asarray(0), jnp.asarray(3))
    >>> total, before = advance(count, jnp.asarray(0.0), ones, jax.random.key(0), lambda found: found)
    >>> float(total), before.tolist()
    (3.0, [0.0, 1.0, 2.0, 3.0])
    """
    keys = jax.vmap(partial(jax.random.fold_in, key))(stretch.steps)
    real = jnp.arange(len(stretch.outputs)) < stretch.samples

    def body(state: Any, now: tuple[Array, Array, Array, Array]) -> tuple[Any, Any]:
        y, c, key, is_real = now
        moved, found = step(state, y, c, key)
        return jax.tree.map(lambda new, old: jnp.where(is_real, new, old), moved, state), keep(found)

    return jax.lax.scan(body, state, (stretch.outputs, stretch.inputs, keys, real))
