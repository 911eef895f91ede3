"""Transitions that are networks, and the two methods that learn them, against exact evidence."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot
import numpy as np
import pytest

matplotlib.use("Agg")


import gpssm
from gpssm import plots
from gpssm.filters import ensemble, kalman
from gpssm.gp.means import Linear
from gpssm.methods import adenkf, dkf, envi
from gpssm.methods.adenkf import ADEnKF
from gpssm.methods.base import Learner, StateSpaceMethod
from gpssm.methods.dkf import DKF, StructuredInference
from gpssm.models.emission import LinearEmission
from gpssm.models.gpssm import GPSSM, InitialState
from gpssm.models.neural import GatedTransition, NeuralTransition, ResidualTransition
from gpssm.models.noise import DiagonalNoise
from gpssm.posteriors.history import History
from gpssm.posteriors.posterior import Posterior
from gpssm.training.optimiser import Schedule
from gpssm.training.windows import Windows, cut

STATES, LENGTH = 2, 30
# Coordinates are independent, so that the exact posterior is in reach of diagonal Gaussians.
WEIGHT, BIAS = np.diag([0.9, 0.7]), np.array([0.1, -0.2])
PROCESS, OBS = np.array([0.1, 0.2]), np.array([0.3, 0.15])
SHORT = Schedule(learning_rate=0.02, max_steps=60, decay_steps=20, chunk=20)


def model_around(transition: NeuralTransition, process_noise: np.ndarray, sequences: int = 1) -> GPSSM:
    eye = np.eye(STATES)
    initial = InitialState(np.zeros((sequences, STATES)), np.tile(eye, (sequences, 1, 1)), np.zeros(STATES), eye)
    emission = LinearEmission(np.eye(STATES), np.array([0.3, 0.0]))
    return GPSSM(transition, DiagonalNoise(process_noise), emission, DiagonalNoise(OBS), initial)


def residual_model() -> GPSSM:
    """Linear: the last layer of its network is zero."""
    return model_around(ResidualTransition.start(jax.random.key(0), Linear(WEIGHT, BIAS), 8, 0.0), PROCESS)


def gated_model() -> GPSSM:
    """Linear with constant variance: the gate is shut, and the spread does not look at the state."""
    transition = GatedTransition.start(jax.random.key(0), Linear(WEIGHT, BIAS), 8, PROCESS, 60.0)
    transition = eqx.tree_at(lambda t: t.spread.weight, transition, np.zeros((STATES, STATES)))
    return model_around(transition, np.full(STATES, 1e-12))


def simulate(length: int, seed: int) -> np.ndarray:
    rng, emission = np.random.default_rng(seed), residual_model().emission
    x, rows = rng.standard_normal(STATES), []
    for _ in range(length):
        x = WEIGHT @ x + BIAS + np.sqrt(PROCESS) * rng.standard_normal(STATES)
        rows.append(emission.weight @ x + emission.bias + np.sqrt(OBS) * rng.standard_normal(STATES))
    return np.array(rows)


def recording(length: int = LENGTH, seed: int = 3) -> np.ndarray:
    y = simulate(length, seed)
    y[5, 0] = y[11] = np.nan
    return y


def evidence(y: np.ndarray) -> float:
    """`log p(y)` of the linear system that both models are, by the Kalman filter."""
    model = residual_model()
    system = kalman.System(
        jnp.asarray(WEIGHT), jnp.diag(jnp.asarray(PROCESS)), model.emission.matrix,
        jnp.asarray(model.emission.bias), model.obs_noise.covariance,
    )  # fmt: skip
    first = kalman.Gaussian(jnp.zeros(STATES), jnp.eye(STATES))
    trace = kalman.filter(system, first, jnp.asarray(y), jnp.tile(jnp.asarray(BIAS), (len(y), 1)))
    return float(jnp.sum(trace.log_likelihood))


def windows_of(*ys: np.ndarray, length: int) -> Windows:
    return jax.tree.map(jnp.asarray, cut(list(ys), [y[:, :0] for y in ys], length))


def as_jax(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)


# The transitions -----------------------------------------------------------------------------------


def transitions() -> list[NeuralTransition]:
    mean = Linear(np.random.default_rng(0).standard_normal((2, 3)), np.ones(2))
    key = jax.random.key(1)
    return [ResidualTransition.start(key, mean, 8, 1.0), GatedTransition.start(key, mean, 8, np.full(2, 0.5), 0.0)]


@pytest.mark.parametrize("transition", transitions(), ids=["residual", "gated"])
def test_windows_side_by_side_are_rows_one_by_one(transition: NeuralTransition) -> None:
    """What `unroll` and `sample_paths` ask for agree with f itself; a sample of u has no entries."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 4, 3)))
    alphas = jnp.zeros((3, 2, 0))
    prior = transition.prior()
    mean, noise = prior.side_by_side(x, alphas)
    for i in range(3):
        expected = prior.given(transition.draw(prior, alphas[i]))(x[i])
        np.testing.assert_allclose(mean[i], expected[0], rtol=1e-12)
        np.testing.assert_allclose(noise.variance[i], expected[1].variance, rtol=1e-12)
    assert (transition.state_dim, transition.num_inducing) == (2, 0)
    assert float(transition.kl()) == 0.0


