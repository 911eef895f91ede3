"""What the methods that learn a state-space model from a recording have in common.

A method chooses a transition and an objective; around them are the arguments every user knows
(`training.problem`), initialisation, windows, restarts (`training.restarts`), the optimiser, and the
posterior that comes out. `docs/extend.md` shows how to write one.
"""

import logging
from abc import ABC
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from gpssm.errors import InvalidInput
from gpssm.filters import ensemble
from gpssm.filters.ensemble import FilterSettings
from gpssm.gp.kernels import RBF, Kernel
from gpssm.gp.means import Linear
from gpssm.methods.checked import Recordings, Stage, checked
from gpssm.models.emission import LinearEmission
from gpssm.models.gpssm import GPSSM, Transition
from gpssm.numerics.parameters import match, parameters
from gpssm.plumbing import guards
from gpssm.plumbing.compilation import CompileClock, bucket
from gpssm.plumbing.interruption import Interruption
from gpssm.plumbing.precision import double_precision
from gpssm.plumbing.validation import positive_int, training_data
from gpssm.posteriors.history import History, Progress
from gpssm.posteriors.posterior import Posterior
from gpssm.training.candidates import Recordings as Standardised
from gpssm.training.initialisation import gp_transition, initialise
from gpssm.training.linear_search import AUTO, enough_states
from gpssm.training.optimiser import Objective, Schedule, compile_ahead, train
from gpssm.training.problem import Initialisation, MeanLike, Problem, RoughStates, Specification
from gpssm.training.progress import Monitor, Watch, watcher
from gpssm.training.restarts import Restarts
from gpssm.training.windows import cut, filled_up

logger = logging.getLogger(__name__)

_MAX_NORM = 0.995
# Samples from which on there is more to be known of f, and the inducing points below and above.
_LONG, _INDUCING = 8000, (20, 40)


class Learner(eqx.Module):
    """What is trained by a method that has more to learn than the model: q of the states, for example."""

    model: GPSSM
    states: Any

    def contracted(self) -> "Learner":
        """With the linear mean function of the model made a contraction."""
        return Learner(contracted(self.model), self.states)


