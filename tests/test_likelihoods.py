"""Likelihoods against SciPy, quadrature and each other; and what a user sees of them."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import gpssm
from gpssm.datasets import kink
from gpssm.errors import InvalidInput
from gpssm.filters import FILTERS, ensemble
from gpssm.methods import envi, registry
from gpssm.models import LIKELIHOODS
from gpssm.models.emission import LinearEmission
from gpssm.models.noise import DiagonalNoise, FullNoise, Likelihood, Matched
from gpssm.models.student_t import StudentT
from gpssm.numerics.parameters import with_values
from gpssm.training import initialisation

VARIANCE = np.array([0.3, 2.0, 0.05])
LIKE = {
    "gaussian": (DiagonalNoise(VARIANCE), stats.norm(scale=np.sqrt(VARIANCE))),
    "student_t": (StudentT(VARIANCE, 5.0), stats.t(5.0, scale=np.sqrt(VARIANCE))),
}
SHORT = gpssm.Schedule(max_steps=20)


@jax.jit
def match(likelihood: Likelihood, y: jax.Array, mean: jax.Array, cov: jax.Array) -> Matched:
    return likelihood.match(y, mean, cov)


def test_every_likelihood_is_checked_here() -> None:
    assert LIKE.keys() == LIKELIHOODS.keys()
    for name, full_name in LIKELIHOODS.items():
        kind = type(LIKE[name][0])
        assert f"{kind.__module__}.{kind.__name__}" == full_name


@pytest.mark.parametrize("name", LIKE)
def test_density_of_the_channels_that_were_seen(name: str) -> None:
    """Oracle: SciPy."""
    likelihood, oracle = LIKE[name]
    y, clean = np.array([1.0, np.nan, -4.0]), np.random.default_rng(0).normal(size=(6, 3))
    expected = oracle.logpdf(np.nan_to_num(y) - clean)[:, ~np.isnan(y)].sum(axis=1)
    np.testing.assert_allclose(likelihood.log_prob(jnp.asarray(y), jnp.asarray(clean)), expected, rtol=1e-12)
    nothing = likelihood.log_prob(jnp.full(3, jnp.nan), jnp.asarray(clean))
    np.testing.assert_array_equal(nothing, np.zeros(6))
    slope = jax.grad(lambda z: jnp.sum(likelihood.log_prob(jnp.asarray(y), z)))(jnp.asarray(clean))
    assert np.isfinite(slope).all()


@pytest.mark.parametrize("name", LIKE)
def test_samples(name: str) -> None:
    """Oracle: SciPy's distribution function, by the test of Kolmogorov and Smirnov; and the moments."""
    likelihood, oracle = LIKE[name]
    clean = jnp.asarray([1.0, -2.0, 0.0])
    draws = np.asarray(likelihood.sample(jax.random.key(0), jnp.broadcast_to(clean, (20_000, 3))) - clean)
    for i in range(3):
        kind = stats.norm(scale=VARIANCE[i] ** 0.5) if name == "gaussian" else stats.t(5.0, scale=VARIANCE[i] ** 0.5)
        assert stats.kstest(draws[:, i], kind.cdf).pvalue > 1e-3
    assert np.abs(np.corrcoef(draws.T) - np.eye(3)).max() < 5 / np.sqrt(20_000)
    mean, var = likelihood.moments(clean, jnp.asarray([0.1, 0.2, 0.3]))
    np.testing.assert_array_equal(mean, clean)
    np.testing.assert_allclose(var, np.add(oracle.var(), [0.1, 0.2, 0.3]), rtol=1e-12)


@pytest.mark.parametrize("nu", [2.1, 4.0, 30.0])
@pytest.mark.parametrize("spread", [0.05, 3.0])
def test_student_t_in_a_kalman_update(nu: float, spread: float) -> None:
    """Oracle: p(y) and E[x | y] of x ~ N(1, spread), by quadrature over x."""
    x = np.linspace(1 - 14 * spread**0.5, 1 + 14 * spread**0.5, 200_001)
    prior, step = stats.norm.pdf(x, 1.0, spread**0.5), x[1] - x[0]
    for y in (1.0, 2.0, -4.0, 8.0):
        joint = prior * stats.t.pdf(y - x, nu, scale=0.3**0.5)
        evidence = joint.sum() * step
        mean = (joint * x).sum() * step / evidence
        matched = match(StudentT([0.3], nu), jnp.asarray([y]), jnp.ones(1), jnp.full((1, 1), spread))
        np.testing.assert_allclose(matched.score, np.log(evidence), atol=1e-3)
        gain = spread / (spread + float(matched.variance[0]))
        np.testing.assert_allclose(1.0 + gain * (y - 1.0), mean, atol=2e-3)