def test_residual_transition_is_its_line_plus_its_network() -> None:
    transition = transitions()[0]
    x = np.random.default_rng(1).standard_normal((5, 3))
    layers = transition.network.layers
    hidden = x
    for layer in layers[:-1]:
        hidden = np.tanh(hidden @ np.asarray(layer.weight).T + layer.bias)
    expected = x @ transition.mean.weight.T + transition.mean.bias + hidden @ layers[-1].weight.T + layers[-1].bias
    mean, var = jax.tree.leaves(transition(jnp.asarray(x)))
    np.testing.assert_allclose(mean, expected, rtol=1e-6)
    np.testing.assert_array_equal(var, 0.0)


def test_gated_transition_follows_its_equations() -> None:
    """The paper's gate, and at the start the given variance."""
    transition = transitions()[1]
    x = np.random.default_rng(1).standard_normal((5, 3))
    g, h = (
        1 / (1 + np.exp(-np.asarray(transition.gate(jnp.asarray(x))))),
        np.asarray(transition.proposal(jnp.asarray(x))),
    )
    line = x @ transition.mean.weight.T + transition.mean.bias
    mean, var = jax.tree.leaves(transition(jnp.asarray(x)))
    np.testing.assert_allclose(mean, (1 - g) * line + g * h, rtol=1e-6)
    spread = np.maximum(h, 0) @ transition.spread.weight.T + transition.spread.bias
    np.testing.assert_allclose(var, np.log1p(np.exp(spread)), rtol=1e-6)
    assert np.asarray(var).mean() == pytest.approx(0.5, rel=0.3)


# AD-EnKF -------------------------------------------------------------------------------------------


def filter_settings(members: int, update: ensemble.Update = "perturbed") -> envi.EnVISettings:
    return envi.EnVISettings(members, 1, ensemble.Options(update=update), None, 0)


def test_adenkf_reaches_the_exact_likelihood_as_the_ensemble_grows() -> None:
    """Oracle: the Kalman filter. The error falls with N, and is small for many members."""
    y = recording()
    model, windows = as_jax(residual_model()), windows_of(y, length=LENGTH)
    exact = evidence(y)

    def error(members: int) -> float:
        carry = jnp.zeros((1, members, STATES))
        keys = jax.random.split(jax.random.key(0), 8)
        each = jax.jit(
            jax.vmap(lambda key: adenkf.log_likelihood(model, carry, windows, key, filter_settings(members, "sqrt"))[0])
        )(keys)
        return float(jnp.sqrt(jnp.mean((each - exact) ** 2)))

    few, many = error(20), error(1000)
    assert many < 0.4 * few
    assert many < 0.3


def test_adenkf_has_nothing_but_the_likelihood_in_its_objective() -> None:
    """A q(x_0) far from p(x_0) costs nothing beyond what it predicts; EnVI's bound pays its divergence."""
    y = recording()
    model = as_jax(residual_model())
    model = eqx.tree_at(lambda m: m.initial_state.mean, model, jnp.full((1, STATES), 1.5))
    windows, carry, settings = windows_of(y, length=LENGTH), jnp.zeros((1, 64, STATES)), filter_settings(64)

    @jax.jit
    def both(key: Any) -> Any:
        return (
            adenkf.log_likelihood(model, carry, windows, key, settings),
            envi.elbo(model, carry, envi.Data(windows), key, settings),
        )

    (value, (_, terms)), (bound, _) = both(jax.random.key(0))
    assert set(terms) == {"likelihood"}
    assert float(value - bound) == pytest.approx(1.5**2, rel=1e-9)


