"""Statistics of sample paths, also of those that have left the numbers that there are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gpssm.posteriors import states
from gpssm.posteriors.states import Forecast

LARGE = st.floats(-1.7e308, 1.7e308)
PATHS = arrays(float, st.tuples(st.integers(2, 6), st.integers(1, 4), st.integers(1, 2)), elements=LARGE)
ANYTHING = arrays(float, st.tuples(st.integers(2, 6), st.integers(1, 5), st.integers(1, 2)), elements=st.floats())


@settings(deadline=None, max_examples=200, derandomize=True)
@given(PATHS)
def test_moments_of_large_numbers(samples: np.ndarray) -> None:
    """As with more bits in the exponent, where the sums and squares of all of them are numbers."""
    forecast, wide = Forecast(samples, samples), samples.astype(np.longdouble)
    if np.finfo(np.longdouble).maxexp <= np.finfo(float).maxexp:
        pytest.skip("no wider numbers here")
    largest = np.abs(wide).max(axis=0)
    assert forecast.diverged is None
    assert (np.abs(forecast.mean - wide.mean(axis=0)) <= 1e-13 * largest).all()
    # The spread can itself be too large, where two of the paths are at either end.
    std = wide.std(axis=0, ddof=1)
    fits = std < np.finfo(float).max
    assert (np.abs(forecast.std - std)[fits] <= np.maximum(1e-7 * largest[fits], 1e-150)).all()


@settings(deadline=None, max_examples=300, derandomize=True)
@given(ANYTHING, st.data())
def test_where_paths_are_cut_they_stay_where_they_left(samples: np.ndarray, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, samples.shape[1]))
    whole = states._held(samples)
    if 0 < at < samples.shape[1]:
        np.testing.assert_array_equal(states._held(samples[:, at:], whole[:, :at]), whole[:, at:])


@settings(deadline=None, max_examples=300, derandomize=True)
@given(ANYTHING)
def test_paths_that_left_stay_where_they_left(samples: np.ndarray) -> None:
    forecast = Forecast(samples, samples)
    kept = forecast.samples
    assert not np.isnan(kept).any()
    lost = ~np.isfinite(samples)
    step = forecast.diverged
    assert (step is None) == (not lost.any())
    for path, was in zip(kept.transpose(0, 2, 1).reshape(-1, samples.shape[1]), lost.transpose(0, 2, 1).reshape(
        -1, samples.shape[1]), strict=True):  # fmt: skip
        first = int(was.argmax()) if was.any() else len(was)
        assert np.isfinite(path[:first]).all() and len(set(path[first:])) <= 1 and np.isinf(path[first:]).all()
    if step is not None:
        assert np.isfinite(kept[:, : step - 1]).all() and np.isinf(kept[:, step - 1]).any()
        assert np.isinf(forecast.std[step - 1]).any()
    low, middle, high = forecast.quantile([0.05, 0.5, 0.95])
    assert not np.isnan([low, middle, high]).any()
    assert (low <= middle).all() and (middle <= high).all()
    assert (low >= kept.min(axis=0)).all() and (high <= kept.max(axis=0)).all()
    np.testing.assert_array_equal(forecast.quantile(0.5), middle)
    always = np.isinf(kept).all(axis=0) & (kept == kept[:1]).all(axis=0)
    np.testing.assert_array_equal(forecast.mean[always], kept[0][always])
