"""The exact Kalman filter and smoother against conditioning of the full joint Gaussian."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cuthbertlib import kalman as cuthbert
from jax.flatten_util import ravel_pytree
from scipy.stats import multivariate_normal

from gpssm.filters import kalman


def random_system(dx, dy, seed=0):
    rng = np.random.default_rng(seed)

    def covariance(n):
        root = rng.normal(size=(n, n))
        return root @ root.T / n + 0.2 * np.eye(n)

    system = kalman.System(
        rng.normal(size=(dx, dx)) / np.sqrt(dx),
        covariance(dx),
        rng.normal(size=(dy, dx)),
        rng.normal(size=dy),
        covariance(dy),
    )
    initial = kalman.Gaussian(rng.normal(size=dx), covariance(dx))
    return jax.tree.map(jnp.asarray, (system, initial))


class Joint:
    """The joint Gaussian of all states and outputs, as one mean and one covariance, in NumPy."""

    def __init__(self, system, initial, offsets):
        a, q, c, d, r = (np.asarray(part) for part in system)
        self.length, self.dx, self.dy = len(offsets), a.shape[0], c.shape[0]
        # Everything is linear in the independent sources [x_0, v_1..v_T, e_1..e_T].
        blocks = [np.asarray(initial.cov)] + [q] * self.length + [r] * self.length
        sizes = np.cumsum([0] + [len(b) for b in blocks])
        source_cov = np.zeros((sizes[-1], sizes[-1]))
        for b, low, high in zip(blocks, sizes[:-1], sizes[1:], strict=True):
            source_cov[low:high, low:high] = b
        maps, means = [], []
        state_map, state_mean = np.eye(self.dx, sizes[-1]), np.asarray(initial.mean)
        emitted_maps, emitted_means = [], []
        for t in range(self.length):
            state_map = a @ state_map
            state_map[:, sizes[1 + t] : sizes[2 + t]] += np.eye(self.dx)
            state_mean = a @ state_mean + offsets[t]
            maps.append(state_map)
            means.append(state_mean)
            emitted = c @ state_map
            emitted[:, sizes[1 + self.length + t] : sizes[2 + self.length + t]] += np.eye(self.dy)
            emitted_maps.append(emitted)
            emitted_means.append(c @ state_mean + d)
        full = np.concatenate(maps + emitted_maps)
        self.mean, self.cov = np.concatenate(means + emitted_means), full @ source_cov @ full.T

    def state(self, t, y, upto):
        """Mean and covariance of x_t given the values of y before time `upto` that are not NaN."""
        rows = np.arange(t * self.dx, (t + 1) * self.dx)
        given = self._seen(y, upto)
        values = y.reshape(-1)[given - self.length * self.dx]
        mean, cov = self.mean[rows], self.cov[np.ix_(rows, rows)]
        if len(given) == 0:
            return mean, cov
        gain = np.linalg.solve(self.cov[np.ix_(given, given)], self.cov[np.ix_(given, rows)]).T
        return mean + gain @ (values - self.mean[given]), cov - gain @ self.cov[np.ix_(given, rows)]

    def log_likelihood(self, y, upto):
        given = self._seen(y, upto)
        if len(given) == 0:
            return 0.0
        values = y.reshape(-1)[given - self.length * self.dx]
        return multivariate_normal(self.mean[given], self.cov[np.ix_(given, given)]).logpdf(values)

    def _seen(self, y, upto):
        mask = ~np.isnan(y)
        mask[upto:] = False
        return self.length * self.dx + np.flatnonzero(mask.reshape(-1))


@jax.jit
def filter_and_smooth(system, initial, outputs, offsets):
    trace = kalman.filter(system, initial, outputs, offsets)
    return trace, kalman.smooth(system, trace.predicted, outputs)[1]


def check(joint, trace, smoothed, y, atol=1e-9):
    length = len(y)
    for t in range(length):
        for state, upto in ((trace.predicted, t), (trace.filtered, t + 1), (smoothed, length)):
            mean, cov = joint.state(t, y, upto)
            np.testing.assert_allclose(state.mean[t], mean, atol=atol)
            np.testing.assert_allclose(state.cov[t], cov, atol=atol)
        step = joint.log_likelihood(y, t + 1) - joint.log_likelihood(y, t)
        np.testing.assert_allclose(trace.log_likelihood[t], step, atol=atol)
    np.testing.assert_allclose(np.sum(trace.log_likelihood), joint.log_likelihood(y, length), atol=atol)


def test_every_pattern_of_missing_values():
    """Oracle: the joint of x_{1:3}, y_{1:3} conditioned by brute force, for all 64 patterns of NaN."""
    rng = np.random.default_rng(1)
    system, initial = random_system(2, 2)
    y, offsets = 2.0 * rng.normal(size=(3, 2)), rng.normal(size=(3, 2))
    joint = Joint(system, initial, offsets)
    for pattern in itertools.product([False, True], repeat=6):
        masked = np.where(np.reshape(pattern, (3, 2)), np.nan, y)
        trace, smoothed = filter_and_smooth(system, initial, jnp.asarray(masked), jnp.asarray(offsets))
        check(joint, trace, smoothed, masked)


@pytest.mark.parametrize(("dx", "dy"), [(1, 1), (3, 1), (1, 4), (4, 5)])
def test_other_dimensions(dx, dy):
    """Oracle: brute force. Covers unrolled and LAPACK factorisations."""
    rng = np.random.default_rng(2)
    system, initial = random_system(dx, dy, seed=3)
    y, offsets = rng.normal(size=(4, dy)), rng.normal(size=(4, dx))
    y[1, 0] = y[3] = np.nan
    trace, smoothed = filter_and_smooth(system, initial, jnp.asarray(y), jnp.asarray(offsets))
    check(Joint(system, initial, offsets), trace, smoothed, y)


def test_no_offsets_means_zero_offsets():
    system, initial = random_system(2, 2)
    y = jnp.asarray(np.random.default_rng(4).normal(size=(3, 2)))
    with_zeros, _ = filter_and_smooth(system, initial, y, jnp.zeros((3, 2)))
    for a, b in zip(
        jax.tree.leaves(jax.jit(kalman.filter)(system, initial, y)), jax.tree.leaves(with_zeros), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_matches_cuthbert():
    """Oracle: cuthbert's square-root filter and smoother, on a longer record with gaps."""
    rng = np.random.default_rng(5)
    system, initial = random_system(3, 2, seed=6)
    length = 25
    y, offsets = 2.0 * rng.normal(size=(length, 2)), rng.normal(size=(length, 3))
    y[rng.random(y.shape) < 0.3] = np.nan
    trace, smoothed = filter_and_smooth(system, initial, jnp.asarray(y), jnp.asarray(offsets))

    chol_q, chol_r = np.linalg.cholesky(system.process_cov), np.linalg.cholesky(system.obs_cov)
    predict, update, back = (jax.jit(f) for f in (cuthbert.predict, cuthbert.filter_update, cuthbert.smoother_update))
    mean, chol = initial.mean, jnp.linalg.cholesky(initial.cov)
    filtered, score = [], 0.0
    for t in range(length):
        mean, chol = predict(mean, chol, system.transition, offsets[t], chol_q)
        (mean, chol), score = update(mean, chol, system.emission, system.emission_bias, chol_r, y[t], score)
        filtered.append((mean, chol))
        np.testing.assert_allclose(trace.filtered.mean[t], mean, atol=1e-9)
        np.testing.assert_allclose(trace.filtered.cov[t], chol @ chol.T, atol=1e-9)
    np.testing.assert_allclose(np.sum(trace.log_likelihood), score, rtol=1e-10)
    for t in reversed(range(length - 1)):
        (mean, chol), _ = back(*filtered[t], mean, chol, system.transition, offsets[t + 1], chol_q)
        np.testing.assert_allclose(smoothed.mean[t], mean, atol=1e-9)
        np.testing.assert_allclose(smoothed.cov[t], chol @ chol.T, atol=1e-9)


