"""Samples of several streams in one call of a program, which costs as much as a small sample itself."""

import numpy as np

from gpssm.online import core
from gpssm.online.core import Core, Moved
from gpssm.online.gate import Believed
from gpssm.online.stream import Stream

NDArray = np.ndarray

GROUP = 64
"""Streams that a call holds."""
ROWS = 8
"""Samples of each."""


class Abreast:
    """Streams whose states are alike, each with some samples; compiled when it is made."""

    def __init__(self, settled: Core, dy: int, dc: int) -> None:
        """For streams whose states after the trial are like `settled`, and inputs with their past of `dc` numbers."""
        self._settled, self._dims = settled, (dy, dc)
        self._run([settled.packed[0]] * GROUP, np.zeros((GROUP, 3), int), np.zeros((GROUP, ROWS, dy + dc)))

    def moved(self, streams: list[Stream], samples: list[Believed | str]) -> dict[int, Moved]:
        """The cores of those streams that are past their trial and could digest their samples, by their number."""
        dy, idle = self._dims[0], self._settled.packed[0]
        states = [idle] * GROUP
        numbers, rows = np.zeros((GROUP, 3), int), np.zeros((GROUP, ROWS, sum(self._dims)))
        for i, (stream, sample) in enumerate(zip(streams, samples, strict=True)):
            now, settled = stream._core, stream._age >= stream.method.trial
            if isinstance(sample, Believed) and now is not None and settled and now.layout is self._settled.layout:
                count = len(sample.outputs)
                numbers[i], states[i] = (stream.seed, stream._age, count), now.packed[0]
                rows[i, :count, :dy], rows[i, :count, dy:] = sample.outputs, stream._with_recent(sample.inputs)
        if not numbers[:, 2].any():
            return {}
        packed, reports = self._run(states, numbers, rows)
        found = {}
        for i in map(int, np.flatnonzero(numbers[:, 2])):
            report, now = reports[i, : numbers[i, 2]], streams[i]._core
            if now is not None and (report[:, -1] == 0.0).all():
                # Copied: a view of one stream would keep those of all others.
                found[i] = now._replace(packed=(tuple(np.array(part[i]) for part in packed),)), np.array(report)
        return found

    def _run(
        self, states: list[tuple[NDArray, ...]], numbers: NDArray, rows: NDArray
    ) -> tuple[tuple[NDArray, ...], NDArray]:
        stacked = tuple(map(np.stack, zip(*states, strict=True)))
        kind, layout = type(self._settled.method), self._settled.layout
        packed, reports = core.side_by_side(numbers, stacked, rows, kind=kind, layout=layout, output_dim=self._dims[0])
        return tuple(map(np.asarray, packed)), np.asarray(reports)
