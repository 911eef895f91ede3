"""Bands that hold: factors for the spread of forecasts, from errors on data that were not learned from.

A model's own bands rest on its assumptions: noise that is white, errors of f that are what q(u) says. Where they are
wrong, errors on later data tell. A recording is forecast from many of its samples (rolling origins), and every error is
measured in units of the band that was promised there,

    s = |y - median| / |edge of the 90% band on the same side - median|,

so that 0.9 of them should be below 1. The 0.9 quantile of those `h` steps ahead is the factor that would have made the
band hold. It is smoothed over the logarithm of h, and drawn towards 1 by as much as it may be luck: errors of a free
run stay alike for long, and few of them are independent. What is measured is coverage; nothing is guaranteed, since
the system may do tomorrow what it has never done.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from gpssm.errors import InvalidInput
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.validation import positive_int

if TYPE_CHECKING:  # a fitted model calls what is here
    from gpssm.posteriors.fitted import Fitted
    from gpssm.posteriors.states import Forecast, States

NDArray = np.ndarray

LEVEL = 0.9
_ORIGINS = 12
_PATHS = 200
_OCTAVE = 0.7  # width of the smoothing, in logarithms of the horizon
_LIMITS = (0.5, 4.0)
_EXPECTED = 0.3  # how far the logarithm of a factor is from 0, over many models
_FORGOTTEN = 0.1  # autocorrelation of errors that no longer know of each other


@saved
class Calibration(NamedTuple):
    """What the spread of a forecast is multiplied by.

    >>> doubled = Calibration(np.array([[1.0], [2.0]]), 50.0)
    >>> doubled.applied(np.array([[[1.0], [1.0], [1.0]], [[3.0], [3.0], [3.0]]]))[:, :, 0].tolist()
    [[1.0, 0.0, 0.0], [3.0, 4.0, 4.0]]
    """

    factors: Float[NDArray, "h dy"]
    """For every number of steps ahead and every output; the last ones for all steps beyond."""
    independent: float
    """How many independent errors they come from, roughly."""

    def at(self, horizon: int) -> Float[NDArray, "h2 dy"]:
        """The factors of the first `horizon` steps."""
        return self.factors[np.minimum(np.arange(horizon), len(self.factors) - 1)]

    def applied(self, samples: Float[NDArray, "p h2 dy"]) -> Float[NDArray, "p h2 dy"]:
        """Sample paths, spread about their median; where they have diverged they stay as they are."""
        middle = np.median(samples, axis=0)
        spread = middle + (samples - middle) * self.at(samples.shape[1])
        return np.where(np.isfinite(spread), spread, samples)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON: the factors at 1, 2, 4, ... steps ahead, a list for every output."""
        steps = [2**k for k in range(len(self.factors).bit_length())]
        return {
            "steps": steps,
            "factors": self.factors[np.array(steps) - 1].T.tolist(),
            "independent": self.independent,
        }

    def __str__(self) -> str:
        first, last = np.exp(np.log(self.factors[[0, -1]]).mean(axis=1))
        return f"bands of forecasts are multiplied by {first:.2f} one step ahead, {last:.2f} from {len(self.factors)} on"

    @classmethod
    def of(cls, errors: "list[Errors]") -> "Calibration":
        """From errors of forecasts, of one length, from several origins."""
        score = np.stack([e.score for e in errors])  # (origins, h, dy)
        counts = np.sum([[independent(run) for run in e.standardised.T] for e in errors], axis=0)
        columns = [_factors(score[:, :, j], count) for j, count in enumerate(counts)]
        return cls(np.column_stack(columns), float(counts.sum()))


def _factors(score: Float[NDArray, "origins h"], count: float) -> Float[NDArray, " h"]:
    """Of one output: quantiles of octaves of the horizon, smoothed, and drawn towards 1."""
    horizon = score.shape[1]
    edges = [0, *(2**k for k in range(horizon.bit_length()) if 2**k < horizon), horizon]
    at, logs, weights = [], [], []
    for first, last in pairwise(edges):
        seen = score[:, first:last]
        if np.isnan(seen).all():
            continue
        at.append(np.log(0.5 * (first + 1 + last)))
        logs.append(np.log(np.clip(np.nanquantile(seen, LEVEL), *_LIMITS)))
        # Errors h steps after origins that are further apart than they stay alike are independent of each other.
        weights.append(_EXPECTED**2 / (_EXPECTED**2 + 0.5 / count))
    if not at:
        return np.ones(horizon)
    distance = np.log(np.arange(1, horizon + 1))[:, None] - np.array(at)
    near = np.exp(-0.5 * (distance / _OCTAVE) ** 2)
    return np.exp(near @ (np.array(weights) * np.array(logs)) / near.sum(axis=1))


