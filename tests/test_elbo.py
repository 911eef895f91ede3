"""The evidence bound against exact evidence, finite differences and its own definition."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.filters import ensemble, kalman
from gpssm.gp.kernels import RBF
from gpssm.gp.means import Linear
from gpssm.gp.sparse import SparseGP
from gpssm.methods.envi import Data, EnVISettings, Phase, elbo
from gpssm.models.emission import LinearEmission
from gpssm.models.gpssm import GPSSM, InitialState, Transition
from gpssm.models.noise import DiagonalNoise
from gpssm.numerics.parameters import free_values, parameters, with_free_values
from gpssm.training.windows import Windows, cut

LENGTH, STATES, OUTPUTS = 40, 2, 2


def linear_model(amplitude: float = 1e-10, sequences: int = 1) -> GPSSM:
    """A GP state-space model whose GP part has variance `amplitude`: linear where it is tiny."""
    weight = np.array([[0.9, 0.2], [-0.3, 0.8]])
    m = 5
    z = np.random.default_rng(1).standard_normal((STATES, m, STATES))
    gp = SparseGP(
        RBF(np.ones((STATES, STATES)), np.full(STATES, amplitude)),
        z,
        np.zeros((STATES, m)),
        np.tile(np.eye(m), (STATES, 1, 1)),
    )
    eye = np.eye(STATES)
    initial = InitialState(np.zeros((sequences, STATES)), np.tile(eye, (sequences, 1, 1)), np.zeros(STATES), eye)
    return GPSSM(
        Transition(Linear(weight, np.array([0.1, -0.2])), gp),
        DiagonalNoise(np.array([0.1, 0.2])),
        LinearEmission(np.array([[1.0, 0.5], [0.0, 1.0]]), np.array([0.3, 0.0])),
        DiagonalNoise(np.array([0.3, 0.15])),
        initial,
    )


def simulate(model: GPSSM, length: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x, rows = rng.standard_normal(STATES), []
    for _ in range(length):
        x = model.transition.mean.weight @ x + model.transition.mean.bias
        x = x + np.sqrt(model.process_noise.variance) * rng.standard_normal(STATES)
        noise = np.sqrt(model.obs_noise.variance) * rng.standard_normal(OUTPUTS)
        rows.append(model.emission.weight @ x + model.emission.bias + noise)
    return np.array(rows)


def exact_evidence(model: GPSSM, outputs: np.ndarray) -> float:
    system = kalman.System(
        jnp.asarray(model.transition.mean.weight),
        model.process_noise.covariance,
        model.emission.matrix,
        jnp.asarray(model.emission.bias),
        model.obs_noise.covariance,
    )
    start = kalman.Gaussian(jnp.zeros(STATES), jnp.eye(STATES))
    offsets = jnp.tile(model.transition.mean.bias, (len(outputs), 1))
    return float(jnp.sum(kalman.filter(system, start, jnp.asarray(outputs), offsets).log_likelihood))


def evaluate(
    model: GPSSM, windows: Windows, settings: EnVISettings, key: int = 0, phase: Phase = Phase()
) -> tuple[Any, Any]:
    carry = jnp.zeros((windows.outputs.shape[0], settings.num_members, STATES))
    data = jax.tree.map(jnp.asarray, Data(windows, phase))
    return _elbo(jax.tree.map(jnp.asarray, model), carry, data, jax.random.key(key), settings=settings)


_elbo = jax.jit(elbo, static_argnames="settings")


def settings(
    members: int, update: str = "perturbed", moments: str = "exact_noise", gap_length: int = 0
) -> EnVISettings:
    return EnVISettings(members, 1, ensemble.Options(moments, update), None, gap_length)


@pytest.mark.parametrize("update", ["perturbed", "sqrt", "mixture"])
def test_bound_of_a_linear_system_is_its_evidence(update: str) -> None:
    """Oracle: the Kalman filter. q(u) is the prior and f is linear, so the bound has no gap."""
    model = linear_model()
    y = simulate(model, LENGTH, 3)
    y[5, 0] = y[11] = np.nan
    value, (_, terms) = evaluate(model, cut([y], [y[:, :0]], LENGTH), settings(4000, update))
    exact = exact_evidence(model, y)
    assert abs(float(value) - exact) < 0.5, (float(value), exact)
    assert float(terms["KL(u)"]) == pytest.approx(0.0, abs=1e-9)
    assert float(terms["KL(x0)"]) == pytest.approx(0.0, abs=1e-9)


def test_bound_lies_below_the_evidence_when_q_is_wrong() -> None:
    """A q(u) and q(x0) that differ from the prior must cost exactly their divergences here."""
    model = linear_model()
    y = simulate(model, LENGTH, 3)
    gp = model.transition.gp
    wrong = GPSSM(
        Transition(model.transition.mean, SparseGP(gp.kernel, gp.inducing_inputs, gp.q_mean + 0.5, 0.5 * gp.q_chol)),
        model.process_noise,
        model.emission,
        model.obs_noise,
        model.initial_state,
    )
    value, (_, terms) = evaluate(wrong, cut([y], [y[:, :0]], LENGTH), settings(4000))
    kl = 0.5 * (0.25 - 1 - np.log(0.25) + 0.25) * gp.q_mean.size
    assert float(terms["KL(u)"]) == pytest.approx(kl, rel=1e-9)
    assert float(value) == pytest.approx(float(terms["likelihood"]) - kl, rel=1e-9)
    assert float(value) < exact_evidence(model, y) - kl + 0.5


def test_windows_side_by_side_give_the_evidence_too() -> None:
    """With starts carried over from the left neighbour the windowed likelihood settles at the exact one."""
    model = linear_model()
    y = simulate(model, LENGTH, 4)
    data = jax.tree.map(jnp.asarray, Data(cut([y], [y[:, :0]], 10)))
    options, members = settings(4000), 4000
    step = jax.jit(lambda carry, key: elbo(jax.tree.map(jnp.asarray, model), carry, data, key, options))
    carry = jnp.zeros((4, members, STATES))
    for i in range(5):  # as many iterations as there are windows to pass the start along
        value, (carry, _) = step(carry, jax.random.key(i))
    assert abs(float(value) - exact_evidence(model, y)) < 0.5


def test_sequences_of_different_length_add_up() -> None:
    """Two recordings in one objective score the sum of their exact evidences."""
    model = linear_model(sequences=2)
    ys = [simulate(model, 25, 5), simulate(model, 40, 6)]
    value, _ = evaluate(model, cut(ys, [y[:, :0] for y in ys], 40), settings(4000))
    assert abs(float(value) - sum(exact_evidence(model, y) for y in ys)) < 0.6


def test_gap_training_scores_every_sample_and_updates_on_none() -> None:
    """With every update skipped the score is that of marginals of the free-running system, in closed form."""
    model = linear_model()
    y = simulate(model, 15, 7)
    always = settings(10_000, gap_length=5)
    value, _ = evaluate(model, cut([y], [y[:, :0]], 15), always, phase=Phase(gap_fraction=1.0))
    mean, cov, total = np.zeros(STATES), np.eye(STATES), 0.0
    a, c = np.asarray(model.transition.mean.weight), np.asarray(model.emission.weight)
    for row in y:
        mean = a @ mean + np.asarray(model.transition.mean.bias)
        cov = a @ cov @ a.T + np.asarray(model.process_noise.covariance)
        s = c @ cov @ c.T + np.asarray(model.obs_noise.covariance)
        r = row - c @ mean - np.asarray(model.emission.bias)
        total -= 0.5 * (r @ np.linalg.solve(s, r) + np.linalg.slogdet(2 * np.pi * s)[1])
    assert abs(float(value) - total) < 0.3


def test_weight_of_the_kl_is_a_weight() -> None:
    model = linear_model(amplitude=0.5)
    model = eqx.tree_at(lambda m: m.transition.gp.q_mean, model, np.ones_like(model.transition.gp.q_mean))
    y = simulate(model, 12, 8)
    windows = cut([y], [y[:, :0]], 12)
    once, (_, terms) = evaluate(model, windows, settings(8))
    four_times, _ = evaluate(model, windows, settings(8), phase=Phase(kl_weight=4.0))
    assert float(terms["KL(u)"]) > 0.1
    assert float(once - four_times) == pytest.approx(3 * float(terms["KL(u)"]), rel=1e-9)


@pytest.mark.parametrize("update", ["perturbed", "sqrt"])
@pytest.mark.parametrize("moments", ["exact_noise", pytest.param("sampled", marks=pytest.mark.slow)])
def test_gradient_matches_finite_differences(update: str, moments: str) -> None:
    """Central differences along random directions, through time and through missing samples."""
    model = linear_model(amplitude=0.5)
    y = simulate(model, 12, 8)
    y[3, 1] = y[7] = np.nan
    windows = cut([y], [y[:, :0]], 12)
    names = [p.name for p in parameters(model)]
    free = free_values(jax.tree.map(jnp.asarray, model), names)

    @jax.jit
    @jax.value_and_grad
    def both(free: dict[str, jax.Array]) -> Any:
        return evaluate(with_free_values(model, free), windows, settings(8, update, moments))[0]

    gradient = both(free)[1]
    rng = np.random.default_rng(0)
    for name in names:
        direction = rng.standard_normal(free[name].shape)
        if name.endswith("chol"):
            direction = np.tril(direction)
        h = 1e-5
        ahead, _ = both(free | {name: free[name] + h * direction})
        behind, _ = both(free | {name: free[name] - h * direction})
        expected = float(ahead - behind) / (2 * h)
        assert float(jnp.sum(gradient[name] * direction)) == pytest.approx(expected, rel=2e-4, abs=2e-5), name


@pytest.mark.slow
def test_compiled_equals_eager() -> None:
    """Guards against miscompilation: the same objective, operation by operation and as one program."""
    model = linear_model(amplitude=0.5)
    y = simulate(model, 2, 9)
    windows = cut([y], [y[:, :0]], 2)
    options = settings(16, "mixture")
    compiled = evaluate(model, windows, options)[0]
    with jax.disable_jit():
        eager = evaluate(model, windows, options)[0]
    assert float(compiled) == pytest.approx(float(eager), rel=1e-10)


def test_samples_of_u_differ_between_windows_without_bias() -> None:
    """Many windows with one sample each, and many samples for one window, estimate the same expectation."""
    model = linear_model(amplitude=0.3)
    y = simulate(model, 8, 10)
    windows = cut([y] * 400, [y[:, :0]] * 400, 8)
    many = linear_model(amplitude=0.3, sequences=400)
    options = EnVISettings(64, 1, ensemble.Options(), None, 0)
    repeated = EnVISettings(64, 400, ensemble.Options(), None, 0)
    a = float(evaluate(many, windows, options)[1][1]["likelihood"]) / 400
    b = float(evaluate(model, cut([y], [y[:, :0]], 8), repeated)[1][1]["likelihood"])
    assert abs(a - b) < 0.6
