"""A check after a fit: what it holds back, what it says, and bands that are corrected by it."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpssm
from gpssm.errors import InvalidInput
from gpssm.methods.checked import Recordings, checked
from gpssm.plumbing.interruption import Interruption
from gpssm.plumbing.times import Times
from gpssm.posteriors.calibration import Calibration, Errors, independent, rolling
from gpssm.posteriors.check import Check, Score


def walk(length, seed=0, scale=1.0):
    return scale * np.cumsum(np.random.default_rng(seed).normal(size=length))[:, None]


def driven(length, seed=0):
    """A first-order system with one input, and its input."""
    rng = np.random.default_rng(seed)
    u, y = rng.normal(size=(length, 1)), np.zeros((length, 1))
    for t in range(1, length):
        y[t] = 0.8 * y[t - 1] + u[t] + 0.1 * rng.normal()
    return y, u


# --- scores ---------------------------------------------------------------------------------------


def test_fit_percent_is_that_of_matlabs_compare():
    truth = np.random.default_rng(0).normal(size=(50, 2)) * [1.0, 100.0]
    paths = np.stack([truth + 0.3 * k * np.array([1.0, 100.0]) for k in (-1, 0.5, 1.7, -0.7)])
    score = Score.of("x", [(paths, truth)])
    mean = paths.mean(axis=0)
    for j in range(2):
        expected = 100 * (
            1 - np.linalg.norm(truth[:, j] - mean[:, j]) / np.linalg.norm(truth[:, j] - truth[:, j].mean())
        )
        assert score.fit[j] == pytest.approx(expected)
    assert score.pooled_fit == pytest.approx(100 * (1 - np.sqrt(np.mean((score.rmse / score.sd) ** 2))))


def test_scores_of_several_runs_are_those_of_all_numbers_and_skip_missing_ones():
    rng = np.random.default_rng(1)
    truth, paths = rng.normal(size=(30, 1)), rng.normal(size=(40, 30, 1))
    holed = truth.copy()
    holed[3] = np.nan
    whole = Score.of("x", [(paths, holed)])
    parts = Score.of("x", [(paths[:, :10], holed[:10]), (paths[:, 10:], holed[10:])])
    assert whole == parts or np.allclose(whole.rmse, parts.rmse)
    keep = np.arange(30) != 3
    assert whole.rmse[0] == pytest.approx(Score.of("x", [(paths[:, keep], truth[keep])]).rmse[0])


def test_a_forecast_that_diverges_has_an_infinite_error():
    paths = np.full((5, 4, 1), 1e200)
    assert Score.of("x", [(paths, np.zeros((4, 1)))]).nrmse == np.inf


def score(method, error, coverage=0.9):
    return Score(method, np.array([error]), np.array([1.0]), np.array([coverage]), np.array([error]))


@pytest.mark.parametrize(
    ("own", "line", "said"),
    [
        (0.1, 0.5, ("follows the data (fit 90%)", "A line has 5 times its error")),
        (0.1, 0.101, ("follows the data", "A line (ARX) is as good")),
        (0.4, 0.3, ("follows the data", "A line (ARX) is better")),
        (0.7, 0.9, ("in part", "A line has 1.3 times")),
        (0.99, 0.5, ("no better than the mean", "A line (ARX) is better")),
        (np.inf, 0.5, ("diverges",)),
    ],
)
def test_the_verdict_says_whether_a_line_is_enough(own, line, said):
    check = Check(20, (score("EnVI", own), score("ARX", line), score("TrainingMean", 1.0)), ("y",))
    assert all(words in check.verdict for words in said)


@pytest.mark.parametrize(
    ("share", "said"), [(0.5, "bands too narrow"), (0.9, "bands hold"), (1.0, "bands rather wide")]
)
def test_the_verdict_says_whether_bands_hold(share, said):
    assert said in Check(400, (score("EnVI", 0.2, share),), ("y",)).verdict


# --- fits with a check ----------------------------------------------------------------------------


def test_the_check_is_the_forecast_of_a_model_that_has_not_seen_the_end():
    y, u = driven(200)
    fitted = gpssm.ARX(order=1).fit(y, u, holdout=0.25)
    before = gpssm.ARX(order=1).fit(y[:150], u[:150])
    state = before.filter(y[:150], u[:150])
    expected = Score.of("ARX", [(before.forecast(50, u[150:], state=state).samples, y[150:])])
    assert fitted.check.samples == 50
    np.testing.assert_allclose(fitted.check.model.rmse, expected.rmse)
    assert [s.method for s in fitted.check.scores] == ["ARX", "TrainingMean"]
    assert fitted.num_samples == 200  # then it has learned from everything
    whole = gpssm.ARX(order=1).fit(y, u)
    np.testing.assert_allclose(fitted.summary().rows[0].value, whole.summary().rows[0].value)
    assert whole.check is None and "not checked" in str(whole.summary())


def test_a_model_with_hidden_states_is_set_beside_every_line():
    y, u = driven(120)
    fitted = gpssm.LinearGaussian(1, max_steps=20).fit(y, u, holdout=0.2)
    assert [s.method for s in fitted.check.scores] == ["LinearGaussian", "ARX", "TrainingMean"]
    state_space = gpssm.EnVI(1, 4, schedule=gpssm.Schedule(max_steps=2, chunk=2)).fit(y, u, holdout=0.2)
    assert [s.method for s in state_space.check.scores] == ["EnVI", "ARX", "LinearGaussian", "TrainingMean"]
    assert "fit %" in str(state_space.summary()) and state_space.num_samples == 120


def test_the_check_is_saved_printed_and_named(tmp_path):
    y, u = driven(120)
    fitted = gpssm.TrainingMean().fit(y, u, holdout=0.2).named(("level",), ("valve",))
    fitted.save(tmp_path / "m.gpssm")
    again = gpssm.load(tmp_path / "m.gpssm")
    text = str(again.summary())
    assert "level" in text and "fit %" in text and again.check.verdict in text and str(again.calibration) in text
    course = json.loads(json.dumps(again.summary().course()))
    assert course["check"]["scores"][0]["outputs"]["level"]["rmse"] == pytest.approx(fitted.check.model.rmse[0])
    np.testing.assert_array_equal(again.calibration.factors, fitted.calibration.factors)


def test_what_is_held_back_is_not_read_before_it_is_forecast():
    """Another end changes the error, but not the forecast that is compared with it."""
    y, u = driven(200)
    other = y.copy()
    other[160:] += 5.0
    first, second = (gpssm.ARX(order=2).fit(outputs, u, holdout=0.2).check.model for outputs in (y, other))
    before = gpssm.ARX(order=2).fit(y[:160], u[:160])
    mean = before.forecast(40, u[160:], state=before.filter(y[:160], u[:160])).mean
    for score, outputs in ((first, y), (second, other)):
        np.testing.assert_allclose(score.rmse[0], np.sqrt(np.mean((mean - outputs[160:]) ** 2)), rtol=1e-6)


def test_every_recording_is_held_back_from():
    (y1, u1), (y2, u2) = driven(100, 1), driven(60, 2)
    fitted = gpssm.ARX(order=1).fit([y1, y2], [u1, u2], holdout=0.2)
    assert fitted.check.samples == 20 + 12 and fitted.num_samples == 160


@pytest.mark.parametrize("holdout", [-0.1, 0.6, True, "0.2", np.nan])
def test_a_share_that_makes_no_sense_is_refused(holdout):
    with pytest.raises(InvalidInput, match="holdout: expected a share"):
        gpssm.TrainingMean().fit(walk(100), holdout=holdout)


def test_too_few_samples_to_hold_back_are_refused():
    with pytest.raises(InvalidInput, match="holdout=0 learns without a check"):
        gpssm.TrainingMean().fit(walk(22), holdout=0.2)
    y = walk(100)
    y[80:] = np.nan
    with pytest.raises(InvalidInput, match="0 of 1 output"):
        gpssm.TrainingMean().fit(y, holdout=0.2)
    late = np.column_stack([walk(100), np.where(np.arange(100) < 79, np.nan, walk(100)[:, 0])])
    with pytest.raises(InvalidInput, match="1 of 2 output"):
        gpssm.ARX().fit(late, holdout=0.2)


def test_a_line_that_has_too_little_to_learn_from_is_left_out():
    y = walk(80)
    y[::2] = np.nan  # no sample follows another
    fitted = gpssm.LastValue().fit(y, holdout=0.2)
    assert [s.method for s in fitted.check.scores] == ["LastValue", "TrainingMean"]


def recordings(length=100):
    return Recordings([walk(length)], [np.zeros((length, 0))])


def test_an_interrupt_during_the_second_fit_leaves_the_first():
    calls = []

    def fit(data, stage):
        calls.append(len(data.outputs[0]))
        if len(calls) == 2:
            stage.interruption.signalled = True
        return gpssm.TrainingMean().fit(data.outputs)

    found = checked(fit, recordings(), 0.2, 0, Interruption())
    assert calls == [80, 100] and found.num_samples == 80
    assert found.check is not None and found.calibration is not None
    assert "this model knows the first 80%" in found.history.messages[-1]
    assert len(found.recording.outputs) == 100  # its forecasts start at the end of everything all the same


def test_a_model_that_has_learned_from_a_part_forecasts_from_the_end_of_the_whole():
    data = gpssm.datasets.Series(walk(100), None, None, ("level",), (), Times(5.0, 0.5, unit="s"))
    found = gpssm.LastValue().fit(data, holdout=0.2, max_seconds=1e-9)
    assert found.num_samples == 80 and found.forecast(1).times.text(1) == ["55"] and found.output_names == ("level",)
    assert found.forecast(1, num_paths=4000).mean[0, 0] == pytest.approx(data.outputs[-1, 0], abs=0.2)


def test_no_second_fit_where_the_time_is_over():
    calls = []

    def fit(data, stage):
        calls.append(stage.interruption.share)
        return gpssm.TrainingMean().fit(data.outputs)

    found = checked(fit, recordings(), 0.2, 0, Interruption(max_seconds=1e-9))
    assert len(calls) == 1 and calls[0] < 1 and found.num_samples == 80 and found.check is not None


# --- calibration ----------------------------------------------------------------------------------


def errors_of(scores):
    """(origins, h, 1) scores whose signs alternate: independent of each other."""
    return [Errors(i, s, s * np.where(np.arange(len(s)) % 2, -1.0, 1.0)[:, None], s) for i, s in enumerate(scores)]


def test_factors_are_quantiles_drawn_towards_one():
    scores = np.abs(np.random.default_rng(0).normal(size=(1000, 16, 1))) / 1.645
    right = Calibration.of(errors_of(scores))
    np.testing.assert_allclose(right.factors, 1.0, atol=0.06)
    wide = Calibration.of(errors_of(0.6 * scores)).factors
    narrow = Calibration.of(errors_of(2.0 * scores)).factors
    assert (wide > 0.6).all() and (wide < 0.85).all()
    assert (narrow < 2.0).all() and (narrow > 1.3).all()


def test_what_grows_with_the_horizon_is_followed():
    scores = np.abs(np.random.default_rng(0).normal(size=(60, 32, 1))) / 1.645
    scores *= np.linspace(1.0, 3.0, 32)[None, :, None]
    factors = Calibration.of(errors_of(scores)).factors[:, 0]
    assert factors[0] < 1.15 and factors[-1] > 1.35 and (np.diff(factors) > -0.02).all()


def test_few_independent_errors_move_it_little():
    scores = np.full((12, 30, 1), 3.0)
    alike = [Errors(i, s, s, s) for i, s in enumerate(scores)]
    assert Calibration.of(alike).factors.max() < Calibration.of(errors_of(scores)).factors.max()


def test_errors_say_less_of_a_model_that_has_changed_since():
    same = errors_of(np.full((12, 30, 1), 2.0))
    changed = [e._replace(present=0.2 * e.score) for e in same]
    assert 1.05 < Calibration.of(changed).factors.max() < Calibration.of(same).factors.min()


def test_outputs_have_factors_of_their_own():
    scores = np.abs(np.random.default_rng(0).normal(size=(40, 8, 2))) / 1.645 * [0.5, 2.0]
    signs = np.where(np.arange(8) % 2, -1.0, 1.0)[:, None]
    factors = Calibration.of([Errors(i, s, s * signs, s) for i, s in enumerate(scores)]).factors
    assert (factors[:, 0] < 1).all() and (factors[:, 1] > 1).all()


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 30), st.integers(1, 40), st.floats(0.3, 4.0))
def test_spread_paths_keep_their_median_and_the_order_of_paths(paths, horizon, factor):
    samples = np.random.default_rng(paths).normal(size=(paths, horizon, 1)) * 10
    spread = Calibration(np.full((3, 1), factor), 10.0).applied(samples)
    np.testing.assert_allclose(np.median(spread, axis=0), np.median(samples, axis=0), atol=1e-9)
    np.testing.assert_allclose(spread.std(axis=0), factor * samples.std(axis=0), rtol=1e-9, atol=1e-12)


def test_paths_that_have_diverged_stay_so():
    samples = np.array([[[1.0], [np.inf]], [[2.0], [3.0]], [[4.0], [np.inf]]])
    spread = Calibration(np.full((2, 1), 2.0), 10.0).applied(samples)
    assert np.isinf(spread[0, 1, 0]) and np.isfinite(spread[:, 0]).all() and not np.isnan(spread).any()


def test_a_model_whose_noise_was_too_small_is_corrected():
    quiet, loud = walk(400, 0), walk(4000, 1, scale=2.0)
    model = gpssm.LastValue().fit(quiet)
    calibrated = model.calibrate(loud, state=model.filter(loud[:1]), horizon=8)
    # Twice as wide was needed; half of its logarithm is believed.
    assert 1.2 < np.exp(np.log(calibrated.calibration.factors).mean()) < 1.7
    plain, wide = model.forecast(40), calibrated.forecast(40)
    np.testing.assert_array_equal(calibrated.forecast(40, calibrated=False).samples, plain.samples)
    np.testing.assert_allclose(wide.std / plain.std, calibrated.calibration.at(40), rtol=1e-9)
    np.testing.assert_allclose(np.median(wide.samples, axis=0), np.median(plain.samples, axis=0))


def test_a_right_model_is_left_alone_and_a_horizon_is_refused_that_is_too_long():
    y = walk(1200, 3)
    model = gpssm.LastValue().fit(y[:600])
    factors = model.calibrate(y[600:], horizon=10).calibration.factors
    np.testing.assert_allclose(factors, 1.0, atol=0.2)
    with pytest.raises(InvalidInput, match="horizon: 700 steps ahead on 600"):
        model.calibrate(y[600:], horizon=700)
    with pytest.raises(InvalidInput, match="outputs: holds no number"):
        model.calibrate(np.full((50, 1), np.nan))


def test_coloured_noise_is_noticed():
    """A line through strongly correlated noise: the band of white noise is too narrow for the level of a stretch."""
    rng = np.random.default_rng(0)
    noise = np.zeros(1500)
    for t in range(1, 1500):
        noise[t] = 0.995 * noise[t - 1] + rng.normal()
    model = gpssm.TrainingMean().fit(noise[:150])
    before = gpssm.metrics.coverage(model.forecast(700).samples, noise[800:, None], 0.9)
    corrected = model.calibrate(noise[150:800]).forecast(700)
    after = gpssm.metrics.coverage(corrected.samples, noise[800:, None], 0.9)
    assert before < 0.75 and after > before + 0.05


def test_rolling_forecasts_are_those_from_every_origin():
    y, u = driven(60)
    model = gpssm.ARX(order=1).fit(y[:40], u[:40])
    found = dict(rolling(model, y[40:], u[40:], range(0, 20, 5), 5, seed=3))
    state = model.filter(y[40:50], u[40:50], state=model.end)
    direct = model.forecast(5, u[50:55], state=state, seed=3 + 10)
    np.testing.assert_allclose(found[10].mean, direct.mean, rtol=1e-6)
    assert list(found) == [0, 5, 10, 15]


def test_independent_errors_are_counted_as_all_of_them_and_alike_ones_as_few():
    noise = np.random.default_rng(0).normal(size=500)
    assert independent(noise) == pytest.approx(500, rel=0.25)
    assert independent(np.repeat(noise[:50], 10)) < 100
    assert independent(np.full(20, np.nan)) == 0


# --- time -----------------------------------------------------------------------------------------


def test_a_fit_ends_when_its_time_is_over_and_says_what_is_left():
    y = gpssm.datasets.kink(200, 0.05, 0.08, seed=0).outputs
    seen = []
    schedule = gpssm.Schedule(max_steps=400, chunk=5, patience=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = gpssm.EnVI(1, 5, schedule=schedule).fit(y, max_seconds=1.0, progress=seen.append)
    assert 5 <= fitted.history.step[-1] < 400 and not fitted.history.interrupted
    assert any("out of time" in message for message in fitted.history.messages)
    left = [p.seconds_left for p in seen]
    assert left[0] is None and all(value > 0 for value in left[1:])
