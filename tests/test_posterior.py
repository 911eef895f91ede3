"""What a fit returns: honest bands, forecasts, saved files."""

import dataclasses
import os
import stat
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy.special import logsumexp

import gpssm
from gpssm.datasets import kink, kink_function
from gpssm.plumbing.serialization import InvalidFile
from gpssm.training.optimiser import Schedule

# Every recording and every forecast is as long as the others: filter and forecast are compiled once.
LENGTH, HORIZON, PATHS, DATA_SETS = 200, 30, 1000, 12
METHOD = gpssm.EnVI(1, 10, num_members=30)


@pytest.fixture(scope="module")
def fits() -> list[tuple[gpssm.datasets.Series, gpssm.Posterior]]:
    """Fits of repeated data sets, all of one shape: compiled once."""
    series = [kink(LENGTH + HORIZON, 0.05, 0.08, seed) for seed in range(DATA_SETS)]
    return [(s, METHOD.fit(s.outputs[:LENGTH], seed=i)) for i, s in enumerate(series)]


def test_band_of_f_holds_the_truth(fits: list[tuple[gpssm.datasets.Series, gpssm.Posterior]]) -> None:
    """The 90% band of f, at states the system visits, over repeated data sets."""
    inside = []
    for series, fitted in fits:
        x = np.quantile(series.states[:LENGTH], np.linspace(0.02, 0.98, 25))[:, None]
        mean, var = fitted.transition(x)
        inside.append(np.abs(kink_function(x) - mean) <= 1.645 * np.sqrt(var))
    assert 0.75 <= np.mean(inside) <= 0.99


def test_band_of_forecasts_holds_what_comes(fits: list[tuple[gpssm.datasets.Series, gpssm.Posterior]]) -> None:
    """The 90% band of forecasts, free-running past the end of the recording, over repeated data sets."""
    inside = []
    for series, fitted in fits:
        low, high = fitted.forecast(HORIZON, num_paths=PATHS).quantile([0.05, 0.95])
        future = series.outputs[LENGTH:]
        inside.append((future >= low) & (future <= high))
    assert 0.84 <= np.mean(inside) <= 0.96


def test_band_of_states_holds_the_states(fits: list[tuple[gpssm.datasets.Series, gpssm.Posterior]]) -> None:
    """The 90% bands of filtered and smoothed states, on the training recordings."""
    for estimate in ("filter", "smooth"):
        inside = []
        for series, fitted in fits[:4]:
            states = getattr(fitted, estimate)(series.outputs[:LENGTH])
            inside.append(np.abs(states.mean - series.states[:LENGTH]) <= 1.645 * states.std)
        assert 0.8 <= np.mean(inside) <= 0.98, estimate


def test_forecast_from_a_filtered_state(fits: list[tuple[gpssm.datasets.Series, gpssm.Posterior]]) -> None:
    """One step ahead of a filtered state the forecast knows more than a long way ahead."""
    series, fitted = fits[0]
    state = fitted.filter(series.outputs[-LENGTH:])
    paths = fitted.forecast(HORIZON, state=state, num_paths=PATHS)
    spread = paths.samples[:, :, 0].std(axis=0)
    assert spread[0] < 0.75 * spread[10:].mean()
    assert paths.mean.shape == paths.std.shape == paths.quantile(0.5).shape == (HORIZON, 1)
    assert (paths.quantile(0.9) > paths.quantile(0.1)).all()
    again = fitted.forecast(HORIZON, state=state, num_paths=PATHS)
    np.testing.assert_array_equal(paths.samples, again.samples)


def test_uncertainty_of_f_is_in_the_forecast(fits: list[tuple[gpssm.datasets.Series, gpssm.Posterior]]) -> None:
    """Far from the data, where f is unknown, paths with their own draws of u disagree."""
    _, fitted = fits[0]
    nowhere = fitted.filter(np.full((LENGTH, 1), np.nan))
    far, near = (nowhere._replace(members=np.full((50, 1), x)) for x in (-8.0, -1.0))  # as many as one likes
    far_std, near_std = (fitted.forecast(HORIZON, state=state, num_paths=PATHS).std[0, 0] for state in (far, near))
    assert far_std > 3 * near_std
    assert fitted.transition([[-8.0]])[1][0, 0] > 10 * fitted.transition([[-1.0]])[1][0, 0]


def test_filters_agree_on_a_learned_model(fits: list[tuple[gpssm.datasets.Series, gpssm.Posterior]]) -> None:
    """Oracle: each other. The particle filter has no Gaussian to be wrong about, and the best likelihood.

    Its likelihood is unbiased, not the logarithm of that, and varies with the draws: it is averaged over some of them.
    """
    names = ("particle", "ensemble", "extended")
    scores, errors = [], []
    for series, fitted in fits[:4]:
        found = [fitted.filter(series.outputs[:LENGTH], filter=name) for name in names]
        y = series.outputs[:LENGTH]
        draws = [fitted.log_likelihood(y, filter="particle", seed=seed) for seed in range(16)]
        likelihood = logsumexp(draws) - np.log(len(draws))
        scores.append([likelihood / LENGTH, *(states.log_likelihood / LENGTH for states in found[1:])])
        errors.append([np.sqrt(np.mean((states.mean - series.states[:LENGTH]) ** 2)) for states in found])
        assert np.allclose([s.members.mean() for s in found], found[0].mean[-1], atol=2 * found[0].std[-1])
        assert fitted.log_likelihood(series.outputs[:LENGTH], filter="extended") == found[2].log_likelihood
    best, *others = np.mean(scores, axis=0)
    assert all(best - 0.1 < other < best for other in others)
    assert np.ptp(np.mean(errors, axis=0)) < 0.02
    ahead = [fitted.forecast(HORIZON, state=state, num_paths=PATHS).std[0, 0] for state in found]
    np.testing.assert_allclose(ahead, ahead[0], rtol=0.15)


