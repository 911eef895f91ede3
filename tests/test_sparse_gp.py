"""The sparse GP against exact regression, GPJax and textbook formulas."""

import equinox as eqx
import gpjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.filters import ensemble
from gpssm.gp import RBF, Identity, Linear, Matern52, SparseGP, Zero
from gpssm.gp.sparse import jitter_for, standard_normal_kl
from gpssm.models.emission import LinearEmission
from gpssm.models.gpssm import Transition

LENGTHSCALE, VARIANCE = np.array([0.9, 1.3]), 1.6


def rbf(x, z, lengthscale=LENGTHSCALE, variance=VARIANCE):
    return variance * np.exp(-0.5 * np.sum(((x[:, None] - z[None]) / lengthscale) ** 2, axis=2))


def grid(n=4):
    """Inputs far enough apart that K_zz is well conditioned."""
    axis = np.linspace(-2, 2, n)
    return np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)


def lower(n, seed=0):
    rng = np.random.default_rng(seed)
    return np.tril(0.3 * rng.normal(size=(n, n)), -1) + np.diag(rng.uniform(0.2, 1.5, n))


def jittered(k):
    return k + jitter_for(jnp.dtype("float64")) * np.mean(np.diag(k)) * np.eye(len(k))


def random_gp(seed=0):
    z = grid()
    rng = np.random.default_rng(seed)
    return SparseGP(RBF(LENGTHSCALE, VARIANCE), z, rng.normal(size=len(z)), lower(len(z), seed))


@jax.jit
def marginal(f, x):
    """Mean and variance."""
    return jax.tree.leaves(f.marginal()(x))


@jax.jit
def prior(f, x):
    return f.prior()(x)


@jax.jit
def given(f, eps, x):
    prior = f.prior()
    return jax.tree.leaves(jax.vmap(lambda e: prior.given(f.draw(prior, e))(x))(eps))


def test_all_data_as_inducing_points_is_exact_regression():
    """Oracle: GP regression in NumPy. With Z = X and the exact q(u) nothing is lost but the jitter."""
    rng = np.random.default_rng(0)
    x, test, noise = grid(), rng.uniform(-2.5, 2.5, (30, 2)), 0.05
    y = np.sin(x[:, 0]) * x[:, 1] + np.sqrt(noise) * rng.normal(size=len(x))
    k, cross = rbf(x, x), rbf(test, x)
    solved = np.linalg.inv(k + noise * np.eye(len(x)))
    mean, var = cross @ solved @ y, VARIANCE - np.sum((cross @ solved) * cross, axis=1)

    q_mean, q_cov = k @ solved @ y, k - k @ solved @ k
    whitener = np.linalg.inv(np.linalg.cholesky(jittered(k)))
    q_chol = np.linalg.cholesky(whitener @ q_cov @ whitener.T)
    gp = SparseGP(RBF(LENGTHSCALE, VARIANCE), x, whitener @ q_mean, q_chol)
    predicted_mean, predicted_var = marginal(gp, jnp.asarray(test))
    np.testing.assert_allclose(predicted_mean, mean, atol=2e-5)
    np.testing.assert_allclose(predicted_var, var, atol=2e-5)


def test_marginal_matches_the_textbook():
    """Oracle: k K^{-1} m_u and k_xx - k K^{-1} (K - S_u) K^{-1} k, with inverses, in NumPy."""
    gp, test = random_gp(), np.random.default_rng(1).normal(size=(20, 2))
    z = gp.inducing_inputs
    chol = np.linalg.cholesky(jittered(rbf(z, z)))
    u_mean, u_cov = chol @ gp.q_mean, chol @ gp.q_chol @ gp.q_chol.T @ chol.T
    weights = rbf(test, z) @ np.linalg.inv(chol @ chol.T)
    mean, var = marginal(gp, jnp.asarray(test))
    np.testing.assert_allclose(mean, weights @ u_mean, atol=1e-8)
    expected = VARIANCE - np.sum((weights @ (chol @ chol.T - u_cov)) * weights, axis=1)
    np.testing.assert_allclose(var, expected, atol=1e-8)


