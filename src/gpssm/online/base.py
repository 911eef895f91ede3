"""What all methods have in common that learn live: a known emission, and units from the first samples.

An online method is a frozen dataclass on `OnlineStateSpace` that adds what is abstract there.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.errors import InvalidInput
from gpssm.models.emission import FunctionEmission, LinearEmission
from gpssm.online.stream import Info, Stream
from gpssm.plumbing.contents import shape
from gpssm.plumbing.validation import VariancesLike, matrix, positive_int, variances
from gpssm.posteriors.posterior import Posterior
from gpssm.training import subspace

NDArray = np.ndarray
T = TypeVar("T")
EmissionLike = Literal["observed"] | np.ndarray | Callable[[Array], Array]


class Units(NamedTuple):
    """Where the data live and on what scale, in the user's units, d = dx + dc."""

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
class OnlineStateSpace(ABC):
    """A method that sees every sample once; `start()` gives a stream that is ready to learn.

    Args:
        state_dim: dimension of the state.
        emission: how outputs arise from states: `"observed"` (the default: the first states are the
            outputs; further ones are their past, whose transition is known), a known matrix C (dy, dx),
            or a function of x (n, dx) made of JAX operations.
        obs_noise: variance(s) of the observation noise if they are known; learned otherwise.
        input_lags: how many of the last inputs act on f; more than one where they act late.
        warm_up: samples that are looked at for their units before the first one is learned from.
    """

    state_dim: Annotated[int, shape("dx")]
    _: KW_ONLY
    emission: EmissionLike | list[Any] | tuple[Any, ...] | None = None
    obs_noise: VariancesLike | None = None
    input_lags: Annotated[int, shape("lags")] = 1
    warm_up: int = 10
    name: str = ""

    def __post_init__(self) -> None:
        for argument, least in (("state_dim", 1), ("input_lags", 1), ("warm_up", 3), *self.counts):
            object.__setattr__(self, argument, positive_int(argument, getattr(self, argument), least))
        if isinstance(self.emission, str) and self.emission != "observed":
            raise InvalidInput(f"emission: expected 'observed', a matrix C or a function, got {self.emission!r}.")

    @property
    def counts(self) -> tuple[tuple[str, int], ...]:
        """The method's own whole numbers and the least that each may be."""
        return ()

    @property
    def trial(self) -> int:
        """Samples after which `settled` is called: never."""
        return 0

    def start(self, seed: int = 0) -> Stream:
        """A stream that has seen nothing yet."""
        return Stream(self, seed=seed)

    @abstractmethod
    def begin(self, outputs: NDArray, inputs: NDArray) -> Any:
        """The state to start from, given the first samples; they will be learned from afterwards."""

    @staticmethod
    @abstractmethod
    def step(key: Array, state: Any, y: Array, u: Array) -> tuple[Any, Info]:
        """Predict the sample `y` (dy,), NaN where missing, after the input `u` (dc,); learn from it."""

    @staticmethod
    @abstractmethod
    def paths(key: Array, state: Any, inputs: Array, num_paths: int) -> tuple[Array, Array]:
        """States (paths, horizon, dx) and outputs (paths, horizon, dy) from here on."""

    @staticmethod
    @abstractmethod
    def transition(state: Any, x: Array) -> tuple[Array, Array]:
        """Mean and variance of f at the rows of `x` (n, dx + dc)."""

    @staticmethod
    @abstractmethod
    def process_noise(state: Any) -> Array:
        """Variances (dx,) of the process noise."""

    @staticmethod
    def posterior(state: Any) -> Posterior:
        """The state read back as an ordinary fitted model, where there is one."""
        raise InvalidInput("posterior: only a stream of OEnVI can be read back as a fitted model; use its forecast.")

    def settled(self, state: Any) -> Any:
        """What goes on after the trial."""
        return state

    def check(self, output_dim: int, input_dim: int) -> None:
        """Refuse samples that do not fit the emission."""
        if self.emission is None or isinstance(self.emission, str):
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
            return np.full(self.state_dim, np.nan)
        return np.linalg.pinv(self._matrix(len(output))) @ np.nan_to_num(output)

    def units(self, outputs: NDArray, inputs: NDArray) -> Units:
        """Units from the first samples. Nothing else is known."""
        dx, rows = self.state_dim, subspace.fill(outputs)
        emission: LinearEmission | FunctionEmission
        if callable(self.emission):
            emission = FunctionEmission.unscaled(self.emission, dx, rows.shape[1])
            states, noise = np.zeros((len(rows), dx)), 0.25 * _steps(rows)
        else:
            weight = self._matrix(rows.shape[1])
            emission = LinearEmission(weight, np.zeros(len(weight)))
            inverse = np.linalg.pinv(weight)
            states = rows @ inverse.T
            noise = _residual_noise(rows, weight @ inverse)
        if self.obs_noise is not None:
            noise = variances("obs_noise", self.obs_noise, rows.shape[1])
        learned = self.learned(rows.shape[1])
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

    def learned(self, output_dim: int) -> int:
        """States whose transition is learned, the first ones; the others are their past."""
        observed = self.emission is None or isinstance(self.emission, str)
        return output_dim if observed else self.state_dim

    def _matrix(self, output_dim: int) -> NDArray:
        if self.emission is None or isinstance(self.emission, str):
            return np.eye(output_dim, self.state_dim)
        return np.atleast_2d(np.asarray(self.emission, dtype=float))


