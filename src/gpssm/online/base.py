"""What an online method is, and what those with a known emission have in common.

A method is a frozen dataclass on `OnlineMethod`, in one file, and one line in `gpssm.methods.registry`. Its `step` is a
pure function, compiled once; the `gpssm.online.stream.Stream` that `start()` returns is what a user holds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, get_type_hints

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.errors import InvalidInput
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.plumbing.contents import shape
from gpssm.plumbing.docstrings import Described
from gpssm.plumbing.validation import VariancesLike, matrix, positive_int, variances
from gpssm.posteriors.posterior import Posterior
from gpssm.training import subspace

if TYPE_CHECKING:
    from gpssm.online.stream import Stream

NDArray = np.ndarray
EmissionLike = Literal["observed"] | np.ndarray | Callable[[Array], Array]
host: Any = np
"""NumPy, for the arrays of an initial state: nothing is compiled to make them, and `step` takes them for JAX's."""
Spread = tuple[Float[Array, " dx"], Float[Array, " dx"]]
"""Running mean and variance of the states."""


class Info(NamedTuple):
    """What a step reports: the filtered state, and the prediction that was made before the sample was seen."""

    state_mean: Float[Array, " dx"]
    state_cov: Float[Array, "dx dx"]
    predicted_mean: Float[Array, " dy"]
    predicted_std: Float[Array, " dy"]
    log_score: Float[Array, ""]
    """Log-density of what was seen of the sample under that prediction."""


class OnlineMethod(Described, ABC):
    """A method that sees every sample once. What is static or of the class is pure: all that it needs is in `state`,
    a tree of arrays that `initial_state` makes and `step` replaces. Everything is in the user's units.
    """

    state_dim: int
    name: str
    warm_up: int = 10
    """Samples that are looked at before the first one is learned from."""
    input_lags: int = 1
    """How many of the last inputs act on f; the `c` of `step` holds the newest first."""
    trial: int = 0
    """Samples after which `settled` is called, or 0."""

    def start(self, seed: int = 0) -> "Stream":
        """A stream that has seen nothing yet; `seed` is for all that it draws."""
        from gpssm.online.stream import Stream

        return Stream(self, seed=seed)

    @classmethod
    def continuing(cls, posterior: Posterior, num_inducing: int = 40, *, seed: int = 0) -> "Stream":
        """A stream that starts where the recording of a fit ended, if the method can go on from a fitted model.

        Args:
            posterior: what was fitted.
            num_inducing: budget of inducing inputs.
            seed: of the stream.
        """
        raise InvalidInput(f"method: {cls.__name__} cannot go on from a fitted model; expected OEnVI, or no model.")

    @classmethod
    def state_type(cls) -> Any:
        """Of what `initial_state` returns: what a saved stream may hold."""
        return get_type_hints(cls.initial_state)["return"]

    @abstractmethod
    def initial_state(self, outputs: NDArray, inputs: NDArray) -> Any:
        """The state to start from, given the first samples (t, dy) and (t, dc), from which `step` learns afterwards."""

    @staticmethod
    @abstractmethod
    def step(key: Array, state: Any, y: Array, c: Array) -> tuple[Any, Info]:
        """Predict the sample `y` (dy,), NaN where missing, after the input `c` (dc,); learn from it."""

    @staticmethod
    @abstractmethod
    def paths(key: Array, state: Any, inputs: Array, num_paths: int) -> tuple[Array, Array]:
        """States (paths, horizon, dx) and outputs (paths, horizon, dy) from here on."""

    @staticmethod
    def transition(state: Any, x: Array) -> tuple[Array, Array]:
        """Mean and variance (n, k) of f at the rows of `x` (n, dx + dc), if the method learns one.

        Of the first k states, whose transition is learned; the others are their past.
        """
        raise InvalidInput("transition: this method learns no f; use its forecast.")

    @staticmethod
    def process_noise(state: Any) -> Array:
        """Variances (k,) of the process noise of the first k states, if the method learns them."""
        raise InvalidInput("process_noise: this method learns none; use its forecast.")

    @staticmethod
    def posterior(state: Any) -> Posterior:
        """The state read back as an ordinary fitted model, of methods that have one."""
        raise NotImplementedError

    def settled(self, state: Any) -> Any:
        """The state to go on with after the trial."""
        return state

    def check(self, output_dim: int, input_dim: int) -> None:
        """Refuse data that the method cannot be used for."""

    def guess(self, output: NDArray) -> NDArray:
        """A rough state (dx,) from one sample (dy,), for the warm-up; NaN where nothing is known."""
        return np.full(self.state_dim, np.nan)


