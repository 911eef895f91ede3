"""Bands of live forecasts that hold: their spread is multiplied by a factor that follows the stream.

Adaptive conformal inference (Gibbs and Candes, 2021) on the logarithm of the factor,

    g <- g + rate (miss - 0.1),

`miss` is 1 if the sample lay outside the 90% band of what was forecast of it, else 0: where misses are 1 in 10, nothing
moves. One step ahead every sample counts. Further ahead the forecasts count that are to be followed: one at a time is
kept until all its steps have come. Errors of one forecast are alike, so that an octave of steps moves its factor no
more than a few samples do. A factor follows what the stream does; it is not a guarantee for the next sample.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import NonNegative
from gpssm.posteriors.calibration import LEVEL, spread_by

NDArray = np.ndarray

_OCTAVES = 16
_RATE, _OCTAVE_RATE = 0.03, 0.1
_LEAST, _MOST = np.log(0.5), np.log(4.0)
_HALF = 1.6448536269514722  # standard deviations of a normal distribution that hold 90% to either side


@saved
class Bands(NamedTuple):
    """The factors, and the forecast that is being compared with what comes.

    >>> bands = Bands.new(1)
    >>> for _ in range(20):  # far outside every time
    ...     bands = bands.seen(np.array([9.0]), np.zeros(1), np.ones(1))
    >>> bands.at(2)[:, 0].round(2).tolist()
    [1.72, 1.0]
    """

    logs: Float[NDArray, "o dy"]
    """Logarithms of the factors, of 1, 2, 3 to 4, 5 to 8, ... steps ahead."""
    pending: Float[NDArray, "q h dy"] | None = None
    """Lower edge, median and upper edge of the forecast that is being compared."""
    compared: NonNegative[int] = 0
    """How many of its steps have been."""

    @classmethod
    def new(cls, output_dim: int) -> "Bands":
        """All factors are 1."""
        return cls(np.zeros((_OCTAVES, output_dim)))

    def at(self, horizon: int) -> Float[NDArray, "h dy"]:
        """The factors of the first `horizon` steps."""
        return np.exp(self.logs[_octave(np.arange(1, horizon + 1))])

    def applied(self, samples: Float[NDArray, "p h dy"]) -> Float[NDArray, "p h dy"]:
        """Sample paths, spread about their median; where they have diverged they stay as they are."""
        return spread_by(self.at(samples.shape[1]), samples)

    def awaiting(self, samples: Float[NDArray, "p h dy"]) -> "Bands":
        """With a forecast to be compared, as the model itself made it, if none is being compared yet."""
        if self.pending is not None or samples.shape[1] < 2 or not np.isfinite(samples).all():
            return self
        edges = [0.5 - 0.5 * LEVEL, 0.5, 0.5 + 0.5 * LEVEL]
        return self._replace(pending=np.quantile(samples, edges, axis=0), compared=0)

    def seen(self, y: Float[NDArray, " dy"], mean: Float[NDArray, " dy"], std: Float[NDArray, " dy"]) -> "Bands":
        """After a sample, NaN where a value is missing, of which mean and standard deviation were predicted."""
        logs = self.logs.copy()
        with np.errstate(invalid="ignore", over="ignore"):
            _follow(logs[0], np.abs(y - mean), _HALF * std, _RATE)
            if self.pending is None:
                return self._replace(logs=logs)
            low, middle, high = self.pending[:, self.compared]
            step = self.compared + 1
            if step > 1:  # the first step has been counted already
                octave = int(_octave(step))
                half = np.where(y > middle, high - middle, middle - low)
                _follow(logs[octave], np.abs(y - middle), half, _OCTAVE_RATE / 2 ** (octave - 1))
        over = step == self.pending.shape[1]
        return Bands(logs, None if over else self.pending, 0 if over else step)


def _octave(step: NDArray | int) -> NDArray:
    """Of so many steps ahead: 0 of 1, 1 of 2, 2 of 3 and 4, and so on."""
    return np.minimum(np.ceil(np.log2(step)).astype(int), _OCTAVES - 1)


def _follow(log: NDArray, distance: NDArray, half: NDArray, rate: float) -> None:
    """Move the logarithms of factors (dy,) in place; those of missing numbers stay."""
    known = np.isfinite(distance) & np.isfinite(half)
    miss = distance > half * np.exp(log)
    moved = np.clip(log + rate * (miss - (1.0 - LEVEL)), _LEAST, _MOST)
    log[known] = moved[known]
