"""Recordings: what every data set returns, ready for `fit(data.outputs, data.inputs)`."""

from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from gpssm.errors import InvalidInput
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Gaps, shape
from gpssm.plumbing.frames import Table
from gpssm.plumbing.times import Times
from gpssm.plumbing.validation import positive_int

NDArray = np.ndarray


@saved
class Series(NamedTuple):
    """One recording: outputs (T, dy), inputs (T, dc) or None, and the true states (T, dx) where they are known.

    >>> data = Series(np.zeros((10, 2)), np.ones((10, 1)), None).numbered()
    >>> data.output_names, data.input_names
    (('y1', 'y2'), ('u1',))
    """

    outputs: Annotated[Gaps[NDArray], shape("t dy", or_empty=True)]
    """(T, dy), NaN where a value is missing."""
    inputs: Annotated[NDArray | None, shape("t dc")]
    """(T, dc), of which row t acts on the way to row t of the outputs."""
    states: Annotated[NDArray | None, shape("t dx")]
    """(T, dx), of simulated systems."""
    output_names: Annotated[tuple[str, ...], shape("dy", or_empty=True)] = ()
    """One for every output, or none."""
    input_names: Annotated[tuple[str, ...], shape("dc", or_empty=True)] = ()
    """One for every input, or none."""
    times: Times | None = None
    """When the samples were taken, if it is known."""

    def split(self, fraction: float) -> "tuple[Series, Series]":
        """The first rows to learn from, and the rest to test on.

        Args:
            fraction: share of the T rows that are learned from, `int(fraction * T)` of them; between 0 and 1.

        >>> train, test = Series(np.zeros((10, 2)), None, None).split(0.7)
        >>> len(train.outputs), len(test.outputs)
        (7, 3)
        """
        if not isinstance(fraction, (int, float)) or not 0 < fraction < 1:
            raise InvalidInput(f"fraction: expected a number between 0 and 1, both excluded, got {fraction!r}.")
        length = len(self.outputs)
        cut = int(fraction * length)
        if min(cut, length - cut) < 2:
            raise InvalidInput(
                f"fraction: {fraction!r} cuts {length} rows into {cut} and {length - cut}; expected at least 2 in each."
            )
        return self.rows(slice(None, cut)), self.rows(slice(cut, None))

    def named(self, output_names: Sequence[str], input_names: Sequence[str]) -> "Series":
        """The same recording with names for its channels: dy `output_names` and dc `input_names`."""
        for argument, names, count in zip(
            ("output_names", "input_names"), (output_names, input_names), self._widths(), strict=True
        ):
            if len(names) != count:
                raise InvalidInput(f"{argument}: got {len(names)} name(s); expected {count}.")
        return self._replace(output_names=tuple(output_names), input_names=tuple(input_names))

    def numbered(self) -> "Series":
        """The same recording with the names y1, y2, ... and u1, u2, ..."""
        dy, dc = self._widths()
        return self.named([f"y{i + 1}" for i in range(dy)], [f"u{i + 1}" for i in range(dc)])

    def _widths(self) -> tuple[int, int]:
        return self.outputs.shape[1], 0 if self.inputs is None else self.inputs.shape[1]

    @property
    def end(self) -> Times | None:
        """The time of the last sample, if it is known."""
        return None if self.times is None else self.times.later(len(self.outputs) - 1)

    def tables(self) -> tuple[Table, Table | None]:
        """Outputs and inputs with their names and times, as `fit` takes them."""
        inputs = None if self.inputs is None else Table(self.inputs, _unique(self.input_names), self.times)
        return Table(self.outputs, _unique(self.output_names), self.times), inputs

    def rows(self, rows: slice) -> "Series":
        """Consecutive samples that the slice `rows` selects, with the same names."""
        first = rows.indices(len(self.outputs))[0]
        return self._replace(
            times=None if self.times is None else self.times.later(first),
            outputs=self.outputs[rows],
            inputs=None if self.inputs is None else self.inputs[rows],
            states=None if self.states is None else self.states[rows],
        )


class SeriesList(NamedTuple):
    """Several recordings of one system: lists of outputs (T_i, dy) and inputs (T_i, dc), and the id of each.

    >>> SeriesList([np.zeros((3, 1)), np.ones((4, 1))], None, ("monday", "tuesday")).ids
    ('monday', 'tuesday')
    """

    outputs: list[NDArray]
    """(T_i, dy) of every recording, NaN where a value is missing."""
    inputs: list[NDArray] | None
    """(T_i, dc) of every recording."""
    ids: tuple[str, ...]
    """What tells the recordings apart."""
    output_names: tuple[str, ...] = ()
    """One for every output, or none."""
    input_names: tuple[str, ...] = ()
    """One for every input, or none."""
    times: tuple[Times | None, ...] = ()
    """Of every recording, if they are known."""

    @property
    def end(self) -> Times | None:
        """The time of the last sample of the last recording, if it is known."""
        return self.times[-1].later(len(self.outputs[-1]) - 1) if self.times and self.times[-1] else None

    def tables(self) -> tuple[list[Table], list[Table] | None]:
        """Outputs and inputs of every recording with their names and times, as `fit` takes them."""
        times, names = self.times or (None,) * len(self.outputs), _unique(self.input_names)
        inputs = None
        if self.inputs is not None:
            inputs = [Table(c, names, time) for c, time in zip(self.inputs, times, strict=True)]
        names = _unique(self.output_names)
        return [Table(y, names, time) for y, time in zip(self.outputs, times, strict=True)], inputs


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names that tell columns apart, or none."""
    return names if len(set(names)) == len(names) else ()


class Simulated(NamedTuple):
    """A simulated recording, and the matrix C (dy, dx) through which its states are seen.

    >>> from gpssm import datasets
    >>> datasets.nascar(length=5, seed=0).series.outputs.shape
    (5, 10)
    """

    series: Series
    """Outputs (T, dy) and true states (T, dx)."""
    emission: NDArray
    """C (dy, dx)."""


def simulate(
    step: Callable[[NDArray], NDArray],
    state: NDArray,
    length: int,
    emission: NDArray,
    obs_noise: float,
    rng: np.random.Generator,
) -> Simulated:
    """`length` samples of `x_t = step(x_{t-1})`, `y_t = C x_t + e_t` from `state` (dx,); `obs_noise` is a variance."""
    states = np.empty((positive_int("length", length), len(state)))
    for t in range(length):
        state = states[t] = step(state)
    outputs = states @ emission.T + np.sqrt(obs_noise) * rng.normal(size=(length, len(emission)))
    return Simulated(Series(outputs, None, states), emission)
