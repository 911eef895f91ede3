"""The paper's online objective, in both of its forms."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpssm
from gpssm.online.oenvi import paper
from gpssm.online.oenvi.paper import PaperOEnVI
from gpssm.plumbing.precision import double_precision


@double_precision
def _state(rng: np.random.Generator) -> paper.PaperState:
    """Two states seen through a matrix into three channels, one input."""
    emission = rng.normal(size=(3, 2))
    outputs = rng.normal(size=(20, 3)) * [1.0, 10.0, 0.1]
    return PaperOEnVI(2, 6, emission=emission, num_members=12).initial_state(outputs, rng.normal(size=(20, 1)))


@pytest.mark.parametrize("missing", [(), (0, 2)])
@double_precision
def test_both_forms_of_the_objective_agree(missing: tuple[int, ...]) -> None:
    """Proposition 2, and its gradient."""
    rng = np.random.default_rng(5)
    state = _state(rng)
    y = rng.normal(size=3)
    y[list(missing)] = np.nan

    def both(variance: jax.Array) -> jax.Array:
        model = paper.with_free_values(state.model, {"process_noise.variance": variance})
        options = state.settings.options
        step = paper._assimilate(model, state.members, jnp.asarray(y), jnp.ones(1), jax.random.key(1), options)
        return jnp.stack([form(step, model, jnp.asarray(y)) for form in (paper.objective, paper.alternative)])

    at = jnp.asarray([-1.0, 0.5])
    first, second = jax.jit(both)(at)
    np.testing.assert_allclose(first, second, rtol=1e-10)
    slopes = jax.jit(jax.jacrev(both))(at)
    np.testing.assert_allclose(slopes[0], slopes[1], rtol=1e-8)
    assert np.all(np.abs(slopes[0]) > 1e-3)


@double_precision
def test_whole_kl_is_subtracted_at_every_sample() -> None:
    rng = np.random.default_rng(6)
    state = _state(rng)
    y = jnp.asarray(rng.normal(size=3))
    step = jax.jit(paper._assimilate, static_argnames="options")(
        state.model, state.members, y, jnp.ones(1), jax.random.key(1), state.settings.options
    )
    found = paper.objective(step, state.model, y)
    np.testing.assert_allclose(found, step.filtered.log_likelihood - state.model.transition.kl(), rtol=1e-12)


def test_one_adam_step_per_sample_moves_every_parameter_that_is_not_fixed() -> None:
    data = gpssm.datasets.kink(30, 0.0025, 0.008, seed=0)
    stream = PaperOEnVI(1, 5, obs_noise=0.008, fixed=("obs_noise",), num_members=10).start(seed=1)
    for y in data.outputs[:25]:
        stream.learn_one(y)
    before = stream.state.model
    stream.learn_one(data.outputs[25])
    after = stream.state.model
    held = np.asarray(before.obs_noise.variance)
    assert np.array_equal(held, np.asarray(after.obs_noise.variance))
    for name in ("process_noise.variance", "transition.gp.q_mean", "transition.gp.inducing_inputs"):
        old, new = (next(np.asarray(p.value) for p in paper.parameters(m) if p.name == name) for m in (before, after))
        assert 0 < np.abs(new - old).max() < 0.1, name


def test_resumes_bit_for_bit(tmp_path: Path) -> None:
    data = gpssm.datasets.kink(30, 0.0025, 0.008, seed=0)
    stream = gpssm.OEnVI.paper(1, 5, num_members=10).start(seed=1)
    for y in data.outputs[:25]:
        stream.learn_one(y)
    stream.save(tmp_path / "stream.gpssm")
    resumed = gpssm.load(tmp_path / "stream.gpssm")
    for y in data.outputs[25:]:
        for ours, theirs in zip(stream.learn_one(y), resumed.learn_one(y), strict=True):
            assert np.array_equal(ours, theirs)
