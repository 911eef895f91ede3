"""vGPSSM and CO-GPSSM: the bound against exact evidence, what must not count, the multiplier, short fits."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpssm
from gpssm.errors import InvalidInput
from gpssm.experiments import kink as experiment
from gpssm.filters import kalman
from gpssm.gp.kernels import RBF
from gpssm.gp.means import Linear
from gpssm.gp.sparse import SparseGP
from gpssm.methods import cogpssm, vgpssm
from gpssm.methods.base import Learner, contracted, contracting
from gpssm.methods.cogpssm import COGPSSM, Constraint, lagrangian
from gpssm.methods.vgpssm import VGPSSM, Chain, ChainNetwork, elbo
from gpssm.models.emission import LinearEmission
from gpssm.models.gpssm import GPSSM, InitialState, Transition
from gpssm.models.noise import DiagonalNoise
from gpssm.numerics.parameters import free_values, parameters, with_free_values
from gpssm.training import subspace
from gpssm.training.optimiser import Schedule
from gpssm.training.windows import Windows, cut

LENGTH, STATES = 40, 2
INPUTS = 1


def linear_model(amplitude: float = 1e-10, mixing: np.ndarray | None = None) -> GPSSM:
    """A GP state-space model with one input whose GP part has variance `amplitude`: linear where it is tiny."""
    m = 5
    z = np.random.default_rng(1).standard_normal((STATES, m, STATES + INPUTS))
    kernel = RBF(np.ones((STATES, STATES + INPUTS)), np.full(STATES, amplitude))
    gp = SparseGP(kernel, z, np.zeros((STATES, m)), np.tile(np.eye(m), (STATES, 1, 1)))
    eye = np.eye(STATES)
    return GPSSM(
        Transition(Linear(np.array([[0.9, 0.2, 0.5], [-0.3, 0.8, 0.0]]), np.array([0.1, -0.2])), gp, mixing),
        DiagonalNoise(np.array([0.1, 0.2])),
        LinearEmission(np.array([[1.0, 0.5], [0.0, 1.0]]), np.array([0.3, 0.0])),
        DiagonalNoise(np.array([0.3, 0.15])),
        InitialState(np.zeros((1, STATES)), eye[None], np.zeros(STATES), eye),
    )


def recording(model: GPSSM, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Outputs, some of them missing, and inputs."""
    rng = np.random.default_rng(seed)
    c = rng.standard_normal((LENGTH, INPUTS))
    x, rows = rng.standard_normal(STATES), []
    for now in c:
        x = model.transition.mean.weight @ np.concatenate([x, now]) + model.transition.mean.bias
        x = x + np.sqrt(model.process_noise.variance) * rng.standard_normal(STATES)
        noise = np.sqrt(model.obs_noise.variance) * rng.standard_normal(STATES)
        rows.append(model.emission.weight @ x + model.emission.bias + noise)
    y = np.array(rows)
    y[5, 0] = y[11] = np.nan
    return y, c


def exact_evidence(model: GPSSM, y: np.ndarray, c: np.ndarray) -> float:
    weight = np.asarray(model.transition.mean.weight)
    system = kalman.System(
        jnp.asarray(weight[:, :STATES]), model.process_noise.covariance, model.emission.matrix,
        jnp.asarray(model.emission.bias), model.obs_noise.covariance,
    )  # fmt: skip
    offsets = jnp.asarray(c @ weight[:, STATES:].T + model.transition.mean.bias)
    start = kalman.Gaussian(jnp.zeros(STATES), jnp.eye(STATES))
    return float(jnp.sum(kalman.filter(system, start, jnp.asarray(y), offsets).log_likelihood))


