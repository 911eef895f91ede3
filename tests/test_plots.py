"""Plots draw on the axes they are given and return them."""

from statistics import NormalDist
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

import gpssm
from gpssm import metrics, plots
from gpssm.filters import ensemble
from gpssm.filters.ensemble import FilterSettings
from gpssm.methods.envi import EnVI
from gpssm.plumbing.times import Times
from gpssm.posteriors.history import History
from gpssm.posteriors.posterior import Posterior
from gpssm.posteriors.states import Forecast, States

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.dates import ConciseDateFormatter, date2num


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


def paths_of(length: int, names: tuple[str, ...] = (), times: Times | None = None) -> Forecast:
    rng = np.random.default_rng(0)
    return Forecast(rng.standard_normal((60, length, 2)), np.zeros((60, length, 1)), times, names)


def line(ax: Any, label: str) -> Any:
    (found,) = [line for line in ax.get_lines() if line.get_label() == label]
    return found


def test_a_forecast_over_time_in_its_unit() -> None:
    """Observed before and since, with the border half a step before the first one ahead."""
    _, ax = plt.subplots()
    paths = paths_of(5, ("level [$]", "flow"), Times(2.0, 0.5, unit="s", name="clock"))
    plots.forecast(paths, past=np.ones((3, 2)), future=np.zeros((4, 2)), ax=ax)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("clock [s]", r"level [\$]")
    assert line(ax, "forecast").get_xdata().tolist() == [2.0, 2.5, 3.0, 3.5, 4.0]
    assert line(ax, "past").get_xdata().tolist() == [0.5, 1.0, 1.5]
    np.testing.assert_array_equal(line(ax, "observed").get_ydata(), [0, 0, 0, 0, np.nan])
    assert [mark.get_xdata()[0] for mark in ax.get_lines() if mark.get_linestyle() == ":"] == [1.75]
    other = plots.forecast(paths, times=Times(7.0, 1.0), channel=1, ax=plt.subplots()[1])
    assert (other.get_xlabel(), other.get_ylabel()) == ("time", "flow")
    assert line(other, "forecast").get_xdata()[0] == 7.0
    plt.close("all")


@pytest.mark.parametrize("seconds", [0.001, 1, 60, 3600, 86400, 30 * 86400])
@pytest.mark.parametrize("length", [3, 50, 2000])
@pytest.mark.parametrize("width", [4, 12])
def test_dates_of_any_step_are_placed(seconds: float, length: int, width: int) -> None:
    """Without a warning, which is an error here."""
    figure, ax = plt.subplots(figsize=(width, 3))
    times = Times(1_700_000_000 * 10**9, int(seconds * 1e9), dated=True, zone="Z")
    estimate = States(np.zeros((length, 1)), np.ones((length, 1, 1)), 0.0, np.zeros((3, 1)), times=times)
    plots.states(estimate, ax=ax)
    assert isinstance(ax.xaxis.get_major_formatter(), ConciseDateFormatter) and ax.get_xlabel() == "time [Z]"
    figure.canvas.draw()
    np.testing.assert_allclose(date2num(line(ax, "estimate").get_xdata()), date2num(times.values(length)))
    assert 1 <= len(ax.get_xticks()) <= max(6, width + 1)
    plt.close("all")


@pytest.mark.parametrize("length", [100, 1000, 5000])
def test_bands_are_seen_below_any_number_of_points(length: int) -> None:
    """Their edges are drawn above the points, which are the smaller the more there are."""
    _, ax = plt.subplots()
    paths = paths_of(length)
    plots.forecast(paths, future=np.zeros((length, 2)), ax=ax)
    observed, mean = line(ax, "observed"), line(ax, "forecast")
    edges = [edge for edge in ax.get_lines() if edge.get_zorder() > observed.get_zorder()]
    for edge, level in zip(edges, (0.05, 0.95), strict=True):
        np.testing.assert_allclose(edge.get_ydata(), paths.quantile(level)[:, 0])
    assert max(band.get_zorder() for band in ax.collections) < mean.get_zorder() < observed.get_zorder()
    assert all(band.get_alpha() < 0.5 for band in ax.collections)
    assert observed.get_linestyle() == "None" and 3 <= observed.get_markersize() <= (6 if length < 300 else 4)
    plt.close("all")


