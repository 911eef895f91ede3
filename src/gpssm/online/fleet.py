"""Several sensors of one kind, each with a stream of its own, that learn side by side.

What takes time in a sample of a small model is to call a program rather than to run it. After the trial the samples of
all sensors go through one call, a loop over the sensors around the program of a single stream: the digits are those of
streams on their own.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpssm.errors import InvalidInput
from gpssm.online import core
from gpssm.online.abreast import Abreast
from gpssm.online.base import OnlineMethod
from gpssm.online.core import BLOCK, Moved
from gpssm.online.estimate import Estimate, Estimates
from gpssm.online.gate import Believed
from gpssm.online.stream import Stream
from gpssm.online.turns import exclusive
from gpssm.plumbing.validation import positive_int, real

NDArray = np.ndarray


class Fleet:
    """Streams of several sensors of one kind, which learn apart from each other and share all that is compiled.

    Args:
        method: what each of them is a stream of.
        names: of the sensors; or how many there are, which are called "1", "2", ...
        seed: of the first stream; the others have the next ones.

    `fleet["east"]` and `fleet[0]` are the stream of a sensor, for its forecast, `save` and all else; it may also learn
    by itself. `fleet["east"] = gpssm.load(path)` goes on from a saved one.

    >>> import gpssm
    >>> fleet = gpssm.Fleet(gpssm.VJF(1, num_inducing=2), ["east", "west"])
    >>> for t in range(15):
    ...     estimates = fleet.learn_one([[0.1 * t], [np.sin(t)]])  # NaN from a sensor that has not reported
    >>> estimates.state_mean.shape, estimates.predicted_std.shape
    ((2, 1), (2, 1))
    >>> fleet["west"].forecast(3, num_paths=50).samples.shape
    (50, 3, 1)
    >>> fleet
    <Fleet of 2 VJF streams: east, west>
    """

    def __init__(self, method: OnlineMethod, names: int | Sequence[str], seed: int = 0) -> None:
        if isinstance(names, (int, np.integer)):
            names = [str(i + 1) for i in range(positive_int("names", names))]
        self.names = (names,) if isinstance(names, str) else tuple(names)
        if not self.names or not all(isinstance(name, str) for name in self.names):
            raise InvalidInput(f"names: {names!r}; expected the name of every sensor, or how many there are.")
        if len(set(self.names)) < len(self.names):
            raise InvalidInput(f"names: {', '.join(self.names)}; expected another name for every sensor.")
        self.method = method
        self._lock = threading.RLock()
        self._streams = [method.start(seed + i) for i in range(len(self.names))]
        for stream in self._streams:
            stream._lock = self._lock  # who uses one of them takes turns with the fleet
        self._abreast: Abreast | None = None

    def __len__(self) -> int:
        return len(self._streams)

    def __repr__(self) -> str:
        return f"<Fleet of {len(self)} {self.method.name} streams: {', '.join(self.names)}>"

    def __getitem__(self, sensor: int | str) -> Stream:
        return self._streams[self._place(sensor)]

    @exclusive
    def __setitem__(self, sensor: int | str, stream: Stream) -> None:
        place, dims = self._place(sensor), {(each.output_dim, each.input_dim) for each in (*self._streams, stream)}
        alike = type(stream.method) is type(self.method) and len(dims - {(None, None)}) <= 1
        sizes = ((m.state_dim, m.input_lags) for m in (stream.method, self.method))
        if not alike or len(set(sizes)) > 1:
            raise InvalidInput(f"stream: {stream}; expected one as the others are, {self._streams[place]}.")
        if any(each is stream for i, each in enumerate(self._streams) if i != place):
            raise InvalidInput(f"stream: {stream} is that of another sensor of the fleet; expected one of its own.")
        self._streams[place], stream._lock = stream, self._lock

    @exclusive
    def learn_one(self, ys: Any, us: Any = None) -> Estimates:
        """A sample of every sensor: what `learn_one` of its stream does, to the last digit.

        The first call compiles all that later ones need.

        Args:
            ys: (n, dy) outputs, a row for each of the n sensors; NaN where a value is missing.
            us: (n, dc) the control inputs that acted on the way to these samples, if there are any.

        Returns:
            What the streams return, a row for each. Where an input cannot be believed, the sensor's sample is left
            out: then `refused` says so, and the other numbers of its row are NaN.

        Raises:
            InvalidInput: the samples cannot be used, and the streams are as they were before.
        """
        outputs, inputs = self._samples(ys, us, 2)
        rows = [(outputs[i : i + 1], inputs[i : i + 1]) for i in range(len(self))]
        samples = [_believed(stream, *row) for stream, row in zip(self._streams, rows, strict=True)]
        assert self._abreast is not None
        together, found = self._abreast.moved(self._streams, samples), list[Estimate]()
        for i, (stream, sample) in enumerate(zip(self._streams, samples, strict=True)):
            found += _learned(stream, sample, together.get(i))
        return Estimates.of(found, self.method.state_dim, outputs.shape[1])

    @exclusive
    def learn_many(self, ys: Any, us: Any = None) -> list[Estimates]:
        """All samples that have come: the same as `learn_one` for every row, to the last digit, and faster.

        Args:
            ys: (T, n, dy) outputs of n sensors, NaN where a value is missing.
            us: (T, n, dc) the control inputs that acted on the way to these samples, if there are any.

        Returns:
            Of every sensor what `learn_many` of its stream returns, a row for each of the T samples.

        >>> import gpssm
        >>> fleet = gpssm.Fleet(gpssm.VJF(1, num_inducing=2), 3)
        >>> estimates = fleet.learn_many(np.random.default_rng(0).normal(size=(20, 3, 1)))
        >>> len(estimates), estimates[0].state_mean.shape, fleet["1"].count
        (3, (20, 1), 20)
        """
        outputs, inputs = self._samples(ys, us, 3)
        all_found = []
        for i, stream in enumerate(self._streams):
            found: list[Estimate] = []
            while len(found) < len(outputs):
                few = slice(len(found), len(found) + BLOCK)
                found += _learned(stream, _believed(stream, outputs[few, i], inputs[few, i]), None)
            all_found.append(Estimates.of(found, self.method.state_dim, outputs.shape[2]))
        return all_found

    def _place(self, sensor: int | str) -> int:
        if isinstance(sensor, str) and sensor in self.names:
            return self.names.index(sensor)
        if isinstance(sensor, (int, np.integer)) and -len(self) <= sensor < len(self):
            return int(sensor)
        raise InvalidInput(
            f"sensor: {sensor!r}; expected a number below {len(self)} or one of {', '.join(self.names)}."
        )

    def _samples(self, ys: Any, us: Any, ndim: int) -> tuple[NDArray, NDArray]:
        """Checked; the first ones decide how wide all others must be, and all is compiled for them."""
        dims = [(stream.output_dim, stream.input_dim) for stream in self._streams]
        output_dim, input_dim = next((each for each in dims if each[0] is not None), (None, None))
        outputs = self._array("ys", ys, ndim, output_dim)
        none = np.zeros((*outputs.shape[:-1], 0))
        inputs = none if us is None and not input_dim else self._array("us", us, ndim, input_dim)
        if inputs.shape[:-1] != outputs.shape[:-1]:
            raise InvalidInput(f"us: shape {inputs.shape}; expected a row for every one of ys, {outputs.shape}.")
        for i, stream in enumerate(self._streams):
            if i == 0 or stream.output_dim is None:
                stream._check_widths(outputs.shape[-1], inputs)
        if self._abreast is None:
            dy, dc = outputs.shape[-1], self.method.input_lags * inputs.shape[-1]
            self._abreast = Abreast(core.rehearse(self.method, None, dy, dc), len(self), dy, dc)
            for stream in self._streams:
                stream._prepared = not stream.ready
        return outputs, inputs

    def _array(self, name: str, value: Any, ndim: int, width: int | None) -> NDArray:
        array = real(name, value, "numbers")
        fits = array.ndim == ndim and array.shape[-2] == len(self) and array.shape[-1] == (width or array.shape[-1])
        if not fits or array.shape[-1] == 0:
            expected = f"{'T, ' if ndim == 3 else ''}{len(self)}, {width or 'channels'}"
            raise InvalidInput(f"{name}: shape {array.shape}; expected ({expected}), a row for every sensor.")
        if np.isinf(array).any():
            raise InvalidInput(f"{name}: infinite value; use NaN for a missing one.")
        return array


def _believed(stream: Stream, outputs: NDArray, inputs: NDArray) -> Believed | str:
    """Or a sentence about an input that cannot be."""
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
