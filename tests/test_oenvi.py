"""OEnVI: what it learns, what it may not know, and what must not break it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpssm
from gpssm.datasets import car, kink, kink_function, nascar
from gpssm.errors import InvalidInput
from gpssm.experiments.kink import GRID
from gpssm.gp.means import Linear
from gpssm.models.neural import ResidualTransition
from gpssm.online.augmented import Hypotheses
from gpssm.online.oenvi import method as module
from gpssm.online.oenvi.state import OEnVIHyper, OEnVIState
from gpssm.online.stream import Stream
from gpssm.plumbing.precision import double_precision
from live import learn

NDArray = np.ndarray
SMALL = {"num_inducing": 8, "num_members": 10, "trial": 30}
HORIZON, PATHS = 3, 4000  # of the forecasts of one stream: compiled once


@pytest.fixture(scope="module")
def data() -> NDArray:
    return kink(300, 0.0025, 0.008, seed=3).outputs


@pytest.fixture(scope="module")
def stream(data: NDArray) -> Stream:
    stream = gpssm.OEnVI(1, obs_noise=0.008, **SMALL).start(seed=1)
    learn(stream, data)
    return stream


def test_one_pass_finds_the_kink(stream: Stream) -> None:
    mean, var = stream.transition(GRID[:, None])
    assert np.mean((mean[:, 0] - kink_function(GRID)) ** 2) < 0.05
    inside = np.abs(mean[:, 0] - kink_function(GRID)) < 1.645 * np.sqrt(var[:, 0]) + 0.1
    assert inside.mean() > 0.8


def test_calibrated_one_step_predictions(data: NDArray) -> None:
    estimates = learn(gpssm.OEnVI(1, obs_noise=0.008, **SMALL).start(), data)[100:]
    z = np.array([(y - e.predicted_mean) / e.predicted_std for y, e in zip(data[100:], estimates, strict=True)])
    assert 0.8 < np.mean(np.abs(z) < 1.645) < 0.98
    score = np.mean([e.log_score for e in estimates])
    std = np.array([e.predicted_std for e in estimates])
    np.testing.assert_allclose(score, np.mean(-0.5 * (z**2 + np.log(2 * np.pi)) - np.log(std)), rtol=1e-9)


def test_looking_does_not_disturb(stream: Stream, data: NDArray, tmp_path: Path) -> None:
    stream.save(tmp_path / "before.gpssm")
    stream.forecast(HORIZON, num_paths=PATHS)
    stream.transition(GRID[:, None])
    stream.posterior()
    stream.save(tmp_path / "after.gpssm")
    assert (tmp_path / "before.gpssm").read_bytes() == (tmp_path / "after.gpssm").read_bytes()


def test_read_back_as_an_ordinary_model(stream: Stream, data: NDArray) -> None:
    """The same f, and forecasts of the same size."""
    posterior = stream.posterior()
    ours, theirs = stream.transition(GRID[:, None]), posterior.transition(GRID[:, None])
    np.testing.assert_allclose(theirs[0], ours[0], atol=1e-6)
    np.testing.assert_allclose(theirs[1], ours[1], rtol=0.2, atol=1e-4)
    forecast, again = (model.forecast(HORIZON, num_paths=PATHS) for model in (stream, posterior))
    np.testing.assert_allclose(again.mean, forecast.mean, atol=0.1)
    np.testing.assert_allclose(again.std[0], forecast.std[0], rtol=0.3)
    assert np.isfinite(posterior.filter(data).mean).all()
    assert "process_noise" in str(posterior.summary())


def test_what_was_learned_from_is_a_fact_of_the_model(stream: Stream) -> None:
    """Back and forth, forgetting and rates go on where they were, however much of the recording is kept."""
    posterior = stream.posterior()
    assert posterior.num_samples == 300 and len(posterior.recording.outputs) == 0
    for count in (300, 123_456):
        again = gpssm.OEnVI.continuing(replace(posterior, num_samples=count), num_inducing=8, num_members=10)
        assert float(again.state.count) == count


def test_what_cannot_go_live_is_refused(stream: Stream) -> None:
    posterior = stream.posterior()
    mixed = eqx.tree_at(
        lambda p: p.transition.mixing, posterior.model, np.array([[0.7]]), is_leaf=lambda leaf: leaf is None
    )
    with pytest.raises(InvalidInput, match="mixed"):
        gpssm.OEnVI.continuing(replace(posterior, model=mixed))
    linear = Linear(np.ones((1, 1)), np.zeros(1))
    network = ResidualTransition.start(jax.random.key(0), linear, 4)
    neural = eqx.tree_at(lambda p: p.transition, posterior.model, network)
    with pytest.raises(InvalidInput, match="network"):
        gpssm.OEnVI.continuing(replace(posterior, model=neural, method="AD-EnKF"))
    line = gpssm.ARX(1).fit(np.random.default_rng(0).normal(size=(40, 1)))
    with pytest.raises(InvalidInput, match="LinearPosterior"):
        gpssm.OEnVI.continuing(line)


def test_late_inputs_are_the_users_own_also_in_what_is_read_back(tmp_path: Path) -> None:
    """Filter, forecast and a new stream take one row of inputs a sample; the model knows how many of them act."""
    rng = np.random.default_rng(5)
    inputs = rng.normal(size=(90, 2))
    level = np.zeros(91)
    for t in range(90):
        level[t + 1] = 0.8 * level[t] + (0.5 * inputs[t - 2, 0] if t > 1 else 0.0)
    outputs = level[1:, None] + 0.01 * rng.normal(size=(90, 1))
    stream = gpssm.OEnVI(1, 6, input_lags=3, num_members=10, trial=0).start()
    learn(stream, outputs[:80], inputs[:80])
    stream.posterior().save(tmp_path / "model.gpssm")
    posterior = gpssm.load(tmp_path / "model.gpssm")
    assert (posterior.input_dim, posterior.input_lags) == (2, 3)
    np.testing.assert_array_equal(posterior.recent_inputs, inputs[[79, 78]])
    ahead = posterior.forecast(10, inputs[80:], num_paths=200)
    np.testing.assert_allclose(ahead.mean, stream.forecast(10, inputs[80:], num_paths=200).mean, atol=0.4)
    # A filter that is interrupted goes on with the inputs that still act, as if it had not been.
    whole = posterior.filter(outputs, inputs, filter="extended")
    first = posterior.filter(outputs[:50], inputs[:50], filter="extended")
    np.testing.assert_array_equal(first.recent_inputs, inputs[[49, 48]])
    np.testing.assert_array_equal(whole.recent_inputs, inputs[[89, 88]])
    known = posterior.forecast(5, inputs[50:55], state=first, num_paths=50)
    other = posterior.forecast(5, inputs[50:55], state=first._replace(recent_inputs=-inputs[[49, 48]]), num_paths=50)
    assert not np.allclose(known.mean[0], other.mean[0], atol=0.05)
    again = gpssm.OEnVI.continuing(posterior, num_inducing=6, num_members=10)
    found = again.learn_one(outputs[80], inputs[80])
    np.testing.assert_allclose(found.predicted_mean, stream.learn_one(outputs[80], inputs[80]).predicted_mean, atol=0.2)


def test_more_states_than_half_the_members() -> None:
    """Six outputs, their past, and late inputs: the least number of points that span all states is taken."""
    rng = np.random.default_rng(0)
    method = gpssm.OEnVI(12, input_lags=4, trial=0)
    first = method.initial_state(rng.normal(size=(10, 6)), rng.normal(size=(10, 12)))
    assert isinstance(first, OEnVIState) and first.points.shape == (26, 12)


@pytest.mark.slow
def test_an_archive_goes_live() -> None:
    """What EnVI has learned is what the stream starts with, and the stream goes on from the recording's end."""
    rng = np.random.default_rng(2)
    inputs = rng.normal(size=(160, 1))
    states = np.zeros(161)
    for t in range(160):
        states[t + 1] = 0.8 * states[t] + np.sin(states[t]) * 0.3 + 0.5 * inputs[t, 0] + 0.05 * rng.normal()
    outputs = 20.0 + 5.0 * states[1:, None] + 0.2 * rng.normal(size=(160, 1))
    schedule = gpssm.Schedule(max_steps=200, decay_steps=50)
    fitted = gpssm.EnVI(1, 8, num_members=20, schedule=schedule).fit(outputs[:120], inputs[:120])
    stream = gpssm.OEnVI.continuing(fitted, num_inducing=10)
    at = np.column_stack([20.0 + 5.0 * np.linspace(-1.5, 1.5, 20), np.linspace(-1, 1, 20)])
    np.testing.assert_allclose(stream.transition(at)[0], fitted.transition(at)[0], atol=0.3)
    estimates = learn(stream, outputs[120:], inputs[120:])
    errors = [y - e.predicted_mean for y, e in zip(outputs[120:], estimates, strict=True)]
    assert np.sqrt(np.mean(np.square(errors))) < 0.5 * outputs.std()
    assert np.isfinite([e.log_score for e in estimates]).all()


