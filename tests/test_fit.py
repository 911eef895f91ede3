"""Fits from end to end: what is learned, what is reported, what happens when things go wrong."""

import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpssm
from gpssm.experiments import kink as experiment
from gpssm.models.noise import DiagonalNoise
from gpssm.plumbing.compilation import CompileClock
from gpssm.plumbing.interruption import Interruption
from gpssm.training import optimiser, restarts
from gpssm.training.optimiser import Diverged, Schedule, TrainingWarning
from gpssm.training.progress import Monitor

SHORT = Schedule(max_steps=100, decay_steps=50)
LENGTH = 200


@pytest.fixture(scope="module")
def data() -> gpssm.datasets.Series:
    return gpssm.datasets.kink(length=LENGTH, process_noise=0.05, obs_noise=0.08, seed=0)


@pytest.fixture(scope="module")
def fitted(data: gpssm.datasets.Series) -> gpssm.Posterior:
    return gpssm.EnVI(state_dim=1, num_inducing=10, num_members=30).fit(data.outputs, seed=0)


def test_learns_the_kink_function(data: gpssm.datasets.Series, fitted: gpssm.Posterior) -> None:
    """The true f, the noise levels and the states are found, far better than from the observations alone."""
    score = experiment.score_fit(fitted, 0.0)
    assert score["mse"] < 0.05
    assert 0.025 < score["process_noise"] < 0.1
    states = fitted.filter(data.outputs)
    smoothed = fitted.smooth(data.outputs)

    def rmse(estimate: np.ndarray) -> float:
        return float(np.sqrt(np.mean((estimate - data.states) ** 2)))

    assert rmse(smoothed.mean) < rmse(states.mean) < rmse(data.outputs)