def test_prior_far_from_the_inducing_inputs():
    """Oracle: far away f is its prior, near an inducing input q(u) decides."""
    gp = random_gp()
    mean, var = marginal(gp, jnp.full((1, 2), 50.0))
    np.testing.assert_allclose(mean, 0.0, atol=1e-12)
    np.testing.assert_allclose(var, VARIANCE, rtol=1e-12)


def test_draws_have_the_moments_of_q():
    """Oracle: m and S S^T. The identity as eps gives the columns of S."""
    gp = random_gp()
    eye = jnp.eye(len(gp.q_mean))
    columns = jax.vmap(gp.draw)(eye) - gp.draw(jnp.zeros(len(gp.q_mean)))
    np.testing.assert_allclose(gp.draw(jnp.zeros(len(gp.q_mean))), gp.q_mean, atol=1e-14)
    np.testing.assert_allclose(columns.T @ columns, gp.q_chol @ gp.q_chol.T, atol=1e-12)


def test_variance_is_never_negative():
    """At the inducing inputs, given u, f is known: only rounding and jitter are left."""
    gp = SparseGP(RBF(3.0, 1.0), grid(), np.zeros(16), 1e-6 * np.eye(16))
    for conditional in (prior, marginal):
        _, var = conditional(gp, jnp.asarray(grid()))
        assert (np.asarray(var) > 0).all()
        assert (np.asarray(var) < 1e-4).all()


# --- divergences --------------------------------------------------------------------------


def gaussian_kl(mean, cov, prior_cov):
    inverse = np.linalg.inv(prior_cov)
    log_dets = np.linalg.slogdet(prior_cov)[1] - np.linalg.slogdet(cov)[1]
    return 0.5 * (np.trace(inverse @ cov) + mean @ inverse @ mean - len(mean) + log_dets)


def test_kl_matches_the_closed_form_over_u():
    """Oracle: KL[N(L m, L S S^T L^T) || N(0, K_zz)] in NumPy: whitening must not change it."""
    gp = random_gp()
    chol = np.linalg.cholesky(jittered(rbf(gp.inducing_inputs, gp.inducing_inputs)))
    u_mean, u_cov = chol @ gp.q_mean, chol @ gp.q_chol @ gp.q_chol.T @ chol.T
    np.testing.assert_allclose(gp.kl(), gaussian_kl(u_mean, u_cov, chol @ chol.T), rtol=1e-8)


def test_kl_of_the_prior_is_zero():
    np.testing.assert_allclose(standard_normal_kl(jnp.zeros(4), jnp.eye(4)), 0.0, atol=1e-15)


def test_kl_matches_gpjax():
    """Oracle: GPJax's whitened family; and its unwhitened one, given u = L v."""
    gp = random_gp()
    gp_prior = gpjax.gps.Prior(
        mean_function=gpjax.mean_functions.Zero(),
        kernel=gpjax.kernels.RBF(lengthscale=jnp.asarray(LENGTHSCALE), variance=jnp.asarray(VARIANCE)),
    )
    joint = gp_prior * gpjax.likelihoods.Gaussian()
    families = gpjax.variational_families
    z, q_mean, q_chol = (jnp.asarray(a) for a in (gp.inducing_inputs, gp.q_mean[:, None], gp.q_chol))
    whitened = families.WhitenedVariationalGaussian(joint, z, q_mean, q_chol)
    np.testing.assert_allclose(gp.kl(), whitened.prior_kl(), rtol=1e-12)
    chol = jnp.linalg.cholesky(jnp.asarray(jittered(rbf(gp.inducing_inputs, gp.inducing_inputs))))
    plain = families.VariationalGaussian(joint, z, chol @ q_mean, chol @ q_chol)
    np.testing.assert_allclose(gp.kl(), plain.prior_kl(), rtol=1e-4)


