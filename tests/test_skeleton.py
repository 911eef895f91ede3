"""Skeletons: exact sensitivities, systems that are found exactly, gaps, explosions, and what is made of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import gpssm
from gpssm.numerics.parameters import parameters
from gpssm.training import candidates, linear_search, restarts, skeleton, skeleton_search
from gpssm.training.candidates import Candidate, Recordings, fit_all
from gpssm.training.problem import Problem
from gpssm.training.restarts import Validation
from gpssm.training.skeleton import Skeleton, SkeletonProblem

LENGTH = 200


def resonant(inputs: np.ndarray, radius: float = 0.99, angle: float = 0.3) -> np.ndarray:
    """A lightly damped linear system of order two, seen through a third state; no noise."""
    x, outputs = np.zeros(3), []
    a = np.zeros((3, 3))
    a[:2, :2] = radius * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    a[2, :2] = [0.5, 0.2]
    for (c,) in inputs:
        x = a @ x + np.array([0.3, 0.1, 0.2]) * c
        outputs.append(x[2])
    return np.asarray(outputs)[:, None]


def rectified(inputs: np.ndarray) -> np.ndarray:
    """The absolute value of a first-order lag: no line comes near it."""
    x, outputs = 0.0, []
    for (c,) in inputs:
        x = 0.8 * x + 0.4 * c
        outputs.append(abs(x))
    return np.asarray(outputs)[:, None]


def driven(seed: int, length: int = LENGTH) -> np.ndarray:
    return np.repeat(np.random.default_rng(seed).standard_normal((length // 2 + 1, 1)), 2, axis=0)[:length]


def data(outputs: list[np.ndarray], inputs: list[np.ndarray]) -> Recordings:
    shift, scale = np.nanmean(np.concatenate(outputs), 0), np.nanstd(np.concatenate(outputs), 0)
    return Recordings.of([(y - shift) / scale for y in outputs], inputs, hold_back=True)


def random_skeleton(recordings: int = 2, dx: int = 3, dc: int = 1, m: int = 6) -> Skeleton:
    rng = np.random.default_rng(0)
    d = dx + dc
    return Skeleton(
        *map(
            jnp.asarray,
            (
                0.3 * rng.standard_normal((dx, d + 1)),
                rng.standard_normal((dx, m)),
                rng.standard_normal((m, d)),
                np.log(2.0) + 0.1 * rng.standard_normal((dx, d)),
                np.log(0.3) + 0.1 * rng.standard_normal(dx),
                rng.standard_normal((recordings, dx)),
            ),
        )
    )


def simulation(of: Skeleton, inputs: jax.Array) -> tuple[jax.Array, skeleton._Simulated]:
    """Its weights, L^{-T} w, and what it simulates."""
    factors = skeleton._factors(of)
    alpha = skeleton._backsolve(factors, of.whitened)
    return alpha, skeleton._Simulated(skeleton._simulate(of, alpha, inputs), factors)


def test_sensitivities_are_the_derivatives_of_the_simulation() -> None:
    """Of one in which w moves the weights at the present L, and kernels move at fixed weights."""
    of = random_skeleton()
    inputs = jnp.asarray(np.random.default_rng(1).standard_normal((2, 15, 1)))
    alpha, simulated = simulation(of, inputs)

    def outputs(position: jax.Array) -> jax.Array:
        moved = ravel_pytree(of)[1](position)
        return skeleton._simulate(moved, skeleton._backsolve(simulated.factors, moved.whitened), inputs)[..., :2]

    expected = jax.jacfwd(outputs)(ravel_pytree(of)[0])
    found, _ = skeleton._sensitivities(of, alpha, simulated, inputs, 2)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_derivatives_of_the_prior_by_the_kernels() -> None:
    """Oracle: automatic differentiation of |w|^2, with the w that keeps the weights, through the Cholesky factor."""
    of = random_skeleton()
    alpha = skeleton._backsolve(skeleton._factors(of), of.whitened)

    def prior(moved: Skeleton) -> jax.Array:
        return 0.5 * jnp.sum(jnp.einsum("dmn,dm->dn", skeleton._factors(moved), alpha) ** 2)

    expected, found = jax.grad(prior)(of), skeleton._prior_by_kernels(of, alpha)
    for name in ("inducing_inputs", "log_lengthscale", "log_scale"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-7, atol=1e-9)


def test_derivatives_of_the_open_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by way of the states at which it is looked at: without these a fit ends where it cannot find a step down."""
    monkeypatch.setattr(skeleton, "_OPEN_ROWS", 11)  # five of fifteen in each of two recordings
    of = random_skeleton()
    inputs = jnp.asarray(np.random.default_rng(1).standard_normal((2, 15, 1)))
    alpha, simulated = simulation(of, inputs)

    def root(position: jax.Array) -> jax.Array:
        moved = ravel_pytree(of)[1](position)
        states = skeleton._simulate(moved, skeleton._backsolve(simulated.factors, moved.whitened), inputs)
        rows = skeleton._open_at(moved, skeleton._Simulated(states, simulated.factors), inputs)
        return jnp.sqrt(skeleton._open(moved, rows, skeleton._factors(moved))[1])

    values, by_kernels, by_state = skeleton._open_sensitivities(of, simulated, inputs)
    _, at_rows = skeleton._sensitivities(of, alpha, simulated, inputs, 2)
    found = jnp.einsum("inj,njp->inp", by_state, at_rows)
    first = of.linear.size + of.whitened.size
    found = found.at[..., first : first + by_kernels.shape[2]].add(by_kernels)
    assert values.shape == (3, 10)
    np.testing.assert_allclose(values, root(ravel_pytree(of)[0]), rtol=1e-9)
    np.testing.assert_allclose(found, jax.jacfwd(root)(ravel_pytree(of)[0]), rtol=1e-7, atol=1e-9)


