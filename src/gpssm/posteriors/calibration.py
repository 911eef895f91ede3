"""Bands that hold: factors for the spread of forecasts, from errors on data that were not learned from.

A model's own bands rest on its assumptions: noise that is white, errors of f that are what q(u) says. Where they are
wrong, errors on later data tell. A recording is forecast from many of its samples (rolling origins), and every error is
measured in units of the band that was promised there,

    s = |y - median| / |edge of the 90% band on the same side - median|,

so that 0.9 of them should be below 1. The 0.9 quantile of those `h` steps ahead is the factor that would have made the
band hold. It is smoothed over the logarithm of h, and drawn towards 1 by as much as it may be luck, or belong to that
stretch of the recording: errors of a free run stay alike for long, and few of them are independent. A model that has
learned from the recording since is calibrated by the errors that it made before, relative to its present bands; the
more it has changed, which its present errors there show, the less they say. What is measured is coverage; nothing is
guaranteed, since the system may do tomorrow what it has never done.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from gpssm.errors import InvalidInput
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.validation import Recording, positive_int

if TYPE_CHECKING:  # a fitted model calls what is here
    from gpssm.posteriors.fitted import Fitted
    from gpssm.posteriors.states import Forecast, States

NDArray = np.ndarray

LEVEL = 0.9
_ORIGINS = 12
_PATHS = 200
_OCTAVE = 0.7  # width of the smoothing, in logarithms of the horizon
_LIMITS = (0.5, 4.0)
# Variances of the logarithm of a factor: over many models, from one stretch of a recording to another, and what a model
# adds that has changed, relative to the square of the logarithm by which its errors have.
_EXPECTED, _PASSING, _CHANGED = 0.25, 0.2, 0.2
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

    def at(self, horizon: int, first: int = 0) -> Float[NDArray, "h2 dy"]:
        """The factors of `horizon` steps, from step `first` on."""
        return self.factors[np.minimum(np.arange(first, first + horizon), len(self.factors) - 1)]

    def applied(self, samples: Float[NDArray, "p h2 dy"], first: int = 0) -> Float[NDArray, "p h2 dy"]:
        """Paths `samples` from step `first` on, spread about their median; where they have diverged they stay."""
        return spread_by(self.at(samples.shape[1], first), samples)

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
        far = len(self.factors)
        told = f"as far as {max(1, round(self.independent))} independent error(s) tell"
        return f"bands of forecasts, {told}: multiplied by {first:.2f} one step ahead, by {last:.2f} from {far} on"

    @classmethod
    def of(cls, errors: "list[Errors]") -> "Calibration":
        """From `errors` of forecasts, of one length, from several origins."""
        score = np.stack([e.score for e in errors])  # (origins, h, dy)
        alike = np.mean([[independent(run) for run in e.standardised.T] for e in errors], axis=0)
        horizon = score.shape[1]
        counts = np.maximum(alike * (horizon + errors[-1].origin - errors[0].origin) / horizon, 1.0)
        changed = _log_quantiles(score) - _log_quantiles(np.stack([e.present for e in errors]))
        believed = _EXPECTED / (_EXPECTED + _PASSING + _CHANGED * changed**2 + 0.5 / counts)
        columns = [believed[j] * _log_factors(score[:, :, j]) for j in range(len(counts))]
        return cls(np.exp(np.column_stack(columns)), float(counts.sum()))


def _log_quantiles(scores: Float[NDArray, "origins h dy"]) -> Float[NDArray, " dy"]:
    """Of every output, over all origins and steps; 0 where there are none."""
    return np.array(
        [np.log(np.clip(np.nanquantile(s, LEVEL), *_LIMITS)) if np.isfinite(s).any() else 0.0 for s in scores.T]
    )


def spread_by(factors: Float[NDArray, "h dy"], samples: Float[NDArray, "p h dy"]) -> Float[NDArray, "p h dy"]:
    """Sample paths, their distances from the median multiplied; where they have diverged they stay as they are."""
    with np.errstate(over="ignore", invalid="ignore"):
        middle = np.median(samples, axis=0)
        spread = middle + (samples - middle) * factors
    return np.where(np.isfinite(spread), spread, samples)


def _log_factors(score: Float[NDArray, "origins h"]) -> Float[NDArray, " h"]:
    """Of one output: logarithms of quantiles of octaves of the horizon, smoothed."""
    horizon = score.shape[1]
    edges = [0, *(2**k for k in range(horizon.bit_length()) if 2**k < horizon), horizon]
    at, logs = [], []
    for first, last in pairwise(edges):
        seen = score[:, first:last]
        if np.isfinite(seen).any():
            at.append(np.log(0.5 * (first + 1 + last)))
            logs.append(np.log(np.clip(np.nanquantile(seen, LEVEL), *_LIMITS)))
    if not at:
        return np.zeros(horizon)
    distance = np.log(np.arange(1, horizon + 1))[:, None] - np.array(at)
    near = np.exp(-0.5 * (distance / _OCTAVE) ** 2)
    return near @ np.array(logs) / near.sum(axis=1)


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

    origin: int
    """The sample that it starts with."""
    score: Float[NDArray, "h dy"]
    """In units of the band that was promised: 1 is at its edge. NaN where nothing was observed."""
    standardised: Float[NDArray, "h dy"]
    """Signed, in standard deviations."""

    present: Float[NDArray, "h dy"]
    """The `score` of the model whose band it is; the same if that has made the forecast."""

    @classmethod
    def of(
        cls,
        origin: int,
        samples: Float[NDArray, "p h dy"],
        promised: Float[NDArray, "p2 h dy"],
        truth: Float[NDArray, "h dy"],
    ) -> "Errors":
        """Of the median of `samples`, relative to the spread of `promised`."""
        low, middle, high = np.quantile(promised, [0.5 - 0.5 * LEVEL, 0.5, 0.5 + 0.5 * LEVEL], axis=0)

        def score(error: NDArray) -> NDArray:
            return np.abs(error) / np.where(error > 0, high - middle, middle - low)

        error = truth - np.median(samples, axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return cls(origin, score(error), error / promised.std(axis=0), score(truth - middle))


def rolling(
    fitted: "Fitted",
    outputs: Float[NDArray, "t dy"],
    inputs: Float[NDArray, "t dc"],
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
            now = fitted.filtered(Recording(outputs[rows], inputs[rows], None), state=now, seed=seed + seen)
            seen = start
        ahead, settings = inputs[start : start + horizon], {"num_paths": num_paths, "seed": seed + start}
        yield start, fitted.ahead(ahead, state=now, calibrated=calibrated, **settings)


class Origin(NamedTuple):
    """A model, and its state before the first sample of a recording."""

    fitted: "Fitted"
    state: "States | None"


def rolling_errors(
    outputs: Float[NDArray, "t dy"],
    inputs: Float[NDArray, "t dc"],
    horizon: int | None,
    seed: int,
    of: Origin,
    promised: Origin | None = None,
) -> list[Errors]:
    """Of forecasts of a checked recording, all of one length, from origins at equal distances.

    The errors are those of one model, `of`; the bands are those of another, `promised`, or its own. Forecasts that
    diverge, or that nothing was observed of, are left out.
    """
    length = len(outputs)
    horizon = max(1, length // 2) if horizon is None else positive_int("horizon", horizon)
    if horizon > length:
        raise InvalidInput(f"horizon: {horizon} steps ahead on {length} sample(s); expected at most as many.")
    starts = range(0, length - horizon + 1, -(-(length - horizon + 1) // _ORIGINS))
    settings: Any = {"num_paths": _PATHS, "seed": seed, "calibrated": False}

    def paths(by: Origin) -> Iterator[NDArray]:
        found = rolling(by.fitted, outputs, inputs, starts, horizon, state=by.state, **settings)
        return (forecast.samples for _, forecast in found)

    # One forecast at a time, of each: those of a long recording would fill the memory.
    pairs = ((a, a) for a in paths(of)) if promised is None else zip(paths(of), paths(promised), strict=True)
    with np.errstate(invalid="ignore"):  # of what has diverged nothing can be said
        rows = zip(starts, pairs, strict=True)
        errors = [Errors.of(start, *pair, outputs[start : start + horizon]) for start, pair in rows]
    return [e for e in errors if np.isfinite(e.score).any()]
