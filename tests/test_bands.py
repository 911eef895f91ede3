"""Bands of live forecasts: factors that follow how often the forecasts hold."""

import numpy as np
import pytest

import gpssm
from gpssm.online.bands import Bands


def test_misses_one_in_ten_move_nothing():
    bands, rng = Bands.new(2), np.random.default_rng(0)
    for _ in range(4000):
        bands = bands.seen(rng.normal(size=2), np.zeros(2), np.ones(2))
    np.testing.assert_allclose(bands.at(1), 1.0, atol=0.15)


@pytest.mark.parametrize("scale", [0.6, 2.0])
def test_the_factor_of_one_step_goes_where_nine_in_ten_are_inside(scale):
    bands, rng, inside = Bands.new(1), np.random.default_rng(1), []
    for _ in range(5000):
        y = scale * rng.normal(size=1)
        inside.append(abs(y[0]) <= 1.645 * bands.at(1)[0, 0])
        bands = bands.seen(y, np.zeros(1), np.ones(1))
    assert bands.at(1)[0, 0] == pytest.approx(scale, rel=0.2)
    assert np.mean(inside[1000:]) == pytest.approx(0.9, abs=0.02)


def test_further_steps_are_compared_with_the_forecast_that_was_made():
    bands, rng = Bands.new(1), np.random.default_rng(2)
    for _ in range(400):
        bands = bands.awaiting(rng.normal(size=(200, 8, 1)), np.zeros((8, 0)))
        for step in range(8):
            assert bands.compared == step
            bands = bands.seen(3.0 * rng.normal(size=1), np.zeros(1), np.ones(1))
        assert bands.pending is None
    np.testing.assert_allclose(bands.at(8)[[1, 3, 7], 0], 3.0, rtol=0.25)
    assert bands.at(64)[63, 0] == bands.at(8)[7, 0]  # the last that is known


def test_one_forecast_at_a_time_missing_samples_and_divergence():
    none = np.zeros((4, 0))
    bands = Bands.new(1).awaiting(np.zeros((10, 4, 1)), none)
    assert bands.awaiting(np.ones((10, 4, 1)), none) is bands
    for _ in range(4):
        bands = bands.seen(np.array([np.nan]), np.zeros(1), np.ones(1))
    assert bands.pending is None and (bands.logs == 0).all()
    diverged = np.zeros((10, 4, 1))
    diverged[0, 2] = np.inf
    assert bands.awaiting(diverged, none).pending is None
    for _ in range(1000):
        bands = bands.seen(np.array([1e9]), np.zeros(1), np.ones(1))
    assert bands.at(1)[0, 0] == pytest.approx(4.0)  # and no further


def stream_of(seed=0, length=400, noise=0.1, then=0.1):
    """A level with noise that changes half-way, learned live."""
    rng = np.random.default_rng(seed)
    y = np.cumsum(noise * rng.normal(size=length))
    y[length // 2 :] += then * rng.normal(size=length // 2)
    return gpssm.VJF(1, num_inducing=2).start(), y


def test_a_stream_follows_and_keeps_its_factors(tmp_path):
    stream, y = stream_of(then=1.0)
    for t, value in enumerate(y):
        stream.learn_one([value])
        if stream.ready and t % 8 == 0:
            stream.forecast(8, num_paths=50, follow=True)
    plain = stream.forecast(8, num_paths=50, calibrated=False)
    spread = stream.forecast(8, num_paths=50)
    np.testing.assert_allclose(spread.std / plain.std, stream.bands.at(8), rtol=1e-9)
    stream.save(tmp_path / "s.gpssm")
    again = gpssm.load(tmp_path / "s.gpssm")
    np.testing.assert_array_equal(again.bands.logs, stream.bands.logs)
    np.testing.assert_array_equal(again.forecast(8, num_paths=50).samples, spread.samples)


def test_what_is_learned_does_not_depend_on_forecasts():
    (a, y), (b, _) = stream_of(), stream_of()
    for value in y[:60]:
        a.learn_one([value])
        b.learn_one([value])
        if b.ready:
            b.forecast(3, num_paths=10, follow=True)
    np.testing.assert_array_equal(a.transition([[0.5]])[0], b.transition([[0.5]])[0])


def test_a_forecast_that_has_assumed_other_inputs_is_not_compared():
    bands = Bands.new(1).awaiting(np.random.default_rng(0).normal(size=(50, 4, 1)), np.full((4, 1), 0.5))
    bands = bands.seen(np.zeros(1), np.zeros(1), np.ones(1), np.array([0.5]))
    assert bands.compared == 1
    bands = bands.seen(np.full(1, 99.0), np.zeros(1), np.ones(1), np.array([0.7]))
    assert bands.pending is None and bands.octaves == 1


def test_factors_have_no_steps_between_octaves():
    bands = Bands(np.log(np.array([[1.0], [1.5], [3.0], *[[9.0]] * 13])), octaves=3)
    factors = bands.at(12)[:, 0]
    assert (np.diff(factors) >= 0).all() and factors[3] == factors[-1] == pytest.approx(3.0)
    assert 1.5 < factors[2] < 3.0
