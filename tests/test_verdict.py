"""Scores in words."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpssm import metrics
from gpssm.posteriors.verdict import words


@pytest.mark.parametrize(
    ("fit", "coverage", "more", "said"),
    [
        (87.3, 0.91, {}, "follows the data (fit 87%), bands hold (0.91)"),
        (45.0, 0.8, {"lag1": 0.19}, "follows the data in part (fit 45%), bands hold (0.80)"),
        (12.0, 0.99, {}, "hardly beats the mean (fit 12%); bands rather wide: 0.99 of the numbers inside"),
        (-40.0, 0.62, {}, "does not beat the mean (fit -40%); bands too narrow: 0.62 of the numbers inside"),
        (90.0, 1.0, {"numbers": 10}, "follows the data (fit 90%), bands hold (1.00)"),
        (90.0, 1.0, {"numbers": 1000}, "follows the data (fit 90%); bands rather wide: 1.00"),
        (
            90.0,
            0.9,
            {"lag1": -0.6},
            "(0.90); residuals are correlated: something is left to learn (lag-1 -0.60)",
        ),
        (math.nan, math.nan, {"diverged": 12}, "unstable: the forecast diverges from step 12 on"),
    ],
)
def test_what_is_said(fit: float, coverage: float, more: dict[str, float], said: str) -> None:
    assert said in words(fit, coverage, **more)


@given(
    st.floats(-1e6, 100) | st.just(math.nan),
    st.floats(0, 1) | st.just(math.nan),
    st.floats(-1, 1) | st.just(math.nan),
)
def test_nothing_is_said_of_what_is_not_known(fit: float, coverage: float, lag1: float) -> None:
    said = words(fit, coverage, lag1=lag1)
    assert "nan" not in said and "\n" not in said
    assert ("fit" in said, "band" in said) == (not math.isnan(fit), not math.isnan(coverage))


def test_fit_percent_is_the_unexplained_share() -> None:
    """100 (1 - sqrt(1 - R^2)) with the R^2 of least squares, for which it is the squared correlation."""
    rng = np.random.default_rng(0)
    x, noise = rng.standard_normal((2, 200))
    y = 3 * x + noise
    line = np.polyval(np.polyfit(x, y, 1), x)
    expected = 100 * (1 - np.sqrt(1 - np.corrcoef(x, y)[0, 1] ** 2))
    truth = np.column_stack([y, y, np.full(200, 7.0), np.full(200, np.nan)])
    truth[50:60, 1] = np.nan
    seen = ~np.isnan(truth[:, 1])
    found = metrics.fit_percent(np.column_stack([line] * 4), truth)
    assert found[0] == pytest.approx(expected) and np.isnan(found[2:]).all()
    assert found[1] == pytest.approx(100 * (1 - np.std(y[seen] - line[seen]) / np.std(y[seen])), abs=0.5)
    assert metrics.fit_percent(truth[:, 0], truth[:, 0]) == 100
    assert metrics.fit_percent(np.full(200, np.mean(y)), y) == pytest.approx(0, abs=1e-9)
