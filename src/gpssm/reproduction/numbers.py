"""Numbers over seeds, beside those of the paper, and where they come from."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpssm.reproduction.pages import Entry, Part, entry
from gpssm.reproduction.plan import Group


class Estimate(NamedTuple):
    """A number over so many seeds, and its standard error, where there is one."""

    value: float
    error: float | None = None
    seeds: int = 0


def mean(values: Sequence[float]) -> Estimate:
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


VERDICTS = (
    "Verdicts: ahead of or behind the number that is printed for the same method, equal where the difference is within "
    "two standard errors (ours and, where it is printed, that of the paper)."
)


def number(group: Group, estimate: Estimate, digits: int = 3) -> Entry:
    """As text that leads to the result, or to the directory with those of all seeds; or why there is none."""
    if not estimate.seeds:
        return entry("failed" if group.failed else "not run")
    return entry(text(estimate, digits), group.files[0][1] if len(group.files) == 1 else f"{group.folder}/")


def text(estimate: Estimate, digits: int = 3) -> str:
    if not math.isfinite(estimate.value):
        return "diverged"
    spread = "" if estimate.error is None else f" ± {estimate.error:.{digits}f}"
    return f"{estimate.value:.{digits}f}{spread}"


def over_seeds(groups: Sequence[Group]) -> str:
    """How many seeds the numbers of every method are over."""
    counts: dict[str, set[int]] = {}
    for group in groups:
        counts.setdefault(group.method, set()).add(len(group.results))
    spans: dict[str, list[str]] = {}
    for method, found in counts.items():
        low, high = min(found), max(found)
        spans.setdefault(f"{high}" if low == high else f"{low} to {high}", []).append(method)
    if len(spans) == 1:
        return f"Seeds: {next(iter(spans))}."
    return "Seeds: " + "; ".join(f"{span} ({', '.join(methods)})" for span, methods in spans.items()) + "."


def printed(estimate: Estimate | None, digits: int = 3) -> Entry:
    return entry("" if estimate is None else text(estimate, digits))


def files(group: Group) -> Entry:
    """Every seed, leading to its file."""
    return (
        *(Part(str(seed), file) for seed, file in group.files),
        *(Part(f"{seed} failed", file) for seed, file in group.failed),
        *(Part(f"{seed} not run") for seed in group.missing),
    )
