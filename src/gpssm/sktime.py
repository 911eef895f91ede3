"""gpssm as a forecaster of sktime: any offline method behind `fit`, `predict`, `predict_interval` and `update`.

What the words of sktime mean here:

- `X` are known control inputs. Row t acts on the way to row t of `y`. A forecast takes a row for every step up to the
  last one that is asked for, those in between included.
- A NaN in `y`, or a time that its index leaves out, is a missing sample.
- Behind the cutoff forecasts are sample paths: `predict` is their mean, and intervals, quantiles and the variance are
  theirs, too. Up to the cutoff (fh <= 0) every sample is predicted from those before it, as a normal distribution.
- `predict_proba` is what sktime makes of mean and variance: a normal distribution, of skpro if that is installed, or
  else the small one inside sktime, with a warning of sktime's. The quantiles of the paths are in `predict_quantiles`.
- `update(y, update_params=False)` goes on filtering: the model stays, its state follows the data. `update_params=True`,
  the default of sktime, learns again from all data so far.
- What is behind the cutoff is not known: an update that moves the cutoff back forgets what came after it.

>>> from gpssm.sktime import GPSSMForecaster
>>> from sktime.datasets import load_lynx
>>> lynx = load_lynx()  # trapped in every year from 1821 to 1934
>>> forecaster = GPSSMForecaster("ARX").fit(lynx[:"1929"])
>>> forecaster.update(lynx["1930":], update_params=False).predict([1, 2]).round(-2)
1935    3000.0
1936    2100.0
Freq: Y-DEC, Name: Number of Lynx trappings, dtype: float64
"""

from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float

try:
    import pandas as pd
    from sktime.datatypes import update_data
    from sktime.forecasting.base import BaseForecaster, ForecastingHorizon
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("gpssm.sktime needs sktime; run pip install 'gpssm[sktime]'.", name="sktime") from error
from scipy.stats import norm
from sklearn.utils import check_random_state

from gpssm.errors import InvalidInput
from gpssm.methods import registry
from gpssm.posteriors.fitted import Fitted
from gpssm.posteriors.states import Forecast, States

NDArray = np.ndarray
_Arrays = tuple[NDArray, NDArray | None]
"""A recording: outputs (T, dy), NaN where one is missing, and inputs (T, dc) if there are any."""


class _Predicted(NamedTuple):
    """What is said of h samples, of which some are past."""

    past_mean: Float[NDArray, "p dy"]
    past_std: Float[NDArray, "p dy"]
    future: Forecast | None

    @property
    def mean(self) -> Float[NDArray, "h dy"]:
        return self._joined(self.past_mean, self.future and self.future.mean)

    @property
    def variance(self) -> Float[NDArray, "h dy"]:
        return self._joined(self.past_std**2, self.future and self.future.std**2)

    def quantiles(self, probabilities: list[float]) -> Float[NDArray, "q h dy"]:
        past = self.past_mean + self.past_std * norm.ppf(probabilities)[:, None, None]
        return self._joined(past, self.future and self.future.quantile(probabilities))

    def _joined(self, past: NDArray, future: NDArray | None) -> NDArray:
        return past if future is None else np.concatenate([past, future], axis=-2)


