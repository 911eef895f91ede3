"""Long recordings and long horizons: cut into stretches nothing changes, memory stays flat, little is compiled."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpssm
from gpssm import evaluation, metrics
from gpssm.errors import InvalidInput
from gpssm.filters import kalman
from gpssm.filters.kalman import Gaussian
from gpssm.plumbing.compilation import CompileClock
from gpssm.posteriors import stretches
from gpssm.posteriors.calibration import Calibration
from gpssm.posteriors.states import Forecast, ForecastSummary
from gpssm.training.optimiser import Schedule

LENGTH = 150  # three stretches of 64, the last of them filled up, or one of 256
QUANTILES = [0.05, 0.5, 0.95]


def recording(length: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A driven system with some samples missing, among them the last."""
    rng = np.random.default_rng(seed)
    c, y, x = rng.normal(size=(length, 1)), np.empty((length, 1)), 0.0
    for t in range(length):
        x = 0.8 * np.sin(1.3 * x) + 0.3 * c[t, 0] + 0.1 * rng.normal()
        y[t] = x + 0.1 * rng.normal()
    y[[5, 64, 65, length - 1]] = np.nan
    return y, c


@pytest.fixture(scope="module")
def gp() -> gpssm.Posterior:
    y, c = recording(80, seed=1)
    return gpssm.EnVI(2, 6, num_members=20, schedule=Schedule(max_steps=3)).fit(y, c)


@pytest.fixture(scope="module")
def linear() -> Any:
    return gpssm.ARX(order=3).fit(*recording(300, seed=2))


