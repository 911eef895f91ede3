"""What a model says of a recording and of what follows it: hidden states, and sample paths. In the user's units."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
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
    """Of every state, in its unit."""
    cov: Float[NDArray, "t dx dx"]
    """Of every sample, in products of the units."""
    log_likelihood: float
    """`log p(y)` in nats, for outputs in the user's units."""
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


class Outlook(ABC):
    """What is said of future outputs, whether or not the paths that say it are kept."""

    @property
    @abstractmethod
    def mean(self) -> Float[NDArray, "h dy"]:
        """Mean over the paths."""

    @property
    @abstractmethod
    def std(self) -> Float[NDArray, "h dy"]:
        """Standard deviation over the paths."""

    @property
    @abstractmethod
    def times(self) -> Times | None:
        """Of the steps, if those of the samples before them are known."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Of the outputs."""

    @abstractmethod
    def quantile(self, q: float | list[float]) -> NDArray:
        """Quantile(s) over the paths, of the probabilities `q`: (h, dy), or (len(q), h, dy)."""

    @property
    def _shown(self) -> Sequence[float]:
        """The quantiles that tables show."""
        return (0.05, 0.5, 0.95)

    def band(self, level: float = 0.9) -> tuple[NDArray, NDArray]:
        """Lower and upper edge (h, dy) of the central band that holds a share `level` of the paths at every step."""
        if not 0 < level < 1:
            raise InvalidInput(f"level: expected a probability between 0 and 1, got {level!r}.")
        low, high = self.quantile([0.5 - 0.5 * level, 0.5 + 0.5 * level])
        return low, high

    def columns(self, quantiles: Sequence[float] | None = None) -> dict[str, Float[NDArray, " h"]]:
        """Mean, standard deviation and `quantiles` of every output: `y1_mean`, `y1_sd`, `y1_q05`, ... by its name.

        The quantiles are the 5th, 50th and 95th in a hundred by default, or those that were kept.
        """
        shown = list(self._shown if quantiles is None else quantiles)
        found = zip(map(_percent, shown), self.quantile(shown), strict=True)
        return _by_name(self._names(), {"mean": self.mean, "sd": self.std, **dict(found)})

    def to_dataframe(self, quantiles: Sequence[float] | None = None) -> "pandas.DataFrame":
        """The `columns` of these `quantiles` as a table of pandas; its index are the times of the steps, or 1, 2, ...

        >>> paths = Forecast(np.array([[[1.0]], [[3.0]]]), np.zeros((2, 1, 1)), names=("flow",))
        >>> paths.to_dataframe([0.25])  # doctest: +NORMALIZE_WHITESPACE
              flow_mean   flow_sd  flow_q25
        step
        1           2.0  1.414214       1.5
        """
        return to_pandas(self.columns(quantiles), len(self.mean), self.times, "step")

    def _names(self) -> tuple[str, ...]:
        """Of the outputs, if they tell them apart: two of one name would share a column."""
        count = self.mean.shape[1]
        return self.names if len(set(self.names)) == count else numbered("outputs", count)


class _Paths(NamedTuple):
    samples: Float[NDArray, "p h dy"]
    """Of the outputs, observation noise included."""
    states: Float[NDArray, "p h dx"]
    """Below them."""
    times: Times | None = None
    """Of the steps, if those of the samples before them are known."""
    names: tuple[str, ...] = ()
    """Of the outputs."""


class Forecast(_Paths, Outlook):
    """Sample paths of future outputs (p, h, dy), observation noise included, and of the states (p, h, dx) below them.

    A path of an unstable model that has passed the largest number there is stays at the infinity where it left, also
    if that was in the steps `before` these.

    >>> paths = Forecast(np.array([[[1.0], [1e308 * 10], [np.nan]], [[3.0], [4.0], [5.0]]]), np.zeros((2, 3, 1)))
    >>> paths.mean[:, 0].tolist(), paths.diverged
    ([2.0, inf, inf], 2)
    """

    def __new__(
        cls,
        samples: NDArray,
        states: NDArray,
        times: Times | None = None,
        names: tuple[str, ...] = (),
        *,
        before: "Forecast | None" = None,
    ) -> "Forecast":
        held = _held(samples, before and before.samples), _held(states, before and before.states)
        return super().__new__(cls, *held, times, names)

    @classmethod
    def joined(cls, pieces: "Iterable[Forecast]", horizon: int) -> "Forecast":
        """All `horizon` steps of a forecast that was made in `pieces`, one after the other."""
        done = 0
        for piece in pieces:
            if piece.samples.shape[1] == horizon:
                return piece
            if not done:
                times, names = piece.times, piece.names
                samples, states = (np.empty((len(p), horizon, p.shape[2])) for p in (piece.samples, piece.states))
            rows = slice(done, done + piece.samples.shape[1])
            samples[:, rows], states[:, rows], done = piece.samples, piece.states, rows.stop
        return cls(samples, states, times, names)

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
        probabilities("q", q)
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
        each = super().band(level)
        if not whole_path:
            return each
        mean, std = self.mean, self.std
        with np.errstate(divide="ignore", invalid="ignore"):  # where all paths agree, or have diverged
            furthest = np.nanmax(np.where(std > 0, np.abs(self.samples - mean) / std, 0.0), axis=1)
            reach = np.quantile(furthest, level, axis=0) * std
            return mean - reach, mean + reach

    def path_columns(self, level: float = 0.9) -> dict[str, Float[NDArray, " h"]]:
        """The `band` of whole paths at `level`, of every output: `y1_path_low`, `y1_path_high`, ... by its name."""
        low, high = self.band(level, whole_path=True)
        return _by_name(self._names(), {"path_low": low, "path_high": high})


