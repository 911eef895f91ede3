"""Numbers over seeds, and beside those that are printed."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpssm.experiments.base import Group


class Estimate(NamedTuple):
    """A number over so many seeds, and its standard error, where there is one."""

    value: float
    error: float | None = None
    seeds: int = 0


def mean(values: Sequence[float]) -> Estimate:
    """Of numbers, one per seed."""
    if not values:
        return Estimate(math.nan)
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return Estimate(float(np.mean(values)), error, len(values))


def median(values: Sequence[float]) -> Estimate:
    """Its standard error as for normal numbers with the same quartiles: a few runaways do not count."""
    if not values:
        return Estimate(math.nan)
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    error = float(1.2533 * (high - low) / 1.349 / np.sqrt(len(values))) if len(values) > 1 else None
    return Estimate(float(middle), error, len(values))


def spread(values: Sequence[float]) -> float:
    """Standard deviation over seeds; zero for one seed."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def verdict(ours: Estimate, printed: Estimate | None, higher: bool = False) -> str:
    """Ahead of what is printed, equal within two standard errors of the difference, or behind."""
    if printed is None or not ours.seeds:
        return ""
    alone = ", one seed" if ours.seeds == 1 else ""
    if not math.isfinite(ours.value):
        return f"behind{alone}"
    gain = (ours.value - printed.value) * (1 if higher else -1)
    if abs(gain) <= 2 * math.hypot(ours.error or 0.0, printed.error or 0.0):
        return f"equal{alone}"
    return ("ahead" if gain > 0 else "behind") + alone


def text(estimate: Estimate, digits: int = 3) -> str:
    """A number, with its error if it has one."""
    if not math.isfinite(estimate.value):
        return "diverged"
    around = "" if estimate.error is None else f" ± {estimate.error:.{digits}f}"
    return f"{estimate.value:.{digits}f}{around}"


def means(group: Group, *names: str) -> dict[str, float]:
    """Of numbers over seeds, by their names."""
    return {name: mean(group.values(name)).value for name in names}


def with_errors(**values: Sequence[float]) -> dict[str, float]:
    """Means over seeds by the names given, and as `<name>_se` their standard errors; zero for one seed."""
    found = {name: mean(each) for name, each in values.items()}
    return {name: e.value for name, e in found.items()} | {f"{name}_se": e.error or 0.0 for name, e in found.items()}
