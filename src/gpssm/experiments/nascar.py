"""The paper's NASCAR track (Section VI.D): learn the dynamics in one pass, then drive on without looking.

2000 samples, each seen once; then the median of sampled paths against the true states over the next
50, 100 and 500 steps (the mean of paths follows the few that have left the track). C is given, as in
the paper; x_0, noise variances and the range of the states are not. Medians and quartiles over seeds:
over 500 steps the result is mostly luck, so the oracle, the true dynamics started from the true
state, stands beside it.
"""

from dataclasses import asdict, dataclass

import numpy as np

from gpssm.datasets.nascar import PROCESS_NOISE, Nascar, nascar, nascar_function
from gpssm.experiments.online import learn_once
from gpssm.methods import registry
from gpssm.online.stream import Stream
from gpssm.posteriors.states import Forecast

NDArray = np.ndarray

LENGTH, HORIZONS, NUM_PATHS, NUM_INDUCING = 2000, (50, 100, 500), 500, 50

# Forecast RMSE over 500 steps that the paper prints; OEnVI's after 25 passes, by its released code.
PAPER = {"OEnVI": 1.8780, "SVMC": 4.6682, "VJF": 10.8499}


METHODS = tuple(registry.ONLINE)


@dataclass(frozen=True)
class Score:
    """One pass and one forecast."""

    method: str
    seed: int
    forecast_rmse: dict[str, float]
    oracle_rmse: dict[str, float]
    filter_rmse: float
    least_squares_rmse: float
    coverage90: float
    """Share of true states inside the 90% band over the first 100 steps."""
    milliseconds: float
    """CPU time per sample, after compilation."""


@dataclass(frozen=True)
class Row:
    """One line of the table. Quartiles over seeds of the forecast, medians of the rest."""

    method: str
    seeds: int
    forecast_rmse: dict[str, tuple[float, float, float]]
    oracle_rmse: dict[str, tuple[float, float, float]]
    filter_rmse: float
    least_squares_rmse: float
    coverage90: float
    milliseconds: float

    def as_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Run:
    """What the figure is drawn from."""

    data: Nascar
    filtered: NDArray
    forecast: Forecast
    stream: Stream


def oracle(start: NDArray, horizon: int, seed: int) -> NDArray:
    """Median (horizon, 2) of paths of the true system from the true state."""
    rng = np.random.default_rng([seed, 1])
    x = np.repeat(start[None], NUM_PATHS, axis=0)
    middle = np.empty((horizon, 2))
    for t in range(horizon):
        x = nascar_function(x) + np.sqrt(PROCESS_NOISE) * rng.normal(size=x.shape)
        middle[t] = np.median(x, axis=0)
    return middle


def run(method: str, seed: int) -> tuple[Run, Score]:
    """Simulate, learn in one pass, forecast and score, everything from one seed."""
    data = nascar(LENGTH + HORIZONS[-1], seed)
    series = data.series
    assert series.states is not None
    online = registry.build_online(method, state_dim=2, num_inducing=NUM_INDUCING, emission=data.emission)
    stream: Stream = online.start(seed=seed)
    filtered, milliseconds = learn_once(stream, series.outputs[:LENGTH])
    forecast = stream.forecast(HORIZONS[-1], num_paths=NUM_PATHS, seed=seed)
    truth = series.states[LENGTH:]
    low, high = np.quantile(forecast.states[:, :100], [0.05, 0.95], axis=0)
    least_squares = series.outputs[:LENGTH] @ np.linalg.pinv(data.emission).T
    score = Score(
        method,
        seed,
        _at_horizons(np.median(forecast.states, axis=0) - truth),
        _at_horizons(oracle(series.states[LENGTH - 1], HORIZONS[-1], seed) - truth),
        _rmse(filtered - series.states[:LENGTH]),
        _rmse(least_squares - series.states[:LENGTH]),
        float(np.mean((truth[:100] >= low) & (truth[:100] <= high))),
        milliseconds,
    )
    return Run(data, filtered, forecast, stream), score


def summarise(scores: list[Score]) -> Row:
    """Medians and quartiles over the seeds."""

    def quartiles(rows: list[dict[str, float]]) -> dict[str, tuple[float, float, float]]:
        found = {}
        for name in rows[0]:
            low, middle, high = np.quantile([row[name] for row in rows], [0.25, 0.5, 0.75])
            found[name] = (float(low), float(middle), float(high))
        return found

    return Row(
        scores[0].method,
        len(scores),
        quartiles([s.forecast_rmse for s in scores]),
        quartiles([s.oracle_rmse for s in scores]),
        float(np.median([s.filter_rmse for s in scores])),
        float(np.median([s.least_squares_rmse for s in scores])),
        float(np.median([s.coverage90 for s in scores])),
        float(np.median([s.milliseconds for s in scores])),
    )


def _at_horizons(error: NDArray) -> dict[str, float]:
    return {str(h): _rmse(error[:h]) for h in HORIZONS}


def _rmse(error: NDArray) -> float:
    return float(np.sqrt(np.mean(error**2)))
