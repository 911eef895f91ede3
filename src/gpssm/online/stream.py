"""Learning live: one sample at a time, in constant memory.

A `Stream` is what the user holds. Below it is the pure core of an online method,

    step(key, state, y, u) -> (state, info)

compiled once. The first few samples only tell where the data live and on what scale; then they go
through the core like all others. A system that was at rest outgrows these units: then the stream begins
anew, from all it has seen. Everything here is in the user's units.

No sample can make the state infinite: numbers far outside the range of all others are taken as missing
(`gpssm.online.gate`), and so is a sample that the core cannot digest. Both are counted and reported.
"""

import functools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.errors import InvalidInput
from gpssm.numerics.lags import newest, with_past
from gpssm.online.gate import FAR, LARGEST, Gate
from gpssm.plumbing import serialization
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Carried, Gaps, NonNegative, renamed, shape
from gpssm.plumbing.packing import Layout
from gpssm.plumbing.precision import double_precision
from gpssm.plumbing.validation import arguments, model_inputs, positive_int, shown
from gpssm.posteriors.posterior import Posterior
from gpssm.posteriors.states import Forecast

NDArray = np.ndarray
P = ParamSpec("P")
T = TypeVar("T")


class Info(NamedTuple):
    """What a step tells: the filtered state, and the prediction that was made before the sample was seen."""

    state_mean: Float[Array, " dx"]
    state_cov: Float[Array, "dx dx"]
    predicted_mean: Float[Array, " dy"]
    predicted_std: Float[Array, " dy"]
    log_score: Float[Array, ""]
    """Log-density of what was seen of the sample under that prediction."""


class Estimate(NamedTuple):
    """What `learn_one` returns: `Info` in NumPy. NaN where there was nothing to predict from yet."""

    state_mean: Float[NDArray, " dx"]
    state_cov: Float[NDArray, "dx dx"]
    predicted_mean: Float[NDArray, " dy"]
    predicted_std: Float[NDArray, " dy"]
    log_score: float
    refused: str = ""
    """What of the sample was not believed and taken as missing, in one sentence; empty if all of it was."""

    @property
    def state_std(self) -> Float[NDArray, " dx"]:
        return np.sqrt(np.diagonal(self.state_cov))


