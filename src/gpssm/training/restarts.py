"""Which of several fits is returned: by what they forecast, and by their bounds.

Where states are hidden, fits start from skeletons, and are compared by what each, learned from the rest, forecasts of
the end of the recording. Elsewhere, or where no simulation follows the recording, they start from the same model with
other random numbers each, and the best bound is kept of those whose free run stays with the recording.
"""

import logging
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array
from scipy.special import stdtrit  # scipy.stats takes half a second to import

from gpssm import metrics
from gpssm.numerics.parameters import parameters, with_values
from gpssm.plumbing.validation import Recording
from gpssm.posteriors.calibration import independent
from gpssm.posteriors.posterior import Posterior
from gpssm.training import skeleton_search
from gpssm.training.candidates import Candidate, Recordings, held_back
from gpssm.training.linear_search import best_linear_models
from gpssm.training.optimiser import Diverged
from gpssm.training.problem import Problem, Specification
from gpssm.training.progress import Monitor

logger = logging.getLogger(__name__)

# Half the variance of what a simulation does not explain, at which it does not follow the recording.
_NOT_FOLLOWING = 0.1
# Of the schedule: a skeleton has found what takes most of the steps.
_TRIAL_SHARE, _FINAL_SHARE, _INFORMED_RATE = 0.125, 0.25, 2 / 3
# Numbers of all states, and limits of the share of the steps that this makes affordable.
_EFFORT, _EFFORTS = 2000, (0.3, 1.5)
_LONG, _LONG_EFFORT = 4096, 1.5
_SCORED = 8000  # samples of the end of a recording at most, and of those before it that its state is found from