def test_adenkf_gradient_is_finite_and_reaches_every_weight() -> None:
    """Through time, missing samples and padding."""
    transition = ResidualTransition.start(jax.random.key(0), Linear(WEIGHT, BIAS), 4, 1.0)
    model, windows = as_jax(model_around(transition, PROCESS)), windows_of(recording(), length=8)
    carry = jax.random.normal(jax.random.key(2), (4, 8, STATES))
    settings = filter_settings(8, "sqrt")
    gradient = jax.jit(jax.grad(lambda m: adenkf.log_likelihood(m, carry, windows, jax.random.key(0), settings)[0]))
    for leaf in jax.tree.leaves(gradient(model).transition):
        assert np.isfinite(leaf).all()
        assert np.abs(leaf).max() > 0


# DKF -----------------------------------------------------------------------------------------------

_elbo = jax.jit(dkf.elbo, static_argnames="settings")


def inference(seed: int = 0, width: int = 6) -> StructuredInference:
    return StructuredInference.start(jax.random.key(seed), width, STATES, STATES, 0)


class ExactInference(eqx.Module):
    """q(x_t | x_{t-1}, y_{t:T}) as a perfect network would say it.

    `p(y_{t:T} | x_t) ~ exp(-J_t x_t^2 / 2 + e_t x_t)` in every coordinate, by a backward information
    filter; h_t = [J_t, e_t].
    """

    information: Any  # (T, 2 dx)
    before: Any  # (2 dx,), of x_0

    @classmethod
    def of(cls, y: np.ndarray) -> "ExactInference":
        a, ahead, rows = np.diagonal(WEIGHT), (np.zeros(STATES), np.zeros(STATES)), []
        for row in (y - residual_model().emission.bias)[::-1]:
            seen = ~np.isnan(row)
            precision = ahead[0] + np.where(seen, 1.0 / OBS, 0.0)
            shift = ahead[1] + np.where(seen, np.nan_to_num(row) / OBS, 0.0)
            rows.append(np.concatenate([precision, shift]))
            shrink = 1.0 + PROCESS * precision
            ahead = a**2 * precision / shrink, a * (shift - precision * BIAS) / shrink
        return cls(jnp.asarray(rows[::-1]), jnp.concatenate(ahead))

    def read(self, windows: Windows) -> Any:
        return self.information[None]

    def initial(self, read: Any, prior: InitialState) -> InitialState:
        precision, shift = jnp.split(self.before, 2)
        var = 1.0 / (1.0 + precision)
        return InitialState((var * shift)[None], jnp.diag(jnp.sqrt(var))[None], prior.prior_mean, prior.prior_chol)

    def __call__(self, x: Any, h: Any) -> tuple[Any, Any]:
        precision, shift = jnp.split(h, 2)
        var = 1.0 / (1.0 / PROCESS + precision)
        mean = var * ((x @ WEIGHT.T + BIAS) / PROCESS + shift)
        return mean, jnp.broadcast_to(var, mean.shape)


def bound(
    states: Any, windows: Windows, *, samples: int = 2000, batch: int = 99, model: GPSSM | None = None, seed: int = 0
) -> tuple[float, dict[str, float]]:
    learner = as_jax(Learner(gated_model() if model is None else model, states))
    value, (_, terms) = _elbo(
        learner, jnp.asarray(100.0), windows, jax.random.key(seed), settings=dkf.DKFSettings(samples, batch, 1)
    )
    return float(value), {name: float(term) for name, term in terms.items()}


def test_dkf_bound_with_the_exact_posterior_is_the_evidence() -> None:
    """Oracle: the Kalman filter. There is no gap where the network says what the posterior is."""
    y = recording()
    value, terms = bound(ExactInference.of(y), windows_of(y, length=LENGTH), samples=20_000)
    assert abs(value - evidence(y)) < 0.1
    assert terms["KL(x)"] > 1.0
    assert value == pytest.approx(terms["likelihood"] - terms["KL(x)"] - terms["KL(x0)"])