@pytest.mark.parametrize("nu", [2.3, 4.0, 10.0, 30.0, 300.0])
@pytest.mark.parametrize("spread", [0.01, 1.0, 300.0])
def test_the_further_an_outlier_the_smaller_the_move(nu: float, spread: float) -> None:
    """Oracle: E[x | y] by quadrature over w. Beyond some distance the move falls, towards zero."""
    distances = np.geomspace(1.0, 1e6, 60)
    log_w = np.linspace(-40.0, 2.0, 200_001)
    total = spread + np.exp(-log_w)
    moves = []
    for distance in distances:
        matched = match(StudentT([1.0], nu), jnp.asarray([distance]), jnp.zeros(1), jnp.full((1, 1), spread))
        moves.append(distance * spread / (spread + float(matched.variance[0])))
        score = 0.5 * nu * (log_w - np.exp(log_w)) - 0.5 * (distance**2 / total + np.log(total))
        weights = np.exp(score - score.max())
        expected = distance * spread * np.sum(weights / total) / np.sum(weights)
        np.testing.assert_allclose(moves[-1], expected, rtol=5e-3)
    largest = int(np.argmax(moves))
    assert largest < 45 and np.all(np.diff(moves[largest:]) < 0)
    np.testing.assert_allclose(moves[-1], spread * (nu + 1.0) / distances[-1], rtol=1e-2)


def assimilated(likelihood: Likelihood, y: np.ndarray, update: ensemble.Update) -> ensemble.Filtered:
    rng = np.random.default_rng(1)
    emission = LinearEmission(rng.normal(size=(3, 2)), rng.normal(size=3))
    observing = ensemble.Observing(FullNoise([[0.4, 0.0], [0.1, 0.3]]), emission, likelihood)
    f_mean, f_noise = jnp.asarray(rng.normal(size=(30, 2))), DiagonalNoise(np.full((30, 2), 0.1))
    eps = jnp.asarray(rng.normal(size=(2, 30, 2))), jnp.asarray(rng.normal(size=(30, 3)))
    options = ensemble.Options(update=update)

    @jax.jit
    def run(likelihood: Likelihood, y: jax.Array) -> ensemble.Filtered:
        own = observing._replace(obs_noise=likelihood)
        return ensemble.assimilate(f_mean, f_noise, y, eps[0], eps[1], own, options)[1]

    return run(likelihood, jnp.asarray(y))


@pytest.mark.parametrize("update", ["perturbed", "mixture"])
def test_with_many_degrees_of_freedom_it_is_gaussian(update: ensemble.Update) -> None:
    """Oracle: the Gaussian likelihood, in members, moments and score; several channels, one of them missing."""
    y = np.array([0.5, np.nan, -1.5])
    ours, theirs = (assimilated(kind, y, update) for kind in (StudentT(VARIANCE, 1e9), DiagonalNoise(VARIANCE)))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_an_outlier_moves_the_state_little() -> None:
    """The further off it is the less, where Gaussian noise follows it."""
    usual, far = np.array([0.5, 1.0, -1.5]), np.array([0.5, 1.0, 60.0])
    for kind, follows in ((DiagonalNoise(VARIANCE), True), (StudentT(VARIANCE, 4.0), False)):
        gap = assimilated(kind, far, "perturbed").mean - assimilated(kind, usual, "perturbed").mean
        assert (np.abs(gap).max() > 5.0) == follows


