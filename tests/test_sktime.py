"""GPSSMForecaster: the checks of sktime by name, and what it says set beside gpssm called directly."""

import inspect

import numpy as np
import pandas as pd
import pytest

import gpssm
from gpssm.errors import InvalidInput
from gpssm.sktime import GPSSMForecaster

# Of sktime 1.2 itself: its own forecasters warn at every construction that a default of theirs is going to change.
pytestmark = pytest.mark.filterwarnings("ignore:The default of config ``remember_data``:FutureWarning")

from sktime.forecasting.base import ForecastingHorizon
from sktime.forecasting.model_evaluation import evaluate
from sktime.split import ExpandingWindowSplitter
from sktime.utils.estimator_checks import check_estimator, parametrize_with_checks

# sktime reads the arguments of the constructor, which `conftest.py` has wrapped like all functions.
GPSSMForecaster.__init__ = inspect.unwrap(GPSSMForecaster.__init__)

TINY = gpssm.EnVI(1, 3, num_members=4, update="perturbed", schedule=gpssm.Schedule(max_steps=2, chunk=2))

# What sktime checks with, 20 samples of noise, is little to learn from, and gpssm says so. That predict_proba would
# like skpro is said by sktime of every forecaster; and `update_predict` of sktime 1.2 calls pandas in an old way.
of_noise = pytest.mark.filterwarnings(
    "ignore::gpssm.errors.DataWarning",
    "ignore:.*requires skpro:UserWarning",
    "ignore:Sorting by default when concatenating:DeprecationWarning",
)


@of_noise
@parametrize_with_checks(GPSSMForecaster, obj_varname="forecaster", check_varname="check")
def test_checks_of_sktime(forecaster: type, check: str) -> None:
    results = check_estimator(forecaster, tests_to_run=check, raise_exceptions=True, verbose=False)
    assert set(results.values()) <= {"PASSED"}


# Those that compile the programs of one kind of recording only.
@of_noise
@pytest.mark.parametrize(
    "check",
    [
        "test_fit_returns_self",
        "test_fit_idempotent",
        "test_fit_does_not_overwrite_hyper_params",
        "test_non_state_changing_method_contract",
        "test_methods_have_no_side_effects",
        "test_persistence_via_pickle",
        "test_save_estimators_to_file",
        "test_deepcopy_fitted_predict",
        "test_set_params",
        "test_clone",
        "test_repr",
    ],
)
def test_checks_of_sktime_with_envi(check: str) -> None:
    results = check_estimator(GPSSMForecaster(TINY), tests_to_run=check, raise_exceptions=True, verbose=False)
    assert set(results.values()) == {"PASSED"}


