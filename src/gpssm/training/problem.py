"""What a fit works on: what the user has chosen of a model (`Specification`), and the `Problem` that it is with data.

A problem is made and checked once, before anything is compiled.
"""

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Array

from gpssm.errors import InvalidInput
from gpssm.gp.means import Mean
from gpssm.models import LIKELIHOODS
from gpssm.models.emission import LinearEmission
from gpssm.models.gpssm import GPSSM
from gpssm.models.noise import DiagonalNoise, Likelihood, Noise
from gpssm.models.scaling import Scaling
from gpssm.plumbing.docstrings import Described
from gpssm.plumbing.validation import positive_int
from gpssm.posteriors.posterior import Posterior
from gpssm.training.linear_search import AUTO
from gpssm.training.optimiser import Schedule
from gpssm.training.progress import Monitor
from gpssm.training.windows import Windows

EmissionLike = Literal["observed", "learned"] | np.ndarray | LinearEmission | Callable[[Array], Array]
MeanLike = Literal["zero", "identity", "linear"] | Mean | Callable[[Array], Array]


class RoughStates(NamedTuple):
    """What a transition can be initialised from, standardised."""

    scaling: Scaling
    states: list[np.ndarray]
    """(T_i, dx) of every recording, without gaps."""
    inputs: list[np.ndarray]
    """(T_i, dc) of every recording."""


@dataclass(frozen=True)
class Initialisation:
    """The model before training, in standardised units."""

    model: GPSSM
    scaling: Scaling
    fixed: frozenset[str]
    """Names of parameters that are not trained because of how the model was specified."""
    states: list[np.ndarray]
    """Rough states (T_i, dx) of every recording, without gaps."""
    informed: bool = False
    """Whether model and states are those of a skeleton."""
    rates: tuple[tuple[str, float], ...] = ()
    """Words of the names of parameters that a skeleton has fitted, and the small steps that are enough for them."""

    @property
    def dims(self) -> tuple[int, int, int]:
        """Numbers of states, outputs and inputs."""
        scaling = self.scaling
        return len(scaling.state_shift), len(scaling.output_shift), len(scaling.input_shift)

    @property
    def hidden(self) -> bool:
        """Whether there are more states than outputs."""
        return self.dims[0] > self.dims[1]


@dataclass(frozen=True, kw_only=True)
class Problem(Initialisation):
    """An initialised model and the recordings that it is to be learned from."""

    outputs: list[np.ndarray]
    """(T_i, dy) in the user's units, NaN where a value is missing."""
    inputs: list[np.ndarray]
    """(T_i, dc) in the user's units."""
    windows: Windows
    """The recordings, standardised and cut."""
    held: frozenset[str]
    """Names of the model's parameters that are not trained."""
    settings: Any
    """What the objective is compiled for. Hashable."""

    @property
    def num_observed(self) -> int:
        """How many numbers of the outputs are not missing."""
        return sum(int(np.sum(~np.isnan(y))) for y in self.outputs)


@dataclass(frozen=True)
class Specification(Described, ABC):
    """A state-space model to be learned, with everything that a user may want to choose of it.

    Args:
        state_dim: dimension dx of the hidden state; `"auto"` is 4, or two more than there are outputs, or more
            where a linear model with more states forecasts the end of the recording clearly better.
        emission: how outputs arise from states: `"observed"` (the first states are the outputs; the default where
            there are at least as many states as outputs), `"learned"` (linear; the default elsewhere), a known
            matrix C (dy, dx), or a function of x (n, dx) made of JAX operations. For a function the scale of the
            states is that of `initial_state`, or one.
        process_noise: initial variance(s) of the process noise of one step, one number or (dx,), in squared units of
            the states; by default their variances, 2% of them for a Student t, or what a skeleton says.
        obs_noise: initial variance(s) of the observation noise, one number or (dy,), in squared units of the outputs;
            by default a tenth of their variances, or what a skeleton says. Of a Student t its squared width.
        likelihood: of the outputs: `"gaussian"`, or `"student_t"`, for recordings with outliers.
        initial_state: `(mean, covariance)` of x_0, (dx,) and (dx, dx), or a number for either, in units of the states
            and their squares; by default it is learned.
        fixed: names of parameters to hold fixed, for example `("obs_noise", "lengthscale")`; by default none.
        window: samples per window; 0 takes every recording as one. By default as the method needs, 5 to 100.
        noise_rate: learning rate of the noise variances, a factor on the common one.
        schedule: learning rate, number of steps and when to stop, by default `Schedule()`.
        dtype: `"float64"` or `"float32"`, which all arrays of a fit have.
        name: of the method in tables and summaries; by default that of its class.
    """

    state_dim: int
    """An integer once a fit has started; `"auto"` before."""
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

    _COUNTS: ClassVar[dict[str, int]] = {"state_dim": 1, "window": 0}
    """Arguments that count something, and the least they can be; those that are None by default may be None."""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", type(self).__name__)
        for argument, least in self._COUNTS.items():
            value = getattr(self, argument)
            if (value is None and getattr(type(self), argument, 0) is None) or (argument, value) == ("state_dim", AUTO):
                continue
            # A NumPy integer would not survive being saved.
            object.__setattr__(self, argument, positive_int(argument, value, least))
        positive_int("schedule.max_steps", self.schedule.max_steps)
        positive_int("schedule.chunk", self.schedule.chunk)
        one_of("dtype", self.dtype, ("float64", "float32"))
        one_of("likelihood", self.likelihood, tuple(LIKELIHOODS))
        if isinstance(self.fixed, str):
            raise InvalidInput(
                f"fixed: expected names in a tuple, got the string {self.fixed!r}; write ({self.fixed!r},)."
            )

    @abstractmethod
    def transition(self, rough: RoughStates, seed: int) -> Any:
        """The transition before training; `seed` is that of weights drawn at random."""

    def initial_process_noise(self, variance: np.ndarray) -> Noise:
        """Q before training, from its standardised variances (dx,)."""
        return DiagonalNoise(variance)

    def initial_likelihood(self, variance: np.ndarray) -> Likelihood:
        """The likelihood before training, from its standardised squared widths (dy,)."""
        chosen: Likelihood = pkgutil.resolve_name(LIKELIHOODS[self.likelihood])(variance)
        return chosen

    def default_restarts(self, problem: Problem) -> int:
        """How many fits with other random numbers are compared where the user does not say."""
        return 1

    @abstractmethod
    def problem(
        self, outputs: list[np.ndarray], inputs: list[np.ndarray], initial: Initialisation | int = 0
    ) -> Problem:
        """Recordings (T_i, dy) and (T_i, dc) with the model to be learned from them; refuses what does not fit.

        `initial` is the model to train, or the seed of a new one.
        """

    @abstractmethod
    def compile_ahead(self, problem: Problem, schedule: Schedule, key: Array) -> None:
        """Compile what `learn` of such a problem will run, while something else runs."""

    @abstractmethod
    def learn(self, problem: Problem, schedule: Schedule, key: Array, monitor: Monitor, label: str) -> Posterior:
        """One fit, from the initial model to the end of the schedule; `label` goes before the phase in reports."""

    @abstractmethod
    def untrained(self, problem: Problem, key: Array) -> Posterior:
        """The initial model as it is."""


def one_of(argument: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise `InvalidInput`, which names the argument, if the value is not among the choices."""
    if value not in choices:
        raise InvalidInput(f"{argument}: expected one of {choices}, got {value!r}.")
