"""What every fit returns: `transition`, `filter`, `smooth`, `forecast`, `summary`, `save`, in the user's units.

All calls are pure functions of the fitted model, their arguments and a seed. Outputs are (T, dy), NaN where a value is
missing; inputs (T, dc), of which row t acts on the way to row t of the outputs. Both are arrays, or tables of pandas,
polars or anything with `__dataframe__`: columns are found by name, rows of inputs by the index of the outputs, and an
index of times goes on in what is returned. What looks as if it was not meant is a `DataWarning`.

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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self, cast, overload

import numpy as np
from jaxtyping import Float

from gpssm.datasets.series import Series
from gpssm.errors import InvalidInput
from gpssm.models.scaling import Scaling
from gpssm.numerics.lags import with_past
from gpssm.plumbing import guards, serialization
from gpssm.plumbing.times import Times
from gpssm.plumbing.validation import (
    Known,
    Recording,
    arguments,
    model_inputs,
    numbered,
    positive_int,
    series,
)
from gpssm.posteriors.calibration import Calibration, Origin, rolling_errors
from gpssm.posteriors.check import Check
from gpssm.posteriors.history import History
from gpssm.posteriors.states import Forecast, ForecastSummary, States, check_state, kept_recording, probabilities
from gpssm.posteriors.stretches import filled, rows_of
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
    """The name of the method that has learned it."""
    scaling: Scaling
    """Between the user's units and standardised ones."""
    history: History
    """The course of the fit."""
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
        return self.filtered(self.checked(outputs, inputs, state), state=state, filter=chosen, seed=seed)

    def smooth(self, outputs: Any, inputs: Any = None, *, seed: int = 0) -> States:
        """The state at every time given all samples; `outputs`, `inputs`, `seed` and the prior as those of `filter`."""
        given = self.checked(outputs, inputs)
        return self._smoothed(given.outputs, self._with_past(given.inputs), seed)._replace(times=given.times)

    def one_step(
        self, outputs: Any, inputs: Any = None, *, state: States | None = None, seed: int = 0
    ) -> tuple[Float[NDArray, "t dy"], Float[NDArray, "t dy"]]:
        """Mean and standard deviation of every sample, predicted from those before it.

        `outputs`, `inputs`, `state` and `seed` are those of `filter`.
        """
        given = self.checked(outputs, inputs, state)
        predicted = self._predicted(given.outputs, self._with_past(given.inputs, state), state, seed)
        mean, var = (np.asarray(part, float) for part in predicted)
        return self.scaling.outputs(mean), np.sqrt(var) * self.scaling.output_scale

    def log_likelihood(self, outputs: Any, inputs: Any = None, *, filter: str | None = None, seed: int = 0) -> float:
        """`sum_t log p(y_t | y_{1:t-1})` of a recording, in nats, for outputs in the user's units.

        `outputs`, `inputs`, `filter` and `seed` are those of `filter`.
        """
        return self.filter(outputs, inputs, filter=filter, seed=seed).log_likelihood

    @overload
    def forecast(
        self,
        horizon: int,
        inputs: Any = None,
        *,
        state: States | None = None,
        num_paths: int = 500,
        seed: int = 0,
        calibrated: bool = True,
        quantiles: None = None,
    ) -> Forecast: ...

    @overload
    def forecast(
        self, horizon: int, inputs: Any = None, *, quantiles: Sequence[float], **how: Any
    ) -> ForecastSummary: ...

    def forecast(
        self,
        horizon: int,
        inputs: Any = None,
        *,
        state: States | None = None,
        num_paths: int = 500,
        seed: int = 0,
        calibrated: bool = True,
        quantiles: Sequence[float] | None = None,
    ) -> Forecast | ForecastSummary:
        """Sample paths of the next `horizon` outputs: uncertain state, process and observation noise.

        Where f is a GP each path has its own draw of it, so that what is not known of f is in the spread.

        Args:
            horizon: number of steps.
            inputs: (horizon, dc) future inputs, if the model has any. Of a table with times the rows that follow the
                last sample.
            state: result of `filter` to start from, after its last sample; `end` by default.
            num_paths: number of paths, 2 or more.
            seed: of the draws.
            calibrated: spread the outputs as the model's `calibration` says, if it has one.
            quantiles: probabilities in [0, 1], for a horizon whose paths would fill the memory: what is returned has
                `mean`, `std` and these quantiles, and no paths.

        Returns:
            Paths of outputs (num_paths, horizon, dy) and states, with their `mean`, `std` and `quantile`; with
            `quantiles` what is known of them without the paths. A shorter horizon has the same paths, cut short.

        >>> from gpssm import LastValue
        >>> ahead = LastValue().fit([[1.0], [2.0], [4.0]]).forecast(3, num_paths=50)
        >>> ahead.samples.shape, ahead.mean.shape
        ((50, 3, 1), (3, 1))
        >>> far = LastValue().fit([[1.0], [2.0], [4.0]]).forecast(5000, num_paths=50, quantiles=[0.05, 0.95])
        >>> [edge.shape for edge in far.band(0.9)]
        [(5000, 1), (5000, 1)]
        """
        c = self.future(horizon, inputs, state)
        positive_int("num_paths", num_paths, 2)
        how: Any = {"state": state, "num_paths": num_paths, "seed": seed, "calibrated": calibrated}
        if quantiles is None:
            return self.ahead(c, **how)
        kept = tuple(float(q) for q in np.atleast_1d(probabilities("quantiles", quantiles)))
        return ForecastSummary.of(self.pieces(c, **how), kept)

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
        y, c, _ = self.checked(outputs, inputs, self.end if state is None else state)
        errors = rolling_errors(y, c, horizon, seed, Origin(self, state))
        if not errors:
            raise InvalidInput("outputs: holds no number that a forecast can be compared with; expected some.")
        return replace(cast(Any, self), calibration=Calibration.of(errors))

    def summary(self) -> Summary:
        """What was learned and what was held fixed, in the user's units, and how it was checked. Print it."""
        return replace(self._summary(), check=self.check, calibration=self.calibration)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all of it to a file at `path`, for `gpssm.load`; an interrupted save leaves the old file as it was."""
        serialization.write(path, self)

    def named(self, output_names: tuple[str, ...], input_names: tuple[str, ...], end: Times | None = None) -> Self:
        """The same model with `output_names` and `input_names`; `end` is the time of the last sample learned from."""
        recording, kept = self.recording.named(output_names, input_names), len(self.recording.outputs)
        times = None if end is None else end.later(1 - kept)
        check = None if self.check is None else self.check.named(output_names)
        return replace(cast(Any, self), recording=recording._replace(times=times), check=check)

    def learned_from(self, outputs: list[NDArray], inputs: list[NDArray], *, seed: int = 0) -> Self:
        """The same model, which knows the checked `outputs` and `inputs` it has learned: forecasts start at their end.

        `seed` is of the filter that finds the state there.
        """
        kept, count = kept_recording(outputs[-1], inputs[-1]), sum(map(len, outputs))
        facts = self._facts(outputs, [with_past(c, self.input_lags) for c in inputs], seed)
        return replace(cast(Any, self), recording=kept, num_samples=count, **facts)

    def check_filter(self, filter: str | None) -> str:
        """The `filter` of that name, or the default one; refused if this model has none such."""
        if filter is not None and filter not in self.filters:
            why = "" if len(self.filters) > 1 else ": the model is linear and is filtered exactly"
            raise InvalidInput(f"filter: expected one of {', '.join(self.filters)}, got {filter!r}{why}.")
        return filter or self.filters[0]

    def checked(self, outputs: Any, inputs: Any = None, state: States | None = None) -> Recording:
        """`outputs` and `inputs` that a user has handed in, as arrays, to follow `state`; warns of what looks wrong."""
        check_state(state, self.state_dim)
        given = series(outputs, inputs, self._known(), _times_after(state))
        self._guard("outputs", given.outputs)
        self._guard("inputs", given.inputs)
        return given

    def future(self, horizon: int, inputs: Any = None, state: States | None = None) -> NDArray:
        """`inputs` (`horizon`, dc) to come handed in by a user, as an array, to follow `state`, by default `end`."""
        positive_int("horizon", horizon)
        check_state(state, self.state_dim)
        expected = _times_after(self.end if state is None else state)
        c = model_inputs(inputs, horizon, self._known(), expected)
        self._guard("inputs", c)
        return c

    def filtered(
        self, given: Recording, *, state: States | None = None, filter: str | None = None, seed: int = 0
    ) -> States:
        """What `filter` returns of a checked recording, `given`, with that `state`, `filter` and `seed`."""
        c = self._with_past(given.inputs, state)
        found = self._filtered(given.outputs, c, state, filter or self.filters[0], seed)
        return found._replace(times=given.times)

    def ahead(
        self,
        inputs: NDArray,
        *,
        state: States | None = None,
        num_paths: int = 500,
        seed: int = 0,
        calibrated: bool = True,
    ) -> Forecast:
        """`forecast` of checked `inputs` (horizon, dc); `state`, `num_paths`, `seed` and `calibrated` as there."""
        pieces = self.pieces(inputs, state=state, num_paths=num_paths, seed=seed, calibrated=calibrated)
        return Forecast.joined(pieces, len(inputs))

    def pieces(
        self,
        inputs: NDArray,
        *,
        state: States | None = None,
        num_paths: int = 500,
        seed: int = 0,
        calibrated: bool = True,
    ) -> Iterator[Forecast]:
        """What `ahead` joins, stretch after stretch; `inputs`, `state`, `num_paths`, `seed`, `calibrated` as there."""
        recent = self.recent_inputs if state is None else state.recent_inputs
        c = self.scaling.standardise_inputs(with_past(inputs, self.input_lags, recent))
        times = _times_after(self.end if state is None else state)
        size, piece = rows_of(len(c), num_paths), None
        with np.errstate(over="ignore", invalid="ignore"):  # an unstable model; the forecast says where it diverged
            now = self._begun(state, num_paths, seed)
        for first in range(0, len(c), size):
            count = min(size, len(c) - first)
            with np.errstate(over="ignore", invalid="ignore"):
                now, paths = self._continued(now, filled(c, slice(first, first + size), size), first)
                states, samples = (part[:, :count] for part in paths)
                samples = self.scaling.outputs(samples)
                if calibrated and self.calibration is not None:
                    samples = self.calibration.applied(samples, first)
                when = None if times is None else times.later(first)
                piece = Forecast(samples, self.scaling.states(states), when, self.output_names, before=piece)
            yield piece

    def _known(self) -> Known:
        names = self.output_names, self.input_names
        return Known(self.output_dim, self.input_dim, *names, self.recording.times)

    def _guard(self, argument: str, values: NDArray) -> None:
        """Warn of values (T, columns) that are far from what the model was trained on."""
        kept, scaling, count = self.recording, self.scaling, values.shape[1]
        if not len(kept.outputs) or not count:
            return
        shift, scale, seen, names = (
            (scaling.output_shift, scaling.output_scale, kept.outputs, self.output_names)
            if argument == "outputs"
            else (scaling.input_shift, scaling.input_scale, kept.inputs, self.input_names)
        )
        trained = guards.Range.of(shift[:count], scale[:count], np.zeros((0, count)) if seen is None else seen)
        guards.report(guards.elsewhere(argument, names or numbered(argument, count), values, trained))

    def _with_past(self, inputs: NDArray, state: States | None = None) -> NDArray:
        """Every row of inputs with those before it that still act."""
        return with_past(inputs, self.input_lags, None if state is None else state.recent_inputs)

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
    def _begun(self, state: States | None, num_paths: int, seed: int) -> Any:
        """Where sample paths start, in whatever form `_continued` reads."""

    @abstractmethod
    def _continued(self, now: Any, c: NDArray, first: int) -> tuple[Any, Pair]:
        """Where they have come to, and states (paths, steps, dx) and outputs (paths, steps, dy) from step `first` on.

        One for every row of `c`; draws depend on the number of a step alone.
        """

    @abstractmethod
    def _facts(self, ys: list[NDArray], cs: list[NDArray], seed: int) -> dict[str, Any]:
        """Fields that depend on the recordings learned from."""


def _times_after(state: States | None) -> Times | None:
    """Of samples that follow a state, if its own are known."""
    return None if state is None or state.times is None else state.times.later(len(state.mean))
