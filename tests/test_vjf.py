"""VJF: its bound, its least squares, and what it learns in one pass."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from gpssm.datasets import kink, kink_function
from gpssm.experiments.kink import GRID
from gpssm.online.stream import Stream
from gpssm.online.vjf import inference
from gpssm.online.vjf.inference import Learned, Prediction, Recognition, Site, VJFState, Weights
from gpssm.online.vjf.method import VJF
from gpssm.plumbing.precision import double_precision

NDArray = np.ndarray
MATRIX = np.array([[1.0, 0.0], [0.5, 1.0], [0.2, -0.7]])

_step, _bound, _place = jax.jit(VJF.step), jax.jit(inference.bound), jax.jit(inference.place)


@jax.jit
def _q(state: VJFState, y: NDArray, c: NDArray) -> tuple[Prediction, tuple[Any, Any]]:
    """Prediction and q(x_t)."""
    predicted = inference.predict(state, state.learned, c)
    site = inference.recognise(state, state.learned, predicted, y, c)
    return predicted, inference.product(predicted.mean, predicted.cov, site)


def begun(state_dim: int, emission: NDArray, samples: int = 12) -> tuple[VJFState, NDArray, NDArray]:
    """A state that has learned from a few samples, the sample after them, and its (standardised) input."""
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(samples + 1, 1))
    states = np.cumsum(0.3 * rng.normal(size=(samples + 1, state_dim)), axis=0)
    outputs = states @ emission.T + 0.1 * rng.normal(size=(samples + 1, len(emission)))
    method = VJF(state_dim, 5, emission=emission, hidden=4)
    state = method.initial_state(outputs[:10], inputs[:10])
    for y, u in zip(outputs[:-1], inputs[:-1], strict=True):
        state = _step(jax.random.key(0), state, y, u)[0]
    c = (inputs[-1] - state.scales.shift[-1:]) / state.scales.scale[-1:]
    return _place(state, c), outputs[-1], np.asarray(c)


@double_precision
def test_the_bound_is_what_its_definition_says() -> None:
    """E_q[log p(y, x_t) - log q(x_t)] by drawing x_t ~ q, with one channel missing."""
    state, y, c = begun(2, MATRIX)
    y = np.where([True, True, False], y, np.nan)
    predicted, (mean, var) = _q(state, y, c)
    rng = np.random.default_rng(0)
    x = np.asarray(mean) + np.sqrt(var) * rng.normal(size=(400_000, 2))
    noise = np.exp(np.asarray(state.learned.obs_noise))
    clean = np.asarray(state.emission(state.scales.shift[:2] + state.scales.scale[:2] * x))

    def log_normal(z: NDArray, variance: Any) -> NDArray:
        return -0.5 * (z**2 / variance + np.log(2 * np.pi * variance))

    log_y = log_normal(y - clean, noise)[:, :2].sum(axis=1)
    log_prior = np.asarray(jax.scipy.stats.multivariate_normal.logpdf(x, predicted.mean, predicted.cov))
    terms = log_y + log_prior - log_normal(x - np.asarray(mean), np.asarray(var)).sum(axis=1)
    error = terms.std() / np.sqrt(len(terms))
    assert error < 0.02
    assert abs(float(_bound(state, state.learned, y, c)) - terms.mean()) < 4 * error


@double_precision
@pytest.mark.parametrize("seen", [[True, True], [False, True]])
def test_the_bound_is_tight_for_the_exact_posterior(seen: list[bool]) -> None:
    """One state, a linear emission: the network that inverts it makes the bound log p(y_t | past), others less."""
    rng = np.random.default_rng(4)
    matrix, y, c = np.array([[2.0], [0.5]]), np.where(seen, [1.2, 0.1], np.nan), np.zeros(0)
    state = VJF(1, 5, emission=matrix, hidden=4).initial_state(rng.normal(size=(10, 1)) * matrix.T, np.zeros((10, 0)))
    weights = state.weights._replace(mean=jnp.asarray(rng.normal(size=(1, 5))))
    centres = jnp.asarray(rng.normal(size=(5, 1)))
    state = eqx.tree_at(
        lambda s: (s.weights, s.var, s.used, s.learned.centres, s.learned.obs_noise),
        state,
        (weights, jnp.array([0.3]), jnp.ones(5), centres, jnp.array([-1.0, -3.0])),
    )
    slope = matrix[:, 0] * np.asarray(state.scales.scale)[0]
    weighted = slope / np.exp(np.asarray(state.learned.obs_noise))

    def with_network(gain: float, precision: float) -> Learned:
        """Relative to the network that inverts the emission, whatever is missing."""
        silent = jax.tree.map(jnp.zeros_like, state.learned.recognition.network)
        scaled = gain * weighted / (weighted @ slope) * state.scales.output / state.scales.site
        # The unit of the precision is what the linear path lets through, which is as much as the gain's square.
        recognition = Recognition(silent, scaled[None], jnp.log(jnp.array([precision * gain**2])))
        return state.learned._replace(recognition=recognition)

    exact = with_network(1.0, 1.0)
    tight = float(_bound(state, exact, y, c))
    predicted, _ = _q(state, y, c)
    joint = np.asarray(predicted.output_cov) + np.diag(np.exp(state.learned.obs_noise))
    marginal = scipy.stats.multivariate_normal(np.asarray(predicted.output)[seen], joint[np.ix_(seen, seen)])
    np.testing.assert_allclose(tight, marginal.logpdf(y[seen]), rtol=1e-10)
    for gain, precision in ((1.1, 1.0), (0.9, 1.0), (1.0, 1.3), (1.0, 0.8)):
        assert float(_bound(state, with_network(gain, precision), y, c)) < tight


def _raw(state: VJFState, c: NDArray) -> NDArray:
    """An input in the user's units."""
    dx = len(state.mean)
    return np.asarray(state.scales.shift[dx:] + state.scales.scale[dx:] * c)


