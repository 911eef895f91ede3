"""The compiled part of a stream: samples go through the step of its method, as many as have come.

One program serves a single sample and many: a loop over a block of rows, of which as many count as there are. What it
computes does not depend on how many that are, so that the digits do not, either. Hypotheses on trial do not touch each
other: they go through the same program one after the other, and are weighed here (`gpssm.online.augmented`).
"""

import logging
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.online.augmented import Hypotheses
from gpssm.online.base import OnlineMethod, host
from gpssm.online.estimate import estimate_of
from gpssm.online.gate import Gate
from gpssm.online.packing import Layout
from gpssm.plumbing.compilation import HOT, bucket, jit
from gpssm.plumbing.threads import all_cores

logger = logging.getLogger(__name__)

NDArray = np.ndarray

BLOCK = 64
"""Rows that a call of the program holds; far more would make a single one slower."""
_IMPLAUSIBLE = -1e30  # log-density of a sample that a hypothesis cannot follow


class Core(NamedTuple):
    """The state of a method, as it is handed to the program."""

    method: OnlineMethod
    layout: Layout
    packed: tuple[tuple[Any, ...], ...]
    """The states of all hypotheses, or one."""
    evidence: Float[NDArray, " b"] | None
    """Log-likelihood of what each hypothesis has predicted, during the trial."""

    @classmethod
    def of(cls, method: OnlineMethod, state: Any) -> "Core":
        """A tree of arrays that `initial_state` of the method has made, or `step`."""
        states, evidence = [state], None
        if isinstance(state, Hypotheses):
            evidence = np.array(state.evidence)
            leaves = jax.tree.map(np.asarray, state.states)
            states = [jax.tree.map(lambda leaf, i=i: leaf[i], leaves) for i in range(len(evidence))]
        layout = Layout.of(states[0])
        return cls(method, layout, tuple(layout.pack(each) for each in states), evidence)

    @property
    def state(self) -> Any:
        """The tree again, of NumPy arrays."""
        states = [self.layout.unpack(tuple(map(np.asarray, each))) for each in self.packed]
        if self.evidence is None:
            return states[0]
        return Hypotheses(jax.tree.map(lambda *leaves: np.stack(leaves), *states), host.asarray(self.evidence))

    def moved(
        self, seed: int, index: int, outputs: Float[NDArray, "n dy"], inputs: Float[NDArray, "n dc"]
    ) -> "tuple[Core, Float[NDArray, 'm r']]":
        """After up to `BLOCK` samples, of which the first has the number `index`; none if all is to be compiled only.

        Returns what is reported of each: the fields of `Info` in a row, then 1 if the sample had to be taken as
        missing, for no finite state can follow it, else 0. There are fewer rows than samples where even that is of no
        use: the state cannot be moved.
        """
        if self.evidence is None:
            packed, report = self._run(self.packed[0], seed, index, outputs, inputs)
            return self._replace(packed=(packed,)), report
        found = [self._run(each, seed, index, outputs, inputs) for each in self.packed]
        count, evidence = min(len(report) for _, report in found), self.evidence
        report = np.empty_like(found[0][1][:count])
        for row in range(count):
            evidence, report[row] = _weighed(
                evidence, np.array([each[row] for _, each in found]), self.method.state_dim
            )
        return self._replace(packed=tuple(packed for packed, _ in found), evidence=evidence), report

    def _run(
        self, packed: tuple[Any, ...], seed: int, index: int, outputs: NDArray, inputs: NDArray
    ) -> tuple[tuple[Any, ...], NDArray]:
        """What `moved` does for one hypothesis."""
        (count, dy), dc = outputs.shape, inputs.shape[1]
        rows = np.zeros((BLOCK, dy + dc))
        rows[:count, :dy], rows[:count, dy:] = outputs, inputs
        after, found = _loop(type(self.method), self.layout, dy, np.array([seed, index, count]), packed, rows)
        report = np.array(np.asarray(found)[:count])  # copied: a view of one row would keep the whole block
        done = int(np.count_nonzero(report[:, -1] == 0.0))
        if done == count:
            return after, report
        # Rare: back to the sample that no finite state can follow, which is taken as missing.
        if done:
            after, _ = self._run(packed, seed, index, outputs[:done], inputs[:done])
            others = self._run(after, seed, index + done, outputs[done:], inputs[done:])
            return others[0], np.concatenate([report[:done], others[1]])
        if np.isnan(outputs[0]).all():
            return packed, report[:0]
        after, first = self._run(packed, seed, index, outputs[:1] * np.nan, inputs[:1])
        if not len(first):
            return packed, first
        first[0, -1] = 1.0
        others = self._run(after, seed, index + 1, outputs[1:], inputs[1:])
        return others[0], np.concatenate([first, others[1]])

    def through(
        self, seed: int, first: int, outputs: Float[NDArray, "n dy"], inputs: Float[NDArray, "n dc"]
    ) -> "tuple[Core, Float[NDArray, 'm r']]":
        """The same for any number of samples; the hypotheses settle when their trial ends."""
        trial, done = self.method.trial - first, 0
        if trial <= 0 and len(outputs) <= BLOCK:  # nearly always
            return self.moved(seed, first, outputs, inputs)
        core, reports = self, list[NDArray]()
        while done < len(outputs):
            end = min(done + BLOCK, len(outputs), trial if trial > done else len(outputs))
            core, found = core.moved(seed, first + done, outputs[done:end], inputs[done:end])
            reports.append(found)
            if len(found) < end - done:
                break
            done = end
            if done == trial:
                logger.info("hypotheses settle after %d samples; log-evidence: %s", first + done, core.evidence)
                core = Core.of(self.method, self.method.settled(core.state))
        return core, reports[0] if len(reports) == 1 else np.concatenate(reports)

    def paths(
        self, seed: int, inputs: Float[NDArray, "h dc"], num_paths: int
    ) -> tuple[Float[NDArray, "p h dx"], Float[NDArray, "p h dy"]]:
        """States and outputs of a forecast; during the trial, of the hypothesis that has predicted best.

        They are the first steps of a forecast that is a little longer, so that few horizons need their own program.
        """
        leader = self if self.evidence is None else Core.of(self.method, self.method.settled(self.state))
        horizon = len(inputs)
        longer = np.concatenate([inputs, np.repeat(inputs[-1:], bucket(horizon) - horizon, axis=0)])
        kind, number = type(self.method), np.asarray(seed)
        found = _paths(number, leader.packed[0], longer, kind=kind, layout=leader.layout, num_paths=num_paths)
        states, outputs = (np.asarray(part)[:, :horizon] for part in found)
        return states, outputs


