"""Recordings cut into windows, and particles of the transition through all of them side by side.

A scan over T steps becomes a scan over `length` steps with T / length windows in parallel. A
window that is not the first of its recording starts from the ensemble its left neighbour ended
with one iteration earlier.

Of a long recording an iteration sees a batch of windows, one drawn from each of as many parts of equal
length: an iteration costs the same however long the recording is, and every window counts as often as any
other. What its left neighbour has left is then many iterations old; a window starts some samples early, and
they are not scored (`run_in`).

The number of windows can be filled up to one of few, so that another recording of about the same
length is another run of the same program.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gpssm.filters import ensemble
from gpssm.models.gpssm import GPSSM
from gpssm.plumbing.compilation import bucket

NDArray = np.ndarray


class Windows(NamedTuple):
    """Standardised data, one row per window. Padding at either end of a recording is inactive."""

    outputs: Float[NDArray, "b w dy"]
    inputs: Float[NDArray, "b w dc"]
    active: Float[NDArray, "b w"]
    left: Int[NDArray, " b"]  # the window to continue from, -1 at the start of a recording
    sequence: Int[NDArray, " b"]
    position: Int[NDArray, " b"]  # of its first sample in the recording; negative in a run-in before the first
    log_volume: Float[NDArray, ""] = np.zeros(())
    """Log of the factor between densities of standardised outputs and of the user's."""
    number: Int[NDArray, ""] = np.zeros((), int)
    """How many windows there are; in those after them nothing happens."""