@dataclass(frozen=True)
class StateSpaceMethod(Specification, ABC):
    """A method with everything that a user may want to choose of the model around f (`Specification`)."""

    # What a method is ----------------------------------------------------------------------------

    objective: ClassVar[Objective]
    """`objective(learner, carry, data, key, settings) -> (value to maximise, (carry, terms))`, a static method."""

    fills_up: ClassVar[bool] = False
    """Whether the objective does not mind windows in which nothing happens: another length is not compiled then."""

    always_held: ClassVar[frozenset[str]] = frozenset()
    """Names of the model's parameters that this method never trains."""

    def learner(self, problem: Problem, key: Array) -> tuple[Any, Any]:
        """What is trained (the model, or a `Learner`), and what is carried from step to step (arrays)."""
        return problem.model, jnp.zeros((), self.dtype)

    def settings(self, initial: Initialisation) -> Any:
        """What the objective is compiled for, the last of its arguments. Hashable."""
        return None

    def phases(self, problem: Problem, schedule: Schedule) -> list[tuple[Any, Schedule]]:
        """What the objective is evaluated on and for how long, phase after phase."""
        return [(problem.windows, schedule)]

    def filter_settings(self, problem: Problem) -> FilterSettings:
        """How the fitted model filters: members of the ensemble, and how they are updated."""
        return FilterSettings(64 if problem.hidden else 200, ensemble.Options(update=default_update(problem)))

    def rates(self, problem: Problem) -> dict[str, float]:
        """Learning rates relative to the common one, by a word of the parameter's name."""
        return {"process_noise": self.noise_rate, "obs_noise": self.noise_rate} | dict(problem.rates)

    def contracts(self, initial: Initialisation) -> bool:
        """Whether the linear mean function of a `Learner` is kept a contraction (`contracted`)."""
        return False

    def default_window(self, initial: Initialisation) -> int:
        """Short windows where the state is seen: gradients through many steps of a chaotic system explode."""
        return 50 if initial.hidden else 20

    def run_in(self, initial: Initialisation) -> int:
        """Samples that a window starts early, and that are not scored, where an iteration sees some windows only."""
        return 0

    # What all of them do -------------------------------------------------------------------------

    @double_precision
    def fit(
        self,
        outputs: Any,
        inputs: Any = None,
        *,
        seed: int = 0,
        restarts: int | None = None,
        holdout: float = 0.0,
        max_seconds: float | None = None,
        progress: bool | Watch = False,
    ) -> Posterior:
        """Learn the model from a recording.

        Args:
            outputs: (T, dy), NaN where a value is missing; or a list of such arrays. Tables of pandas, polars or
                anything with `__dataframe__` keep their names, and an index of times, in all that the model returns.
                What `from_csv` has returned does so, too, and brings its inputs.
            inputs: (T, dc) known inputs, the row that acts on the way to the same row of
                `outputs`; or a list of such arrays. Of tables with an index the rows at that of `outputs`.
            seed: all randomness of the fit.
            restarts: fits from the same data with other random numbers, of which the one with the best
                bound is kept; by default as many as the method needs.
            holdout: share of every recording, at its end, to check the model with: it is learned from without that
                end first, whose forecast is set beside those of simpler methods (`check`) and corrects the bands
                (`calibration`); then from everything.
            max_seconds: after which the best model so far is returned. Compilation is not cut short, nor are the first
                steps.
            progress: show a progress bar, or call this function with a `Progress` after every chunk of steps.

        Returns:
            The fitted model, which filters, smooths, forecasts and saves itself, in the units of the data. Ctrl-C ends
            the fit early, with the best model so far.
        """
        clock = CompileClock()
        given = training_data(outputs, inputs)
        if restarts is not None:
            positive_int("restarts", restarts)

        def learn(data: Recordings, stage: Stage) -> Posterior:
            return self._fit(seed, restarts, watch, data, stage).named(*given.labels(len(data.outputs[-1])))

        with watcher(progress, self.name) as watch, Interruption(max_seconds) as interruption:
            posterior = checked(learn, Recordings(given.outputs, given.inputs), holdout, seed, interruption, watch)
        posterior.history.interrupted = interruption.signalled
        posterior.history.compile_seconds = clock.seconds
        logger.info("%s: compilation took %s", self.name, clock)
        return posterior

    def _fit(self, seed: int, restarts: int | None, watch: Watch | None, data: Recordings, stage: Stage) -> Posterior:
        """One fit, without a check."""
        method, linear, why = self, None, ""
        if self.state_dim == AUTO and stage.first is not None:
            method, why = replace(self, state_dim=stage.first.state_dim), stage.first.history.messages[0]
        elif self.state_dim == AUTO:
            linear, why = enough_states(Standardised.standardised(*data))
            method = replace(self, state_dim=linear[0].order)
        if why:
            logger.info("%s: %s", self.name, why)
        problem = method.problem(*data, seed)
        if stage.first is None:
            dx, _, dc = problem.dims
            guards.report(guards.too_few(problem.num_observed, dx, dx + dc, problem.model.num_inducing))
        monitor = Monitor(stage.interruption, watch, again=stage.again)
        posterior = Restarts(method, problem, monitor, seed, linear).best(restarts).learned_from(*data, seed=seed)
        posterior.history.messages[:0] = [why] if why else []
        return posterior

    def problem(
        self, outputs: list[np.ndarray], inputs: list[np.ndarray], initial: Initialisation | int = 0
    ) -> Problem:
        if not isinstance(initial, Initialisation):
            initial = initialise(self, outputs, inputs, initial)
        held = initial.fixed | self.always_held | match((p.name for p in parameters(initial.model)), self.fixed)
        scaling = initial.scaling
        windows = cut(*scaling.standardise(outputs, inputs), self.window_length(initial), self.run_in(initial))
        windows = filled_up(windows) if self.fills_up else windows
        windows = windows._replace(log_volume=np.asarray(sum(map(scaling.log_volume, outputs))))
        own = {"outputs": outputs, "inputs": inputs, "windows": windows, "held": held}
        return Problem(**vars(initial) | own | {"settings": self.settings(initial)})

    def window_length(self, initial: Initialisation) -> int:
        """Steps per window: as chosen, but not more than the longest recording has, of few lengths."""
        window = self.default_window(initial) if self.window is None else self.window
        longest = bucket(max(map(len, initial.states)))
        return min(window or longest, longest)

    def learn(self, problem: Problem, schedule: Schedule, key: Array, monitor: Monitor, label: str) -> Posterior:
        key, key_learner = jax.random.split(key)
        objective, learner, carry, fixed = self._trained(problem, key_learner)
        history, watch = History(), monitor.watch
        if watch is not None:

            def report(p: Progress) -> None:
                now = p.snapshot
                watch(p._replace(snapshot=None if now is None else lambda: self.posterior(problem, now(), History())))

            monitor = monitor._replace(watch=report)
        phases = self.phases(problem, schedule)
        for number, (data, limits) in enumerate(phases):
            key, key_phase = jax.random.split(key)
            later = monitor.later + sum(following.max_steps for _, following in phases[number + 1 :])
            learner, carry, course = train(
                objective, learner, carry, _cast(data, self.dtype), **fixed,
                schedule=limits, key=key_phase, monitor=monitor._replace(later=later), label=label,
            )  # fmt: skip
            history = history.followed_by(course)
            if monitor.interruption.requested:
                break
        if self.contracts(problem):
            learner = learner.contracted()
        return self.posterior(problem, learner, history)

    def untrained(self, problem: Problem, key: Array) -> Posterior:
        return self.posterior(problem, self.learner(problem, key)[0], History())

    def compile_ahead(self, problem: Problem, schedule: Schedule, key: Array) -> None:
        objective, learner, carry, fixed = self._trained(problem, key)
        data, limits = self.phases(problem, schedule)[0]
        compile_ahead(limits, key, objective, learner, carry, _cast(data, self.dtype), **fixed)

    def _trained(self, problem: Problem, key: Array) -> tuple[Objective, Any, Any, dict[str, Any]]:
        """What is maximised, trained and carried, and arguments of `train` that are the same in all phases."""
        learner, carry = (_cast(part, self.dtype) for part in self.learner(problem, key))
        prefix = "model." if isinstance(learner, Learner) else ""
        rates = {p.name: 1.0 for p in parameters(learner) if p.name.removeprefix(prefix) not in problem.held}
        rates |= {n: r for n in rates for word, r in self.rates(problem).items() if word in n.split(".")}
        objective = contracting(type(self).objective) if self.contracts(problem) else type(self).objective
        return objective, learner, carry, {
            "settings": problem.settings, "rates": rates, "num_observed": problem.num_observed,
        }  # fmt: skip

    def posterior(self, problem: Problem, learner: Any, history: History) -> Posterior:
        """What was trained, as it is returned; it has not filtered the recordings yet."""
        return Posterior(
            model=jax.tree.map(np.asarray, learner.model if isinstance(learner, Learner) else learner),
            scaling=problem.scaling,
            settings=self.filter_settings(problem),
            fixed=tuple(sorted(problem.held)),
            history=history,
            method=self.name,
            final_members=np.zeros((0, self.state_dim)),
        )