def test_a_sample_without_channels_changes_nothing():
    system, initial = random_system(2, 2)
    state, score = jax.jit(kalman.update)(initial, system, jnp.full(2, jnp.nan))
    np.testing.assert_allclose(state.mean, initial.mean, atol=1e-14)
    np.testing.assert_allclose(state.cov, initial.cov, atol=1e-14)
    assert float(score) == 0.0


def test_covariances_stay_positive_definite_with_hardly_any_noise():
    """Joseph's form: 200 samples with an observation noise of 1e-12."""
    system, initial = random_system(3, 3, seed=7)
    system = system._replace(obs_cov=1e-12 * jnp.eye(3))
    y = jnp.asarray(np.random.default_rng(8).normal(size=(200, 3)))
    trace, smoothed = filter_and_smooth(system, initial, y, jnp.zeros((200, 3)))
    for cov in (trace.filtered.cov, smoothed.cov):
        assert np.isfinite(cov).all()
        assert np.linalg.eigvalsh(cov).min() > -1e-12


def test_gradients_match_finite_differences(central_differences):
    """Oracle: central differences of the log-likelihood, with missing values in the record."""
    rng = np.random.default_rng(9)
    system, initial = random_system(2, 2)
    y = rng.normal(size=(4, 2))
    y[1, 0] = y[2] = np.nan
    roots = {
        "a": system.transition,
        "q": jnp.linalg.cholesky(system.process_cov),
        "c": system.emission,
        "d": system.emission_bias,
        "r": jnp.linalg.cholesky(system.obs_cov),
    }

    @jax.jit
    @jax.value_and_grad
    def score(t):
        system = kalman.System(t["a"], t["q"] @ t["q"].T, t["c"], t["d"], t["r"] @ t["r"].T)
        return jnp.sum(kalman.filter(system, initial, jnp.asarray(y)).log_likelihood)

    gradient = ravel_pytree(score(roots)[1])[0]
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient, central_differences(lambda t: score(t)[0], roots), rtol=1e-6, atol=1e-7)
