"""gpssm as a forecaster of river: any online method behind `learn_one(y, x)` and `forecast(horizon, xs)`.

`x` holds the control inputs that act on the way to `y`, by name. The first sample says which there are and their
order. One that is missing later stays what it was, as in a recording with gaps; one that was not in the first sample is
left out, and so is what is not a number, such as the dates in river's data sets.

The first samples, ten by default, only tell the units of the data. Until then, forecasts are the mean of what was seen,
and before the first sample zero, as those of river's own models.

>>> from river import datasets, evaluate, metrics
>>> from gpssm.river import OEnVIForecaster
>>> model = OEnVIForecaster("VJF", state_dim=2, num_inducing=5, num_paths=50)
>>> passengers = list(datasets.AirlinePassengers())[:20]
>>> scores = evaluate.evaluate(passengers, model, metrics.MAE(), horizon=2)
>>> len(scores.metrics), model.stream
(2, <VJF stream: 18 sample(s), 2 state(s), 1 output(s), 0 input(s)>)
"""

from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any

import numpy as np
import scipy.stats
from jaxtyping import Float

try:
    from river.conf.interval import Interval
    from river.time_series.base import Forecaster
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("gpssm.river needs river; run pip install 'gpssm[river]'.", name="river") from error

from gpssm.errors import InvalidInput
from gpssm.methods import registry
from gpssm.online import gate
from gpssm.online.base import OnlineMethod
from gpssm.online.stream import Stream
from gpssm.plumbing.validation import positive_int
from gpssm.posteriors.states import Forecast

NDArray = np.ndarray