class GPSSMForecaster(BaseForecaster):
    """A state-space model as a forecaster: EnVI, or any other method that learns from a recording.

    Args:
        method: name of a method, as in `gpssm fit --method`; or a method, such as `gpssm.EnVI(4, window=50)`, of which
            everything has been chosen: `state_dim`, `num_inducing` and `likelihood` then stay None.
        state_dim: dimension of the hidden state; by default `"auto"` for methods that have one.
        num_inducing: inducing points of every GP; by default as the method has it.
        likelihood: `"gaussian"`, or `"student_t"` for recordings with outliers; by default as the method has it.
        holdout: share of the end of y that is forecast first, by a model without it, to correct the bands.
        max_seconds: after which a fit ends with the best model so far.
        num_paths: sample paths of every forecast.
        random_state: all randomness of fits and forecasts. A whole number is the `seed` of gpssm's own calls.

    Attributes:
        fitted_: what the method's `fit` has returned, with `summary`, `transition`, `smooth`, `save`.

    >>> import numpy as np
    >>> from gpssm.sktime import GPSSMForecaster
    >>> from sktime.datasets import load_lynx
    >>> log_lynx = np.log10(load_lynx())
    >>> forecaster = GPSSMForecaster("ARX").fit(log_lynx)
    >>> forecaster.predict_interval([1, 2], coverage=0.9).round(1).to_numpy().tolist()
    [[3.0, 3.7], [2.5, 3.7]]
    >>> forecaster.fitted_
    <ARX posterior: 7 state(s), 1 output(s), 0 input(s), linear>
    """

    _tags: ClassVar[dict[str, Any]] = {
        "authors": "The gpssm authors",
        "maintainers": "The gpssm authors",
        "python_dependencies": None,
        "capability:multivariate": True,
        "capability:exogenous": True,
        "capability:categorical_in_X": False,
        "capability:non_contiguous_X": False,
        "capability:insample": True,
        "capability:pred_int": True,
        "capability:pred_int:insample": True,
        "capability:missing_values": True,
        "capability:update": True,
        "capability:random_state": True,
        "property:randomness": "derandomized",
        "requires-fh-in-fit": False,
        "X-y-must-have-same-index": True,
        "y_inner_mtype": "pd.DataFrame",
        "X_inner_mtype": "pd.DataFrame",
    }
    # Data are kept here, once; and sktime does not warn, at every construction, that its own default will be this one.
    _config: ClassVar[dict[str, Any]] = {"remember_data": False}

    def __init__(
        self,
        method: Any = "EnVI",
        state_dim: int | str | None = None,
        num_inducing: int | None = None,
        likelihood: str | None = None,
        holdout: float = 0.0,
        max_seconds: float | None = None,
        num_paths: int = 500,
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.state_dim = state_dim
        self.num_inducing = num_inducing
        self.likelihood = likelihood
        self.holdout = holdout
        self.max_seconds = max_seconds
        self.num_paths = num_paths
        self.random_state = random_state
        super().__init__()
        self._y = self._X = None  # for those who ask sktime to keep the data, too

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Settings for the checks of sktime: methods for which nothing is compiled that takes seconds.

        Args:
            parameter_set: of sktime's several sets; there is one.
        """
        from gpssm.methods.arx import ARX

        return [{"method": "LastValue", "num_paths": 20}, {"method": ARX(order=2), "num_paths": 50, "random_state": 7}]

    # What sktime calls ---------------------------------------------------------------------------

    def _fit(self, y: pd.DataFrame, X: pd.DataFrame | None, fh: Any) -> "GPSSMForecaster":
        self._cur_y, self._cur_X, self._freq = y, X, getattr(self.cutoff, "freq", None)
        self._learn(*self._recording(y, X))
        return self

    def _update(self, y: pd.DataFrame, X: pd.DataFrame | None = None, update_params: bool = True) -> "GPSSMForecaster":
        if isinstance(self.cutoff, pd.DatetimeIndex):  # a single date does not tell the step
            self._cutoff = pd.DatetimeIndex(self.cutoff, freq=self._freq)
        known = self._recording(self._cur_y, self._cur_X)
        outputs, inputs = update_data(self._cur_y, y).loc[: self.cutoff[0]], X
        if self._cur_X is not None:
            inputs = update_data(self._cur_X, X)[self._cur_X.columns]
        now = self._recording(outputs, inputs)
        if update_params:
            self._learn(*now)
        else:
            self._follow(known, now)
        self._cur_y, self._cur_X = outputs, inputs
        return self

    def _predict(self, fh: ForecastingHorizon, X: pd.DataFrame | None) -> pd.DataFrame:
        return self._table(self._predicted(fh, X).mean, fh, self._get_varnames())

    def _predict_quantiles(self, fh: ForecastingHorizon, X: pd.DataFrame | None, alpha: list[float]) -> pd.DataFrame:
        found = self._predicted(fh, X).quantiles([float(a) for a in alpha])
        columns = self._get_columns(method="predict_quantiles", alpha=alpha)
        return self._table(found.transpose(1, 2, 0).reshape(len(fh), -1), fh, columns)

    def _predict_var(
        self,
        fh: ForecastingHorizon,
        X: pd.DataFrame | None = None,
        cov: bool = False,
    ) -> pd.DataFrame:
        if cov:
            raise NotImplementedError("cov: variances are of every step by itself; expected False.")
        return self._table(self._predicted(fh, X).variance, fh, self._get_varnames())

    # What gpssm is asked -------------------------------------------------------------------------

    def _method(self) -> Any:
        """The method to fit."""
        choices = {"state_dim": self.state_dim, "num_inducing": self.num_inducing, "likelihood": self.likelihood}
        return registry.chosen(self.method, "fit", {"state_dim": "auto"}, choices)

    def _learn(self, outputs: NDArray, inputs: NDArray | None) -> None:
        """A new model, from all data so far."""
        whole = isinstance(self.random_state, (int, np.integer))
        self._seed = int(self.random_state if whole else check_random_state(self.random_state).randint(2**31 - 1))
        limits = {"holdout": self.holdout, "max_seconds": self.max_seconds}
        fitted: Fitted = self._method().fit(outputs, inputs, seed=self._seed, **limits)
        of_outputs, of_inputs = (() if t is None else tuple(map(str, t.columns)) for t in (self._cur_y, self._cur_X))
        self.fitted_ = fitted.named(of_outputs, of_inputs)
        self._now: States | None = None  # at the cutoff, if that is not where the fit has ended

    def _follow(self, known: _Arrays, now: _Arrays) -> None:
        """The state at the end of the recording `now`, of a model that was at the end of the one `known` before."""
        (y, c), count = now, len(known[0])
        same = [
            np.array_equal(new[:count], old, equal_nan=True)
            for old, new in zip(known, now, strict=True)
            if old is not None and new is not None
        ]
        state = (self._now or self.fitted_.end) if all(same) else None
        first = 0 if state is None else count
        if first < len(y):
            later = None if c is None else c[first:]
            # Draws belong to the number of a sample: the same for each of them would add up.
            self._now = self.fitted_.filter(y[first:], later, state=state, seed=self._seed + first)

    def _predicted(self, fh: ForecastingHorizon, X: pd.DataFrame | None) -> _Predicted:
        """All that is said of the samples at these steps, which sktime has sorted."""
        steps = self._steps(fh.to_absolute_index(self.cutoff), self.cutoff)
        past, ahead = steps[steps <= 0], steps[steps > 0]
        mean = std = np.zeros((0, self.fitted_.output_dim))
        if len(past):
            outputs, inputs = self._recording(self._cur_y, self._cur_X)
            if len(outputs) - 1 + past[0] < 0:
                raise InvalidInput(f"fh: {past[0]} is before the first sample; expected at least {1 - len(outputs)}.")
            before = self.fitted_.one_step(outputs, inputs, seed=self._seed)
            mean, std = (part[len(outputs) - 1 + past] for part in before)
        if not len(ahead):
            return _Predicted(mean, std, None)
        how: Any = {"state": self._now, "num_paths": self.num_paths, "seed": self._seed}
        paths = self.fitted_.forecast(int(ahead[-1]), self._future(X, int(ahead[-1])), **how)
        return _Predicted(mean, std, Forecast(paths.samples[:, ahead - 1], paths.states[:, ahead - 1]))

    # Tables and arrays ---------------------------------------------------------------------------

    def _recording(self, y: pd.DataFrame, inputs: pd.DataFrame | None) -> _Arrays:
        """All samples, in regular steps from the first to the last.

        At a time that is in neither table, outputs are missing and inputs stay what they were.
        """
        at = self._steps(y.index, y.index[:1])
        outputs = np.full((at[-1] + 1, y.shape[1]), np.nan)
        outputs[at] = y.to_numpy(float)
        if inputs is None:
            return outputs, None
        c = np.full((len(outputs), inputs.shape[1]), np.nan)
        given = self._steps(inputs.index, y.index[:1])
        within = (given >= 0) & (given < len(c))
        c[given[within]] = inputs.to_numpy(float)[within]
        for t in np.setdiff1d(np.arange(1, len(c)), np.concatenate([at, given])):
            c[t] = c[t - 1]
        return outputs, c

    def _future(self, X: pd.DataFrame | None, horizon: int) -> Float[NDArray, "h dc"] | None:
        """Rows of inputs for every step up to the horizon."""
        if X is None:
            return None
        if self._cur_X is None:
            raise InvalidInput("X: the forecaster was fitted without; expected None.")
        if set(X.columns) != set(self._cur_X.columns):
            raise InvalidInput(f"X: has columns {list(X.columns)}; expected {list(self._cur_X.columns)}, as in fit.")
        at = self._steps(X.index, self.cutoff)
        missing = np.setdiff1d(np.arange(1, horizon + 1), at)
        if len(missing):
            raise InvalidInput(
                f"X: has no row for step {missing[0]} after the cutoff; expected one for every step up to {horizon}."
            )
        rows = X[self._cur_X.columns].to_numpy(float)
        return rows[(at > 0) & (at <= horizon)]

    def _steps(self, index: pd.Index, origin: pd.Index) -> NDArray:
        """How many steps after `origin` the times of an index are."""
        if isinstance(index, pd.DatetimeIndex) and self._freq is None:
            raise InvalidInput(
                "y: the times of its index have no regular step; expected one, as after y.asfreq('D'), "
                "where a missing sample is NaN."
            )
        horizon = ForecastingHorizon(index, is_relative=False, freq=self._freq)
        return horizon.to_relative(origin).to_numpy()

    def _table(self, values: NDArray, fh: ForecastingHorizon, columns: Any) -> pd.DataFrame:
        return pd.DataFrame(values, index=fh.to_absolute_index(self.cutoff), columns=columns)
