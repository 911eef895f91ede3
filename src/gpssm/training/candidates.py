"""Candidates for the initialisation of a model with hidden states, and the recordings that they are compared on.

A candidate is a skeleton, linear ones among them. The end of every recording is held back while candidates are
compared: the error of a simulation that runs on into the last quarter goes with the error on later data far better
than the loss does, which rewards learning by heart. What was chosen then learns from everything.
"""

from typing import Literal, NamedTuple

import jax
import numpy as np

from gpssm.models.scaling import moments
from gpssm.plumbing.compilation import bucket
from gpssm.training import skeleton, subspace
from gpssm.training.skeleton import SkeletonFit, SkeletonProblem

NDArray = np.ndarray

SIDE_BY_SIDE = 4  # candidates at a time: what they need stays in the cache of the processor
PROCESS_NOISE = 1e-3  # initial standardised variance, where nothing says more
_ITERATIONS = 10  # in one compiled call
_MANY = 320  # parameters, from which on half of the calls must do
_HELD = 0.25  # share of every recording that is held back
_LEAST_HELD = 20  # samples; with fewer nothing can be learned from holding them back
_LEAST_LEARNED = 40
# Samples of all recordings from which on candidates see some pieces of them only, and the samples of a piece: this many
# times as long as an output takes to become another, within limits.
_LONG, _PIECE, _TIMES = 8192, (1024, 8192), 8
_SHARE = 0.01  # of the variance of a move that is noise at first, where outputs hardly move
_SLOW = 500  # samples that it takes an output to become another

Kind = Literal["gp", "linear", "one step"]


class Recordings(NamedTuple):
    """Standardised recordings, continued to one of few lengths: missing outputs, zero inputs."""

    outputs: NDArray  # (s, t, dy)
    inputs: NDArray  # (s, t, dc)
    lengths: tuple[int, ...]
    cuts: tuple[int, ...]
    """How much of every recording is learned from; what comes after is held back."""
    slow: bool
    """Whether outputs hardly move from one sample to the next, in what is learned from."""

    @classmethod
    def of(cls, outputs: list[NDArray], inputs: list[NDArray], *, hold_back: bool = True) -> "Recordings":
        """From recordings (T_i, dy) and (T_i, dc) that are standardised already."""
        lengths = tuple(map(len, outputs))
        longest = bucket(max(lengths))
        cuts = held_back(lengths) if hold_back else lengths
        slow = max(memory(y[:cut]) for y, cut in zip(outputs, cuts, strict=True)) > _SLOW
        return cls(stack(outputs, longest, np.nan), stack(inputs, longest, 0.0), lengths, cuts, slow)

    @classmethod
    def standardised(cls, outputs: list[NDArray], inputs: list[NDArray]) -> "Recordings":
        """From recordings (T_i, dy) and (T_i, dc) in the user's units, or pieces; the end of each is held back."""
        (y_shift, y_scale), (c_shift, c_scale) = moments(outputs), moments(inputs)
        outputs, inputs = pieces(outputs, inputs)
        return cls.of([(y - y_shift) / y_scale for y in outputs], [(c - c_shift) / c_scale for c in inputs])

    @property
    def holds_back(self) -> bool:
        """Whether the end of any recording is held back."""
        return self.cuts != self.lengths

    @property
    def output_dim(self) -> int:
        """dy."""
        return int(self.outputs.shape[2])

    def early(self) -> tuple[list[NDArray], list[NDArray]]:
        """Outputs and inputs without what is held back."""
        return (
            [y[:cut] for y, cut in zip(self.outputs, self.cuts, strict=True)],
            [c[:cut] for c, cut in zip(self.inputs, self.cuts, strict=True)],
        )

    def learned(self) -> NDArray:
        """Outputs (s, t, dy) of which those held back are missing."""
        after = np.arange(self.outputs.shape[1]) >= np.asarray(self.cuts)[:, None]
        return np.where(after[:, :, None], np.nan, self.outputs)

    def error(self, states: NDArray) -> float:
        """Root mean square error of simulated states (s, t, dx), on what is held back; on everything if nothing is."""
        truth = np.where(np.isnan(self.learned()), self.outputs, np.nan) if self.holds_back else self.outputs
        error = states[..., : self.output_dim] - truth
        return float(np.sqrt(np.nanmean(error**2))) if not np.isnan(error).all() else np.inf