def driven(length: int = 120, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two outputs that follow two inputs at once, month by month."""
    rng = np.random.default_rng(seed)
    u, y = rng.normal(size=(length, 2)), np.zeros((length, 2))
    for t in range(1, length):
        y[t] = y[t - 1] @ [[0.8, 0.1], [-0.3, 0.6]] + u[t] @ [[1.0, 0.0], [0.5, 2.0]] + 0.05 * rng.normal(size=2)
    index = pd.period_range("2001-01", periods=length, freq="M")
    return pd.DataFrame(y, index, ["level", "flow"]), pd.DataFrame(u, index, ["valve", "pump"])


def test_predictions_are_those_of_gpssm() -> None:
    y, X = driven()
    forecaster = GPSSMForecaster("ARX", num_paths=100, random_state=5).fit(y[:100], X[:100])
    fitted = gpssm.ARX().fit(y[:100].to_numpy(), X[:100].to_numpy(), seed=5)
    paths = fitted.forecast(20, X[100:].to_numpy(), num_paths=100, seed=5)
    steps = list(range(1, 21))

    mean = forecaster.predict(steps, X[100:])
    pd.testing.assert_frame_equal(mean, pd.DataFrame(paths.mean, y.index[100:], y.columns))
    variance = forecaster.predict_var(steps, X[100:])
    pd.testing.assert_frame_equal(variance, pd.DataFrame(paths.std**2, y.index[100:], y.columns))
    quantiles = forecaster.predict_quantiles(steps, X[100:], alpha=[0.9, 0.1])
    assert list(quantiles.columns) == [("level", 0.9), ("level", 0.1), ("flow", 0.9), ("flow", 0.1)]
    np.testing.assert_allclose(quantiles[("flow", 0.1)], paths.quantile(0.1)[:, 1], rtol=1e-12)
    band = forecaster.predict_interval(steps, X[100:], coverage=[0.5, 0.9])
    np.testing.assert_allclose(band[("level", 0.9, "lower")], paths.quantile(0.05)[:, 0], rtol=1e-12)
    assert (band[("level", 0.9, "upper")] > band[("level", 0.5, "upper")]).all()
    assert forecaster.fitted_.output_names == ("level", "flow") and forecaster.fitted_.input_names == ("valve", "pump")
    # Steps that are left out, in any form, are those of the whole forecast.
    some = forecaster.predict(ForecastingHorizon(y.index[[103, 110]], is_relative=False), X[100:])
    pd.testing.assert_frame_equal(some, mean.iloc[[3, 10]])


def test_envi_by_name_and_as_a_method() -> None:
    y = gpssm.datasets.kink(40, 0.05, 0.08, seed=0).outputs[:, 0]
    forecaster = GPSSMForecaster(TINY, num_paths=30, random_state=3).fit(pd.Series(y, name="x"))
    expected = TINY.fit(y, seed=3).forecast(2, num_paths=30, seed=3).mean[:, 0]
    found = forecaster.predict([1, 2])
    assert found.name == "x"
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    # Samples that come one by one have draws of their own: the same noise in every step would add up.
    later, state = gpssm.datasets.kink(43, 0.05, 0.08, seed=0).outputs[40:, 0], forecaster.fitted_.end
    for t, value in enumerate(later, 40):
        forecaster.update(pd.Series([value], [t], name="x"), update_params=False)
        state = forecaster.fitted_.filter([value], state=state, seed=3 + t)
    expected = forecaster.fitted_.forecast(1, state=state, num_paths=30, seed=3).mean[:, 0]
    np.testing.assert_allclose(forecaster.predict([1]), expected, rtol=1e-12)

    by_name = GPSSMForecaster(state_dim=2, num_inducing=7, likelihood="student_t")._method()
    assert by_name == gpssm.EnVI(2, 7, likelihood="student_t")
    assert GPSSMForecaster()._method().state_dim == "auto"


def test_inputs_act_on_the_row_that_they_stand_in() -> None:
    y, X = driven()
    forecaster = GPSSMForecaster(gpssm.ARX(order=1)).fit(y[:100], X[:100])
    before, after = X[100:103].copy(), X[100:103].copy()
    after.iloc[1, 0] += 10.0
    moved = forecaster.predict([1, 2, 3], after) - forecaster.predict([1, 2, 3], before)
    np.testing.assert_allclose(moved.iloc[0], 0.0, atol=1e-9)  # nothing before its time
    np.testing.assert_allclose(moved.iloc[1], [10.0, 0.0], atol=0.3)  # the valve moves the level at once
    # Columns go where their names say, and a table may hold more than is needed.
    turned = X[["pump", "valve"]]
    pd.testing.assert_frame_equal(forecaster.predict([1, 2, 3], turned), forecaster.predict([1, 2, 3], X[100:]))


def test_past_samples_are_predicted_one_step_ahead() -> None:
    y, X = driven()
    forecaster = GPSSMForecaster("ARX").fit(y, X)
    mean, std = gpssm.ARX().fit(y.to_numpy(), X.to_numpy()).one_step(y.to_numpy(), X.to_numpy())
    np.testing.assert_allclose(forecaster.predict([-7, 0]), mean[[-8, -1]], rtol=1e-10)
    band = forecaster.predict_interval([-7, 0], coverage=0.9)
    np.testing.assert_allclose(band["flow"][0.9]["upper"], (mean + 1.6448536 * std)[[-8, -1], 1], rtol=1e-6)
    with pytest.raises(InvalidInput, match="fh: -120 is before the first sample; expected at least -119"):
        forecaster.predict([-120])


def test_missing_samples_and_missing_times_are_the_same() -> None:
    y, X = driven()
    holes = y.copy()
    holes.iloc[[30, 31, 77]] = np.nan
    whole = GPSSMForecaster("ARX").fit(holes, X).predict([1], _after(X))
    assert np.isfinite(whole.to_numpy()).all()
    rows = holes.dropna().index
    pd.testing.assert_frame_equal(GPSSMForecaster("ARX").fit(holes.loc[rows], X).predict([1], _after(X)), whole)
    # Where nothing is said of the inputs either, they stay what they were.
    stays = X.copy()
    stays.iloc[[30, 31, 77]] = X.iloc[[29, 29, 76]].to_numpy()
    expected = GPSSMForecaster("ARX").fit(holes, stays).predict([1], _after(X))
    pd.testing.assert_frame_equal(
        GPSSMForecaster("ARX").fit(holes.loc[rows], X.loc[rows]).predict([1], _after(X)), expected
    )


def _after(X: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame([[0.3, -0.2]], X.index[-1:] + 1, X.columns)


@pytest.mark.parametrize("pieces", [[1, 1, 1, 17], [20]])
def test_update_goes_on_filtering(pieces: list[int]) -> None:
    y, X = driven()
    forecaster = GPSSMForecaster("ARX").fit(y[:100], X[:100])
    model, at = forecaster.fitted_, 100
    for length in pieces:
        forecaster.update(y[at : at + length], X[["pump", "valve"]][at : at + length], update_params=False)
        at += length
    assert forecaster.fitted_ is model and forecaster.cutoff == y.index[-1]
    state = model.filter(y.to_numpy(), X.to_numpy())
    # The prior of a whole recording is not that of the training data's end: after 100 samples nothing is left of it.
    np.testing.assert_allclose(forecaster._now.mean[-1], state.mean[-1], rtol=1e-7)
    expected = model.forecast(1, [[0.3, -0.2]], state=forecaster._now).mean
    np.testing.assert_allclose(forecaster.predict([1], _after(X)), expected, rtol=1e-12)


def test_update_of_the_parameters_learns_from_everything() -> None:
    y, X = driven()
    updated = GPSSMForecaster("ARX").fit(y[:60], X[:60]).update(y[60:], X[60:])
    pd.testing.assert_frame_equal(
        updated.predict([1], _after(X)), GPSSMForecaster("ARX").fit(y, X).predict([1], _after(X))
    )


def test_nothing_behind_the_cutoff_is_known() -> None:
    y, X = driven()
    forecaster = GPSSMForecaster("ARX").fit(y, X)
    forecaster.update(y[:50], X[:50], update_params=False)
    expected = forecaster.fitted_.forecast(2, X[50:52].to_numpy(), state=_state(forecaster, y[:50], X[:50])).mean
    np.testing.assert_allclose(forecaster.predict([1, 2], X), expected, rtol=1e-12)
    # Samples that were corrected later change the state, too.
    better = y[40:50] + 1.0
    forecaster.update(better, X[40:50], update_params=False)
    corrected = pd.concat([y[:40], better])
    expected = forecaster.fitted_.forecast(2, X[50:52].to_numpy(), state=_state(forecaster, corrected, X[:50])).mean
    np.testing.assert_allclose(forecaster.predict([1, 2], X), expected, rtol=1e-12)


def _state(forecaster: GPSSMForecaster, y: pd.DataFrame, X: pd.DataFrame) -> gpssm.posteriors.states.States:
    return forecaster.fitted_.filter(y.to_numpy(), X.to_numpy())


@pytest.mark.parametrize("frequency", [None, "D", "h", "MS", "W-SUN", "QS-OCT", "15min"])
def test_samples_may_come_one_by_one_and_with_gaps(frequency: str | None) -> None:
    values = np.sin(0.4 * np.arange(40.0))
    dates = pd.RangeIndex(40) if frequency is None else pd.date_range("2020-03-20", periods=40, freq=frequency)
    y = pd.Series(values, dates)
    forecaster = GPSSMForecaster("ARX").fit(y[:30])
    for t in (30, 31, 34):  # two do not come
        forecaster.update(y[t : t + 1], update_params=False)
    assert (
        len(forecaster._recording(forecaster._cur_y, None)[0]) == 35
        and np.isnan(forecaster._recording(forecaster._cur_y, None)[0][32:34]).all()
    )
    found = forecaster.predict([1, 3])
    assert list(found.index) == [y.index[35], y.index[37]]
    np.testing.assert_allclose(found, values[[35, 37]], atol=0.01)


def test_dates_without_a_regular_step_are_refused() -> None:
    dates = pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-04", "2020-01-05", "2020-01-06", "2020-01-07"])
    with pytest.raises(
        InvalidInput, match=r"y: the times of its index have no regular step; expected one, as after y\.as"
    ):
        GPSSMForecaster("LastValue").fit(pd.Series(np.arange(6.0), dates))


def test_what_cannot_be_meant_is_said() -> None:
    y, X = driven()
    forecaster = GPSSMForecaster("ARX").fit(y[:100], X[:100])
    with pytest.raises(
        InvalidInput, match="X: has no row for step 1 after the cutoff; expected one for every step up to 2"
    ):
        forecaster.predict([2], X[101:102])
    with pytest.raises(InvalidInput, match="X: has columns"):
        forecaster.predict([1], X[100:].rename(columns={"pump": "valve 2"}))
    with pytest.raises(InvalidInput, match="inputs: "):
        forecaster.predict([1])
    with pytest.raises(InvalidInput, match="X: the forecaster was fitted without; expected None"):
        GPSSMForecaster("LastValue").fit(y).predict([1], X)
    with pytest.raises(InvalidInput, match="NaN"):
        forecaster.update(y[100:101], update_params=False)
    forecaster.update(y[100:101], X[100:101], update_params=False)  # as if nothing had happened
    expected = GPSSMForecaster("ARX").fit(y[:100], X[:100]).update(y[100:101], X[100:101], update_params=False)
    pd.testing.assert_frame_equal(forecaster.predict([1], X), expected.predict([1], X))
    with pytest.raises(InvalidInput, match="state_dim: ARX has no such choice"):
        GPSSMForecaster("ARX", state_dim=2).fit(y)
    with pytest.raises(InvalidInput, match="num_inducing: expected None beside a method that is not given by name"):
        GPSSMForecaster(gpssm.EnVI(2), num_inducing=3).fit(y)
    with pytest.raises(InvalidInput, match="method: expected a name, or a method that has a `fit`, got 3"):
        GPSSMForecaster(3).fit(y)
    with pytest.raises(NotImplementedError, match="cov"):
        GPSSMForecaster("LastValue").fit(y).predict_var([1, 2], cov=True)


def test_randomness() -> None:
    y = driven()[0]
    first, second = (GPSSMForecaster("ARX", random_state=None).fit(y) for _ in range(2))
    assert not np.array_equal(first.predict([1]), second.predict([1]))  # other paths
    pd.testing.assert_frame_equal(first.predict([1]), first.predict([1]))  # one fit, one forecast


def test_holdout_corrects_the_bands() -> None:
    walk = pd.Series(np.cumsum(np.random.default_rng(0).normal(size=120)))
    assert GPSSMForecaster("LastValue", holdout=0.2).fit(walk).fitted_.calibration is not None
    assert GPSSMForecaster("LastValue").fit(walk).fitted_.calibration is None


def test_the_backtests_of_sktime_use_it() -> None:
    y, X = driven()
    splitter = ExpandingWindowSplitter(fh=[1, 2], initial_window=100, step_length=5)
    table = evaluate(GPSSMForecaster("ARX"), splitter, y, X, strategy="no-update_params")
    assert len(table) == 4 and (table.filter(like="test_").to_numpy(float) < 10).all()
