"""What a check after a fit has found: the end of the recordings, forecast by a model that has not seen it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from gpssm import metrics
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Unbounded
from gpssm.posteriors.verdict import GRADES, words

NDArray = np.ndarray

LINES = ("ARX", "LinearGaussian")
"""Methods that learn a line."""
MEAN = "TrainingMean"

AHEAD = 1.05
"""Errors that differ by less than this factor are the same."""


@saved
@dataclass(frozen=True)
class Score:
    """How one model has forecast what was held back; every array has a number for every output.

    >>> Score("ARX", np.array([0.2]), np.array([0.5]), np.array([0.88]), np.array([0.1])).fit.round(6).tolist()
    [60.0]
    """

    method: str
    rmse: Unbounded[Float[NDArray, " dy"]]
    """Root mean square error, in the unit of the output; infinite if the forecast diverged."""
    sd: Float[NDArray, " dy"]
    """Standard deviation of the output itself."""
    coverage90: Float[NDArray, " dy"]
    """Share of the numbers inside the central 90% band."""
    crps: Unbounded[Float[NDArray, " dy"]]
    """Continuous ranked probability score, in the unit of the output."""

    @classmethod
    def of(cls, method: str, runs: list[tuple[NDArray, NDArray]]) -> "Score":
        """Of sample paths (p, h, dy), each with the truth (h, dy)."""
        truth = np.concatenate([y for _, y in runs])
        paths = np.concatenate([samples for samples, _ in runs], axis=1)
        with np.errstate(over="ignore"):
            finite = bool(np.isfinite(np.square(paths).sum(axis=0)).all())
        found = []
        for j in range(truth.shape[1]):
            y, p = truth[:, j], paths[:, :, j]
            if np.isnan(y).all():  # no number of this output was held back
                found.append((np.nan, np.nan, np.nan, np.nan))
            elif finite:
                error = metrics.rmse(p.mean(axis=0), y)
                found.append((error, np.nanstd(y), metrics.coverage(p, y, 0.9), metrics.crps(p, y)))
            else:
                found.append((np.inf, np.nanstd(y), 0.0, np.inf))
        return cls(method, *np.array(found).T)

    @property
    def nrmse(self) -> float:
        """Over all outputs: `sqrt(mean of (rmse / sd)^2)`; 1 is the error of the mean of what was held back."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.sqrt(np.nanmean((self.rmse / self.sd) ** 2)))

    @property
    def fit(self) -> Float[NDArray, " dy"]:
        """Of every output, in per cent: `100 (1 - rmse / sd)`; 100 is perfect, 0 is the mean of what was held back."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return 100.0 * (1.0 - self.rmse / self.sd)

    @property
    def pooled_fit(self) -> float:
        """Over all outputs, in per cent."""
        return 100.0 * (1.0 - self.nrmse)

    @property
    def pooled_coverage90(self) -> float:
        """Mean over all outputs."""
        return float(np.nanmean(self.coverage90))

    def as_dict(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Ready for JSON."""
        columns = {"rmse": self.rmse, "fit_percent": self.fit, "coverage90": self.coverage90, "crps": self.crps}
        per_output = {n: {k: float(v[j]) for k, v in columns.items()} for j, n in enumerate(names)}
        pooled = {"fit_percent": self.pooled_fit, "coverage90": self.pooled_coverage90}
        return {"method": self.method} | pooled | {"outputs": per_output}


@saved
@dataclass(frozen=True)
class Check:
    """A model beside simpler ones, on the end of the recordings, which none of them has seen. Print it.

    Each has forecast all that was held back at once, from what came before it, with the inputs known.

    >>> import gpssm, numpy as np
    >>> y = np.sin(0.3 * np.arange(200)) + 0.1 * np.random.default_rng(0).normal(size=200)
    >>> fitted = gpssm.ARX(order=8).fit(y, holdout=0.2)
    >>> fitted.check.samples, fitted.check.model.pooled_fit > 70
    (40, True)
    >>> print(fitted.check)  # doctest: +ELLIPSIS
    the last 40 samples, forecast by models that have not seen them:
    ...
    """

    samples: int
    """How many were held back."""
    scores: tuple[Score, ...]
    """Of the model itself, then of the simpler ones."""
    output_names: tuple[str, ...]
    """dy of them."""
    numbers: int | None = None
    """How many numbers there are in them, if some are missing."""

    @property
    def model(self) -> Score:
        """The score of the model itself."""
        return self.scores[0]

    def named(self, output_names: tuple[str, ...]) -> "Check":
        """The same, with `output_names` for the outputs."""
        return Check(self.samples, self.scores, tuple(output_names), self.numbers)

    @property
    def verdict(self) -> str:
        """In words: whether the model is good, whether its bands hold, and whether a line is enough."""
        return " ".join(filter(None, [f"{self.model.method} {self._quality()}.", self._beside_lines()]))

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        scores = [score.as_dict(self.output_names) for score in self.scores]
        return {"held_back": self.samples, "scores": scores, "verdict": self.verdict}

    def __str__(self) -> str:
        several = len(self.output_names) > 1
        width = max(len(s.method) for s in self.scores)
        names = [*self.output_names, "all outputs"] if several else list(self.output_names)
        at = max(len(name) for name in names)
        few = "" if self.numbers is None else f" ({self.numbers} numbers)"
        lines = [f"the last {self.samples} samples{few}, forecast by models that have not seen them:"]
        lines.append(f"  {'':<{width}}  {'':<{at}}  {'RMSE':>10}  {'fit %':>6}  in 90% band")
        for s in self.scores:
            rows = [(f"{e:.4g}", f, c) for e, f, c in zip(s.rmse, s.fit, s.coverage90, strict=True)]
            if several:
                rows.append(("", s.pooled_fit, s.pooled_coverage90))
            for k, (name, (error, fit, coverage)) in enumerate(zip(names, rows, strict=True)):
                method = s.method if k == 0 else ""
                lines.append(f"  {method:<{width}}  {name:<{at}}  {error:>10}  {fit:>6.1f}  {coverage:>11.2f}")
        return "\n".join([*lines, self.verdict])

    def _quality(self) -> str:
        own = self.model
        mean = next((s for s in self.scores[1:] if s.method == MEAN), None)
        if not np.isfinite(own.nrmse):
            return "diverges: do not forecast with it"
        if mean is not None and own.nrmse > mean.nrmse / AHEAD:
            return "is no better than the mean of the recording"
        if own.pooled_fit < GRADES[-1][0]:  # than the mean of what was held back, which nobody knows beforehand
            return f"explains little of what was held back (fit {own.pooled_fit:.0f}%)"
        return words(own.pooled_fit, own.pooled_coverage90, numbers=self.numbers or self.samples)

    def _beside_lines(self) -> str:
        lines = [s for s in self.scores[1:] if s.method in LINES and np.isfinite(s.nrmse)]
        own = self.model
        if not lines or own.method in LINES or not np.isfinite(own.nrmse):
            return ""
        best = min(lines, key=lambda s: s.nrmse)
        if own.nrmse * AHEAD < best.nrmse:
            return f"A line has {best.nrmse / own.nrmse:.2g} times its error."
        if own.nrmse > AHEAD * best.nrmse:
            return f"A line ({best.method}) is better: use that, or record more."
        return f"A line ({best.method}) is as good."