@double_precision
def test_recursive_least_squares_is_ridge_regression() -> None:
    rng = np.random.default_rng(1)
    features, targets = rng.normal(size=(40, 6)), rng.normal(size=(40, 2))
    noise, precision = np.array([0.3, 0.1]), rng.uniform(0.0, 3.0, size=(40, 2))
    precision[7] = 0.0  # nothing was recognised
    prior = np.array([2.0, 0.5])
    weights = Weights(jnp.zeros((2, 6)), jnp.asarray(prior[:, None, None] * np.eye(6)))
    regress = jax.jit(inference.least_squares)
    for h, target, lam in zip(features, targets, precision, strict=True):
        mean = weights.mean @ h
        predicted = Prediction(h, mean, np.diag(noise), np.eye(2), np.zeros(1), np.eye(1))
        weights = regress(weights, predicted, Site(lam, lam * (target - mean)))
    for d in range(2):
        weight = precision[:, d] / (1 + precision[:, d] * noise[d])  # 1 / (noise + 1 / precision)
        cov = np.linalg.inv(features.T * weight @ features + np.eye(6) / prior[d])
        np.testing.assert_allclose(weights.cov[d], cov, atol=1e-10)
        np.testing.assert_allclose(weights.mean[d], cov @ features.T @ (weight * targets[:, d]), atol=1e-10)


@double_precision
def test_a_product_of_gaussians() -> None:
    rng = np.random.default_rng(2)
    half = rng.normal(size=(3, 3))
    cov, mean, precision, pull = half @ half.T, rng.normal(size=3), np.array([0.5, 0.0, 2.0]), rng.normal(size=3)
    found = inference.product(jnp.asarray(mean), jnp.asarray(cov), Site(jnp.asarray(precision), jnp.asarray(pull)))
    after = np.linalg.inv(np.linalg.inv(cov) + np.diag(precision))
    np.testing.assert_allclose(found[0], mean + after @ pull, rtol=1e-8)
    np.testing.assert_allclose(found[1], np.diagonal(after), rtol=1e-8)


@double_precision
def test_a_sample_moves_everything_that_is_learned() -> None:
    state, y, c = begun(2, MATRIX)
    new, _ = _step(jax.random.key(0), state, y, _raw(state, c))
    before, after = (jax.tree_util.tree_leaves_with_path((s.learned, s.weights)) for s in (state, new))
    for (path, old), (_, leaf) in zip(before, after, strict=True):
        assert np.any(np.asarray(old) != np.asarray(leaf)), jax.tree_util.keystr(path)
    assert not np.array_equal(state.learned.obs_noise, new.learned.obs_noise)


@double_precision
def test_a_missing_sample_is_a_prediction() -> None:
    state, _, c = begun(2, MATRIX)
    y = np.full(3, np.nan)
    new, info = _step(jax.random.key(0), state, y, _raw(state, c))
    predicted, _ = _q(state, y, c)
    np.testing.assert_allclose(new.mean, predicted.mean, rtol=1e-12)
    np.testing.assert_allclose(new.var, jnp.diagonal(predicted.cov), rtol=1e-12)
    assert float(info.log_score) == 0.0
    for before, after in zip(jax.tree.leaves(state.learned), jax.tree.leaves(new.learned), strict=True):
        assert np.array_equal(before, after)
    assert np.array_equal(state.weights.mean, new.weights.mean)


@pytest.fixture(scope="module")
def stream() -> Stream:
    stream = VJF(1, 15, obs_noise=0.008).start()
    for y in kink(400, 0.0025, 0.008, seed=3).outputs:
        stream.learn_one(y)
    return stream


def test_one_pass_finds_the_kink(stream: Stream) -> None:
    mean, var = stream.transition(GRID[:, None])
    assert np.mean((mean[:, 0] - kink_function(GRID)) ** 2) < 0.1
    assert (var > 0).all()
    np.testing.assert_allclose(stream.state.learned.obs_noise, np.log(0.008), rtol=1e-12)  # it was given


def test_forecasts_agree_with_the_transition(stream: Stream) -> None:
    """One step of many paths from a state that is nearly known."""
    forecast = stream.forecast(1, num_paths=20_000)
    with jax.enable_x64(True):
        predicted, _ = _q(stream.state, np.zeros(1), np.zeros(0))
    scales = stream.state.scales
    std = np.sqrt(np.asarray(predicted.cov))[0] * np.asarray(scales.scale)
    np.testing.assert_allclose(
        forecast.states[:, 0].mean(), scales.shift + scales.scale * predicted.mean, atol=0.1 * std[0]
    )
    np.testing.assert_allclose(forecast.states[:, 0].std(), std[0], rtol=0.2)


def test_centres_follow_the_data() -> None:
    """The warm-up stands nearly still: it does not tell where the stream will go."""
    t = np.arange(200.0)
    outputs = np.where(t < 12, 0.01 * np.sin(t), 5 * np.sin((t - 12) / 9))[:, None]
    stream = VJF(1, 15, obs_noise=1e-4).start()
    errors = [y - stream.learn_one(y).predicted_mean for y in outputs]
    used = np.asarray(stream.state.used) > 0
    centres = np.asarray(stream.state.scales.shift + stream.state.scales.scale * stream.state.learned.centres)
    assert used.all()
    assert np.ptp(centres) > 7.0
    assert np.sqrt(np.mean(np.square(errors[100:]))) < 0.2 * outputs.std()