def test_missing_samples_widen_the_band(fits: list[tuple[gpssm.datasets.Series, gpssm.Posterior]]) -> None:
    series, fitted = fits[0]
    y = series.outputs[:LENGTH].copy()
    y[100:110] = np.nan
    complete, gap = fitted.filter(series.outputs[:LENGTH]), fitted.filter(y)
    assert (gap.std[101:110] > 1.5 * complete.std[101:110]).all()
    np.testing.assert_allclose(gap.mean[:100], complete.mean[:100])
    assert gap.log_likelihood != complete.log_likelihood


def test_save_and_load_bit_for_bit(fits: list[tuple[gpssm.datasets.Series, gpssm.Posterior]], tmp_path: Path) -> None:
    """The same numbers, history, settings and forecasts; readable by others as the umask says; no pickle inside."""
    series, fitted = fits[0]
    path = tmp_path / "kink.gpssm"
    fitted.save(path)
    loaded = gpssm.load(path)
    for a, b in zip(jax.tree.leaves(fitted.model), jax.tree.leaves(loaded.model), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    paths, paths_loaded = (p.forecast(HORIZON, num_paths=PATHS).samples for p in (fitted, loaded))
    np.testing.assert_array_equal(paths, paths_loaded)
    states, states_loaded = (p.filter(series.outputs[:LENGTH]).mean for p in (fitted, loaded))
    np.testing.assert_array_equal(states, states_loaded)
    assert loaded.history == fitted.history and str(loaded.summary()) == str(fitted.summary())
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    again = tmp_path / "again.gpssm"
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_users_functions_are_asked_for_again(tmp_path: Path) -> None:
    """Functions are not stored: loading names the place of each one that is missing, and never swaps them."""
    method = gpssm.EnVI(
        1,
        5,
        num_members=10,
        emission=lambda x: 3.0 * x,
        mean=lambda x: 0.5 * x,
        initial_state=(0.0, 4.0),
        schedule=Schedule(max_steps=25, decay_steps=0),
    )
    fitted = method.fit(kink(30, 0.05, 0.01, 0).outputs * 3)
    fitted.save(tmp_path / "m.gpssm")
    with pytest.raises(InvalidFile, match="'mean'"):
        gpssm.load(tmp_path / "m.gpssm", functions={"emission": method.emission})
    loaded = gpssm.load(tmp_path / "m.gpssm", functions={"emission": method.emission, "mean": method.mean})
    np.testing.assert_array_equal(loaded.forecast(3).samples, fitted.forecast(3).samples)


def test_a_users_class_cannot_be_saved(
    fits: list[tuple[gpssm.datasets.Series, gpssm.Posterior]], tmp_path: Path
) -> None:
    """Refused when saving, not when it is too late."""

    class Mine(gpssm.RBF):
        pass

    gp = fits[0][1].model.transition.gp
    model = eqx.tree_at(
        lambda m: m.transition.gp.kernel, fits[0][1].model, Mine(gp.kernel.lengthscale, gp.kernel.variance)
    )
    with pytest.raises(ValueError, match="your class 'Mine'"):
        dataclasses.replace(fits[0][1], model=model).save(tmp_path / "m.gpssm")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f.filter(np.zeros((5, 2))), "outputs: expected 1 column"),
        (lambda f: f.filter(np.zeros((0, 1))), "outputs: 0 samples"),
        (lambda f: f.filter(np.zeros((5, 1)), filter="kalman"), "filter: expected one of ensemble, particle, extended"),
        (lambda f: f.filter(np.zeros((5, 1)), inputs=np.zeros((5, 1))), "inputs: the model was fitted without"),
        (lambda f: f.forecast(0), "horizon: expected a whole number"),
        (lambda f: f.forecast(2.5), "horizon: expected a whole number"),
        (lambda f: f.forecast(HORIZON, num_paths=PATHS).quantile(1.5), "q: expected probabilities"),
        (lambda f: f.transition(np.zeros((3, 4))), "x: expected 1 column"),
        (lambda f: f.transition([[np.nan]]), "x: contains NaN"),
        (lambda f: f.forecast(5, state=np.zeros(1)), "state: expected what `filter` returns, got ndarray"),
    ],
)
def test_bad_calls_get_a_sentence(
    fits: list[tuple[gpssm.datasets.Series, gpssm.Posterior]], call: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(fits[0][1])
