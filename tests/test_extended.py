"""The extended Kalman filter against the exact filter, closed forms and the particle filter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.datasets import kink, kink_function
from gpssm.experiments.filters import true_kink, true_model
from gpssm.filters import ensemble, extended, kalman
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.models.noise import DiagonalNoise, FullNoise

run = jax.jit(extended.run, static_argnums=0, static_argnames="inflation")
A = np.array([[0.8, 0.3], [-0.2, 0.7]])
F_ROOT = np.array([[0.3, 0.0], [0.1, 0.2]])  # of the covariance of f
Q_ROOT = np.array([[0.5, 0.0], [0.2, 0.4]])
WEIGHT, BIAS, R = np.array([[1.0, 0.5], [0.3, -1.0], [0.0, 2.0]]), np.array([0.1, -0.2, 0.3]), np.array([0.3, 0.5, 0.8])


def independent(x):
    """A linear f of state and input; the input is added to the first state."""
    mean = x[:, :2] @ A.T
    return mean.at[:, 0].add(x[:, 2]), DiagonalNoise(jnp.full_like(mean, 0.05))


def mixed(x):
    return independent(x)[0], FullNoise(jnp.broadcast_to(F_ROOT, (x.shape[0], 2, 2)))


def as_function(x):
    return x @ WEIGHT.T + BIAS


@pytest.mark.parametrize("correlated", [False, True])
def test_a_linear_system_is_filtered_exactly(correlated):
    """Oracle: the Kalman filter, with single channels and whole samples missing; with full covariances and a g that is
    a function of the user's, too.
    """
    rng = np.random.default_rng(0)
    y, c = rng.normal(size=(40, 3)), rng.normal(size=(40, 1))
    y[rng.uniform(size=y.shape) < 0.2] = np.nan
    y[7] = np.nan
    f_cov, q = (F_ROOT @ F_ROOT.T, Q_ROOT @ Q_ROOT.T) if correlated else (0.05 * np.eye(2), np.diag([0.3, 0.6]))
    system = kalman.System(*map(jnp.asarray, (A, q + f_cov, WEIGHT, BIAS, np.diag(R))))
    first = kalman.Gaussian(jnp.asarray([1.0, -2.0]), jnp.asarray([[2.0, 0.5], [0.5, 1.0]]))
    offsets = jnp.concatenate([jnp.asarray(c), jnp.zeros((40, 1))], axis=1)
    exact = jax.jit(kalman.filter)(system, first, jnp.asarray(y), offsets)
    observing = ensemble.Observing(
        FullNoise(Q_ROOT) if correlated else DiagonalNoise(np.diag(q)),
        FunctionEmission.unscaled(as_function, 2, 3) if correlated else LinearEmission(WEIGHT, BIAS),
        DiagonalNoise(R),
    )
    trace = run(mixed if correlated else independent, observing, first, jnp.asarray(y), jnp.asarray(c))
    for ours, theirs in zip(jax.tree.leaves(trace), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-10)
    assert float(trace.log_likelihood[7]) == 0.0


def test_tangents():
    """Oracle: the derivatives of kink and of a square, by hand."""
    emission = FunctionEmission.unscaled(jnp.square, 1, 1)
    observing = ensemble.Observing(DiagonalNoise([0.1]), emission, DiagonalNoise([0.2]))

    def f(x):
        return true_kink(x), DiagonalNoise(0.3 * x**2)

    x = -0.7
    system, offset = extended.linearise(f, observing, jnp.asarray([x]), jnp.zeros(0))
    gate = 1 / (1 + np.exp(-2 * x))
    slope, ahead = 1 - 5 * gate - (x + 0.2) * 10 * gate * (1 - gate), float(kink_function(x))
    expected = kalman.System(slope, 0.1 + 0.3 * x**2, 2 * ahead, -(ahead**2), 0.2)
    for ours, by_hand in zip(system, expected, strict=True):
        np.testing.assert_allclose(np.ravel(ours), [by_hand], atol=1e-12)
    np.testing.assert_allclose(slope * x + offset, [ahead], atol=1e-12)


def test_inflation_multiplies_the_predicted_standard_deviation():
    observing = ensemble.Observing(DiagonalNoise([0.3, 0.6]), LinearEmission(WEIGHT, BIAS), DiagonalNoise(R))
    first = kalman.Gaussian(jnp.zeros(2), jnp.eye(2))
    blind, c = jnp.full((1, 3), jnp.nan), jnp.zeros((1, 1))
    inflated = run(independent, observing, first, blind, c, inflation=1.2)
    np.testing.assert_allclose(inflated.filtered.cov[0], 1.44 * (A @ A.T + np.diag([0.35, 0.65])), atol=1e-12)


@pytest.mark.parametrize("cov", [[[2.0, 0.5], [0.5, 1.0]], [[1.0, 1.0], [1.0, 1.0]]])
def test_members_have_the_moments_exactly(cov):
    """Oracle: NumPy's moments; also of a covariance that has no Cholesky factor."""
    noise = jnp.asarray(np.random.default_rng(0).normal(size=(20, 2)))
    members = np.asarray(extended.draws(kalman.Gaussian(jnp.asarray([1.0, -3.0]), jnp.asarray(cov)), noise))
    np.testing.assert_allclose(members.mean(axis=0), [1.0, -3.0], atol=1e-12)
    np.testing.assert_allclose(np.cov(members.T), cov, atol=1e-12)


def test_a_filter_that_continues_is_one_that_never_stopped():
    y = kink(100, 0.05**2, 0.08, 0).outputs
    model = true_model(0.08)
    whole = model.filter(y, filter="extended")
    half = model.filter(y[:50], filter="extended")
    rest = model.filter(y[50:], filter="extended", state=half)
    np.testing.assert_allclose(np.concatenate([half.mean, rest.mean]), whole.mean, atol=1e-9)
    np.testing.assert_allclose(np.concatenate([half.cov, rest.cov]), whole.cov, atol=1e-9)
    np.testing.assert_allclose(half.log_likelihood + rest.log_likelihood, whole.log_likelihood, atol=1e-7)


def test_true_kink():
    """Oracle: the particle filter. The extended filter is its equal where the state is known well, and has a lower
    likelihood where f bends over the width of what is known of the state.
    """
    gaps = []
    for obs_noise in (0.008, 0.8):
        model, runs = true_model(obs_noise), []
        for seed in range(12):
            series = kink(100, 0.05**2, obs_noise, seed)
            found = [model.filter(series.outputs, filter=name) for name in ("extended", "particle")]
            errors = [np.mean((states.mean - series.states) ** 2) for states in found]
            runs.append([*errors, (found[1].log_likelihood - found[0].log_likelihood) / 100])
        extended_error, particle_error, gap = np.mean(runs, axis=0)
        gaps.append((np.sqrt(extended_error / particle_error), gap))
    (near_ratio, near_gap), (far_ratio, far_gap) = gaps
    assert abs(near_ratio - 1) < 0.02 and abs(near_gap) < 0.03
    assert far_ratio > 1.2 and far_gap > 0.2
    x = np.linspace(-4, 2, 13)
    np.testing.assert_allclose(true_kink(jnp.asarray(x)), kink_function(x), atol=1e-12)
