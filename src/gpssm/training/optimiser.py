"""The optimiser loop that every gradient-trained method shares.

Many steps run inside one compiled call (a scan over steps around the objective's own scan over
time); Python sees them a chunk at a time, to report, to keep the best parameters and to decide
when to stop. The rules, so that nobody has to tune:

- Adam, one rate for all and a multiple of it for groups that must travel far (noise variances).
- A gradient larger than a few times its running norm is scaled down: back-propagation through
  a chaotic stretch now and then yields a gradient that is a million times too large.
- A step that is not finite is undone and the rate halved.
- A chunk whose objective falls far below the best one is undone, too.
- The rate stays constant until the objective has stopped improving, then falls to zero over a
  fixed number of steps; the parameters returned are the best seen.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from gpssm.numerics.parameters import free_values, parameters, with_free_values
from gpssm.plumbing.compilation import jit
from gpssm.plumbing.messages import warn
from gpssm.posteriors.history import History, Progress
from gpssm.training.progress import Monitor, record

logger = logging.getLogger(__name__)

# objective(model, carry, data, key, settings) -> (value to maximise, (carry, terms))
Objective = Callable[..., tuple[jax.Array, tuple[Any, dict[str, jax.Array]]]]

_ADAM = optax.scale_by_adam(b1=0.9, b2=0.99)
_CLIP = 2.0  # times the running norm of the gradient
_WARM_UP = 20


class Schedule(NamedTuple):
    """When to report, slow down and stop. Steps are taken in chunks, so a limit may be passed by part of one.

    Args:
        learning_rate: of Adam, until it falls.
        max_steps: of the optimiser at most; a fit in phases shares them out.
        decay_steps: over which the rate falls to zero in the end.
        chunk: steps between two reports.
        patience: chunks without improvement after which the rate starts to fall.
        min_gain: what counts as improvement, in nats per observed number.
        max_drop: a fall of the objective, in nats per observed number, that counts as divergence.

    >>> import gpssm
    >>> gpssm.EnVI(2, schedule=gpssm.Schedule(max_steps=200)).schedule.learning_rate
    0.03
    """

    learning_rate: float = 0.03
    max_steps: int = 1200
    decay_steps: int = 300
    chunk: int = 25
    patience: int = 6
    min_gain: float = 2e-4
    max_drop: float = 0.2


class _State(NamedTuple):
    free: jax.Array  # all parameters in one vector: what is done to each of them is compiled once
    adam: Any
    safe: tuple[jax.Array, Any]  # the last parameters at which the objective was finite, with their Adam
    norm: jax.Array
    damping: jax.Array  # halved by every step that was undone
    carry: Any


@partial(jit, static_argnames=("objective", "settings", "names"), hot=True)
def _run_chunk(
    state: _State,
    model: Any,
    data: Any,
    multiples: jax.Array,
    rates: jax.Array,
    size: jax.Array,
    key: jax.Array,
    *,
    objective: Objective,
    settings: Any,
    names: tuple[str, ...],
) -> tuple[_State, jax.Array, dict[str, jax.Array], jax.Array]:
    """`len(rates)` optimiser steps; returns the state, the objective and its terms, and what was undone."""

    def loss(free: jax.Array, carry: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        value, aux = objective(_assembled(model, free, names), carry, data, key, settings)
        return -value / size, aux

    def one(state: _State, now: tuple[jax.Array, jax.Array]) -> tuple[_State, Any]:
        rate, key = now
        (value, (carry, terms)), grad = jax.value_and_grad(loss, has_aux=True)(state.free, state.carry, key)
        norm = jnp.linalg.norm(grad)
        good = jnp.isfinite(norm) & jnp.isfinite(value)
        limit = _CLIP * state.norm
        grad = jnp.where(good, grad * jnp.minimum(1.0, limit / norm), 0.0)
        direction, adam = _ADAM.update(grad, state.adam)
        moved = state.free - rate * state.damping * multiples * direction
        norm_kept = 0.95 * state.norm + 0.05 * jnp.minimum(norm, limit)
        recovered = jnp.minimum(1.0, 1.05 * state.damping)
        new = _State(moved, adam, (state.free, state.adam), norm_kept, recovered, carry)
        # The move that led here was made one step earlier: go back to before it.
        undone = state._replace(free=state.safe[0], adam=state.safe[1], damping=0.5 * state.damping)
        state = jax.tree.map(lambda a, b: jnp.where(good, a, b), new, undone)
        return state, (jnp.where(good, -value * size, jnp.nan), terms, ~good)

    keys = jax.random.split(key, len(rates))
    state, (values, terms, undone) = jax.lax.scan(one, state, (rates, keys))
    return state, values, terms, jnp.sum(undone)


def _flat(model: Any, names: tuple[str, ...]) -> jax.Array:
    """The unconstrained images of the named parameters, in one vector."""
    return ravel_pytree(free_values(model, names))[0]


def _assembled(model: Any, free: jax.Array, names: tuple[str, ...]) -> Any:
    """A copy of the model with the named parameters set from that vector."""
    unravel = ravel_pytree(jax.eval_shape(partial(free_values, names=names), model))[1]
    return with_free_values(model, unravel(free))


_assemble = jit(_assembled, static_argnames=("names",))
_prepare = jit(_flat, static_argnames=("names",))


class Diverged(RuntimeError):
    """Training could not make a single finite step."""


def train(
    objective: Objective,
    model: Any,
    carry: Any,
    data: Any,
    *,
    settings: Any,
    rates: dict[str, float],
    num_observed: int,
    schedule: Schedule,
    key: jax.Array,
    monitor: Monitor,
    label: str = "",
) -> tuple[Any, Any, History]:
    """Maximise `objective` over the parameters of `model` named in `rates`, at these multiples of the learning rate.

    Returns the model with the best parameters seen, the carry that goes with them, and the
    history. Raises `Diverged` if no finite step was possible; never returns NaN. Stops where an
    interruption is requested. Reports have `label` before the name of the phase.
    """
    started = time.perf_counter()
    state, run = _start(objective, model, carry, data, settings=settings, rates=rates, num_observed=num_observed)
    names, dtype = tuple(rates), state.norm.dtype
    history = History()
    best, best_elbo, best_for_patience, stale = state, -np.inf, -np.inf, 0
    rate, decay_from, step = schedule.learning_rate, None, 0
    first: tuple[int, float] | None = None
    chunk = min(schedule.chunk, schedule.max_steps)
    decay_steps = min(schedule.decay_steps, schedule.max_steps // 2)
    longest = schedule.max_steps - decay_steps
    while decay_from is None or step < decay_from + decay_steps:
        steps = _rates(np.arange(step, step + chunk), rate, decay_from, decay_steps)
        state, found, terms, undone = _run_chunk(
            state, rates=np.asarray(steps, dtype), key=jax.random.fold_in(key, step), **run
        )
        step += chunk
        values = np.asarray(found)
        messages: list[str] = []
        if int(undone):
            messages.append(f"step {step}: {int(undone)} step(s) that were not finite were undone, with a smaller rate")
        elbo = _finite_mean(values)
        if elbo == -np.inf and best_elbo == -np.inf:
            raise Diverged("no finite step could be made from the start values; check the data's scale and the noise.")
        if elbo < best_elbo - schedule.max_drop * num_observed:
            rate *= 0.5
            messages.append(
                f"step {step}: objective fell from {best_elbo:.4g} to {elbo:.4g}; back to the best at half the rate"
            )
            adam = _ADAM.init(best.free)
            state = best._replace(adam=adam, safe=(best.free, adam))
        elif elbo > best_elbo:
            # Only parameters at which the objective was evaluated: the newest have not been yet.
            best, best_elbo = state._replace(free=state.safe[0], adam=state.safe[1]), elbo
        stale = 0 if elbo > best_for_patience + schedule.min_gain * num_observed else stale + 1
        if stale == 0:
            best_for_patience = elbo
        for message in messages:
            warn(message, TrainingWarning)
        latest = {name: _finite_mean(np.asarray(series)) for name, series in terms.items()}
        phase = label + ("learning" if decay_from is None else "settling")
        end = schedule.max_steps if decay_from is None else decay_from + decay_steps
        seconds, now = time.perf_counter() - started, partial(_assemble, model, state.safe[0], names=names)
        # The first chunk was compiled as well.
        first = (step, seconds) if first is None else first
        pace = (seconds - first[1]) / (step - first[0]) if step > first[0] else None
        left = None if pace is None else monitor.seconds_left(end - step, pace)
        report = Progress(step, end, phase, elbo, latest, seconds, tuple(messages), now, left)
        record(history, report, monitor.watch)
        logger.debug("%s, step %d of at most %d: ELBO %.6g, %s", phase, step, end, elbo, latest)
        if decay_from is None:
            history.converged = stale >= schedule.patience
            if history.converged or step >= longest:
                decay_from = step
        monitor.interruption.something_to_keep = True
        if monitor.interruption.requested:
            history.interrupted = monitor.interruption.signalled
            why = "interrupted" if history.interrupted else "out of time"
            history.messages.append(f"step {step}: {why}; this is the best model so far")
            warn(history.messages[-1], TrainingWarning)
            break
    history.best = best_elbo
    why = "interrupted" if monitor.interruption.requested else "converged" if history.converged else "all of them"
    logger.info("%s%d steps (%s): ELBO %.6g", label, step, why, best_elbo)
    return _assemble(model, best.free, names=names), best.carry, history


def _start(
    objective: Objective,
    model: Any,
    carry: Any,
    data: Any,
    *,
    settings: Any,
    rates: dict[str, float],
    num_observed: int,
) -> tuple[_State, dict[str, Any]]:
    """The state before the first step, and all other arguments of `_run_chunk` that stay as they are."""
    names, dtype = tuple(rates), jax.tree.leaves(carry)[0].dtype
    free = _prepare(model, names=names)
    adam = _ADAM.init(free)
    one: Any = np.ones((), dtype)
    sizes = {p.name: np.size(p.value) for p in parameters(model) if p.name in rates}
    arguments = {
        "model": model,
        "data": data,
        "multiples": np.concatenate([np.full(sizes[name], rates[name], dtype) for name in sorted(names)]),
        "size": np.asarray(num_observed, dtype),
        "objective": objective,
        "settings": settings,
        "names": names,
    }
    return _State(free, adam, (free, adam), one, one, carry), arguments


def compile_ahead(schedule: Schedule, key: jax.Array, *problem: Any, **settings: Any) -> None:
    """Compile, while something else runs, what `train` will run; the other arguments as there."""
    state, arguments = _start(*problem, **settings)
    chunk = min(schedule.chunk, schedule.max_steps)
    _run_chunk.ahead(state, rates=np.zeros(chunk, state.norm.dtype), key=key, **arguments)


def _finite_mean(values: np.ndarray) -> float:
    """Mean of the finite values; minus infinity if there are none."""
    finite = values[np.isfinite(values)]
    return float(np.mean(finite)) if finite.size else -np.inf


class TrainingWarning(UserWarning):
    """Something went wrong during a fit and was repaired."""


def _rates(steps: np.ndarray, rate: float, decay_from: int | None, decay_steps: int) -> np.ndarray:
    warm = np.minimum(1.0, (steps + 1) / _WARM_UP)
    if decay_from is None or decay_steps == 0:
        return rate * warm
    fraction = np.clip((steps - decay_from) / decay_steps, 0.0, 1.0)
    return rate * warm * 0.5 * (1.0 + np.cos(np.pi * fraction))