def test_the_open_variance_is_that_of_the_model() -> None:
    """The same conditional variance as a sparse GP has, by another route."""
    of = random_skeleton(1)
    rows = np.random.default_rng(2).standard_normal((7, 4))
    k, remaining = skeleton._open(of, jnp.asarray(rows), skeleton._factors(of))
    for i in range(3):
        kernel = gpssm.RBF(np.exp(of.log_lengthscale[i]), np.exp(2 * of.log_scale[i]))
        gp = gpssm.gp.SparseGP(kernel, of.inducing_inputs, of.whitened[i], 1e-9 * np.eye(6))
        mean, var = gp.prior()(jnp.asarray(rows))
        np.testing.assert_allclose(k[i], kernel(jnp.asarray(rows), of.inducing_inputs), rtol=1e-9)
        np.testing.assert_allclose(remaining[i], var, rtol=1e-4, atol=1e-8)
        assert np.all(mean == 0)


def test_a_linear_system_is_found_exactly_and_forecast_far_beyond_its_memory() -> None:
    inputs = driven(0)
    found = linear_search.linear_models(data([resonant(inputs)], [inputs]), (2, 3, 4))
    errors = {f.order: f.error for f in found}
    assert errors[3] < 1e-3
    assert errors[2] > 20 * errors[3]


def test_gaps_and_several_recordings() -> None:
    inputs = [driven(0), driven(1, 120)]
    outputs = [resonant(c) for c in inputs]
    outputs[0][20:50] = np.nan
    outputs[1][5] = np.nan
    (found,) = linear_search.linear_models(data(outputs, inputs), (3,))
    assert found.error < 1e-3
    assert np.isfinite(found.fit.states).all()
    assert found.fit.skeleton.initial.shape == (2, 3)


def test_what_explodes_is_a_number() -> None:
    """Starts far outside the stable region, beside one that is fine."""
    inputs = driven(0)
    of = data([resonant(inputs)], [inputs])
    begin = jax.tree.map(np.asarray, random_skeleton(1))
    explosive = begin._replace(linear=np.concatenate([3.0 * np.eye(3), np.ones((3, 2))], axis=1))
    widths = jax.tree.map(np.ones_like, begin)
    problems = [SkeletonProblem(s, s, widths) for s in (explosive, begin)]
    fits = fit_all(problems, of, 1)
    for fit in fits:
        for leaf in jax.tree.leaves(fit._replace(loss=0.0)):
            assert np.isfinite(leaf).all()
    assert fits[1].loss < np.inf


def test_the_loss_never_rises_and_held_parameters_stay() -> None:
    inputs = driven(0)
    of = data([rectified(inputs)], [inputs])
    begin = jax.tree.map(np.asarray, random_skeleton(1))
    widths = jax.tree.map(np.ones_like, begin)._replace(log_lengthscale=np.zeros((3, 4)))
    problem, fit, losses = SkeletonProblem(begin, begin, widths), None, []
    for _ in range(3):
        (fit,) = fit_all([problem], of, 1, None if fit is None else [fit])
        losses.append(float(fit.loss))
    assert losses[0] >= losses[1] >= losses[2]
    assert losses[2] < losses[0]
    np.testing.assert_array_equal(fit.skeleton.log_lengthscale, begin.log_lengthscale)
    assert not np.allclose(fit.skeleton.inducing_inputs, begin.inducing_inputs)
    np.testing.assert_allclose(fit.states, skeleton.simulate(fit.skeleton, of.inputs), rtol=1e-9, atol=1e-9)