class _Summary(NamedTuple):
    mean: Float[NDArray, "h dy"]
    """Over the paths."""
    std: Float[NDArray, "h dy"]
    """Standard deviation over the paths."""
    quantiles: tuple[float, ...]
    """Probabilities that something was kept of,"""
    edges: Float[NDArray, "q h dy"]
    """and what: the quantiles over the paths."""
    diverged: int | None = None
    """The first step, from 1, at which a path is not a finite number; None if all are."""
    times: Times | None = None
    """Of the steps, if those of the samples before them are known."""
    names: tuple[str, ...] = ()
    """Of the outputs."""


class ForecastSummary(_Summary, Outlook):
    """Mean, standard deviation and some quantiles of future outputs (h, dy), from sample paths that were not kept.

    >>> paths = Forecast(np.array([[[1.0], [2.0]], [[3.0], [6.0]]]), np.zeros((2, 2, 1)), names=("flow",))
    >>> summary = ForecastSummary.of([paths], (0.05, 0.5, 0.95))
    >>> summary.mean[:, 0].tolist(), summary.quantile(0.5)[:, 0].tolist(), summary.band(0.9)[1].round(6)[:, 0].tolist()
    ([2.0, 4.0], [2.0, 4.0], [2.9, 5.8])
    >>> summary.quantile(0.25)
    Traceback (most recent call last):
    gpssm.errors.InvalidInput: q: 0.25 is not among the quantiles 0.05, 0.5, 0.95 that were kept; forecast with it.
    """

    @classmethod
    def of(cls, pieces: Iterable[Forecast], quantiles: tuple[float, ...]) -> "ForecastSummary":
        """With these `quantiles`, of a forecast in `pieces`, one after the other, none of which is kept."""
        rows: list[tuple[NDArray, NDArray, NDArray]] = []
        diverged, done = None, 0
        for piece in pieces:
            if not rows:
                times, names = piece.times, piece.names
            rows.append((piece.mean, piece.std, piece.quantile(list(quantiles))))
            if diverged is None and (step := piece.diverged) is not None:
                diverged = done + step
            done += len(rows[-1][0])
        mean, std, edges = (np.concatenate(part, axis=-2) for part in zip(*rows, strict=True))
        return cls(mean, std, quantiles, edges, diverged, times, names)

    @property
    def _shown(self) -> Sequence[float]:
        return self.quantiles

    def quantile(self, q: float | list[float]) -> NDArray:
        """Quantile(s) over the paths, of probabilities `q` that were kept: (h, dy), or (len(q), h, dy)."""
        return self.edges[np.vectorize(self._place, otypes=[int])(probabilities("q", q))]

    @property
    def samples(self) -> NDArray:
        """Refused: there are none."""
        raise InvalidInput("samples: a forecast with quantiles keeps no paths; expected one without quantiles.")

    @property
    def states(self) -> NDArray:
        """Refused: there are none."""
        raise InvalidInput("states: a forecast with quantiles keeps no paths; expected one without quantiles.")

    def band(self, level: float = 0.9, *, whole_path: bool = False) -> tuple[NDArray, NDArray]:
        """Lower and upper edge (h, dy) of the central band that holds a share `level` of the paths at every step.

        Args:
            level: share, between 0 and 1, both edges of which were kept.
            whole_path: refused, it takes the paths.
        """
        if whole_path:
            raise InvalidInput("whole_path: a forecast with quantiles keeps no paths; expected one without quantiles.")
        return super().band(level)

    def _place(self, q: float) -> int:
        near = np.abs(np.array(self.quantiles) - q)
        if not len(near) or near.min() > 1e-9:
            known = ", ".join(f"{kept:g}" for kept in self.quantiles)
            raise InvalidInput(f"q: {q:g} is not among the quantiles {known} that were kept; forecast with it.")
        return int(near.argmin())


def probabilities(argument: str, q: Any) -> Float[NDArray, "*k"]:
    """Checked: one, or some."""
    try:
        found = np.asarray(q, float)
    except (TypeError, ValueError):
        found = np.full(1, np.nan)
    if not np.all((found >= 0) & (found <= 1)) or not found.size:
        raise InvalidInput(f"{argument}: expected probabilities in [0, 1], got {q!r}.")
    return found


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


def _held(paths: Float[NDArray, "p h d"], earlier: Float[NDArray, "p h2 d"] | None = None) -> Float[NDArray, "p h d"]:
    """Paths that have diverged, here or `earlier`, at the infinity where they left; arithmetic makes NaN of it."""
    if np.isfinite(paths).all() and (earlier is None or np.isfinite(earlier[:, -1]).all()):
        return paths
    if earlier is not None:
        return _held(np.concatenate([earlier[:, -1:], paths], axis=1))[:, 1:]
    diverged = ~np.isfinite(paths)
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
