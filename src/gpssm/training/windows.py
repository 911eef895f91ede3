"""Cutting recordings into windows that are filtered side by side.

A scan over T steps becomes a scan over `length` steps with T / length windows in parallel. A
window that is not the first of its recording starts from the ensemble its left neighbour ended
with one iteration earlier.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

NDArray = np.ndarray


class Windows(NamedTuple):
    """Standardised data, one row per window. Padding at the end of a recording is inactive."""

    outputs: Float[NDArray, "b w dy"]
    inputs: Float[NDArray, "b w dc"]
    active: Float[NDArray, "b w"]
    left: Int[NDArray, " b"]  # the window to continue from, -1 at the start of a recording
    sequence: Int[NDArray, " b"]
    position: Int[NDArray, " b"]  # of its first sample in the recording
    log_volume: Float[NDArray, ""] = np.zeros(())
    """Log of the factor between densities of standardised outputs and of the user's."""

    @property
    def num_observed(self) -> int:
        """How many numbers there are to explain."""
        return int(np.sum(~np.isnan(self.outputs)))


def cut(outputs: list[NDArray], inputs: list[NDArray], length: int) -> Windows:
    """Cut every recording into windows of `length` steps, the last one padded."""
    rows: list[tuple[NDArray, NDArray, NDArray, int, int, int]] = []
    for index, (y, c) in enumerate(zip(outputs, inputs, strict=True)):
        for start in range(0, len(y), length):
            part, missing = slice(start, start + length), max(0, start + length - len(y))
            part_y = np.pad(y[part], ((0, missing), (0, 0)), constant_values=np.nan)
            part_c = np.pad(c[part], ((0, missing), (0, 0)))
            active = np.pad(np.ones(length - missing), (0, missing))
            rows.append((part_y, part_c, active, -1 if start == 0 else len(rows) - 1, index, start))
    return Windows(*map(np.stack, zip(*rows, strict=True)))
