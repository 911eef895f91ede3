"""The ensemble Kalman filter against the exact filter, cuthbert, and identities that hold for any ensemble."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cuthbertlib import ensemble_kalman as cuthbert
from scipy.stats import multivariate_normal

from gpssm.filters import ensemble, kalman, smoother
from gpssm.filters.small_ensembles import gaspari_cohn
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.models.noise import DiagonalNoise, FullNoise

UPDATES = ("perturbed", "sqrt", "mixture")
MOMENTS = ("sampled", "exact_noise")
ALL = list(itertools.product(MOMENTS, UPDATES))

predict = jax.jit(ensemble.predict, static_argnames=("moments", "inflation"))
draw_noise = jax.jit(ensemble.draw_noise, static_argnums=(1, 2, 3, 4), static_argnames=("kinds", "options", "dtype"))


def key(seed):
    """A key whose generator compiles in a third of the time."""
    return jax.random.key(seed, impl="rbg")


# Part of the noise of the linear systems below is given to the filter as the variance of f.
F_VAR = 0.05


def covariance(rng, n):
    root = rng.normal(size=(n, n))
    return root @ root.T / n + 0.2 * np.eye(n)


def linear_system(dx=2, dy=2, *, full=False, seed=0):
    """A stable system with independent observation noise; Q includes `F_VAR`."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(dx, dx))
    a *= 0.9 / np.max(np.abs(np.linalg.eigvals(a)))
    q = covariance(rng, dx) if full else np.diag(rng.uniform(0.2, 0.6, dx))
    system = kalman.System(
        a, q + F_VAR * np.eye(dx), rng.normal(size=(dy, dx)), rng.normal(size=dy), np.diag(rng.uniform(0.2, 0.8, dy))
    )
    initial = kalman.Gaussian(rng.normal(size=dx), covariance(rng, dx))
    return jax.tree.map(jnp.asarray, (system, initial))


def simulate(system, initial, length, seed=0):
    """Outputs and inputs."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(length, 1))
    a, q, c, d, r = (np.asarray(part) for part in system)
    x, rows = rng.multivariate_normal(initial.mean, initial.cov), []
    for c_t in inputs:
        x = rng.multivariate_normal(a @ x + np.eye(len(x))[0] * c_t, q)
        rows.append(rng.multivariate_normal(c @ x + d, r))
    return np.array(rows), jnp.asarray(inputs)


@partial(jax.jit, static_argnames=("num_members", "options", "full"))
def run(random, system, initial, outputs, inputs, *, num_members, options, full=False):
    """The ensemble filter on a linear system; the input is added to the first state."""
    dx = system.transition.shape[0]
    key_first, key_noise = jax.random.split(random)
    first = initial.mean + jax.random.normal(key_first, (num_members, dx)) @ jnp.linalg.cholesky(initial.cov).T
    q = system.process_cov - F_VAR * jnp.eye(dx)
    observing = ensemble.Observing(
        FullNoise(jnp.linalg.cholesky(q)) if full else DiagonalNoise(jnp.diagonal(q)),
        LinearEmission(system.emission, system.emission_bias),
        DiagonalNoise(jnp.diagonal(system.obs_cov)),
    )

    def transition(x):
        mean = x[:, :dx] @ system.transition.T
        return mean.at[:, 0].add(x[:, dx]), DiagonalNoise(jnp.full_like(mean, F_VAR))

    return ensemble.run(transition, observing, first, outputs, inputs, key_noise, options)


@jax.jit
def exact(system, initial, outputs, inputs):
    offsets = jnp.zeros((outputs.shape[0], initial.mean.shape[0])).at[:, 0].set(inputs[:, 0])
    trace = kalman.filter(system, initial, outputs, offsets)
    return trace, kalman.smooth(system, trace.predicted, outputs)[1]


def any_prediction(n=7, dx=3, dy=2, *, moments="sampled", emission=None, seed=0, inflation=1.0):
    """A predicted ensemble without any structure, an emission, an observation and its noise."""
    rng = np.random.default_rng(seed)
    predicted = predict(
        jnp.asarray(rng.normal(size=(n, dx)) @ rng.normal(size=(dx, dx)) + 1.0),
        DiagonalNoise(rng.uniform(0.1, 0.5, size=(n, dx))),
        DiagonalNoise(rng.uniform(0.1, 0.5, size=dx)),
        jnp.asarray(rng.normal(size=(1, n, dx))),
        moments=moments,
        inflation=inflation,
    )
    emission = LinearEmission(rng.normal(size=(dy, dx)), rng.normal(size=dy)) if emission is None else emission
    y, r, noise = rng.normal(size=dy), rng.uniform(0.2, 0.8, dy), rng.normal(size=(n, dy))
    return predicted, emission, jnp.asarray(y), jnp.asarray(r), jnp.asarray(noise)


@partial(jax.jit, static_argnames="update")
def condition(predicted, emission, y, r, noise, taper=None, *, update):
    observed = ensemble.observe(emission, predicted, taper)
    filtered = ensemble.update(predicted, observed, y, r, None if update == "sqrt" else noise)
    return ensemble.correct(filtered, predicted, emission, y, r) if update == "mixture" else filtered


def kalman_update(mean, cov, c, d, r, y):
    """The textbook's update, with inverses, in NumPy."""
    s = c @ cov @ c.T + np.diag(r)
    gain = cov @ c.T @ np.linalg.inv(s)
    score = multivariate_normal(c @ mean + d, s).logpdf(y)
    return mean + gain @ (y - c @ mean - d), cov - gain @ s @ gain.T, score


