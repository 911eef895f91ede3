"""Factorisations of the time loop, unrolled up to n = 3 and by LAPACK above, against NumPy and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.stats import multivariate_normal

from gpssm.numerics import linalg


def positive_definite(n, seed=0):
    root = np.random.default_rng(seed + n).normal(size=(n, n))
    return root @ root.T + 0.5 * np.eye(n)


@pytest.mark.parametrize("n", range(1, 7))
def test_factor_and_solves_match_numpy(n):
    """Oracle: numpy.linalg.cholesky and numpy.linalg.solve."""
    a = positive_definite(n)
    b = np.random.default_rng(1).normal(size=(n, 4))
    expected = np.linalg.cholesky(a)

    lower = jax.jit(linalg.cholesky)(jnp.asarray(a))
    np.testing.assert_allclose(lower, expected, atol=1e-12)
    np.testing.assert_array_equal(np.triu(lower, 1), 0.0)
    forward, backward = jax.jit(lambda m, r: (linalg.solve_lower(m, r), linalg.solve_lower_transposed(m, r)))(
        jnp.asarray(expected), jnp.asarray(b)
    )
    np.testing.assert_allclose(forward, np.linalg.solve(expected, b), atol=1e-12)
    np.testing.assert_allclose(backward, np.linalg.solve(expected.T, b), atol=1e-12)


@pytest.mark.parametrize("n", range(1, 7))
def test_gradients_match_finite_differences(n, central_differences):
    """Oracle: central differences of the same function, written in NumPy."""
    rng = np.random.default_rng(n)
    tree = {"root": rng.normal(size=(n, n)), "b": rng.normal(size=(n, 2))}
    w1, w2, w3 = rng.normal(size=(n, n)), rng.normal(size=(n, 2)), rng.normal(size=(n, 2))

    def function(t):
        chol = linalg.cholesky(t["root"] @ t["root"].T + jnp.eye(n))
        forward, backward = linalg.solve_lower(chol, t["b"]), linalg.solve_lower_transposed(chol, t["b"])
        return jnp.sum(w1 * chol) + jnp.sum(w2 * forward) + jnp.sum(w3 * backward**2)

    def oracle(t):
        root, b = np.asarray(t["root"]), np.asarray(t["b"])
        chol = np.linalg.cholesky(root @ root.T + np.eye(n))
        backward = np.linalg.solve(chol.T, b)
        return np.sum(w1 * chol) + np.sum(w2 * np.linalg.solve(chol, b)) + np.sum(w3 * backward**2)

    gradient = ravel_pytree(jax.jit(jax.grad(function))(jax.tree.map(jnp.asarray, tree)))[0]
    np.testing.assert_allclose(gradient, central_differences(oracle, tree), rtol=1e-6, atol=1e-7)


def test_factor_under_vmap():
    """Oracle: NumPy's batched Cholesky. The filter factors one matrix per window."""
    batch = np.stack([positive_definite(2, seed) for seed in range(5)])
    np.testing.assert_allclose(jax.vmap(linalg.cholesky)(jnp.asarray(batch)), np.linalg.cholesky(batch), atol=1e-12)


@pytest.mark.parametrize("n", [2, 4])
def test_single_precision_stays_single(n):
    a = jnp.asarray(positive_definite(n), jnp.float32)
    lower = linalg.cholesky(a)
    assert lower.dtype == jnp.float32
    assert linalg.solve_lower(lower, a).dtype == jnp.float32
    assert linalg.solve_lower_transposed(lower, a).dtype == jnp.float32


@pytest.mark.parametrize("n", [1, 2, 5])
def test_log_density_matches_scipy(n):
    """Oracle: scipy.stats.multivariate_normal."""
    cov, r = positive_definite(n), np.random.default_rng(3).normal(size=n)
    chol = np.linalg.cholesky(cov)
    value = linalg.gaussian_log_density(jnp.asarray(np.linalg.solve(chol, r)), jnp.asarray(chol), jnp.asarray(float(n)))
    np.testing.assert_allclose(value, multivariate_normal(np.zeros(n), cov).logpdf(r), rtol=1e-12)


def test_log_density_leaves_out_a_missing_channel():
    """Oracle: SciPy's density of the channels that remain."""
    cov, r = positive_definite(3), np.random.default_rng(4).normal(size=3)
    keep = np.array([0, 2])
    padded = np.eye(3)
    padded[np.ix_(keep, keep)] = cov[np.ix_(keep, keep)]
    chol = np.linalg.cholesky(padded)
    value = linalg.gaussian_log_density(
        jnp.asarray(np.linalg.solve(chol, np.where([True, False, True], r, 0.0))), jnp.asarray(chol), jnp.asarray(2.0)
    )
    expected = multivariate_normal(np.zeros(2), cov[np.ix_(keep, keep)]).logpdf(r[keep])
    np.testing.assert_allclose(value, expected, rtol=1e-12)
