"""Many sensors of one kind, each with a stream of its own, which learn side by side.

What takes time in a sample of a small model is to call a program rather than to run it. So the samples of many sensors
go through one call, a loop over the sensors around the program of a single stream: the digits are those of streams on
their own, whoever else has reported.
"""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gpssm.errors import InvalidInput
from gpssm.online import core
from gpssm.online.abreast import GROUP, ROWS, Abreast
from gpssm.online.base import OnlineMethod
from gpssm.online.core import BLOCK, Moved
from gpssm.online.estimate import Estimate, Estimates
from gpssm.online.gate import Believed
from gpssm.online.stream import Stream
from gpssm.online.turns import exclusive
from gpssm.plumbing.validation import matrix, shown
from gpssm.posteriors.states import Forecast

NDArray = np.ndarray

_FEW = 4  # sensors, up to which each goes through a program of its own, which takes more samples at once


class Fleet:
    """Streams of many sensors of one kind, which learn apart from each other and share all that is compiled.

    A sensor joins with its first sample and has a warm-up of its own. `fleet["east"]` is its stream, an ordinary one:
    for its forecast, `save` and all else; it may also learn by itself. `fleet["east"] = gpssm.load(path)` goes on from
    a saved one, `del fleet["east"]` lets the sensor leave. `len(fleet)`, `"east" in fleet` and `for sensor in fleet`
    are of the sensors that have joined, in the order in which they did.

    Args:
        method: what each of them is a stream of.
        seed: of the fleet. That of a sensor follows from it and from what the sensor is called, so that it learns the
            same whoever else is there and whenever it joins.

    >>> import gpssm
    >>> fleet = gpssm.Fleet(gpssm.VJF(1, num_inducing=2))
    >>> for t in range(15):
    ...     estimates = fleet.learn_many(["east", "west"], [[0.1 * t], [np.sin(t)]])
    >>> estimates.state_mean.shape, estimates.predicted_std.shape
    ((2, 1), (2, 1))
    >>> fleet.forecast("west", 3, num_paths=50).samples.shape
    (50, 3, 1)
    >>> fleet
    <Fleet of 2 VJF stream(s)>
    """

    def __init__(self, method: OnlineMethod, seed: int = 0) -> None:
        self.method = method
        self.seed = seed
        self._lock = threading.RLock()
        self._streams: dict[str, Stream] = {}
        self._dims: tuple[int, int] | None = None
        self._settled: core.Core | None = None
        self._abreast: Abreast | None = None

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._streams))

    def __contains__(self, sensor: object) -> bool:
        return isinstance(sensor, (str, int, np.integer)) and str(sensor) in self._streams

    def __repr__(self) -> str:
        return f"<Fleet of {len(self)} {self.method.name} stream(s)>"

    def __getitem__(self, sensor: str) -> Stream:
        found = self._streams.get(_called(sensor))
        if found is None:
            few = list(self._streams)[:5]
            known = ", ".join(map(shown, few)) + (f" and {len(self) - 5} others" if len(self) > 5 else "")
            raise InvalidInput(f"sensor: {shown(sensor)} has not joined; expected one of {known or 'none so far'}.")
        return found

    @exclusive
    def __setitem__(self, sensor: str, stream: Stream) -> None:
        name, dims = _called(sensor), (stream.output_dim, stream.input_dim)
        alike = type(stream.method) is type(self.method) and dims in (self._dims or dims, (None, None))
        sizes = ((m.state_dim, m.input_lags) for m in (stream.method, self.method))
        if not alike or len(set(sizes)) > 1:
            wide = "" if self._dims is None else f", with {self._dims[0]} output(s) and {self._dims[1]} input(s)"
            raise InvalidInput(f"stream: {stream}; expected one of {self.method}{wide}.")
        if any(each is stream for known, each in self._streams.items() if known != name):
            raise InvalidInput(f"stream: {stream} is that of another sensor of the fleet; expected one of its own.")
        if stream.output_dim is not None and stream.input_dim is not None:
            self._dims = stream.output_dim, stream.input_dim
        stream._lock = self._lock  # who uses it takes turns with the fleet
        self._streams[name] = stream

    @exclusive
    def __delitem__(self, sensor: str) -> None:
        leaving = self[sensor]
        del self._streams[_called(sensor)]
        leaving._lock = threading.RLock()

    @exclusive
    def learn_one(self, sensor: str, y: Any, u: Any = None) -> Estimate:
        """A sample of one sensor: what `learn_one` of its stream does.

        What is needed is compiled at the first one of all.

        Args:
            sensor: what it is called; it joins if it is new.
            y: (dy,) outputs; NaN (or None) where a value is missing.
            u: (dc,) the control input that acted on the way to this sample, if there are any.

        Returns:
            What its stream returns.

        >>> import gpssm
        >>> gpssm.Fleet(gpssm.OEnVI(1)).learn_one("east", [0.5]).state_mean
        array([0.5])
        """
        name = _called(sensor)
        stream = self._stream(name)
        outputs, inputs = stream._sample(y, u)
        self._widths(outputs[None], inputs[None])
        self._streams[name] = stream  # who comes with a sample that cannot be used does not join
        return stream._learn(outputs[None], inputs[None])[0]

    @exclusive
    def learn_many(self, sensors: Sequence[str], outputs: Any, inputs: Any = None) -> Estimates:
        """All samples that have come, of any sensors: of each the same as `learn_one`, to the last digit, and faster.

        What is needed is compiled at the first call, and once more at the first with more than four sensors.

        Args:
            sensors: what the sensor of every sample is called; those that are new join. Samples of one sensor are in
                the order of time.
            outputs: (n, dy) the samples, NaN where a value is missing.
            inputs: (n, dc) the control inputs that acted on the way to these samples, if there are any.

        Returns:
            What the streams return, a row for each of the n samples. Where an input cannot be believed, the sample is
            left out: then `refused` says so, and the other numbers of its row are NaN.

        Raises:
            InvalidInput: the samples cannot be used, and all streams are as they were before.

        >>> import gpssm
        >>> fleet = gpssm.Fleet(gpssm.VJF(1, num_inducing=2))
        >>> estimates = fleet.learn_many(["a", "b", "a"], [[0.1], [5.0], [0.2]])
        >>> estimates.log_score.shape, fleet["a"].count, fleet["b"].count
        ((3,), 2, 1)
        """
        names = [_called(each) for each in _listed(sensors)]
        dims = self._dims or (None, None)
        ys, without = matrix("outputs", outputs, dims[0]), inputs is None and not dims[1]
        us = np.zeros((len(ys), 0)) if without else matrix("inputs", inputs, dims[1])
        for name, rows in (("sensors", len(names)), ("inputs", len(us))):
            if rows != len(ys):
                raise InvalidInput(f"{name}: {rows} of them; expected as many as there are rows of outputs, {len(ys)}.")
        if np.isnan(us).any():
            raise InvalidInput(
                "inputs: contain NaN; control inputs must be known. Repeat the last one, or fill the gap."
            )
        self._widths(ys, us)
        places: dict[str, list[int]] = {}
        for place, name in enumerate(names):
            places.setdefault(name, []).append(place)
        for name in places:
            self._streams[name] = self._stream(name)
        if self._abreast is None and len(self) > _FEW:
            assert self._dims is not None and self._settled is not None
            self._abreast = Abreast(self._settled, self._dims[0], self.method.input_lags * self._dims[1])
        queues = [(self._streams[name], np.array(each)) for name, each in places.items()]
        found: list[Any] = [None] * len(ys)
        for first in range(0, len(queues), GROUP):
            group = queues[first : first + GROUP]
            while group:
                group = self._learn(group, ys, us, found)
        return Estimates.of(found, self.method.state_dim, ys.shape[1])

    def forecast(self, sensor: str, horizon: int, inputs: Any = None, **how: Any) -> Forecast:
        """What `Stream.forecast` of this sensor returns.

        Args:
            sensor: what it is called.
            horizon: number of steps.
            inputs: (horizon, dc) the control inputs to come, if there are any.
            how: further arguments of `Stream.forecast`, such as `num_paths`.

        Returns:
            Outputs (num_paths, horizon, dy), observation noise included, and states (num_paths, horizon, dx).

        >>> import gpssm
        >>> fleet = gpssm.Fleet(gpssm.VJF(1, num_inducing=2))
        >>> estimates = fleet.learn_many(["a"] * 15, np.sin(np.arange(15.0)))
        >>> fleet.forecast("a", 3, num_paths=50).mean.shape
        (3, 1)
        """
        return self[sensor].forecast(horizon, inputs, **how)

    def _learn(
        self, group: list[tuple[Stream, NDArray]], outputs: NDArray, inputs: NDArray, found: list[Any]
    ) -> list[tuple[Stream, NDArray]]:
        """Some of the samples of each of a few streams, by their places; returns what is left to be learned."""
        abreast = self._abreast if len(group) > _FEW else None
        few = [places[: BLOCK if abreast is None else ROWS] for _, places in group]
        samples = [_believed(stream, outputs[at], inputs[at]) for (stream, _), at in zip(group, few, strict=True)]
        moved = {} if abreast is None else abreast.moved([stream for stream, _ in group], samples)
        left = []
        for i, ((stream, places), sample) in enumerate(zip(group, samples, strict=True)):
            learned = _learned(stream, sample, moved.get(i))
            for place, estimate in zip(places, learned, strict=False):
                found[place] = estimate
            if len(learned) < len(places):
                left.append((stream, places[len(learned) :]))
        return left

    def _widths(self, outputs: NDArray, inputs: NDArray) -> None:
        """The first samples decide how wide all others must be, and what a stream needs is compiled for them."""
        if outputs.shape[1] == 0:
            raise InvalidInput(f"outputs: shape {outputs.shape}; expected at least one channel.")
        if self._dims is None:
            self.method.check(outputs.shape[1], inputs.shape[1])
            self._dims = outputs.shape[1], inputs.shape[1]
        if self._settled is None:
            self._settled = core.rehearse(self.method, None, self._dims[0], self.method.input_lags * self._dims[1])

    def _stream(self, name: str) -> Stream:
        """That of a sensor, or of one that is going to join; what it needs is compiled for all."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self.method.start(self._seed_of(name))
            stream._lock, stream._prepared = self._lock, True
        if stream.output_dim is None and self._dims is not None:
            stream.output_dim, stream.input_dim = self._dims
        return stream

    def _seed_of(self, name: str) -> int:
        digest = hashlib.blake2b(f"{self.seed} {name}".encode("utf-8", "surrogatepass"), digest_size=4).digest()
        return int.from_bytes(digest) >> 1


def _called(sensor: Any) -> str:
    if isinstance(sensor, (int, np.integer)) and not isinstance(sensor, bool):
        return str(sensor)
    if not isinstance(sensor, str) or not sensor:
        raise InvalidInput(f"sensor: {shown(sensor)}; expected what it is called, a word or a whole number.")
    return str(sensor)


def _listed(sensors: Any) -> Sequence[Any]:
    if isinstance(sensors, (str, bytes)) or not hasattr(sensors, "__len__"):
        raise InvalidInput(f"sensors: {shown(sensors)}; expected a list of what the sensor of every sample is called.")
    listed: Sequence[Any] = sensors
    return listed


def _believed(stream: Stream, outputs: NDArray, inputs: NDArray) -> Believed | str:
    """Or a sentence about the input of the first sample, which cannot be."""
    try:
        return stream._believed(outputs, inputs)
    except InvalidInput as error:
        return str(error)


def _learned(stream: Stream, samples: Believed | str, moved: Moved | None) -> list[Estimate]:
    """What the stream says of them; it moves by itself if it was not `moved` yet."""
    if isinstance(samples, Believed):
        return stream._learned(samples, moved or stream._moved(samples))
    dx, dy = stream.state_dim, stream.output_dim or 0
    state, output = np.full(dx, np.nan), np.full(dy, np.nan)
    return [Estimate(state, np.full((dx, dx), np.nan), output, output, np.nan, samples)]