Moved = tuple[Core, Float[NDArray, "m r"]]
"""What `Core.moved` returns."""


def rehearse(method: OnlineMethod, present: Core | None, dy: int, dc: int) -> Core:
    """Compile all that samples of this width will need, so that none of them has to wait for it later.

    `present` is where the stream is, if it has a state. Returns one as streams have it after the trial.
    """
    outputs, inputs = (np.random.default_rng(0).normal(size=(method.warm_up, width)) for width in (dy, dc))
    start = Core.of(method, method.initial_state(outputs, inputs))
    numbers, rows = np.zeros(3, int), np.zeros((BLOCK, dy + dc))
    for core in (start, present or start):
        settled = core if core.evidence is None else Core.of(method, method.settled(core.state))
        for each in (core, settled):
            with all_cores():
                _loop.lower(type(method), each.layout, dy, numbers, each.packed[0], rows).compile()
            each.moved(0, 0, outputs[:0], inputs[:0])
    return settled


def first_gates(
    present: Core | None, seed: int, index: int, dy: int, inputs: Float[NDArray, "1 dc"], driven: NDArray
) -> tuple[Gate, Gate]:
    """Open ones; around what is predicted, if a stream was given a state and has not seen any sample.

    `driven` are the inputs with their past.
    """
    missing = np.full((1, dy), np.nan)
    if present is None:
        return Gate.of(missing), Gate.of(np.full_like(inputs, np.nan))
    reports = present.moved(seed, index, missing, driven)[1]
    if not len(reports):
        return Gate.of(missing), Gate.of(inputs, least=1.0)
    expected = estimate_of(reports[0], present.method.state_dim)
    return Gate.around(expected.predicted_mean, expected.predicted_std), Gate.of(inputs, least=1.0)