class Units(NamedTuple):
    """In the user's units, d = dx + dc; k states have a transition that is learned."""

    emission: LinearEmission | FunctionEmission
    steps: Float[NDArray, " k"]
    """Mean square of one step of every state whose transition is learned: the unit of f(x) - x and of Q."""
    shift: Float[NDArray, " d"]
    scale: Float[NDArray, " d"]
    """Mean and spread of the states and inputs: the unit of length scales."""
    obs_noise: Float[NDArray, " dy"]
    """Variances as given, or roughly."""

    def linear_prior(self, state_dim: int, strength: float) -> Float[NDArray, "f f"]:
        """Covariance of the weights of `[(s - shift) / scale, 1]` in a row of W, for a step of size one.

        A state that is one unit from the centre, an input likewise, moves f(x) - x by `strength` steps. The past
        counts by its differences, x_{t-1} - x_{t-2} and so on, which are steps themselves: in other coordinates
        a system that goes on as it went would need weights many steps large.
        """
        learned = len(self.steps)
        basis = np.eye(len(self.scale) + 1)
        for past in range(learned, state_dim):
            per_step = self.scale[past] / np.sqrt(self.steps[past % learned])
            basis[past, past], basis[past - learned, past] = -per_step, per_step
        return strength**2 * basis @ basis.T


@dataclass(frozen=True)
class OnlineStateSpace(OnlineMethod):
    """A state space with a known emission; `start()` gives a stream that is ready to learn.

    Args:
        state_dim: dimension dx of the state.
        emission: how outputs arise from states: `"observed"` (the default: the first states are the
            outputs; further ones are their past, whose transition is known), a known matrix C (dy, dx),
            or a function of x (n, dx) made of JAX operations.
        obs_noise: variance(s) of the observation noise if they are known, one number or (dy,), in squared units of
            the outputs; learned by default.
        input_lags: how many of the last inputs, in samples, act on f; more than one where they act late.
        warm_up: samples that are looked at for their units before the first one is learned from.
        name: of the method in summaries.
    """

    state_dim: Annotated[int, shape("dx")]
    _: KW_ONLY
    emission: EmissionLike | list[Any] | tuple[Any, ...] | None = None
    obs_noise: VariancesLike | None = None
    input_lags: Annotated[int, shape("lags")] = 1
    warm_up: int = 10
    name: str = ""

    counts: ClassVar[dict[str, int]] = {}
    """The method's own whole numbers and the least that each may be."""

    def __post_init__(self) -> None:
        for argument, least in {"state_dim": 1, "input_lags": 1, "warm_up": 3, **self.counts}.items():
            object.__setattr__(self, argument, positive_int(argument, getattr(self, argument), least))
        if isinstance(self.emission, str) and self.emission != "observed":
            raise InvalidInput(f"emission: expected 'observed', a matrix C or a function, got {self.emission!r}.")

    @property
    def observed(self) -> bool:
        """Whether the first states are the outputs, and the others their past."""
        return self.emission is None or isinstance(self.emission, str)

    def check(self, output_dim: int, input_dim: int) -> None:
        """Refuse samples that do not fit the emission."""
        if self.observed:
            if self.state_dim < output_dim:
                raise InvalidInput(
                    f"emission: {output_dim} outputs of {self.state_dim} state(s) need a known matrix C "
                    f"({output_dim}, {self.state_dim}); or learn one with EnVI from a recording, and go on from there."
                )
        elif not callable(self.emission):
            shape = matrix("emission", np.atleast_2d(np.asarray(self.emission))).shape
            if shape != (output_dim, self.state_dim):
                raise InvalidInput(f"emission: expected C of shape ({output_dim}, {self.state_dim}), got {shape}.")
        if self.obs_noise is not None:
            variances("obs_noise", self.obs_noise, output_dim)

    def guess(self, output: NDArray) -> NDArray:
        """Least squares for a linear emission; nothing is known behind a function."""
        if callable(self.emission):
            return super().guess(output)
        return np.linalg.pinv(self._matrix(len(output))) @ np.nan_to_num(output)

    def units(self, outputs: NDArray, inputs: NDArray) -> Units:
        """Units from the first samples (t, dy) and (t, dc); nothing else is known.

        Where the first states are the outputs, the transition of these is learned, and the others are their past.
        """
        dx, dy = self.state_dim, outputs.shape[1]
        emission: LinearEmission | FunctionEmission
        if callable(self.emission):
            emission = FunctionEmission.unscaled(self.emission, dx, dy)
        else:
            emission = LinearEmission(self._matrix(dy), np.zeros(dy))
        rows, learned = subspace.fill(outputs), dy if self.observed else dx
        if isinstance(emission, LinearEmission):
            inverse = np.linalg.pinv(emission.weight)
            states, noise = rows @ inverse.T, _residual_noise(rows, emission.weight @ inverse)
        else:
            states, noise = np.zeros((len(rows), dx)), 0.25 * _steps(rows)
        if self.obs_noise is not None:
            noise = variances("obs_noise", self.obs_noise, dy)
        states = states[:, :learned]
        steps, variance = _steps(states), np.var(states, axis=0)
        moves = steps > 1e-24 * np.max(np.abs(states), initial=1e-100) ** 2
        # A state that no output shows, or that has not moved yet, is given the average of the others.
        steps = np.where(moves, steps, np.mean(steps[moves]) if moves.any() else 1.0)
        variance = np.where(moves, variance, np.mean(variance[moves]) if moves.any() else 1.0)
        past = np.arange(dx) % learned  # the past of a state has its units
        scale, shift = np.sqrt(np.maximum(variance, steps))[past], states.mean(axis=0)[past]
        if inputs.shape[1]:
            spread = inputs.std(axis=0)
            spread = np.where(spread > 0, spread, np.maximum(np.abs(inputs[-1]), 1.0))
            scale, shift = np.concatenate([scale, spread]), np.concatenate([shift, inputs.mean(axis=0)])
        return Units(emission, steps, shift, scale, noise)

    def _matrix(self, output_dim: int) -> NDArray:
        if self.observed:
            return np.eye(output_dim, self.state_dim)
        return np.atleast_2d(np.asarray(self.emission, dtype=float))


