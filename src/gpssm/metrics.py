"""Scores of forecasts against the truth: pure functions of sample paths and truth, in the user's units.

`truth` is (h, dy), `samples` (p, h, dy) as in `Forecast.samples`; a vector is one column. A NaN in
`truth` is a sample that nobody took: it is not scored. Scores are means over all numbers that are,
smaller is better for `rmse`, `nlpd` and `crps`.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from gpssm.errors import InvalidInput
from gpssm.plumbing.validation import matrix, positive_int

NDArray = np.ndarray


def rmse(forecast_mean: Any, truth: Any) -> float:
    """Root mean square error of `forecast_mean` (h, dy) for `truth` (h, dy), over all channels, in the outputs' unit.

    >>> round(rmse([1.0, 3.0], [1.0, 2.0]), 4)
    0.7071
    """
    y = _truth(truth)
    mean = matrix("forecast_mean", forecast_mean)
    if mean.shape != y.shape:
        raise InvalidInput(f"forecast_mean: got shape {mean.shape}; expected that of truth, {y.shape}.")
    seen = ~np.isnan(y)
    if np.isnan(mean[seen]).any():
        raise InvalidInput("forecast_mean: contains NaN; expected a number wherever truth has one.")
    return float(np.sqrt(np.mean((mean[seen] - y[seen]) ** 2)))


def fit_percent(forecast_mean: Any, truth: Any) -> Float[NDArray, " dy"]:
    """How much of every column of `truth` (h, dy) follows `forecast_mean` (h, dy), in percent: (dy,).

        100 (1 - RMSE / standard deviation of the truth)

    100 is perfect, 0 is as good as the mean of the truth, and what is worse is negative. NaN where the truth is
    constant or missing throughout.

    >>> fit_percent([1.0, 2.0, 3.0], [1.0, 2.0, 4.0]).round(1).tolist()
    [53.7]
    """
    y, mean = _truth(truth), matrix("forecast_mean", forecast_mean)
    found = np.full(y.shape[1], np.nan)
    for i, (column, predicted) in enumerate(zip(y.T, mean.T, strict=True)):
        seen = column[~np.isnan(column)]
        if len(seen) and (spread := float(np.std(seen))) > 0:
            found[i] = 100 * (1 - rmse(predicted, column) / spread)
    return found


def nlpd(samples: Any, truth: Any) -> float:
    """Negative log predictive density per number of `truth` (h, dy), in nats.

    The density is the Gaussian with the mean and the variance of the paths `samples` (p, h, dy).

    >>> round(nlpd([[0.0, 2.0], [1.0, 3.0], [2.0, 4.0]], [1.0, 2.0]), 4)
    1.1689
    """
    paths, y = _seen(samples, truth)
    var = paths.var(axis=0, ddof=1)
    if not (var > 0).all():
        raise InvalidInput("samples: all paths agree somewhere; expected a spread, without one there is no density.")
    return float(np.mean(0.5 * (np.log(2 * np.pi * var) + (y - paths.mean(axis=0)) ** 2 / var)))


def crps(samples: Any, truth: Any) -> float:
    """Continuous ranked probability score of the paths `samples` (p, h, dy) per number of `truth` (h, dy).

        E|X - y| - E|X - X'| / 2

    in the unit of the outputs. The fair form: the second expectation is over pairs of different paths, so that the
    score is unbiased for the law the paths were drawn from, whatever their number. Cost O(p log p).

    >>> round(crps([[0.0, 2.0], [1.0, 3.0], [2.0, 4.0]], [1.0, 2.0]), 4)
    0.1667
    """
    paths, y = _seen(samples, truth)
    count = len(paths)
    # Sum over pairs of |X_i - X_j|: the k-th smallest is the larger one k - 1 times and the smaller one p - k times.
    ranks = 2 * np.arange(1, count + 1) - count - 1
    spread = ranks @ np.sort(paths, axis=0) / (count * (count - 1))
    return float(np.mean(np.mean(np.abs(paths - y), axis=0) - spread))


def coverage(samples: Any, truth: Any, level: float = 0.9) -> float:
    """Share of the numbers of `truth` (h, dy) inside the central intervals that should hold `level` of them, in [0, 1].

    The intervals are those of the paths `samples` (p, h, dy) at each time. Quantiles are placed at k / (p + 1), so
    that a correct forecast is covered as often as it says with few paths, too.

    >>> coverage([[0.0, 2.0], [1.0, 3.0], [2.0, 4.0]], [1.0, 5.0], level=0.5)
    0.5
    """
    return float(np.nanmean(inside(samples, truth, level)))


def inside(samples: Any, truth: Any, level: float = 0.9) -> Float[NDArray, "h dy"]:
    """Which numbers are inside the intervals of `coverage`: 1, or 0, or NaN where `truth` is.

    Args:
        samples: (p, h, dy) sample paths.
        truth: (h, dy) what was observed, NaN where a value is missing.
        level: share of the paths that an interval holds, between 0 and 1.

    >>> inside([[0.0, 2.0], [1.0, 3.0], [2.0, 4.0]], [1.0, 5.0], level=0.5)[:, 0].tolist()
    [1.0, 0.0]
    """
    if isinstance(level, bool) or not isinstance(level, (int, float)) or not 0 < level < 1:
        raise InvalidInput(f"level: expected a probability between 0 and 1, got {level!r}.")
    paths, y = _paths(samples, truth)
    low, high = np.quantile(paths, [0.5 - 0.5 * level, 0.5 + 0.5 * level], axis=0, method="weibull")
    return np.where(np.isnan(y), np.nan, (y >= low) & (y <= high))


def pit(samples: Any, truth: Any) -> Float[NDArray, "h dy"]:
    """Probability integral transform (h, dy): the share of the paths `samples` (p, h, dy) below `truth` (h, dy).

    Uniform on (0, 1) if the forecast is right: `(number of paths below + 1/2) / (p + 1)`, a path
    equal to the truth counting half. NaN where `truth` is.

    >>> pit([[0.0, 2.0], [1.0, 3.0], [2.0, 4.0]], [1.0, 2.0]).tolist()
    [[0.5], [0.25]]
    """
    paths, y = _paths(samples, truth)
    below = np.sum(paths < y, axis=0) + 0.5 * np.sum(paths == y, axis=0)
    return np.where(np.isnan(y), np.nan, (below + 0.5) / (len(paths) + 1))


def autocorrelation(residuals: Any, lags: int) -> Float[NDArray, "k dy"]:
    """Autocorrelation of every column of `residuals` (T, dy) at lags 0 to `lags`: (lags + 1, dy).

    Means over the pairs of which both are present: a gap shrinks nothing. NaN where there is none.

    >>> autocorrelation([1.0, -1.0, 1.0, -1.0], lags=2)[:, 0].tolist()
    [1.0, -1.0, 1.0]
    """
    positive_int("lags", lags, 0)
    values = matrix("residuals", residuals)
    if len(values) <= lags:
        raise InvalidInput(f"residuals: {len(values)} row(s); expected more than lags={lags}.")
    if np.isnan(values).all(axis=0).any():
        raise InvalidInput("residuals: a column is NaN throughout; expected numbers. Drop it.")
    centred = values - np.nanmean(values, axis=0)
    size = np.nanmean(centred**2, axis=0)
    if not (size > 0).all():
        raise InvalidInput("residuals: a column is constant; expected residuals that vary.")
    result = np.full((lags + 1, values.shape[1]), np.nan)
    for lag in range(lags + 1):
        products = centred[lag:] * centred[: len(values) - lag]
        present = ~np.isnan(products)
        count = present.sum(axis=0)
        np.divide(np.sum(products, axis=0, where=present), count * size, out=result[lag], where=count > 0)
    return result


def _truth(truth: Any) -> NDArray:
    y = matrix("truth", truth)
    if np.isnan(y).all():
        raise InvalidInput("truth: holds no number; expected at least one to score.")
    return y


def _paths(samples: Any, truth: Any) -> tuple[NDArray, NDArray]:
    """Checked paths (p, h, dy) and truth (h, dy)."""
    y = _truth(truth)
    try:
        paths = np.asarray(samples, dtype=float)
    except (TypeError, ValueError) as error:
        kind = type(samples).__name__
        raise InvalidInput(f"samples: expected numbers (paths, time, channels), got {kind}.") from error
    if paths.ndim == 2 and y.shape[1] == 1:
        paths = paths[:, :, None]
    if paths.ndim != 3 or paths.shape[1:] != y.shape or len(paths) < 2:
        raise InvalidInput(
            f"samples: got shape {np.shape(samples)}; expected (paths, {y.shape[0]}, {y.shape[1]}), 2 paths or more."
        )
    if not np.isfinite(paths).all():
        raise InvalidInput("samples: contains NaN or infinity; expected paths that did not diverge.")
    return paths, y


def _seen(samples: Any, truth: Any) -> tuple[NDArray, NDArray]:
    """Paths (p, n) and truth (n,) of the numbers that are scored."""
    paths, y = _paths(samples, truth)
    seen = ~np.isnan(y)
    return paths[:, seen], y[seen]