@dataclass(frozen=True)
class Restarts:
    """All fits of one method to one problem."""

    method: Specification
    problem: Problem
    monitor: Monitor
    seed: int
    linear: list[Candidate] | None
    """Linear models that the dimension of the state was chosen by, if it was."""

    def best(self, restarts: int | None) -> Posterior:
        """The fit to be returned; of as many as the method needs where `restarts` is None."""
        applies = skeleton_search.applies(self.problem)
        if applies and skeleton_search.has_gp(self.problem):
            posterior = self._from_skeletons(restarts)
            if posterior is not None:
                return posterior
            applies = False
        return self._from_random_numbers(restarts, with_linear=applies and restarts is None)

    def _key(self, number: int) -> Array:
        return jax.random.fold_in(jax.random.key(self.seed), number)

    def _linear(self, data: Recordings) -> list[Candidate]:
        return best_linear_models(data, self.method.state_dim) if self.linear is None else self.linear

    def _informed(self, candidate: Candidate, data: Recordings, outputs: list[np.ndarray]) -> Problem:
        """Initialised from a candidate, to be learned from these outputs."""
        given = self.method.process_noise is not None, self.method.obs_noise is not None
        initial = skeleton_search.informed(self.problem, candidate, data, keep_noise=given)
        return self.method.problem(outputs, self.problem.inputs, initial)

    def _from_skeletons(self, restarts: int | None) -> Posterior | None:
        """The best of a few skeletons, by what each, learned from the rest, forecasts of the end of the recording.

        None where no simulation follows the recording.
        """
        ys = self.problem.outputs
        data = Recordings.standardised(ys, self.problem.inputs)
        skeleton_search.compile_ahead(self.problem, data)
        linear = self._linear(data)
        # While skeletons are fitted, which takes seconds, what learns from them is compiled.
        self.method.compile_ahead(self._informed(linear[0], data, ys), self.method.schedule, self._key(0))
        skeletons = skeleton_search.skeletons(self.problem, data, linear[0], self.seed, self.monitor.searching())
        errors = [round(c.error, 4) for c in skeletons]
        logger.info("%d skeletons, whose simulations have the errors %s", len(errors), errors)
        if min(np.mean(c.obs) for c in skeletons) > _NOT_FOLLOWING:
            logger.info("no simulation follows the recording: fits start from random numbers")
            return None
        candidates = skeleton_search.worth_a_trial(skeletons, linear)[:restarts]
        dx, lengths = self.method.state_dim, tuple(map(len, ys))
        effort = float(np.clip(_EFFORT / (len(ys) * max(lengths) * dx * max(1.0, dx / 4)), *_EFFORTS))
        if sum(lengths) > _LONG:  # a step costs no more, and there is more to learn
            effort = _LONG_EFFORT
        trial_share, final_share = _TRIAL_SHARE * effort, _FINAL_SHARE * effort**0.5

        def steps_of(share: float) -> int:
            # Whole chunks, for both halves: a limit that is not reached by them is passed.
            pair = 2 * self.method.schedule.chunk
            return pair * max(1, round(share * self.method.schedule.max_steps / pair))

        def learn(candidate: Candidate, share: float, outputs: list[np.ndarray], number: int, label: str) -> Posterior:
            steps = steps_of(share)
            schedule = self.method.schedule._replace(
                learning_rate=_INFORMED_RATE * self.method.schedule.learning_rate,
                max_steps=steps,
                decay_steps=steps // 2,
            )
            problem = self._informed(candidate, data, outputs)
            trials_left = len(candidates) - 1 - number
            later = trials_left * steps_of(trial_share) + steps_of(final_share) if label else 0
            monitor = self.monitor._replace(later=later)
            posterior = self.method.learn(problem, schedule, self._key(number), monitor, label)
            posterior.history.planned = True
            if candidate.kind == "gp" or "transition.mean.weight" in posterior.fixed:
                return posterior
            return replace(posterior, model=skeleton_search.stable_mean(posterior.model))

        def itself(candidate: Candidate, outputs: list[np.ndarray]) -> Posterior:
            posterior = self.method.untrained(self._informed(candidate, data, outputs), self._key(0))
            posterior.history.messages.append(_ITSELF)
            posterior.history.planned = True
            return posterior

        cuts = held_back(lengths)
        if cuts == lengths:
            return learn(candidates[0], final_share, ys, 0, "")
        kept = [np.where(np.arange(len(y))[:, None] < n, y, np.nan) for y, n in zip(ys, cuts, strict=True)]
        trials: list[Trial] = []

        def tried(candidate: Candidate, posterior: Posterior, *, itself: bool) -> None:
            trials.append(Trial(candidate, posterior, Validation.of(posterior, kept, self.problem, cuts), itself))
            logger.info("start %d: %s", len(trials), trials[-1])

        for number, candidate in enumerate(candidates):
            if data.slow:
                tried(candidate, itself(candidate, kept), itself=True)
            try:
                posterior = learn(candidate, trial_share, kept, number, _label(number, len(candidates)))
            except Diverged:
                logger.info("a start from a skeleton (%s) diverges and is left out", candidate.kind)
                continue  # a skeleton that explodes as soon as there is noise
            tried(candidate, posterior, itself=False)
            if self.monitor.interruption.requested:
                break
        if not trials:
            return None
        place = best_validated([trial.validation for trial in trials])
        chosen = trials[place]
        logger.info("start %d is chosen: the best bound among the best forecasts of the end", place + 1)
        if self.monitor.interruption.requested:
            return chosen.widened()
        refined = skeleton_search.refined(chosen.candidate, data)
        try:
            final = itself(refined, ys) if chosen.itself else learn(refined, final_share, ys, len(candidates), "")
        except Diverged:
            return chosen.widened()
        if is_worse(Validation.of(final, ys, self.problem, cuts), chosen.validation):
            logger.info("learning from everything has made it worse: it stays as it was chosen")
            return chosen.widened()
        return chosen._replace(posterior=final).widened()

    def _from_random_numbers(self, restarts: int | None, *, with_linear: bool) -> Posterior:
        """The best of several fits from the same initial model, with other random numbers each.

        `with_linear`: one more starts from a linear model, which is what there is of a skeleton behind a network.
        """
        problem, interruption = self.problem, self.monitor.interruption
        ys, cs = problem.outputs, problem.inputs
        problems = [problem] * (self.method.default_restarts(problem) if restarts is None else restarts)
        if with_linear:
            data = Recordings.standardised(ys, cs)
            linear = min(self._linear(data), key=lambda c: c.error)
            informed = self._informed(skeleton_search.refined(linear, data), data, ys)
            problems.append(replace(informed, windows=problem.windows))
        longest = max(range(len(ys)), key=lambda i: len(ys[i]))
        found: list[Restart] = []
        while wants_another(found, len(problems)):
            number = len(found)
            label = _label(number, max(len(problems), number + 1)) if len(problems) > 1 else ""
            now = problems[number] if number < len(problems) else problem
            monitor = self.monitor._replace(later=max(0, len(problems) - 1 - number) * self.method.schedule.max_steps)
            posterior = self.method.learn(now, self.method.schedule, self._key(number), monitor, label)
            # A bound from half of a fit cannot be compared with those of whole ones.
            if not interruption.requested or not found:
                found.append(Restart.of(posterior, ys[longest], cs[longest], compared=len(problems) > 1))
                if len(problems) > 1:
                    logger.info("start %d: %s", len(found), found[-1])
            if interruption.requested:
                break
        return best_bound(found)


