"""What the scores of a model say, in words."""

import math

GRADES = ((50.0, "follows the data"), (20.0, "follows the data in part"), (5.0, "hardly beats the mean"))
"""Words for a fit of so many percent or more."""
HOLDS = (0.8, 0.98)
"""Share of the numbers inside the 90% band with which that is said to hold."""
CORRELATED = 0.2
"""Lag-1 autocorrelation of residuals from which on there is something left to learn."""


def words(
    fit: float,
    coverage90: float,
    *,
    lag1: float = math.nan,
    numbers: int | None = None,
    diverged: int | None = None,
) -> str:
    """One line on whether a model follows the data and its bands hold; what is NaN is not spoken of.

    Args:
        fit: 100 (1 - RMSE / standard deviation of the data), in percent.
        coverage90: share of the numbers inside the 90% band.
        lag1: autocorrelation of the residuals one step ahead, at lag 1.
        numbers: how many were scored: of few, the share may be farther from 0.9.
        diverged: the step from which on the forecast is infinite, if there is one.

    >>> words(87.3, 0.91)
    'follows the data (fit 87%), bands hold (0.91)'
    >>> words(2.0, 0.62, lag1=0.6)
    'does not beat the mean (fit 2%); bands too narrow: 0.62 of the numbers inside the 90% band; \
residuals are correlated: something is left to learn (lag-1 0.60)'
    """
    if diverged is not None:
        parts = [f"unstable: the forecast diverges from step {diverged} on"]
    else:
        parts = [part for part in (_of_fit(fit), _of_coverage(coverage90, numbers)) if part]
    if abs(lag1) > CORRELATED:
        parts.append(f"residuals are correlated: something is left to learn (lag-1 {lag1:.2f})")
    return (", " if all(":" not in part for part in parts) else "; ").join(parts)


def _of_fit(fit: float) -> str:
    if math.isnan(fit):
        return ""
    said = next((text for least, text in GRADES if fit >= least), "does not beat the mean")
    return f"{said} (fit {fit:.0f}%)"


def _of_coverage(coverage90: float, numbers: int | None) -> str:
    if math.isnan(coverage90):
        return ""
    luck = 0.0 if numbers is None else 2 * math.sqrt(0.09 / numbers)
    if min(HOLDS[0], 0.9 - luck) <= coverage90 <= max(HOLDS[1], 0.9 + luck):
        return f"bands hold ({coverage90:.2f})"
    size = "too narrow" if coverage90 < 0.9 else "rather wide"
    return f"bands {size}: {coverage90:.2f} of the numbers inside the 90% band"
