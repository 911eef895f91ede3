"""What every fit returns: `transition`, `filter`, `smooth`, `forecast`, `summary`, `save`, in the user's units.

All calls are pure functions of the fitted model, their arguments and a seed. Outputs are (T, dy), NaN where a value is
missing; inputs (T, dc), of which row t acts on the way to row t of the outputs.

>>> import numpy as np
>>> from gpssm import ARX
>>> y = np.sin(0.3 * np.arange(100))[:, None]
>>> fitted = ARX(order=2).fit(y)
>>> fitted
<ARX posterior: 2 state(s), 1 output(s), 0 input(s), linear>
>>> fitted.filter(y).mean.shape, fitted.forecast(5).mean.round(2)[:, 0].tolist()
((100, 2), [-0.99, -0.9, -0.73, -0.49, -0.21])
"""

import os
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Self, cast

import numpy as np
from jaxtyping import Float

from gpssm.datasets.series import Series
from gpssm.errors import InvalidInput
from gpssm.models.scaling import Scaling
from gpssm.numerics.lags import with_past
from gpssm.plumbing import serialization
from gpssm.plumbing.times import Times
from gpssm.plumbing.validation import arguments, model_inputs, positive_int, series
from gpssm.posteriors.calibration import Calibration, rolling_errors
from gpssm.posteriors.check import Check
from gpssm.posteriors.history import History
from gpssm.posteriors.states import Forecast, States, check_state, kept_recording
from gpssm.posteriors.summary import Summary

NDArray = np.ndarray
Pair = tuple[Any, Any]
"""Two arrays, of NumPy or JAX."""