def independent(run: Float[NDArray, " t"]) -> float:
    """How many independent errors say as much as those of one run: their number over the time that they stay alike."""
    z = run[np.isfinite(run)]
    square = float(np.mean(z**2)) if len(z) else 0.0
    time = 1.0
    for lag in range(1, len(z)):
        correlation = float(np.mean(z[lag:] * z[:-lag])) / square if square > 0 else 0.0
        if correlation < _FORGOTTEN:
            break
        time += 2.0 * correlation
    return len(z) / time


class Errors(NamedTuple):
    """Of one forecast."""

    score: Float[NDArray, "h dy"]
    """In units of the band that was promised: 1 is at its edge. NaN where nothing was observed."""
    standardised: Float[NDArray, "h dy"]
    """Signed, in standard deviations."""

    @classmethod
    def of(cls, samples: Float[NDArray, "p h dy"], truth: Float[NDArray, "h dy"]) -> "Errors":
        low, middle, high = np.quantile(samples, [0.5 - 0.5 * LEVEL, 0.5, 0.5 + 0.5 * LEVEL], axis=0)
        error = truth - middle
        with np.errstate(divide="ignore", invalid="ignore"):
            score = np.abs(error) / np.where(error > 0, high - middle, middle - low)
            return cls(score, error / samples.std(axis=0))


def rolling(
    fitted: "Fitted",
    outputs: Float[NDArray, "t dy"],
    inputs: Float[NDArray, "t dc"] | None,
    starts: range,
    horizon: int,
    *,
    state: "States | None" = None,
    num_paths: int = 500,
    seed: int = 0,
    calibrated: bool = True,
) -> "Iterator[tuple[int, Forecast]]":
    """Forecasts of a checked recording from before each of the samples `starts`, given all samples before it.

    Each of `horizon` steps, or as many as there are. `state` is that before the first sample, by default the end of
    the training recording.
    """
    now, seen = fitted.end if state is None else state, 0
    for start in starts:
        if start > seen:
            rows = slice(seen, start)
            now = fitted.filter(outputs[rows], None if inputs is None else inputs[rows], state=now, seed=seed + seen)
            seen = start
        rows = slice(start, start + horizon)
        ahead, steps = None if inputs is None else inputs[rows], len(outputs[rows])
        settings: Any = {"num_paths": num_paths, "seed": seed + start, "calibrated": calibrated}
        yield start, fitted.forecast(steps, ahead, state=now, **settings)


def rolling_errors(
    fitted: "Fitted",
    outputs: Float[NDArray, "t dy"],
    inputs: Float[NDArray, "t dc"] | None,
    horizon: int | None,
    state: "States | None",
    seed: int,
) -> list[Errors]:
    """Of forecasts of a checked recording, all of one length, from origins at equal distances."""
    length = len(outputs)
    horizon = length // 2 if horizon is None else positive_int("horizon", horizon)
    if horizon < 1 or horizon > length:
        raise InvalidInput(
            f"horizon: {horizon} step(s) ahead on {length} sample(s); expected at most as many, 1 or more."
        )
    every = max(1, -(-(length - horizon + 1) // _ORIGINS))
    starts = range(0, length - horizon + 1, every)
    paths = rolling(
        fitted, outputs, inputs, starts, horizon, state=state, num_paths=_PATHS, seed=seed, calibrated=False
    )
    errors = [Errors.of(found.samples, outputs[start : start + horizon]) for start, found in paths]
    errors = [e for e in errors if np.isfinite(e.score).any()]
    if not errors:
        raise InvalidInput("outputs: holds no number to compare a forecast with; expected some.")
    return errors
