"""A sample of each of several streams in one call of a program, which costs as much as a small sample itself."""

from typing import Any

import numpy as np

from gpssm.online import core
from gpssm.online.core import Core, Moved
from gpssm.online.gate import Believed
from gpssm.online.stream import Stream

NDArray = np.ndarray


class Abreast:
    """Streams whose states are alike, each with a sample; compiled when it is made.

    The states stay in one array, of which every stream has its part, until a stream has another one.
    """

    def __init__(self, settled: Core, count: int, dy: int, dc: int) -> None:
        """For streams whose states after the trial are like `settled`."""
        self._settled, self._dims = settled, (dy, dc)
        self._parts = [settled.packed[0]] * count
        self._stacked: tuple[Any, ...] = tuple(map(np.stack, zip(*self._parts, strict=True)))
        for _ in range(2):  # with arrays of NumPy, and with those that it returns
            self._run(np.zeros((count, 3), int), np.zeros((count, 1, dy + dc)))

    def moved(self, streams: list[Stream], samples: list[Believed | str]) -> dict[int, Moved]:
        """The cores of those streams that are past their trial and could digest the sample, by their number."""
        count, dy, states = len(streams), self._dims[0], list(self._parts)
        numbers, rows = np.zeros((count, 3), int), np.zeros((count, 1, sum(self._dims)))
        for i, (stream, sample) in enumerate(zip(streams, samples, strict=True)):
            now, settled = stream._core, stream._age >= stream.method.trial
            if isinstance(sample, Believed) and now is not None and settled and now.layout is self._settled.layout:
                numbers[i], states[i] = (stream.seed, stream._age, 1), now.packed[0]
                rows[i, 0, :dy], rows[i, 0, dy:] = sample.outputs[0], stream._with_recent(sample.inputs)[0]
        if not numbers[:, 2].any():
            return {}
        if any(a is not b for a, b in zip(states, self._parts, strict=True)):
            self._stacked = tuple(map(np.stack, zip(*states, strict=True)))
        reports = self._run(numbers, rows)
        digested = np.flatnonzero((numbers[:, 2] == 1) & (reports[:, 0, -1] == 0.0))
        cores = ((int(i), streams[i]._core) for i in digested)
        return {i: (now._replace(packed=(self._parts[i],)), reports[i]) for i, now in cores if now is not None}

    def _run(self, numbers: NDArray, rows: NDArray) -> NDArray:
        kind, layout, dy = type(self._settled.method), self._settled.layout, self._dims[0]
        self._stacked, reports = core.side_by_side(
            numbers, self._stacked, rows, kind=kind, layout=layout, output_dim=dy
        )
        self._parts = list(zip(*map(np.asarray, self._stacked), strict=True))
        return np.asarray(reports)
