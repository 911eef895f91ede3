"""Which numbers of a stream can be believed at all.

A method that learns live doubts an outlier by itself, in proportion to how far out it is. That ends where its
arithmetic does: squares and fourth powers of a broken sensor's 1e200 are infinite, and one such sample would be in the
state for good. So every channel has a range, and what lies outside does not reach the method:

    |value| <= LARGEST    and    |value - centre| <= FAR * reach

`centre` and `reach` are the running mean and root mean square deviation of what was admitted. What is refused is never
believed later, however often it comes: sensors that say 1e30 for an hour are more common than systems that outgrow a
million of their own deviations at once.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Gaps, NonNegative, Positive
from gpssm.plumbing.validation import CONSTANT

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
        centre, reach = np.zeros(rows.shape[1]), np.full(rows.shape[1], np.nan)
        for channel, column in enumerate(rows.T):
            seen = column[np.abs(column) <= LARGEST]
            if not len(seen):
                continue
            centre[channel] = np.median(seen)
            # Of two thirds: one or two among a few samples may be outliers.
            reach[channel] = np.sort(np.abs(seen - centre[channel]))[(2 * (len(seen) - 1)) // 3]
            if reach[channel] <= max(SMALLEST, CONSTANT * np.abs(centre[channel])):
                reach[channel] = _at_rest(centre[channel])
        return cls.around(centre, np.maximum(reach, least))

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


def beyond(name: str, values: NDArray, outside: NDArray) -> str:
    """The first part of a sentence about the first value that is outside."""
    channel = int(np.argmax(outside))
    where = f"{name}[{channel}]: {values[channel]:g}"
    if np.abs(values[channel]) > LARGEST:
        return f"{where} is larger than {LARGEST:g}, the largest number that can be used"
    return f"{where} is {FAR:g} times farther away from the samples so far than they are from each other"
