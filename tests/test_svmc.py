"""SVMC against exact answers: regression, the Kalman filter, differences, importance sampling."""

import dataclasses
import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.datasets import kink, kink_function
from gpssm.experiments.kink import GRID
from gpssm.gp.basis import Basis, Expansion
from gpssm.gp.kernels import RBF
from gpssm.numerics.networks import MLP
from gpssm.online.outliers import judge
from gpssm.online.svmc import adaptation, filtering
from gpssm.online.svmc.filtering import Adapted, Moved, NoiseParameters, Particles, SVMCState
from gpssm.online.svmc.method import SVMC
from gpssm.plumbing.precision import double_precision

NDArray = np.ndarray
OBS_NOISE, NUM_INDUCING, NUM_PARTICLES = 0.008, 8, 400  # of everything here that is compiled: once
NO_INPUT = np.zeros(0)


@pytest.fixture(scope="module")
def step() -> Any:
    return jax.jit(SVMC.step)


@double_precision
def begin(outputs: NDArray) -> SVMCState:
    method = SVMC(1, NUM_INDUCING, obs_noise=OBS_NOISE, num_particles=NUM_PARTICLES)
    state = method.initial_state(outputs[:10], np.zeros((10, 0)))
    return plain(state)


def plain(state: SVMCState) -> SVMCState:
    """With the types of all states to come: a step is compiled for types."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, float), state)


def known(state: SVMCState, slope: float, process_noise: float) -> SVMCState:
    """The same with x' = slope * x + noise for certain, and nothing left to learn of f."""
    particles, basis = state.particles, state.basis
    mean = np.zeros(particles.mean.shape)
    mean[..., NUM_INDUCING] = (slope - 1.0) * np.asarray(basis.scale)
    mean[..., -1] = (slope - 1.0) * np.asarray(basis.shift)
    kernel = state.learned.kernel._replace(amplitude=jnp.full(1, -60.0))
    noise = state.learned.noise._replace(process=jnp.log(jnp.full(1, process_noise)))
    certain = particles._replace(mean=jnp.asarray(mean), cov=jnp.zeros_like(particles.cov))
    learned = Adapted(kernel, noise, state.learned.proposal)
    return plain(dataclasses.replace(state, particles=certain, learned=learned))


