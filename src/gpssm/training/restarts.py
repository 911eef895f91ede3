"""Which of several fits is returned: from skeletons where states are hidden, else with other random numbers each."""

from dataclasses import dataclass, replace

import jax
import numpy as np
from jaxtyping import Array

from gpssm.posteriors.posterior import Posterior
from gpssm.training import selection, skeleton_search
from gpssm.training.linear_search import LinearModels, best_linear_models
from gpssm.training.optimiser import Diverged
from gpssm.training.problem import Problem
from gpssm.training.progress import Monitor
from gpssm.training.recordings import Recordings
from gpssm.training.selection import Restart, Validation
from gpssm.training.skeleton_candidates import Candidate
from gpssm.training.specification import Specification

# Half the variance of what a simulation does not explain, at which it does not follow the recording.
_NOT_FOLLOWING = 0.1
# Of the schedule: a skeleton has found what takes most of the steps.
_TRIAL_SHARE, _FINAL_SHARE, _INFORMED_RATE = 0.125, 0.25, 2 / 3
# Numbers of all states, and limits of the share of the steps that this makes affordable.
_EFFORT, _EFFORTS = 2000, (0.3, 1.5)


@dataclass(frozen=True)
class Restarts:
    """All fits of one method to one problem."""

    method: Specification
    problem: Problem
    monitor: Monitor
    seed: int
    linear: LinearModels | None
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

    def _linear(self, data: Recordings) -> LinearModels:
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
        linear = self._linear(data)
        skeletons = skeleton_search.skeletons(
            self.problem, data, linear.candidates[0], self.seed, self.monitor.searching()
        )
        if min(np.mean(c.obs) for c in skeletons) > _NOT_FOLLOWING:
            return None
        candidates = skeleton_search.worth_a_trial(skeletons, linear)[:restarts]
        dx = self.method.state_dim
        effort = float(np.clip(_EFFORT / (len(ys) * max(map(len, ys)) * dx * max(1.0, dx / 4)), *_EFFORTS))
        trial_share, final_share = _TRIAL_SHARE * effort, _FINAL_SHARE * effort**0.5

        def learn(candidate: Candidate, share: float, outputs: list[np.ndarray], number: int, label: str) -> Posterior:
            # Whole chunks, for both halves: a limit that is not reached by them is passed.
            schedule = self.method.schedule
            pair = 2 * schedule.chunk
            steps = pair * max(1, round(share * schedule.max_steps / pair))
            schedule = schedule._replace(
                learning_rate=_INFORMED_RATE * schedule.learning_rate, max_steps=steps, decay_steps=steps // 2
            )
            problem = self._informed(candidate, data, outputs)
            posterior = self.method.learn(problem, schedule, self._key(number), self.monitor, label)
            if candidate.kind == "gp" or "transition.mean.weight" in posterior.fixed:
                return posterior
            return replace(posterior, model=skeleton_search.stable_mean(posterior.model))

        if not data.holds_back:
            return learn(candidates[0], final_share, ys, 0, "")
        kept = [np.where(np.arange(len(y))[:, None] < n, y, np.nan) for y, n in zip(ys, data.cuts, strict=True)]
        trials: list[tuple[Candidate, Posterior, Validation]] = []
        for number, candidate in enumerate(candidates):
            try:
                posterior = learn(candidate, trial_share, kept, number, _label(number, len(candidates)))
            except Diverged:
                continue  # a skeleton that explodes as soon as there is noise
            if self.monitor.interruption.requested:
                return posterior
            trials.append((candidate, posterior, Validation.of(posterior, kept, self.problem, data.cuts)))
        if not trials:
            return None
        chosen, fallback, validation = trials[selection.best_validated([v for *_, v in trials])]
        try:
            posterior = learn(skeleton_search.refined(chosen, data), final_share, ys, len(candidates), "")
        except Diverged:
            posterior = fallback
        if selection.is_worse(Validation.of(posterior, ys, self.problem, data.cuts), validation):
            posterior = fallback
        return selection.widened(posterior, validation.widening)

    def _from_random_numbers(self, restarts: int | None, *, with_linear: bool) -> Posterior:
        """The best of several fits from the same initial model, with other random numbers each.

        `with_linear`: one more starts from a linear model, which is what there is of a skeleton behind a network.
        """
        problem, interruption = self.problem, self.monitor.interruption
        ys, cs = problem.outputs, problem.inputs
        problems = [problem] * (self.method.default_restarts(problem) if restarts is None else restarts)
        if with_linear:
            data = Recordings.standardised(ys, cs)
            linear = min(self._linear(data).candidates, key=lambda c: c.error)
            informed = self._informed(skeleton_search.refined(linear, data), data, ys)
            problems.append(replace(informed, windows=problem.windows))
        longest = max(range(len(ys)), key=lambda i: len(ys[i]))
        found: list[Restart] = []
        while selection.wants_another(found, len(problems)):
            number = len(found)
            label = _label(number, max(len(problems), number + 1)) if len(problems) > 1 else ""
            now = problems[number] if number < len(problems) else problem
            posterior = self.method.learn(now, self.method.schedule, self._key(number), self.monitor, label)
            # A bound from half of a fit cannot be compared with those of whole ones.
            if not interruption.requested or not found:
                found.append(Restart.of(posterior, ys[longest], cs[longest], compared=len(problems) > 1))
            if interruption.requested:
                break
        return selection.best(found)


def _label(number: int, count: int) -> str:
    return f"start {number + 1} of {count}, "
