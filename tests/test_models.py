"""The parts of the state-space model, its scaling and its summary: closed forms and changes of units."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.gp import RBF, Function, Identity, Linear, SparseGP, Zero
from gpssm.models.emission import LinearEmission
from gpssm.models.gpssm import GPSSM, InitialState, Transition
from gpssm.models.noise import DiagonalNoise, FullNoise
from gpssm.models.scaling import Scaling, moments
from gpssm.posteriors.history import History
from gpssm.posteriors.summary import summarise

DX, DY, DC = 2, 2, 1


def scaling(seed=0):
    rng = np.random.default_rng(seed)
    sizes = (DX, DX, DY, DY, DC, DC)
    return Scaling(*(rng.uniform(0.5, 3.0, n) if i % 2 else rng.normal(size=n) for i, n in enumerate(sizes)))


def factor(n, seed=0):
    rng = np.random.default_rng(seed)
    return np.tril(rng.normal(size=(n, n)), -1) + np.diag(rng.uniform(0.5, 2.0, n))


def model(full, seed=1):
    rng = np.random.default_rng(seed)
    kernel = RBF(rng.uniform(0.5, 2.0, (DX, DX + DC)), rng.uniform(0.5, 2.0, DX))
    gp = SparseGP(
        kernel, rng.normal(size=(DX, 4, DX + DC)), rng.normal(size=(DX, 4)), np.stack([factor(4), factor(4, 1)])
    )
    return GPSSM(
        Transition(Linear(rng.normal(size=(DX, DX + DC)), rng.normal(size=DX)), gp),
        FullNoise(factor(DX, 2)) if full else DiagonalNoise(rng.uniform(0.1, 2.0, DX)),
        LinearEmission(rng.normal(size=(DY, DX)), rng.normal(size=DY)),
        DiagonalNoise(rng.uniform(0.1, 2.0, DY)),
        InitialState(rng.normal(size=(3, DX)), np.stack([factor(DX, s) for s in range(3)]), np.zeros(DX), np.eye(DX)),
    )


# --- means, noise, initial state -------------------------------------------------------------


def test_mean_functions():
    """Oracle: their formulas."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(5, 3))
    np.testing.assert_array_equal(Zero(2)(jnp.asarray(x)), np.zeros((5, 2)))
    np.testing.assert_array_equal(Identity(2)(jnp.asarray(x)), x[:, :2])
    weight, bias = rng.normal(size=(2, 3)), rng.normal(size=2)
    expected = [weight @ row + bias for row in x]
    np.testing.assert_allclose(Linear(weight, bias)(jnp.asarray(x)), expected, atol=1e-12)


def test_a_mean_function_of_the_user_sees_the_users_units():
    """Oracle: the function, evaluated in the user's units, its value standardised."""
    units = scaling()

    def f(x):
        return jnp.stack([jnp.sin(x[:, 0]) + x[:, 2], x[:, 0] * x[:, 1]], axis=1)

    x_user = np.random.default_rng(3).normal(size=(6, 3))
    shift = np.concatenate([units.state_shift, units.input_shift])
    scale = np.concatenate([units.state_scale, units.input_scale])
    mean = Function(f, shift, scale, units.state_shift, units.state_scale)
    value = units.states(np.asarray(mean(jnp.asarray(units.standardise_arguments(x_user)))))
    np.testing.assert_allclose(value, f(x_user), atol=1e-12)


def test_noise_covariances():
    """Oracle: by definition."""
    np.testing.assert_array_equal(DiagonalNoise([0.5, 2.0]).covariance, np.diag([0.5, 2.0]))
    chol = factor(3)
    np.testing.assert_allclose(FullNoise(chol).covariance, chol @ chol.T, atol=1e-14)
    np.testing.assert_allclose(FullNoise(chol).variance, np.diag(chol @ chol.T), atol=1e-14)
    both = np.stack([chol, 2.0 * chol])
    np.testing.assert_allclose(FullNoise(both).covariance, 2.5 * chol @ chol.T, atol=1e-13)
    np.testing.assert_allclose(DiagonalNoise([[0.5, 2.0], [1.5, 4.0]]).covariance, np.diag([1.0, 3.0]), atol=1e-14)


def test_initial_members_have_their_sequences_moments():
    """Oracle: mean and covariance per sequence, 20000 members, within five standard errors."""
    initial = model(full=False).initial_state
    n = 20_000
    members = np.asarray(initial.members(jnp.asarray(np.random.default_rng(4).normal(size=(3, n, DX)))))
    for s in range(3):
        cov = initial.chol[s] @ initial.chol[s].T
        assert (np.abs(members[s].mean(axis=0) - initial.mean[s]) < 5 * np.sqrt(np.diag(cov) / n)).all()
        error = np.sqrt((np.outer(np.diag(cov), np.diag(cov)) + cov**2) / n)
        assert (np.abs(np.cov(members[s].T) - cov) < 5 * error).all()


