"""Bands of live forecasts that hold: their spread is multiplied by a factor that follows the stream.

Adaptive conformal inference (Gibbs and Candes, 2021) on the logarithm of the factor,

    g <- g + rate (miss - 0.1),

`miss` is 1 if the sample lay outside the 90% band of what was forecast of it, else 0: where misses are 1 in 10, nothing
moves. One step ahead every sample counts. Further ahead the forecasts count that are to be followed: one at a time is
kept until all its steps have come, or the inputs are other than it has assumed: then its errors are not the model's.
Errors of one forecast are alike, so that an octave of steps moves its factor no more than a few samples do. A factor
follows what the stream does; it is not a guarantee for the next sample.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import NonNegative
from gpssm.posteriors.calibration import LEVEL, spread_by

NDArray = np.ndarray

_OCTAVES = 16
_RATE, _OCTAVE_RATE = 0.03, 0.2
_LEAST, _MOST = np.log(0.5), np.log(4.0)
_HALF = 1.6448536269514722  # standard deviations of a normal distribution that hold 90% to either side


@saved
class Bands(NamedTuple):
    """The factors, and the forecast that is being compared with what comes.

    >>> bands = Bands.new(1)
    >>> for _ in range(20):  # far outside every time
    ...     bands = bands.seen(np.array([9.0]), np.zeros(1), np.ones(1))
    >>> bands.at(2)[:, 0].round(2).tolist()  # nothing else is known of the second step
    [1.72, 1.72]
    """

    logs: Float[NDArray, "o dy"]
    """Logarithms of the factors, of 1, 2, 3 to 4, 5 to 8, ... steps ahead."""
    pending: Float[NDArray, "q h dy"] | None = None
    """Lower edge, median and upper edge of the forecast that is being compared."""
    assumed: Float[NDArray, "h dc"] | None = None
    """The inputs that it has assumed."""
    compared: NonNegative[int] = 0
    """How many of its steps have been."""
    octaves: NonNegative[int] = 1
    """How many factors something is known of; the last holds for all steps beyond."""

    @classmethod
    def new(cls, output_dim: int) -> "Bands":
        """All factors are 1."""
        return cls(np.zeros((_OCTAVES, output_dim)))

    def at(self, horizon: int) -> Float[NDArray, "h dy"]:
        """The factors of the first `horizon` steps, between octaves interpolated."""
        place = np.log2(np.arange(1, horizon + 1))
        known = np.arange(self.octaves)
        return np.exp(np.column_stack([np.interp(place, known, log[: self.octaves]) for log in self.logs.T]))

    def applied(self, samples: Float[NDArray, "p h dy"]) -> Float[NDArray, "p h dy"]:
        """Sample paths, spread about their median; where they have diverged they stay as they are."""
        return spread_by(self.at(samples.shape[1]), samples)

    def awaiting(self, samples: Float[NDArray, "p h dy"], inputs: Float[NDArray, "h dc"]) -> "Bands":
        """With a forecast to be compared, as the model itself made it for these inputs, if none is being compared."""
        if self.pending is not None or samples.shape[1] < 2 or not np.isfinite(samples).all():
            return self
        edges = [0.5 - 0.5 * LEVEL, 0.5, 0.5 + 0.5 * LEVEL]
        return self._replace(pending=np.quantile(samples, edges, axis=0), assumed=inputs, compared=0)

    def seen(
        self,
        y: Float[NDArray, " dy"],
        mean: Float[NDArray, " dy"],
        std: Float[NDArray, " dy"],
        inputs: Float[NDArray, " dc"] | None = None,
    ) -> "Bands":
        """After a sample, NaN where a value is missing, of which mean and standard deviation were predicted.

        A forecast that has assumed other inputs is not compared any further.
        """
        logs = self.logs.copy()
        with np.errstate(invalid="ignore", over="ignore"):
            _follow(logs[0], np.abs(y - mean), _HALF * std, _RATE)
            if self.pending is None or self.assumed is None or not _same(self.assumed[self.compared], inputs):
                return Bands(logs, octaves=self.octaves)
            low, middle, high = self.pending[:, self.compared]
            step, octaves = self.compared + 1, self.octaves
            if step > 1:  # the first step has been counted already
                octave = min(int(np.ceil(np.log2(step))), _OCTAVES - 1)
                if octave >= octaves:  # starts where the last one is
                    logs[octaves : octave + 1], octaves = logs[octaves - 1], octave + 1
                half = np.where(y > middle, high - middle, middle - low)
                _follow(logs[octave], np.abs(y - middle), half, _OCTAVE_RATE / 2 ** (octave - 1))
        over = step == self.pending.shape[1]
        if over:
            return Bands(logs, octaves=octaves)
        return self._replace(logs=logs, compared=step, octaves=octaves)


def _same(assumed: NDArray, inputs: NDArray | None) -> bool:
    return inputs is None or bool(np.allclose(assumed, inputs, rtol=1e-6, atol=0.0))


def _follow(log: NDArray, distance: NDArray, half: NDArray, rate: float) -> None:
    """Move the logarithms of factors (dy,) in place; those of missing numbers stay."""
    miss = distance > half * np.exp(log)
    moved = np.minimum(np.maximum(log + rate * (miss - (1.0 - LEVEL)), _LEAST), _MOST)
    np.copyto(log, moved, where=np.isfinite(distance + half))
