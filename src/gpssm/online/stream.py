"""Learning live: one sample at a time, in constant memory.

A `Stream` is what the user holds. Below it is the pure core of an online method (`gpssm.online.base`),

    step(key, state, y, c) -> (state, info)

compiled once. The first few samples only tell where the data live and on what scale; then they go through the core like
all others. A system that was at rest outgrows these units: then the stream restarts, from all it has seen
(`gpssm.online.gate`). Everything here is in the user's units.

No sample can make the state infinite: numbers far outside the range of all others are taken as missing
(`gpssm.online.gate`), and so is a sample that the core cannot digest. Both are counted and reported.
"""

import functools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.errors import InvalidInput
from gpssm.numerics.lags import newest, with_past
from gpssm.online import gate
from gpssm.online.bands import Bands
from gpssm.online.base import OnlineMethod
from gpssm.online.estimate import Estimate, estimate_of
from gpssm.online.gate import LARGEST, LOOK_BACK, Gate, beyond
from gpssm.online.packing import Layout
from gpssm.plumbing import serialization
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Carried, Gaps, NonNegative, renamed, shape
from gpssm.plumbing.precision import double_precision
from gpssm.plumbing.validation import Known, arguments, model_inputs, positive_int, sample_row
from gpssm.posteriors.posterior import Posterior
from gpssm.posteriors.states import Forecast, kept_recording

NDArray = np.ndarray
P = ParamSpec("P")
T = TypeVar("T")

_RESTARTED = "the state could not be moved any more: the stream has started again, with this sample."


