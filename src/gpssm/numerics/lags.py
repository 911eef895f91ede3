"""Inputs that act late: every row of them with those before it."""

import numpy as np
from jaxtyping import Float

NDArray = np.ndarray


def with_past(
    inputs: Float[NDArray, "t dc"], lags: int, recent: Float[NDArray, "past dc"] | None = None
) -> Float[NDArray, "t lags*dc"]:
    """Rows `[c_t, c_{t-1}, ..., c_{t-lags+1}]`.

    `recent` are the `lags - 1` inputs before the first, newest first; they are taken to be as the first if not known.
    """
    if lags == 1:
        return inputs
    past = np.repeat(inputs[:1], lags - 1, axis=0) if recent is None else recent[::-1]
    rows = np.concatenate([past, inputs])
    return np.concatenate([rows[lags - 1 - lag : len(rows) - lag] for lag in range(lags)], axis=1)


def newest(row: Float[NDArray, " lags*dc"], lags: int) -> Float[NDArray, "past dc"]:
    """The inputs in a row of `with_past` that the next row needs: its `recent`, (lags - 1, dc), newest first."""
    return row.reshape(lags, -1)[:-1]