def running_spread(
    spread: tuple[Float[Array, " dx"], Float[Array, " dx"]], x: Float[Array, " dx"], count: Array, counts: Array
) -> tuple[Float[Array, " dx"], Float[Array, " dx"]]:
    """Mean and variance of the states so far; an outlier moves them by ten standard deviations at most."""
    mean, variance = spread
    share = jnp.where(counts, 1.0 / (count + 10.0), 0.0)
    deviation = jnp.clip(x - mean, -10 * jnp.sqrt(variance), 10 * jnp.sqrt(variance))
    return mean + share * deviation, (1 - share) * (variance + share * deviation**2)


_BETA1, _BETA2 = 0.9, 0.99  # Adam's, with a shorter memory than usual: what is learned moves
_CLIP = 5.0


def ascend(
    values: T, gradient: T, moments: tuple[T, T], clock: T, rates: T, active: T, decay: Array
) -> tuple[T, tuple[T, T]]:
    """One step of Adam, uphill, of those values that are active; `clock` counts the steps of each before this one.

    Clipped: one outlier must not count for hundreds of samples, but many must be able to raise the noise.
    """

    def one(value: Array, g: Array, m: Array, v: Array, count: Array, rate: Array, on: Array) -> list[Array]:
        on = jnp.where(on, 1.0, 0.0)
        g = jnp.clip(jnp.where(jnp.isfinite(g), g, 0.0), -_CLIP, _CLIP)
        m, v = m + on * (1 - _BETA1) * (g - m), v + on * (1 - _BETA2) * (g * g - v)
        direction = m / (1 - _BETA1 ** (count + 1)) / (jnp.sqrt(v / (1 - _BETA2 ** (count + 1))) + 1e-4)
        return [value + on * decay * rate * direction, m, v]

    moved = jax.tree.map(one, values, gradient, *moments, clock, rates, active)
    value, first, second = jax.tree.transpose(jax.tree.structure(values), jax.tree.structure([0, 0, 0]), moved)
    return value, (first, second)


def _steps(rows: NDArray) -> NDArray:
    """Mean square of the differences of each column."""
    return np.mean(np.diff(rows, axis=0) ** 2, axis=0) if len(rows) > 1 else np.ones(rows.shape[1])


def _residual_noise(rows: NDArray, hat: NDArray) -> NDArray:
    """Variance of each channel about the state that explains it best; a quarter of its steps where there is none."""
    left = 1.0 - np.diagonal(hat)  # share of the noise that is not explained away
    residual = np.mean((rows - rows @ hat.T) ** 2, axis=0)
    steps = _steps(rows)
    noise = np.where(left > 0.2, residual / np.maximum(left, 0.2), 0.25 * steps)
    typical = np.mean(steps) if np.mean(steps) > 0 else 1.0
    return np.maximum(noise, 1e-8 * typical)