@pytest.fixture(params=["gp", "linear"])
def fitted(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def cut_at(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(stretches, "_LONGEST", rows)


# --- recordings -------------------------------------------------------------------------------------


def everything(model: Any, y: np.ndarray, c: np.ndarray) -> list[np.ndarray]:
    """All that a model says of a recording."""
    found: list[Any] = [model.smooth(y, c)[:4], model.one_step(y, c, state=model.end)]
    found += [model.filter(y, c, filter=name, seed=3)[:4] for name in model.filters]
    found.append(model.filter(y, c, state=model.end)[:4])
    return jax.tree.leaves(found)


def test_where_a_recording_is_cut_changes_nothing(fitted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the same in one stretch. Rounding differs between two programs, and a chaotic f lets it grow."""
    y, c = recording(LENGTH)
    cut_at(monkeypatch, 256)
    whole = everything(fitted, y, c)
    cut_at(monkeypatch, 64)
    for a, b in zip(everything(fitted, y, c), whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


def test_later_samples_change_no_earlier_state(fitted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the cut is in another place, and what fills a stretch is never seen."""
    y, c = recording(LENGTH)
    cut_at(monkeypatch, 64)
    for name in fitted.filters:
        states = fitted.filter(y, c, filter=name)
        for length in (1, 63, 64, 65, 128):
            early = fitted.filter(y[:length], c[:length], filter=name)
            np.testing.assert_allclose(early.mean, states.mean[:length], rtol=1e-9)
            assert np.isfinite(early.members).all() and early.cov.shape == (length, fitted.state_dim, fitted.state_dim)


def test_stretches_of_a_linear_model_are_the_kalman_filter(linear: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: `kalman.filter` and `kalman.smooth`, over all samples at once."""
    cut_at(monkeypatch, 64)
    y, c = recording(LENGTH)
    scaling = linear.scaling
    offsets = scaling.standardise_inputs(c) @ linear.input_weight.T + linear.bias
    with jax.enable_x64(True):
        outputs = jnp.asarray(scaling.standardise_outputs(y))
        trace = kalman.filter(linear.system, Gaussian(*map(jnp.asarray, linear.prior)), outputs, jnp.asarray(offsets))
        _, smoothed = kalman.smooth(linear.system, trace.predicted, outputs)
    states = linear.filter(y, c)
    np.testing.assert_allclose(states.mean, scaling.states(np.asarray(trace.filtered.mean)), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(states.cov, scaling.state_cov(np.asarray(trace.filtered.cov)), rtol=1e-9, atol=1e-15)
    whole = float(np.sum(trace.log_likelihood)) - scaling.log_volume(y)
    assert states.log_likelihood == pytest.approx(whole, rel=1e-12)
    later = linear.smooth(y, c)
    np.testing.assert_allclose(later.mean, scaling.states(np.asarray(smoothed.mean)), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(later.cov, scaling.state_cov(np.asarray(smoothed.cov)), rtol=1e-7, atol=1e-12)


def test_the_state_at_a_sample_is_that_of_the_filter(gp: gpssm.Posterior) -> None:
    y, c = recording(LENGTH)
    states, at = gp.filter(y[:100], c[:100]), gp.filtered_at(y, c, 99)
    np.testing.assert_allclose(at.members, states.members)
    np.testing.assert_allclose(at.mean, states.mean[-1:])


# --- horizons ---------------------------------------------------------------------------------------


def test_where_a_horizon_is_cut_changes_nothing(fitted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the same in one stretch; a shorter horizon has the same paths, cut short."""
    c = recording(LENGTH)[1]
    cut_at(monkeypatch, 256)
    whole = fitted.forecast(LENGTH, c, num_paths=30, seed=5)
    cut_at(monkeypatch, 64)
    again = fitted.forecast(LENGTH, c, num_paths=30, seed=5)
    np.testing.assert_allclose(again.samples, whole.samples, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(again.states, whole.states, rtol=1e-6, atol=1e-9)
    short = fitted.forecast(70, c[:70], num_paths=30, seed=5)
    np.testing.assert_allclose(short.samples, whole.samples[:, :70], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_summary_is_that_of_the_paths(fitted: Any, monkeypatch: pytest.MonkeyPatch, calibrated: bool) -> None:
    """Oracle: moments and quantiles of all paths; factors change until step 100, in the second stretch."""
    cut_at(monkeypatch, 64)
    model = replace(fitted, calibration=Calibration(np.linspace(0.5, 2.0, 100)[:, None], 9.0))
    c, how = recording(LENGTH)[1], {"num_paths": 40, "seed": 1, "calibrated": calibrated}
    paths, summary = model.forecast(LENGTH, c, **how), model.forecast(LENGTH, c, quantiles=QUANTILES, **how)
    assert isinstance(summary, ForecastSummary)
    np.testing.assert_allclose(summary.mean, paths.samples.mean(axis=0))
    np.testing.assert_allclose(summary.std, paths.samples.std(axis=0, ddof=1))
    np.testing.assert_allclose(summary.quantile(QUANTILES), np.quantile(paths.samples, QUANTILES, axis=0))
    np.testing.assert_allclose(summary.band(0.9), paths.band(0.9))
    assert (summary.times, summary.names, summary.diverged) == (paths.times, paths.names, paths.diverged)
    for name, column in paths.columns().items():
        np.testing.assert_allclose(summary.columns()[name], column)
    assert list(summary.to_dataframe().columns) == list(paths.to_dataframe().columns)
    if calibrated:
        plain = model.forecast(LENGTH, c, **(how | {"calibrated": False}))
        middle = np.median(plain.samples, axis=0)
        factors = model.calibration.factors[np.minimum(np.arange(LENGTH), 99)]
        np.testing.assert_allclose(paths.samples, middle + factors * (plain.samples - middle))


def test_what_a_summary_cannot_do_is_said(linear: Any) -> None:
    summary = linear.forecast(5, np.zeros((5, 1)), quantiles=[0.1, 0.9])
    for refused, sentence in (
        (lambda: summary.samples, "samples: a forecast with quantiles keeps no paths"),
        (lambda: summary.states, "states: a forecast with quantiles keeps no paths"),
        (lambda: summary.quantile(0.5), "q: 0.5 is not among the quantiles 0.1, 0.9"),
        (lambda: summary.band(0.9), "q: 0.05 is not among"),
        (lambda: summary.band(0.8, whole_path=True), "whole_path: a forecast with quantiles keeps no paths"),
        (lambda: linear.forecast(5, np.zeros((5, 1)), quantiles=[5, 95]), "quantiles: expected probabilities"),
        (lambda: linear.forecast(5, np.zeros((5, 1)), quantiles=[]), "quantiles: expected probabilities"),
        (lambda: linear.forecast(5, np.zeros((5, 1)), quantiles="all"), "quantiles: expected probabilities"),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            refused()
    assert summary.band(0.8)[0].shape == (5, 1)
    assert linear.forecast(5, np.zeros((5, 1)), quantiles=0.9).quantile(0.9).shape == (5, 1)


def test_there_may_be_more_paths_than_numbers_in_a_stretch() -> None:
    assert stretches.rows_of(3, width=600_000) == 64


def test_a_path_that_diverges_stays_where_it_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whichever stretch: a growing rotation makes NaN of an infinity, whose sign only the step before knows."""
    fitted = gpssm.ARX(order=2).fit(np.sin(0.3 * np.arange(100)))
    turning = fitted.system._replace(transition=4.0 * np.array([[0.8, -0.6], [0.6, 0.8]]), process_cov=900 * np.eye(2))
    model: Any = replace(fitted, system=turning)
    cut_at(monkeypatch, 1024)
    whole = model.forecast(700, num_paths=20)
    assert 400 < whole.diverged < 640 and np.isneginf(whole.samples).any() and np.isposinf(whole.samples).any()
    cut_at(monkeypatch, 64)
    again, summary = model.forecast(700, num_paths=20), model.forecast(700, num_paths=20, quantiles=QUANTILES)
    np.testing.assert_array_equal(np.isposinf(again.samples), np.isposinf(whole.samples))
    np.testing.assert_array_equal(np.isneginf(again.samples), np.isneginf(whole.samples))
    np.testing.assert_allclose(summary.quantile(QUANTILES), whole.quantile(QUANTILES), rtol=1e-9)
    assert summary.diverged == again.diverged == whole.diverged
    y = np.zeros((700, 1))
    found = evaluation.score_free_run(model, y, num_paths=20)
    assert found.diverged == evaluation.without_error(whole.samples) and np.isinf(found.scores.crps)


# --- scores -----------------------------------------------------------------------------------------


def test_scores_of_pieces_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the scores of all paths at once; some pieces hold no number."""
    rng = np.random.default_rng(0)
    truth, samples = rng.normal(size=(400, 2)), 1.3 * rng.normal(size=(60, 400, 2)) + 0.2
    truth[50:180], truth[::7, 1] = np.nan, np.nan
    monkeypatch.setattr(evaluation, "_STEPS", 30)
    pieces = np.split(samples, [1, 7, 60, 150, 170, 390], axis=1)
    found = evaluation.Scored.of(pieces, truth)
    assert found.diverged is None
    assert found.scores.as_dict() == pytest.approx(evaluation.score(samples, truth).as_dict(), rel=1e-12)
    with pytest.raises(InvalidInput, match="outputs: hold no number"):
        evaluation.Scored.of(pieces, np.full_like(truth, np.nan))


def test_scores_of_a_recording_in_stretches(fitted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: scores of all paths, of a free run and of blocks."""
    cut_at(monkeypatch, 64)
    monkeypatch.setattr(evaluation, "_STEPS", 64)
    y, c = recording(LENGTH)
    for several, paths in ((evaluation.score_free_run, None), (evaluation.score_blocks, evaluation.blocks)):
        found = several(fitted, y, c, num_paths=30, state=fitted.end)
        samples = (
            evaluation.free_run(fitted, LENGTH, c, num_paths=30)
            if paths is None
            else paths(fitted, y, c, num_paths=30, state=fitted.end)
        )
        assert found.scores.as_dict() == pytest.approx(evaluation.score(samples, y).as_dict(), rel=1e-9)


def test_which_numbers_are_inside_is_the_coverage() -> None:
    rng = np.random.default_rng(1)
    samples, truth = rng.normal(size=(99, 50, 2)), rng.normal(size=(50, 2))
    truth[3, 1] = np.nan
    inside = metrics.inside(samples, truth, 0.6)
    assert np.isnan(inside[3, 1]) and np.isnan(inside).sum() == 1
    ranks = np.sum(samples < truth, axis=0)  # with 99 paths the edges are the 20th and the 80th
    np.testing.assert_array_equal(inside == 1, (ranks >= 20) & (ranks < 80) & ~np.isnan(truth))
    assert metrics.coverage(samples, truth, 0.6) == np.nanmean(inside)


# --- costs ------------------------------------------------------------------------------------------


def test_another_length_of_about_the_same_size_compiles_nothing(gp: gpssm.Posterior) -> None:
    y, c = recording(400)
    for calls in (
        lambda n: gp.filter(y[:n], c[:n]),
        lambda n: gp.filter(y[:n], c[:n], filter="extended"),
        lambda n: gp.smooth(y[:n], c[:n]),
        lambda n: gp.one_step(y[:n], c[:n]),
        lambda n: gp.forecast(n, c[:n], num_paths=30),
        lambda n: gp.forecast(n, c[:n], num_paths=30, quantiles=QUANTILES),
    ):
        calls(100)
        clock = CompileClock()
        calls(67)
        calls(128)
        assert clock.count == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="Linux says how much memory a process has had")
def test_long_recordings_and_horizons_fit_into_the_memory(tmp_path: Path) -> None:
    """200 000 samples, and as many steps of 500 paths, in a process of less than 1 GB."""
    model = gpssm.EnVI(1, 6, schedule=Schedule(max_steps=2)).fit(recording(80)[0])
    model.save(tmp_path / "model.gpssm")
    code = f"""
import re, numpy as np, gpssm
from pathlib import Path
model = gpssm.load({str(tmp_path / "model.gpssm")!r})
y = np.sin(0.1 * np.arange(200_000))[:, None]
ahead, states = model.forecast(200_000, quantiles=[0.05, 0.95]), model.filter(y)
assert ahead.mean.shape == (200_000, 1) and states.mean.shape == (200_000, 1)
model.smooth(y)
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 1e6  # kB


def test_pieces_are_the_forecast(linear: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of some steps, with the times that follow those of the piece before."""
    cut_at(monkeypatch, 64)
    named = linear.named(("y",), ("u",), gpssm.plumbing.times.Times(10.0, 2.0))
    pieces = list(named.pieces(np.zeros((150, 1)), num_paths=10))
    assert [piece.samples.shape[1] for piece in pieces] == [64, 64, 22]
    assert [piece.times.start for piece in pieces] == [12.0, 12.0 + 2 * 64, 12.0 + 2 * 128]
    whole = Forecast.joined(iter(pieces), 150)
    np.testing.assert_array_equal(whole.samples, named.forecast(150, np.zeros((150, 1)), num_paths=10).samples)
    assert whole.times == pieces[0].times