@pytest.mark.parametrize("dx", [1, 2, 5])
def test_divergence_of_the_initial_state(dx):
    """Oracle: the closed form between two Gaussians, summed over sequences, in NumPy."""
    rng = np.random.default_rng(5)
    prior_mean, prior_chol = rng.normal(size=dx), factor(dx, 7)
    initial = InitialState(rng.normal(size=(2, dx)), np.stack([factor(dx, 8), factor(dx, 9)]), prior_mean, prior_chol)
    prior_cov, total = prior_chol @ prior_chol.T, 0.0
    for mean, chol in zip(initial.mean, initial.chol, strict=True):
        cov, gap, inverse = chol @ chol.T, mean - prior_mean, np.linalg.inv(prior_cov)
        log_dets = np.linalg.slogdet(prior_cov)[1] - np.linalg.slogdet(cov)[1]
        total += 0.5 * (np.trace(inverse @ cov) + gap @ inverse @ gap - dx + log_dets)
    np.testing.assert_allclose(jax.jit(lambda i: i.kl())(initial), total, rtol=1e-10)
    same = InitialState(prior_mean[None], prior_chol[None], prior_mean, prior_chol)
    np.testing.assert_allclose(jax.jit(lambda i: i.kl())(same), 0.0, atol=1e-12)


# --- units ------------------------------------------------------------------------------------


def test_scaling_there_and_back():
    """Oracle: the numbers that went in; and a standardised data set has mean 0 and variance 1."""
    rng = np.random.default_rng(6)
    parts = [3.0 + 5.0 * rng.normal(size=(40, 2)), -2.0 + rng.normal(size=(10, 2))]
    parts[0][3, 1] = np.nan
    shift, scale = moments(parts)
    rows = (np.concatenate(parts) - shift) / scale
    np.testing.assert_allclose(np.nanmean(rows, axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(np.nanstd(rows, axis=0), 1.0, rtol=1e-12)

    units = scaling()
    x, y, c = rng.normal(size=(4, DX)), rng.normal(size=(4, DY)), rng.normal(size=(4, DC))
    np.testing.assert_allclose(units.states(units.standardise_states(x)), x, atol=1e-12)
    np.testing.assert_allclose(units.outputs(units.standardise_outputs(y)), y, atol=1e-12)
    np.testing.assert_allclose(
        units.standardise_arguments(np.hstack([x, c])),
        np.hstack([units.standardise_states(x), units.standardise_inputs(c)]),
    )
    np.testing.assert_allclose(units.state_cov(np.cov(units.standardise_states(x).T)), np.cov(x.T), atol=1e-12)


@pytest.mark.parametrize("value", [0.0, 1e-20, 7.5, -3e8])
def test_a_constant_column_is_shifted_not_scaled(value):
    shift, scale = moments([np.full((5, 1), value)])
    np.testing.assert_allclose(shift, value)
    assert scale == 1.0


def test_no_columns():
    shift, scale = moments([np.zeros((5, 0))])
    assert shift.shape == scale.shape == (0,)


@pytest.mark.parametrize("full", [True, False])
def test_summary_is_in_the_units_of_the_user(full):
    """Oracle: the model's own functions, called in standardised units and translated."""
    m, units = model(full), scaling()
    summary = summarise(m, units, ("obs_noise.variance",), History(step=[25, 50], elbo=[-2.0, -1.0]), "EnVI")
    rows = {row.name: row.value for row in summary.rows}
    x = np.random.default_rng(7).normal(size=(5, DX + DC))
    standardised = jnp.asarray(units.standardise_arguments(x))

    mean = units.states(np.asarray(m.transition.mean(standardised)))
    np.testing.assert_allclose(x @ rows["transition.mean.weight"].T + rows["transition.mean.bias"], mean, atol=1e-10)
    outputs = units.outputs(np.asarray(m.emission(standardised[:, :DX])))
    np.testing.assert_allclose(x[:, :DX] @ rows["emission.weight"].T + rows["emission.bias"], outputs, atol=1e-10)
    for d in range(DX):
        z = rows["transition.gp.inducing_inputs"][d]
        gaps = (x[:, None] - z[None]) / rows["transition.gp.kernel.lengthscale"][d]
        k_user = rows["transition.gp.kernel.variance"][d] * np.exp(-0.5 * np.sum(gaps**2, axis=2))
        gp = jax.tree.map(lambda leaf, d=d: jnp.asarray(leaf[d]), m.transition.gp)
        k = gp.kernel(standardised, gp.inducing_inputs)
        np.testing.assert_allclose(k_user, units.state_scale[d] ** 2 * np.asarray(k), rtol=1e-10)
    q = rows["process_noise.chol"] @ rows["process_noise.chol"].T if full else np.diag(rows["process_noise.variance"])
    np.testing.assert_allclose(q, units.state_cov(np.asarray(m.process_noise.covariance)), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(rows["obs_noise.variance"], m.obs_noise.variance * units.output_scale**2)
    np.testing.assert_allclose(rows["initial_state.mean"], units.states(m.initial_state.mean))
    first = rows["initial_state.chol"][0]
    np.testing.assert_allclose(first @ first.T, units.state_cov(m.initial_state.chol[0] @ m.initial_state.chol[0].T))

    learned = {row.name: row.learned for row in summary.rows}
    assert [name for name, free in learned.items() if not free] == ["obs_noise.variance"]
    assert (summary.iterations, summary.elbo) == (50, -1.0)
    for name in rows:
        assert name in str(summary)
        assert np.shape(summary.as_dict()["parameters"][name]["value"]) == rows[name].shape
