"""Recordings: what every data set returns, ready for `fit(data.outputs, data.inputs)`."""

from typing import Annotated, NamedTuple

import numpy as np

from gpssm.errors import InvalidInput
from gpssm.plumbing.catalogue import saved
from gpssm.plumbing.contents import Gaps, shape

NDArray = np.ndarray


@saved
class Series(NamedTuple):
    """Outputs (T, dy), inputs (T, dc) or None, and the true states (T, dx) where they are known."""

    outputs: Annotated[Gaps[NDArray], shape("t dy", or_empty=True)]
    inputs: Annotated[NDArray | None, shape("t dc")]
    states: Annotated[NDArray | None, shape("t dx")]
    output_names: Annotated[tuple[str, ...], shape("dy", or_empty=True)] = ()
    input_names: Annotated[tuple[str, ...], shape("dc", or_empty=True)] = ()

    def split(self, fraction: float) -> "tuple[Series, Series]":
        """The first `int(fraction * T)` rows to learn from, and the rest to test on."""
        if not isinstance(fraction, (int, float)) or not 0 < fraction < 1:
            raise InvalidInput(f"fraction: expected a number between 0 and 1, both excluded, got {fraction!r}.")
        length = len(self.outputs)
        cut = int(fraction * length)
        if min(cut, length - cut) < 2:
            raise InvalidInput(
                f"fraction: {fraction!r} cuts {length} rows into {cut} and {length - cut}; expected at least 2 in each."
            )
        return self.rows(slice(None, cut)), self.rows(slice(cut, None))

    def named(self, output_names: tuple[str, ...], input_names: tuple[str, ...]) -> "Series":
        """The same recording with names for its channels."""
        for argument, names, count in (
            ("output_names", output_names, self.outputs.shape[1]),
            ("input_names", input_names, 0 if self.inputs is None else self.inputs.shape[1]),
        ):
            if len(names) != count:
                raise InvalidInput(f"{argument}: got {len(names)} name(s); expected {count}.")
        return self._replace(output_names=tuple(output_names), input_names=tuple(input_names))

    def numbered(self) -> "Series":
        """The same recording with the names y1, y2, ... and u1, u2, ..."""
        width = 0 if self.inputs is None else self.inputs.shape[1]
        return self._replace(
            output_names=tuple(f"y{i + 1}" for i in range(self.outputs.shape[1])),
            input_names=tuple(f"u{i + 1}" for i in range(width)),
        )

    def rows(self, rows: slice) -> "Series":
        """Some of the samples."""
        return self._replace(
            outputs=self.outputs[rows],
            inputs=None if self.inputs is None else self.inputs[rows],
            states=None if self.states is None else self.states[rows],
        )


class SeriesList(NamedTuple):
    """Several recordings of one system: lists of outputs (T_i, dy) and inputs (T_i, dc), and what tells them apart."""

    outputs: list[NDArray]
    inputs: list[NDArray] | None
    ids: tuple[str, ...]
    output_names: tuple[str, ...] = ()
    input_names: tuple[str, ...] = ()