def function_emission(function, dx, dy):
    """A function of the state in the model's own units."""
    return FunctionEmission(function, np.zeros(dx), np.ones(dx), np.zeros(dy), np.ones(dy))


# --- prediction ---------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
def test_predicted_moments_match_numpy(full):
    """Oracle: numpy.cov of the members, or of the noise-free members plus the noise in closed form."""
    rng = np.random.default_rng(0)
    f_mean, f_var = rng.normal(size=(9, 2)), rng.uniform(0.1, 1.0, (9, 2))
    q = covariance(rng, 2) if full else np.diag([0.3, 0.7])
    process_noise = FullNoise(np.linalg.cholesky(q)) if full else DiagonalNoise(np.diag(q))
    noise = rng.normal(size=(2 if full else 1, 9, 2))
    arguments = [jnp.asarray(f_mean), DiagonalNoise(f_var), process_noise, jnp.asarray(noise)]
    sampled = predict(*arguments, moments="sampled")
    np.testing.assert_allclose(sampled.mean, np.asarray(sampled.members).mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(sampled.cov, np.cov(np.asarray(sampled.members).T), atol=1e-12)
    closed = predict(*arguments, moments="exact_noise")
    np.testing.assert_allclose(closed.mean, f_mean.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(closed.cov, np.cov(f_mean.T) + q + np.diag(f_var.mean(axis=0)), atol=1e-12)
    np.testing.assert_array_equal(closed.members, sampled.members)


@pytest.mark.parametrize("full", [False, True])
def test_members_move_with_their_own_variance_and_q(full):
    """Oracle: 100000 draws per member of N(f_mean^n, diag(f_var^n) + Q), within five standard errors."""
    rng, draws = np.random.default_rng(1), 100_000
    q = covariance(rng, 2) if full else np.diag([0.3, 0.7])
    process_noise = FullNoise(np.linalg.cholesky(q)) if full else DiagonalNoise(np.diag(q))
    for f_mean, f_var in (([1.0, -2.0], [0.1, 2.0]), ([0.0, 5.0], [1.0, 0.01])):
        noise = jnp.asarray(rng.normal(size=(2 if full else 1, draws, 2)))
        shape = (draws, 2)
        f_noise = DiagonalNoise(jnp.broadcast_to(jnp.asarray(f_var), shape))
        moved = np.asarray(ensemble.move(jnp.broadcast_to(jnp.asarray(f_mean), shape), f_noise, process_noise, noise))
        cov = q + np.diag(f_var)
        assert (np.abs(moved.mean(axis=0) - f_mean) < 5 * np.sqrt(np.diag(cov) / draws)).all()
        error = np.sqrt((np.outer(np.diag(cov), np.diag(cov)) + cov**2) / draws)
        assert (np.abs(np.cov(moved.T) - cov) < 5 * error).all()


def test_a_full_q_that_is_diagonal_is_a_diagonal_q():
    """Oracle: the diagonal Q, in the moments: exact in closed form, within standard errors for the members."""
    rng, n = np.random.default_rng(2), 100_000
    q = np.array([0.3, 0.7])
    f_mean, f_noise = jnp.asarray(rng.normal(size=(n, 2))), DiagonalNoise(jnp.full((n, 2), 0.1))
    noise = jnp.asarray(rng.normal(size=(2, n, 2)))
    diagonal = predict(f_mean, f_noise, DiagonalNoise(q), noise[:1])
    full = predict(f_mean, f_noise, FullNoise(np.diag(np.sqrt(q))), noise)
    np.testing.assert_allclose(full.mean, diagonal.mean, atol=1e-12)
    np.testing.assert_allclose(full.cov, diagonal.cov, atol=1e-12)
    cov = np.asarray(diagonal.cov)
    error = np.sqrt((np.outer(np.diag(cov), np.diag(cov)) + cov**2) / n)
    for members in (full.members, diagonal.members):
        assert (np.abs(np.cov(np.asarray(members).T) - cov) < 5 * error).all()


@pytest.mark.parametrize("moments", MOMENTS)
def test_inflation_multiplies_the_covariance(moments):
    """Oracle: the prediction without inflation."""
    plain, *_ = any_prediction(moments=moments)
    inflated, *_ = any_prediction(moments=moments, inflation=1.2)
    np.testing.assert_allclose(inflated.mean, plain.mean, atol=1e-12)
    np.testing.assert_allclose(inflated.cov, 1.44 * plain.cov, atol=1e-12)
    np.testing.assert_allclose(
        np.cov(np.asarray(inflated.members).T), 1.44 * np.cov(np.asarray(plain.members).T), atol=1e-12
    )


def test_every_member_time_and_channel_has_its_own_noise():
    """Oracle: the standard normal. Shared draws would make the correlation of some pair one."""
    for kinds, options in ((1, ensemble.Options(update="perturbed")), (2, ensemble.Options(update="mixture"))):
        process, perturbation = draw_noise(
            key(0), 5, 400, 2, 3, kinds=kinds, options=options, dtype=jnp.dtype("float64")
        )
        assert process.shape == (5, kinds, 400, 2)
        assert perturbation.shape == (5, 400, 3)
        assert process.dtype == perturbation.dtype == jnp.float64
        columns = np.concatenate(
            [np.moveaxis(process, 2, 0).reshape(400, -1), np.moveaxis(perturbation, 1, 0).reshape(400, -1)], axis=1
        )
        assert np.abs(columns.mean(axis=0)).max() < 5 / np.sqrt(400)
        assert np.abs(columns.std(axis=0) - 1).max() < 5 / np.sqrt(800)
        assert np.abs(np.corrcoef(columns.T) - np.eye(columns.shape[1])).max() < 5 / np.sqrt(400)
    no_draws = draw_noise(
        key(0), 5, 4, 2, 3, kinds=1, options=ensemble.Options(update="sqrt"), dtype=jnp.dtype("float32")
    )
    assert no_draws[1] is None
    assert no_draws[0].dtype == jnp.float32


# --- one update, any ensemble: identities ---------------------------------------------------------


@pytest.mark.parametrize("nonlinear", [False, True])
def test_square_root_update_gives_members_the_kalman_moments_exactly(nonlinear):
    """Oracle: the Kalman update of the sample moments in NumPy, for 7 members."""
    emission = function_emission(lambda x: jnp.sin(x[:, :2]) + x[:, 1:] ** 2, 3, 2) if nonlinear else None
    predicted, emission, y, r, noise = any_prediction(emission=emission)
    filtered = condition(predicted, emission, y, r, noise, update="sqrt")
    x, g = np.asarray(predicted.members), np.asarray(emission(predicted.members))
    joint = np.cov(np.hstack([x, g]).T)
    gain = joint[:3, 3:] @ np.linalg.inv(joint[3:, 3:] + np.diag(r))
    mean, cov = x.mean(axis=0) + gain @ (y - g.mean(axis=0)), joint[:3, :3] - gain @ joint[3:, :3]
    np.testing.assert_allclose(filtered.mean, mean, atol=1e-10)
    np.testing.assert_allclose(filtered.cov, cov, atol=1e-10)
    np.testing.assert_allclose(np.asarray(filtered.members).mean(axis=0), mean, atol=1e-10)
    np.testing.assert_allclose(np.cov(np.asarray(filtered.members).T), cov, atol=1e-10)
    expected = multivariate_normal(g.mean(axis=0), joint[3:, 3:] + np.diag(r)).logpdf(y)
    np.testing.assert_allclose(filtered.log_likelihood, expected, rtol=1e-10)


@pytest.mark.parametrize("update", ["perturbed", "sqrt"])
def test_updated_moments_and_score_match_the_textbook(update):
    """Oracle: the Kalman update in NumPy of whatever moments were predicted."""
    predicted, emission, y, r, noise = any_prediction(moments="exact_noise")
    filtered = condition(predicted, emission, y, r, noise, update=update)
    mean, cov, score = kalman_update(
        *(np.asarray(a) for a in (predicted.mean, predicted.cov, emission.weight, emission.bias, r, y))
    )
    np.testing.assert_allclose(filtered.mean, mean, atol=1e-12)
    np.testing.assert_allclose(filtered.cov, cov, atol=1e-12)
    np.testing.assert_allclose(filtered.log_likelihood, score, rtol=1e-12)


@pytest.mark.parametrize("nonlinear", [False, True])
def test_perturbed_update_matches_cuthbert(nonlinear):
    """Oracle: cuthbert's EnKF with perturbed observations, given the same draws."""
    emission = function_emission(lambda x: jnp.sin(x[:, :2]) + x[:, 1:] ** 2, 3, 2) if nonlinear else None
    predicted, emission, y, r, _ = any_prediction(n=11, emission=emission)
    random = key(3)
    update = jax.jit(lambda *a: cuthbert.filter_update(a[0], a[1], lambda x: emission(x[None])[0], *a[2:]))
    members, score = update(random, predicted.members, jnp.diag(jnp.sqrt(r)), y)
    filtered = condition(predicted, emission, y, r, jax.random.normal(random, (2, 11)).T, update="perturbed")
    np.testing.assert_allclose(filtered.members, members, atol=1e-10)
    np.testing.assert_allclose(filtered.log_likelihood, score, rtol=1e-10)


@pytest.mark.parametrize("update", ["perturbed", "sqrt"])
def test_proposition_2(update):
    """Oracle: both sides of the paper's identity, in closed form, in NumPy.

    log N(y | C m, C P C^T + R) = E_{N(m', P')}[log N(y | C x, R)] - KL[N(m', P') || N(m, P)],
    with m', P' the filtered moments.
    """
    predicted, emission, y, r, noise = any_prediction(seed=4)
    rng = np.random.default_rng(5)
    m, p = rng.normal(size=3), covariance(rng, 3)
    predicted = predicted._replace(mean=jnp.asarray(m), cov=jnp.asarray(p))
    filtered = condition(predicted, emission, y, r, noise, update=update)
    m1, p1 = np.asarray(filtered.mean), np.asarray(filtered.cov)
    c, d, y, r = (np.asarray(a) for a in (emission.weight, emission.bias, y, r))

    expectation = multivariate_normal(c @ m1 + d, np.diag(r)).logpdf(y) - 0.5 * np.trace(c @ p1 @ c.T / r[:, None])
    inverse = np.linalg.inv(p)
    log_dets = np.linalg.slogdet(p)[1] - np.linalg.slogdet(p1)[1]
    divergence = 0.5 * (np.trace(inverse @ p1) + (m1 - m) @ inverse @ (m1 - m) - 3 + log_dets)
    marginal = multivariate_normal(c @ m + d, c @ p @ c.T + np.diag(r)).logpdf(y)
    np.testing.assert_allclose(expectation - divergence, marginal, atol=1e-10)
    np.testing.assert_allclose(filtered.log_likelihood, marginal, atol=1e-10)


def test_each_member_sees_its_own_perturbation():
    """Oracle: Kalman's variance. Without perturbations, or with one for all, members would be too narrow."""
    n, p, r = 100_000, 2.0, 0.5
    prior = jnp.asarray(1.0 + np.sqrt(p) * np.random.default_rng(0).normal(size=(n, 1)))
    zero = jnp.zeros((n, 1))
    predicted = predict(prior, DiagonalNoise(zero), DiagonalNoise(jnp.zeros(1)), zero[None], moments="sampled")
    _, noise = draw_noise(key(1), 1, n, 1, 1, kinds=1, options=ensemble.Options(update="perturbed"), dtype=prior.dtype)
    emission = LinearEmission(np.ones((1, 1)), np.zeros(1))
    filtered = condition(predicted, emission, jnp.asarray([2.0]), jnp.asarray([r]), noise[0], update="perturbed")
    posterior, too_narrow = p * r / (p + r), p * (r / (p + r)) ** 2
    variance = float(jnp.var(filtered.members))
    assert abs(variance - posterior) < 5 * posterior * np.sqrt(2 / n)
    assert variance > 2 * too_narrow


# --- missing observations -------------------------------------------------------------------------


@pytest.mark.parametrize(("moments", "update"), ALL)
def test_a_sample_without_channels_changes_nothing(moments, update):
    predicted, emission, y, r, noise = any_prediction(moments=moments)
    filtered = condition(predicted, emission, jnp.full_like(y, jnp.nan), r, noise, update=update)
    np.testing.assert_allclose(filtered.members, predicted.members, atol=1e-12)
    np.testing.assert_allclose(filtered.mean, predicted.mean, atol=1e-12)
    np.testing.assert_allclose(filtered.cov, predicted.cov, atol=1e-12)
    assert float(filtered.log_likelihood) == 0.0


@pytest.mark.parametrize(("update", "nonlinear"), [*((update, False) for update in UPDATES), ("perturbed", True)])
def test_a_missing_channel_is_a_channel_that_was_deleted(update, nonlinear):
    """Oracle: the same update with those channels, their noise and their row of C removed."""
    rng = np.random.default_rng(6)
    weight, bias = rng.normal(size=(3, 3)), rng.normal(size=3)

    def emission_of(keep):
        if not nonlinear:
            return LinearEmission(weight[keep], bias[keep])
        return function_emission(lambda x: jnp.sin(x @ weight[keep].T) + bias[keep], 3, len(keep))

    full = emission_of(np.arange(3))
    predicted, _, y, r, noise = any_prediction(dy=3, moments="exact_noise", emission=full)
    patterns = [p for p in itertools.product([False, True], repeat=3) if not all(p)]
    for pattern in [(False, True, False), (True, False, True)] if nonlinear else patterns:
        keep = np.flatnonzero(~np.array(pattern))
        masked = condition(predicted, full, jnp.where(jnp.asarray(pattern), jnp.nan, y), r, noise, update=update)
        deleted = condition(predicted, emission_of(keep), y[keep], r[keep], noise[:, keep], update=update)
        for a, b in zip(masked, deleted, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-11)


# --- emissions that are functions -----------------------------------------------------------------


@pytest.mark.parametrize("update", ["perturbed", "sqrt"])
def test_a_function_that_is_linear_is_a_linear_emission(update):
    """Oracle: the linear emission: the same for sampled moments, its limit where noise enters in closed form."""
    rng = np.random.default_rng(7)
    weight, bias = rng.normal(size=(2, 3)), rng.normal(size=2)
    linear, function = LinearEmission(weight, bias), function_emission(lambda x: x @ weight.T + bias, 3, 2)
    predicted, _, y, r, noise = any_prediction(moments="sampled", emission=linear)
    for a, b in zip(
        condition(predicted, linear, y, r, noise, update=update),
        condition(predicted, function, y, r, noise, update=update),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, atol=1e-10)

    def gap(n, seed):
        predicted, _, y, r, noise = any_prediction(n=n, moments="exact_noise", emission=linear, seed=seed)
        a = condition(predicted, linear, y, r, noise, update=update)
        b = condition(predicted, function, y, r, noise, update=update)
        return np.concatenate(
            [np.asarray(a.mean - b.mean), np.ravel(a.cov - b.cov), [a.log_likelihood - b.log_likelihood]]
        )

    few = np.sqrt(np.mean([gap(7, seed) ** 2 for seed in range(8)]))
    many = np.sqrt(np.mean([gap(100_000, seed) ** 2 for seed in range(2)]))
    assert many < few / 20
    assert many < 0.02


def test_a_function_works_in_the_units_of_the_user():
    """Oracle: the same linear function as a matrix, translated by hand."""
    rng = np.random.default_rng(8)
    state_shift, state_scale = rng.normal(size=3), rng.uniform(0.5, 2, 3)
    output_shift, output_scale = rng.normal(size=2), rng.uniform(0.5, 2, 2)
    weight, x = rng.normal(size=(2, 3)), rng.normal(size=(5, 3))
    emission = FunctionEmission(lambda s: s @ weight.T, state_shift, state_scale, output_shift, output_scale)
    expected = ((x * state_scale + state_shift) @ weight.T - output_shift) / output_scale
    np.testing.assert_allclose(emission(jnp.asarray(x)), expected, atol=1e-12)


@pytest.mark.parametrize("moments", MOMENTS)
@pytest.mark.parametrize("update", ["perturbed", "sqrt"])
def test_filtered_covariance_is_positive_where_the_emission_is_a_function(moments, update):
    """An accurate sensor and few members: the variance that is left is small, but a variance."""
    emission = function_emission(lambda x: x + 0.1 * jnp.sin(x), 1, 1)
    for seed in range(20):
        predicted, _, y, _, noise = any_prediction(n=20, dx=1, dy=1, moments=moments, emission=emission, seed=seed)
        filtered = condition(predicted, emission, y, jnp.asarray([1e-3]), noise, update=update)
        assert float(filtered.cov[0, 0]) > 0


# --- the posterior of the predicted mixture ---------------------------------------------------------


def mixture_posterior(predicted, c, d, r, y):
    """Moments of the posterior of `1/N sum_n N(centres^n, spread)` and its weights, one component at a time."""
    centres, spread = np.asarray(predicted.centres), np.asarray(predicted.spread)
    parts = [kalman_update(centre, spread, c, d, r, y) for centre in centres]
    scores = np.array([score for *_, score in parts])
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    means = np.stack([mean for mean, *_ in parts])
    mean = weights @ means
    cov = sum(w * (p[1] + np.outer(m - mean, m - mean)) for w, m, p in zip(weights, means, parts, strict=True))
    return mean, cov, weights


@pytest.mark.parametrize(("surprise", "trusted"), [(0.0, True), (12.0, False)])
def test_mixture_update_gives_members_the_moments_of_the_mixture_posterior(surprise, trusted):
    """Oracle: the posterior of the mixture, component by component in NumPy; where fewer than 30% of the
    members carry the weight, the mixture of that posterior and Kalman's in that proportion.
    """
    predicted, emission, y, r, noise = any_prediction(n=12, moments="exact_noise", seed=9)
    y = y + surprise
    filtered = condition(predicted, emission, y, r, noise, update="mixture")
    c, d, r, y = (np.asarray(a) for a in (emission.weight, emission.bias, r, y))
    mean, cov, weights = mixture_posterior(predicted, c, d, r, y)
    share = min(1.0, 1 / np.sum(weights**2) / 12 / 0.3)
    assert (share == 1.0) == trusted
    other_mean, other_cov, score = kalman_update(np.asarray(predicted.mean), np.asarray(predicted.cov), c, d, r, y)
    gap = mean - other_mean
    cov = share * cov + (1 - share) * other_cov + share * (1 - share) * np.outer(gap, gap)
    mean = share * mean + (1 - share) * other_mean
    np.testing.assert_allclose(filtered.mean, mean, atol=1e-10)
    np.testing.assert_allclose(filtered.cov, cov, atol=1e-10)
    np.testing.assert_allclose(np.asarray(filtered.members).mean(axis=0), mean, atol=1e-10)
    np.testing.assert_allclose(np.cov(np.asarray(filtered.members).T), cov, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(filtered.log_likelihood, score, rtol=1e-10)


def test_mixture_posterior_by_quadrature():
    """Oracle: Bayes' rule on a grid, for two clusters of members that no single Gaussian describes."""
    centres = np.concatenate([np.linspace(-3.2, -2.8, 10), np.linspace(1.8, 2.2, 10)])[:, None]
    zeros = jnp.zeros((20, 1))
    predicted = predict(jnp.asarray(centres), DiagonalNoise(zeros), DiagonalNoise([0.3]), zeros[None])
    emission = LinearEmission(np.ones((1, 1)), np.zeros(1))
    y, r = 1.5, 0.8
    noise = jnp.asarray(np.random.default_rng(0).normal(size=(20, 1)))
    filtered = condition(predicted, emission, jnp.asarray([y]), jnp.asarray([r]), noise, update="mixture")
    grid = np.linspace(-12, 12, 20_001)
    density = np.mean(np.exp(-0.5 * (grid - centres) ** 2 / 0.3), axis=0) * np.exp(-0.5 * (y - grid) ** 2 / r)
    density /= density.sum()
    mean = density @ grid
    np.testing.assert_allclose(filtered.mean, [mean], atol=1e-8)
    np.testing.assert_allclose(filtered.cov, [[density @ (grid - mean) ** 2]], atol=1e-8)


# --- localisation ---------------------------------------------------------------------------------


def test_gaspari_cohn():
    """Oracle: cuthbert's function of the full support; and the properties of Gaspari and Cohn (1999)."""
    radius, at = 1.7, jax.jit(gaspari_cohn, static_argnums=1)
    distance = np.linspace(0, 5, 501)
    taper = np.asarray(at(jnp.asarray(distance), radius))
    np.testing.assert_allclose(taper, cuthbert.gaspari_cohn(distance, 2 * radius), atol=1e-12)
    assert taper[0] == 1.0
    np.testing.assert_array_equal(taper[distance >= 2 * radius], 0.0)
    assert (taper[distance < 1.9 * radius] > 0).all()
    assert (np.diff(taper) <= 1e-15).all()
    np.testing.assert_array_equal(taper, at(jnp.asarray(-distance), radius))
    for edge in (radius, 2 * radius):
        either_side = at(jnp.asarray([edge - 1e-9, edge + 1e-9]), radius)
        assert abs(float(either_side[0] - either_side[1])) < 1e-8
    for size in (1.0, 2.5, 8.0):
        index = np.arange(20.0)
        matrix = np.asarray(at(jnp.asarray(index[:, None] - index), size))
        assert np.linalg.eigvalsh(matrix).min() > -1e-12


def test_localisation_cuts_spurious_correlations():
    """Oracle: the Kalman gain of the tapered covariance, in NumPy."""
    predicted, _, _, _, noise = any_prediction(n=6, dx=4, dy=1)
    emission = LinearEmission(np.eye(1, 4), np.zeros(1))
    index = np.arange(4.0)
    taper = gaspari_cohn(jnp.asarray(index[:, None] - index), 1.0)
    y, r = jnp.asarray([3.0]), jnp.asarray([0.5])
    filtered = condition(predicted, emission, y, r, noise, taper, update="perturbed")
    cov = np.asarray(predicted.cov * taper)
    gain = cov[:, 0] / (cov[0, 0] + 0.5)
    mean = np.asarray(predicted.mean) + gain * (3.0 - float(predicted.mean[0]))
    np.testing.assert_allclose(filtered.mean, mean, atol=1e-12)
    np.testing.assert_allclose(filtered.members[:, 2:], predicted.members[:, 2:], atol=1e-12)
    assert (np.abs(filtered.members[:, :2] - predicted.members[:, :2]) > 1e-3).all()


@pytest.mark.parametrize("update", ["perturbed", "sqrt"])
def test_a_state_beyond_the_radius_is_not_moved(update):
    """Oracle: the prediction, for states that the taper declares independent of the one observed."""
    rng = np.random.default_rng(10)
    f_mean = jnp.asarray(rng.normal(size=(6, 4)) @ rng.normal(size=(4, 4)))
    index = np.arange(4.0)
    observing = ensemble.Observing(
        DiagonalNoise(jnp.full(4, 0.01)),
        LinearEmission(np.eye(1, 4), np.zeros(1)),
        DiagonalNoise([0.5]),
        gaspari_cohn(jnp.asarray(index[:, None] - index), 1.0),
    )
    draws = jnp.asarray(rng.normal(size=(1, 6, 4))), None if update == "sqrt" else jnp.asarray(rng.normal(size=(6, 1)))
    assimilate = jax.jit(ensemble.assimilate, static_argnames="options")
    predicted, filtered = assimilate(
        f_mean,
        DiagonalNoise(jnp.full((6, 4), 0.01)),
        jnp.asarray([3.0]),
        *draws,
        observing,
        options=ensemble.Options(update=update),
    )
    assert abs(float(filtered.mean[0] - predicted.mean[0])) > 0.1
    np.testing.assert_allclose(filtered.mean[2:], predicted.mean[2:], atol=1e-12)


def test_localised_covariance_is_a_covariance():
    """Oracle: what the gain K does to members: (I - K C) P (I - K C)^T + K R K^T, never indefinite."""
    predicted, _, _, _, noise = any_prediction(n=4, dx=6, dy=1)
    emission = LinearEmission(np.eye(1, 6), np.zeros(1))
    index = np.arange(6.0)
    taper = gaspari_cohn(jnp.asarray(index[:, None] - index), 1.0)
    y, r = jnp.asarray([3.0]), jnp.asarray([0.05])
    filtered = condition(predicted, emission, y, r, noise, taper, update="perturbed")
    assert np.linalg.eigvalsh(np.asarray(filtered.cov)).min() > -1e-10


def test_localisation_needs_a_linear_emission():
    predicted, emission, *_ = any_prediction(emission=function_emission(lambda x: x[:, :2] ** 2, 3, 2))
    with pytest.raises(ValueError, match="localization: needs a linear emission"):
        ensemble.observe(emission, predicted, jnp.eye(3))


# --- against the exact filter ---------------------------------------------------------------------


def errors(trace, reference):
    """Deviations from the exact filter in units of one member's: means, covariances, members' moments."""
    mean, cov = (np.asarray(part) for part in reference.filtered)
    predicted_cov = np.asarray(reference.predicted.cov)
    variance = np.diagonal(predicted_cov, axis1=1, axis2=2)
    mean_scale = np.sqrt(variance)
    cov_scale = np.sqrt(variance[:, :, None] * variance[:, None, :])
    members = np.asarray(trace.filtered.members)
    member_mean = members.mean(axis=1)
    deviations = members - member_mean[:, None]
    member_cov = np.einsum("tni,tnj->tij", deviations, deviations) / (members.shape[1] - 1)
    return np.concatenate(
        [
            np.ravel((np.asarray(trace.filtered.mean) - mean) / mean_scale),
            np.ravel((member_mean - mean) / mean_scale),
            np.ravel((np.asarray(trace.filtered.cov) - cov) / cov_scale),
            np.ravel((member_cov - cov) / cov_scale),
            np.asarray(trace.filtered.log_likelihood) - np.asarray(reference.log_likelihood),
        ]
    )


@pytest.mark.parametrize(("moments", "update"), ALL)
def test_converges_to_the_exact_filter(moments, update):
    """Oracle: the Kalman filter, over six samples with gaps.

    With 100000 members every moment and every likelihood is within a few standard errors, and the
    root mean square error falls like one over the square root of the number of members.
    """
    system, initial = linear_system()
    y, c = simulate(system, initial, 6)
    y[2, 0] = y[4] = np.nan
    y = jnp.asarray(y)
    reference, _ = exact(system, initial, y, c)
    options = ensemble.Options(moments, update)

    def error(n, seed):
        return errors(run(key(seed), system, initial, y, c, num_members=n, options=options), reference)

    many = error(100_000, 0)
    assert np.abs(many).max() < 6 / np.sqrt(100_000)
    if (moments, update) in (("sampled", "perturbed"), ("exact_noise", "sqrt")):
        few = np.sqrt(np.mean([error(100, seed) ** 2 for seed in range(1, 9)]))
        assert np.sqrt(np.mean(many**2)) < few / 8


def test_converges_with_a_full_process_covariance():
    """Oracle: the Kalman filter of a system whose process noise is correlated."""
    system, initial = linear_system(full=True, seed=1)
    y, c = simulate(system, initial, 6)
    y = jnp.asarray(y)
    reference, _ = exact(system, initial, y, c)
    trace = run(
        key(0),
        system,
        initial,
        y,
        c,
        num_members=100_000,
        options=ensemble.Options(update="sqrt"),
        full=True,
    )
    assert np.abs(errors(trace, reference)).max() < 6 / np.sqrt(100_000)


@pytest.mark.parametrize("update", UPDATES)
def test_smoother_converges_to_the_exact_smoother(update):
    """Oracle: the exact Rauch-Tung-Striebel smoother, with a gap in the record."""
    system, initial = linear_system(seed=2)
    y, c = simulate(system, initial, 6)
    y[3] = np.nan
    y = jnp.asarray(y)
    _, smoothed = exact(system, initial, y, c)
    scale = np.sqrt(np.diagonal(smoothed.cov, axis1=1, axis2=2))
    trace = run(key(0), system, initial, y, c, num_members=100_000, options=ensemble.Options(update=update))
    members, predicted = trace.filtered.members, trace.predicted.members
    nothing = smoother.Backwards(members[-1], predicted[-1])
    _, (mean, cov) = jax.jit(smoother.smooth)(members, predicted, nothing, len(y) - 1)
    assert np.abs((mean - smoothed.mean) / scale).max() < 8 / np.sqrt(100_000)
    assert np.abs((cov - smoothed.cov) / (scale[:, :, None] * scale[:, None, :])).max() < 8 / np.sqrt(100_000)


# --- gradients --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moments", "update", "full"),
    [
        ("exact_noise", "perturbed", False),
        ("sampled", "sqrt", True),
        ("exact_noise", "mixture", True),
    ],
)
def test_gradients_match_finite_differences(moments, update, full, central_differences):
    """Oracle: central differences of the log-likelihood of four samples, some of them missing."""
    system, initial = linear_system(full=full, seed=3)
    if update == "mixture":  # all members carry weight, so that their share stays at its limit
        system = system._replace(obs_cov=30.0 * system.obs_cov)
    y, c = simulate(system, initial, 4)
    y[1, 0] = y[2] = np.nan
    y = jnp.asarray(y)
    options = ensemble.Options(moments, update)

    def symmetric(matrix):
        return 0.5 * (matrix + matrix.T)

    @jax.jit
    @jax.value_and_grad
    def score(t):
        system, initial = t
        system = system._replace(process_cov=symmetric(system.process_cov))
        initial = initial._replace(cov=symmetric(initial.cov))
        trace = run(key(0), system, initial, y, c, num_members=20, options=options, full=full)
        return jnp.sum(trace.filtered.log_likelihood)

    tree = (system, initial)
    gradient = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(score(tree)[1])])
    assert np.isfinite(gradient).all()
    assert np.abs(gradient).max() > 0.1
    np.testing.assert_allclose(gradient, central_differences(lambda t: score(t)[0], tree), rtol=2e-6, atol=1e-7)