class OEnVIForecaster(Forecaster):
    """A state-space model that learns live: OEnVI, or any other online method, of one output.

    Args:
        method: name of an online method, as in `gpssm stream --method`; or a method, such as
            `gpssm.OEnVI(4, kernel=gpssm.Matern52())`, of which everything has been chosen: `state_dim`, `num_inducing`
            and `input_lags` then stay None.
        state_dim: dimension of the state: the output and its past. By default 4, as in `gpssm stream`.
        num_inducing: budget of inducing points; by default as the method has it.
        input_lags: how many of the last inputs act; by default the last one alone.
        num_paths: sample paths of every forecast.
        seed: all randomness, as in gpssm's own calls.

    Attributes:
        stream: the `gpssm.Stream` that learns, with `transition`, `posterior` and `save`.

    >>> import math
    >>> model = OEnVIForecaster("VJF", state_dim=1, num_inducing=2)
    >>> for t in range(30):
    ...     model.learn_one(math.sin(0.3 * t), {"heater": math.cos(0.3 * t)})
    >>> steps = model.forecast(3, [{"heater": 0.9}, {"heater": 1.0}, {"heater": 0.9}])
    >>> [type(step).__name__ for step in steps]
    ['float', 'float', 'float']
    >>> band = model.forecast_interval(3, coverage=0.9)  # the heater stays what it was
    >>> [step.lower < step.upper for step in band]
    [True, True, True]
    """

    def __init__(
        self,
        method: Any = "OEnVI",
        state_dim: int | None = None,
        num_inducing: int | None = None,
        input_lags: int | None = None,
        num_paths: int = 500,
        seed: int = 0,
    ) -> None:
        self.method = method
        self.state_dim = state_dim
        self.num_inducing = num_inducing
        self.input_lags = input_lags
        self.num_paths = num_paths
        self.seed = seed
        self.stream: Stream = self._method().start(seed)
        self._inputs: dict[Any, float] | None = None  # by name, the last that were seen

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"state_dim": 1, "num_inducing": 5}
        yield {"method": "VJF", "state_dim": 1, "num_inducing": 2, "num_paths": 50}

    def learn_one(self, y: float | None, x: dict | None = None) -> None:
        """Learn from a sample; None or NaN where it is missing.

        The first call compiles all that later ones need, which takes seconds.

        Args:
            y: the output.
            x: the inputs that acted on the way to it, by name.
        """
        inputs = _numbers(x) if self._inputs is None else self._following(self._inputs, x)
        self.stream.learn_one([np.nan if y is None else y], list(inputs.values()) or None)
        self._inputs = inputs

    def forecast(self, horizon: int, xs: Sequence[dict] | None = None) -> list[float]:
        """The next outputs: mean of the sample paths.

        Args:
            horizon: number of steps.
            xs: the inputs to come, a dict for every step; without them inputs stay what they were.
        """
        paths = self._paths(horizon, xs)
        mean = self._before(horizon)[0] if paths is None else paths.mean[:, 0]
        return [float(step) for step in mean]

    def forecast_interval(
        self, horizon: int, xs: Sequence[dict] | None = None, coverage: float = 0.9
    ) -> list[Interval]:
        """Central intervals that hold a share `coverage` of the sample paths, as river's `conf` has them.

        Args:
            horizon: number of steps.
            xs: the inputs to come, a dict for every step; without them inputs stay what they were.
            coverage: share, between 0 and 1.

        Returns:
            An interval with `lower`, `upper` and `width` for every step. As long as nothing is known of the spread of
            the output it is the whole line.

        >>> OEnVIForecaster().forecast_interval(1)
        [Interval(lower=-inf, upper=inf)]
        """
        if not 0 < coverage < 1:
            raise InvalidInput(f"coverage: expected a probability between 0 and 1, got {coverage!r}.")
        paths = self._paths(horizon, xs)
        low, high = self._before(horizon, coverage)[1:] if paths is None else np.stack(paths.band(coverage))[..., 0]
        return [Interval(float(lower), float(upper)) for lower, upper in zip(low, high, strict=True)]

    def _method(self) -> OnlineMethod:
        chosen = {"state_dim": self.state_dim, "num_inducing": self.num_inducing, "input_lags": self.input_lags}
        return registry.chosen(self.method, "start", {"state_dim": 4}, chosen)

    def _following(self, before: dict[Any, float], x: dict | None) -> dict[Any, float]:
        """The inputs `x`, in the order and with the values of those `before` it where it says nothing."""
        said = _numbers(x)
        return {name: value if np.isnan(said.get(name, np.nan)) else said[name] for name, value in before.items()}

    def _paths(self, horizon: int, xs: Sequence[dict] | None) -> Forecast | None:
        """Sample paths, once there is a model."""
        positive_int("horizon", horizon)
        if xs is not None and len(xs) != horizon:
            raise InvalidInput(f"xs: {len(xs)} dict(s); expected one for every step, {horizon}.")
        if not self.stream.ready or self._inputs is None:
            return None
        rows, now = [], self._inputs
        for x in [None] * horizon if xs is None else xs:
            now = self._following(now, x)
            rows.append(list(now.values()))
        inputs = np.array(rows) if self._inputs else None
        return self.stream.forecast(horizon, inputs, num_paths=self.num_paths, seed=self.seed)

    def _before(self, horizon: int, coverage: float = 0.9) -> Float[NDArray, "3 h"]:
        """Mean and a central interval while there is no model: of another draw of the normal that was seen so far."""
        early, reach = self.stream.early, np.inf
        rows = gate.believable(early, self.stream.method.input_lags)[0] if early else np.zeros((0, 1))
        seen = rows[~np.isnan(rows)]
        mean = seen.mean() if len(seen) else 0.0
        if len(seen) > 1:
            spread = seen.std(ddof=1) * np.sqrt(1 + 1 / len(seen))
            reach = spread * scipy.stats.t.ppf(0.5 + 0.5 * coverage, len(seen) - 1)
        return np.repeat([[mean], [mean - reach], [mean + reach]], horizon, axis=1)


def _numbers(x: dict | None) -> dict[Any, float]:
    """What of a sample of river's is a number."""
    return {name: float(value) for name, value in (x or {}).items() if isinstance(value, Real)}