class OnlineMethod(Protocol):
    """What a method must offer to be streamed. What is static is pure: all that it needs is in `state`."""

    @property
    def name(self) -> str: ...

    @property
    def state_dim(self) -> int: ...

    @property
    def warm_up(self) -> int:
        """Samples that are looked at before the first one is learned from."""

    def check(self, output_dim: int, input_dim: int) -> None:
        """Refuse data that the method cannot be used for."""

    def guess(self, output: NDArray) -> NDArray:
        """A rough state (dx,) from one sample, for the warm-up; NaN where a value is missing."""

    @property
    def input_lags(self) -> int:
        """How many of the last inputs act on f; `u` of `step` holds the newest first."""

    @property
    def trial(self) -> int:
        """Samples after which `settled` is called, or 0."""

    def begin(self, outputs: NDArray, inputs: NDArray) -> Any:
        """The state to start from, given the first samples; they will be learned from afterwards."""

    def settled(self, state: Any) -> Any:
        """The state to go on with after the trial."""

    @staticmethod
    def step(key: Array, state: Any, y: Array, u: Array) -> tuple[Any, Info]: ...

    @staticmethod
    def paths(key: Array, state: Any, inputs: Array, num_paths: int) -> tuple[Array, Array]:
        """States (paths, horizon, dx) and outputs (paths, horizon, dy)."""

    @staticmethod
    def transition(state: Any, x: Array) -> tuple[Array, Array]:
        """Mean and variance of f at the rows of `x`."""

    @staticmethod
    def process_noise(state: Any) -> Array:
        """Variances (dx,) of the process noise."""

    @staticmethod
    def posterior(state: Any) -> Posterior:
        """The state read back as an ordinary fitted model."""


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
    """A model that learns while it is used. Made by `OEnVI(...).start()` or `OEnVI.continuing(posterior)`."""

    method: OnlineMethod
    seed: int = 0
    count: NonNegative[int] = 0
    """Samples seen, missing ones included."""
    stored: Annotated[Any, Carried | None] = None
    """The core's state when the stream was started or saved; `state` is the present one."""
    early: list[tuple[Gaps[Float[NDArray, " dy"]], Float[NDArray, " lags*dc"]]] = field(default_factory=list)
    """The first samples, until the last time that it looks back."""
    begun: NonNegative[int] = 0
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

    @double_precision
    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._packed: tuple[Array, ...] | None = None
        self._layout: Layout | None = None
        self.state = self.stored

    def check_fields(self) -> None:
        """Refuse a state that another method has left in a file, and one of which it is not known what it was fed."""
        state = getattr(self.stored, "states", self.stored)
        known = get_type_hints(type(self.method).step)["state"]
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
        return self.method.state_dim

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
        """
        outputs, inputs = self._sample(y, u)
        believed, sentence = self._believed(outputs, inputs)
        inputs = self._with_recent(inputs[None])[0]
        self.recent = newest(inputs, self.method.input_lags)
        was_ready = self.ready
        estimate = self._learn(self._age, believed, inputs) if was_ready else None
        if self.early or not self.ready:
            self.early.append((np.where(np.abs(outputs) > LARGEST, np.nan, outputs), inputs))
        self.count += 1
        if estimate is None:
            estimate = self._warm_up()._replace(refused=_STARTED_AGAIN if was_ready else "")
        elif self.early and self._age in [multiple * self.method.warm_up for multiple in _LOOK_BACK]:
            self._look_back()
        if sentence or estimate.refused:
            self.refused += 1
            return estimate._replace(refused=sentence or estimate.refused)
        return estimate

    @_exclusive
    def forecast(self, horizon: int, inputs: Any = None, *, num_paths: int = 500, seed: int = 0) -> Forecast:
        """Sample paths of the next `horizon` outputs. The stream itself is not disturbed."""
        self._require_state("forecast")
        positive_int("horizon", horizon)
        positive_int("num_paths", num_paths, 2)
        assert self.input_dim is not None
        c = self._with_recent(model_inputs(inputs, horizon, self.input_dim))
        states, samples = _paths(type(self.method), jax.random.key(seed), self.state, jnp.asarray(c), num_paths)
        return Forecast(np.asarray(samples), np.asarray(states))

    @_exclusive
    def transition(self, x: Any) -> tuple[Float[NDArray, "n dx"], Float[NDArray, "n dx"]]:
        """Mean and variance of the f learned so far at `x` (n, state_dim + input_lags * input_dim)."""
        self._require_state("transition")
        assert self.input_dim is not None
        x = arguments(x, self.method.state_dim + self.method.input_lags * self.input_dim)
        mean, var = _transition(type(self.method), self.state, jnp.asarray(x))
        return np.asarray(mean), np.asarray(var)

    @property
    @_exclusive
    def process_noise(self) -> Float[NDArray, " dx"]:
        """Variances of the process noise as learned so far."""
        self._require_state("process_noise")
        return np.asarray(self.method.process_noise(self.state))

    @_exclusive
    def posterior(self) -> Posterior:
        """What has been learned so far as an ordinary fitted model: filter, smooth, forecast, summary."""
        self._require_state("posterior")
        posterior = self.method.posterior(self.state)
        return replace(posterior, input_lags=self.method.input_lags, recent_inputs=self.recent)

    @_exclusive
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file, from which `gpssm.load` resumes bit for bit."""
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
                raise InvalidInput(f"{_beyond('u', inputs, outside)}; the sample is left out.")
        outside, of_outputs = of_outputs.admit(outputs)
        self.gates = of_outputs, of_inputs
        if not outside.any():
            return outputs, ""
        return np.where(outside, np.nan, outputs), f"{_beyond('y', outputs, outside)}; taken as missing."

    def _first_gates(self, inputs: NDArray) -> tuple[Gate, Gate]:
        """Open ones; around what is predicted, if the stream was given a state and has not seen any sample."""
        assert self.output_dim is not None
        missing = np.full(self.output_dim, np.nan)
        if not self.ready:
            return Gate.of(missing[None]), Gate.of(np.full((1, len(inputs)), np.nan))
        _, told = self._moved(self._age, missing, self._with_recent(inputs[None])[0])
        expected = _estimate(told, self.method.state_dim, self.output_dim)
        return Gate.around(expected.predicted_mean, expected.predicted_std), Gate.of(inputs[None], least=1.0)

    def _learn(self, index: int, outputs: NDArray, inputs: NDArray) -> Estimate | None:
        """Put the sample with number `index` through the core, or a missing one if it makes the state infinite.

        None if the state cannot be moved at all: then the stream starts again, with nothing.
        """
        sentence = ""
        packed, told = self._moved(index, outputs, inputs)
        if not np.isfinite(told).all():
            sentence = "y: no finite state can follow this sample; taken as missing."
            packed, told = self._moved(index, np.full_like(outputs, np.nan), inputs)
        if not np.isfinite(told).all():
            self.state, self.gates, self.early, self.given_up = None, None, [], self.count
            return None
        self._packed = packed
        if index + 1 == self.method.trial:
            self.state = self.method.settled(self.state)
        return _estimate(told, self.method.state_dim, len(outputs), sentence)

    def _moved(self, index: int, outputs: NDArray, inputs: NDArray) -> tuple[tuple[Array, ...], NDArray]:
        """The state after a sample, and what the core tells: NaN if that state is not finite."""
        packed, told = _step(type(self.method), self._layout, self.seed, index, self._packed, outputs, inputs)
        return packed, np.asarray(told)

    def _warm_up(self) -> Estimate:
        """Before the core can start, the prediction is the mean of what was seen."""
        outputs = self._first()[0]
        predicted_mean, predicted_std = _spread(outputs[:-1])
        score = _log_density(outputs[-1], predicted_mean, predicted_std)
        begun = self._begin() if _tells_scale(outputs, self.method.warm_up) else None
        if begun is not None:
            return Estimate(*begun[:2], predicted_mean, predicted_std, score)
        mean = self.method.guess(outputs[-1])
        return Estimate(mean, np.full((len(mean), len(mean)), np.nan), predicted_mean, predicted_std, score)

    def _first(self) -> tuple[NDArray, NDArray, tuple[Gate, Gate]]:
        """Outputs and inputs of the first samples, without what cannot be believed among so many, and their ranges.

        Where that is an input, something usual is put in its place, and nothing is to be learned from the sample.
        """
        outputs, inputs = (np.array(part) for part in zip(*self.early, strict=True))
        lags = inputs.reshape(len(inputs), self.method.input_lags, -1)
        gates = Gate.of(outputs), Gate.of(lags[:, 0], least=1.0)
        unknown = np.stack([gates[1].outside(lag) for lag in np.moveaxis(lags, 1, 0)], axis=1)
        inputs = np.where(unknown, gates[1].centre, lags).reshape(inputs.shape)
        undriven = unknown.reshape(len(inputs), -1).any(axis=1, keepdims=True)
        return np.where(gates[0].outside(outputs) | undriven, np.nan, outputs), inputs, gates

    def _begin(self) -> Estimate | None:
        """Take units from all samples so far, and learn from them."""
        outputs, inputs, (of_outputs, of_inputs) = self._first()
        assert self.input_dim is not None
        for y, u in zip(outputs, inputs[:, : self.input_dim], strict=True):
            of_outputs, of_inputs = of_outputs.admit(y)[1], of_inputs.admit(u)[1]
        self.gates = of_outputs, of_inputs
        self.state, self.begun = self.method.begin(outputs, inputs), len(outputs)
        estimate = None
        for index, (y, u) in enumerate(zip(outputs, inputs, strict=True)):
            estimate = self._learn(index, y, u)
            if estimate is None:
                break
        return estimate

    def _look_back(self) -> None:
        """Begin anew if the samples have outgrown the units, or were a fault at first."""
        outputs, inputs, gates = self._first()
        assert self.gates is not None
        moves = np.concatenate([np.diff(outputs, axis=0), inputs[1:]], axis=1)
        outgrown = _range(moves) > _OUTGROWN * _range(moves[: self.begun - 1])
        shrunk = self.gates[0].least > _ABSURD * gates[0].reach
        if outgrown.any() or shrunk.any():
            self._begin()
        if self._age == _LOOK_BACK[-1] * self.method.warm_up:
            self.early = []

    def _sample(self, y: Any, u: Any) -> tuple[NDArray, NDArray]:
        """One checked sample; the first one decides how wide all others must be."""
        outputs = _row("y", y, self.output_dim)
        inputs = np.zeros(0) if u is None and not self.input_dim else _row("u", u, self.input_dim)
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


