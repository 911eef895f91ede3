"""A recording: what every data set returns."""

from typing import NamedTuple

import numpy as np

NDArray = np.ndarray


class Series(NamedTuple):
    """Outputs (T, dy), inputs (T, dc) or None, and the true states (T, dx) where they are known."""

    outputs: NDArray
    inputs: NDArray | None
    states: NDArray | None