@double_precision
def test_regression_of_known_steps_is_bayesian_linear_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean and covariance of W after a path, against the normal equations of all of its steps."""
    monkeypatch.setattr(filtering, "_DIFFUSION", 0.0)
    rng = np.random.default_rng(0)
    num, dx, length, count = 5, 2, 30, 3
    width, dtype = num + dx + 1, float
    basis = Basis(jnp.asarray(rng.normal(size=(num, dx))), jnp.ones(num), jnp.zeros(dx), jnp.ones(dx))
    kernel, amplitude = RBF(jnp.array([1.3, 0.8])), jnp.array([2.0, 0.5])
    noise = NoiseParameters(jnp.log(jnp.array([0.1, 0.3])), jnp.zeros(1))
    f = Expansion.of(basis, kernel, amplitude)
    prior = np.array([np.diag(rng.uniform(0.5, 2.0, width)) for _ in range(dx)])
    paths = rng.normal(size=(length + 1, count, dx))
    particles = Particles(
        jnp.asarray(paths[0]),
        jnp.zeros(count),
        jnp.zeros((count, dx, width)),
        jnp.tile(prior, (count, 1, 1, 1)),
        jnp.zeros((count, dx + 1, dx)),
        jnp.zeros((count, dx + 1)),
    )

    every = judge(jnp.array(0.0), jnp.array(1), jnp.array(0.0))

    @jax.jit
    def regress(particles: Particles, new: jax.Array) -> tuple[Particles, Moved]:
        moved = filtering.move(particles, f, noise, jnp.zeros(0))
        learned = filtering.regress(particles, jnp.arange(count), moved, new, jnp.asarray(prior), every)
        return particles._replace(x=new, mean=learned[0], cov=learned[1]), moved

    precision = np.tile(np.linalg.inv(prior), (count, 1, 1, 1))
    target = np.zeros((count, dx, width), dtype)
    for before, after in itertools.pairwise(paths):
        particles, _ = regress(particles, jnp.asarray(after))
        h, open_share = (np.asarray(part) for part in f.features(jnp.asarray(before)))
        variance = open_share[:, None] * np.asarray(amplitude) + np.exp(np.asarray(noise.process))
        precision += np.einsum("nf,ng,nk->nkfg", h, h, 1.0 / variance)
        target += np.einsum("nf,nk->nkf", h, (after - before) / variance)
    cov = np.linalg.inv(precision)
    np.testing.assert_allclose(particles.cov, cov, atol=1e-10)
    np.testing.assert_allclose(particles.mean, np.einsum("nkfg,nkg->nkf", cov, target), atol=1e-10)


@double_precision
def test_any_proposal_is_weighed_rightly() -> None:
    """Whatever the network does, the weights average to one: E_r[p / r] = 1."""
    network = MLP.start(jax.random.key(3), (3, 16, 4), last=0.5)
    read = jnp.tile(jnp.array([0.5, -1.0, 2.0]), (200_000, 1))
    shift, stretch = filtering.displacement(network, read)
    assert np.abs(shift).min() > 1e-3
    z = shift + jnp.exp(stretch) * jax.random.normal(jax.random.key(1), shift.shape)
    ratio = jnp.exp(-0.5 * jnp.sum(z**2, axis=1) - filtering.log_proposal(network, read, z))
    np.testing.assert_allclose(jnp.mean(ratio), 1.0, atol=5 * float(jnp.std(ratio)) / len(z) ** 0.5)


@double_precision
def test_kalman_filter_where_f_is_known(step: Any) -> None:
    """Log-scores and states of a linear system; a sample that is missing is a prediction."""
    rng = np.random.default_rng(2)
    slope, q, length, gap = 0.9, 0.02, 60, 40
    x, outputs = 0.0, np.empty((length, 1))
    for t in range(length):
        x = slope * x + q**0.5 * rng.normal()
        outputs[t] = x + OBS_NOISE**0.5 * rng.normal()
    outputs[gap] = np.nan
    state = known(begin(outputs), slope, q)
    held = state.learned
    mean = slope * float(state.particles.x[0, 0])
    var = q + float(state.loose[0])
    scores, expected, gaps = [], [], []
    for t, y in enumerate(outputs[:, 0]):
        state = dataclasses.replace(state, learned=held)
        state, info = step(jax.random.key(t), state, outputs[t], NO_INPUT)
        total = var + OBS_NOISE
        scores.append(float(info.log_score))
        if np.isnan(y):
            assert scores.pop() == 0.0
            np.testing.assert_allclose(info.state_mean, info.predicted_mean, atol=5 * (var / NUM_PARTICLES) ** 0.5)
            assert eqx.tree_equal(state.learned.noise, held.noise)
            assert eqx.tree_equal(state.learned.proposal, held.proposal)
        else:
            expected.append(-0.5 * (np.log(2 * np.pi * total) + (y - mean) ** 2 / total))
            mean, var = mean + var / total * (y - mean), var * OBS_NOISE / total
        gaps.append((float(info.state_mean[0]) - mean) / var**0.5)
        mean, var = slope * mean, slope**2 * var + q
    np.testing.assert_allclose(scores, expected, atol=0.15)
    np.testing.assert_allclose(np.sum(scores), np.sum(expected), atol=0.3)
    assert np.sqrt(np.mean(np.square(gaps))) < 3 / NUM_PARTICLES**0.5


@double_precision
def test_gradient_of_the_noise_goes_through_time(step: Any) -> None:
    """Against differences of the log-score of the fourth sample, with the same random numbers and no resampling."""
    outputs = np.random.default_rng(4).normal(size=(12, 1)) * 0.02
    begun, noise = begin(outputs), np.log([0.001, 0.008])

    def run(noise: NDArray, length: int) -> tuple[SVMCState, float]:
        state, score = known(begun, 0.9, 1.0), 0.0
        held = state.learned._replace(noise=NoiseParameters(jnp.asarray(noise[:1]), jnp.asarray(noise[1:])))
        for t in range(length):
            state = dataclasses.replace(state, learned=held)
            state, info = step(jax.random.key(t), state, outputs[t], NO_INPUT)
            score = float(info.log_score)
        return dataclasses.replace(state, learned=held, learn_obs_noise=True), score

    before, _ = run(noise, 3)
    assert np.ptp(before.particles.log_weight) > 0.01  # they were weighed, and not drawn again

    @jax.jit
    def gradient(state: SVMCState, y: jax.Array) -> NoiseParameters:
        learned = state.learned
        moved = filtering.move(state.particles, learned.kernel.expand(state.basis), learned.noise, jnp.zeros(0))
        return adaptation.noise_gradient(state, state.particles, moved, y, jnp.array(True))[0]

    found = gradient(before, jnp.asarray(outputs[3]))
    differences = [(run(noise + e, 4)[1] - run(noise - e, 4)[1]) / 2e-4 for e in 1e-4 * np.eye(2)]
    np.testing.assert_allclose([*found.process, *found.obs], differences, rtol=1e-4)


@double_precision
def test_one_pass_finds_the_kink(step: Any) -> None:
    outputs = kink(300, 0.0025, OBS_NOISE, seed=3).outputs
    state = begin(outputs)
    scores = []
    for t, y in enumerate(outputs):
        state, info = step(jax.random.key(t), state, y, NO_INPUT)
        scores.append((float(y[0] - info.predicted_mean[0]) / float(info.predicted_std[0])) ** 2)
    mean, var = (np.asarray(part)[:, 0] for part in SVMC.transition(state, jnp.asarray(GRID[:, None])))
    assert np.mean((mean - kink_function(GRID)) ** 2) < 0.05
    assert np.mean(np.abs(mean - kink_function(GRID)) < 1.645 * np.sqrt(var) + 0.1) > 0.8
    assert 0.8 < np.mean(np.array(scores[100:]) < 1.645**2) < 0.98
    assert 0 < int(state.basis.used.sum()) <= NUM_INDUCING
    assert step._cache_size() == 1  # compiled once, for all of this file
