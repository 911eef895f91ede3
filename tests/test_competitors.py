"""The systems EnVI is compared with: what each reduces to, and what all of them must do."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpssm
from gpssm.filters import ensemble
from gpssm.gp.kernels import RBF
from gpssm.gp.means import Linear
from gpssm.gp.sparse import SparseGP
from gpssm.methods import envi, prssm, registry, vcdt
from gpssm.methods.base import Learner, StateSpaceMethod
from gpssm.models.emission import LinearEmission
from gpssm.models.gpssm import GPSSM, InitialState, Transition
from gpssm.models.noise import DiagonalNoise, FullNoise
from gpssm.numerics.draws import draw
from gpssm.plumbing.compilation import jit
from gpssm.training.optimiser import Schedule
from gpssm.training.windows import Windows, cut, noise_shapes, u_shape

STATES, OUTPUTS, INPUTS, LENGTH, INDUCING = 2, 1, 1, 30, 6
KEY = jax.random.key(3)


def nonlinear_model(*, full: bool, mixing: np.ndarray | None = None) -> GPSSM:
    """Everything about it is generic: nothing is zero, one or symmetric."""
    rng = np.random.default_rng(0)
    d = STATES + INPUTS
    chol = 0.3 * np.tile(np.eye(INDUCING), (STATES, 1, 1)) + 0.05 * np.tril(rng.standard_normal((INDUCING, INDUCING)))
    gp = SparseGP(
        RBF(rng.uniform(0.8, 1.5, (STATES, d)), rng.uniform(0.3, 0.6, STATES)),
        rng.standard_normal((STATES, INDUCING, d)),
        0.5 * rng.standard_normal((STATES, INDUCING)),
        chol,
    )
    mean = Linear(np.array([[0.8, 0.2, 0.1], [-0.3, 0.7, 0.2]]), np.array([0.1, -0.1]))
    noise = FullNoise(np.diag([0.3, 0.2])) if full else DiagonalNoise(np.array([0.09, 0.04]))
    eye = np.eye(STATES)
    return GPSSM(
        Transition(mean, gp, mixing),
        noise,
        LinearEmission(np.array([[1.0, 0.4]]), np.array([0.2])),
        DiagonalNoise(np.array([0.1])),
        InitialState(np.full((1, STATES), 0.2), 0.5 * eye[None], np.zeros(STATES), eye),
    )


def recording(length: int = LENGTH) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    y, c = np.sin(np.arange(length))[:, None] + 0.3 * rng.standard_normal((length, 1)), rng.standard_normal((length, 1))
    y[7] = np.nan
    return y, c


def one_window() -> Windows:
    y, c = recording()
    return cut([y], [c], LENGTH)


def with_start(model: GPSSM, windows: Windows) -> Learner:
    """What PRSSM learns, with the model's own q(x_0) in the place of the network's."""
    initial = model.initial_state
    rows = (jnp.asarray(leaf)[windows.sequence] for leaf in (initial.mean, initial.chol))
    q = InitialState(*rows, initial.prior_mean, initial.prior_chol)
    return Learner(model, lambda windows, prior: q)


def test_vcdt_that_corrects_nothing_is_prssm() -> None:
    """A = I, b = 0, S = Q: the same trajectories, and a divergence of zero."""
    model, windows, members = nonlinear_model(full=True), one_window(), 8
    steps = (1, LENGTH)
    gates = vcdt.Gates(
        np.tile(np.eye(STATES), (*steps, 1, 1)),
        np.zeros((*steps, STATES)),
        np.tile(model.process_noise.chol, (*steps, 1, 1)),
    )
    learner = with_start(model, windows)
    settings = members
    expected, (_, terms) = jax.jit(lambda: prssm.elbo(learner, jnp.zeros(()), windows, KEY, settings))()

    @jax.jit
    def bound(gates: vcdt.Gates) -> Any:
        return vcdt.elbo(Learner(model, gates), jnp.zeros((1, members, STATES)), windows, KEY, None)

    found, (_, others) = bound(gates)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(others["KL(x)"], 0.0, atol=1e-10)
    np.testing.assert_allclose(others["likelihood"], terms["likelihood"], rtol=1e-12)

    moved = vcdt.Gates(gates.weight, gates.bias + 0.1, gates.chol)
    assert abs(bound(moved)[0] - expected) > 0.1


def test_divergence_of_a_correction_is_that_of_two_gaussians() -> None:
    rng = np.random.default_rng(2)
    chol, chol_q = (np.linalg.cholesky(a @ a.T + np.eye(3)) for a in rng.standard_normal((2, 3, 3)))
    shift = rng.standard_normal((5, 3))
    inverse = np.linalg.inv(chol_q @ chol_q.T)
    log_dets = np.linalg.slogdet(chol_q @ chol_q.T)[1] - np.linalg.slogdet(chol @ chol.T)[1]
    each = [0.5 * (np.trace(inverse @ chol @ chol.T) + s @ inverse @ s - 3 + log_dets) for s in shift]
    np.testing.assert_allclose(vcdt._divergence(*map(jnp.asarray, (shift, chol, chol_q))), np.mean(each), rtol=1e-10)


def test_vcdt_begins_as_the_kalman_update() -> None:
    """With the start values as they are, the gates are the exact update of one prediction N(f, Q)."""
    model, windows = nonlinear_model(full=False), one_window()
    weight, bias, chol = vcdt.kalman_gates(model, windows)
    f, q, c = np.array([0.3, -0.2]), np.asarray(model.process_noise.covariance), np.asarray(model.emission.weight)
    s = c @ q @ c.T + np.asarray(model.obs_noise.covariance)
    gain = q @ c.T @ np.linalg.inv(s)
    y = windows.outputs[0, 0]
    np.testing.assert_allclose(weight[0, 0] @ f + bias[0, 0], f + gain @ (y - c @ f - model.emission.bias))
    np.testing.assert_allclose(chol[0, 0] @ chol[0, 0].T, q - gain @ c @ q, atol=1e-12)
    np.testing.assert_allclose(weight[0, 7] @ f + bias[0, 7], f)  # sample 7 is missing
    np.testing.assert_allclose(chol[0, 7] @ chol[0, 7].T, q, atol=1e-12)


def test_odgpssm_that_mixes_nothing_is_prssm() -> None:
    windows = one_window()
    plain, mixed = nonlinear_model(full=True), nonlinear_model(full=True, mixing=np.eye(STATES))

    @jax.jit
    def bound(model: GPSSM) -> Any:
        return prssm.elbo(with_start(model, windows), jnp.zeros(()), windows, KEY, 8)[0]

    np.testing.assert_allclose(bound(mixed), bound(plain), rtol=1e-12)
    other = nonlinear_model(full=True, mixing=np.array([[1.0, 0.5], [0.0, 1.0]]))
    assert abs(bound(other) - bound(plain)) > 0.1


def test_mixed_gps_are_correlated_in_everything_that_uses_them() -> None:
    """f = W g: moments of the dynamics, of moved members and of what the filter predicts."""
    mixing = np.array([[1.0, 0.8], [-0.5, 0.6]])
    plain, mixed = nonlinear_model(full=False), nonlinear_model(full=False, mixing=mixing)
    x = jnp.asarray(np.random.default_rng(3).standard_normal((4, STATES + INPUTS)))
    mean, noise = plain.transition.marginal()(x)
    mean_mixed, noise_mixed = mixed.transition.marginal()(x)
    factor = noise_mixed.chol
    base = plain.transition.mean(x)
    np.testing.assert_allclose(mean_mixed, base + (mean - base) @ mixing.T, rtol=1e-10)
    cov = np.einsum("nij,nkj->nik", factor, factor)
    np.testing.assert_allclose(cov, np.einsum("ij,nj,kj->nik", mixing, noise.variance, mixing), rtol=1e-10)

    q, variance = mixed.process_noise, mixed.process_noise.variance
    many = 40_000
    repeated = (jnp.tile(mean_mixed[:1], (many, 1)), FullNoise(jnp.tile(factor[:1], (many, 1, 1))))
    draws = jax.random.normal(KEY, (2, many, STATES))
    np.testing.assert_allclose(np.cov(ensemble.move(*repeated, q, draws).T), cov[0] + np.diag(variance), atol=0.02)
    predicted = ensemble.predict(*repeated, q, draws)
    np.testing.assert_allclose(predicted.spread, cov[0] + np.diag(variance), rtol=1e-6)


def test_envi_without_updates_scores_as_prssm_with_moments_matched() -> None:
    """Then EnVI's members are PRSSM's trajectories, scored by the Gaussian that has their moments."""
    model, windows, members = nonlinear_model(full=False), one_window(), 10
    options = ensemble.Options(update="sqrt")
    settings = envi.EnVISettings(members, 1, options, None, gap_length=5)
    data = envi.Data(windows, envi.Phase(gap_fraction=1.0))
    carry = jnp.zeros((1, members, STATES))
    _, (_, terms) = jit(lambda: envi.elbo(model, carry, data, KEY, settings), hot=True)()

    def matched(model: GPSSM, f: tuple[Any, Any], moved: Any, y: Any) -> Any:
        mean, noise = f
        c = model.emission.matrix
        cov = jnp.cov(mean.T) + noise.covariance + model.process_noise.covariance
        s = (c @ cov @ c.T + model.obs_noise.covariance)[0, 0]
        residual = y[0] - (c @ jnp.mean(mean, axis=0) + model.emission.bias)[0]
        return jnp.where(jnp.isnan(y[0]), 0.0, -0.5 * (residual**2 / s + jnp.log(2 * jnp.pi * s)))

    shapes = [u_shape(model, windows), (1, members, STATES), *noise_shapes(model, windows, members, options)]

    def by_prssm() -> Any:
        # After the numbers that EnVI draws for its batches and gaps there is nothing more.
        eps, eps_x0, noise, *_ = draw(KEY, shapes, [(0,), (1, LENGTH // 5 + 2), (1, 1)], dtype=carry.dtype)
        starts = model.initial_state.members(eps_x0)
        return prssm.trajectory_scores(model, starts, windows, eps, noise, matched)

    scores = jit(by_prssm, hot=True)()
    np.testing.assert_allclose(terms["likelihood"], jnp.sum(scores), rtol=1e-10)


@pytest.mark.parametrize("objective", ["PRSSM", "VCDT"])
def test_padding_and_missing_samples_say_nothing(objective: str) -> None:
    """What stands where nothing was recorded cannot matter."""
    model = nonlinear_model(full=False)
    y, c = recording()
    windows = cut([y], [c], LENGTH + 10)
    changed = windows._replace(inputs=np.where(windows.active[..., None] > 0, windows.inputs, 5.0))

    gates = vcdt.Gates(*vcdt.kalman_gates(model, windows))
    corrected = Learner(model, eqx.tree_at(lambda g: g.bias, gates, gates.bias + 0.1))

    @jax.jit
    def bound(windows: Windows) -> Any:
        if objective == "PRSSM":
            return prssm.elbo(with_start(model, windows), jnp.zeros(()), windows, KEY, 4)[0]
        return vcdt.elbo(corrected, jnp.zeros((1, 4, STATES)), windows, KEY, None)[0]

    np.testing.assert_allclose(bound(changed), bound(windows), rtol=1e-12)


SHORT = Schedule(max_steps=2, chunk=1)
# All of this is asked of EnVI and of the networks elsewhere; three differ little from their neighbours.
SLOW = dict.fromkeys(("EnVI", "DKF", "AD-EnKF", "CO-GPSSM", "VCDT (amortised)", "ODGPSSM"), pytest.mark.slow)


@pytest.mark.filterwarnings("ignore::gpssm.training.optimiser.TrainingWarning")
@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in registry.SYSTEMS])
def test_every_system_is_a_whole_method(name: str, tmp_path: Path) -> None:
    """Inputs, hidden states, gaps, two recordings; filter, forecast, transition, summary; save and load; a seed."""
    y, c = recording(60)
    method: StateSpaceMethod = registry.build(
        name, **registry.applicable(name, state_dim=STATES, num_inducing=INDUCING)
    )
    assert method.name == name
    fitted = replace(method, schedule=SHORT, window=25).fit([y, y], [c, c], seed=4, restarts=1)  # with padding
    assert fitted.method == name
    forecast = fitted.forecast(5, c[:5], num_paths=20)
    assert np.isfinite(forecast.samples).all()
    states = fitted.filter(y, c)
    assert np.isfinite(states.mean).all()
    assert np.isfinite(states.log_likelihood)
    mean, var = fitted.transition(np.zeros((3, STATES + INPUTS)))
    assert mean.shape == var.shape == (3, STATES)
    assert (var >= 0).all()
    assert name in str(fitted.summary())
    fitted.save(tmp_path / "model.gpssm")
    loaded = gpssm.load(tmp_path / "model.gpssm")
    np.testing.assert_array_equal(loaded.forecast(5, c[:5], num_paths=20).samples, forecast.samples)
