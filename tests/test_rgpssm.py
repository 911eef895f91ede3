"""RGPSSM: tangents, change of prior, evidence and choice of inducing inputs, each against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np

from gpssm.filters.augmented import AugmentedState
from gpssm.gp.basis import Basis, Expansion
from gpssm.gp.kernels import RBF
from gpssm.online import rgpssm
from gpssm.online.rgpssm import RGPSSMHyper
from gpssm.plumbing.precision import double_precision

NDArray = np.ndarray
OLD = RGPSSMHyper(*(jnp.log(jnp.asarray([value])) for value in (0.8, 1.3, 0.1, 0.1)))
NEW = OLD._replace(lengthscale=jnp.log(jnp.asarray([1.1])), amplitude=jnp.log(jnp.asarray([0.7])))


def random_cov(rng: np.random.Generator, size: int) -> NDArray:
    root = rng.normal(size=(size, size + 3))
    return root @ root.T / size


@double_precision
def test_the_joint_is_moved_by_its_tangent() -> None:
    """Two outputs with one past each and an input, against the Jacobian of everything in everything."""
    rng = np.random.default_rng(0)
    num, dx, rows, dc = 4, 4, 2, 1
    width = num + dx + dc + 1
    basis = Basis(
        jnp.asarray(rng.normal(size=(num, dx + dc))), jnp.asarray([1.0, 1, 1, 0]), jnp.zeros(dx + dc), jnp.ones(dx + dc)
    )
    kernel = RBF(np.linspace(1.0, 2.0, dx + dc))
    of = AugmentedState(
        jnp.asarray(rng.normal(size=dx + rows * width)), jnp.asarray(random_cov(rng, dx + rows * width))
    )
    amplitude, noise, c = jnp.asarray([0.5, 2.0]), jnp.asarray([0.1, 0.2]), jnp.asarray([0.3])
    f = Expansion.of(basis, kernel, amplitude)

    def move(both: jax.Array) -> jax.Array:
        x, weights = both[:dx], both[dx:].reshape(rows, width)
        h = f.features(jnp.concatenate([x, c])[None])[0][0]
        return jnp.concatenate([x[:rows] + weights @ h, x[: dx - rows]])

    slope = jax.jacfwd(move)(of.mean)
    open_share = f.features(jnp.concatenate([of.mean[:dx], c])[None])[1][0]
    added = jnp.diag(jnp.concatenate([amplitude * open_share + noise, jnp.zeros(dx - rows)]))
    found = rgpssm.linearise(of, f, noise, c)
    np.testing.assert_allclose(found.mean, move(of.mean), rtol=1e-12)
    np.testing.assert_allclose(found.cov, slope @ of.cov @ slope.T + added, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.cross, (slope @ of.cov)[:, dx:], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.slope, slope[:, :dx], rtol=1e-10)


def regression(hyper: RGPSSMHyper, z: NDArray, y: NDArray, noise: float) -> tuple[NDArray, NDArray, float]:
    """Mean and covariance of u = f(z) given y = u + noise, and the log-evidence, by definition."""
    gram = np.exp(hyper.amplitude) * np.exp(-0.5 * ((z[:, None] - z) / np.exp(hyper.lengthscale)) ** 2)
    gram = gram + 1e-6 * np.exp(hyper.amplitude) * np.eye(len(z))
    total = gram + noise * np.eye(len(z))
    gain = np.linalg.solve(total, gram).T
    evidence = -0.5 * (y @ np.linalg.solve(total, y) + np.linalg.slogdet(total)[1])
    return gain @ y, gram - gain @ gram, float(evidence)


@double_precision
def test_another_prior_is_as_if_it_had_been_there_from_the_start() -> None:
    """q(u), what is correlated with it, and the evidence, after a change of length scale and amplitude."""
    rng = np.random.default_rng(1)
    z, noise = np.linspace(-1.5, 1.5, 5), 0.05
    y = np.sin(2 * z) + 0.1 * rng.normal(size=5)
    basis = Basis(jnp.asarray(z[:, None]), jnp.ones(5), jnp.zeros(1), jnp.ones(1))
    mean, cov, old_evidence = regression(OLD, z, y, noise)
    # The state hangs on u: x = a . u + its own noise; the two linear weights know nothing of u.
    a = rng.normal(size=5)
    full = np.zeros((8, 8))
    full[1:6, 1:6], full[0, 1:6], full[1:6, 0] = cov, a @ cov, cov @ a
    full[0, 0], full[6, 6], full[7, 7] = a @ cov @ a + 0.3, 1.0, 2.0
    of = AugmentedState(jnp.asarray(np.concatenate([[a @ mean], mean, [0.4, -0.2]])), jnp.asarray(full))
    found = rgpssm._with_prior(of, basis, OLD, NEW)
    new_mean, new_cov, new_evidence = regression(NEW, z, y, noise)
    np.testing.assert_allclose(found.mean[1:6], new_mean, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.cov[1:6, 1:6], new_cov, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found.mean[0], a @ new_mean, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.cov[0, 0], a @ new_cov @ a + 0.3, rtol=1e-3)
    np.testing.assert_allclose(found.mean[6:], [0.4, -0.2])
    gain = rgpssm._evidence(NEW, of, basis, OLD) - rgpssm._evidence(OLD, of, basis, OLD)
    np.testing.assert_allclose(gain, new_evidence - old_evidence, rtol=1e-3)


@double_precision
def test_the_inducing_input_is_dropped_that_the_others_know() -> None:
    """Next to another one, it says least; and one that moves f says most."""
    z = np.array([-2.0, -1.0, 0.0, 0.02, 1.0, 2.0])
    mean, cov, _ = regression(OLD, z, np.array([0.0, 0.0, 0.0, 0.0, 0.0, 3.0]), noise=0.05)
    basis = Basis(jnp.asarray(z[:, None]), jnp.ones(6), jnp.zeros(1), jnp.ones(1))
    full = np.eye(9)
    full[1:7, 1:7] = cov
    of = AugmentedState(jnp.asarray(np.concatenate([[0.0], mean, [0.0, 0.0]])), jnp.asarray(full))
    f = Expansion.of(basis, RBF(np.exp(OLD.lengthscale)), jnp.exp(OLD.amplitude))
    scores = np.asarray(rgpssm.scores(of, f, dx=1))
    assert set(np.argsort(scores)[:2]) == {2, 3}
    assert np.argmax(scores) == 5