# More samples than this multiple of the warm-up are not waited for, whatever they look like.
_LONGEST_WARM_UP = 10
# Multiples of the warm-up at which a stream looks back, and how much more than at first is too much for the units:
# of steps of the outputs, and of inputs. That the outputs themselves go far is in the nature of a slow system.
_LOOK_BACK, _OUTGROWN = (2, 4, 8, 16), 10.0
# How much less: then the first samples were a fault. (That a system comes from afar is not.)
_ABSURD = 1e4
_STARTED_AGAIN = "the state could not be moved any more: the stream has started again, with this sample."


def _tells_scale(rows: NDArray, needed: int) -> bool:
    """Whether every channel was seen often enough, and moved."""
    if len(rows) >= _LONGEST_WARM_UP * needed:
        return True
    enough = np.sum(~np.isnan(rows), axis=0).min() >= needed
    return bool(enough and (np.nanmax(rows, axis=0) > np.nanmin(rows, axis=0)).all())


def _spread(rows: NDArray) -> tuple[NDArray, NDArray]:
    """Mean and standard deviation of every channel, NaN where there are too few values."""
    mean, std = np.full(rows.shape[1], np.nan), np.full(rows.shape[1], np.nan)
    for channel, column in enumerate(rows.T):
        seen = column[~np.isnan(column)]
        if len(seen) > 1:
            mean[channel], std[channel] = seen.mean(), seen.std(ddof=1)
    return mean, std