def _label(number: int, count: int) -> str:
    return f"start {number + 1} of {count}, "


_PATHS = 100
_NORMAL_90 = 1.645
_WIDENING = (0.85, 4.0)
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
        y, c, first = y[: cut + _SCORED], c[: cut + _SCORED], max(0, cut - _SCORED)
        if np.isnan(y[cut:]).all():
            return cls(np.inf, posterior.history.best)
        state = posterior.filtered_at(kept[i][first : cut + _SCORED], c[first:], cut - 1 - first)
        samples = posterior.ahead(c[cut:], state=state, num_paths=_PATHS).samples
        scale = posterior.scaling.output_scale
        if not np.isfinite(samples).all():
            return cls(np.inf, posterior.history.best)
        errors = (y[cut:] - samples.mean(axis=0)) / samples.std(axis=0)
        return cls(metrics.crps(samples / scale, y[cut:] / scale), posterior.history.best, widening(errors))


class Trial(NamedTuple):
    """A fit that has not seen the end of the recordings, and what that end says of it.

    Of a long recording the simulation that it starts from has seen pieces, also of that end
    (`candidates.pieces`).
    """

    candidate: Candidate
    posterior: Posterior
    validation: Validation
    itself: bool
    """Whether it is the skeleton as it is.

    Where outputs hardly move, what is learned from windows of a moment loses what a skeleton knows of a free run.
    """

    def __str__(self) -> str:
        what, (score, bound, widening) = "a skeleton itself" if self.itself else "from a skeleton", self.validation
        facts = f"CRPS {score:.4g} sd at the end of the recording, bound {bound:.6g}, bands times {widening:.3g}"
        return f"{what} ({self.candidate.kind}), {facts}"

    def widened(self) -> Posterior:
        """The fit, with bands as wide as that end says."""
        return widened(self.posterior, self.validation.widening)


_ITSELF = (
    "the simulation that learning starts from forecasts the end of the recording better than what was learned from it: "
    "this is that simulation"
)


def widening(errors: np.ndarray) -> float:
    """What a forecast's standard deviations must be multiplied by, from its errors (T, dy) in units of them.

    The factor that makes the 90% band hold 90% of these errors, and a larger one where few of them are independent of
    each other: as Student's t is wider than a normal distribution whose variance is known.
    """
    factor = float(np.clip(np.nanquantile(np.abs(errors), 0.9) / _NORMAL_90, *_WIDENING))
    return factor * float(stdtrit(max(sum(map(independent, errors.T)), _FEWEST), 0.95)) / _NORMAL_90


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

    def __str__(self) -> str:
        free_run = f"free run: density {self.density:.4g} per number, error {self.error:.4g} sd"
        return f"bound {self.posterior.history.best:.6g}, {free_run}"

    @classmethod
    def of(cls, posterior: Posterior, y: np.ndarray, c: np.ndarray, *, compared: bool) -> "Restart":
        """Without a free run where there is nothing to compare with, or too little to run over."""
        if not compared or len(y) < 2 * _RUN_IN:
            return cls(posterior)
        state = posterior.filtered(Recording(y[:_RUN_IN], c[:_RUN_IN], None))
        forecast = posterior.ahead(c[_RUN_IN:], state=state, num_paths=100)
        with np.errstate(over="ignore", invalid="ignore"):  # where it explodes the density is minus infinity
            residual = y[_RUN_IN:] - forecast.mean
            density = np.nanmean(-0.5 * (residual / forecast.std) ** 2 - np.log(forecast.std))
            error = np.sqrt(np.nanmean((residual / posterior.scaling.output_scale) ** 2))
        finite = bool(np.isfinite(density) and np.isfinite(error))
        return cls(posterior, float(density) if finite else -np.inf, float(error) if finite else np.inf)


def wants_another(done: list[Restart], restarts: int) -> bool:
    """Whether there are fewer than were asked for, or every one of them diverges from its own recording."""
    return len(done) < restarts or (len(done) < _MOST * restarts and all(r.error > _DIVERGED for r in done))


def best_bound(done: list[Restart]) -> Posterior:
    """The best bound among those whose free run stays with the recording."""
    least = max(r.density for r in done) - _MAX_LOSS
    return max((r.posterior for r in done if r.density >= least), key=lambda p: p.history.best)