def running_spread(spread: Spread, x: Float[Array, " dx"], count: Array, counts: Array) -> Spread:
    """With one more state, if it counts; an outlier moves them by ten standard deviations at most."""
    mean, variance = spread
    share = jnp.where(counts, 1.0 / (count + 10.0), 0.0)
    deviation = jnp.clip(x - mean, -10 * jnp.sqrt(variance), 10 * jnp.sqrt(variance))
    return mean + share * deviation, (1 - share) * (variance + share * deviation**2)


def bounded_lengthscale(
    log_lengthscale: Float[Array, " d"], variance: Float[Array, " dx"], scale: Float[Array, " d"]
) -> Float[Array, " d"]:
    """Limits far from any sensible value, so that a constant stretch drives nothing to zero or infinity.

    `variance` is that of the states so far, `scale` the first standard deviations of states and inputs.
    """
    dx, scale = len(variance), jnp.log(scale)
    span = jnp.concatenate([jnp.maximum(0.5 * jnp.log(variance), scale[:dx]), scale[dx:]])
    return jnp.clip(log_lengthscale, span - 1.5, span + 3.0)


def _steps(rows: NDArray) -> NDArray:
    """Mean square of the differences of each column of `rows` (t, c); ones if there is a single row."""
    return np.mean(np.diff(rows, axis=0) ** 2, axis=0) if len(rows) > 1 else np.ones(rows.shape[1])


def _residual_noise(rows: NDArray, hat: NDArray) -> NDArray:
    """Variance of each channel about the state that explains it best; a quarter of its steps where there is none."""
    left = 1.0 - np.diagonal(hat)  # share of the noise that is not explained away
    residual = np.mean((rows - rows @ hat.T) ** 2, axis=0)
    steps = _steps(rows)
    noise = np.where(left > 0.2, residual / np.maximum(left, 0.2), 0.25 * steps)
    typical = np.mean(steps) if np.mean(steps) > 0 else 1.0
    return np.maximum(noise, 1e-8 * typical)
