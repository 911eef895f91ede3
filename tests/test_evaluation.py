"""The protocols: what is forecast from what, and that nothing is read before it is predicted."""

import numpy as np
import pytest

import gpssm
from gpssm import evaluation, metrics
from gpssm.errors import InvalidInput
from gpssm.experiments import sysid
from gpssm.experiments.base import Cell, Group
from gpssm.posteriors.fitted import Fitted
from gpssm.training.optimiser import Schedule

LENGTH, TEST, BLOCK = 120, 25, 10


def driven(length: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    u = rng.standard_normal((length, 1))
    y = np.zeros((length, 1))
    for t in range(1, length):
        y[t] = 0.8 * y[t - 1] + np.tanh(u[t]) + 0.1 * rng.standard_normal()
    return y, u


@pytest.fixture(scope="module", params=["EnVI", "ARX"])
def fitted(request: pytest.FixtureRequest) -> Fitted:
    y, u = driven(LENGTH)
    if request.param == "ARX":
        return gpssm.ARX(order=2).fit(y, u)
    schedule = Schedule(max_steps=50, decay_steps=25)
    return gpssm.EnVI(2, 6, num_members=10, schedule=schedule).fit(y, u, restarts=1)


@pytest.fixture(scope="module")
def test_part() -> tuple[np.ndarray, np.ndarray]:
    y, u = driven(LENGTH + TEST)
    return y[LENGTH:], u[LENGTH:]


@pytest.mark.filterwarnings("ignore::gpssm.errors.DataWarning")  # that is what the poison looks like
def test_poisoned_future_gives_the_same_forecast(fitted: Fitted, test_part: tuple[np.ndarray, np.ndarray]) -> None:
    """The forecast of a block is the same, to the bit, whatever comes from its first sample on."""
    y, u = test_part
    honest = evaluation.blocks(fitted, y, u, length=BLOCK)
    for first in range(0, TEST, BLOCK):
        poisoned = y.copy()
        poisoned[first:] = np.nan
        until = min(first + BLOCK, TEST)
        np.testing.assert_array_equal(
            evaluation.blocks(fitted, poisoned, u, length=BLOCK)[:, :until], honest[:, :until]
        )
        poisoned[first:] = 1e3
        np.testing.assert_array_equal(
            evaluation.blocks(fitted, poisoned, u, length=BLOCK)[:, :until], honest[:, :until]
        )


def test_blocks_do_read_the_past(fitted: Fitted, test_part: tuple[np.ndarray, np.ndarray]) -> None:
    """Other samples before a block change its forecast: the protocol is not a free run in disguise."""
    y, u = test_part
    honest = evaluation.blocks(fitted, y, u, length=BLOCK)
    other = evaluation.blocks(fitted, np.concatenate([y[:BLOCK] + 1.0, y[BLOCK:]]), u, length=BLOCK)
    assert not np.array_equal(honest[:, BLOCK:], other[:, BLOCK:])


def test_first_block_is_the_start_of_a_forecast(fitted: Fitted, test_part: tuple[np.ndarray, np.ndarray]) -> None:
    y, u = test_part
    blocks = evaluation.blocks(fitted, y, u, length=BLOCK, seed=3)
    np.testing.assert_array_equal(blocks[:, :BLOCK], fitted.forecast(BLOCK, u[:BLOCK], seed=3).samples)


def test_filter_continues_where_it_stopped(fitted: Fitted, test_part: tuple[np.ndarray, np.ndarray]) -> None:
    """One recording in two pieces is filtered like the whole, up to the ensemble's own randomness."""
    y, u = test_part
    whole = fitted.filter(y, u, state=fitted.end)
    first = fitted.filter(y[:10], u[:10], state=fitted.end)
    second = fitted.filter(y[10:], u[10:], state=first, seed=1)
    np.testing.assert_allclose(second.mean[-1, 0], whole.mean[-1, 0], atol=0.1)
    assert abs(first.log_likelihood + second.log_likelihood - whole.log_likelihood) < 3.0


def test_one_step_predictions_score_like_the_filter(fitted: Fitted, test_part: tuple[np.ndarray, np.ndarray]) -> None:
    """Oracle: the filter's log-likelihood is that of the one-step predictions."""
    y, u = test_part
    mean, sd = fitted.one_step(y, u, state=fitted.end)
    density = -0.5 * (np.log(2 * np.pi * sd**2) + (y - mean) ** 2 / sd**2)
    assert density.sum() == pytest.approx(fitted.filter(y, u, state=fitted.end).log_likelihood, rel=1e-6, abs=1e-6)


def test_scores_are_those_of_metrics(fitted: Fitted, test_part: tuple[np.ndarray, np.ndarray]) -> None:
    y, u = test_part
    samples = evaluation.free_run(fitted, TEST, u)
    assert evaluation.score(samples, y).as_dict() == {
        "rmse": metrics.rmse(samples.mean(axis=0), y),
        "nlpd": metrics.nlpd(samples, y),
        "crps": metrics.crps(samples, y),
        "coverage90": metrics.coverage(samples, y, 0.9),
    }


def test_wrong_block_length_is_refused(fitted: Fitted, test_part: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(InvalidInput, match="length"):
        evaluation.blocks(fitted, *test_part, length=0)


@pytest.mark.filterwarnings("ignore::gpssm.errors.DataWarning")  # that is what the poison looks like
def test_experiment_never_shows_the_second_half_to_the_fit() -> None:
    """The scores' own forecast is the same with a poisoned second half."""
    y, u = driven(200)
    series = gpssm.datasets.Series(y, u, None)
    poisoned = y.copy()
    poisoned[101:] = 1e3  # the first test sample stays, so that there is something to score
    honest = sysid.fit("dryer", series, "ARX", 0)
    other = sysid.fit("dryer", series._replace(outputs=poisoned), "ARX", 0)
    assert honest["mean"] == other["mean"]
    assert honest["low"] == other["low"]


def test_experiment_deletes_training_outputs_only() -> None:
    y, u = driven(200)
    series = gpssm.datasets.Series(y, u, None)
    whole, holed = sysid.fit("dryer", series, "ARX(4)", 0), sysid.fit("dryer", series, "ARX(4)", 0, missing=0.2)
    assert whole["mean"] != holed["mean"]
    assert np.isfinite(holed["free_run_rmse"])
    row = sysid.row(Group(Cell("ARX(4)", "dryer", "offline"), "", (whole, holed), (), (), ()))
    assert row["free_run_rmse"] == pytest.approx((whole["free_run_rmse"] + holed["free_run_rmse"]) / 2)
