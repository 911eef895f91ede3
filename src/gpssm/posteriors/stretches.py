"""Long recordings and horizons, cut into stretches: memory stays flat, and few programs are compiled.

The arrays of a stretch have one of a few lengths, powers of two; the last of a long recording, or the only one of a
short recording, is filled up. Another recording of about the same size needs no other program.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from gpssm.filters.stepwise import Stretch

NDArray = np.ndarray

_SHORTEST, _LONGEST = 64, 1024


def rows_of(length: int, width: int = 1) -> int:
    """How many rows there are in every stretch of `length` of them; fewer where each holds more than 500 numbers.

    >>> rows_of(20), rows_of(300), rows_of(200_000), rows_of(200_000, width=4000)
    (64, 512, 1024, 128)
    """
    longest = max(_SHORTEST, min(_LONGEST, 1 << max(1, 2**19 // width).bit_length() - 1))
    return min(max(1 << (length - 1).bit_length(), _SHORTEST), longest)


def filled(values: NDArray, rows: slice, count: int, by: float = 0.0) -> NDArray:
    """Some rows of an array, and behind them as many others as make it `count`."""
    part = values[rows]
    return np.pad(part, ((0, count - len(part)), (0, 0)), constant_values=by)


def cut(outputs: NDArray, inputs: NDArray) -> Iterator[Stretch]:
    """A recording, outputs (T, dy) and inputs (T, dc), as stretches of one length.

    >>> parts = cut(np.zeros((1500, 2)), np.zeros((1500, 0)))
    >>> [(part.outputs.shape, int(part.first), int(part.samples)) for part in parts]
    [((1024, 2), 0, 1024), ((1024, 2), 1024, 476)]
    """
    size = rows_of(len(outputs))
    for first in range(0, len(outputs), size):
        rows = slice(first, first + size)
        count = min(size, len(outputs) - first)
        yield Stretch(filled(outputs, rows, size, np.nan), filled(inputs, rows, size), np.int32(first), np.int32(count))


def forwards(
    advance: Callable[[Any, Stretch], tuple[Any, Any]], state: Any, outputs: NDArray, inputs: NDArray
) -> tuple[list[Any], Any]:
    """The state before every stretch and after the last, and what is kept of every sample.

    Args:
        advance: from a state and a stretch to the next state and a tree of arrays with a row for each of its rows.
        state: before the first sample.
        outputs, inputs: the recording.
    """
    states, kept = [state], []
    for stretch in cut(outputs, inputs):
        state, found = advance(state, stretch)
        states.append(state)
        kept.append(_real(found, stretch))
    return states, jax.tree.map(lambda *parts: np.concatenate(parts), *kept)


def backwards(
    retreat: Callable[[Any, Any, Stretch, np.int32], tuple[Any, Any]],
    states: list[Any],
    ahead: Any,
    outputs: NDArray,
    inputs: NDArray,
) -> Any:
    """What is kept of every sample by a second pass, from the last stretch to the first.

    Args:
        retreat: from where the pass is, the state before a stretch, the stretch, and the row in it of the last sample
            of all, or -1, to where the pass is next and what is kept.
        states: what `forwards` returned.
        ahead: where the pass starts.
        outputs, inputs: the recording.
    """
    kept: list[Any] = []
    for before, stretch in reversed(list(zip(states, cut(outputs, inputs), strict=False))):
        last = np.int32(-1) if kept else np.int32(stretch.samples - 1)
        ahead, found = retreat(ahead, before, stretch, last)
        kept.append(_real(found, stretch))
    return jax.tree.map(lambda *parts: np.concatenate(parts), *kept[::-1])


def _real(found: Any, stretch: Stretch) -> Any:
    return jax.tree.map(lambda a: np.asarray(a)[: stretch.samples], found)