def test_a_band_that_runs_away_leaves_the_data_in_sight() -> None:
    """Up to infinity; what is finite and near is drawn as it is."""
    _, ax = plt.subplots()
    with np.errstate(over="ignore"):
        growth = np.exp(np.linspace(0, 900, 40))[None, :, None] * np.array([-1.0, 1.0, 2.0])[:, None, None]
    paths = Forecast(growth * 1e-3, np.zeros((3, 40, 1)))
    assert paths.diverged is not None
    plots.forecast(paths, future=np.linspace(0, 1, 40)[:, None], ax=ax)
    assert ax.get_ylim() == (-1.0, 2.0)
    assert all(np.isfinite(edge.get_ydata()).all() for edge in ax.get_lines() if edge.get_zorder() == 4)
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata()[0], paths.quantile(0.05)[0, 0])
    ax.figure.canvas.draw()
    plt.close("all")


def test_inputs_one_in_its_units_or_several_in_lanes() -> None:
    _, (one, several) = plt.subplots(1, 2)
    values = np.array([[0.0, -5.0, 3.0], [2.0, 5.0, 3.0], [1.0, 0.0, 3.0]])
    plots.inputs(values[:, :1], names=("$u",), first=-1, ax=one)
    assert (one.get_ylabel(), one.get_xlabel()) == (r"\$u", "steps ahead")
    assert one.get_lines()[0].get_xydata().tolist() == [[-1, 0], [0, 2], [1, 1]]
    plots.inputs(values, times=Times(0.0, 1.0, unit="h"), ax=several)
    shown = [label.get_text() for label in several.get_yticklabels()]
    assert shown == ["input 0: 0 to 2", "input 1: -5 to 5", "input 2: 3 to 3"] and several.get_xlabel() == "time [h]"
    lanes = [(lane.get_ydata().min(), lane.get_ydata().max()) for lane in several.get_lines()]
    assert lanes[0][0] > lanes[1][1] > lanes[1][0] > lanes[2][1]  # from above, none over another
    plt.close("all")


def test_residuals_far_away_are_at_the_border_and_counted() -> None:
    _, ax = plt.subplots()
    values = np.array([[0.5, -80.0], [7.0, 1.0], [np.nan, -6.5], [6.0, np.inf]])
    plots.residuals(values, names=("level", "flow"), times=Times(10.0, 1.0), ax=ax)
    np.testing.assert_array_equal(line(ax, "level").get_ydata(), [0.5, np.nan, np.nan, 6.0])
    np.testing.assert_array_equal(line(ax, "flow").get_ydata(), [np.nan, 1.0, np.nan, np.nan])
    triangles = {(mark.get_marker(), x, y) for mark in ax.get_lines() for x, y in mark.get_xydata() if abs(y) == 6}
    assert triangles == {("^", 11, 6), ("v", 10, -6), ("v", 12, -6), ("^", 13, 6), (".", 13, 6)}
    assert [text.get_text() for text in ax.texts] == ["4 of 7 beyond 6 sd"]
    near = plots.residuals(np.clip(values, -3, 3), ax=plt.subplots()[1])
    assert not near.texts
    plt.close("all")


def test_calibration_has_a_curve_for_every_output_and_kind() -> None:
    """Each that of the output alone; the legend has the outputs, then the kinds."""
    _, (ax, alone) = plt.subplots(1, 2)
    rng = np.random.default_rng(0)
    kinds = {"free run": rng.uniform(size=(50, 3)), "one step": rng.beta(2, 2, size=(80, 3))}
    kinds["free run"][3:9, 1] = np.nan
    plots.calibration(kinds, names=("a", "$b", "c"), ax=ax)
    for kind, pit in kinds.items():
        for i, name in enumerate(("a", r"\$b", "c")):
            plots.calibration({f"{kind} {i}": pit[:, i : i + 1]}, ax=alone)
            expected = line(alone, f"{kind} {i}").get_ydata()
            np.testing.assert_array_equal(line(ax, f"{kind}: {name}").get_ydata(), expected)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", r"\$b", "c", "free run", "one step"]
    styles = {kind: {line(ax, f"{kind}: {name}").get_linestyle() for name in ("a", "c")} for kind in kinds}
    assert all(len(found) == 1 for found in styles.values()) and styles["free run"] != styles["one step"]
    plt.close("all")