@pytest.mark.parametrize("seed", range(3))
def test_dkf_bound_lies_below_the_evidence(seed: int) -> None:
    y = recording()
    value, _ = bound(inference(seed), windows_of(y, length=LENGTH))
    assert value < evidence(y) - 1.0


def test_dkf_padding_contributes_nothing() -> None:
    """The same recording in a window of its length, and in a longer one whose end is inactive."""
    y = simulate(20, 4)
    y[5, 0] = np.nan
    exactly, extra = windows_of(y, length=20), ((0, 0), (0, LENGTH - 20), (0, 0))
    padded = exactly._replace(
        outputs=jnp.pad(exactly.outputs, extra, constant_values=jnp.nan),
        inputs=jnp.pad(exactly.inputs, extra),
        active=jnp.pad(exactly.active, extra[:2]),
    )
    network = as_jax(inference())
    np.testing.assert_allclose(network.read(padded)[:, :20], network.read(exactly), rtol=1e-12)
    short, long = (bound(inference(), w)[0] for w in (exactly, padded))
    assert short == pytest.approx(long, abs=1.0)  # other random numbers; ten samples would be worth 20
    # With y there, the padding must still be silent, whatever it holds.
    loud = padded._replace(outputs=padded.outputs.at[:, 20:].set(7.0))
    assert bound(inference(), loud)[1]["KL(x)"] == bound(inference(), padded)[1]["KL(x)"]
    assert bound(inference(), loud)[0] == bound(inference(), padded)[0]


def test_dkf_missing_outputs_have_no_density_but_their_states_a_divergence() -> None:
    y = recording()
    gone = windows_of(np.full_like(y, np.nan), length=LENGTH)
    _, terms = bound(inference(), gone)
    assert terms["likelihood"] == 0.0
    assert terms["KL(x)"] > 0.0


def test_dkf_batch_of_windows_is_unbiased() -> None:
    """Two of five windows, over many keys, average to all five; each of them alone does not."""
    windows = windows_of(simulate(38, 5), length=8)
    learner = as_jax(Learner(gated_model(), inference()))

    def values(batch: int) -> np.ndarray:
        settings = dkf.DKFSettings(4, batch, 1)
        keys = jax.random.split(jax.random.key(1), 300)
        each = jax.jit(jax.vmap(lambda k: dkf.elbo(learner, jnp.asarray(9.0), windows, k, settings)[0]))
        return np.asarray(each(keys))

    some, every = values(2), values(5)
    assert some.std() > 1.5 * every.std()
    assert abs(some.mean() - every.mean()) < 4 * some.std() / np.sqrt(len(some))


_graded = jax.jit(jax.value_and_grad(dkf.elbo, has_aux=True), static_argnames="settings")


def with_gradient(count: float) -> Any:
    """Value and gradient of windows with gaps and padding after `count` evaluations, of 50 until the weight is one."""
    transition = GatedTransition.start(jax.random.key(0), Linear(WEIGHT, BIAS), 4, PROCESS, 0.0)
    learner = as_jax(Learner(model_around(transition, np.full(STATES, 1e-6)), inference()))
    windows, settings = windows_of(recording(), length=8), dkf.DKFSettings(3, 99, 50)
    return _graded(learner, jnp.asarray(count), windows, jax.random.key(0), settings=settings)


def test_dkf_annealing_weighs_the_gradient_and_not_the_value() -> None:
    """The counter moves by one; from it on, the weight of the divergences rises from 0.01 to 1."""
    ((first, (count, _)), begin), ((half, _), middle), ((last, _), end), ((_, _), after) = (
        with_gradient(count) for count in (0.0, 25.0, 50.0, 80.0)
    )
    assert float(count) == 1.0
    assert float(first) == pytest.approx(float(half), rel=1e-9) == pytest.approx(float(last), rel=1e-9)
    weights = [g.model.transition.mean.weight for g in (begin, middle, end, after)]  # has divergences alone
    np.testing.assert_allclose(weights[0], 0.01 * weights[2], rtol=1e-6)
    np.testing.assert_allclose(weights[1], 0.505 * weights[2], rtol=1e-6)
    np.testing.assert_allclose(weights[3], weights[2], rtol=1e-9)