def exact_posterior(model: GPSSM, y: np.ndarray, c: np.ndarray) -> tuple[GPSSM, list[np.ndarray]]:
    """The smoothing distribution as q(x_0), in the model, and A_t (T, dx, dx), b_t (T, dx), L_t (T, dx, dx).

    With `p(y_{t:T} | x_t) ~ exp(-x' F x / 2 + h' x)`, passed on from the end to the beginning,
    `q(x_t | x_{t-1}) ~ p(x_t | x_{t-1}) p(y_{t:T} | x_t)`.
    """
    weight = np.asarray(model.transition.mean.weight)
    a, inverse_q = weight[:, :STATES], np.diag(1 / np.asarray(model.process_noise.variance))
    emission, bias, r = (
        np.asarray(part) for part in (model.emission.weight, model.emission.bias, model.obs_noise.variance)
    )
    precision, shift = np.zeros((STATES, STATES)), np.zeros(STATES)
    rows: list[tuple[np.ndarray, ...]] = []
    for now, control in zip(y[::-1], c[::-1], strict=True):
        seen = ~np.isnan(now)
        precision = precision + emission[seen].T @ np.diag(1 / r[seen]) @ emission[seen]
        shift = shift + emission[seen].T @ ((now - bias)[seen] / r[seen])
        cov = np.linalg.inv(inverse_q + precision)
        drift = inverse_q @ (weight[:, STATES:] @ control + model.transition.mean.bias)
        rows.append((cov @ inverse_q @ a, cov @ (drift + shift), np.linalg.cholesky(cov)))
        precision, shift = (
            a.T @ (inverse_q - inverse_q @ cov @ inverse_q) @ a,
            a.T @ (inverse_q @ cov @ (drift + shift) - drift),
        )
    cov = np.linalg.inv(np.eye(STATES) + precision)
    initial = InitialState((cov @ shift)[None], np.linalg.cholesky(cov)[None], np.zeros(STATES), np.eye(STATES))
    exact = eqx.tree_at(lambda m: m.initial_state, model, initial)
    return exact, [np.stack(part) for part in zip(*rows[::-1], strict=True)]


def in_windows(columns: list[np.ndarray], length: int) -> Chain:
    """A chain for the windows of one recording; NaN where they are padded, so that nobody can use it."""
    missing = -LENGTH % length
    padded = [np.pad(part, [(0, missing), *[(0, 0)] * (part.ndim - 1)], constant_values=np.nan) for part in columns]
    return Chain(*(jnp.asarray(part.reshape(-1, length, *part.shape[1:])) for part in padded))


_terms = jax.jit(vgpssm.terms, static_argnames="num_samples")


def evaluate(model: GPSSM, chain: Chain, windows: Windows, num_samples: int = 4000) -> vgpssm.Terms:
    arrays = jax.tree.map(jnp.asarray, (model, chain, windows))
    return _terms(*arrays, jax.random.key(0), num_samples=num_samples)


@pytest.mark.parametrize("length", [LENGTH, 7])
def test_bound_with_the_exact_posterior_is_the_evidence(length: int) -> None:
    """Oracle: the Kalman filter. Whether the recording is cut and padded or not, with gaps and inputs."""
    model = linear_model()
    y, c = recording(model)
    exact, columns = exact_posterior(model, y, c)
    parts = evaluate(exact, in_windows(columns, length), cut([y], [c], length))
    assert abs(float(parts.bound) - exact_evidence(model, y, c)) < 0.2
    assert float(parts.kl_x0) > 0.01


def test_a_wrong_q_costs_its_divergence() -> None:
    """The bound falls by KL[q || posterior], which is known in closed form where only L_t is wrong."""
    model = linear_model()
    y, c = recording(model)
    exact, (weight, offset, chol) = exact_posterior(model, y, c)
    evidence = exact_evidence(model, y, c)
    for wrong in ([weight, offset + 0.2, chol], [weight, offset, 1.5 * chol], [0.5 * weight, offset, chol]):
        bound = float(evaluate(exact, in_windows(wrong, LENGTH), cut([y], [c], LENGTH)).bound)
        assert bound < evidence - 1.0
    # The conditional divergence of a factor on L is known: T dx (1.5^2 - 1 - 2 log 1.5) / 2, and q(x_0) is right.
    wider = float(evaluate(exact, in_windows([weight, offset, 1.5 * chol], LENGTH), cut([y], [c], LENGTH)).bound)
    divergence = LENGTH * STATES * 0.5 * (1.5**2 - 1 - 2 * np.log(1.5))
    assert abs(wider - (evidence - divergence)) < 0.5