def _exclusive(call: "Callable[Concatenate[Stream, P], T]") -> "Callable[Concatenate[Stream, P], T]":
    """Threads that share a stream take turns."""

    @functools.wraps(call)
    def wrapper(stream: "Stream", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with stream._lock:
            return call(stream, *args, **kwargs)

    return double_precision(wrapper)


@saved
@dataclass(eq=False)
class Stream:
    """A model that learns while it is used. Made by `OEnVI(...).start()` or `OEnVI.continuing(posterior)`.

    >>> import gpssm
    >>> stream = gpssm.VJF(1, num_inducing=2).start()
    >>> for y in gpssm.datasets.kink(15, 0.05, 0.08, seed=0).outputs:
    ...     estimate = stream.learn_one(y)
    >>> stream
    <VJF stream: 15 sample(s), 1 state(s), 1 output(s), 0 input(s)>
    >>> stream.forecast(3, num_paths=50).samples.shape
    (50, 3, 1)
    >>> mean, variance = stream.transition([[0.0], [1.0]])
    >>> mean.shape, variance.shape, stream.process_noise.shape
    ((2, 1), (2, 1), (1,))
    """

    method: OnlineMethod
    seed: int = 0
    count: NonNegative[int] = 0
    """Samples seen, missing ones included."""
    stored: Annotated[Any, Carried | None] = None
    """The core's state when the stream was started or saved; `state` is the present one."""
    early: list[tuple[Gaps[Float[NDArray, " dy"]], Float[NDArray, " lags*dc"]]] = field(default_factory=list)
    """The first samples, until the last time that it looks back."""
    unit_samples: NonNegative[int] = 0
    """How many of them the units come from."""
    position: str = ""
    """A reader's bookmark: where the last sample came from. Saved with the rest."""
    input_dim: Annotated[int | None, shape("dc")] = None
    output_dim: Annotated[int | None, shape("dy")] = None
    recent: Float[NDArray, "lags-1 dc"] | None = None
    """(lags - 1, dc) the inputs before the next one, newest first; those before the first sample are taken to be it."""
    refused: NonNegative[int] = 0
    """Samples that were refused, or of which something was."""
    gates: tuple[Annotated[Gate, renamed(c="dy")], Annotated[Gate, renamed(c="dc")]] | None = None
    """Range of the outputs and of the inputs; None as long as nothing is known of it."""
    given_up: NonNegative[int] = 0
    """Samples seen before the present state was started, if an earlier one had to be given up."""
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """What the user calls the outputs and the inputs."""
    bands: Bands | None = None
    """What the spread of forecasts is multiplied by."""

    @double_precision
    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._packed: tuple[Array, ...] | None = None
        self._layout: Layout | None = None
        self.state = self.stored

    def check_fields(self) -> None:
        """Refuse a state that another method has left in a file, and one of which it is not known what it was fed."""
        state, known = getattr(self.stored, "states", self.stored), self.method.state_type()
        if self.stored is not None and (not isinstance(state, known) or None in (self.input_dim, self.output_dim)):
            raise InvalidInput(f"stored: a {type(state).__name__} of unknown width; expected a state of {self.method}.")

    @property
    @_exclusive
    def state(self) -> Any:
        """Of the core; None during the warm-up."""
        return None if self._layout is None or self._packed is None else self._layout.unpack(self._packed)

    @state.setter
    @_exclusive
    def state(self, value: Any) -> None:
        self._layout = None if value is None else Layout.of(value)
        self._packed = None if self._layout is None else self._layout.pack(value)

    @property
    def state_dim(self) -> int:
        """Dimension of the state, that of the method."""
        return self.method.state_dim

    @property
    def output_names(self) -> tuple[str, ...]:
        """Of the channels: those in `names` if there are as many, or else y1, y2, ..."""
        return _as_many(self.names[0], self.output_dim, "y")

    @property
    def input_names(self) -> tuple[str, ...]:
        """Of the channels: those in `names` if there are as many, or else u1, u2, ..."""
        return _as_many(self.names[1], self.input_dim, "u")

    @property
    def readable(self) -> bool:
        """Whether its method has a `posterior`, to which all calls of a fitted model can be made."""
        return type(self.method).posterior is not OnlineMethod.posterior

    @property
    def ready(self) -> bool:
        """Whether the warm-up is over: only then it can forecast."""
        return self._layout is not None

    def __repr__(self) -> str:
        size = "" if self.output_dim is None else f", {self.output_dim} output(s), {self.input_dim} input(s)"
        return f"<{self.method.name} stream: {self.count} sample(s), {self.method.state_dim} state(s){size}>"

    @_exclusive
    def learn_one(self, y: Any, u: Any = None) -> Estimate:
        """Predict the next sample, look at it, learn from it.

        Args:
            y: (dy,) outputs; NaN (or None) where a value is missing.
            u: (dc,) the control input that acted on the way to this sample, if there are any.

        Returns:
            The filtered state and the prediction that was made of the sample. During the warm-up these are rough.

        Raises:
            InvalidInput: the sample cannot be used, and the stream is as it was before.

        >>> import gpssm
        >>> gpssm.OEnVI(1).start().learn_one([0.5]).state_mean
        array([0.5])
        """
        outputs, inputs = self._sample(y, u)
        believed, sentence = self._believed(outputs, inputs)
        inputs = self._with_recent(inputs[None])[0]
        self.recent = newest(inputs, self.method.input_lags)
        was_ready = self.ready
        estimate = self._learn(self._age, believed, inputs) if was_ready else None
        if estimate is not None:
            bands = self.bands or Bands.new(len(believed))
            now = inputs[: self.input_dim]
            self.bands = bands.seen(believed, estimate.predicted_mean, estimate.predicted_std, now)
        if self.early or not self.ready:
            self.early.append((np.where(np.abs(outputs) > LARGEST, np.nan, outputs), inputs))
        self.count += 1
        if estimate is None:
            estimate = self._warm_up()._replace(refused=_RESTARTED if was_ready else "")
        elif self.early and self._age in [multiple * self.method.warm_up for multiple in LOOK_BACK]:
            self._look_back()
        if sentence or estimate.refused:
            self.refused += 1
            return estimate._replace(refused=sentence or estimate.refused)
        return estimate

    @_exclusive
    def forecast(
        self,
        horizon: int,
        inputs: Any = None,
        *,
        num_paths: int = 500,
        seed: int = 0,
        calibrated: bool = True,
        follow: bool = False,
    ) -> Forecast:
        """Sample paths of the next `horizon` outputs. The stream itself is not disturbed, unless it is to `follow`.

        Args:
            horizon: number of steps.
            inputs: (horizon, dc) the control inputs to come, if there are any.
            num_paths: number of paths, each with its own f, state and noise.
            seed: all randomness of the forecast.
            calibrated: spread the outputs by factors that follow how often earlier forecasts held (`online.bands`);
                without, the paths are as the model has them.
            follow: compare this forecast with what comes, for the factors of the next; one at a time is.

        Returns:
            Outputs (num_paths, horizon, dy), observation noise included, and states (num_paths, horizon, dx).
        """
        self._require_state("forecast")
        positive_int("horizon", horizon)
        positive_int("num_paths", num_paths, 2)
        assert self.input_dim is not None
        c = self._with_recent(model_inputs(inputs, horizon, Known(0, self.input_dim)))
        states, samples = _paths(type(self.method), jax.random.key(seed), self.state, jnp.asarray(c), num_paths)
        samples = np.asarray(samples)
        bands = self.bands or Bands.new(samples.shape[2])
        if follow:
            self.bands = bands.awaiting(samples, c[:, : self.input_dim])
        samples = bands.applied(samples) if calibrated else samples
        return Forecast(samples, np.asarray(states), names=self.output_names)

    @_exclusive
    def transition(self, x: Any) -> tuple[Float[NDArray, "n dx"], Float[NDArray, "n dx"]]:
        """The f learned so far.

        Args:
            x: (n, state_dim + input_lags * input_dim) states, each followed by its inputs, newest first.

        Returns:
            Mean and variance (n, state_dim) of f, without process noise.
        """
        self._require_state("transition")
        assert self.input_dim is not None
        x = arguments(x, self.method.state_dim + self.method.input_lags * self.input_dim)
        mean, var = map(np.asarray, _transition(type(self.method), self.state, jnp.asarray(x)))
        past = self.state_dim - mean.shape[1]
        return np.concatenate([mean, x[:, :past]], axis=1), np.pad(var, ((0, 0), (0, past)))

    @property
    @_exclusive
    def process_noise(self) -> Float[NDArray, " dx"]:
        """Variances (state_dim,) of the process noise as learned so far."""
        self._require_state("process_noise")
        noise = np.asarray(self.method.process_noise(self.state))
        return np.pad(noise, (0, self.state_dim - len(noise)))

    @_exclusive
    def posterior(self) -> Posterior:
        """What has been learned so far as an ordinary fitted model: filter, smooth, forecast, summary.

        Streams of OEnVI and RGPSSM can be read that way; `InvalidInput` is raised by others, and during the warm-up.
        Nothing of what was seen is kept: the model has no `recording` but the names.

        >>> import gpssm
        >>> gpssm.OEnVI(1).start().posterior()  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        gpssm.errors.InvalidInput: posterior: the stream has seen 0 sample(s); expected at least 10, from which ...
        """
        if not self.readable:
            raise InvalidInput(
                f"posterior: a stream of {self.method.name} can be forecast, not filtered: what it has learned is no "
                "ordinary fitted model; expected one of OEnVI or RGPSSM."
            )
        self._require_state("posterior")
        posterior = self.method.posterior(self.state)
        nothing = kept_recording(np.zeros((0, self.output_dim or 0)), np.zeros((0, self.input_dim or 0)))
        posterior = replace(posterior, recording=nothing, input_lags=self.method.input_lags, recent_inputs=self.recent)
        return posterior.named(self.output_names, self.input_names)

    @_exclusive
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file, from which `gpssm.load` resumes bit for bit.

        >>> import gpssm, tempfile
        >>> with tempfile.NamedTemporaryFile(suffix=".gpssm") as file:
        ...     gpssm.OEnVI(1).start().save(file.name)
        ...     gpssm.load(file.name)
        <OEnVI stream: 0 sample(s), 1 state(s)>
        """
        self.stored = jax.tree.map(np.asarray, self.state)
        serialization.write(path, self)

    @_exclusive
    def __getstate__(self) -> dict[str, Any]:
        """For `pickle` and `copy`: what `save` writes."""
        kept = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return kept | {"stored": jax.tree.map(np.asarray, self.state)}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        vars(self).update(kept)
        self.__post_init__()

    def _with_recent(self, inputs: NDArray) -> Float[NDArray, "t lags*dc"]:
        return with_past(inputs, self.method.input_lags, self.recent)

    @property
    def _age(self) -> int:
        """Samples that the present state has seen."""
        return self.count - self.given_up

    def _believed(self, outputs: NDArray, inputs: NDArray) -> tuple[NDArray, str]:
        """The outputs with what cannot be believed missing, and a sentence about that; such an input is an error."""
        of_outputs, of_inputs = self.gates or self._first_gates(inputs)
        if len(inputs):
            outside, of_inputs = of_inputs.admit(inputs)
            if outside.any():
                self.refused += 1
                raise InvalidInput(f"{beyond('u', inputs, outside)}; the sample is left out.")
        outside, of_outputs = of_outputs.admit(outputs)
        self.gates = of_outputs, of_inputs
        if not outside.any():
            return outputs, ""
        return np.where(outside, np.nan, outputs), f"{beyond('y', outputs, outside)}; taken as missing."

    def _first_gates(self, inputs: NDArray) -> tuple[Gate, Gate]:
        """Open ones; around what is predicted, if the stream was given a state and has not seen any sample."""
        assert self.output_dim is not None
        missing = np.full(self.output_dim, np.nan)
        if not self.ready:
            return Gate.of(missing[None]), Gate.of(np.full((1, len(inputs)), np.nan))
        _, report = self._moved(self._age, missing, self._with_recent(inputs[None])[0])
        expected = estimate_of(report, self.method.state_dim, self.output_dim)
        return Gate.around(expected.predicted_mean, expected.predicted_std), Gate.of(inputs[None], least=1.0)

    def _learn(self, index: int, outputs: NDArray, inputs: NDArray) -> Estimate | None:
        """Put the sample with number `index` through the core, or a missing one if it makes the state infinite.

        None if the state cannot be moved at all: then the stream restarts, with nothing.
        """
        sentence = ""
        packed, report = self._moved(index, outputs, inputs)
        if not np.isfinite(report).all():
            sentence = "y: no finite state can follow this sample; taken as missing."
            packed, report = self._moved(index, np.full_like(outputs, np.nan), inputs)
        if not np.isfinite(report).all():
            self.state, self.gates, self.early, self.given_up = None, None, [], self.count
            return None
        self._packed = packed
        if index + 1 == self.method.trial:
            self.state = self.method.settled(self.state)
        return estimate_of(report, self.method.state_dim, len(outputs), sentence)

    def _moved(self, index: int, outputs: NDArray, inputs: NDArray) -> tuple[tuple[Array, ...], NDArray]:
        """The state after a sample, and what the core reports: NaN if that state is not finite."""
        packed, report = _step(type(self.method), self._layout, self.seed, index, self._packed, outputs, inputs)
        return packed, np.asarray(report)

    def _warm_up(self) -> Estimate:
        """Before the core can start, the prediction is the mean of what was seen."""
        outputs = gate.believable(self.early, self.method.input_lags)[0]
        prediction = gate.predict(outputs)
        estimate = self._restart() if gate.tells_scale(outputs, self.method.warm_up) else None
        if estimate is not None:
            return Estimate(estimate.state_mean, estimate.state_cov, *prediction)
        mean = self.method.guess(outputs[-1])
        return Estimate(mean, np.full((len(mean), len(mean)), np.nan), *prediction)

    def _restart(self) -> Estimate | None:
        """Take units from all samples so far, and learn from them."""
        outputs, inputs, (of_outputs, of_inputs) = gate.believable(self.early, self.method.input_lags)
        assert self.input_dim is not None
        for y, c in zip(outputs, inputs[:, : self.input_dim], strict=True):
            of_outputs, of_inputs = of_outputs.admit(y)[1], of_inputs.admit(c)[1]
        self.gates = of_outputs, of_inputs
        self.state, self.unit_samples = self.method.initial_state(outputs, inputs), len(outputs)
        estimate = None
        for index, (y, c) in enumerate(zip(outputs, inputs, strict=True)):
            estimate = self._learn(index, y, c)
            if estimate is None:
                break
        return estimate

    def _look_back(self) -> None:
        """Restart if the samples have outgrown the units, or were a fault at first."""
        outputs, inputs, gates = gate.believable(self.early, self.method.input_lags)
        assert self.gates is not None
        if gate.outgrown(outputs, inputs, self.unit_samples, self.gates[0].least, gates[0]):
            self._restart()
        if self._age == LOOK_BACK[-1] * self.method.warm_up:
            self.early = []

    def _sample(self, y: Any, u: Any) -> tuple[NDArray, NDArray]:
        """One checked sample; the first one decides how wide all others must be."""
        outputs = sample_row("y", y, self.output_dim)
        inputs = np.zeros(0) if u is None and not self.input_dim else sample_row("u", u, self.input_dim)
        if np.isnan(inputs).any():
            raise InvalidInput("u: contains NaN; control inputs must be known. Repeat the last one, or fill the gap.")
        if self.output_dim is None:
            self.method.check(len(outputs), len(inputs))
            self.output_dim, self.input_dim = len(outputs), len(inputs)
        return outputs, inputs

    def _require_state(self, what: str) -> None:
        if not self.ready:
            raise InvalidInput(
                f"{what}: the stream has seen {self.count} sample(s); expected at least {self.method.warm_up}, "
                "from which it learns where the data live."
            )


def _as_many(names: tuple[str, ...], count: int | None, letter: str) -> tuple[str, ...]:
    return names if len(names) == count else tuple(f"{letter}{i + 1}" for i in range(count or 0))


@partial(jax.jit, static_argnames=("kind", "layout"))
def _step(
    kind: type[OnlineMethod], layout: Layout, seed: int, index: int, packed: tuple[Array, ...], y: Array, c: Array
) -> tuple[tuple[Array, ...], Array]:
    key = jax.random.fold_in(jax.random.key(seed), index)
    state, info = kind.step(key, layout.unpack(packed), y, c)
    packed = layout.pack(state)
    # Of a state that is not finite nothing is reported: whoever calls has to look at a few numbers only.
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(part)) for part in packed]))
    report = jnp.concatenate([jnp.ravel(part) for part in info])
    return packed, jnp.where(finite, report, jnp.nan)


@partial(jax.jit, static_argnames=("kind", "num_paths"))
def _paths(kind: type[OnlineMethod], key: Array, state: Any, inputs: Array, num_paths: int) -> tuple[Array, Array]:
    return kind.paths(key, state, inputs, num_paths)


@partial(jax.jit, static_argnames="kind")
def _transition(kind: type[OnlineMethod], state: Any, x: Array) -> tuple[Array, Array]:
    return kind.transition(state, x)