def test_dkf_gradient_is_finite_and_reaches_every_weight() -> None:
    """Through time, missing samples and padding."""
    _, found = with_gradient(60.0)
    for leaf in jax.tree.leaves((found.model.transition, found.states)):
        assert np.isfinite(leaf).all()
        assert np.abs(leaf).max() > 0


# Both, from end to end -----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[ADEnKF, DKF], ids=["AD-EnKF", "DKF"])
def chosen(request: pytest.FixtureRequest) -> Callable[..., StateSpaceMethod]:
    return request.param


@pytest.fixture(scope="module")
def fitted(chosen: Callable[..., StateSpaceMethod]) -> Posterior:
    """From two recordings of different length, one with a gap; an input, and a state that no output shows."""
    rng = np.random.default_rng(0)
    cs = [rng.standard_normal((n, 1)) for n in (75, 40)]
    ys = [np.cumsum(0.3 * c, axis=0) + 0.05 * rng.standard_normal(c.shape) for c in cs]
    ys[0][7] = np.nan
    return chosen(2, width=4, window=20, process_noise=0.5, schedule=SHORT).fit(ys, cs, restarts=1)


def test_short_fit_improves_and_forecasts(fitted: Posterior) -> None:
    elbo = fitted.history.elbo
    assert elbo[-1] > elbo[0] + 10.0
    forecast = fitted.forecast(20, np.ones((20, 1)), num_paths=50)
    assert forecast.samples.shape == (50, 20, 1)
    assert np.isfinite(forecast.samples).all() and forecast.std.min() > 0.01
    assert repr(fitted).startswith(f"<{fitted.method} posterior")


def test_name_and_what_is_held(fitted: Posterior, chosen: Callable[..., StateSpaceMethod]) -> None:
    """All noise of the DKF's states is its network's; AD-EnKF learns Q."""
    rows = {row.name: row for row in fitted.summary().rows}
    q = fitted.model.process_noise.variance
    _, var = fitted.transition(np.random.default_rng(0).standard_normal((9, 3)))
    if chosen is DKF:
        assert fitted.method == "DKF"
        assert not rows["process_noise.variance"].learned
        np.testing.assert_array_equal(q, 1e-6)
        assert np.ptp(var, axis=0).min() > 0
    else:
        assert fitted.method == "AD-EnKF"
        assert rows["process_noise.variance"].learned
        assert q.min() > 1e-3
        np.testing.assert_array_equal(var, 0.0)


def test_saved_and_loaded_it_is_the_same(fitted: Posterior, tmp_path: Any) -> None:
    fitted.save(tmp_path / "model.gpssm")
    loaded = gpssm.load(tmp_path / "model.gpssm")
    x, c = np.random.default_rng(0).standard_normal((9, 3)), np.ones((20, 1))
    np.testing.assert_array_equal(loaded.transition(x), fitted.transition(x))
    again, before = (p.forecast(20, c, num_paths=50, seed=3).samples for p in (loaded, fitted))
    np.testing.assert_array_equal(again, before)


def test_summary_and_plot_of_a_network(chosen: Callable[..., StateSpaceMethod]) -> None:
    """The linear part is in the user's units; there are no inducing points to show."""
    method, y = chosen(1, width=4), 5.0 + 2.0 * np.sin(np.arange(40.0))[:, None]
    problem = method.problem([y], [y[:, :0]])
    posterior = method.posterior(problem, problem.model, History())
    rows = {row.name: row for row in posterior.summary().rows}
    slope, intercept = (rows[f"transition.mean.{name}"].value.item() for name in ("weight", "bias"))
    assert np.polyfit(y[:-1, 0], y[1:, 0], 1) == pytest.approx([slope, intercept], rel=0.05)
    assert "transition" in str(posterior.summary())
    _, ax = matplotlib.pyplot.subplots()
    plots.transition(posterior, ax=ax)
    lines = {line.get_label(): line.get_xydata() for line in ax.lines}
    assert "inducing points" not in lines
    x, f = lines["learned f"].T
    assert x[0] < y.min() < y.max() < x[-1]
    np.testing.assert_allclose(f, posterior.transition(x[:, None])[0][:, 0])
    matplotlib.pyplot.close("all")
