"""The augmented state, a Gaussian over state and weights of f, against exact answers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.filters import augmented, kalman
from gpssm.filters.augmented import AugmentedState
from gpssm.gp.basis import Basis, Expansion
from gpssm.gp.kernels import RBF
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.online import paths
from gpssm.plumbing.precision import double_precision

NDArray = np.ndarray


def _random_cov(rng: np.random.Generator, n: int) -> NDArray:
    a = rng.normal(size=(n, n))
    return np.asarray(a @ a.T / n + 0.1 * np.eye(n))


@pytest.mark.parametrize(("count", "dx"), [(4, 1), (20, 2), (50, 4), (21, 3), (20, 12), (4, 40)])
def test_members_have_exact_moments(count: int, dx: int) -> None:
    points = augmented.members(count, dx)
    np.testing.assert_allclose(points.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(points.T @ points / len(points), np.eye(dx), atol=1e-12)


@double_precision
def _linear_problem(
    rng: np.random.Generator, dx: int, dc: int, num: int
) -> tuple[AugmentedState, Basis, NDArray, NDArray]:
    """An augmented state of which only the linear weights matter, and those are known: x' = A x + B c + b."""
    d = dx + dc
    weight, bias = 0.3 * rng.normal(size=(dx, d)), rng.normal(size=dx)
    rows = np.hstack([np.zeros((dx, num)), weight, bias[:, None]])
    size = rows.size
    cov = np.zeros((dx + size, dx + size))
    cov[:dx, :dx] = _random_cov(rng, dx)
    basis = Basis(jnp.zeros((num, d)), jnp.zeros(num), jnp.zeros(d), jnp.ones(d))
    of = AugmentedState(jnp.concatenate([rng.normal(size=dx), rows.ravel()]), jnp.asarray(cov))
    return of, basis, weight + np.eye(dx, d), bias


