"""What the methods that learn a state-space model from a recording have in common.

A method chooses a transition and an objective; here is everything around them: the arguments every
user knows, start values, windows, restarts, the optimiser, and the posterior that comes out.
`docs/add_a_method.md` shows how to write one.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from gpssm.errors import InvalidInput
from gpssm.filters import ensemble
from gpssm.filters.ensemble import FilterSettings
from gpssm.gp.kernels import RBF, Kernel
from gpssm.gp.means import Mean
from gpssm.methods import registry
from gpssm.models.emission import LinearEmission
from gpssm.models.gpssm import GPSSM, Transition
from gpssm.models.noise import DiagonalNoise, Likelihood, Noise
from gpssm.numerics.parameters import match, parameters
from gpssm.plumbing.compilation import CompileClock
from gpssm.plumbing.interruption import Interruption
from gpssm.plumbing.precision import double_precision
from gpssm.plumbing.validation import positive_int, training_data
from gpssm.posteriors.history import History, Progress
from gpssm.posteriors.posterior import Posterior
from gpssm.training import candidates, initialisation, search
from gpssm.training.optimiser import Diverged, Objective, Schedule, train
from gpssm.training.progress import Watch, watcher
from gpssm.training.windows import Windows, cut

EmissionLike = Literal["observed", "learned"] | np.ndarray | LinearEmission | Callable[[Array], Array]
MeanLike = Literal["zero", "identity", "linear"] | Mean | Callable[[Array], Array]


class Learner(eqx.Module):
    """What is trained by a method that has more to learn than the model: q of the states, for example."""

    model: GPSSM
    states: Any


class Path(NamedTuple):
    """A model on its way; what it learns and what its windows start from."""

    learner: Any
    carry: Any
    key: Array
    history: History


class Course(NamedTuple):
    """What a fit is given, and who is told of it."""

    begun: initialisation.Start
    ys: list[np.ndarray]
    cs: list[np.ndarray]
    key: Array
    interruption: Interruption
    watch: Watch | None
    seed: int
    lines: search.Lines | None
    """Linear models that the dimension of the state was chosen by, if it was."""

    def searching(self) -> Callable[[int, int], None]:
        """What a search calls with how many of its calls are done, and how many there are."""
        watch, started = self.watch, time.perf_counter()

        def told(done: int, total: int) -> None:
            self.interruption.check()
            if watch is not None:
                seconds = time.perf_counter() - started
                watch(Progress(done, total, "looking for starts", math.nan, {}, seconds, ()))

        return told


_LOST = 0.1  # half the variance of what a simulation does not explain, at which it does not follow the recording
# Of the schedule: a skeleton has found what takes most of the steps.
_TRIAL_SHARE, _FINAL_SHARE, _INFORMED_RATE = 0.125, 0.25, 2 / 3
# Numbers of all states, and limits of the share of the steps that this makes affordable.
_EFFORT, _EFFORTS = 2000, (0.3, 1.5)


@dataclass(frozen=True)
class StateSpaceMethod(ABC):
    """A method with everything that a user may want to choose of the model around f.

    Args:
        state_dim: dimension of the hidden state; `"auto"` is 4, or two more than there are outputs, or more
            where a linear model with more states forecasts the end of the recording clearly better.
        emission: how outputs arise from states: `"observed"` (the first states are the outputs;
            the default where there are at least as many states as outputs), `"learned"` (linear),
            a known matrix C (dy, dx), or a function of x (n, dx) made of JAX operations. For a
            function the scale of the states is that of `initial_state`, or one.
        process_noise: start value of the variance(s) of the process noise, in your units.
        obs_noise: start value of the variance(s) of the observation noise, in your units.
        likelihood: of the outputs: `"gaussian"`, or `"student_t"`, for recordings with outliers.
        initial_state: `(mean, covariance)` of x_0 if it is known, in your units.
        fixed: names of parameters to hold fixed, for example `("obs_noise", "lengthscale")`.
        window: steps per window; 0 takes every recording as one. Chosen by default.
        noise_rate: learning rate of the noise variances, relative to the others.
        schedule: learning rate, number of steps and when to stop.
        dtype: `"float64"` or `"float32"`.
    """

    state_dim: int
    """An integer once a fit has begun; `"auto"` before."""
    emission: EmissionLike | None = field(default=None, kw_only=True)
    process_noise: float | Sequence[float] | None = field(default=None, kw_only=True)
    obs_noise: float | Sequence[float] | None = field(default=None, kw_only=True)
    likelihood: str = field(default="gaussian", kw_only=True)
    initial_state: tuple[Any, Any] | None = field(default=None, kw_only=True)
    fixed: tuple[str, ...] = field(default=(), kw_only=True)
    window: int | None = field(default=None, kw_only=True)
    noise_rate: float = field(default=4.0, kw_only=True)
    schedule: Schedule = field(default=Schedule(), kw_only=True)
    dtype: Literal["float64", "float32"] = field(default="float64", kw_only=True)
    name: str = field(default="", kw_only=True)

    _COUNTS: ClassVar[tuple[tuple[str, int], ...]] = (("state_dim", 1),)
    """Arguments that count something, and the least they can be."""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", type(self).__name__)
        for argument, least in self._COUNTS:
            if argument == "state_dim" and self.state_dim == search.AUTO:
                continue
            # A NumPy integer would not survive being saved.
            object.__setattr__(self, argument, positive_int(argument, getattr(self, argument), least))
        positive_int("schedule.max_steps", self.schedule.max_steps)
        positive_int("schedule.chunk", self.schedule.chunk)
        if self.window is not None:
            positive_int("window", self.window, 0)
        one_of("dtype", self.dtype, ("float64", "float32"))
        one_of("likelihood", self.likelihood, tuple(registry.LIKELIHOODS))
        if isinstance(self.fixed, str):
            raise InvalidInput(
                f"fixed: expected names in a tuple, got the string {self.fixed!r}; write ({self.fixed!r},)."
            )

    # What a method is ----------------------------------------------------------------------------

    objective: ClassVar[Objective]
    """`objective(learner, carry, data, key, settings) -> (value to maximise, (carry, terms))`, a static method."""

    @abstractmethod
    def transition(self, rough: initialisation.Rough, seed: int) -> Any:
        """The transition to begin with."""

    def learner(self, begun: initialisation.Start, windows: Windows, key: Array) -> tuple[Any, Any]:
        """What is trained (the model, or a `Learner`), and what is carried from step to step (arrays)."""
        return begun.model, jnp.zeros((), self.dtype)

    def settings(self, begun: initialisation.Start, hidden: bool) -> Any:
        """What the objective is compiled for. Hashable."""
        return None

    def filter_settings(self, begun: initialisation.Start, hidden: bool) -> FilterSettings:
        """How the fitted model filters."""
        if not isinstance(begun.model.emission, LinearEmission):
            update: ensemble.Update = "perturbed"
        else:
            update = "sqrt" if hidden else "mixture"
        return FilterSettings(64 if hidden else 200, ensemble.Options(update=update))

    def held(self, begun: initialisation.Start) -> set[str]:
        """Names of the model's parameters that are not trained."""
        return match((p.name for p in parameters(begun.model)), self.fixed) | begun.fixed

    def multiples(self, begun: initialisation.Start) -> dict[str, float]:
        """Learning rates relative to the common one, by a word of the parameter's name."""
        rates = {"process_noise": self.noise_rate, "obs_noise": self.noise_rate}
        return rates | dict(begun.rates)

    def process_noise_start(self, variance: np.ndarray) -> Noise:
        """Q to begin with, from its standardised variances."""
        return DiagonalNoise(variance)

    def likelihood_start(self, variance: np.ndarray) -> Likelihood:
        """The likelihood to begin with, from its standardised squared widths."""
        chosen: Likelihood = registry.load(registry.LIKELIHOODS[self.likelihood])(variance)
        return chosen

    def finished(self, learner: Any, hidden: bool) -> Any:
        """What was trained, as it is to be used."""
        return learner

    def default_window(self, begun: initialisation.Start, hidden: bool) -> int:
        """Short windows where the state is seen: gradients through many steps of a chaotic system explode."""
        return 50 if hidden else 20

    def default_restarts(self, hidden: bool) -> int:
        return 1

    # What all of them do -------------------------------------------------------------------------

    @double_precision
    def fit(
        self,
        outputs: Any,
        inputs: Any = None,
        *,
        seed: int = 0,
        restarts: int | None = None,
        progress: bool | Callable[[Progress], None] = False,
    ) -> Posterior:
        """Learn the model from a recording.

        Args:
            outputs: (T, dy), NaN where a value is missing; or a list of such arrays.
            inputs: (T, dc) known inputs, the row that acts on the way to the same row of
                `outputs`; or a list of such arrays.
            seed: all randomness of the fit.
            restarts: fits from the same data with other random numbers, of which the one with the best
                bound is kept; by default as many as the method needs.
            progress: show a progress bar, or call this function after every chunk of steps.
        """
        clock = CompileClock()
        ys, cs = training_data(outputs, inputs)
        if restarts is not None:
            positive_int("restarts", restarts)
        if self.state_dim == search.AUTO:
            lines = search.enough_states(search.standardised(ys, cs))
            posterior = replace(self, state_dim=lines.state_dim)._fit(ys, cs, seed, restarts, progress, lines)
        else:
            posterior = self._fit(ys, cs, seed, restarts, progress)
        posterior.history.compile_seconds = clock.seconds
        return posterior

    def _fit(
        self,
        ys: list[np.ndarray],
        cs: list[np.ndarray],
        seed: int,
        restarts: int | None,
        progress: bool | Callable[[Progress], None],
        lines: search.Lines | None = None,
    ) -> Posterior:
        hidden = self.state_dim > ys[0].shape[1]
        begun = initialisation.begin(self, ys, cs, seed)
        # Whatever does not fit is refused by these, before anything is compiled.
        self.held(begun)
        self.settings(begun, hidden)
        key = jax.random.key(seed)
        with watcher(progress, self.name) as watch, Interruption() as interruption:
            told = None if watch is None else self._telling(watch, begun, hidden)
            course = Course(begun, ys, cs, key, interruption, told, seed, lines)
            posterior = self._from_skeletons(course, restarts) if search.applies(begun, hidden) else None
            if posterior is None:
                posterior = self._from_restarts(course, hidden, restarts)
            posterior = posterior.continued_from(ys[-1], cs[-1], seed=seed)
        posterior = replace(posterior, num_samples=sum(map(len, ys)))
        posterior.history.interrupted = interruption.requested
        return posterior

    def _from_skeletons(self, course: "Course", restarts: int | None) -> Posterior | None:
        """The best of a few skeletons, by what each, learned from the rest, forecasts of the end of the recording.

        None where there is no skeleton to be found: f has no GP, or no simulation follows the recording.
        """
        begun, ys, cs = course.begun, course.ys, course.cs
        if not search.has_gp(begun):
            return None
        data = search.standardised(ys, cs)
        lines = search.best_lines(data, self.state_dim) if course.lines is None else course.lines
        skeletons = search.skeletons(begun, self.held(begun), data, lines.found[0], course.seed, course.searching())
        if min(np.mean(f.obs) for f in skeletons) > _LOST:
            return None
        found = search.worth_a_trial(skeletons, lines)[:restarts]
        size = len(ys) * max(map(len, ys)) * self.state_dim * max(1.0, self.state_dim / 4)
        effort = float(np.clip(_EFFORT / size, *_EFFORTS))

        def learn(f: search.Found, share: float, outputs: list[np.ndarray], number: int, label: str) -> Posterior:
            # Whole chunks, for both halves: a limit that is not reached by them is passed.
            pair = 2 * self.schedule.chunk
            steps = pair * max(1, round(share * self.schedule.max_steps / pair))
            schedule = self.schedule._replace(
                learning_rate=_INFORMED_RATE * self.schedule.learning_rate, max_steps=steps, decay_steps=steps // 2
            )
            informed = self._informed(begun, f, data)
            path = replace(self, schedule=schedule).learn(
                informed, self.windows(informed, outputs, cs), jax.random.fold_in(course.key, number),
                course.interruption, course.watch, label,
            )  # fmt: skip
            posterior = self._posterior(path.learner, path.history, informed, True)
            if f.kind == "gp" or "transition.mean.weight" in posterior.fixed:
                return posterior
            return replace(posterior, model=search.stable_mean(posterior.model))

        if not data.holds_back:
            return learn(found[0], _FINAL_SHARE * effort**0.5, ys, 0, "")
        kept = [np.where(np.arange(len(y))[:, None] < n, y, np.nan) for y, n in zip(ys, data.cuts, strict=True)]
        tried: list[tuple[search.Found, Posterior]] = []
        trials: list[candidates.Trial] = []
        for number, f in enumerate(found):
            try:
                posterior = learn(f, _TRIAL_SHARE * effort, kept, number, f"start {number + 1} of {len(found)}, ")
            except Diverged:
                continue  # a skeleton that explodes as soon as there is noise
            if course.interruption.requested:
                return posterior
            tried.append((f, posterior))
            trials.append(candidates.Trial.of(posterior, kept, ys, cs, data.cuts))
        if not tried:
            return None
        best = candidates.best_trial(trials)
        chosen, fallback = tried[best]
        try:
            posterior = learn(search.refined(chosen, data), _FINAL_SHARE * effort**0.5, ys, len(found), "")
        except Diverged:
            posterior = fallback
        if candidates.went_wrong(candidates.Trial.of(posterior, ys, ys, cs, data.cuts), trials[best]):
            posterior = fallback
        return candidates.widened(posterior, trials[best].widening)

    def _informed(self, begun: initialisation.Start, found: search.Found, data: search.Data) -> initialisation.Start:
        given = self.process_noise is not None, self.obs_noise is not None
        return search.informed(begun, found, data, keep_noise=given, held=self.held(begun))

    def _from_restarts(self, course: "Course", hidden: bool, restarts: int | None) -> Posterior:
        """The best of several fits that start from nothing, with other random numbers each.

        Where states are hidden behind a network, one more starts from a line: what there is of a skeleton for it.
        """
        begun, ys, cs, interruption = course.begun, course.ys, course.cs, course.interruption
        wanted = self.default_restarts(hidden) if restarts is None else restarts
        starts = [begun] * wanted
        if restarts is None and search.applies(begun, hidden) and not search.has_gp(begun):
            data = search.standardised(ys, cs)
            lines = search.best_lines(data, self.state_dim) if course.lines is None else course.lines
            line = min(lines.found, key=lambda f: f.error)
            starts.append(self._informed(begun, search.refined(line, data), data))
        windows = self.windows(begun, ys, cs)
        longest = max(range(len(ys)), key=lambda i: len(ys[i]))
        found: list[candidates.Candidate] = []
        while candidates.wants_another(found, len(starts)):
            number = len(found)
            label = f"start {number + 1} of {max(len(starts), number + 1)}, " if len(starts) > 1 else ""
            key, first = jax.random.fold_in(course.key, number), starts[number] if number < len(starts) else begun
            path = self.learn(first, windows, key, interruption, course.watch, label)
            # A bound from half of a fit cannot be compared with those of whole ones.
            if not interruption.requested or not found:
                posterior = self._posterior(path.learner, path.history, first, hidden)
                found.append(candidates.Candidate.of(posterior, ys[longest], cs[longest], compared=len(starts) > 1))
            if interruption.requested:
                break
        return candidates.best(found)

    def windows(self, begun: initialisation.Start, ys: list[np.ndarray], cs: list[np.ndarray]) -> Windows:
        """The standardised recordings, cut."""
        longest, scaling = max(map(len, ys)), begun.scaling
        preferred = self.default_window(begun, self.state_dim > ys[0].shape[1]) if self.window is None else self.window
        length = longest if preferred == 0 else min(preferred, longest)
        windows = cut([scaling.standardise_outputs(y) for y in ys], [scaling.standardise_inputs(c) for c in cs], length)
        return windows._replace(log_volume=np.asarray(sum(scaling.log_volume(y) for y in ys)))

    def learn(
        self,
        begun: initialisation.Start,
        windows: Windows,
        key: Array,
        interruption: Interruption,
        watch: Watch | None,
        label: str,
    ) -> Path:
        """From one start to the end of the schedule."""
        key, key_learner = jax.random.split(key)
        learner, carry = self.learner(begun, windows, key_learner)
        path = Path(cast(learner, self.dtype), cast(carry, self.dtype), key, History())
        path = self.run(path, begun, windows, windows, self.schedule, interruption, watch, label)
        return path._replace(learner=self.finished(path.learner, self.state_dim > windows.outputs.shape[-1]))

    def run(
        self,
        path: Path,
        begun: initialisation.Start,
        windows: Windows,
        data: Any,
        schedule: Schedule,
        interruption: Interruption,
        watch: Watch | None,
        label: str,
    ) -> Path:
        """Train on `data`, which the objective is given, from where a path is."""
        key, key_run = jax.random.split(path.key)
        hidden = self.state_dim > windows.outputs.shape[-1]
        prefix = "model." if isinstance(path.learner, Learner) else ""
        held = {prefix + name for name in self.held(begun)}
        names = tuple(p.name for p in parameters(path.learner) if p.name not in held)
        rates = self.multiples(begun)
        learner, carry, history = train(
            type(self).objective, path.learner, path.carry, cast(data, self.dtype),
            settings=self.settings(begun, hidden), names=names,
            multiples={n: rate for n in names for word, rate in rates.items() if word in n.split(".")},
            num_observed=windows.num_observed, schedule=schedule, key=key_run,
            interruption=interruption, watch=watch, label=label,
        )  # fmt: skip
        return Path(learner, carry, key, path.history.followed_by(history))

    def _posterior(self, learner: Any, history: History, begun: initialisation.Start, hidden: bool) -> Posterior:
        return Posterior(
            model=jax.tree.map(np.asarray, learner.model if isinstance(learner, Learner) else learner),
            scaling=begun.scaling,
            settings=self.filter_settings(begun, hidden),
            fixed=tuple(sorted(self.held(begun))),
            history=history,
            method=self.name,
            final_members=np.zeros((0, self.state_dim)),
        )

    def _telling(self, watch: Watch, begun: initialisation.Start, hidden: bool) -> Watch:
        """A watcher that can ask for the model as it is, as a posterior."""

        def told(p: Progress) -> None:
            now = p.snapshot
            watch(p if now is None else p._replace(snapshot=lambda: self._posterior(now(), History(), begun, hidden)))

        return told


