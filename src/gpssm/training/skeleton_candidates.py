"""Candidates for the initialisation of a model with hidden states: skeletons, linear ones among them."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpssm.training import skeleton
from gpssm.training.recordings import Recordings
from gpssm.training.skeleton import SkeletonFit, SkeletonProblem

NDArray = np.ndarray

SIDE_BY_SIDE = 4  # candidates at a time: what they need stays in the cache of the processor
PROCESS_NOISE = 1e-3  # initial standardised variance, where nothing says more
_ITERATIONS = 10  # in one compiled call
_MANY = 320  # parameters, from which on half of the calls must do

Kind = Literal["gp", "linear", "one step"]


class Candidate(NamedTuple):
    """A skeleton that a model can be initialised from: all of it as NumPy arrays."""

    problem: SkeletonProblem
    fit: SkeletonFit
    error: float
    """Root mean square of its simulation's error, over what was held back; over everything if nothing was."""
    obs: NDArray
    """Initial variance of the observation noise, by output."""
    process: NDArray
    """Initial variance of the process noise, by state."""
    kind: Kind = "gp"
    """A skeleton with a GP; a linear model whose simulation is close; a linear model whose single steps are."""

    @property
    def order(self) -> int:
        return len(self.fit.skeleton.log_scale)


def fit_all(
    problems: list[SkeletonProblem], data: Recordings, calls: int, fits: list[SkeletonFit] | None = None
) -> list[SkeletonFit]:
    """Iterations of all problems side by side; from where `fits` ended, if they are given."""
    count = len(problems)
    if sum(part.size for part in problems[0].guess) > _MANY:
        calls = -(-calls // 2)
    dampings = [np.asarray(1e-2)] * count
    if fits is not None:
        problems = [p._replace(guess=f.skeleton) for p, f in zip(problems, fits, strict=True)]
        dampings = [f.damping for f in fits]
    # As many as every other call has: another number would be compiled for itself.
    padding = -count % SIDE_BY_SIDE
    padded = [*zip(problems, dampings, strict=True), *[(problems[-1], dampings[-1])] * padding]
    stacked, damping = jax.tree.map(lambda *parts: jnp.asarray(np.stack(parts)), *padded)
    outputs, inputs = jnp.asarray(data.learned()), jnp.asarray(data.inputs)
    for _ in range(calls):
        now = skeleton.fit(stacked, damping, outputs, inputs, iterations=_ITERATIONS)
        stacked, damping = stacked._replace(guess=now.skeleton), now.damping
    arrays = jax.tree.map(np.asarray, now)
    return [jax.tree.map(lambda leaf, i=i: leaf[i], arrays) for i in range(count)]


def rated(problem: SkeletonProblem, fit: SkeletonFit, data: Recordings, kind: Kind) -> Candidate:
    """A fit with its error, and half of the variance that it does not explain as observation noise."""
    residual = np.nanmean((fit.states[..., : data.output_dim] - data.learned()) ** 2, axis=(0, 1))
    process = np.full(fit.states.shape[2], PROCESS_NOISE)
    return Candidate(problem, fit, data.error(fit.states), 0.5 * residual, process, kind)