def test_the_bound_of_student_t_tends_to_the_gaussian_one() -> None:
    """EnVI's bound with the same random numbers, as nu grows."""
    y = kink(60, seed=0).outputs
    values = []
    for name, nu in (("gaussian", None), ("student_t", 1e3), ("student_t", 1e7)):
        problem = gpssm.EnVI(1, 5, likelihood=name, process_noise=0.5).problem([y], [np.zeros((60, 0))])
        model = problem.model
        if nu is not None:
            model = with_values(model, {"obs_noise.degrees_of_freedom": np.asarray(nu)})
        carry = initialisation.ensembles(problem, 50, jax.random.key(1), jnp.dtype(float))
        bound = jax.jit(envi.elbo, static_argnames="settings")
        data = envi.Data(problem.windows)
        values.append(float(bound(model, carry, data, jax.random.key(2), settings=problem.settings)[0]))
    gaps = np.abs(np.asarray(values[1:]) - values[0])
    assert gaps[1] < 1e-3 < gaps[0]


@pytest.fixture(scope="module")
def robust() -> gpssm.Posterior:
    y = kink(80, seed=0).outputs
    y[::20] += 8.0
    return gpssm.EnVI(1, 5, likelihood="student_t", schedule=SHORT).fit(y)


def test_learned_saved_and_used(robust: gpssm.Posterior, tmp_path: Path) -> None:
    y = kink(40, seed=1).outputs
    y[10, 0] += 20.0
    robust.save(tmp_path / "model.gpssm")
    loaded = gpssm.load(tmp_path / "model.gpssm")
    assert isinstance(loaded.model.obs_noise, StudentT)
    assert float(loaded.model.obs_noise.degrees_of_freedom) != 4.0
    for name in FILTERS:
        states = loaded.filter(y, filter=name)
        assert np.array_equal(states.mean, robust.filter(y, filter=name).mean)
        assert np.isfinite(states.log_likelihood)
    np.testing.assert_array_equal(loaded.forecast(5).samples, robust.forecast(5).samples)
    rows = {row.name: row for row in robust.summary().rows}
    assert rows["obs_noise.variance"].unit == "output^2"
    assert rows["obs_noise.degrees_of_freedom"].unit == "of Student t"
    assert rows["obs_noise.degrees_of_freedom"].value == robust.model.obs_noise.degrees_of_freedom


def test_one_word_holds_all_of_it_fixed() -> None:
    method = gpssm.EnVI(1, 5, likelihood="student_t", obs_noise=0.1, fixed=("obs_noise",), schedule=SHORT)
    fitted = method.fit(kink(40, seed=0).outputs)
    assert float(fitted.model.obs_noise.degrees_of_freedom) == 4.0
    np.testing.assert_allclose(fitted.model.obs_noise.variance * fitted.scaling.output_scale**2, [0.1], rtol=1e-12)


@pytest.mark.parametrize("method", [gpssm.PRSSM, gpssm.VCDT, gpssm.ADEnKF])
def test_every_method_that_scores_outputs_has_it(method: type) -> None:
    fitted = method(1, likelihood="student_t", schedule=gpssm.Schedule(max_steps=4, chunk=2)).fit(kink(40).outputs)
    assert isinstance(fitted.model.obs_noise, StudentT)
    assert np.isfinite(fitted.history.elbo).all()


def test_in_single_precision() -> None:
    schedule = gpssm.Schedule(max_steps=4, chunk=2)
    fitted = gpssm.EnVI(1, 4, likelihood="student_t", dtype="float32", schedule=schedule).fit(kink(40).outputs)
    assert fitted.model.obs_noise.variance.dtype == np.float32
    assert np.isfinite(fitted.history.elbo).all()


def test_refused(robust: gpssm.Posterior) -> None:
    with pytest.raises(InvalidInput, match=r"likelihood: expected one of .*gaussian.*student_t.*got 'cauchy'"):
        gpssm.EnVI(1, likelihood="cauchy")
    with pytest.raises(InvalidInput, match="likelihood: CO-GPSSM bounds a squared error"):
        gpssm.COGPSSM(1, likelihood="student_t")
    with pytest.raises(InvalidInput, match="likelihood: LinearGaussian has no such choice"):
        registry.build("LinearGaussian", likelihood="student_t")
    with pytest.raises(InvalidInput, match="likelihood: a stream needs a Gaussian one"):
        gpssm.OEnVI.continuing(robust)