@pytest.mark.parametrize("missing", [(), (0,), (0, 1, 2)])
@double_precision
def test_known_linear_f_is_the_kalman_filter(missing: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    dx, dc, dy = 2, 1, 3
    of, basis, weight, bias = _linear_problem(rng, dx, dc, num=4)
    c, q, r = jnp.asarray(rng.normal(size=dc)), np.array([0.3, 0.2]), np.array([0.1, 0.5, 0.2])
    emission = LinearEmission(rng.normal(size=(dy, dx)), rng.normal(size=dy))
    y = rng.normal(size=dy)
    y[list(missing)] = np.nan
    kernel = RBF(np.ones(dx + dc))
    points = jnp.asarray(augmented.members(20, dx))

    @jax.jit
    def step(y: jax.Array) -> tuple[augmented.Predicted, augmented.Innovation, AugmentedState]:
        factor, f = augmented.state_factor(of, dx), Expansion.of(basis, kernel, jnp.zeros(dx))
        ahead = augmented.predict(of, factor, f, jnp.asarray(q), c, points)
        found = augmented.innovate(ahead, augmented.observe(emission, ahead, y, jnp.asarray(r), points))
        return ahead, found, augmented.update(of, ahead, found)

    predicted, innovation, updated = step(jnp.asarray(y))

    system = kalman.System(
        jnp.asarray(weight[:, :dx]), jnp.diag(q), emission.matrix, jnp.asarray(emission.bias), jnp.diag(r)
    )
    start = kalman.Gaussian(of.mean[:dx], of.cov[:dx, :dx])
    ahead = kalman.predict(start, system, jnp.asarray(weight[:, dx:] @ c + bias))
    exact, score = kalman.update(ahead, system, jnp.asarray(y))
    np.testing.assert_allclose(predicted.mean, ahead.mean, rtol=1e-6)
    np.testing.assert_allclose(predicted.cov, ahead.cov, rtol=1e-6)
    np.testing.assert_allclose(predicted.slope, weight[:, :dx], rtol=1e-6)
    np.testing.assert_allclose(updated.mean[:dx], exact.mean, rtol=1e-6)
    np.testing.assert_allclose(updated.cov[:dx, :dx], exact.cov, rtol=1e-6)
    np.testing.assert_allclose(innovation.log_density, score, rtol=1e-6)


@double_precision
def test_weights_are_learned_as_in_bayesian_linear_regression() -> None:
    """States that are seen without noise: y_t - x_{t-1} is a regression on h(x_{t-1}), with its textbook posterior."""
    rng = np.random.default_rng(8)
    num, q = 3, 0.2
    z = np.array([[-1.0], [0.0], [1.5]])
    basis = Basis(jnp.asarray(z), jnp.ones(num), jnp.asarray([0.2]), jnp.asarray([2.0]))
    f = Expansion.of(basis, RBF(np.array([0.8])), jnp.zeros(1))
    prior = _random_cov(rng, num + 2)
    states = rng.normal(size=30)
    cov = np.zeros((num + 3, num + 3))
    cov[1:, 1:], cov[0, 0] = prior, 1e-12
    of = AugmentedState(jnp.concatenate([states[:1], np.zeros(num + 2)]), jnp.asarray(cov))
    emission = LinearEmission(np.eye(1), np.zeros(1))
    points = jnp.asarray(augmented.members(8, 1))

    @jax.jit
    def step(of: AugmentedState, y: jax.Array) -> AugmentedState:
        factor = augmented.state_factor(of, 1)
        predicted = augmented.predict(of, factor, f, jnp.asarray([q]), jnp.zeros(0), points)
        seen = augmented.observe(emission, predicted, y[None], jnp.asarray([1e-10]), points)
        return augmented.update(of, predicted, augmented.innovate(predicted, seen))

    for y in states[1:]:
        of = step(of, jnp.asarray(y))
    h = np.asarray(f.features(jnp.asarray(states[:-1, None]))[0])
    exact = np.linalg.inv(np.linalg.inv(prior) + h.T @ h / q)
    np.testing.assert_allclose(of.cov[1:, 1:], exact, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(of.mean[1:], exact @ h.T @ (np.diff(states) / q), rtol=1e-4, atol=1e-6)


@double_precision
def test_an_inserted_inducing_input_changes_nothing_that_is_known() -> None:
    """q over everything else is untouched, the new u is the GP's prediction, and f stays where it was."""
    rng = np.random.default_rng(4)
    num, dx = 5, 2
    used = jnp.asarray([1.0, 1.0, 1.0, 0.0, 0.0])
    basis = Basis(jnp.asarray(rng.normal(size=(num, dx))), used, jnp.zeros(dx), jnp.ones(dx))
    kernel, amplitude = RBF(np.array([1.0, 2.0])), jnp.asarray([0.7, 2.0])
    f = Expansion.of(basis, kernel, amplitude)
    width = num + dx + 1
    cov = _random_cov(rng, dx + dx * width)
    of = AugmentedState(jnp.asarray(rng.normal(size=dx + dx * width)), jnp.asarray(cov))
    s = jnp.asarray([0.4, -0.3])

    @jax.jit
    def place() -> tuple[AugmentedState, Expansion]:
        return f.placed(of, s, 0.0, jnp.asarray(True), lambda joining: augmented.insert(of, dx, joining, amplitude))

    new, wider = place()
    np.testing.assert_array_equal(wider.basis.used, [1.0, 1.0, 1.0, 1.0, 0.0])

    others = np.array([i for i in range(dx + dx * width) if i not in (dx + 3, dx + width + 3)])
    np.testing.assert_array_equal(np.asarray(new.mean)[others], np.asarray(of.mean)[others])
    np.testing.assert_array_equal(np.asarray(new.cov)[np.ix_(others, others)], cov[np.ix_(others, others)])
    assert np.linalg.eigvalsh(np.asarray(new.cov)).min() > 0

    h_new, open_new = wider.features(s[None])
    h_old, open_old = f.features(s[None])
    for d in range(dx):
        rows = slice(dx + d * width, dx + (d + 1) * width)
        np.testing.assert_allclose(h_new[0] @ new.mean[rows], h_old[0] @ of.mean[rows], rtol=1e-4)
        before = h_old[0] @ of.cov[rows, rows] @ h_old[0] + amplitude[d] * open_old[0]
        after = h_new[0] @ new.cov[rows, rows] @ h_new[0] + amplitude[d] * open_new[0]
        np.testing.assert_allclose(after, before, rtol=1e-3)


@double_precision
def test_paths_that_leave_give_way_to_those_that_stay() -> None:
    low, high = jnp.array([-1.0]), jnp.array([1.0])
    leaves = jnp.arange(40) % 4 == 0  # at the third of five steps
    states = jnp.where((jnp.arange(5)[:, None] == 2) & leaves, 7.0, 0.5)[:, :, None]
    chosen = np.asarray(paths.stay(jax.random.key(0), states, low, high))
    np.testing.assert_array_equal(chosen[~leaves], np.arange(40)[~leaves])
    assert not np.asarray(leaves)[chosen].any()
    assert len(set(chosen[np.asarray(leaves)])) > 3  # not all the same one


@double_precision
def test_where_all_paths_leave_those_that_stay_longest_are_kept() -> None:
    low, high = jnp.array([-1.0, -1.0]), jnp.array([1.0, 1.0])
    steps = jnp.arange(10)  # path i leaves after i steps, by its second state
    states = jnp.stack([jnp.zeros((20, 10)), jnp.where(jnp.arange(20)[:, None] >= steps, -3.0, 0.0)], axis=2)
    np.testing.assert_array_equal(paths.stay(jax.random.key(0), states, low, high), 9)


@double_precision
def test_forgetting_is_a_regression_with_lighter_rows() -> None:
    """With a share of 1 / t forgotten after sample t, the first of n samples counts as 1 / n of the last, and so on."""
    rng = np.random.default_rng(4)
    rows, noise, n = rng.normal(size=(12, 3)), 0.3, 12
    cov, no_prior = 1e6 * np.eye(3), jnp.full(3, jnp.inf)
    for t, row in enumerate(rows, start=1):
        gain = cov @ row / (row @ cov @ row + noise)
        of = AugmentedState(jnp.zeros(3), jnp.asarray(cov - np.outer(gain, row @ cov)))
        cov = np.asarray(of.cov if t == n else augmented.forget(of, no_prior, jnp.asarray(1.0 / t)).cov)
    weights = np.arange(1, n + 1) / n
    np.testing.assert_allclose(np.linalg.inv(cov), (rows.T * weights) @ rows / noise, rtol=1e-5, atol=1e-6)


@double_precision
def test_forgetting_ends_at_the_prior() -> None:
    rng = np.random.default_rng(5)
    of = AugmentedState(jnp.asarray(rng.normal(size=5)), jnp.asarray(_random_cov(rng, 5)))
    variance = np.diagonal(of.cov)[2:]
    prior = jnp.asarray(variance * [1.0, 1.1, 9.0])
    wider = augmented.forget(of, prior, jnp.asarray(0.5))
    np.testing.assert_allclose(np.diagonal(wider.cov)[2:], variance * [1.0, 1.1, 1.5])
    np.testing.assert_array_equal(wider.cov[:2, :2], of.cov[:2, :2])  # the state is known as before
    assert np.linalg.eigvalsh(wider.cov).min() > 0
    np.testing.assert_array_equal(augmented.forget(of, 0.5 * prior, jnp.asarray(0.0)).cov, of.cov)
    np.testing.assert_array_equal(wider.mean, of.mean)


@double_precision
def test_a_linear_function_is_observed_like_its_matrix() -> None:
    rng = np.random.default_rng(9)
    matrix = rng.normal(size=(3, 2))
    function = FunctionEmission(lambda x: x @ matrix.T, np.zeros(2), np.ones(2), np.zeros(3), np.ones(3))
    predicted = augmented.Predicted(
        jnp.asarray(rng.normal(size=2)), jnp.asarray(_random_cov(rng, 2)), jnp.zeros((2, 4)), jnp.eye(2), jnp.zeros(())
    )
    points, y, r = jnp.asarray(augmented.members(20, 2)), jnp.asarray(rng.normal(size=3)), jnp.full(3, 0.2)
    a = augmented.observe(LinearEmission(matrix, np.zeros(3)), predicted, y, r, points)
    b = augmented.observe(function, predicted, y, r, points)
    for part_a, part_b in zip(a, b, strict=True):
        np.testing.assert_allclose(part_a, part_b, rtol=1e-8)


def test_nothing_is_differentiated_into_nan() -> None:
    """At an inducing input, and with slots that are not in use."""
    basis = Basis(jnp.zeros((3, 1)), jnp.asarray([1.0, 0.0, 0.0]), jnp.zeros(1), jnp.ones(1))

    def inverse(lengthscale: jax.Array) -> jax.Array:
        return jnp.sum(Expansion.of(basis, RBF(lengthscale[None]), jnp.ones(1)).inverse)

    assert np.isfinite(jax.grad(inverse)(jnp.asarray(1.0)))