# --- the transition: one GP per state dimension ------------------------------------------------


def transition(mean=None, seed=0):
    """Two states, one input."""
    rng = np.random.default_rng(seed)
    m = 6
    kernel = RBF(rng.uniform(0.8, 1.5, (2, 3)), np.array([0.7, 1.9]))
    gp = SparseGP(kernel, rng.normal(size=(2, m, 3)), rng.normal(size=(2, m)), np.stack([lower(m, 1), lower(m, 2)]))
    return Transition(Zero(2) if mean is None else mean, gp)


def one_dimension(f, d):
    return jax.tree.map(lambda leaf: leaf[d], f.gp)


def test_given_weights_reproduce_the_conditional_of_the_textbook():
    """Oracle: f | u has mean m(x) + k K^{-1} u and variance k_xx - k K^{-1} k, in NumPy."""
    rng = np.random.default_rng(3)
    linear = Linear(rng.normal(size=(2, 3)), rng.normal(size=2))
    f, x, eps = transition(linear), rng.normal(size=(15, 3)), rng.normal(size=(2, 6))
    mean, var = (part[0] for part in given(f, jnp.asarray(eps)[None], jnp.asarray(x)))
    assert mean.shape == var.shape == (15, 2)
    for d in range(2):
        gp = one_dimension(f, d)
        z, scales = gp.inducing_inputs, (gp.kernel.lengthscale, gp.kernel.variance)
        k = jittered(rbf(z, z, *scales))
        u = np.linalg.cholesky(k) @ (gp.q_mean + gp.q_chol @ eps[d])
        weights = rbf(x, z, *scales) @ np.linalg.inv(k)
        linear_part = x @ linear.weight[d] + linear.bias[d]
        np.testing.assert_allclose(mean[:, d], linear_part + weights @ u, atol=1e-8)
        expected = gp.kernel.variance - np.sum(weights * rbf(x, z, *scales), axis=1)
        np.testing.assert_allclose(var[:, d], expected, atol=1e-8)


def test_state_dimensions_are_independent_gps():
    """Oracle: each dimension alone."""
    f, x = transition(), jnp.asarray(np.random.default_rng(4).normal(size=(10, 3)))
    mean, var = marginal(f, x)
    for d in range(2):
        alone_mean, alone_var = marginal(one_dimension(f, d), x)
        np.testing.assert_allclose(mean[:, d], alone_mean, atol=1e-12)
        np.testing.assert_allclose(var[:, d], alone_var, atol=1e-12)
    np.testing.assert_allclose(f.kl(), one_dimension(f, 0).kl() + one_dimension(f, 1).kl(), rtol=1e-12)


def test_the_marginal_is_the_average_over_draws_of_u():
    """Oracle: 4000 draws. E[f] and Var[f] = E[Var[f|u]] + Var[E[f|u]], within five standard errors."""
    f = transition(Identity(2))
    x, draws = jnp.asarray(np.random.default_rng(5).normal(size=(5, 3))), 4000
    means, variances = given(f, jax.random.normal(jax.random.key(0), (draws, 2, 6)), x)
    mean, var = marginal(f, x)
    between = np.var(means, axis=0, ddof=1)
    assert (np.abs(np.mean(means, axis=0) - mean) < 5 * np.sqrt(between / draws)).all()
    assert (np.abs(np.mean(variances, axis=0) + between - var) < 5 * between * np.sqrt(2 / draws)).all()


