"""Lorenz-96: the integrator, and the ensemble filter's published errors in 40 dimensions."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.cli import reproduce as command
from gpssm.datasets import lorenz96, lorenz96_function
from gpssm.experiments import filters as experiment
from gpssm.filters import small_ensembles
from gpssm.reproduction.plan import jobs_of
from gpssm.reproduction.run import record
from gpssm.reproduction.store import Store

LENGTH = 2000


@pytest.fixture(scope="module")
def series():
    return lorenz96(1 + experiment.BURN_IN + LENGTH, seed=0)


def test_runge_kutta_has_order_four(series):
    """Oracle: halving the step divides the error by 16."""

    def after_one_unit(steps):
        x = series.states[0]
        for _ in range(steps):
            x = lorenz96_function(x, 1.0 / steps)
        return x

    fine = after_one_unit(1280)
    errors = [np.linalg.norm(after_one_unit(steps) - fine) for steps in (40, 80, 160)]
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    assert (np.abs(orders - 4) < 0.3).all(), orders


def test_the_simulation(series):
    """Oracles: the equation itself, the rest state x = 8, the mean and spread known for this forcing, JAX."""
    x, h = series.states[0], 1e-6
    i = np.arange(40)
    equation = (x[(i + 1) % 40] - x[i - 2]) * x[i - 1] - x + 8.0
    np.testing.assert_allclose((lorenz96_function(x, h) - x) / h, equation, atol=1e-3)
    np.testing.assert_allclose(lorenz96_function(np.full(40, 8.0)), 8.0)
    np.testing.assert_allclose(lorenz96_function(series.states[:-1]), series.states[1:], atol=1e-12)
    np.testing.assert_allclose(lorenz96_function(jnp.asarray(x)), lorenz96_function(x), atol=1e-12)
    assert abs(series.states.mean() - 2.34) < 0.15 and abs(series.states.std() - 3.63) < 0.15
    noise = series.outputs - series.states
    assert abs(noise.mean()) < 5 / np.sqrt(noise.size) and abs(noise.std() - 1) < 5 / np.sqrt(2 * noise.size)


@pytest.mark.parametrize("n", [2, 7])
def test_rotation_keeps_mean_and_covariance(n):
    """Oracle: NumPy's moments. What is rotated is anywhere else: on average a member keeps nothing of its anomaly."""
    rng = np.random.default_rng(0)
    members = rng.normal(size=(n, 5)) @ rng.normal(size=(5, 5)) + 3.0
    draws = jnp.asarray(rng.normal(size=(2000, n - 1, n - 1)))
    rotated = np.asarray(jax.jit(jax.vmap(small_ensembles.rotate, (None, 0)))(jnp.asarray(members), draws))
    for one in rotated[:20]:
        np.testing.assert_allclose(one.mean(axis=0), members.mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(np.cov(one.T), np.cov(members.T), atol=1e-11)
    left = np.abs(rotated.mean(axis=0) - members.mean(axis=0))
    assert (left < 5 * members.std(axis=0) * np.sqrt(n / 2000)).all()


def start(series):
    """A guess of the state before the first sample, and the samples."""
    guess = series.states[0] + np.sqrt(experiment.START_VARIANCE) * np.random.default_rng(1).normal(size=40)
    return jnp.asarray(series.outputs[1:]), jnp.asarray(guess)


def error(mean, series):
    """Mean over time of the root mean square over cells, after the burn-in."""
    errors = np.sqrt(np.mean((np.asarray(mean) - series.states[1:]) ** 2, axis=1))
    return errors[experiment.BURN_IN :].mean()


@pytest.mark.parametrize("name", experiment.TWINS)
def test_published_errors_of_ensembles(name, series):
    """Oracle: DAPPER's table for this experiment, to 10%."""
    mean, scores = experiment.twin(*start(series), jax.random.key(0, impl="rbg"), settings=experiment.TWINS[name])
    assert abs(error(mean, series) / experiment.PUBLISHED[name] - 1) < 0.1
    # The density of an observation is at most that of one whose state is known; the spread tells how far below.
    limit = -20 * (np.log(2 * np.pi) + 1)
    assert limit - 2 < float(jnp.mean(scores[experiment.BURN_IN :])) < limit


def test_published_error_of_the_extended_filter(series):
    """Oracle: DAPPER's table; its tangents are taken one step late, ours may be better."""
    mean, _ = experiment.twin_extended(*start(series))
    assert error(mean, series) < 1.1 * experiment.PUBLISHED["extended"]


def test_a_thousand_particles_are_lost_in_forty_dimensions(series):
    """A guess that never looks at the data, the mean of the attractor, is off by 3.6."""
    short = series.rows(slice(0, 1 + experiment.BURN_IN + 100))
    mean, _ = experiment.twin_particle(*start(short), jax.random.key(0, impl="rbg"))
    assert error(mean, short) > 2.0


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The table, its file and its figure, of runs that are made up, and found where they are kept."""
    cells = experiment.select("lorenz96")
    store, jobs = Store(tmp_path), jobs_of("filters", cells, 2)
    store.begin(jobs, False)
    for seed, job in enumerate(jobs):
        runs = [
            experiment.score("Lorenz-96", 1.0, name, seed, 0.2 + 0.02 * seed, -58.0, 0.1)
            for name in (*experiment.TWINS, "extended", "particle")
        ]
        store.write(job, record(job, {"runs": runs}, None, "", 1.0, 1.0))
    command.run("filters", cells, seeds=2, json_=True, out=tmp_path)
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["published_rmse"] for row in rows] == [0.18, 0.22, 0.22, 0.24, None]
    np.testing.assert_allclose([rows[0]["rmse"], rows[0]["rmse_se"]], [0.21, 0.01])
    assert sum(len(fit["runs"]) for fit in json.loads((tmp_path / "results.json").read_text())["fits"]) == 10
    assert (tmp_path / "filters.png").exists()
    command.run("filters", cells, seeds=2, out=tmp_path)
    assert "0.210 ± 0.010" in capsys.readouterr().out
