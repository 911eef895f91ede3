"""Recordings cut into windows, and particles of the transition through all of them side by side.

A scan over T steps becomes a scan over `length` steps with T / length windows in parallel. A
window that is not the first of its recording starts from the ensemble its left neighbour ended
with one iteration earlier.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gpssm.filters import ensemble
from gpssm.models.gpssm import GPSSM

NDArray = np.ndarray


class Windows(NamedTuple):
    """Standardised data, one row per window. Padding at the end of a recording is inactive."""

    outputs: Float[NDArray, "b w dy"]
    inputs: Float[NDArray, "b w dc"]
    active: Float[NDArray, "b w"]
    left: Int[NDArray, " b"]  # the window to continue from, -1 at the start of a recording
    sequence: Int[NDArray, " b"]
    position: Int[NDArray, " b"]  # of its first sample in the recording
    log_volume: Float[NDArray, ""] = np.zeros(())
    """Log of the factor between densities of standardised outputs and of the user's."""

    @property
    def num_observed(self) -> int:
        """How many numbers of the outputs are not missing."""
        return int(np.sum(~np.isnan(self.outputs)))


def cut(outputs: list[NDArray], inputs: list[NDArray], length: int) -> Windows:
    """Cut every recording into windows of `length` steps, the last one padded."""
    rows: list[tuple[NDArray, NDArray, NDArray, int, int, int]] = []
    for index, (y, c) in enumerate(zip(outputs, inputs, strict=True)):
        for start in range(0, len(y), length):
            part, missing = slice(start, start + length), max(0, start + length - len(y))
            part_y = np.pad(y[part], ((0, missing), (0, 0)), constant_values=np.nan)
            part_c = np.pad(c[part], ((0, missing), (0, 0)))
            active = np.pad(np.ones(length - missing), (0, missing))
            rows.append((part_y, part_c, active, -1 if start == 0 else len(rows) - 1, index, start))
    return Windows(*map(np.stack, zip(*rows, strict=True)))


# One sample of one window: members, f at each of them, then the window's columns -> members, and a score.
Step = Callable[..., tuple[Array, Array]]


def unroll(
    model: GPSSM, starts: Float[Array, "b n dx"], windows: Windows, key: Array, columns: tuple[Any, ...], one: Step
) -> tuple[Float[Array, "b n dx"], Float[Array, "w b *terms"]]:
    """Members through every window, each window with its own sample of u drawn from `key`.

    `columns` (w, b, ...), or None, are what `one` is given at each time step besides the members and f.
    Returns the last members, and what `one` has returned beside them.
    """
    prior = model.transition.prior()
    eps = jax.random.normal(key, (starts.shape[0], model.state_dim, model.num_inducing), starts.dtype)
    alphas = jax.vmap(lambda e: model.transition.draw(prior, e))(eps)

    def body(members: Array, now: Any) -> tuple[Array, Array]:
        c, *rest = now
        f = prior.side_by_side(ensemble.with_inputs(members, c), alphas)
        axes = (0, 0, *(None if part is None else 0 for part in rest))
        return jax.vmap(one, in_axes=axes)(members, f, *rest)

    # Recomputing a step on the way back is cheaper than writing out everything it needs.
    return jax.lax.scan(jax.checkpoint(body), starts, (by_time(windows.inputs), *columns))


def window_starts(model: GPSSM, windows: Windows, carry: Float[Array, "b n dx"], key: Array) -> Float[Array, "b n dx"]:
    """Members that windows start from: drawn from q(x_0) at the start of a recording, carried over elsewhere."""
    first = model.initial_state.draw(key, carry.shape[1])
    return jnp.where((windows.left < 0)[:, None, None], first[windows.sequence], carry)


def continued(windows: Windows, carry: Float[Array, "b n dx"], ends: Float[Array, "b n dx"]) -> Float[Array, "b n dx"]:
    """What windows start from in the next iteration: the last members of their left neighbours, not differentiated."""
    return jax.lax.stop_gradient(jnp.where((windows.left < 0)[:, None, None], carry, ends[windows.left]))


def by_time(column: Any) -> Array:
    """What windows hold at every time step, for a scan over time: (b, w, ...) -> (w, b, ...)."""
    return jnp.swapaxes(jnp.asarray(column), 0, 1)


def noise_by_time(
    key: Array,
    model: GPSSM,
    starts: Float[Array, "b n dx"],
    windows: Windows,
    options: ensemble.Options,
    *,
    kinds: int | None = None,
) -> tuple[Array, Array | None]:
    """All draws that `ensemble.assimilate` or `ensemble.move` need in all windows (w, b, ...).

    `kinds` is how many there are for every move: as many as it needs by default.
    """
    if kinds is None:
        arguments = ensemble.with_inputs(starts, jnp.asarray(windows.inputs)[:, 0])[0]
        kinds = ensemble.moving_draws(lambda x: model.transition.prior()(x), arguments, model.process_noise)
    (num_windows, length, output_dim), num_members = windows.outputs.shape, starts.shape[1]
    draws = ensemble.draw_noise(
        key, length * num_windows, num_members, model.state_dim, output_dim,
        kinds=kinds, options=options, dtype=starts.dtype,
    )  # fmt: skip
    process, perturbations = jax.tree.map(lambda a: a.reshape(length, num_windows, *a.shape[1:]), draws)
    return process, perturbations


def expected_log_density(model: GPSSM, members: Float[Array, "n dx"], y: Float[Array, " dy"]) -> Float[Array, ""]:
    """`1/n sum_n log p(y | g(x^n))` over the channels that were seen."""
    return jnp.mean(model.obs_noise.log_prob(y, model.emission(members)))