def test_what_is_not_known_of_f_costs_its_trace() -> None:
    """`1/2 tr(Q^{-1} V)`: exactly the marginal variance, for independent GPs and for mixed ones."""
    mixing = np.array([[1.0, 0.4], [-0.3, 0.8]])
    y, c = recording(linear_model())
    windows = cut([y], [c], LENGTH)
    for mix in (None, mixing):
        far = linear_model(amplitude=1e-10, mixing=mix)
        exact, columns = exact_posterior(far, y, c)
        # Inducing points so far away that f has the variance of the prior, 0.05, everywhere.
        wide = eqx.tree_at(
            lambda m: (m.transition.gp.inducing_inputs, m.transition.gp.kernel.variance),
            exact,
            (exact.transition.gp.inducing_inputs + 1e3, np.full(STATES, 0.05)),
        )
        chain = in_windows(columns, LENGTH)
        extra = evaluate(wide, chain, windows, 50).kl_x - evaluate(exact, chain, windows, 50).kl_x
        covariance = 0.05 * (np.eye(STATES) if mix is None else mix @ mix.T)
        expected = 0.5 * LENGTH * np.sum(np.diag(covariance) / np.asarray(far.process_noise.variance))
        assert float(extra) == pytest.approx(expected, rel=1e-6)


NETWORK = Learner(
    (_model := linear_model(amplitude=0.5, mixing=np.eye(STATES))),
    ChainNetwork.start(jax.random.key(1), _model, (STATES, INPUTS), 4),
)
SAMPLES = 4


@jax.jit
def value_and_gradient(free: dict[str, Any], windows: Windows) -> tuple[Any, Any]:
    """Of the bound with the network's chain, its terms beside it: one program for all tests."""

    def function(free: dict[str, Any]) -> tuple[Any, Any]:
        value, (_, told) = elbo(with_free_values(NETWORK, free), jnp.zeros(()), windows, jax.random.key(0), SAMPLES)
        return value, told

    return jax.value_and_grad(function, has_aux=True)(free)


@pytest.fixture(scope="module")
def free() -> dict[str, Any]:
    """The unconstrained parameters of the model and of the network."""
    return free_values(jax.tree.map(jnp.asarray, NETWORK), [p.name for p in parameters(NETWORK)])


def test_padding_contributes_nothing(free: dict[str, Any]) -> None:
    """What lies in the padding changes nothing, not even what the network reads."""
    y, c = recording(NETWORK.model)
    windows = cut([y], [c], 7)
    assert (windows.active == 0).any()
    noisy = np.where(windows.active[..., None] > 0, windows.inputs, 100.0)
    values = [
        float(value_and_gradient(free, windows._replace(inputs=inputs))[0][0])
        for inputs in (windows.inputs, noisy, windows.inputs + 0.1)
    ]
    assert values[0] == values[1]
    assert values[0] != values[2]  # not for want of looking


def test_missing_outputs_are_read_as_missing(free: dict[str, Any]) -> None:
    """A recording without a single output has no likelihood and a finite bound; a missing channel is not a zero."""
    y, c = recording(NETWORK.model)
    nothing, something, filled = (
        value_and_gradient(free, cut([rows], [c], 7)) for rows in (np.full_like(y, np.nan), y, np.nan_to_num(y))
    )
    assert float(nothing[0][1]["likelihood"]) == 0.0 and np.isfinite(float(nothing[0][0]))
    for _, gradient in (nothing, something):
        assert all(np.isfinite(leaf).all() for leaf in gradient.values())
    assert abs(float(something[0][0]) - float(filled[0][0])) > 0.1


def test_gradient_matches_finite_differences(free: dict[str, Any]) -> None:
    """Along random directions, of every parameter of the model and of the network, in cut and padded windows."""
    y, c = recording(NETWORK.model)
    windows = cut([y], [c], 7)
    gradient = value_and_gradient(free, windows)[1]
    rng = np.random.default_rng(0)
    for name, centre in free.items():
        direction = rng.standard_normal(centre.shape)
        if name.endswith("chol"):
            direction = np.tril(direction)
        ahead, behind = (
            float(value_and_gradient(free | {name: centre + h * direction}, windows)[0][0]) for h in (1e-5, -1e-5)
        )
        slope = float(jnp.sum(gradient[name] * direction))
        assert slope == pytest.approx((ahead - behind) / 2e-5, rel=2e-4, abs=2e-4), name