def problem_of(outputs: np.ndarray, inputs: np.ndarray, **settings: object) -> Problem:
    return gpssm.EnVI(3, 10, **settings).problem([outputs], [inputs])


def test_a_skeleton_finds_what_a_line_cannot() -> None:
    inputs = driven(3)
    outputs = rectified(inputs)
    first = problem_of(outputs, inputs)
    of = data([outputs], [inputs])
    (line,) = linear_search.linear_models(of, (3,))
    told: list[tuple[int, int]] = []
    found = skeleton_search.skeletons(first, of, line, 0, lambda *done: told.append(done))
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
    assert {total for _, total in told} == {len(told)}
    assert found[0].error < 0.3 * line.error
    assert [f.error for f in found] == sorted(f.error for f in found)


def test_the_model_started_from_a_skeleton_simulates_as_the_skeleton_does() -> None:
    inputs = driven(3)
    outputs = rectified(inputs)
    first = problem_of(outputs, inputs)
    of = data([outputs], [inputs])
    (line,) = linear_search.linear_models(of, (3,))
    for found in (line, skeleton_search.skeletons(first, of, line, 0, lambda done, total: None)[0]):
        model = skeleton_search.informed(first, found, of, keep_noise=(False, False)).model
        dynamics = model.transition.marginal()
        x, states = jnp.asarray(found.fit.skeleton.initial), []
        for c in of.inputs[0]:
            x, _ = dynamics(jnp.concatenate([x, jnp.asarray(c)[None]], axis=1))
            states.append(x[0])
        # The states that come with a fit are those before its last step.
        expected = skeleton.simulate(found.fit.skeleton, of.inputs)[0]
        np.testing.assert_allclose(states, expected, atol=1e-6)


def test_noise_that_was_given_is_kept() -> None:
    inputs = driven(3)
    outputs = rectified(inputs)
    first = problem_of(outputs, inputs, process_noise=0.02, obs_noise=0.3)
    of = data([outputs], [inputs])
    (line,) = linear_search.linear_models(of, (3,))
    kept = skeleton_search.informed(first, line, of, keep_noise=(True, True)).model
    np.testing.assert_allclose(kept.obs_noise.variance, first.model.obs_noise.variance)
    np.testing.assert_allclose(kept.process_noise.variance, first.model.process_noise.variance)
    free = skeleton_search.informed(first, line, of, keep_noise=(False, False)).model
    assert np.all(free.process_noise.variance < first.model.process_noise.variance)


def test_parameters_that_are_held_stay_where_the_model_has_them() -> None:
    inputs = driven(3)
    outputs = rectified(inputs)
    first = problem_of(outputs, inputs, fixed=("lengthscale", "mean", "process_noise"))
    of = data([outputs], [inputs])
    (line,) = linear_search.linear_models(of, (3,))
    (found, *_) = skeleton_search.skeletons(first, of, line, 0, lambda done, total: None)
    for each in (line, found):
        model = skeleton_search.informed(first, each, of, keep_noise=(False, False)).model
        for name, old in {p.name: p.value for p in parameters(first.model)}.items():
            new = {p.name: p.value for p in parameters(model)}[name]
            if name in first.held:
                np.testing.assert_array_equal(new, old, err_msg=name)
        assert not np.allclose(model.obs_noise.variance, first.model.obs_noise.variance)


def test_smaller_and_larger_lines_simulate_the_same() -> None:
    inputs = driven(0)
    of = data([resonant(inputs)], [inputs])
    found = linear_search.linear_models(of, (2, 3))[0]
    padded = linear_search.resized(found, 4)

    def outputs(f: Candidate) -> np.ndarray:
        states = skeleton.simulate(f.fit.skeleton, of.inputs)
        return np.asarray(states)[..., 0]

    assert padded.order == 4
    np.testing.assert_allclose(outputs(found), outputs(padded), atol=1e-12)


@pytest.mark.parametrize("length", [30, 60, 400])
def test_how_much_is_held_back(length: int) -> None:
    of = Recordings.of([np.arange(length, dtype=float)[:, None]], [np.zeros((length, 0))], hold_back=True)
    assert of.holds_back == (length == 400)
    kept = of.learned()[:, :length]
    assert np.isnan(kept).sum() == (100 if length == 400 else 0)
    assert of.error(of.outputs) == 0.0 and np.isnan(of.learned()[:, length:]).all()


