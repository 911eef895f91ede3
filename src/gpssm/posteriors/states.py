"""What a model says of a recording and of what follows it: hidden states, and sample paths. In the user's units."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from gpssm.datasets.series import Series
from gpssm.errors import InvalidInput
from gpssm.plumbing.frames import to_pandas
from gpssm.plumbing.times import Times
from gpssm.plumbing.validation import numbered

if TYPE_CHECKING:
    import pandas

NDArray = np.ndarray

KEPT_SAMPLES = 2000
"""How much of a recording is kept with a model, so that a saved model can be plotted."""
NO_RECORDING = Series(np.zeros((0, 0)), None, None)


class States(NamedTuple):
    """Hidden states given observations: mean (T, dx), covariance (T, dx, dx), and log p(y) in nats.

    >>> states = States(np.zeros((3, 1)), np.full((3, 1, 1), 4.0), -1.5, np.zeros((10, 1)))
    >>> states.std[:, 0].tolist()
    [2.0, 2.0, 2.0]
    """

    mean: Float[NDArray, "t dx"]
    cov: Float[NDArray, "t dx dx"]
    log_likelihood: float
    members: Float[NDArray, "n dx"]
    """Draws of the state after the last sample: where a forecast continues from."""
    recent_inputs: Float[NDArray, "past dc"] | None = None
    """The inputs that still act, newest first, of a model with `input_lags`."""
    times: Times | None = None
    """When the samples were taken, if it is known."""

    @property
    def std(self) -> Float[NDArray, "t dx"]:
        """Standard deviation of every state."""
        return np.sqrt(np.maximum(np.diagonal(self.cov, axis1=1, axis2=2), 0.0))

    def columns(self) -> dict[str, Float[NDArray, " t"]]:
        """Mean and standard deviation of every state: `x1_mean`, `x1_sd`, `x2_mean`, ..."""
        names = [f"x{i + 1}" for i in range(self.mean.shape[1])]
        return _by_name(names, {"mean": self.mean, "sd": self.std})

    def to_dataframe(self) -> "pandas.DataFrame":
        """The `columns` as a table of pandas, with the times of the samples as index; 1, 2, ... if none are known.

        >>> states = States(np.zeros((2, 1)), np.ones((2, 1, 1)), 0.0, np.zeros((5, 1)), times=Times(0.5, 0.1))
        >>> states.to_dataframe()  # doctest: +NORMALIZE_WHITESPACE
              x1_mean  x1_sd
        time
        0.5       0.0    1.0
        0.6       0.0    1.0
        """
        return to_pandas(self.columns(), len(self.mean), self.times, "sample")


class _Paths(NamedTuple):
    samples: Float[NDArray, "p h dy"]
    states: Float[NDArray, "p h dx"]
    times: Times | None = None
    """Of the steps, if those of the samples before them are known."""
    names: tuple[str, ...] = ()
    """Of the outputs."""


class Forecast(_Paths):
    """Sample paths of future outputs (p, h, dy), observation noise included, and of the states (p, h, dx) below them.

    A path of an unstable model that has passed the largest number there is stays at the infinity where it left.

    >>> paths = Forecast(np.array([[[1.0], [1e308 * 10], [np.nan]], [[3.0], [4.0], [5.0]]]), np.zeros((2, 3, 1)))
    >>> paths.mean[:, 0].tolist(), paths.diverged
    ([2.0, inf, inf], 2)
    """

    def __new__(
        cls, samples: NDArray, states: NDArray, times: Times | None = None, names: tuple[str, ...] = ()
    ) -> "Forecast":
        return super().__new__(cls, _held(samples), _held(states), times, names)

    @property
    def diverged(self) -> int | None:
        """The first step, from 1, at which a path is not a finite number; None if all are."""
        return first_not_finite(self.samples.transpose(1, 0, 2))

    @property
    def mean(self) -> Float[NDArray, "h dy"]:
        """Mean over the paths; NaN where some are at infinity and others at minus infinity."""
        return _over_paths(lambda paths: paths.mean(axis=0), self.samples)

    @property
    def std(self) -> Float[NDArray, "h dy"]:
        """Standard deviation over the paths; infinite where one of them is."""
        std = _over_paths(lambda paths: paths.std(axis=0, ddof=1), self.samples)
        return np.where(np.isinf(self.samples).any(axis=0), np.inf, std)

    def quantile(self, q: float | list[float]) -> NDArray:
        """Quantile(s) over the paths, of the probabilities `q`: (h, dy), or (len(q), h, dy)."""
        if np.any(np.asarray(q) < 0) or np.any(np.asarray(q) > 1):
            raise InvalidInput(f"q: expected probabilities in [0, 1], got {q!r}.")
        with np.errstate(over="ignore", invalid="ignore"):
            found = np.quantile(self.samples, q, axis=0)
        finite = np.isfinite(self.samples).all(axis=0) & np.isfinite(found).reshape(-1, *found.shape[-2:]).all(axis=0)
        if finite.all():
            return found
        # Towards infinity there is nothing to interpolate.
        below = np.sort(self.samples, axis=0)[np.floor(np.multiply(q, len(self.samples) - 1)).astype(int)]
        return np.where(finite, found, below)

    def band(self, level: float = 0.9, *, whole_path: bool = False) -> tuple[NDArray, NDArray]:
        """Lower and upper edge (h, dy) of the central band that holds a share `level` of the paths.

        Args:
            level: share, between 0 and 1.
            whole_path: at all steps at once, of every output; otherwise at every step by itself. The first is wider:
                the mean and as many standard deviations to either side as that share of the paths stays within from
                the first step to the last.

        >>> paths = Forecast(np.random.default_rng(0).normal(size=(1000, 20, 1)), np.zeros((1000, 20, 1)))
        >>> low, high = paths.band(0.9, whole_path=True)
        >>> inside = ((paths.samples >= low) & (paths.samples <= high)).all(axis=(1, 2))
        >>> round(float(inside.mean()), 2), round(float(high.mean()), 1)
        (0.9, 2.8)
        """
        if not 0 < level < 1:
            raise InvalidInput(f"level: expected a probability between 0 and 1, got {level!r}.")
        if not whole_path:
            low, high = self.quantile([0.5 - 0.5 * level, 0.5 + 0.5 * level])
            return low, high
        mean, std = self.mean, self.std
        with np.errstate(divide="ignore", invalid="ignore"):  # where all paths agree, or have diverged
            furthest = np.nanmax(np.where(std > 0, np.abs(self.samples - mean) / std, 0.0), axis=1)
            reach = np.quantile(furthest, level, axis=0) * std
            return mean - reach, mean + reach

    def columns(self, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> dict[str, Float[NDArray, " h"]]:
        """Mean, standard deviation and quantiles of every output: `y1_mean`, `y1_sd`, `y1_q05`, ... by its name."""
        found = zip(map(_percent, quantiles), self.quantile(list(quantiles)), strict=True)
        return _by_name(self._names(), {"mean": self.mean, "sd": self.std, **dict(found)})

    def path_columns(self, level: float = 0.9) -> dict[str, Float[NDArray, " h"]]:
        """The `band` of whole paths of every output: `y1_path_low`, `y1_path_high`, ... by its name."""
        low, high = self.band(level, whole_path=True)
        return _by_name(self._names(), {"path_low": low, "path_high": high})

    def _names(self) -> tuple[str, ...]:
        """Of the outputs, if they tell them apart: two of one name would share a column."""
        count = self.samples.shape[2]
        return self.names if len(set(self.names)) == count else numbered("outputs", count)

    def to_dataframe(self, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> "pandas.DataFrame":
        """The `columns` as a table of pandas, with the times of the steps as index; 1, 2, ... if none are known.

        >>> paths = Forecast(np.array([[[1.0]], [[3.0]]]), np.zeros((2, 1, 1)), names=("flow",))
        >>> paths.to_dataframe([0.25])  # doctest: +NORMALIZE_WHITESPACE
              flow_mean   flow_sd  flow_q25
        step
        1           2.0  1.414214       1.5
        """
        return to_pandas(self.columns(quantiles), len(self.mean), self.times, "step")


def _by_name(names: Sequence[str], kinds: dict[str, NDArray]) -> dict[str, NDArray]:
    return {f"{name}_{kind}": values[:, i] for i, name in enumerate(names) for kind, values in kinds.items()}


def _percent(q: float) -> str:
    """What a column of a quantile is called: q05, q97.5."""
    return f"q{'0' if q < 0.1 else ''}{100 * q:.10g}"


def first_not_finite(values: NDArray) -> int | None:
    """The first row, from 1, that holds a number which is not finite."""
    diverged = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
    return int(diverged.argmax()) + 1 if diverged.any() else None


def kept_recording(outputs: NDArray, inputs: NDArray) -> Series:
    """The end of a checked recording, with numbered names, to be kept with a model."""
    given = inputs[-KEPT_SAMPLES:] if inputs.shape[1] else None
    return Series(outputs[-KEPT_SAMPLES:], given, None).numbered()


def check_state(state: Any, state_dim: int) -> None:
    """Refuse what is neither None nor the result of `filter` of a model with as many states."""
    if state is None:
        return
    if not isinstance(state, States):
        raise InvalidInput(
            f"state: expected what `filter` returns, got {type(state).__name__}; "
            "to start after sample t, pass filter(outputs[:t])."
        )
    if state.members.shape[1] != state_dim:
        raise InvalidInput(f"state: has {state.members.shape[1]} dimension(s); expected {state_dim}.")


def _held(paths: Float[NDArray, "p h d"]) -> Float[NDArray, "p h d"]:
    """Paths that have diverged, at the infinity where they left; arithmetic makes NaN of it."""
    diverged = ~np.isfinite(paths)
    if not diverged.any():
        return paths
    first = diverged.argmax(axis=1, keepdims=True)
    at, before = (np.take_along_axis(paths, np.maximum(first - back, 0), axis=1) for back in (0, 1))
    left = np.where(np.isnan(at), before, at)
    return np.where(np.logical_or.accumulate(diverged, axis=1), np.where(left < 0, -np.inf, np.inf), paths)


def _over_paths(moment: Callable[[NDArray], NDArray], paths: NDArray) -> NDArray:
    """A moment of order one, which itself is a number where all paths are, also if their sum or squares are not."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = moment(paths)
        if np.isfinite(found).all():
            return found
        largest = np.max(np.abs(paths), axis=0)
        largest = np.where(np.isfinite(largest), np.maximum(largest, 1.0), 1.0)
        return np.where(np.isfinite(found), found, moment(paths / largest) * largest)