class Fitted(ABC):
    """A fitted model, of any offline method; `Posterior` and `LinearPosterior` are the two kinds.

    >>> import gpssm
    >>> fitted = gpssm.ARX(order=1).fit([1.0, 0.5, 0.25, 0.12, 0.07, 0.03])
    >>> fitted.method, fitted.num_samples, fitted.forecast(2).mean.shape
    ('ARX', 6, (2, 1))
    """

    method: str
    scaling: Scaling
    history: History
    recording: Series
    """The end of the (last) training recording, with the names of its channels."""
    num_samples: int | None
    """Samples learned from, of all recordings; None in files that do not know it."""
    input_lags: int = 1
    """How many of the last inputs act on f."""
    recent_inputs: Float[NDArray, "past dc"] | None = None
    """Those that still act at the end of the (last) training recording, newest first, if there are several."""
    check: Check | None = None
    """How the end of the recordings was forecast by a model that had not seen it: of a fit with `holdout`."""
    calibration: Calibration | None = None
    """What the bands of forecasts are multiplied by, from errors on data that were not learned from."""
    filters: ClassVar[tuple[str, ...]]
    """What `filter` can be; the first is the default."""

    @property
    @abstractmethod
    def state_dim(self) -> int:
        """dx."""

    @property
    def output_dim(self) -> int:
        """dy."""
        return len(self.scaling.output_shift)

    @property
    def input_dim(self) -> int:
        """dc."""
        return len(self.scaling.input_shift) // self.input_lags

    @property
    def output_names(self) -> tuple[str, ...]:
        """Of the channels: y1, y2, ... unless they were `named`."""
        return self.recording.output_names

    @property
    def input_names(self) -> tuple[str, ...]:
        """Of the channels: u1, u2, ... unless they were `named`."""
        return self.recording.input_names

    @property
    @abstractmethod
    def _kind(self) -> str:
        """What `repr` calls it."""

    def __repr__(self) -> str:
        return (
            f"<{self.method} posterior: {self.state_dim} state(s), {self.output_dim} output(s), "
            f"{self.input_dim} input(s), {self._kind}>"
        )

    @property
    def end(self) -> States:
        """The state (one row) at the end of the (last) training recording; its `log_likelihood` is 0."""
        times, kept = self.recording.times, len(self.recording.outputs)
        return self._end()._replace(times=None if times is None else times.later(kept - 1))

    def transition(self, x: Any) -> tuple[Float[NDArray, "n dx"], Float[NDArray, "n dx"]]:
        """Mean and variance of the learned f at the rows of `x` (n, dx + input_lags * dc), without process noise.

        The variance says how well f is known. That of a linear model is zero: its parameters are point estimates.
        """
        x = self.scaling.standardise_arguments(arguments(x, len(self.scaling.argument_shift)))
        mean, var = (np.asarray(part, float) for part in self._f(x))
        return self.scaling.states(mean), var * self.scaling.state_scale**2

    def filter(
        self, outputs: Any, inputs: Any = None, *, filter: str | None = None, state: States | None = None, seed: int = 0
    ) -> States:
        """The state at every time given the samples up to it.

        Args:
            outputs: (T, dy), NaN where a value is missing.
            inputs: (T, dc), if the model has any.
            filter: of a GP or neural model `"ensemble"`, the Kalman filter that models are learned with (the default);
                `"particle"`, a bootstrap filter, right also where states are far from Gaussian, as long as they are
                few; or `"extended"`, the fastest, for an f that is nearly linear. Of a linear model `"kalman"` alone:
                it is exact.
            state: what `filter` returned for the samples before these, or `end`. Without it the recording starts
                anywhere: the state before its first sample has the prior p(x_0).
            seed: of the draws; of a linear model only `members` are drawn.

        Returns:
            Means (T, dx) and covariances (T, dx, dx) of the states, and the log-likelihood in nats.

        >>> from gpssm import LastValue
        >>> model = LastValue().fit([[1.0], [2.0], [4.0]])
        >>> model.filter([[3.0], [np.nan], [7.0]]).mean.round(2)[:, 0].tolist()
        [3.0, 3.0, 7.0]
        """
        chosen = self.check_filter(filter)
        found = self._filtered(*self._checked(outputs, inputs, state), state, chosen, seed)
        return found._replace(times=_times_after(state))

    def smooth(self, outputs: Any, inputs: Any = None, *, seed: int = 0) -> States:
        """The state at every time given all samples; arguments and prior as those of `filter`."""
        return self._smoothed(*self._checked(outputs, inputs), seed)

    def one_step(
        self, outputs: Any, inputs: Any = None, *, state: States | None = None, seed: int = 0
    ) -> tuple[Float[NDArray, "t dy"], Float[NDArray, "t dy"]]:
        """Mean and standard deviation of every sample, predicted from those before it; arguments as in `filter`."""
        predicted = self._predicted(*self._checked(outputs, inputs, state), state, seed)
        mean, var = (np.asarray(part, float) for part in predicted)
        return self.scaling.outputs(mean), np.sqrt(var) * self.scaling.output_scale

    def log_likelihood(self, outputs: Any, inputs: Any = None, *, filter: str | None = None, seed: int = 0) -> float:
        """`sum_t log p(y_t | y_{1:t-1})` of a recording, in nats, for outputs in the user's units; as in `filter`."""
        return self.filter(outputs, inputs, filter=filter, seed=seed).log_likelihood

    def forecast(
        self,
        horizon: int,
        inputs: Any = None,
        *,
        state: States | None = None,
        num_paths: int = 500,
        seed: int = 0,
        calibrated: bool = True,
    ) -> Forecast:
        """Sample paths of the next `horizon` outputs: uncertain state, process and observation noise.

        Where f is a GP each path has its own draw of it, so that what is not known of f is in the spread.

        Args:
            horizon: number of steps.
            inputs: (horizon, dc) future inputs, if the model has any.
            state: result of `filter` to start from, after its last sample; `end` by default.
            num_paths: number of paths, 2 or more.
            seed: of the draws.
            calibrated: spread the outputs as the model's `calibration` says, if it has one.

        Returns:
            Paths of outputs (num_paths, horizon, dy) and states, with their `mean`, `std` and `quantile`.

        >>> from gpssm import LastValue
        >>> ahead = LastValue().fit([[1.0], [2.0], [4.0]]).forecast(3, num_paths=50)
        >>> ahead.samples.shape, ahead.mean.shape
        ((50, 3, 1), (3, 1))
        """
        positive_int("horizon", horizon)
        positive_int("num_paths", num_paths, 2)
        check_state(state, self.state_dim)
        recent = self.recent_inputs if state is None else state.recent_inputs
        ahead = with_past(model_inputs(inputs, horizon, self.input_dim), self.input_lags, recent)
        with np.errstate(over="ignore", invalid="ignore"):  # an unstable model; the forecast says where it diverged
            paths = self._paths(self.scaling.standardise_inputs(ahead), state, num_paths, seed)
            states, samples = (np.asarray(part, float) for part in paths)
            samples = self.scaling.outputs(samples)
            if calibrated and self.calibration is not None:
                samples = self.calibration.applied(samples)
            times = _times_after(self.end if state is None else state)
            return Forecast(samples, self.scaling.states(states), times, self.output_names)

    def calibrate(
        self,
        outputs: Any,
        inputs: Any = None,
        *,
        horizon: int | None = None,
        state: States | None = None,
        seed: int = 0,
    ) -> Self:
        """The same model, its bands corrected by how far off they are on a recording that it has not learned from.

        The recording is forecast again and again, each time from a later sample; how far the truth lies from the
        median, relative to the model's own band, says how much wider or narrower that should be, for every output and
        every number of steps ahead: `calibration`. Few independent errors move it little.

        Args:
            outputs: (T, dy) what follows the training recording, NaN where a value is missing.
            inputs: (T, dc), if the model has any.
            horizon: steps ahead up to which errors are collected, half of T by default; beyond it the last factor
                holds.
            state: result of `filter` before the first sample; the end of the training recording by default.
            seed: of the draws.

        >>> from gpssm import LastValue
        >>> walk = np.cumsum(np.random.default_rng(0).normal(size=300))
        >>> fitted = LastValue().fit(walk[:100]).calibrate(walk[100:])
        >>> fitted.calibration.factors.shape, bool(0.7 < fitted.calibration.factors[0, 0] < 1.4)
        ((100, 1), True)
        """
        y, c = series(outputs, inputs, self.output_dim, self.input_dim)
        errors = rolling_errors(self, y, c if self.input_dim else None, horizon, state, seed)
        return replace(cast(Any, self), calibration=Calibration.of(errors))

    def summary(self) -> Summary:
        """What was learned and what was held fixed, in the user's units, and how it was checked. Print it."""
        return replace(self._summary(), check=self.check, calibration=self.calibration)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all of it to one file, for `gpssm.load`; an interrupted save leaves the old file as it was."""
        serialization.write(path, self)

    def named(self, output_names: tuple[str, ...], input_names: tuple[str, ...], end: Times | None = None) -> Self:
        """The same model, with names for its channels, and the time of the last sample that it has learned from."""
        recording, kept = self.recording.named(output_names, input_names), len(self.recording.outputs)
        times = None if end is None else end.later(1 - kept)
        check = None if self.check is None else self.check.named(output_names)
        return replace(cast(Any, self), recording=recording._replace(times=times), check=check)

    def learned_from(self, outputs: list[NDArray], inputs: list[NDArray], *, seed: int = 0) -> Self:
        """The same model, which knows the checked recordings it was fitted to: forecasts start where the last ends."""
        kept, count = kept_recording(outputs[-1], inputs[-1]), sum(map(len, outputs))
        facts = self._facts(outputs, [with_past(c, self.input_lags) for c in inputs], seed)
        return replace(cast(Any, self), recording=kept, num_samples=count, **facts)

    def check_filter(self, filter: str | None) -> str:
        """The filter of that name, or the default one; refused if this model has none such."""
        if filter is not None and filter not in self.filters:
            why = "" if len(self.filters) > 1 else ": the model is linear and is filtered exactly"
            raise InvalidInput(f"filter: expected one of {', '.join(self.filters)}, got {filter!r}{why}.")
        return filter or self.filters[0]

    def _checked(self, outputs: Any, inputs: Any, state: States | None = None) -> tuple[NDArray, NDArray]:
        """A recording, every row of inputs with those before it that still act."""
        check_state(state, self.state_dim)
        y, c = series(outputs, inputs, self.output_dim, self.input_dim)
        return y, with_past(c, self.input_lags, None if state is None else state.recent_inputs)

    # What the kinds differ in. Recordings y, c and what is returned as States are in the user's units; all other arrays
    # are standardised.

    @abstractmethod
    def _summary(self) -> Summary:
        """`summary`, without the check."""

    @abstractmethod
    def _end(self) -> States:
        """`end`, without times."""

    @abstractmethod
    def _f(self, x: NDArray) -> Pair:
        """Mean and variance of f."""

    @abstractmethod
    def _filtered(self, y: NDArray, c: NDArray, state: States | None, filter: str, seed: int) -> States: ...

    @abstractmethod
    def _smoothed(self, y: NDArray, c: NDArray, seed: int) -> States: ...

    @abstractmethod
    def _predicted(self, y: NDArray, c: NDArray, state: States | None, seed: int) -> Pair:
        """Mean and variance (T, dy) of every sample given those before it."""

    @abstractmethod
    def _paths(self, c: NDArray, state: States | None, num_paths: int, seed: int) -> Pair:
        """States (paths, horizon, dx) and outputs (paths, horizon, dy)."""

    @abstractmethod
    def _facts(self, ys: list[NDArray], cs: list[NDArray], seed: int) -> dict[str, Any]:
        """Fields that depend on the recordings learned from."""


def _times_after(state: States | None) -> Times | None:
    """Of samples that follow a state, if its own are known."""
    return None if state is None or state.times is None else state.times.later(len(state.mean))
