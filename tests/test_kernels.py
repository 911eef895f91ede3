"""Kernels against the formulas of Rasmussen and Williams (2006, chapter 4), with explicit differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from gpssm.gp import RBF, Matern32, Matern52
from gpssm.numerics.parameters import parameters, with_values


def distances(x, z, lengthscale):
    return np.sqrt(np.sum(((x[:, None, :] - z[None, :, :]) / lengthscale) ** 2, axis=2))


def rbf(x, z, lengthscale, variance):
    return variance * np.exp(-0.5 * distances(x, z, lengthscale) ** 2)


def matern32(x, z, lengthscale, variance):
    s = np.sqrt(3.0) * distances(x, z, lengthscale)
    return variance * (1 + s) * np.exp(-s)


def matern52(x, z, lengthscale, variance):
    s = np.sqrt(5.0) * distances(x, z, lengthscale)
    return variance * (1 + s + s**2 / 3) * np.exp(-s)


STATIONARY = [(RBF, rbf), (Matern32, matern32), (Matern52, matern52)]
KERNELS = {
    "rbf": RBF(0.8, 1.7),
    "matern32": Matern32(0.8, 1.7),
    "matern52": Matern52(0.8, 1.7),
    "sum": RBF(0.5, 2.0) + Matern32(1.5, 0.3),
    "product": RBF(0.9, 2.0) * Matern52(1.5, 0.3),
    "nested": (RBF(0.5, 2.0) + Matern32(1.5, 0.3)) * Matern52(2.0, 0.7) + RBF(3.0, 0.1),
}


def points(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


# All tests use inputs of the same shapes, so that every kernel is compiled once.
X, Z = np.vstack([points(10, 2), points(2, 2)]), points(4, 2, seed=1)


@jax.jit
def evaluate(kernel, x, z):
    return {"xz": kernel(x, z), "zx": kernel(z, x), "xx": kernel(x, x), "at": kernel.at(z)(x), "diag": kernel.diag(x)}


def on_points(kernel, x=X, z=Z):
    return jax.tree.map(np.asarray, evaluate(kernel, jnp.asarray(x), jnp.asarray(z)))


@pytest.mark.parametrize(("kind", "formula"), STATIONARY)
@pytest.mark.parametrize("d", [1, 2, 3])
def test_matches_the_textbook(kind, formula, d):
    """Oracle: the formula in NumPy, with one length scale per input."""
    x, z = points(12, d), points(4, d, seed=1)
    lengthscale = np.linspace(0.4, 2.0, d)
    k = on_points(kind(lengthscale, 1.7), x, z)["xz"]
    assert k.shape == (12, 4)
    np.testing.assert_allclose(k, formula(x, z, lengthscale, 1.7), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("kind", "formula"), STATIONARY)
def test_single_precision(kind, formula):
    """Oracle: the formula in double precision."""
    kernel = kind(jnp.asarray([0.5, 1.0], jnp.float32), jnp.asarray(1.7, jnp.float32))
    k = on_points(kernel, X.astype(np.float32), Z.astype(np.float32))["xz"]
    assert k.dtype == np.float32
    np.testing.assert_allclose(k, formula(X, Z, np.array([0.5, 1.0]), 1.7), rtol=2e-4, atol=1e-6)


def test_sum_and_product_match_the_textbook():
    """Oracle: sums and products of the formulas in NumPy."""
    a, b = rbf(X, Z, 0.5, 2.0), matern32(X, Z, 1.5, 0.3)
    np.testing.assert_allclose(on_points(KERNELS["sum"])["xz"], a + b, rtol=1e-11)
    c, d = rbf(X, Z, 0.9, 2.0), matern52(X, Z, 1.5, 0.3)
    np.testing.assert_allclose(on_points(KERNELS["product"])["xz"], c * d, rtol=1e-11)
    e, f = matern52(X, Z, 2.0, 0.7), rbf(X, Z, 3.0, 0.1)
    np.testing.assert_allclose(on_points(KERNELS["nested"])["xz"], (a + b) * e + f, rtol=1e-11)


@pytest.mark.parametrize("name", KERNELS)
def test_at_is_the_kernel_with_its_inducing_inputs_fixed(name):
    """Oracle: the kernel with its arguments exchanged, inducing inputs first."""
    values = on_points(KERNELS[name])
    assert values["at"].shape == (4, 12)
    np.testing.assert_allclose(values["at"], values["zx"], rtol=1e-11)


@pytest.mark.parametrize("name", KERNELS)
def test_diag_is_the_diagonal_of_the_matrix(name):
    values = on_points(KERNELS[name])
    assert values["diag"].shape == (12,)
    np.testing.assert_allclose(values["diag"], np.diagonal(values["xx"]), rtol=1e-9)


@pytest.mark.parametrize("name", KERNELS)
def test_positive_semi_definite(name):
    """Also where two inputs coincide."""
    gram = on_points(KERNELS[name])["xx"]
    np.testing.assert_allclose(gram, gram.T, atol=1e-12)
    assert np.linalg.eigvalsh(gram).min() > -1e-9 * np.trace(gram)


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_are_finite_where_inputs_coincide(name):
    """The distance has no derivative at zero; the kernels do: zero with respect to x at x = z."""
    z = jnp.asarray(Z)

    def total(kernel, x, z):
        return jnp.sum(jnp.diagonal(kernel(x, z)))

    kernel = jax.tree.map(jnp.asarray, KERNELS[name])
    by_kernel, by_x, by_z = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(kernel, z, z)
    assert np.isfinite(ravel_pytree((by_kernel, by_x, by_z))[0]).all()
    np.testing.assert_allclose(by_x, 0.0, atol=1e-6)
    np.testing.assert_allclose(by_z, 0.0, atol=1e-6)


@pytest.mark.parametrize(("kind", "formula"), STATIONARY)
def test_gradients_match_the_textbook(kind, formula, central_differences):
    """Oracle: central differences of the formula in NumPy."""
    tree = {"x": points(4, 2), "z": points(3, 2, seed=1), "lengthscale": np.array([0.6, 1.4]), "variance": 1.7}
    weights = points(4, 3, seed=2)

    def function(t):
        return jnp.sum(weights * kind(t["lengthscale"], t["variance"])(t["x"], t["z"]))

    def oracle(t):
        t = jax.tree.map(np.asarray, t)
        return np.sum(weights * formula(t["x"], t["z"], t["lengthscale"], t["variance"]))

    tree = jax.tree.map(jnp.asarray, tree)
    gradient = ravel_pytree(jax.jit(jax.grad(function))(tree))[0]
    np.testing.assert_allclose(gradient, central_differences(oracle, tree), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", KERNELS)
def test_expand_gives_a_length_scale_per_input_and_changes_nothing_else(name):
    """Oracle: the kernel before it was expanded."""
    expanded = KERNELS[name].expand(2)
    shapes = {p.name.rsplit(".", 1)[-1]: p.value.shape for p in parameters(expanded)}
    assert shapes == {"lengthscale": (2,), "variance": ()}
    np.testing.assert_allclose(on_points(expanded)["xz"], on_points(KERNELS[name])["xz"], rtol=1e-11)
    np.testing.assert_array_equal(on_points(expanded.expand(2))["xz"], on_points(expanded)["xz"])


def test_length_scales_of_an_expanded_kernel_act_on_their_own_input():
    """Oracle: the formula in NumPy; an input of infinite length scale does not matter."""
    kernel = RBF(0.7, 2.0).expand(2) * Matern32(1.0, 1.0).expand(2)
    kernel = with_values(kernel, {"left.lengthscale": np.array([0.5, 3.0]), "right.lengthscale": np.array([1e8, 0.9])})
    expected = rbf(X, Z, np.array([0.5, 3.0]), 2.0) * matern32(X[:, 1:], Z[:, 1:], 0.9, 1.0)
    np.testing.assert_allclose(on_points(kernel)["xz"], expected, rtol=1e-9)