def _range(rows: NDArray) -> NDArray:
    """Width of the middle 80% of every column, which one outlier does not change."""
    width = np.zeros(rows.shape[1])
    for channel, column in enumerate(rows.T):
        seen = column[~np.isnan(column)]
        width[channel] = np.subtract(*np.quantile(seen, [0.9, 0.1])) if len(seen) else 0.0
    return width


def _log_density(y: NDArray, mean: NDArray, std: NDArray) -> float:
    """Of what was seen of `y`, NaN if nothing was or could be predicted."""
    seen = ~np.isnan(y)
    if not seen.any() or not (std[seen] > 0).all():
        return float("nan")
    z = (y - mean)[seen] / std[seen]
    return float(np.sum(-0.5 * (z**2 + np.log(2 * np.pi)) - np.log(std[seen])))


def _beyond(name: str, values: NDArray, outside: NDArray) -> str:
    """The beginning of a sentence about the first of them."""
    channel = int(np.argmax(outside))
    where = f"{name}[{channel}]: {values[channel]:g}"
    if np.abs(values[channel]) > LARGEST:
        return f"{where} is larger than {LARGEST:g}, the largest number that can be used"
    return f"{where} is {FAR:g} times farther away from the samples so far than they are from each other"


def _row(name: str, value: Any, width: int | None) -> NDArray:
    """A sample as finite numbers or NaN (width,)."""
    if value is None and width is not None and name == "y":
        return np.full(width, np.nan)
    try:
        row = np.atleast_1d(np.asarray(value, dtype=float))
    except (TypeError, ValueError, OverflowError) as error:  # the last of a whole number with hundreds of digits
        raise InvalidInput(f"{name}: expected numbers, got {shown(value)}.") from error
    if row.ndim != 1 or (width is not None and len(row) != width) or (name == "y" and len(row) == 0):
        expected = "a vector" if width is None else f"{width} number(s)"
        raise InvalidInput(f"{name}: expected {expected}, got shape {row.shape}.")
    if np.isinf(row).any():
        raise InvalidInput(f"{name}: infinite value; use NaN for a missing one.")
    return row


@partial(jax.jit, static_argnames=("kind", "layout"))
def _step(
    kind: type[OnlineMethod], layout: Layout, seed: int, index: int, packed: tuple[Array, ...], y: Array, u: Array
) -> tuple[tuple[Array, ...], Array]:
    key = jax.random.fold_in(jax.random.key(seed), index)
    state, info = kind.step(key, layout.unpack(packed), y, u)
    packed = layout.pack(state)
    # Of a state that is not finite nothing is told: whoever calls has to look at a few numbers only.
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(part)) for part in packed]))
    told = jnp.concatenate([jnp.ravel(part) for part in info])
    return packed, jnp.where(finite, told, jnp.nan)


def _estimate(told: NDArray, dx: int, dy: int, refused: str = "") -> Estimate:
    """What `_step` has told, taken apart."""
    a, b = dx + dx * dx, dx + dx * dx + dy
    return Estimate(told[:dx], told[dx:a].reshape(dx, dx), told[a:b], told[b : b + dy], float(told[b + dy]), refused)


@partial(jax.jit, static_argnames=("kind", "num_paths"))
def _paths(kind: type[OnlineMethod], key: Array, state: Any, inputs: Array, num_paths: int) -> tuple[Array, Array]:
    return kind.paths(key, state, inputs, num_paths)


@partial(jax.jit, static_argnames="kind")
def _transition(kind: type[OnlineMethod], state: Any, x: Array) -> tuple[Array, Array]:
    return kind.transition(state, x)
