"""Which numbers of a stream can be believed at all, and what the first ones say of the others.

A method that learns live doubts an outlier by itself, in proportion to how far out it is. That ends where its
arithmetic does: squares and fourth powers of a broken sensor's 1e200 are infinite, and one such sample would be in the
state for good. So every channel has a range, and what lies outside does not reach the method:

    |value| <= LARGEST    and    |value - centre| <= FAR * reach

`centre` and `reach` are the running mean and root mean square deviation of what was admitted. What is refused is never
believed later, however often it comes: sensors that say 1e30 for an hour are more common than systems that outgrow a
million of their own deviations at once.

The first samples of a stream only tell where the data live and on what scale. Until that is known, the prediction is
the mean of what was seen. A stream keeps its first samples for a while and looks back at them: a system that was at
rest outgrows its units, and then they are taken again, from all samples so far.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from gpssm.errors import InvalidInput
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Gaps, NonNegative, Positive
from gpssm.plumbing.guards import CONSTANT

logger = logging.getLogger(__name__)

NDArray = np.ndarray

LARGEST = 1e60
"""Magnitude from which on a number is refused, whatever came before: its fourth power must be finite."""
SMALLEST = 1e-60
"""Spread below which a channel counts as constant, for the same reason."""
FAR = 1e6
"""Deviations from the samples so far, in units of theirs, that are left to the method to doubt."""
_SPIKE = 20.0  # the same for one sample among the first ones that lies alone
_MEMORY = 1000.0  # samples that centre and reach are averaged over
_CLIP = 2.0  # how much of a deviation counts, in units of reach: one outlier must not make room for the next
_NONE = np.zeros(1 << 16, bool)  # more channels than anybody has
# More samples than this multiple of the warm-up are not waited for, whatever they look like.
_LONGEST_WARM_UP = 10
_LOOK_BACK = (2, 4, 8, 16)  # multiples of the warm-up
# How much more than at first is too much for the units: of steps of the outputs, and of inputs. That the outputs
# themselves go far is in the nature of a slow system.
_OUTGROWN = 10.0
# How much less: then the first samples were a fault. (That a system comes from afar is not.)
_ABSURD = 1e4


@saved
class Gate(NamedTuple):
    """The range of every channel. `admit` returns the next one."""

    centre: Float[NDArray, " c"]
    reach: Gaps[Float[NDArray, " c"]]
    """NaN where nothing is known: then anything goes."""
    least: Positive[Float[NDArray, " c"]]
    """That `reach` never falls below, however long a channel rests."""
    samples: NonNegative[int] = 0

    @classmethod
    def around(cls, centre: Float[NDArray, " c"], reach: Float[NDArray, " c"]) -> "Gate":
        """A range whose centre and reach are known, if roughly."""
        known = np.isfinite(reach) & np.isfinite(centre)
        reach = np.where(known, np.clip(reach, SMALLEST, LARGEST), np.nan)
        return cls(np.where(known, centre, 0.0), reach, np.where(known, reach, SMALLEST))

    @classmethod
    def of(cls, rows: Float[NDArray, "t c"], least: float = 0.0) -> "Gate":
        """The range of some samples, most of which can be believed; NaN where a value is missing.

        `least` is a reach that is always allowed. A channel of which nothing was seen has none.
        """
        rows = np.where(np.abs(rows) <= LARGEST, rows, np.nan)
        centre = _of_channels(rows, np.median)
        # Of two thirds: one or two among a few samples may be outliers.
        reach = _of_channels(np.abs(rows - centre), lambda away: np.sort(away)[(2 * (len(away) - 1)) // 3])
        rests = reach <= np.maximum(SMALLEST, CONSTANT * np.abs(centre))
        return cls.around(centre, np.maximum(np.where(rests, _at_rest(centre), reach), least))

    def outside(self, rows: Float[NDArray, "t c"]) -> Bool[NDArray, "t c"]:
        """Which values of the samples it was made of cannot be believed: those out of range, and lone spikes.

        One of a few samples that differs from both its neighbours would decide all units. (What rises or jumps does
        not: it has a neighbour on its way.) Behind them there is no such rule: a method can doubt by itself.
        """
        near = np.full((3, *rows.shape), np.nan)
        near[0, 1:], near[1], near[2, :-1] = rows[:-1], rows, rows[1:]
        if len(rows) > 2:
            near[0, 0], near[2, -1] = rows[2], rows[-3]
        missing = np.isnan(near).any(axis=0)
        lone = np.abs(rows - np.median(np.where(missing, 0.0, near), axis=0)) > _SPIKE * self.reach
        return (np.abs(rows - self.centre) > FAR * self.reach) | (lone & ~missing)

    def admit(self, values: Float[NDArray, " c"]) -> "tuple[Bool[NDArray, ' c'], Gate]":
        """Which of the values are outside, and the range for the next; a missing one (NaN) is not."""
        deviation = values - self.centre
        size = np.abs(deviation)
        share: Any = 1.0 / min(self.samples + 10, _MEMORY)
        if (size <= _CLIP * self.reach).all():  # nearly always: a sample has no time for more
            return _NONE[: len(values)], self._moved(deviation, share)
        outside = (size > FAR * self.reach) | (np.abs(values) > LARGEST)
        known = ~(outside | np.isnan(size))
        first = known & np.isnan(self.reach)
        opened = self._replace(
            centre=np.where(first, values, self.centre), reach=np.where(first, _at_rest(values), self.reach)
        )
        counts = known & ~first
        moved = np.where(counts, np.clip(deviation, -_CLIP * opened.reach, _CLIP * opened.reach), 0.0)
        return outside, opened._moved(moved, np.where(counts, share, 0.0))

    def _moved(self, deviation: NDArray, share: Any) -> "Gate":
        reach = np.sqrt((1.0 - share) * self.reach**2 + share * deviation**2)
        return Gate(self.centre + share * deviation, np.maximum(reach, self.least), self.least, self.samples + 1)


def _at_rest(level: NDArray) -> NDArray:
    """A reach for a channel that has not moved: nothing but its level tells its unit."""
    return np.maximum(np.abs(level), 1.0)


def _beyond(name: str, values: NDArray, outside: NDArray) -> str:
    """The first part of a sentence about the first value that is outside."""
    channel = int(np.argmax(outside))
    where = f"{name}[{channel}]: {values[channel]:g}"
    if np.abs(values[channel]) > LARGEST:
        return f"{where} is larger than {LARGEST:g}, the largest number that can be used"
    return f"{where} is {FAR:g} times farther away from the samples so far than they are from each other"


class Believed(NamedTuple):
    """Samples that come after each other, and what of them is to be learned from."""

    came: Float[NDArray, "n dy"]
    """The outputs as they came."""
    outputs: Float[NDArray, "n dy"]
    """With what cannot be believed missing."""
    inputs: Float[NDArray, "n dc"]
    sentences: list[str]
    """About what cannot be believed of each, or none."""
    gates: list[tuple[Gate, Gate]]
    """The ranges of outputs and inputs after each."""


def believed(
    of_outputs: Gate, of_inputs: Gate, outputs: Float[NDArray, "t dy"], inputs: Float[NDArray, "t dc"]
) -> Believed:
    """The first of some samples that come after each other, up to one whose input cannot be believed.

    That the input of the very first cannot be believed is an error.
    """
    came = outputs
    gates, sentences = list[tuple[Gate, Gate]](), [""] * len(outputs)
    for row, y in enumerate(outputs):
        if inputs.shape[1]:
            outside, of_inputs = of_inputs.admit(inputs[row])
            if outside.any():
                if not gates:
                    raise InvalidInput(f"{_beyond('u', inputs[row], outside)}; the sample is left out.")
                break
        outside, of_outputs = of_outputs.admit(y)
        if outside.any():
            outputs, sentences[row] = outputs.copy(), f"{_beyond('y', y, outside)}; taken as missing."
            outputs[row, outside] = np.nan
        gates.append((of_outputs, of_inputs))
    count = len(gates)
    return Believed(came[:count], outputs[:count], inputs[:count], sentences[:count], gates)


def believable(early: list[tuple[Any, Any]], input_lags: int) -> tuple[NDArray, NDArray, tuple[Gate, Gate]]:
    """Outputs (t, dy) and inputs (t, lags * dc) of the first samples, without what cannot be believed among so many,
    and the ranges of both.

    Where that is an input, something usual is put in its place, and nothing is to be learned from the sample.
    """
    outputs, inputs = (np.array(part) for part in zip(*early, strict=True))
    lags = inputs.reshape(len(inputs), input_lags, -1)
    gates = Gate.of(outputs), Gate.of(lags[:, 0], least=1.0)
    unknown = np.stack([gates[1].outside(lag) for lag in np.moveaxis(lags, 1, 0)], axis=1)
    inputs = np.where(unknown, gates[1].centre, lags).reshape(inputs.shape)
    undriven = unknown.reshape(len(inputs), -1).any(axis=1, keepdims=True)
    return np.where(gates[0].outside(outputs) | undriven, np.nan, outputs), inputs, gates


def look_backs(warm_up: int) -> list[int]:
    """Numbers of samples after which a stream looks back."""
    return [multiple * warm_up for multiple in _LOOK_BACK]


def tells_scale(outputs: NDArray, needed: int) -> bool:
    """Whether every channel was seen often enough, and moved."""
    if len(outputs) >= _LONGEST_WARM_UP * needed:
        return True
    enough = np.sum(~np.isnan(outputs), axis=0).min() >= needed
    return bool(enough and (np.nanmax(outputs, axis=0) > np.nanmin(outputs, axis=0)).all())


def predict(outputs: NDArray) -> tuple[NDArray, NDArray, float]:
    """Mean and standard deviation (dy,) of the last sample by those before it, and the log-density of what was seen
    of it; NaN where there are too few values.
    """
    before, last = outputs[:-1], outputs[-1]
    mean, std = _of_channels(before, np.mean, 2), _of_channels(before, partial(np.std, ddof=1), 2)
    seen = ~np.isnan(last)
    if not seen.any() or not (std[seen] > 0).all():
        return mean, std, float("nan")
    z = (last - mean)[seen] / std[seen]
    return mean, std, float(np.sum(-0.5 * (z**2 + np.log(2 * np.pi)) - np.log(std[seen])))


def outgrown(outputs: NDArray, inputs: NDArray, first: int, least: NDArray, now: Gate) -> bool:
    """Whether the samples have outgrown the units, which come from the `first` of them, or were a fault at first.

    `least` is the smallest reach of the outputs' range that the stream has allowed, `now` that of all samples.
    """
    moves = np.concatenate([np.diff(outputs, axis=0), inputs[1:]], axis=1)
    width, first_width = (np.nan_to_num(_of_channels(rows, _middle)) for rows in (moves, moves[: first - 1]))
    grown, absurd = (width > _OUTGROWN * first_width).any(), (least > _ABSURD * now.reach).any()
    if grown or absurd:
        why = "have outgrown" if grown else "show a fault in"
        logger.info("a stream starts again with units of %d samples, which %s those of %d", len(outputs), why, first)
    return bool(grown or absurd)


def _middle(values: NDArray) -> float:
    """Width of the middle 80%, which one outlier does not change."""
    return float(np.subtract(*np.quantile(values, [0.9, 0.1])))


def _of_channels(rows: NDArray, statistic: Callable[[NDArray], Any], least: int = 1) -> NDArray:
    """A statistic of what was seen of every channel; NaN where that are fewer than `least` values."""
    columns = (column[~np.isnan(column)] for column in rows.T)
    return np.array([statistic(seen) if len(seen) >= least else np.nan for seen in columns])