@pytest.mark.parametrize("length", [1, 50, 700, 1500, 9000])
def test_pieces_are_as_many_samples_whatever_the_recordings_are(length: int) -> None:
    """Shorter than a piece, each is one: of just more than the limit most is left."""
    rng, count = np.random.default_rng(0), 8200 // length + 1
    outputs = [rng.normal(size=(length, 1)) for _ in range(count)]
    kept, inputs = candidates.pieces(outputs, [np.zeros((length, 0))] * count)
    assert 0.7 * 8192 < sum(map(len, kept)) <= 8192 and [len(c) for c in inputs] == [len(y) for y in kept]


def test_a_gap_where_a_fit_is_scored_is_no_score(
    monkeypatch: pytest.MonkeyPatch, of_rectified: tuple[gpssm.Posterior, np.ndarray, np.ndarray]
) -> None:
    fitted, outputs, inputs = of_rectified
    monkeypatch.setattr(restarts, "_SCORED", 20)
    y = outputs[:LENGTH].copy()
    y[150:175] = np.nan
    problem = gpssm.EnVI(3, 10).problem([y], [inputs[:LENGTH]], 0)
    assert Validation.of(fitted, [y], problem, (150,)).score == np.inf


def test_the_order_is_no_larger_than_it_must_be() -> None:
    def of_order(order: int, error: float) -> Candidate:
        fit = skeleton.SkeletonFit(Skeleton(0, 0, 0, 0, np.zeros(order), 0), 0, 0, 0, 0)
        return Candidate(SkeletonProblem(0, 0, 0), fit, error, np.ones(1), np.ones(order), "linear")

    assert linear_search.best_order([of_order(4, 0.11), of_order(6, 0.10)], enough=4).order == 4
    assert linear_search.best_order([of_order(4, 0.15), of_order(6, 0.10), of_order(8, 0.12)], enough=4).order == 6
    # Of lines that are all bad, the better one is no reason for more states.
    assert linear_search.best_order([of_order(4, 1.5), of_order(6, 0.8)], enough=4).order == 4


def test_a_line_of_one_step_is_least_squares() -> None:
    """With every state seen it is the regression of every sample on the one before it."""
    rng = np.random.default_rng(5)
    y, c = rng.standard_normal((80, 2)), rng.standard_normal((80, 1))
    for t in range(1, 80):
        y[t] += 0.5 * y[t - 1, ::-1] + 0.3 * c[t]
    of = Recordings.of([y], [c], hold_back=True)
    found = linear_search.one_step_model(of, 2)
    kept = of.cuts[0]
    design = np.column_stack([y[: kept - 1], c[1:kept], np.ones(kept - 1)])
    expected = np.linalg.lstsq(design, y[1:kept], rcond=None)[0].T
    np.testing.assert_allclose(found.fit.skeleton.linear, expected, atol=0.01)  # up to the ridge
    x, errors = y[kept - 1], []
    for t in range(kept, 80):
        x = expected @ np.concatenate([x, c[t], [1.0]])
        errors.append(x - y[t])
    assert found.error == pytest.approx(np.sqrt(np.mean(np.square(errors))), rel=0.05)
    everything = skeleton_search.refined(linear_search.resized(found, 4), of)
    assert everything.order == 4
    assert not np.allclose(everything.fit.skeleton.linear[:2, :2], found.fit.skeleton.linear[:, :2])


def test_bands_are_widened_by_what_the_errors_say() -> None:
    rng = np.random.default_rng(0)
    many = rng.standard_normal((4000, 1))
    assert restarts.widening(many) == pytest.approx(1.0, abs=0.05)
    assert restarts.widening(2.0 * many) == pytest.approx(2.0, abs=0.1)
    # A hundred errors that are alike say less than a hundred that are not.
    half = rng.standard_normal((10, 1))
    alike = np.repeat(np.concatenate([half, -half]), 10, axis=0)
    independent = rng.permutation(alike)
    assert restarts.widening(alike) > 1.05 * restarts.widening(independent)
    with_gaps = np.where(rng.random(many.shape) < 0.3, np.nan, many)
    assert restarts.widening(with_gaps) == pytest.approx(1.0, abs=0.06)


def test_which_trial_is_kept() -> None:
    trials = [Validation(0.30, 500.0), Validation(0.10, 10.0), Validation(0.101, 90.0)]
    assert restarts.best_validated(trials) == 2  # the scores of the last two are the same, and its bound is better
    assert restarts.best_validated([Validation(np.inf, 0.0), Validation(np.inf, 1.0)]) == 1
    assert not restarts.is_worse(trials[2], trials[1])
    assert restarts.is_worse(trials[0], trials[1])
    assert restarts.is_worse(Validation(np.inf, 0.0), trials[1])