def _rows(
    kind: type[OnlineMethod], layout: Layout, output_dim: int, numbers: Array, packed: tuple[Array, ...], rows: Array
) -> tuple[tuple[Array, ...], Array]:
    seed, index, count = numbers
    key = jax.random.key(seed)

    def body(carry: tuple[Array, Array, tuple[Array, ...], Array]) -> tuple[Array, Array, tuple[Array, ...], Array]:
        row, _, packed, reports = carry
        y, c = rows[row, :output_dim], rows[row, output_dim:]
        state, info = kind.step(jax.random.fold_in(key, index + row), layout.unpack(packed), y, c)
        packed, report = layout.pack(state, jnp), jnp.concatenate([*map(jnp.ravel, info), jnp.zeros(1)])
        # Of a state that is not finite nothing is reported: whoever calls has to look at a few numbers only.
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(part)) for part in (*packed, report)]))
        return row + 1, finite, packed, reports.at[row].set(jnp.where(finite, report, jnp.nan))

    def unfinished(carry: tuple[Array, Array, tuple[Array, ...], Array]) -> Array:
        return (carry[0] < count) & carry[1]

    info = jax.eval_shape(kind.step, key, layout.unpack(packed), rows[0, :output_dim], rows[0, output_dim:])[1]
    reports = jnp.full((len(rows), sum(part.size for part in info) + 1), jnp.nan)
    start = jnp.zeros((), int), jnp.ones((), bool)
    _, _, packed, reports = jax.lax.while_loop(unfinished, body, (*start, packed, reports))
    return packed, reports


_loop = jax.jit(_rows, static_argnames=("kind", "layout", "output_dim"), compiler_options=HOT)


@partial(jit, static_argnames=("kind", "layout", "output_dim"), hot=True)
def side_by_side(
    numbers: Array, packed: tuple[Array, ...], rows: Array, *, kind: type[OnlineMethod], layout: Layout, output_dim: int
) -> tuple[tuple[Array, ...], Array]:
    """The same for several streams, stacked, one after the other: a batch would give other digits."""
    return jax.lax.map(lambda one: _rows(kind, layout, output_dim, *one), (numbers, packed, rows))


def _weighed(evidence: NDArray, reports: Float[NDArray, "b r"], dx: int) -> tuple[NDArray, NDArray]:
    """The evidence after a sample, and one report for all: averaged by the likelihood of what the hypotheses have
    predicted, the state after the sample and the prediction before.

    One that cannot follow the sample, while others can, is as good as refuted.
    """
    missed, scores = reports[:, -1] > 0, reports[:, -2]
    scores = np.where(missed & ~missed.all(), _IMPLAUSIBLE, scores)
    former, evidence = evidence, evidence + scores
    evidence = evidence - np.max(evidence)
    means, covs, predicted = np.split(reports[:, :-2], [dx, dx + dx * dx], axis=1)
    expected, std = np.split(predicted, 2, axis=1)
    mean, cov = _mixture(_shares(evidence), means, covs.reshape(-1, dx, dx))
    expected, spread = _mixture(_shares(former), expected, std[:, :, None] ** 2 * np.eye(std.shape[1]))
    score = np.logaddexp.reduce(former + scores) - np.logaddexp.reduce(former)
    report = [mean, cov.ravel(), expected, np.sqrt(np.diagonal(spread)), [score, float(missed.all())]]
    return evidence, np.concatenate(report)


def _shares(evidence: NDArray) -> NDArray:
    weight = np.exp(evidence - np.max(evidence))
    return np.asarray(weight / weight.sum())


def _mixture(weights: NDArray, means: NDArray, covs: NDArray) -> tuple[NDArray, NDArray]:
    """Mean and covariance of a mixture of Gaussians."""
    mean = weights @ means
    away = means - mean
    return mean, np.tensordot(weights, covs, 1) + (weights[:, None] * away).T @ away


@partial(jit, static_argnames=("kind", "layout", "num_paths"))
def _paths(
    seed: Array, packed: tuple[Array, ...], inputs: Array, *, kind: type[OnlineMethod], layout: Layout, num_paths: int
) -> tuple[Array, Array]:
    return kind.paths(jax.random.key(seed), layout.unpack(packed), inputs, num_paths)


@partial(jax.jit, static_argnames="kind")
def transition(kind: type[OnlineMethod], state: Any, x: Array) -> tuple[Array, Array]:
    """That of the method, compiled."""
    return kind.transition(state, x)
