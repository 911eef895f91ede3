"""The particle filter against the exact filter, Bayes' rule on a grid, and what holds for any weights."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.datasets import kink, kink_function
from gpssm.experiments.filters import true_model
from gpssm.filters import ensemble, kalman, particle
from gpssm.models.emission import LinearEmission
from gpssm.models.noise import DiagonalNoise, FullNoise

A = np.array([[0.8, 0.3], [-0.2, 0.7]])
F_ROOT, Q_ROOT = np.array([[0.3, 0.0], [0.1, 0.2]]), np.array([[0.5, 0.0], [0.2, 0.4]])
WEIGHT, BIAS, R = np.array([[1.0, 0.5], [0.3, -1.0]]), np.array([0.1, -0.2]), np.array([0.8, 1.2])
MEAN, ROOT = np.array([1.0, -2.0]), np.array([[1.0, 0.0], [0.5, 0.5]])


def data():
    """Eight samples of the system below, some of them missing, and inputs."""
    rng = np.random.default_rng(0)
    c = rng.normal(size=(8, 1))
    x, rows = MEAN + ROOT @ rng.normal(size=2), []
    for c_t in c:
        x = A @ x + [c_t[0], 0.0] + F_ROOT @ rng.normal(size=2) + Q_ROOT @ rng.normal(size=2)
        rows.append(WEIGHT @ x + BIAS + np.sqrt(R) * rng.normal(size=2))
    y = np.array(rows)
    y[2, 0] = y[5] = np.nan
    return jnp.asarray(y), jnp.asarray(c)


def exact(y, c):
    system = kalman.System(*map(jnp.asarray, (A, F_ROOT @ F_ROOT.T + Q_ROOT @ Q_ROOT.T, WEIGHT, BIAS, np.diag(R))))
    first = kalman.Gaussian(jnp.asarray(MEAN), jnp.asarray(ROOT @ ROOT.T))
    return jax.jit(kalman.filter)(system, first, y, jnp.concatenate([c, jnp.zeros_like(c)], axis=1))


def transition(x):
    """A linear f of state and input with a full covariance."""
    mean = x[:, :2] @ A.T
    return mean.at[:, 0].add(x[:, 2]), FullNoise(jnp.broadcast_to(F_ROOT, (x.shape[0], 2, 2)))


@partial(jax.jit, static_argnames=("repeats", "count"))
def repeated(y, c, key, channels, *, repeats, count):
    """Independent runs, side by side, on the given rows of C."""
    emission = LinearEmission(jnp.asarray(WEIGHT)[channels], jnp.asarray(BIAS)[channels])
    observing = ensemble.Observing(FullNoise(Q_ROOT), emission, DiagonalNoise(jnp.asarray(R)[channels]))

    def one(key):
        key_first, key_run = jax.random.split(key)
        first = MEAN + jax.random.normal(key_first, (count, 2)) @ ROOT.T
        return particle.run(transition, observing, first, y, c, key_run)

    return jax.vmap(one)(jax.random.split(key, repeats))


BOTH = jnp.arange(2)
# Two shapes, each compiled once.
MANY, FEW = {"repeats": 40, "count": 4000}, {"repeats": 4000, "count": 30}


@pytest.fixture(scope="module")
def many_and_few():
    y, c = data()
    return tuple(repeated(y, c, jax.random.key(0, impl="rbg"), BOTH, **size) for size in (MANY, FEW))


def within_standard_errors(estimates, expected, allowed=5.0, bias=0.0):
    """Whether the mean of independent estimates is where it should be."""
    estimates = np.asarray(estimates)
    error = estimates.std(axis=0, ddof=1) / np.sqrt(len(estimates))
    np.testing.assert_array_less(np.abs(estimates.mean(axis=0) - np.asarray(expected)), allowed * error + bias)


def test_converges_to_the_exact_filter(many_and_few):
    """Oracle: the Kalman filter: moments, scores and the equally weighted particles at the end, over gaps.

    Estimates from weights that sum to one have a bias of order one over the number of particles.
    Errors fall like one over its square root, 11.5 times between the two sizes.
    """
    (many, few), reference, bias = many_and_few, exact(*data()), 5 / MANY["count"]
    within_standard_errors(many.mean, reference.filtered.mean, bias=bias)
    within_standard_errors(many.cov, reference.filtered.cov, bias=bias)
    within_standard_errors(many.log_likelihood, reference.log_likelihood, bias=bias)
    within_standard_errors(np.mean(many.members, axis=1), reference.filtered.mean[-1], bias=bias)
    covs = [np.cov(members.T) for members in np.asarray(many.members)]
    within_standard_errors(covs, reference.filtered.cov[-1], bias=bias)
    for a, b, truth in zip(many[:3], few[:3], (*reference.filtered, reference.log_likelihood), strict=True):
        error_many, error_few = (np.sqrt(np.mean((np.asarray(estimate) - truth) ** 2)) for estimate in (a, b))
        assert error_many < error_few / 6
    np.testing.assert_allclose(many.log_likelihood[:, 5], 0.0, atol=1e-14)


def test_the_likelihood_is_unbiased_for_few_particles(many_and_few):
    """Oracle: the exact likelihood. Its logarithm is too low on average, by as much as half its variance."""
    expected = float(jnp.sum(exact(*data()).log_likelihood))
    logs = np.sum(np.asarray(many_and_few[1].log_likelihood), axis=1) - expected
    within_standard_errors(np.exp(logs), 1.0, allowed=4.0)
    assert logs.std() > 0.3
    assert logs.mean() < -0.2 * logs.var()


def test_a_missing_channel_is_a_channel_that_was_deleted():
    """Oracle: the same draws on the one channel that is left."""
    y, c = data()
    masked = repeated(y.at[:, 0].set(jnp.nan), c, jax.random.key(2, impl="rbg"), BOTH, **FEW)
    deleted = repeated(y[:, 1:], c, jax.random.key(2, impl="rbg"), BOTH[1:], **FEW)
    for a, b in zip(masked, deleted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)


@pytest.mark.parametrize("count", [7, 50])
def test_systematic_resampling(count):
    """Oracle: every particle is taken `count * weight` times, rounded up or down, and that often on average."""
    weights = np.random.default_rng(0).uniform(size=20) ** 4
    weights[[0, 3, 19]] = 0.0
    weights /= weights.sum()
    offsets = jnp.asarray((np.arange(400) + 0.5) / 400)
    chosen = jax.jit(jax.vmap(lambda offset: particle.systematic(jnp.asarray(weights), offset, count)))(offsets)
    taken = np.array([np.bincount(row, minlength=20) for row in np.asarray(chosen)])
    assert (taken >= np.floor(count * weights - 1e-9)).all()
    assert (taken <= np.ceil(count * weights + 1e-9)).all()
    np.testing.assert_allclose(taken.mean(axis=0), count * weights, atol=0.01)
    np.testing.assert_array_equal(taken.sum(axis=1), count)


def test_systematic_resampling_of_equal_weights_takes_each_once():
    """Also where rounding leaves the sum of the weights below one, at either end of the offsets."""
    for offset in (0.0, 0.5, 1.0 - 1e-16):
        chosen = particle.systematic(jnp.full(1000, 0.001), jnp.asarray(offset), 1000)
        assert (np.abs(np.asarray(chosen) - np.arange(1000)) <= 1).all()


def grid_filter(y, process_noise, obs_noise):
    """Bayes' rule on a grid for the true kink, x_0 ~ N(0, 1): log-likelihood, and means after every sample."""
    x = np.linspace(-20.0, 4.0, 2401)  # f takes the tail of p(x_0) far down
    density = np.exp(-0.5 * x**2)
    move = np.exp(-0.5 * (x[:, None] - kink_function(x)) ** 2 / process_noise)
    move /= np.sqrt(2 * np.pi * process_noise) / (x[1] - x[0])
    density, total, means = density / density.sum(), 0.0, []
    for y_t in y[:, 0]:
        density = move @ density * np.exp(-0.5 * (y_t - x) ** 2 / obs_noise) / np.sqrt(2 * np.pi * obs_noise)
        total += np.log(density.sum())
        density /= density.sum()
        means.append(density @ x)
    return total, np.array(means)


def test_true_kink():
    """Oracle: the filter on a grid, where states are far from Gaussian and the ensemble Kalman filter is off."""
    process_noise, obs_noise = 0.05**2, 0.8
    y = kink(100, process_noise, obs_noise, 3).outputs
    exact_score, exact_mean = grid_filter(y, process_noise, obs_noise)
    runs = [true_model(obs_noise).filter(y, filter="particle", seed=seed) for seed in range(10)]
    scores = np.array([states.log_likelihood for states in runs])
    assert abs(scores.mean() - exact_score) < 1.0 and scores.std() < 1.5
    error = np.sqrt(np.mean([(states.mean[:, 0] - exact_mean) ** 2 for states in runs]))
    assert error < 0.1
    other = true_model(obs_noise).filter(y)
    assert np.sqrt(np.mean((other.mean[:, 0] - exact_mean) ** 2)) > 2 * error
    assert runs[0].members.shape == (1000, 1)
    assert abs(runs[0].members.mean() - runs[0].mean[-1, 0]) < 0.1 * runs[0].std[-1, 0]
