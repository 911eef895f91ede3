"""The exponential of the hot loop against NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.numerics.fastmath import exp


def test_matches_numpy_to_rounding():
    """Oracle: numpy.exp, over the whole range and densely where kernels live."""
    x = np.concatenate([np.linspace(-699, 699, 40_001), np.linspace(-20, 1, 40_001), [0.0, -0.0, 1e-300, -1e-17]])
    for function in (jax.jit(exp), exp):
        np.testing.assert_allclose(function(jnp.asarray(x)), np.exp(x), rtol=1e-15)
    assert float(exp(jnp.asarray(0.0))) == 1.0


def test_arguments_beyond_the_range_are_clipped():
    limits = np.asarray(jax.jit(exp)(jnp.asarray([-np.inf, -1e9, -800.0, 800.0, 1e9, np.inf])))
    assert np.isfinite(limits).all()
    assert (limits[:3] < 1e-300).all()
    assert (limits[3:] > 1e300).all()


def test_nan_stays_nan():
    assert np.isnan(exp(jnp.asarray([np.nan, 1.0])))[0]


def test_is_its_own_derivative():
    """Oracle: numpy.exp, to third order, forward and backward."""
    x = jnp.asarray(0.7)
    expected = np.exp(0.7)
    np.testing.assert_allclose(jax.grad(exp)(x), expected, rtol=1e-15)
    np.testing.assert_allclose(jax.grad(jax.grad(jax.grad(exp)))(x), expected, rtol=1e-15)
    np.testing.assert_allclose(jax.jvp(exp, (x,), (jnp.asarray(3.0),))[1], 3 * expected, rtol=1e-15)
    batch = jnp.linspace(-3, 3, 7)
    np.testing.assert_allclose(jax.vmap(jax.grad(exp))(batch), np.exp(batch), rtol=1e-15)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_precision_is_kept(dtype):
    assert exp(jnp.ones(3, dtype)).dtype == dtype
    np.testing.assert_allclose(exp(jnp.ones(3, dtype)), np.e, rtol=3e-7)