def held_back(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """How much of recordings of these lengths is learned from while candidates are compared."""
    cuts = tuple(n - held if (held := int(_HELD * n)) >= 2 else n for n in lengths)
    enough = sum(lengths) - sum(cuts) >= _LEAST_HELD and sum(cuts) >= _LEAST_LEARNED
    return cuts if enough else lengths


def pieces(outputs: list[NDArray], inputs: list[NDArray]) -> tuple[list[NDArray], list[NDArray]]:
    """Recordings as they are; of more than some thousand samples a few pieces.

    Half of them evenly spread, the first among them; the others are those whose outputs go furthest: what was not seen
    of a nonlinear system where it seldom is makes the largest errors. What a simulation of the pieces takes does not
    grow with the recordings.
    """
    if sum(map(len, outputs)) <= _LONG:
        return outputs, inputs
    size = int(np.clip(_TIMES * max(map(memory, outputs)), *_PIECE))
    cuts = [
        (y[start : start + size], c[start : start + size])
        for y, c in zip(outputs, inputs, strict=True)
        for start in range(0, max(1, len(y) - size + 1), size)
    ]
    centre, scale = moments(outputs)
    reach = [np.max(np.abs(np.nan_to_num(y - centre) / scale)) for y, _ in cuts]
    samples = np.array([len(y) for y, _ in cuts])
    count = max(1, int(_LONG / samples.mean()))  # of recordings that are shorter than a piece there are more
    even = np.linspace(0, len(cuts) - 1, -(-count // 2)).round().astype(int)
    order = list(dict.fromkeys([*even, *np.argsort(reach)[::-1]]))
    chosen = order[: max(1, int(np.searchsorted(np.cumsum(samples[order]), _LONG, side="right")))]
    ys, cs = zip(*(cuts[i] for i in sorted(chosen)), strict=True)
    return list(ys), list(cs)


def memory(outputs: NDArray) -> int:
    """Samples after which the autocorrelation of every output (T, dy) has fallen to a third."""
    longest = 1
    for y in subspace.fill(outputs).T:
        spectrum = np.abs(np.fft.rfft(y - y.mean(), 2 * len(y))) ** 2
        correlation = np.fft.irfft(spectrum)[: len(y)]
        longest = max(longest, int(np.argmax(correlation <= correlation[0] / 3)))
    return longest


def stack(arrays: list[NDArray], length: int, value: float) -> NDArray:
    """Recordings (s, length, n), each continued with `value`."""
    return np.stack([np.pad(a, ((0, length - len(a)), (0, 0)), constant_values=value) for a in arrays])


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
        """Its number of states."""
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
    stacked, damping = jax.tree.map(lambda *parts: np.stack(parts), *padded)
    outputs, inputs = data.learned(), data.inputs
    for _ in range(calls):
        now = skeleton.fit(stacked, damping, outputs, inputs, iterations=_ITERATIONS)
        stacked, damping = stacked._replace(guess=now.skeleton), now.damping
    arrays = jax.tree.map(np.asarray, now)
    return [jax.tree.map(lambda leaf, i=i: leaf[i], arrays) for i in range(count)]


def fit_ahead(problem: SkeletonProblem, data: Recordings) -> None:
    """Compile what `fit_all` will run for such problems, while something else runs."""
    stacked = jax.tree.map(lambda part: np.stack([part] * SIDE_BY_SIDE), problem)
    damping = np.zeros(SIDE_BY_SIDE)
    skeleton.fit.ahead(stacked, damping, data.outputs, data.inputs, iterations=_ITERATIONS)


def moves(states: NDArray) -> NDArray:
    """Standard deviations (dx,) of the moves of simulated states (s, t, dx) from one sample to the next, up to 1."""
    return np.clip(np.diff(states, axis=1).std(axis=(0, 1)), 1e-6, 1.0)


def rated(problem: SkeletonProblem, fit: SkeletonFit, data: Recordings, kind: Kind) -> Candidate:
    """A fit with its error, and half of the variance that it does not explain as observation noise."""
    residual = np.nanmean((fit.states[..., : data.output_dim] - data.learned()) ** 2, axis=(0, 1))
    # A simulation that is close leaves little to the noise of its states.
    process = np.full(fit.states.shape[2], min(PROCESS_NOISE, float(np.mean(residual))))
    if data.slow:
        process = np.minimum(process, _SHARE * moves(fit.states) ** 2)
    return Candidate(problem, fit, data.error(fit.states), 0.5 * residual, process, kind)