@dataclass(frozen=True)
class GPMethod(StateSpaceMethod):
    """A method whose transition is a mean function plus a sparse GP for every state dimension.

    Args:
        num_inducing: inducing points of each state dimension's GP; by default 20, or 40 for recordings of more than
            8000 samples.
        kernel: covariance function, by default `RBF()`; given a length scale per input automatically. Its initial
            length scales are in standard deviations of states and inputs, its variance in variances of the states.
        mean: mean function of the transition: `"linear"` (learned, initialised by least squares),
            `"identity"`, `"zero"` (the average of the data), or a function of `[x, c]`
            (n, dx + dc), in units of the states and inputs, made of JAX operations.
        mixed: mix the GPs by a learned matrix, so that the dimensions of f depend on each other (the
            linear model of coregionalisation).
        inducing_rate: learning rate of the inducing inputs, a factor on the common one.
    """

    num_inducing: int | None = None
    kernel: Kernel = field(default=RBF(), kw_only=True)
    mean: MeanLike = field(default="linear", kw_only=True)
    mixed: bool = field(default=False, kw_only=True)
    inducing_rate: float = field(default=0.2, kw_only=True)

    _COUNTS: ClassVar[dict[str, int]] = StateSpaceMethod._COUNTS | {"num_inducing": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.kernel, Kernel):
            raise InvalidInput(f"kernel: expected a kernel such as gpssm.RBF(), got {self.kernel!r}.")

    def transition(self, rough: RoughStates, seed: int) -> Transition:
        count = self.num_inducing or _INDUCING[sum(map(len, rough.states)) > _LONG]
        return gp_transition(rough, count, self.kernel, self.mean, self.mixed)

    def rates(self, problem: Problem) -> dict[str, float]:
        return {"inducing_inputs": self.inducing_rate} | super().rates(problem)

    def default_restarts(self, problem: Problem) -> int:
        """What is found for hidden states depends on the random numbers."""
        return 3 if problem.hidden else 1


def default_update(initial: Initialisation) -> ensemble.Update:
    """The update of an ensemble that suits the emission, and whether states are hidden."""
    if not isinstance(initial.model.emission, LinearEmission):
        return "perturbed"
    return "sqrt" if initial.hidden else "mixture"


def contracted(model: GPSSM) -> GPSSM:
    """The model with `A <- A min(1, max_norm / |A|_2)` in its linear mean function, if it has one.

    A bound that looks few steps ahead is blind to a mode that grows by some per cent per step, with which a free run
    over hundreds of steps explodes; a contraction plus a GP is bounded. Any stable linear system is one in suitable
    hidden coordinates.
    """
    mean = model.transition.mean
    if not isinstance(mean, Linear):
        return model
    dx, weight = model.state_dim, jnp.asarray(mean.weight)
    norm = jnp.sqrt(jnp.linalg.eigvalsh(weight[:, :dx] @ weight[:, :dx].T)[-1])
    factors = jnp.where(jnp.arange(weight.shape[1]) < dx, jnp.minimum(1.0, _MAX_NORM / norm), 1.0)
    return eqx.tree_at(lambda m: m.transition.mean.weight, model, weight * factors)


@cache  # so that it is compiled once for every objective
def contracting(objective: Objective) -> Objective:
    """The same objective, of a learner whose linear mean function is a contraction."""
    return lambda learner, *arguments: objective(learner.contracted(), *arguments)


def _cast(tree: Any, dtype: Any) -> Any:
    """Every float array of `tree` as a JAX array of the given type."""

    def one(leaf: Any) -> Any:
        return jnp.asarray(leaf, dtype) if jnp.issubdtype(np.asarray(leaf).dtype, np.floating) else jnp.asarray(leaf)

    return jax.tree.map(one, tree)
