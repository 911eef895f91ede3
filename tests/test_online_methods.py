"""What every method must stand that learns live: all of them, one after the other."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import gpssm
from gpssm.datasets import kink
from gpssm.errors import InvalidInput
from gpssm.methods import registry
from gpssm.online.stream import Estimate, Stream
from gpssm.plumbing.compilation import CompileClock
from live import learn

NDArray = np.ndarray
TRIAL = 30  # where there is one; each of its two phases is compiled


@pytest.fixture(scope="module", params=list(registry.ONLINE))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# What is compiled for one test alone is run for the default method, and for the others with all slow tests.
COSTLY = ["OEnVI", *(pytest.param(name, marks=pytest.mark.slow) for name in registry.ONLINE if name != "OEnVI")]


@pytest.fixture(scope="module")
def data() -> NDArray:
    return kink(300, 0.0025, 0.008, seed=3).outputs


def start(name: str, state_dim: int = 1, seed: int = 0, **choices: Any) -> Stream:
    small = {"num_inducing": 8, "num_members": 10, "num_particles": 30, "trial": 0} | choices
    chosen = registry.applicable(name, state_dim=state_dim, **small)
    stream: Stream = registry.build_online(name, **chosen).start(seed=seed)
    return stream


def same(a: Estimate, b: Estimate) -> bool:
    numbers = all(np.array_equal(left, right, equal_nan=True) for left, right in zip(a[:5], b[:5], strict=True))
    return numbers and a.refused == b.refused


def rms(values: Any) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def test_predictions_are_made_before_the_sample_is_seen(name: str, data: NDArray) -> None:
    """Whatever y is, the prediction of it is the same; during the warm-up and after."""
    for length in (5, 60):
        one, other = start(name), start(name)
        learn(one, data[:length])
        learn(other, data[:length])
        a, b = one.learn_one([0.1]), other.learn_one([7.0])
        assert np.array_equal(a.predicted_mean, b.predicted_mean), length
        assert np.array_equal(a.predicted_std, b.predicted_std), length
        assert not np.array_equal(a.state_mean, b.state_mean)


def test_units_are_the_users(name: str, data: NDArray) -> None:
    """Nothing but the numbers change when the data come in other units."""
    a, b = learn(start(name), data[:120])[-1], learn(start(name), 1e5 + 2000.0 * data[:120])[-1]
    np.testing.assert_allclose(b.state_mean, 1e5 + 2000.0 * a.state_mean, rtol=1e-6)
    np.testing.assert_allclose(b.predicted_std, 2000.0 * a.predicted_std, rtol=1e-4)
    np.testing.assert_allclose(b.log_score, a.log_score - np.log(2000.0), atol=1e-3)


def test_resumes_bit_for_bit(name: str, data: NDArray, tmp_path: Path) -> None:
    """From the warm-up, the trial and after it."""
    for length in (4, 25, 60):
        stream = start(name, seed=5, trial=TRIAL)
        learn(stream, data[:length])
        stream.position = "17-4"
        stream.save(tmp_path / "stream.gpssm")
        resumed = gpssm.load(tmp_path / "stream.gpssm")
        assert isinstance(resumed, Stream)
        assert (resumed.count, resumed.position) == (length, "17-4")
        for y in data[length : length + 40]:
            assert same(stream.learn_one(y), resumed.learn_one(y))
    assert np.array_equal(stream.forecast(4).samples, resumed.forecast(4).samples)


@pytest.mark.parametrize("name", COSTLY)
def test_missing_samples(name: str) -> None:
    """A gap is a prediction that widens; whole channels and whole samples may be missing, from the start."""
    matrix = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    stream = start(name, 2, emission=matrix)
    rng = np.random.default_rng(0)
    states = np.cumsum(0.1 * rng.normal(size=(80, 2)), axis=0)
    outputs = states @ matrix.T + 0.05 * rng.normal(size=(80, 3))
    outputs[rng.uniform(size=outputs.shape) < 0.2] = np.nan
    outputs[0] = np.nan
    estimates = learn(stream, outputs)
    assert rms(np.array([e.state_mean for e in estimates[40:]]) - states[40:]) < 0.3
    before = stream.process_noise
    gap = [stream.learn_one(None) for _ in range(10)]
    stds = np.array([e.state_std for e in gap])
    assert np.isfinite(stds).all()
    assert np.all(stds[-1] > stds[0])
    assert np.array_equal(before, stream.process_noise)  # nothing was learned
    assert [e.log_score for e in gap] == [0.0] * 10


def test_a_long_gap_is_survived(name: str, data: NDArray) -> None:
    """Predictions stay where the stream has been, and it goes on as one that has had no gap."""
    whole, broken = start(name, num_inducing=15), start(name, num_inducing=15)
    learn(whole, data[:200])
    learn(broken, data[:200])
    gap = [broken.learn_one(None) for _ in range(3000)]
    assert broken.given_up == 0 and broken.refused == 0
    assert np.abs([e.predicted_mean for e in gap]).max() < 10 * data.std()
    assert np.max([e.predicted_std for e in gap]) < 20 * data.std()
    errors = [
        [y - e.predicted_mean for y, e in zip(data[200:], learn(s, data[200:]), strict=True)] for s in (whole, broken)
    ]
    assert rms(errors[1][20:]) < 1.3 * rms(errors[0][20:])


def test_outliers_are_survived(name: str, data: NDArray) -> None:
    dirty = data.copy()
    dirty[150::25] += 100 * data.std()
    # As many inducing inputs as for kink elsewhere: this stream comes from afar, which takes half of eight.
    clean, hit = (learn(start(name, num_inducing=15), y) for y in (data, dirty))
    untouched = np.array([t for t in range(160, 300) if t % 25 not in (0, 1)])
    gap = [clean[t].predicted_mean - hit[t].predicted_mean for t in untouched]
    assert rms(gap) < 0.3 * data.std()


@pytest.mark.parametrize("name", COSTLY)
def test_a_constant_stretch_is_survived(name: str, data: NDArray) -> None:
    """Ten thousand samples of it; the first ones of a stream, and later."""
    constant = np.full((10_000, 1), 0.37)
    for begins_with in (constant[:120], data):
        stream = start(name)
        learn(stream, begins_with)
        assert np.isfinite(stream.learn_many(constant).state_mean).all()
        learn(stream, data)  # VJF needs a few hundred samples to believe what is new after so many that were not
        errors = data - stream.learn_many(data).predicted_mean
        assert rms(errors[150:]) < 0.8 * data.std()


def test_the_state_does_not_grow(name: str, data: NDArray) -> None:
    """Constant memory: the state has always the same shapes."""
    stream = start(name)
    learn(stream, data[:12])
    before = [np.shape(leaf) for leaf in jax.tree.leaves(stream.state)]
    learn(stream, data[12:])
    assert [np.shape(leaf) for leaf in jax.tree.leaves(stream.state)] == before
    assert not stream.early


@pytest.mark.parametrize("name", COSTLY)
def test_a_driven_system_that_was_at_rest(name: str) -> None:
    """Two past outputs and three inputs are enough to forecast a system with a dead time, also if it first was at
    rest: units of the rest are units of nothing, and the stream restarts.
    """
    rng = np.random.default_rng(5)
    inputs = np.repeat(rng.choice([-1.0, 1.0], size=100), 4)[:, None]
    inputs[:15] = 0.0
    level = np.zeros(401)
    for t in range(400):
        level[t + 1] = 0.9 * level[t] + (0.3 * inputs[t - 2, 0] if t > 1 else 0.0)
    outputs = 50.0 + 10.0 * level[1:, None] + 0.05 * rng.normal(size=(400, 1))
    stream = start(name, 2, input_lags=3)
    learn(stream, outputs[:340], inputs[:340])
    assert stream.unit_samples > 15 and not stream.early
    ahead = stream.forecast(60, inputs[340:], num_paths=50)
    assert rms(np.median(ahead.samples, axis=0) - outputs[340:]) < 0.5 * outputs.std()


def test_compiled_once_for_all_streams(name: str, data: NDArray) -> None:
    learn(start(name, seed=1), data[:60])
    clock = CompileClock()
    learn(start(name, seed=2), 3.0 * data[:60])
    assert clock.count == 0


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (([1.0, 2.0], None), "y: expected 1 number"),
        ((["a"], None), "y: expected numbers"),
        (([10**400], None), r"y: expected numbers, got \[10+\.\.\."),
        (([np.inf], None), "y: infinite"),
        (([1.0], [np.nan]), "u: "),
        (([1.0], [1.0, 2.0]), "u: expected"),
    ],
)
def test_a_bad_sample_is_refused_and_changes_nothing(
    name: str, data: NDArray, sample: tuple[object, object], message: str
) -> None:
    stream = start(name)
    learn(stream, data[:12])
    with pytest.raises(InvalidInput, match=message):
        stream.learn_one(*sample)
    assert stream.count == 12
    stream.learn_one(data[12])