class Given(eqx.Module):
    """In the place of a network: a chain that does not depend on what there is to read."""

    chain: Chain

    def __call__(self, windows: Windows) -> Chain:
        return self.chain


@pytest.fixture(scope="module")
def given() -> dict[str, tuple[Any, Any]]:
    """Values and gradients of the bound, and of the Lagrangian with multipliers 1 and 3, fixed and learned."""
    model = linear_model(amplitude=0.5)
    y, c = recording(model)
    _, columns = exact_posterior(model, y, c)
    windows = cut([y], [c], LENGTH)._replace(log_volume=np.asarray(LOG_VOLUME))
    arguments = jax.tree.map(jnp.asarray, (Learner(model, Given(in_windows(columns, LENGTH))), windows))

    def evaluated(objective: Any, settings: Any) -> Any:
        run = jax.jit(jax.value_and_grad(objective, has_aux=True), static_argnums=4)
        return lambda carry: run(arguments[0], carry, arguments[1], KEY, settings)

    fixed, learned = (evaluated(lagrangian, cogpssm.COGPSSMSettings(4, learned)) for learned in (False, True))
    three = CONSTRAINT._replace(multiplier=jnp.asarray(3.0))
    return {
        "bound": evaluated(elbo, SAMPLES)(jnp.zeros(())),
        "fixed 1": fixed(CONSTRAINT),
        "learned 1": learned(CONSTRAINT),
        "fixed 3": fixed(three),
        "learned 3": learned(three),
    }


CONSTRAINT = Constraint(jnp.ones(()), jnp.zeros(()), jnp.asarray(0.2))
LOG_VOLUME = 12.0
KEY = jax.random.key(5)


