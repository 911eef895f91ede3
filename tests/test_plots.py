"""Plots draw on the axes they are given and return them."""

from statistics import NormalDist

import matplotlib as mpl
import numpy as np
import pytest

import gpssm
from gpssm import metrics, plots
from gpssm.filters import ensemble
from gpssm.filters.ensemble import FilterSettings
from gpssm.methods.envi import EnVI
from gpssm.posteriors.history import History
from gpssm.posteriors.posterior import Posterior
from gpssm.posteriors.states import Forecast, States

mpl.use("Agg")
import matplotlib.pyplot as plt


def untrained(state_dim: int = 1) -> Posterior:
    y = 10.0 + 2.0 * np.random.default_rng(0).standard_normal((40, 1))
    problem = EnVI(state_dim, 5).problem([y], [y[:, :0]])
    settings = FilterSettings(10, ensemble.Options())
    return Posterior(problem.model, problem.scaling, settings, (), History(), "EnVI", np.zeros((10, state_dim)))


def test_transition_shows_f_truth_and_inducing_points_in_the_users_units() -> None:
    _, ax = plt.subplots()
    posterior = untrained()
    assert plots.transition(posterior, truth=lambda x: x, states=np.linspace(5, 15, 9)[:, None], ax=ax) is ax
    lines = {line.get_label(): line.get_xydata() for line in ax.get_lines()}
    assert {"learned f", "true f", "inducing points"} <= set(lines)
    np.testing.assert_allclose(np.sort(lines["inducing points"][:, 0]), np.sort(plots.inducing_inputs(posterior)[:, 0]))
    assert 4 < lines["learned f"][:, 0].min() < lines["learned f"][:, 0].max() < 16
    plt.close("all")


def test_transition_of_a_line() -> None:
    """No inducing points; its range is that of the data."""
    _, ax = plt.subplots()
    fitted = gpssm.LastValue().fit(np.array([[3.0], [5.0], [4.0]]))
    lines = {line.get_label(): line.get_xydata() for line in plots.transition(fitted, ax=ax).get_lines()}
    np.testing.assert_allclose(lines["learned f"][:, 0], lines["learned f"][:, 1])
    assert list(lines) == ["learned f"] and lines["learned f"].min() == pytest.approx(4 - 2 * np.sqrt(2 / 3))
    plt.close("all")


def test_transition_of_two_states_is_refused() -> None:
    with pytest.raises(ValueError, match="one state"):
        plots.transition(untrained(2))


def test_forecast_and_states() -> None:
    _, axes = plt.subplots(1, 2)
    rng = np.random.default_rng(0)
    paths = Forecast(rng.standard_normal((50, 7, 2)), rng.standard_normal((50, 7, 1)))
    ax = plots.forecast(
        paths, past=rng.standard_normal((5, 2)), future=rng.standard_normal((7, 2)), channel=1, ax=axes[0]
    )
    assert ax is axes[0]
    (mean,) = [line for line in ax.get_lines() if line.get_label() == "forecast"]
    np.testing.assert_allclose(mean.get_ydata(), paths.mean[:, 1])
    estimate = States(rng.standard_normal((6, 1)), np.ones((6, 1, 1)), 0.0, np.zeros((3, 1)))
    assert plots.states(estimate, truth=np.zeros((6, 1)), ax=axes[1]) is axes[1]
    assert len(axes[1].get_lines()) == 2
    plt.close("all")


def test_residuals_with_a_gap() -> None:
    _, ax = plt.subplots()
    values = np.random.default_rng(0).standard_normal((50, 2))
    values[10:20, 1] = np.nan
    assert plots.residuals(values, names=("level", "flow"), ax=ax) is ax
    lines = {line.get_label(): line.get_ydata() for line in ax.get_lines()}
    np.testing.assert_array_equal(lines["level"], values[:, 0])
    np.testing.assert_array_equal(lines["flow"], values[:, 1])
    plt.close("all")


def test_autocorrelation_is_that_of_metrics() -> None:
    """The points are the values at lags 1, 2, ...; the band is +-2/sqrt(T)."""
    _, ax = plt.subplots()
    values = np.random.default_rng(0).standard_normal((100, 2)).cumsum(axis=0)
    assert plots.autocorrelation(values, lags=8, names=("level", "flow"), ax=ax) is ax
    lines = {line.get_label(): line.get_ydata() for line in ax.get_lines()}
    expected = metrics.autocorrelation(values, 8)[1:]
    np.testing.assert_array_equal(lines["level"], expected[:, 0])
    np.testing.assert_array_equal(lines["flow"], expected[:, 1])
    (band,) = ax.patches
    assert (band.get_y(), band.get_height()) == pytest.approx((-0.2, 0.4))
    plots.autocorrelation(values[:5], ax=ax)  # a quarter of it is one lag
    plt.close("all")


def test_calibration_of_a_forecast_that_holds_and_of_one_that_is_too_narrow() -> None:
    """With uniform PIT values the line is the diagonal; a forecast half as wide as the truth covers as computed."""
    _, ax = plt.subplots()
    rng, normal = np.random.default_rng(0), NormalDist()
    z = rng.standard_normal((4000, 1))
    z[::7] = np.nan
    right, narrow = (np.vectorize(normal.cdf)(factor * z) for factor in (1.0, 2.0))
    assert plots.calibration({"right": right, "narrow": narrow}, ax=ax) is ax
    lines = {line.get_label(): line.get_xydata() for line in ax.get_lines()}
    level = lines["right"][:, 0]
    np.testing.assert_allclose(lines["right"][:, 1], level, atol=0.03)
    held = [2 * normal.cdf(0.5 * normal.inv_cdf(0.5 + 0.5 * p)) - 1 for p in level[1:-1]]
    np.testing.assert_allclose(lines["narrow"][1:-1, 1], held, atol=0.03)
    plt.close("all")