def test_the_trial_takes_the_hypothesis_that_predicts_better() -> None:
    """The steps of the kink system are dynamics; most of those of the noisy car are noise."""
    rough, noise = 0, 1
    outputs = {noise: car(60, seed=1).series.outputs, rough: kink(60, 0.0025, 0.008, seed=1).outputs}
    for winner, rows in outputs.items():
        stream = gpssm.OEnVI(rows.shape[1], **SMALL | {"trial": 60}).start()
        learn(stream, rows[:-1])
        assert isinstance(stream.state, Hypotheses)
        assert int(np.argmax(stream.state.evidence)) == winner
        stream.learn_one(rows[-1])
        assert isinstance(stream.state, OEnVIState)


@double_precision
def test_gradient_of_the_noise_goes_through_time(
    central_differences: Callable[..., NDArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against differences of the log-density of one sample after eleven others under the same variances.

    Where f is known, the state's past is all that depends on them, and the carried sensitivity is exact.
    """
    data = nascar(20, seed=2).series
    method = gpssm.OEnVI(2, 6, emission=nascar(20, seed=2).emission, num_members=10, trial=0)
    first = method.initial_state(data.outputs, np.zeros((20, 0)))
    assert isinstance(first, OEnVIState)
    first = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), first)  # the types of all states to come
    known = np.array(first.augmented.cov)
    known[2:, 2:] = 0.0
    hyper = first.hyper._replace(amplitude=jnp.full(2, -60.0))  # nor is there anything to learn of f
    first = eqx.tree_at(lambda s: (s.augmented.cov, s.hyper), first, (jnp.asarray(known), hyper))
    ascend, gradients = module.ascend, list[OEnVIHyper]()

    def overheard(values: Any, gradient: OEnVIHyper, *rest: Any, **choices: Any) -> Any:
        gradients.append(gradient)
        return ascend(values, gradient, *rest, **choices)

    monkeypatch.setattr(module, "ascend", overheard)

    @jax.jit
    def step(state: OEnVIState, y: jax.Array) -> tuple[OEnVIState, jax.Array, OEnVIHyper]:
        gradients.clear()
        state, info = gpssm.OEnVI.step(jax.random.key(0), state, y, jnp.zeros(0))
        return state, info.log_score, gradients[0]

    def run(noise: dict[str, NDArray], length: int) -> tuple[OEnVIState, float]:
        held = hyper._replace(**{name: jnp.asarray(value) for name, value in noise.items()})
        state, score = first, 0.0
        for y in data.outputs[:length]:
            state, score, _ = step(eqx.tree_at(lambda s: s.hyper, state, held), y)
        return state, float(score)

    noise = {"obs_level": np.array(hyper.obs_level), "process_noise": np.array(hyper.process_noise)}
    differences = central_differences(lambda tree: run(tree, 12)[1], noise, step=1e-5)
    before = eqx.tree_at(lambda s: s.hyper, run(noise, 11)[0], hyper)
    found = step(before, data.outputs[11])[2]
    np.testing.assert_allclose([found.obs_level, *found.process_noise], differences, rtol=1e-4)


def test_the_stream_may_jump_and_inducing_inputs_follow() -> None:
    """A step of many standard deviations is the state's, not f's; the budget goes where the stream is now."""
    rng = np.random.default_rng(4)
    t = np.arange(420)
    outputs = np.column_stack([np.sin(t / 6), np.cos(t / 6)]) + 0.01 * rng.normal(size=(420, 2))
    outputs[300:] += 30.0
    stream = gpssm.OEnVI(2, 12, num_members=10, trial=0).start()
    estimates = learn(stream, outputs)
    errors = np.array([y - e.predicted_mean for y, e in zip(outputs, estimates, strict=True)])
    assert np.abs(errors[320:]).max() < 0.5
    used = np.asarray(stream.state.basis.used) > 0
    near = np.abs(np.asarray(stream.state.basis.inducing_inputs) - 30.0).max(axis=1) < 5.0
    assert used.sum() <= 12
    assert np.sum(used & near) >= 3


def test_a_function_as_emission(data: NDArray) -> None:
    stream = gpssm.OEnVI(1, emission=lambda x: jnp.sinh(x), **SMALL).start()
    estimates = learn(stream, np.sinh(data[:150]))
    assert np.isfinite([e.predicted_mean for e in estimates[12:]]).all()


def test_mistakes_are_explained() -> None:
    with pytest.raises(InvalidInput, match="known matrix C"):
        gpssm.OEnVI(1).start().learn_one([1.0, 2.0])
    with pytest.raises(InvalidInput, match=r"expected C of shape \(2, 3\)"):
        gpssm.OEnVI(3, emission=np.eye(3)).start().learn_one([1.0, 2.0])
    with pytest.raises(InvalidInput, match="emission"):
        gpssm.OEnVI(3, emission="learned")
    with pytest.raises(InvalidInput, match="has seen 0 sample"):
        gpssm.OEnVI(1).start().forecast(3)