def assert_same_gradient(a: tuple[Any, Any], b: tuple[Any, Any]) -> None:
    for one, other in zip(jax.tree.leaves(a[1]), jax.tree.leaves(b[1]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_a_multiplier_of_one_is_vgpssm(given: dict[str, tuple[Any, Any]]) -> None:
    """Same value and same gradient for the same random key, in the user's units."""
    for case in ("fixed 1", "learned 1"):
        assert float(given[case][0][0]) == pytest.approx(float(given["bound"][0][0]), rel=1e-12)
        assert_same_gradient(given[case], given["bound"])


def test_gradient_is_that_of_the_lagrangian_and_the_value_is_the_bound(given: dict[str, tuple[Any, Any]]) -> None:
    """With a learned multiplier; with a fixed one the value, too, is the Lagrangian of standardised outputs."""
    bound, (_, told) = given["bound"][0]
    assert float(given["learned 3"][0][0]) == pytest.approx(float(bound), rel=1e-12)
    density = float(told["likelihood"]) + LOG_VOLUME
    assert float(given["fixed 3"][0][0]) == pytest.approx(float(bound) + 2.0 * density, rel=1e-9)
    assert_same_gradient(given["learned 3"], given["fixed 3"])
    offsets = [given[case][1].states.chain.offset for case in ("learned 3", "bound")]
    assert not np.allclose(*offsets)


def test_a_linear_mean_is_kept_a_contraction() -> None:
    """Its norm is limited and nothing else changes; the objective is that of the model it returns."""
    model = linear_model()
    weight = np.asarray(model.transition.mean.weight)
    for factor in (0.5, 3.0):
        scaled = eqx.tree_at(lambda m: m.transition.mean.weight, model, factor * weight)
        result = np.asarray(contracted(scaled).transition.mean.weight)
        norm = factor * np.linalg.norm(weight[:, :STATES], 2)
        expected = factor * weight[:, :STATES] * min(1.0, 0.995 / norm)
        np.testing.assert_allclose(result[:, :STATES], expected, rtol=1e-12)
        np.testing.assert_array_equal(result[:, STATES:], factor * weight[:, STATES:])
    y, c = recording(model)
    _, columns = exact_posterior(model, y, c)
    states, windows = Given(in_windows(columns, LENGTH)), jax.tree.map(jnp.asarray, cut([y], [c], LENGTH))
    objectives = {True: contracting(elbo), False: elbo}
    run = jax.jit(
        lambda learner, contract: objectives[contract](learner, jnp.zeros(()), windows, KEY, 4)[0], static_argnums=1
    )
    bounds = [
        float(run(jax.tree.map(jnp.asarray, Learner(each, states)), contract))
        for each, contract in ((scaled, True), (contracted(scaled), False), (scaled, False))
    ]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-12) and bounds[0] > bounds[2] + 1.0
    # Hidden states start from the identity, whose singular values are all the same.
    still = eqx.tree_at(lambda m: m.transition.mean.weight, model, jnp.eye(STATES, STATES + INPUTS))
    gradient = jax.grad(lambda m: jnp.sum(contracted(m).transition.mean.weight ** 2), allow_int=True)(
        jax.tree.map(jnp.asarray, still)
    )
    assert np.isfinite(gradient.transition.mean.weight).all()


def test_multiplier_follows_the_constraint() -> None:
    """It rises as long as the error is too large, falls once it is small, and stays within its limits."""
    state, course = CONSTRAINT, []
    after = jax.jit(Constraint.after)
    for error in [0.5] * 300 + [0.02] * 600:
        state = after(state, error)
        course.append(float(state.multiplier))
    rising, falling = np.diff(course[:100]), np.diff(course[330:400])
    assert (rising > 0).all() and (falling < 0).all()
    assert max(course) == pytest.approx(cogpssm._LIMITS[1]) and min(course) == pytest.approx(cogpssm._LIMITS[0])


def test_tolerance_by_default() -> None:
    """R where it is known; else what a linear model leaves, which lies between the noise and the output."""
    data = gpssm.datasets.kink(length=200, process_noise=0.0025, obs_noise=0.08, seed=0)
    scale = data.outputs.std() ** 2
    noise = cogpssm.unpredicted([data.outputs / np.sqrt(scale)], [data.outputs[:, :0]], 1)
    assert 0.08 / scale < noise < 1.0
    rng = np.random.default_rng(0)
    x = np.zeros((400, 1))
    for t in range(1, 400):
        x[t] = 0.9 * x[t - 1] + 0.1 * rng.standard_normal()
    # A linear system seen without noise: what cannot be predicted is what moves it.
    assert cogpssm.unpredicted([x], [x[:, :0]], 1) == pytest.approx(0.01, rel=0.2)


def test_arguments_are_checked() -> None:
    for wrong in (0.0, -1.0, np.inf, "big"):
        with pytest.raises(InvalidInput, match="multiplier"):
            COGPSSM(1, multiplier=wrong)
        with pytest.raises(InvalidInput, match="tolerance"):
            COGPSSM(1, tolerance=wrong)
    with pytest.raises(InvalidInput, match="num_samples"):
        VGPSSM(1, num_samples=0)
    assert (VGPSSM(1).name, COGPSSM(1).name) == ("vGPSSM", "CO-GPSSM")


@pytest.mark.slow
@pytest.mark.parametrize("method", [VGPSSM, COGPSSM])
def test_short_fit_of_the_kink(method: type[VGPSSM], tmp_path: Path) -> None:
    """Far better than where it began, and the same after it was saved; a missing sample does no harm."""
    data = gpssm.datasets.kink(length=150, process_noise=0.0025, obs_noise=0.008, seed=0)
    y = data.outputs.copy()
    y[40] = np.nan
    known = {"obs_noise": 0.008, "fixed": ("obs_noise",), "num_samples": 4, "width": 8}
    fit = method(1, 10, schedule=Schedule(max_steps=300, decay_steps=100, chunk=20), **known).fit(y, seed=0)
    linear = subspace.one_step([data.outputs], [data.outputs[:, :0]])
    at_start = experiment.GRID * linear[0][0, 0] + linear[1][0]
    before = np.mean((at_start - gpssm.datasets.kink_function(experiment.GRID)) ** 2)
    assert experiment.score_fit(fit, 0.0)["mse"] < 0.1 * before
    assert fit.history.best > fit.history.elbo[0] + 50.0
    assert ("multiplier" in fit.history.terms) == (method is COGPSSM)
    path = tmp_path / "model.gpssm"
    fit.save(path)
    x = np.linspace(-3, 1, 9)[:, None]
    for a, b in zip(fit.transition(x), gpssm.load(path).transition(x), strict=True):
        np.testing.assert_array_equal(a, b)
