"""Scores against closed forms, scipy and brute force."""

import numpy as np
import pytest
from scipy.stats import kstest, norm

from gpssm import metrics


def gaussian_crps(mean, sd, y):
    """Closed form (Gneiting et al., 2005)."""
    z = (y - mean) / sd
    return sd * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))


def test_rmse_is_over_all_numbers_that_were_seen():
    truth = np.array([[1.0, np.nan], [2.0, 5.0]])
    mean = np.array([[0.0, np.nan], [2.0, 3.0]])
    assert metrics.rmse(mean, truth) == pytest.approx(np.sqrt((1 + 0 + 4) / 3))
    assert metrics.rmse([1.0, 2.0], [1.0, 4.0]) == pytest.approx(np.sqrt(2.0))


def test_nlpd_is_that_of_scipy():
    rng = np.random.default_rng(0)
    samples, truth = 3 + 2 * rng.normal(size=(50, 6, 2)), rng.normal(size=(6, 2))
    truth[2, 1] = truth[4] = np.nan
    expected = -norm(samples.mean(axis=0), samples.std(axis=0, ddof=1)).logpdf(truth)
    assert metrics.nlpd(samples, truth) == pytest.approx(np.nanmean(expected), rel=1e-12)


def test_crps_from_sorted_samples_is_the_sum_over_pairs():
    """Oracle: the definition, over all pairs of different paths."""
    rng = np.random.default_rng(1)
    samples, truth = rng.normal(size=(7, 5, 2)), rng.normal(size=(5, 2))
    truth[3, 0] = np.nan
    pairs = np.abs(samples[:, None] - samples).sum(axis=(0, 1)) / (7 * 6)
    expected = np.abs(samples - truth).mean(axis=0) - 0.5 * pairs
    assert metrics.crps(samples, truth) == pytest.approx(np.nanmean(expected), rel=1e-12)


@pytest.mark.parametrize("count", [2, 5, 100])
def test_crps_is_unbiased_for_any_number_of_paths(count):
    """Oracle: the closed form for a Gaussian, averaged over many forecasts, within four standard errors."""
    rng = np.random.default_rng(2)
    forecasts = 20_000
    truth = np.linspace(-2.0, 4.0, forecasts)
    samples = 1.0 + 1.5 * rng.normal(size=(count, forecasts))
    scores = [metrics.crps(samples[:, i : i + 200], truth[i : i + 200]) for i in range(0, forecasts, 200)]
    expected = [gaussian_crps(1.0, 1.5, truth[i : i + 200]).mean() for i in range(0, forecasts, 200)]
    error = np.asarray(scores) - expected
    assert abs(error.mean()) < 4 * error.std() / np.sqrt(len(error))


@pytest.mark.parametrize("count", [19, 39, 200])
def test_a_correct_forecast_is_covered_as_often_as_it_says(count):
    """Also with 19 paths, whose smallest and largest are the ends of the 90% interval."""
    rng = np.random.default_rng(3)
    samples, truth = rng.normal(size=(count, 20_000)), rng.normal(size=20_000)
    for level in (0.5, 0.9):
        error = np.sqrt(level * (1 - level) / 20_000)
        assert abs(metrics.coverage(samples, truth, level) - level) < 4 * error + 2e-3


def test_coverage_of_a_forecast_that_is_too_sure():
    """Oracle: the Gaussian's own quantiles, halved."""
    rng = np.random.default_rng(3)
    samples, truth = rng.normal(size=(1000, 5000)), rng.normal(size=5000)
    expected = 2 * norm.cdf(0.5 * norm.ppf(0.95)) - 1
    assert abs(metrics.coverage(0.5 * samples, truth) - expected) < 0.03


def test_pit_is_uniform_for_a_correct_forecast_and_the_cdf_for_many_paths():
    rng = np.random.default_rng(4)
    values = metrics.pit(rng.normal(size=(400, 3000)), rng.normal(size=3000))
    assert values.shape == (3000, 1)
    assert kstest(values[:, 0], "uniform").pvalue > 0.01
    truth = np.array([[-1.0, 0.3], [np.nan, 2.0]])
    many = metrics.pit(rng.normal(size=(100_000, 2, 2)), truth)
    np.testing.assert_allclose(many, norm.cdf(truth), atol=0.006)
    assert np.isnan(many[1, 0])
    # Ranks are symmetric: a tie counts half.
    np.testing.assert_allclose(metrics.pit(np.ones((9, 1)), [1.0]), 0.5)


def test_autocorrelation_of_an_ar_process():
    """Oracles: a^k for AR(1), zero for white noise; with a third of the values missing, too."""
    rng = np.random.default_rng(5)
    noise = rng.normal(size=(50_000, 2))
    process = noise.copy()
    for t in range(1, len(noise)):
        process[t, 0] += 0.8 * process[t - 1, 0]
    expected = np.stack([0.8 ** np.arange(6), np.eye(6)[0]], axis=1)
    np.testing.assert_allclose(metrics.autocorrelation(process, 5), expected, atol=0.03)
    process[rng.random(process.shape) < 0.33] = np.nan
    np.testing.assert_allclose(metrics.autocorrelation(process, 5), expected, atol=0.03)


def test_autocorrelation_by_hand():
    """Residuals 1, -1, 1, -1; and a lag at which no pair is present."""
    np.testing.assert_allclose(metrics.autocorrelation([1.0, -1.0, 1.0, -1.0], 2)[:, 0], [1.0, -1.0, 1.0])
    gappy = metrics.autocorrelation([1.0, np.nan, -1.0, np.nan, 1.0], 2)[:, 0]
    assert np.isnan(gappy[1]) and np.isfinite(gappy[[0, 2]]).all()


GOOD, TRUTH = np.random.default_rng(6).normal(size=(10, 4, 2)), np.zeros((4, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.rmse(np.zeros((4, 1)), TRUTH), r"forecast_mean: got shape \(4, 1\); expected that of truth"),
        (lambda: metrics.rmse(np.full((4, 2), np.nan), TRUTH), "forecast_mean: contains NaN"),
        (lambda: metrics.rmse(TRUTH, np.full((4, 2), np.nan)), "truth: holds no number"),
        (lambda: metrics.crps(GOOD[:, :3], TRUTH), r"samples: got shape \(10, 3, 2\); expected \(paths, 4, 2\)"),
        (lambda: metrics.crps(GOOD[:1], TRUTH), "2 paths or more"),
        (lambda: metrics.crps("paths", TRUTH), "samples: expected numbers"),
        (lambda: metrics.pit(np.full((10, 4, 2), np.inf), TRUTH), "samples: contains NaN or infinity"),
        (lambda: metrics.nlpd(np.ones((10, 4, 2)), TRUTH), "samples: all paths agree"),
        (lambda: metrics.coverage(GOOD, TRUTH, 90), "level: expected a probability"),
        (lambda: metrics.autocorrelation(np.ones(5), 1), "residuals: a column is constant"),
        (lambda: metrics.autocorrelation(np.full(5, np.nan), 1), "residuals: a column is NaN"),
        (lambda: metrics.autocorrelation(np.arange(5.0), 5), r"residuals: 5 row\(s\); expected more than lags=5"),
        (lambda: metrics.autocorrelation(np.arange(5.0), -1), "lags: expected a whole number"),
    ],
)
def test_bad_calls_get_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