def cut(outputs: list[NDArray], inputs: list[NDArray], length: int, run_in: int = 0) -> Windows:
    """Cut every recording into windows of `length` steps after a run-in; the last of them is filled up."""
    parts: list[tuple[NDArray, ...]] = []
    for index, (y, c) in enumerate(zip(outputs, inputs, strict=True)):
        count = -(-len(y) // length)
        after = count * length - len(y)
        rows = np.arange(count)[:, None] * length + np.arange(run_in + length)  # of the padded arrays
        y, c = (np.pad(a, ((run_in, after), (0, 0)), constant_values=fill)[rows] for a, fill in ((y, np.nan), (c, 0.0)))
        active = np.pad(np.ones(len(outputs[index])), (run_in, after))[rows]
        first = sum(len(part[0]) for part in parts)
        left = np.where(np.arange(count) > 0, first + np.arange(count) - 1, -1)
        parts.append((y, c, active, left, np.full(count, index), np.arange(count) * length - run_in))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Windows(*columns, number=np.asarray(len(columns[0])))


def filled_up(windows: Windows) -> Windows:
    """With windows in which nothing happens after the others, up to one of few numbers of them."""
    count = len(windows.left)
    more = bucket(count) - count
    nothing = (np.nan, 0.0, 0.0, -1, 0, 0)
    filled: list[Any] = [
        np.pad(a, ((0, more), *[(0, 0)] * (a.ndim - 1)), constant_values=value)
        for a, value in zip(windows[:6], nothing, strict=True)
    ]
    return Windows(*filled)._replace(log_volume=windows.log_volume, number=windows.number)


class Batch(NamedTuple):
    """Some of the windows."""

    windows: Windows
    chosen: Int[Array, " b"] | None  # their places; None if it is all of them
    share: Array | float  # of all windows


def batch(windows: Windows, uniform: Float[Array, " b"] | None) -> Batch:
    """One window from each of as many parts as there are numbers on [0, 1); all of them if there are none."""
    if uniform is None:
        return Batch(windows, None, 1.0)
    part = jnp.asarray(windows.number) / len(uniform)
    chosen = jnp.minimum((jnp.arange(len(uniform)) + uniform) * part, windows.number - 1.0).astype(int)
    taken: list[Any] = [jnp.asarray(a)[chosen] for a in windows[:6]]
    return Batch(windows._replace(**dict(zip(Windows._fields, taken, strict=False))), chosen, 1.0 / part)


# One sample of one window: members, f at each of them, then the window's columns -> members, and a score.
Step = Callable[..., tuple[Array, Array]]


def unroll(
    model: GPSSM,
    starts: Float[Array, "b n dx"],
    windows: Windows,
    eps: Float[Array, "b dx m"],
    columns: tuple[Any, ...],
    one: Step,
    keep: int | None = None,
) -> tuple[Float[Array, "b n dx"], Float[Array, "w b *terms"]]:
    """Members through every window, each window with its own sample of u, drawn by standard normal `eps`.

    `columns` (w, b, ...), or None, are what `one` is given at each time step besides the members and f.
    Returns the members after `keep` steps, not differentiated then, or the last ones; and what `one` has returned
    beside them.
    """
    prior = model.transition.prior()
    alphas = jax.vmap(lambda e: model.transition.draw(prior, e))(eps)

    def body(carry: tuple[Array, Array | None], now: Any) -> tuple[tuple[Array, Array | None], Array]:
        (members, kept), (time, c, *rest) = carry, now
        f = prior.side_by_side(ensemble.with_inputs(members, c), alphas)
        axes = (0, 0, *(None if part is None else 0 for part in rest))
        members, terms = jax.vmap(one, in_axes=axes)(members, f, *rest)
        if keep is not None:
            kept = jnp.where(time + 1 == keep, jax.lax.stop_gradient(members), jnp.asarray(kept))
        return (members, kept), terms

    first = starts, None if keep is None else jnp.zeros_like(starts)
    times = jnp.arange(windows.outputs.shape[1])
    # Recomputing a step on the way back is cheaper than writing out everything it needs.
    (last, kept), terms = jax.lax.scan(jax.checkpoint(body), first, (times, by_time(windows.inputs), *columns))
    return (last if kept is None else kept), terms


def window_starts(windows: Windows, carry: Float[Array, "b n dx"], first: Float[Array, "s n dx"]) -> Array:
    """Members (b, n, dx) that windows start from: `first` at the start of a recording, carried over elsewhere."""
    return jnp.where((windows.left < 0)[:, None, None], first[windows.sequence], carry)


def continued(windows: Windows, carry: Float[Array, "b n dx"], ends: Float[Array, "b n dx"]) -> Float[Array, "b n dx"]:
    """What windows start from in the next iteration: the last members of their left neighbours, not differentiated."""
    return jax.lax.stop_gradient(jnp.where((windows.left < 0)[:, None, None], carry, ends[windows.left]))


def handed_on(
    windows: Windows, chosen: Int[Array, " k"], carry: Float[Array, "b n dx"], ends: Float[Array, "k n dx"]
) -> Float[Array, "b n dx"]:
    """The same after a batch: its ends are what the right neighbours start from when their turn comes."""
    right = jnp.minimum(chosen + 1, len(windows.left) - 1)
    place = jnp.where(jnp.asarray(windows.left)[right] == chosen, right, len(windows.left))
    return jax.lax.stop_gradient(carry.at[place].set(ends, mode="drop"))


def by_time(column: Any) -> Array:
    """What windows hold at every time step, for a scan over time: (b, w, ...) -> (w, b, ...)."""
    return jnp.swapaxes(jnp.asarray(column), 0, 1)


def noise_shapes(
    model: GPSSM, windows: Windows, num_members: int, options: ensemble.Options, *, kinds: int | None = None
) -> list[tuple[int, ...]]:
    """Of the draws (w, b, ...) that `ensemble.assimilate` or `ensemble.move` need in all windows.

    `kinds` is how many there are for every move: as many as it needs by default.
    """
    (num_windows, length, output_dim), dx = windows.outputs.shape, model.state_dim
    if kinds is None:
        arguments = jnp.zeros((num_members, dx + windows.inputs.shape[2]), model.initial_state.mean.dtype)
        kinds = ensemble.moving_draws(lambda x: model.transition.prior()(x), arguments, model.process_noise)
    process = (length, num_windows, kinds, num_members, dx)
    return [process] if options.update == "sqrt" else [process, (length, num_windows, num_members, output_dim)]


def u_shape(model: GPSSM, windows: Windows) -> tuple[int, int, int]:
    """Of the draws of u, one for every window."""
    return windows.outputs.shape[0], model.state_dim, model.num_inducing


def expected_log_density(model: GPSSM, members: Float[Array, "n dx"], y: Float[Array, " dy"]) -> Float[Array, ""]:
    """`1/n sum_n log p(y | g(x^n))` over the channels that were seen."""
    return jnp.mean(model.obs_noise.log_prob(y, model.emission(members)))