SHORT = gpssm.Schedule(max_steps=100)


@pytest.fixture(scope="module")
def of_rectified() -> tuple[gpssm.Posterior, np.ndarray, np.ndarray]:
    inputs = driven(3, 300)
    outputs = rectified(inputs) + 0.01 * np.random.default_rng(4).standard_normal((300, 1))
    fitted = gpssm.EnVI(3, 10, schedule=SHORT).fit(outputs[:LENGTH], inputs[:LENGTH], seed=0)
    return fitted, outputs, inputs


def test_envi_keeps_what_the_skeleton_knows(of_rectified: tuple[gpssm.Posterior, np.ndarray, np.ndarray]) -> None:
    """A free run over a hundred unseen samples, which no line can follow."""
    fitted, outputs, inputs = of_rectified
    paths = fitted.forecast(100, inputs[LENGTH:])
    error = np.sqrt(np.mean((paths.mean - outputs[LENGTH:]) ** 2)) / outputs[LENGTH:].std()
    line = gpssm.ARX().fit(outputs[:LENGTH], inputs[:LENGTH]).forecast(100, inputs[LENGTH:])
    assert error < 0.5 * np.sqrt(np.mean((line.mean - outputs[LENGTH:]) ** 2)) / outputs[LENGTH:].std()
    assert error < 0.5


def test_what_hardly_moves_can_be_forecast_by_the_simulation_itself(
    monkeypatch: pytest.MonkeyPatch, of_rectified: tuple[gpssm.Posterior, np.ndarray, np.ndarray]
) -> None:
    """Then the simulations are among the trials, and what is kept says so. (These outputs do move.)"""
    compared = []

    def first_of(trials: list[Validation]) -> int:
        compared.extend(trials)
        return 0

    monkeypatch.setattr(restarts, "best_validated", first_of)
    monkeypatch.setattr(candidates, "_SLOW", 0)
    _, outputs, inputs = of_rectified
    fitted = gpssm.EnVI(3, 10, schedule=SHORT).fit(outputs[:LENGTH], inputs[:LENGTH], seed=0, restarts=1)
    assert [np.isinf(trial.bound) for trial in compared] == [True, False]
    assert not fitted.history.step and "this is that simulation" in str(fitted.summary())
    assert np.isfinite(fitted.forecast(50, inputs[LENGTH : LENGTH + 50]).samples).all()


def test_noise_that_is_held_is_not_widened(of_rectified: tuple[gpssm.Posterior, np.ndarray, np.ndarray]) -> None:
    fitted = of_rectified[0]
    wider = restarts.widened(fitted, 2.0).model
    np.testing.assert_allclose(wider.obs_noise.variance, 4.0 * np.asarray(fitted.model.obs_noise.variance))
    np.testing.assert_allclose(wider.transition.gp.q_chol, 2.0 * np.asarray(fitted.model.transition.gp.q_chol))
    held = restarts.widened(dataclasses.replace(fitted, fixed=("obs_noise.variance",)), 2.0).model
    np.testing.assert_array_equal(held.obs_noise.variance, fitted.model.obs_noise.variance)
    np.testing.assert_allclose(held.process_noise.variance, 4.0 * np.asarray(fitted.model.process_noise.variance))


def test_a_linear_model_finds_a_system_with_little_damping() -> None:
    """From the subspace fit alone L-BFGS ends elsewhere: the error of its free run is half of the spread."""
    inputs = driven(0, 400)
    outputs = resonant(inputs, radius=0.995) + 1e-3 * np.random.default_rng(1).standard_normal((400, 1))
    fitted = gpssm.LinearGaussian("auto").fit(outputs[:300], inputs[:300])
    error = fitted.forecast(100, inputs[300:]).mean - outputs[300:]
    assert np.sqrt(np.mean(error**2)) < 0.02 * outputs[300:].std()


def test_as_many_states_as_the_recording_needs() -> None:
    """Two lightly damped oscillators and a third state to see them by: five, where four would be the default."""
    inputs = driven(0, 300)
    outputs = resonant(inputs) + resonant(inputs, radius=0.97, angle=1.2)
    assert linear_search.enough_states(Recordings.standardised([outputs], [inputs]))[0][0].order in (5, 6)
    assert linear_search.enough_states(Recordings.standardised([resonant(inputs)], [inputs]))[0][0].order == 4