@dataclass(frozen=True)
class GPMethod(StateSpaceMethod):
    """A method whose transition is a mean function plus a sparse GP for every state dimension.

    Args:
        num_inducing: inducing points of each state dimension's GP.
        kernel: covariance function; given a length scale per input automatically. Its start values
            are relative to the standard deviations of states and inputs.
        mean: mean function of the transition: `"linear"` (learned, started from least squares),
            `"identity"`, `"zero"` (the average of the data), or a function of `[x, c]`
            (n, dx + dc), in your units and made of JAX operations.
        mixed: mix the GPs by a learned matrix, so that the dimensions of f depend on each other (the
            linear model of coregionalisation).
        inducing_rate: learning rate of the inducing inputs, relative to the others.
    """

    num_inducing: int = 20
    kernel: Kernel = field(default=RBF(), kw_only=True)
    mean: MeanLike = field(default="linear", kw_only=True)
    mixed: bool = field(default=False, kw_only=True)
    inducing_rate: float = field(default=0.2, kw_only=True)

    _COUNTS: ClassVar[tuple[tuple[str, int], ...]] = (("state_dim", 1), ("num_inducing", 1))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.kernel, Kernel):
            raise InvalidInput(f"kernel: expected a kernel such as gpssm.RBF(), got {self.kernel!r}.")

    def transition(self, rough: initialisation.Rough, seed: int) -> Transition:
        return initialisation.gp_transition(self, rough)

    def multiples(self, begun: initialisation.Start) -> dict[str, float]:
        return {"inducing_inputs": self.inducing_rate} | super().multiples(begun)


def one_of(argument: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Refuse what is not among the choices."""
    if value not in choices:
        raise InvalidInput(f"{argument}: expected one of {choices}, got {value!r}.")


def cast(tree: Any, dtype: Any) -> Any:
    """Every float array of `tree` as a JAX array of the given type."""

    def one(leaf: Any) -> Any:
        return jnp.asarray(leaf, dtype) if jnp.issubdtype(np.asarray(leaf).dtype, np.floating) else jnp.asarray(leaf)

    return jax.tree.map(one, tree)