def test_same_seed_same_fit_and_nothing_compiled_twice(data: gpssm.datasets.Series, fitted: gpssm.Posterior) -> None:
    """A second fit of the same shape runs the programs of the first, to the same bits."""
    clock = CompileClock()
    again = gpssm.EnVI(state_dim=1, num_inducing=10, num_members=30).fit(data.outputs, seed=0)
    other = gpssm.EnVI(state_dim=1, num_inducing=10, num_members=30).fit(data.outputs + 0.1, seed=1)
    assert clock.count == 0
    assert again.history.compile_seconds == 0.0
    for a, b in zip(jax.tree.leaves(fitted.model), jax.tree.leaves(again.model), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(fitted.model.transition.gp.q_mean, other.model.transition.gp.q_mean)


def test_units_are_the_users(data: gpssm.datasets.Series, fitted: gpssm.Posterior) -> None:
    """The same recording in other units gives the same model in other units."""
    scaled = gpssm.EnVI(state_dim=1, num_inducing=10, num_members=30).fit(1000.0 + 50.0 * data.outputs, seed=0)
    x = np.linspace(-2, 1, 7)[:, None]
    mean, var = fitted.transition(x)
    scaled_mean, scaled_var = scaled.transition(1000.0 + 50.0 * x)
    np.testing.assert_allclose(scaled_mean, 1000.0 + 50.0 * mean, rtol=1e-4)
    np.testing.assert_allclose(scaled_var, 2500.0 * var, rtol=1e-2)
    np.testing.assert_allclose(np.subtract(scaled.history.elbo, fitted.history.elbo), -LENGTH * np.log(50.0), atol=0.5)
    difference = scaled.log_likelihood(1000.0 + 50.0 * data.outputs) - fitted.log_likelihood(data.outputs)
    assert difference == pytest.approx(-LENGTH * np.log(50.0), abs=0.5)
    values = {row.name: row.value for row in scaled.summary().rows}
    original = {row.name: row.value for row in fitted.summary().rows}
    np.testing.assert_allclose(values["obs_noise.variance"], 2500 * original["obs_noise.variance"], rtol=1e-3)
    np.testing.assert_allclose(values["transition.mean.weight"], original["transition.mean.weight"], rtol=1e-3)
    np.testing.assert_allclose(
        values["transition.mean.bias"] - 1000.0 * (1 - values["transition.mean.weight"][:, 0]),
        50.0 * original["transition.mean.bias"],
        rtol=1e-3,
    )


def test_terms_of_the_bound_are_reported_apart(fitted: gpssm.Posterior) -> None:
    history = fitted.history
    total = np.array(history.terms["likelihood"]) - np.array(history.terms["KL(u)"]) - np.array(history.terms["KL(x0)"])
    np.testing.assert_allclose(history.elbo, total, rtol=1e-9)
    assert max(history.elbo) > history.elbo[0]


def test_channels_that_are_rarely_seen_together_keep_their_scale() -> None:
    """Two sensors read in turn: the scale of each state is that of its own channel."""
    rng = np.random.default_rng(0)
    y = rng.standard_normal((60, 2)) * [2.0, 30.0] + [1.0, -5.0]
    y[::2, 0] = y[1::2, 1] = np.nan
    y[:2] = [[1.0, -5.0], [1.0001, -5.0001]]
    scaling = gpssm.EnVI(2, 5).problem([y], [y[:, :0]]).scaling
    np.testing.assert_allclose(scaling.state_scale, np.nanstd(y, axis=0))
    np.testing.assert_allclose(scaling.state_shift, np.nanmean(y, axis=0))


def test_fixed_parameters_do_not_move(data: gpssm.datasets.Series) -> None:
    """Held by full name, by last word and by group."""
    names = ("obs_noise", "lengthscale", "transition.gp.inducing_inputs")
    method = gpssm.EnVI(1, 10, num_members=30, obs_noise=0.08, fixed=names, schedule=SHORT)
    posterior = method.fit(data.outputs)
    rows = {row.name: row for row in posterior.summary().rows}
    np.testing.assert_allclose(rows["obs_noise.variance"].value, 0.08, rtol=1e-12)
    np.testing.assert_array_equal(posterior.model.transition.gp.kernel.lengthscale, np.ones((1, 1)))
    assert {n for n, row in rows.items() if not row.learned} == {
        "obs_noise.variance",
        "transition.gp.kernel.lengthscale",
        "transition.gp.inducing_inputs",
        "emission.weight",
        "emission.bias",
    }
    assert "fixed" in str(posterior.summary()) and "learned" in str(posterior.summary())
    assert posterior.summary().as_dict()["parameters"]["obs_noise.variance"]["learned"] is False


@pytest.mark.slow
def test_pieces_combine() -> None:
    """Inputs, hidden states, several recordings, gaps, full Q, a sum of kernels, learned C, localisation, float32."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((n, 2)) for n in (70, 45)]
    outputs = []
    for c in inputs:
        x, rows = np.zeros(2), []
        for row in c:
            x = np.array([0.8 * x[0] + 0.3 * np.tanh(x[1]), 0.5 * x[1]]) + 0.3 * row
            rows.append([x[0] + 0.05 * rng.standard_normal(), x[0] - x[1] + 0.05 * rng.standard_normal()])
        outputs.append(np.array(rows))
    outputs[0][10:15] = np.nan
    outputs[1][3, 0] = np.nan
    method = gpssm.EnVI(
        3,
        8,
        kernel=gpssm.RBF() + gpssm.Matern52() * gpssm.Matern32(),
        emission="learned",
        full_process_noise=True,
        update="sqrt",
        inflation=1.01,
        localization=3.0,
        num_members=20,
        dtype="float32",
        schedule=SHORT,
    )
    posterior = method.fit(outputs, inputs, restarts=1)
    assert np.asarray(posterior.model.transition.gp.q_mean).dtype == np.float32
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(posterior.model))
    states = posterior.filter(outputs[0], inputs[0])
    assert states.mean.shape == (70, 3) and states.cov.shape == (70, 3, 3)
    paths = posterior.forecast(12, inputs=rng.standard_normal((12, 2)), state=states, num_paths=40)
    assert paths.samples.shape == (40, 12, 2) and np.isfinite(paths.samples).all()
    mean, var = posterior.transition(rng.standard_normal((5, 5)))
    assert mean.shape == (5, 3) and (var > 0).all()


def test_nonlinear_emission_and_mean_function(data: gpssm.datasets.Series) -> None:
    """A function of the user's as emission and as mean, in the user's units, and a known initial state."""

    def emission(x: Any) -> Any:
        return 2.0 * x + 0.1 * jnp.sin(x)

    def mean(x: Any) -> Any:
        return -0.5 * x

    y = np.asarray(emission(jnp.asarray(data.states))) + 0.1 * np.random.default_rng(0).standard_normal((LENGTH, 1))
    method = gpssm.EnVI(1, 10, num_members=30, emission=emission, mean=mean, initial_state=(0.0, 4.0), schedule=SHORT)
    posterior = method.fit(y)
    estimate = posterior.filter(y).mean
    assert np.sqrt(np.mean((estimate - data.states) ** 2)) < 0.15
    assert not {r.name for r in posterior.summary().rows if r.name.startswith("initial_state") and r.learned}


def test_a_step_that_is_not_finite_is_undone() -> None:
    """An objective that yields NaN now and then still ends at its maximum, and says what happened."""
    posterior, history = _toy(lambda key: jnp.where(jax.random.uniform(key) < 0.05, jnp.nan, 0.0))
    assert posterior == pytest.approx(3.0, abs=0.05)
    assert any("not finite" in message for message in history.messages)


def test_a_region_without_finite_values_is_left_again() -> None:
    """NaN beyond a point on the way to the maximum: the fit ends before it, at a finite value."""
    from_below, history = _toy(lambda key: 0.0, wall=1.0)
    assert 0.9 < from_below < 1.0 + 1e-9
    assert np.isfinite(history.elbo).all()


def test_divergence_is_rolled_back() -> None:
    """An objective that collapses in one region of its parameters is taken back to the best point."""
    cliff = _toy(lambda key: 0.0, start=2.9, cliff=3.2, rate=2.0)
    assert cliff[0] < 3.2
    assert any("back to the best" in message for message in cliff[1].messages)


def test_nothing_finite_is_an_error() -> None:
    with pytest.raises(Diverged, match="no finite step"):
        _toy(lambda key: jnp.nan)


def _toy(
    disturb: Any, start: float = 0.0, cliff: float = 1e9, wall: float = 1e9, rate: float = 0.03
) -> tuple[float, Any]:
    """Maximise `-(x - 3)^2` plus a disturbance."""

    def objective(model: Any, carry: Any, data: Any, key: Any, settings: Any) -> Any:
        x = jnp.log(model.variance[0])
        value = -((x - 3.0) ** 2) - jnp.where(x > cliff, 1e4, 0.0) + jnp.where(x > wall, jnp.nan, 0.0) + disturb(key)
        return value, (carry, {"value": value})

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        model, _, history = optimiser.train(
            objective,
            DiagonalNoise(jnp.exp(jnp.array([start]))),
            jnp.zeros(1),
            jnp.zeros(1),
            settings=None,
            rates={"variance": 1.0},
            num_observed=1,
            schedule=Schedule(learning_rate=rate, max_steps=600, decay_steps=100),
            key=jax.random.key(0),
            monitor=Monitor(Interruption(), None),
        )
    return float(jnp.log(model.variance[0])), history


def test_importing_and_fitting_change_no_global_setting() -> None:
    """Double precision is used inside and not switched on outside."""
    code = (
        "import os, numpy as np, jax, jax.numpy as jnp, gpssm\n"
        "cores = os.sched_getaffinity(0)\n"
        f"y = gpssm.datasets.kink({LENGTH}, 0.05, 0.08, seed=0).outputs\n"  # of the size that is compiled already
        "p = gpssm.EnVI(1, 10, num_members=30, schedule=gpssm.Schedule(max_steps=25, decay_steps=0)).fit(y)\n"
        "assert p.model.transition.gp.q_mean.dtype == np.float64\n"
        "assert p.transition([[0.0]])[0].dtype == np.float64\n"
        "assert jnp.ones(1).dtype == jnp.float32 and os.sched_getaffinity(0) == cores\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_paper_preset_is_the_papers_algorithm(data: gpssm.datasets.Series) -> None:
    """One window, one sample of u, sampled moments, perturbed observations, zero mean, constant rate."""
    method = gpssm.EnVI.paper(1, 10, num_members=20, schedule=Schedule(0.01, 50, 0, patience=10**9))
    posterior = method.fit(data.outputs)
    assert (method.mean, method.update, method.moments, method.window, method.gap_fraction) == (
        "zero",
        "perturbed",
        "sampled",
        0,
        0.0,
    )
    assert posterior.history.step[-1] == 50
    assert posterior.method == "EnVI (paper)"


def interrupt_after(chunks: int) -> Any:
    """A watcher that is interrupted like a person at the keyboard would."""
    calls = []

    def watch(progress: Any) -> None:
        calls.append(progress)
        if len(calls) == chunks:
            signal.raise_signal(signal.SIGINT)

    return watch


def test_interrupted_fit_returns_the_best_model_so_far(data: gpssm.datasets.Series, tmp_path: Path) -> None:
    method = gpssm.EnVI(state_dim=1, num_inducing=10, num_members=30)
    with pytest.warns(TrainingWarning, match="interrupted"):
        found = method.fit(data.outputs, progress=interrupt_after(3))
    assert found.history.interrupted
    assert found.history.step[-1] == 75
    found.save(tmp_path / "model.gpssm")
    loaded = gpssm.load(tmp_path / "model.gpssm")
    assert loaded.history.interrupted
    assert np.isfinite(loaded.forecast(10).samples).all()


def test_interrupted_before_the_first_step_is_an_interrupt(
    data: gpssm.datasets.Series, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(optimiser, "_run_chunk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gpssm.EnVI(state_dim=1, num_inducing=10, num_members=30).fit(data.outputs)


def test_a_second_interrupt_is_not_held_up() -> None:
    with Interruption() as interruption:
        interruption.something_to_keep = True
        signal.raise_signal(signal.SIGINT)
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_best_of_several_restarts_is_kept(data: gpssm.datasets.Series) -> None:
    """The bound of three restarts is at least that of the first alone, which has the same random numbers."""
    method = gpssm.EnVI(state_dim=1, num_inducing=10, num_members=30, schedule=SHORT)
    one = method.fit(data.outputs, seed=0)
    three = method.fit(data.outputs, seed=0, restarts=3)
    assert max(three.history.elbo) >= max(one.history.elbo)


HIDDEN = gpssm.EnVI(state_dim=2, num_inducing=8, num_members=15, schedule=Schedule(max_steps=400))


def oscillation(length: int = 120) -> np.ndarray:
    rng = np.random.default_rng(0)
    a, x, y = np.array([[0.95, 0.3], [-0.3, 0.95]]), np.ones(2), np.empty((length, 1))
    for t in range(length):
        x = a @ x / np.sqrt(0.98) + 0.05 * rng.standard_normal(2)
        y[t] = x[0] + 0.05 * rng.standard_normal()
    return y


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::gpssm.training.optimiser.TrainingWarning")
def test_hidden_state_carries_an_oscillation() -> None:
    """The phase of an oscillation is in no single output; the forecast must follow it."""
    y = oscillation()
    forecast = HIDDEN.fit(y[:100]).forecast(20).mean
    assert np.sqrt(np.mean((forecast - y[100:]) ** 2)) < 0.5 * y[100:].std()


def test_a_start_that_explodes_is_not_kept(data: gpssm.datasets.Series, fitted: gpssm.Posterior) -> None:
    """However good its bound is, which looks a few samples ahead only."""
    weight = np.array([[1.6]])
    mean = eqx.tree_at(lambda mean: mean.weight, fitted.model.transition.mean, weight)
    model = eqx.tree_at(lambda model: model.transition.mean, fitted.model, mean)
    history = replace(fitted.history, best=fitted.history.best + 100.0)
    unstable, better = replace(fitted, model=model, history=history), replace(fitted, history=history)
    y, c = data.outputs, np.zeros((len(data.outputs), 0))
    bad, good, best = (restarts.Restart.of(p, y, c, compared=True) for p in (unstable, fitted, better))
    assert restarts.best_bound([bad, good]) is fitted
    assert restarts.best_bound([good, best]) is better
    assert bad.error > 10 > good.error

    # As many starts as were asked for; one that is lost is not enough, but there is an end to it.
    assert restarts.wants_another([good], 2) and not restarts.wants_another([bad, good], 2)
    assert restarts.wants_another([bad, bad, bad], 2) and not restarts.wants_another([bad] * 4, 2)
