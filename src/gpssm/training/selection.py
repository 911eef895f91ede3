"""Which of several fits to keep: by what they forecast, and by their bounds."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student_t

from gpssm import metrics
from gpssm.numerics.parameters import parameters, with_values
from gpssm.posteriors.posterior import Posterior
from gpssm.training.problem import Problem

_PATHS = 100
_NORMAL_90 = 1.645
_WIDENING = (0.85, 4.0)
_FORGOTTEN = 0.1  # autocorrelation of errors that no longer know of each other
_FEWEST = 5.0  # independent errors; with fewer than that the factor would be all caution
_WORSE = 1.5
_SAME = 1.03  # scores within this factor are the same; then the bound decides


class Validation(NamedTuple):
    """A fit to all but the end of the recordings, and how well it forecasts that end."""

    score: float
    """CRPS of a free run, in standard deviations of the outputs; infinite if it explodes or nothing was held back."""
    bound: float
    widening: float = 1.0
    """What its standard deviations would have to be multiplied by for its 90% band to hold 90%."""

    @classmethod
    def of(cls, posterior: Posterior, kept: list[np.ndarray], problem: Problem, cuts: tuple[int, ...]) -> "Validation":
        """`kept` are the outputs without those held back, which start at `cuts`; the longest recording is scored."""
        i = max(range(len(cuts)), key=lambda i: len(problem.outputs[i]) - cuts[i])
        y, c, cut = problem.outputs[i], problem.inputs[i], cuts[i]
        if cut == len(y) or np.isnan(y[cut:]).all():
            return cls(np.inf, posterior.history.best)
        state = posterior.filtered_at(kept[i], c, cut - 1)
        ahead = c[cut:] if posterior.input_dim else None
        samples = posterior.forecast(len(y) - cut, ahead, state=state, num_paths=_PATHS).samples
        scale = posterior.scaling.output_scale
        if not np.isfinite(samples).all():
            return cls(np.inf, posterior.history.best)
        errors = (y[cut:] - samples.mean(axis=0)) / samples.std(axis=0)
        return cls(metrics.crps(samples / scale, y[cut:] / scale), posterior.history.best, widening(errors))


def widening(errors: np.ndarray) -> float:
    """What a forecast's standard deviations must be multiplied by, from its errors (T, dy) in units of them.

    The factor that makes the 90% band hold 90% of these errors, and a larger one where few of them are independent of
    each other: as Student's t is wider than a normal distribution whose variance is known.
    """
    factor = float(np.clip(np.nanquantile(np.abs(errors), 0.9) / _NORMAL_90, *_WIDENING))
    return factor * float(student_t.ppf(0.95, _independent(errors))) / _NORMAL_90


def _independent(errors: np.ndarray) -> float:
    """How many independent errors say as much: their number over the time that they stay alike."""
    count = 0.0
    for column in errors.T:
        z = column[~np.isnan(column)]
        square = float(np.mean(z**2)) if len(z) else 0.0
        time = 1.0
        for lag in range(1, len(z)):
            correlation = float(np.mean(z[lag:] * z[:-lag])) / square if square > 0 else 0.0
            if correlation < _FORGOTTEN:
                break
            time += 2.0 * correlation
        count += len(z) / time
    return max(count, _FEWEST)


def widened(posterior: Posterior, factor: float) -> Posterior:
    """All standard deviations multiplied: of both noises and of q(u), but for parameters that are held.

    A bound looks some ten samples ahead and takes errors for independent; it cannot know how far a free run of
    hundreds goes astray, which the end of the recording shows. The gain of the filter stays what it is.
    """
    powers = {"process_noise.variance": 2, "process_noise.chol": 1, "obs_noise.variance": 2, "transition.gp.q_chol": 1}
    values = {
        p.name: np.asarray(p.value) * factor ** powers[p.name]
        for p in parameters(posterior.model)
        if p.name in powers and p.name not in posterior.fixed
    }
    return replace(posterior, model=with_values(posterior.model, values))


def is_worse(final: Validation, trial: Validation) -> bool:
    """Whether a fit that has learned from the end of the recording forecasts it worse than one that had not."""
    return not final.score <= _WORSE * trial.score


def best_validated(trials: list[Validation]) -> int:
    """The best bound among those that forecast equally well."""
    least = min(t.score for t in trials)
    return max((i for i, t in enumerate(trials) if t.score <= _SAME * least), key=lambda i: trials[i].bound)


_RUN_IN = 25  # samples to find the state from before a free run
_MAX_LOSS = 1.0  # nats per number
_DIVERGED = 2.0  # standard deviations of the recording
_MOST = 2  # times as many as were wanted, where all of those diverge


class Restart(NamedTuple):
    """One of several fits, and its free run over the longest recording.

    The bound sees stretches of some ten samples. A model that is just unstable looks good on those, and
    explodes over hundreds.
    """

    posterior: Posterior
    density: float = 0.0
    """Mean log-density of the recording after its first samples, forecast from them alone."""
    error: float = 0.0
    """Root mean square of the forecast's error, in standard deviations of the recording."""

    @classmethod
    def of(cls, posterior: Posterior, y: np.ndarray, c: np.ndarray, *, compared: bool) -> "Restart":
        """Without a free run where there is nothing to compare with, or too little to run over."""
        if not compared or len(y) < 2 * _RUN_IN:
            return cls(posterior)
        inputs = (c[:_RUN_IN], c[_RUN_IN:]) if posterior.input_dim else (None, None)
        state = posterior.filter(y[:_RUN_IN], inputs[0])
        forecast = posterior.forecast(len(y) - _RUN_IN, inputs[1], state=state, num_paths=100)
        with np.errstate(over="ignore", invalid="ignore"):  # where it explodes the density is minus infinity
            residual = y[_RUN_IN:] - forecast.mean
            density = np.nanmean(-0.5 * (residual / forecast.std) ** 2 - np.log(forecast.std))
            error = np.sqrt(np.nanmean((residual / posterior.scaling.output_scale) ** 2))
        finite = bool(np.isfinite(density) and np.isfinite(error))
        return cls(posterior, float(density) if finite else -np.inf, float(error) if finite else np.inf)


def wants_another(done: list[Restart], restarts: int) -> bool:
    """Whether there are fewer than were asked for, or every one of them diverges from its own recording."""
    return len(done) < restarts or (len(done) < _MOST * restarts and all(r.error > _DIVERGED for r in done))


def best(done: list[Restart]) -> Posterior:
    """The best bound among those whose free run stays with the recording."""
    least = max(r.density for r in done) - _MAX_LOSS
    return max((r.posterior for r in done if r.density >= least), key=lambda p: p.history.best)