def test_side_by_side_is_one_sample_of_u_per_row():
    """Oracle: the same, one row at a time."""
    rng = np.random.default_rng(7)
    f = transition(Linear(rng.normal(size=(2, 3)), rng.normal(size=2)))
    x, eps = jnp.asarray(rng.normal(size=(4, 5, 3))), jnp.asarray(rng.normal(size=(4, 2, 6)))

    @jax.jit
    def together(f, x, eps):
        prior = f.prior()
        return jax.tree.leaves(prior.side_by_side(x, jax.vmap(lambda e: f.draw(prior, e))(eps)))

    mean, var = together(f, x, eps)
    assert mean.shape == var.shape == (4, 5, 2)
    for i in range(4):
        alone_mean, alone_var = given(f, eps[i : i + 1], x[i])
        np.testing.assert_allclose(mean[i], alone_mean[0], atol=1e-11)
        np.testing.assert_allclose(var[i], alone_var[0], atol=1e-11)


def test_gradients_of_the_marginal_are_finite_at_the_inducing_inputs():
    f = transition()
    f = eqx.tree_at(lambda t: t.gp.kernel, f, Matern52(f.gp.kernel.lengthscale, f.gp.kernel.variance))
    f = jax.tree.map(jnp.asarray, f)
    x = f.gp.inducing_inputs[0]

    def total(t, x):
        mean, var = jax.tree.leaves(t.marginal()(x))
        return jnp.sum(mean) + jnp.sum(jnp.log(var))

    gradients = jax.jit(jax.grad(total, argnums=(0, 1)))(f, x)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


# --- compiled against eager ----------------------------------------------------------------


def test_compiled_equals_eager():
    f, x = transition(), jnp.asarray(np.random.default_rng(6).normal(size=(50, 3)))
    for compiled, eager in zip(marginal(f, x), jax.tree.leaves(f.marginal()(x)), strict=True):
        np.testing.assert_allclose(compiled, eager, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rows", [16_384, 16_385, 20_000, 40_000])
def test_compiler_reduces_large_ensembles_correctly(rows):
    """Oracle: eager evaluation and NumPy.

    jaxlib 0.10.2 returns wrong numbers for a vmapped matrix-vector product that is followed by a
    reduction over more than 16384 rows. If this test fails, use another version of jax.
    """
    rng = np.random.default_rng(0)
    matrix, x = rng.normal(size=(3, 3)), np.arange(rows)[:, None] + rng.normal(size=(rows, 3))

    def reduce(matrix, x):
        squares = jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2))(x)
        return squares, jnp.mean(jax.vmap(lambda row: matrix @ row)(x), axis=0), jnp.sum(squares)

    product = x @ matrix.T
    expected = np.sum(product**2, axis=1), np.mean(product, axis=0), np.sum(product**2)
    arguments = jnp.asarray(matrix), jnp.asarray(x)
    for result in (jax.jit(reduce)(*arguments), reduce(*arguments)):
        for value, target in zip(result, expected, strict=True):
            np.testing.assert_allclose(value, target, rtol=1e-9, atol=1e-9 * np.max(np.abs(target)))


def test_moments_of_a_large_ensemble_compiled():
    """Oracle: numpy.cov, for the moments of 20000 members that the compiler may fuse with what made them."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(20_000, 3)) * [1.0, 2.0, 0.5] + 3.0
    emission = LinearEmission(rng.normal(size=(2, 3)), rng.normal(size=2))
    mean, cov = jax.jit(lambda e, x: ensemble.sample_moments(e(x)))(emission, jnp.asarray(x))
    y = x @ emission.weight.T + emission.bias
    np.testing.assert_allclose(mean, y.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(cov, np.cov(y.T), rtol=1e-9)

    f = transition()
    members = jnp.asarray(rng.normal(size=(20_000, 3)))
    compiled = jax.jit(lambda t, x: jnp.mean(t.marginal()(x)[0], axis=0))(f, members)
    half = np.stack([np.asarray(marginal(f, members[i : i + 5000])[0]).mean(axis=0) for i in range(0, 20_000, 5000)])
    np.testing.assert_allclose(compiled, half.mean(axis=0), rtol=1e-9, atol=1e-12)
